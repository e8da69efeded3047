//! What happens to the processes of a simulation while they run: faults, restarts and what they publish.

use std::sync::Arc;
use std::time::Duration;

use saga_runner::app::{Node, StartError};

use super::super::plan::Action;
use super::super::runner::Runner;
use super::super::upstream::UpstreamFaults;
use super::{ANSWERED_IN, End, Ended, Simulation};

impl Simulation {
    /// Does what the plan says, heals, and waits for the end.
    pub(super) async fn act(&mut self, main: &mut Runner, second: &mut Option<Runner>) -> Ended {
        loop {
            if let Some(ended) = self.look_at_processes(main, second).await {
                return ended;
            }
            let now = self.world.clock.passed();
            self.end_what_ends(now, main, second);
            if main.starting.is_none() {
                // Of a process that stands still no answer comes.
                drop(tokio::time::timeout(ANSWERED_IN, self.look_after(&main.node)).await);
            }
            let next_end = self.ends.iter().map(|(at, _)| *at).min();
            let Some((at, action)) = self.plan.actions.get(self.done).cloned() else {
                match next_end {
                    Some(end) => {
                        self.pass(end.saturating_sub(now), second.as_ref()).await;
                        continue;
                    }
                    None => return self.heal(main).await,
                }
            };
            let until = next_end.map_or(at, |end| end.min(at));
            if until > now {
                self.pass(until.saturating_sub(now), second.as_ref()).await;
                continue;
            }
            self.done += 1;
            let node = &main.node;
            match action {
                Action::Event(event) => self.publish(event),
                Action::Ask(request) => self.ask(node, request),
                Action::Garbage { tenant, kind, key } => self.publish_garbage(tenant, kind, &key),
                // What was lost is told by the process that saw it, and by no later one.
                Action::Crash { .. } | Action::Restart if self.is_untold() => {}
                Action::Crash { calls } => main.process.die_after(calls),
                Action::Down { for_ms } => {
                    self.down_until = Some(now + Duration::from_millis(for_ms));
                    main.process.die();
                    return Ended::Died;
                }
                Action::Restart => {
                    self.world.note(format_args!("told to stop"));
                    // Before that it hears of nothing.
                    main.process.go_on();
                    self.server.wake();
                    node.drain(Duration::from_secs(10)).await;
                    self.stopped.push((main.process.number, now));
                    return Ended::Stopped;
                }
                Action::Change => {
                    self.world.note(format_args!("other definitions"));
                    let node = Arc::clone(node);
                    self.change(&node);
                }
                Action::Reload => {
                    let node = Arc::clone(node);
                    drop(tokio::spawn(async move { drop(node.reload().await) }));
                }
                Action::Cut { for_ms } => {
                    self.server.cut();
                    self.ends.push((now + Duration::from_millis(for_ms), End::Cut));
                }
                Action::DropOnTheWay => self.server.drop_on_the_way(),
                Action::DiskFull { shard, for_ms } => {
                    let shard = shard % self.plan.shards;
                    self.world.note(format_args!("disk of shard {shard} is full"));
                    self.disks[usize::from(shard)].set_full(true);
                    self.ends
                        .push((now + Duration::from_millis(for_ms), End::Full(shard)));
                }
                Action::ClockStep { ms } => {
                    self.world.note(format_args!("clock steps to {ms} ms"));
                    self.world.clock.step(ms);
                }
                Action::Close { shard, for_ms } => {
                    self.close(node, shard);
                    self.ends
                        .push((now + Duration::from_millis(for_ms), End::Closed(shard)));
                }
                Action::UpstreamsAway { for_ms } => {
                    self.world.note(format_args!("upstreams are away"));
                    self.upstream.set_faults(UpstreamFaults {
                        unreachable: 1_000,
                        ..UpstreamFaults::default()
                    });
                    self.ends.push((now + Duration::from_millis(for_ms), End::Away));
                }
                Action::Fault(fault) => {
                    if let Some(ended) = self.suffer(fault, main, second).await {
                        return ended;
                    }
                }
            }
        }
    }

    /// How the life ends where a start has, or where the second process has died.
    async fn look_at_processes(&mut self, main: &mut Runner, second: &mut Option<Runner>) -> Option<Ended> {
        if let Some(ended) = self.end_second(main, second) {
            return Some(ended);
        }
        if let Some(started) = main.started().await
            && let Some(ended) = self.started(main.process.number, started).await
        {
            return Some(ended);
        }
        self.look_at_second(main, second).await
    }

    fn close(&self, node: &Arc<Node>, shard: u16) {
        let (node, world) = (Arc::clone(node), Arc::clone(&self.world));
        drop(tokio::spawn(async move {
            let closed = node.close_shard(shard, Duration::from_secs(10)).await;
            world.note(format_args!("shard {shard} is closed: {closed:?}"));
        }));
    }

    /// Lets time pass, in small parts where something has to be looked at meanwhile.
    async fn pass(&self, time: Duration, second: Option<&Runner>) {
        let most = if second.is_some() || self.is_looked_after() {
            Duration::from_millis(500)
        } else {
            time
        };
        tokio::time::sleep(time.min(most)).await;
    }

    /// How the life ends where the process could not start.
    pub(super) async fn started(
        &mut self,
        process: u64,
        started: Result<Result<(), StartError>, String>,
    ) -> Option<Ended> {
        match started {
            Ok(Ok(())) => self.begun().err().map(Ended::Failed),
            // Whoever looks after the process starts it again.
            Ok(Err(StartError::Storage(message))) if message.contains("SR0207") => {
                self.world
                    .note(format_args!("it does not start: {}", self.told(&message)));
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some(Ended::Stopped)
            }
            Ok(Err(error)) => Some(self.refused(process, error).await),
            Err(fault) => Some(Ended::Failed(fault)),
        }
    }

    fn end_what_ends(&mut self, now: Duration, main: &Runner, second: &mut Option<Runner>) {
        let due: Vec<End> = self
            .ends
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, end)| *end)
            .collect();
        self.ends.retain(|(at, _)| *at > now);
        for end in due {
            match end {
                End::Cut => self.server.reconnect(),
                End::Full(shard) => {
                    self.world.note(format_args!("disk of shard {shard} has room"));
                    self.disks[usize::from(shard)].set_full(false);
                }
                End::MapFull(shard) => {
                    self.world.note(format_args!("map of shard {shard} has room"));
                    self.disks[usize::from(shard)].set_map_full(false);
                }
                End::Away => self.upstream.set_faults(self.plan.upstream),
                End::Closed(shard) => {
                    let (node, world) = (Arc::clone(&main.node), Arc::clone(&self.world));
                    drop(tokio::spawn(async move {
                        let opened = node.open_shard(shard).await;
                        world.note(format_args!("shard {shard} is opened: {opened:?}"));
                    }));
                }
                End::Still => {
                    for runner in std::iter::once(main).chain(second.as_ref()) {
                        runner.process.go_on();
                    }
                    self.server.wake();
                }
                End::Second => {
                    if let Some(second) = second.take() {
                        second.process.die();
                        if self.left_by(&second) {
                            main.process.die();
                        }
                    }
                }
            }
        }
    }
}
