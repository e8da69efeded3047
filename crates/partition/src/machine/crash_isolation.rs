//! The first inputs after an unclean stop. One of them may be what killed the process, so each is begun alone,
//! and that it is begun is durable before. One that was begun too often is not begun again; what happens to it is
//! decided in [`super::poison`].
//!
//! Only inputs that the process may have been working on are looked at: as many of each origin as fit a batch.

use std::collections::HashMap;

use saga_runner_kernel::input::{Input, InputBody, Origin};

use crate::storage::rows::Suspect;

/// Names an input, whatever delivery brings it.
pub type Fingerprint = [u8; 16];

pub fn fingerprint(input: &Input) -> Fingerprint {
    let mut hasher = blake3::Hasher::new();
    for part in [
        input.instance.tenant.as_str(),
        input.instance.saga.as_str(),
        input.instance.key.as_str(),
        &input.id,
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    half
}

/// Streams, then everything that does not come from a stream.
const ORIGINS: usize = 4;
/// Inputs that are remembered as begun and not finished; the oldest are forgotten.
const SUSPECTS_MAX: usize = 256;

const fn index(origin: Origin) -> usize {
    match origin {
        Origin::Stream { stream, .. } => stream.index(),
        Origin::Timer | Origin::Local | Origin::Edited { .. } => ORIGINS - 1,
    }
}

/// What happens to an input that was begun too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoisonInput {
    /// How often the process died with it.
    pub attempts: u32,
    /// Nothing can be applied in its place either.
    pub in_place_too: bool,
}

/// How many inputs still have to be begun alone.
#[derive(Debug, Clone, Default)]
pub struct CrashIsolation {
    left: [usize; ORIGINS],
    /// Inputs with which the process has died, oldest first: those that were begun too often, and the last one.
    suspects: Vec<Suspect>,
    pub poison: HashMap<Fingerprint, PoisonInput>,
}

impl CrashIsolation {
    /// After an unclean stop: `inputs` of each origin, and the inputs that were begun and not finished.
    pub fn after_crash(inputs: usize, suspects: Vec<Suspect>) -> Self {
        Self {
            left: [inputs; ORIGINS],
            suspects,
            poison: HashMap::new(),
        }
    }

    /// In the place of a process that died of these inputs: each is a dead letter when its turn comes, whatever lets it in. With
    /// each, whether nothing could be applied in its place either.
    pub fn of_recording<'i>(deaths: impl IntoIterator<Item = (&'i Input, bool)>) -> Self {
        let poison = deaths.into_iter().map(|(input, in_place_too)| {
            let poison = PoisonInput {
                attempts: 1,
                in_place_too,
            };
            (fingerprint(input), poison)
        });
        Self {
            poison: poison.collect(),
            ..Self::default()
        }
    }

    /// Whether an input of this origin is to be begun alone.
    pub const fn is_needed(&self, origin: Origin) -> bool {
        self.left[index(origin)] > 0
    }

    /// Whether any input is to be begun alone.
    pub fn is_needed_at_all(&self) -> bool {
        self.left.iter().any(|left| *left > 0)
    }

    /// What to make durable before `input` is begun; `None` if it was begun too often and must not be.
    ///
    /// In the place of a result an unknown outcome is applied after `attempts_max` deaths, which may be begun as
    /// often again.
    pub fn begin(&mut self, input: &Input, attempts_max: u32) -> Option<Vec<Suspect>> {
        let begun = fingerprint(input);
        let known = self.suspects.iter().position(|suspect| suspect.input == begun);
        let attempts = known.map_or(0, |at| self.suspects[at].attempts);
        let last = match &input.body {
            InputBody::Result(_) => attempts_max.saturating_mul(2),
            InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_) => attempts_max,
        };
        let in_place_too = attempts >= last;
        if attempts >= attempts_max {
            let poison = PoisonInput {
                attempts,
                in_place_too,
            };
            self.poison.insert(begun, poison);
        }
        if in_place_too {
            return None;
        }
        // In memory it keeps its number: it is alive when the next one is begun, or this is never read again.
        let mut suspects = self.suspects.clone();
        if let Some(at) = known {
            suspects.remove(at);
        } else if suspects.len() >= SUSPECTS_MAX {
            suspects.remove(0);
        }
        suspects.push(Suspect {
            input: begun,
            attempts: attempts + 1,
        });
        Some(suspects)
    }

    /// The input is applied, or a dead letter.
    pub fn done(&mut self, input: &Input) {
        let left = &mut self.left[index(input.origin)];
        *left = left.saturating_sub(1);
        let done = fingerprint(input);
        self.poison.remove(&done);
        self.suspects.retain(|suspect| suspect.input != done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saga_runner_kernel::ids::{ClusterId, DefinitionHash, InstanceId, Key, SagaName, TenantId, TimeMs};
    use saga_runner_kernel::input::{Control, WorkOutcome, WorkResult};
    use saga_runner_kernel::work::Attempt;

    fn input(id: &str) -> Input {
        Input {
            instance: InstanceId {
                tenant: TenantId::none(),
                saga: SagaName::parse("s").unwrap(),
                key: Key::parse("k").unwrap(),
            },
            id: id.to_owned(),
            time: TimeMs(0),
            origin: Origin::Local,
            body: InputBody::Control(Control::Retry),
        }
    }

    fn result(id: &str) -> Input {
        let input = input(id);
        let command = Attempt {
            cluster: ClusterId::OFFLINE,
            instance: &input.instance,
            generation: 1,
            definition: &DefinitionHash([0; 32]),
            input_id: id,
            input_time: input.time,
            path: "steps.charge",
            index: 0,
            attempt: 1,
        };
        Input {
            body: InputBody::Result(WorkResult {
                command_id: command.command_id(),
                effect: None,
                outcome: WorkOutcome::timed_out(""),
            }),
            ..input
        }
    }

    #[test]
    fn an_input_that_killed_the_process_three_times_is_not_begun_again() {
        let mut suspects = Vec::new();
        for attempt in 1..=3 {
            let mut isolation = CrashIsolation::after_crash(8, suspects);
            suspects = isolation.begin(&input("bad"), 3).unwrap();
            assert_eq!(suspects.last().map(|suspect| suspect.attempts), Some(attempt));
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        assert!(isolation.begin(&input("good"), 3).is_some());
        assert!(isolation.begin(&input("bad"), 3).is_none());
        let poison = isolation.poison[&fingerprint(&input("bad"))];
        assert_eq!((poison.attempts, poison.in_place_too), (3, true));
        isolation.done(&input("bad"));
        assert!(isolation.poison.is_empty());
    }

    #[test]
    fn in_the_place_of_a_result_something_else_is_begun_three_times_more() {
        let mut suspects = Vec::new();
        for attempt in 1..=6 {
            let mut isolation = CrashIsolation::after_crash(8, suspects);
            suspects = isolation.begin(&result("bad"), 3).unwrap();
            assert_eq!(suspects.last().map(|suspect| suspect.attempts), Some(attempt));
            let poison = isolation.poison.get(&fingerprint(&result("bad")));
            let replaced = poison.map(|poison| (poison.attempts, poison.in_place_too));
            assert_eq!(replaced, (attempt > 3).then_some((attempt - 1, false)));
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        assert_eq!(isolation.begin(&result("bad"), 3), None);
        assert!(isolation.poison[&fingerprint(&result("bad"))].in_place_too);
    }

    #[test]
    fn two_inputs_of_one_commit_that_kill_the_process_are_both_found() {
        let mut suspects = Vec::new();
        for _ in 0..6 {
            let mut isolation = CrashIsolation::after_crash(8, suspects);
            // The process dies with the first one that is begun.
            suspects = isolation
                .begin(&input("bad"), 3)
                .or_else(|| isolation.begin(&input("worse"), 3))
                .unwrap();
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        assert_eq!(isolation.begin(&input("bad"), 3), None);
        assert_eq!(isolation.begin(&input("worse"), 3), None);
        assert_eq!(isolation.poison.len(), 2);
    }

    #[test]
    fn an_input_that_was_finished_is_no_longer_a_suspect() {
        let mut isolation = CrashIsolation::after_crash(8, vec![]);
        assert_eq!(isolation.begin(&input("a"), 3).unwrap().len(), 1);
        isolation.done(&input("a"));
        let suspects = isolation.begin(&input("b"), 3).unwrap();
        assert_eq!(suspects.len(), 1);
        assert_eq!(suspects[0].input, fingerprint(&input("b")));
    }

    #[test]
    fn care_ends_when_nothing_can_be_the_culprit() {
        let mut isolation = CrashIsolation::after_crash(2, Vec::new());
        let origin = input("a").origin;
        isolation.done(&input("a"));
        assert!(isolation.is_needed(origin));
        isolation.done(&input("b"));
        assert!(!isolation.is_needed(origin));
        assert!(!CrashIsolation::default().is_needed(origin));
    }
}
