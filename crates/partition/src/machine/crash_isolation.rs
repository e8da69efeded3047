//! The first inputs after an unclean stop. One of them may be what killed the process, so each is applied alone, and which one it is
//! is noted for as long as its application takes. One in whose application the process has died too often is not begun again; what
//! happens to it is decided in [`super::poison`].
//!
//! A process that dies while it waits for the disk, or of something else than an input, has nothing noted: whoever kills it at such
//! moments, and however often, no input is blamed. Only inputs that the process may have been working on are looked at: as
//! many of each origin as fit a batch.

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
/// Inputs that are remembered; the oldest are forgotten.
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
    /// Inputs in whose application the process has died, the latest last.
    suspects: Vec<Suspect>,
    pub poison: HashMap<Fingerprint, PoisonInput>,
}

impl CrashIsolation {
    /// After an unclean stop: `inputs` of each origin, and the inputs in whose application the process has died.
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

    /// What to note while `input` is applied; `None` if it was begun too often and must not be.
    ///
    /// In the place of a result an unknown outcome is applied after `attempts_max` deaths, which may be begun as
    /// often again.
    pub fn begin(&mut self, input: &Input, attempts_max: u32) -> Option<Suspect> {
        let begun = fingerprint(input);
        let known = self.suspects.iter().find(|suspect| suspect.input == begun);
        let attempts = known.map_or(0, |known| known.attempts);
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
        (!in_place_too).then_some(Suspect {
            input: begun,
            attempts: attempts + 1,
        })
    }

    /// The input is applied, or a dead letter. What is to be stored of the others, if the process had died of it before.
    pub fn done(&mut self, input: &Input) -> Option<&[Suspect]> {
        let left = &mut self.left[index(input.origin)];
        *left = left.saturating_sub(1);
        let done = fingerprint(input);
        self.poison.remove(&done);
        let at = self.suspects.iter().position(|suspect| suspect.input == done)?;
        self.suspects.remove(at);
        Some(&self.suspects)
    }
}

/// Counts the death of a process in the application of an input, as it was noted. Counted twice, it is one death.
pub fn count_death(suspects: &mut Vec<Suspect>, noted: Suspect) {
    if let Some(known) = suspects.iter_mut().find(|suspect| suspect.input == noted.input) {
        known.attempts = known.attempts.max(noted.attempts);
        return;
    }
    if suspects.len() >= SUSPECTS_MAX {
        suspects.remove(0);
    }
    suspects.push(noted);
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
            let mut isolation = CrashIsolation::after_crash(8, suspects.clone());
            let noted = isolation.begin(&input("bad"), 3).unwrap();
            assert_eq!(noted.attempts, attempt);
            count_death(&mut suspects, noted);
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        assert!(isolation.begin(&input("good"), 3).is_some());
        assert!(isolation.begin(&input("bad"), 3).is_none());
        let poison = isolation.poison[&fingerprint(&input("bad"))];
        assert_eq!((poison.attempts, poison.in_place_too), (3, true));
        assert_eq!(isolation.done(&input("bad")), Some([].as_slice()));
        assert!(isolation.poison.is_empty());
    }

    #[test]
    fn in_the_place_of_a_result_something_else_is_begun_three_times_more() {
        let mut suspects = Vec::new();
        for attempt in 1..=6 {
            let mut isolation = CrashIsolation::after_crash(8, suspects.clone());
            let noted = isolation.begin(&result("bad"), 3).unwrap();
            assert_eq!(noted.attempts, attempt);
            count_death(&mut suspects, noted);
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
            let mut isolation = CrashIsolation::after_crash(8, suspects.clone());
            // The process dies with the first one that is begun.
            let noted = isolation
                .begin(&input("bad"), 3)
                .or_else(|| isolation.begin(&input("worse"), 3))
                .unwrap();
            count_death(&mut suspects, noted);
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        assert_eq!(isolation.begin(&input("bad"), 3), None);
        assert_eq!(isolation.begin(&input("worse"), 3), None);
        assert_eq!(isolation.poison.len(), 2);
    }

    #[test]
    fn an_input_that_was_finished_is_no_longer_a_suspect() {
        let mut suspects = Vec::new();
        for noted in ["a", "b"].map(input) {
            let noted = CrashIsolation::default().begin(&noted, 3).unwrap();
            count_death(&mut suspects, noted);
        }
        let mut isolation = CrashIsolation::after_crash(8, suspects);
        let left = isolation.done(&input("a")).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].input, fingerprint(&input("b")));
        assert_eq!(isolation.done(&input("a")), None, "nothing is to be stored");
        assert_eq!(isolation.begin(&input("a"), 3).unwrap().attempts, 1);
    }

    #[test]
    fn a_death_that_is_counted_again_after_a_crash_at_the_start_is_one_death() {
        let mut suspects = Vec::new();
        let noted = CrashIsolation::default().begin(&input("a"), 3).unwrap();
        for _ in 0..5 {
            count_death(&mut suspects, noted);
        }
        assert_eq!(suspects, [noted]);
        assert_eq!(noted.attempts, 1);
    }

    #[test]
    fn of_more_suspects_than_are_kept_the_oldest_are_forgotten() {
        let mut suspects = Vec::new();
        for number in 0..=SUSPECTS_MAX {
            let noted = CrashIsolation::default().begin(&input(&number.to_string()), 3);
            count_death(&mut suspects, noted.unwrap());
        }
        assert_eq!(suspects.len(), SUSPECTS_MAX);
        assert_eq!(suspects[0].input, fingerprint(&input("1")));
    }

    #[test]
    fn care_ends_when_nothing_can_be_the_culprit() {
        let mut isolation = CrashIsolation::after_crash(2, Vec::new());
        let origin = input("a").origin;
        assert_eq!(isolation.done(&input("a")), None);
        assert!(isolation.is_needed(origin));
        assert_eq!(isolation.done(&input("b")), None);
        assert!(!isolation.is_needed(origin));
        assert!(!CrashIsolation::default().is_needed(origin));
    }
}
