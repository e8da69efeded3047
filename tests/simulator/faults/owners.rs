//! A second owner, and a folder that is not the one that was at work last.

use std::time::Duration;

use saga_runner::app::StartError;
use saga_runner::app::ownership::{Adoption, Loss};

use super::On;
use crate::folder::Folder;
use crate::run::{End, Ended, Simulation};
use crate::runner::Runner;

/// How long an owner sends behind its last renewal.
const SENDS: Duration = Duration::from_secs(10);
/// How long somebody waits for a second process that does not get to an end.
const SECOND_MAX: Duration = Duration::from_mins(2);
/// How long the first one is left running beside the second.
const BESIDE: Duration = Duration::from_secs(20);

impl Simulation {
    pub fn back_up(&mut self) {
        if self.folder.is_in_use() {
            self.folders += 1;
            self.losses.backup = Some(self.folder.copy(self.folders));
        }
    }

    fn folder_of(&mut self, on: On) -> Option<Folder> {
        self.folders += 1;
        match on {
            On::Empty => Some(Folder::empty(&self.home(), self.folders, &self.plan, &self.world)),
            On::Copy => self.folder.is_in_use().then(|| self.folder.copy(self.folders)),
            On::Backup => {
                let backup = self.losses.backup.as_ref()?;
                Some(backup.copy(self.folders))
            }
        }
    }

    /// Another process is started while the first one is there; none where there is nothing to start it on.
    pub fn begin_second(&mut self, main: &Runner, on: On, still: Duration) -> Option<Result<Runner, String>> {
        if !self.folder.is_in_use() {
            return None;
        }
        let now = self.world.clock.passed();
        if !still.is_zero() {
            main.process.stand_still();
            self.ends.push((now + still, End::Still));
        }
        let folder = self.folder_of(on)?;
        // What the first one does behind the copy while it may send is not known to it.
        self.losses.is_second_behind = still < SENDS || on == On::Backup;
        self.ends.push((now + SECOND_MAX, End::Second));
        Some(self.begin(folder, None))
    }

    /// The second one owns the shards: the first one lives on for a while, and is of no use any more.
    pub fn replaced(&mut self, second: &Runner) {
        let now = self.world.clock.passed();
        self.world
            .note(format_args!("process {} takes over", second.process.number));
        if self.losses.is_second_behind {
            self.losses.adopted.get_or_insert(now);
        }
        self.take_folder(second.folder.clone());
        self.ends.retain(|(_, end)| *end != End::Second);
        self.ends.push((now + BESIDE, End::Second));
    }

    /// The folder of the next life.
    pub fn lose(&mut self, on: On) {
        let is_known = self.folder.is_in_use() && self.server.has_owner_records();
        let Some(folder) = self.folder_of(on) else {
            return;
        };
        self.world.note(format_args!(
            "the next process begins on {on:?}, folder {}",
            folder.number
        ));
        if on != On::Copy {
            self.losses.is_given_up = true;
            self.losses.must_be_refused = on == On::Empty && is_known;
            self.losses.adopted.get_or_insert(self.world.clock.passed());
        }
        self.take_folder(folder);
    }

    /// How the start of the second one has ended, where it has.
    pub async fn look_at_second(&mut self, main: &Runner, second: &mut Option<Runner>) -> Option<Ended> {
        let runner = second.as_mut()?;
        match runner.started().await? {
            Ok(Ok(())) => return Some(Ended::Replaced),
            Ok(Err(StartError::Lost(text) | StartError::Owned(text) | StartError::Older(text))) => {
                drop(text);
                self.world.note(format_args!("the second process is refused"));
            }
            // Its disk has no room: it can be begun again later.
            Ok(Err(StartError::Storage(text))) if text.contains("SR0207") => {
                self.world.note(format_args!("the second process does not start"));
            }
            Ok(Err(error)) => {
                return Some(Ended::Failed(format!(
                    "the second process does not start: {error}"
                )));
            }
            Err(fault) => return Some(Ended::Failed(fault)),
        }
        runner.process.die();
        if self.left_by(&second.take()?) {
            main.process.die();
            return Some(Ended::Died);
        }
        None
    }

    /// The second process has died by itself, of what it was to write. How the life of the first one ends then.
    pub fn end_second(&mut self, main: &Runner, second: &mut Option<Runner>) -> Option<Ended> {
        let dead = second.take_if(|second| second.process.is_dead())?;
        if !self.left_by(&dead) {
            return None;
        }
        main.process.die();
        Some(Ended::Died)
    }

    /// A second process ends that has not started. Whether it has got some shards already: the operator goes on from its
    /// folder then.
    pub fn left_by(&mut self, second: &Runner) -> bool {
        let owned = self.world.owned_by(second.process.number);
        if owned == 0 {
            return false;
        }
        let has_all = owned == usize::from(self.plan.shards);
        self.losses.is_given_up |= !has_all;
        // The one that was replaced has written the owner records again that the broker had lost: the other one has gone on.
        let is_replaced = second.folder.number < self.folder.number;
        if !has_all || self.losses.is_second_behind || is_replaced {
            self.losses.adopted.get_or_insert(self.world.clock.passed());
        }
        self.take_folder(second.folder.clone());
        true
    }

    pub fn adoption(&mut self) -> Option<Adoption> {
        self.losses.adoption.take()
    }

    /// The process has started.
    pub fn begun(&mut self) -> Result<(), String> {
        self.losses.is_given_up = false;
        if self.losses.must_be_refused {
            return Err("an empty folder was taken although the cluster knows its shards".to_owned());
        }
        Ok(())
    }

    /// How a life ends that was refused its shards.
    pub async fn refused(&mut self, process: u64, error: StartError) -> Ended {
        let text = self.told(&error.to_string());
        self.world.note(format_args!("it is refused: {text}"));
        let (StartError::Lost(_) | StartError::Owned(_) | StartError::Older(_)) = error else {
            return Ended::Failed(format!("it does not start: {text}"));
        };
        if self.world.has_other_owner(process) {
            // The second one was faster; what goes on is its folder.
            return Ended::Stopped;
        }
        if !self.losses.is_given_up {
            return Ended::Failed(format!("it is refused for nothing: {text}"));
        }
        self.losses.must_be_refused = false;
        // As the refusal says.
        self.losses.adoption = given_up(&text);
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ended::Stopped
    }
}

/// What the operator is told to say where he gives up what was at work.
fn given_up(refusal: &str) -> Option<Adoption> {
    let (_, behind) = refusal.split_once("--adopt-loss ")?;
    let (flags, _) = behind.split_once(' ')?;
    let losses: Vec<Loss> = flags
        .split(',')
        .map(|flag| flag.parse().expect("a flag"))
        .collect();
    Some(Adoption::new(losses, "the disk broke".to_owned()))
}
