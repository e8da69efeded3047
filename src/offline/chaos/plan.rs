//! What goes wrong in one run.

/// How a piece of work fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum Failing {
    Error,
    Timeout,
    /// The outcome of the first attempt is unknown, and it has succeeded, as is known with the next input.
    LateAtOnce,
    /// The same, and that is known when nothing else is awaited any more.
    LateAtLast,
    /// It happens, and its result is none of its effect.
    Misfit,
}

/// In which a piece of work goes wrong, but for [`Failing::Misfit`], which not all can.
pub(super) const WAYS: [Failing; 4] = [
    Failing::Error,
    Failing::Timeout,
    Failing::LateAtOnce,
    Failing::LateAtLast,
];

/// What fails in one run.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    /// All attempts at this work.
    pub(super) always: Option<(String, Failing)>,
    /// The first attempt at this compensation.
    pub(super) once: Option<(String, Failing)>,
    /// An operator cancels after so many inputs.
    pub(super) cancel: Option<usize>,
    /// The callback of this step of the case, counted from 0, does not come.
    pub(super) silent: Option<usize>,
    /// All is as the case says, but each event comes again after each later input and after the end.
    pub(super) again: bool,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |failing: &Failing| match failing {
            Failing::Error => "fails",
            Failing::Timeout => "times out",
            Failing::LateAtOnce => "times out and succeeds at once after that",
            Failing::LateAtLast => "times out and succeeds late",
            Failing::Misfit => "gives a result that does not fit its effect",
        };
        if let Some(at) = self.cancel {
            return write!(f, "an operator cancels after input {at}");
        }
        if self.again {
            return f.write_str("events come again");
        }
        if let Some(at) = self.silent {
            return write!(f, "the callback of step {} does not come", at + 1);
        }
        let Some((target, failing)) = &self.always else {
            return f.write_str("nothing fails");
        };
        write!(f, "{target} {}", word(failing))?;
        match &self.once {
            Some((undo, failing)) => write!(f, " and {undo} {} once", word(failing)),
            None => Ok(()),
        }
    }
}
