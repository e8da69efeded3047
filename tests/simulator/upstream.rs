//! What the runner calls: upstreams of effects and the gateway. They note every call, which is the evidence from outside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use saga_runner::effects::certainty::SideEffects;
use saga_runner::effects::provider::{CallContext, CallFailure, CallOutcome, Certainty, Provider};
use saga_runner::kernel::breaker::CallEnd;
use saga_runner::kernel::envelope::AggregateCommand;
use saga_runner::kernel::json::Json;
use saga_runner::ports::gateway::{Gateway, GatewayError};

use super::process::Process;
use super::random::Rng;
use super::store::POISON;
use super::world::World;

/// What goes wrong, in thousandths of all calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct UpstreamFaults {
    /// It could not be reached.
    pub unreachable: u64,
    /// It has done what was asked, and its answer does not come.
    pub unanswered: u64,
    /// It has done nothing, and nobody is told so.
    pub silent: u64,
    /// It refuses for good.
    pub refused: u64,
    /// It has done what was asked, and its answer is not a result.
    pub malformed: u64,
    /// It has done what was asked, and answers when nobody listens any more.
    pub overdue: u64,
    /// It has done what was asked, and its answer kills whoever stores it.
    pub poisonous: u64,
    /// It says something else than what it has done.
    pub lying: u64,
    /// Longest time to an answer.
    pub latency_ms: u64,
}

/// One call that has reached the upstream.
#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "answers to questions that do not exclude each other"
)]
pub struct Call {
    pub effect: String,
    pub of: String,
    pub key: String,
    pub command: String,
    /// Whether it has done what was asked; it does it once for each key.
    pub is_done: bool,
    /// Whether the caller heard of it, in time and alive.
    pub is_answered: bool,
    /// Whether something else was answered than what was done.
    pub is_lie: bool,
    /// Who has called, and when.
    pub process: u64,
    pub began: Duration,
    /// Whether the caller has waited for an answer, or for as long as it was to wait for one.
    pub has_ended: bool,
    /// When the caller gave it up before that, and lived on.
    pub given_up: Option<Duration>,
}

/// One command that has reached the gateway.
#[derive(Debug, Clone)]
pub struct Submission {
    pub id: String,
    pub aggregate: String,
    pub payload: String,
    pub kind: String,
    pub is_accepted: bool,
}

pub struct Upstream {
    state: Mutex<State>,
    world: Arc<World>,
}

struct State {
    rng: Rng,
    faults: UpstreamFaults,
    calls: Vec<Call>,
    receipts: BTreeMap<String, String>,
    submissions: Vec<Submission>,
    /// Calls whose callers were gone before they arrived.
    on_the_way: Vec<Sent>,
}

/// A call that has left its caller.
struct Sent {
    effect: String,
    of: String,
    key: String,
    command: String,
    fate: Fate,
    process: u64,
    began: Duration,
    /// When it reaches the upstream.
    arrives: Duration,
}

impl State {
    /// Lets calls arrive whose time has come, whether their callers live or not.
    fn come(&mut self, now: Duration) {
        let due = |sent: &Sent| sent.arrives <= now;
        let mut come: Vec<Sent> = self.on_the_way.extract_if(.., |sent| due(sent)).collect();
        come.sort_by_key(|sent| sent.arrives);
        for sent in come {
            self.arrives(sent);
        }
    }

    /// The place of a call that has arrived among all of them.
    fn arrives(&mut self, sent: Sent) -> usize {
        // What was done once is never refused afterwards.
        let is_done = self.receipts.contains_key(&sent.key) || sent.fate.is_done();
        if is_done {
            let poison = if sent.fate == Fate::Poisonous { POISON } else { "r" };
            let receipt = format!("{poison}{}", self.receipts.len());
            self.receipts.entry(sent.key.clone()).or_insert(receipt);
        }
        self.calls.push(Call {
            effect: sent.effect,
            of: sent.of,
            key: sent.key,
            command: sent.command,
            is_done,
            is_answered: false,
            is_lie: matches!(sent.fate, Fate::Denied | Fate::Claimed),
            process: sent.process,
            began: sent.began,
            // Whoever calls cuts it off.
            has_ended: sent.fate == Fate::Overdue,
            given_up: None,
        });
        self.calls.len() - 1
    }
}

/// A call on its way. If its caller is gone before it arrives, it arrives all the same.
struct OnTheWay<'c> {
    upstream: &'c Upstream,
    sent: Option<Sent>,
}

impl OnTheWay<'_> {
    /// It has arrived.
    fn end(mut self) -> Option<Sent> {
        self.sent.take()
    }
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        let sent = self.sent.take();
        self.upstream.lock().on_the_way.extend(sent);
    }
}

impl Upstream {
    pub fn new(seed: u64, world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                rng: Rng::new(seed, "upstream"),
                faults: UpstreamFaults::default(),
                calls: Vec::new(),
                receipts: BTreeMap::new(),
                submissions: Vec::new(),
                on_the_way: Vec::new(),
            }),
            world: Arc::clone(world),
        })
    }

    pub fn set_faults(&self, faults: UpstreamFaults) {
        self.lock().faults = faults;
    }

    pub fn calls(&self) -> Vec<Call> {
        let mut state = self.lock();
        state.come(Duration::MAX);
        state.calls.clone()
    }

    pub fn submissions(&self) -> Vec<Submission> {
        self.lock().submissions.clone()
    }

    /// What was given under a key, if it was done.
    pub fn receipt(&self, key: &str) -> Option<String> {
        let mut state = self.lock();
        state.come(self.world.clock.passed());
        state.receipts.get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws what becomes of a call, and how long each half of its way takes.
    fn draw(&self, undoes: bool) -> (Fate, Duration, Duration) {
        let mut state = self.lock();
        let faults = state.faults;
        let drawn = state.rng.below(1_000);
        let unreachable = faults.unreachable;
        let unanswered = unreachable + faults.unanswered;
        let silent = unanswered + faults.silent;
        let mut odd = silent + faults.refused;
        let mut is_odd = |share: u64| {
            odd += share;
            drawn < odd && !undoes
        };
        let fate = if drawn < unreachable {
            Fate::Unreachable
        } else if drawn < unanswered {
            Fate::Unanswered
        } else if drawn < silent {
            Fate::Silent
        } else if drawn < silent + faults.refused && !undoes {
            // What undoes something is never refused for good: nobody could end such an instance.
            Fate::Refused
        } else if is_odd(faults.malformed) {
            Fate::Malformed
        } else if is_odd(faults.overdue) {
            Fate::Overdue
        } else if is_odd(faults.poisonous) {
            Fate::Poisonous
        } else if is_odd(faults.lying) {
            if drawn.is_multiple_of(2) {
                Fate::Denied
            } else {
                Fate::Claimed
            }
        } else {
            Fate::Done
        };
        let half = faults.latency_ms / 2;
        (fate, state.rng.millis(0..=half), state.rng.millis(0..=half))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unreachable,
    Unanswered,
    Silent,
    Refused,
    Done,
    Malformed,
    Overdue,
    Poisonous,
    /// Done, and said to be refused.
    Denied,
    /// Not done, and said to be.
    Claimed,
}

impl Fate {
    const fn is_done(self) -> bool {
        match self {
            Self::Unreachable | Self::Silent | Self::Refused | Self::Claimed => false,
            Self::Unanswered
            | Self::Done
            | Self::Malformed
            | Self::Overdue
            | Self::Poisonous
            | Self::Denied => true,
        }
    }
}

/// Answers that are no results.
const MALFORMED: [&str; 4] = ["{\"receipt\":7}", "[]", "{\"receipt\":", ""];

/// A caller waits for the end of a call.
struct Waiting<'c> {
    upstream: &'c Upstream,
    process: &'c Process,
    /// As it was when the call began.
    broken: u64,
    at: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.process.is_dead() {
            return;
        }
        let now = self.upstream.world.clock.passed();
        let call = &mut self.upstream.lock().calls[self.at];
        if call.has_ended {
            return;
        }
        call.given_up = Some(now);
        // While the process stood still, the time of the call has passed, or others may have been given its command.
        call.has_ended = self.process.broken() != self.broken;
    }
}

/// The calls of one effect.
pub struct Calls {
    pub upstream: Arc<Upstream>,
    pub process: Arc<Process>,
    pub effect: String,
}

#[async_trait]
impl Provider for Calls {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome {
        let upstream = &self.upstream;
        let world = &upstream.world;
        if self.process.enter().await {
            return CallOutcome::Failed(CallFailure::unreachable("transient", "unreachable"));
        }
        let of = match call.input.get("of") {
            Some(Json::Str(of)) => format!("{}/{of}", call.command.tenant_id),
            _ => return CallOutcome::Failed(CallFailure::not_done("input", "no `of`")),
        };
        let key = call.command.metadata.idempotency_key.clone();
        world.leaves(
            self.process.number,
            &call.command.command_id.to_string(),
            &self.effect,
        );
        let undoes = ["stock-release", "card-refund", "slot-cancel"].contains(&self.effect.as_str());
        let (fate, there, back) = upstream.draw(undoes);
        // Whoever gives up in time says so himself.
        let patience = call.limit.saturating_sub(Duration::from_millis(1));
        let there_at_most = there.min(patience);
        let began = world.clock.passed();
        let sent = Sent {
            effect: self.effect.clone(),
            of: of.clone(),
            key: key.clone(),
            command: call.command.command_id.to_string(),
            fate,
            process: self.process.number,
            began,
            arrives: began + there_at_most,
        };
        let on_the_way = OnTheWay {
            upstream,
            sent: (fate != Fate::Unreachable).then_some(sent),
        };
        tokio::time::sleep(there_at_most).await;
        let Some(sent) = on_the_way.end() else {
            return CallOutcome::Failed(CallFailure::unreachable("transient", "unreachable"));
        };
        let (at, receipt) = {
            let mut state = upstream.lock();
            state.come(world.clock.passed());
            (state.arrives(sent), state.receipts.get(&key).cloned())
        };
        let _waiting = Waiting {
            upstream,
            process: &self.process,
            broken: self.process.broken(),
            at,
        };
        world.note(format_args!(
            "{} of {of} under {}: {fate:?}",
            self.effect,
            &key[..8]
        ));
        tokio::time::sleep(back.min(patience.saturating_sub(there))).await;
        if matches!(fate, Fate::Unanswered | Fate::Silent) || there + back >= patience {
            tokio::time::sleep(patience.saturating_sub(there + back)).await;
            upstream.lock().calls[at].has_ended = true;
            return CallOutcome::Failed(CallFailure::unanswered("timeout", "no answer"));
        }
        if fate == Fate::Overdue {
            tokio::time::sleep(call.limit + Duration::from_secs(3)).await;
        }
        self.process.enter().await;
        {
            let call = &mut upstream.lock().calls[at];
            (call.is_answered, call.has_ended) = (true, true);
        }
        let receipt = match fate {
            Fate::Denied => None,
            Fate::Claimed => Some("r-claimed".to_owned()),
            Fate::Malformed => {
                return CallOutcome::Succeeded {
                    payload: MALFORMED[at % MALFORMED.len()].as_bytes().to_vec(),
                };
            }
            _ => receipt,
        };
        match receipt {
            Some(receipt) => CallOutcome::Succeeded {
                payload: format!("{{\"receipt\":\"{receipt}\"}}").into_bytes(),
            },
            None => CallOutcome::Failed(CallFailure {
                class: "declined".into(),
                message: "declined".to_owned(),
                certainty: Certainty::Refused,
                end: CallEnd::Answered,
                retry_after: None,
            }),
        }
    }

    fn side_effects(&self) -> SideEffects {
        SideEffects::Possible
    }

    fn upstream(&self) -> Option<String> {
        Some("upstream:443".to_owned())
    }
}

/// The gateway for aggregate commands.
pub struct SimGateway(pub Arc<Upstream>, pub Arc<Process>);

#[async_trait]
impl Gateway for SimGateway {
    async fn submit(&self, command: &AggregateCommand<'_>, within: Duration) -> Result<(), GatewayError> {
        let world = &self.0.world;
        if self.1.enter().await {
            let message = "unreachable".to_owned();
            return Err(GatewayError::Unavailable { message });
        }
        world.sent(
            self.1.number,
            &command.command_id.to_string(),
            &command.command_type,
        );
        let (fate, there, back) = self.0.draw(command.command_type.ends_with("Cancel"));
        tokio::time::sleep(there.min(within)).await;
        let message = format!("{fate:?}");
        if fate == Fate::Unreachable {
            return Err(GatewayError::Unavailable { message });
        }
        let id = command.command_id.to_string();
        let is_accepted = {
            let mut state = self.0.lock();
            let before = state
                .submissions
                .iter()
                .any(|known| known.id == id && known.is_accepted);
            let is_accepted = before || (fate.is_done() && fate != Fate::Denied);
            state.submissions.push(Submission {
                id,
                aggregate: format!("{}/{}", command.tenant_id, command.aggregate_id),
                payload: command.payload_json.get().to_owned(),
                kind: command.command_type.clone(),
                is_accepted,
            });
            is_accepted
        };
        world.note(format_args!(
            "{} to {}: {fate:?}",
            command.command_type, command.aggregate_id
        ));
        tokio::time::sleep(back.min(within)).await;
        self.1.enter().await;
        match fate {
            Fate::Unanswered | Fate::Silent => Err(GatewayError::Unknown { message }),
            _ if is_accepted => Ok(()),
            _ => Err(GatewayError::Rejected { message }),
        }
    }
}
