//! The first inputs after an unclean stop. One of them may be what killed the process, so each is begun alone,
//! and that it is begun is durable before.
//!
//! Only inputs that the process may have been working on are looked at: as many of each origin as fit a batch.

use std::collections::HashMap;

use crate::storage::rows::Suspect;
use saga_runner_kernel::input::{Input, Origin};

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

const fn index(origin: Origin) -> usize {
    match origin {
        Origin::Stream { stream, .. } => stream.index(),
        Origin::Timer | Origin::Local => ORIGINS - 1,
    }
}

/// How much care is still needed.
#[derive(Debug, Clone, Default)]
pub struct Careful {
    left: [usize; ORIGINS],
    suspect: Option<Suspect>,
    /// Inputs that were begun too often, with the number of times.
    pub condemned: HashMap<Fingerprint, u32>,
}

impl Careful {
    /// After an unclean stop: `inputs` of each origin, and the input that was begun last.
    pub fn after_crash(inputs: usize, suspect: Option<Suspect>) -> Self {
        Self {
            left: [inputs; ORIGINS],
            suspect,
            condemned: HashMap::new(),
        }
    }

    /// Whether an input of this origin is to be begun alone.
    pub const fn is_needed(&self, origin: Origin) -> bool {
        self.left[index(origin)] > 0
    }

    /// What to make durable before `input` is begun; `None` if it was begun too often and must not be.
    pub fn begin(&mut self, input: &Input, attempts_max: u32) -> Option<Suspect> {
        let input = fingerprint(input);
        let attempts = match self.suspect {
            Some(suspect) if suspect.input == input => suspect.attempts,
            Some(_) | None => 0,
        };
        if attempts >= attempts_max {
            self.condemned.insert(input, attempts);
            return None;
        }
        let suspect = Suspect {
            input,
            attempts: attempts + 1,
        };
        Some(suspect)
    }

    /// The input is applied, or a dead letter.
    pub fn done(&mut self, input: &Input) {
        let left = &mut self.left[index(input.origin)];
        *left = left.saturating_sub(1);
        self.condemned.remove(&fingerprint(input));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saga_runner_kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs};
    use saga_runner_kernel::input::{Control, InputBody};

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

    #[test]
    fn an_input_that_killed_the_process_three_times_is_not_begun_again() {
        let mut suspect = None;
        for attempt in 1..=3 {
            let mut careful = Careful::after_crash(8, suspect);
            suspect = careful.begin(&input("bad"), 3);
            assert_eq!(suspect.map(|suspect| suspect.attempts), Some(attempt));
        }
        let mut careful = Careful::after_crash(8, suspect);
        assert!(careful.begin(&input("good"), 3).is_some());
        assert!(careful.begin(&input("bad"), 3).is_none());
        assert_eq!(careful.condemned[&fingerprint(&input("bad"))], 3);
        careful.done(&input("bad"));
        assert!(careful.condemned.is_empty());
    }

    #[test]
    fn care_ends_when_nothing_can_be_the_culprit() {
        let mut careful = Careful::after_crash(2, None);
        let origin = input("a").origin;
        careful.done(&input("a"));
        assert!(careful.is_needed(origin));
        careful.done(&input("b"));
        assert!(!careful.is_needed(origin));
        assert!(!Careful::default().is_needed(origin));
    }
}
