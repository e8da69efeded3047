//! Asks before something is lost.

use std::io::{IsTerminal as _, Write as _};

use clap::Args;

use crate::app::diagnostics::plain;
use crate::app::exit::{self, Failure};

/// Consent to what cannot be undone.
#[derive(Debug, Clone, Copy, Args)]
pub struct ConfirmArguments {
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
}

impl ConfirmArguments {
    /// Whether the user has agreed on the command line.
    pub const fn is_given(self) -> bool {
        self.yes
    }

    /// Returns where the user agrees: by `--yes`, or by typing `name` at a terminal.
    ///
    /// # Errors
    /// [`exit::USAGE`] without consent; nothing was done then.
    pub fn agreed(self, consequence: &str, name: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let (consequence, shown) = (plain(consequence), plain(name));
        let refused = |message: String| Err(Failure::new(exit::USAGE, message));
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return refused(format!(
                "{consequence}; repeat with --yes to confirm, nothing was changed"
            ));
        }
        // Where the question cannot be seen, nothing is typed.
        let _asked = write!(std::io::stderr(), "{consequence}\ntype {shown} to confirm: ");
        let mut typed = String::new();
        let read = std::io::stdin().read_line(&mut typed);
        match read {
            Ok(_) if typed.trim_end_matches(['\r', '\n']) == name => Ok(()),
            Ok(_) | Err(_) => refused(format!("{shown} was not typed; nothing was changed")),
        }
    }
}
