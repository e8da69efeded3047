//! What commands print. A reader that has gone away (`| head`) ends no command that ends by itself: what it does not read is
//! dropped, and the exit code stays that of the command. Those that go on until they are interrupted ask [`is_unread`].

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::exit::{self, Failure};

/// Whether the reader of standard output has gone away.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Whether nobody reads standard output any more, as far as the last line has shown.
#[must_use]
pub fn is_unread() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

/// Prints data and a line end to standard output.
///
/// # Errors
/// [`exit::IO`] where it cannot be written for another reason than that nobody reads it.
pub fn line(text: impl Display) -> Result<(), Failure> {
    write(&mut io::stdout().lock(), format_args!("{text}\n"))
}

/// Prints data as it is to standard output.
///
/// # Errors
/// As [`line()`].
pub fn text(text: impl Display) -> Result<(), Failure> {
    write(&mut io::stdout().lock(), text)
}

/// Tells people something on standard error.
pub fn note(text: impl Display) {
    // Where standard error cannot be written, there is nobody to tell.
    let _told = writeln!(io::stderr().lock(), "{text}");
}

/// A line on standard error that changes while something takes its time; nothing where that is no terminal.
#[derive(Debug)]
pub struct Progress {
    is_shown: bool,
    is_begun: bool,
}

impl Progress {
    #[must_use]
    pub fn new() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
            is_begun: false,
        }
    }

    /// Replaces the line.
    pub fn tell(&mut self, text: impl Display) {
        if self.is_shown {
            self.is_begun = true;
            // As with a note.
            let _told = write!(io::stderr().lock(), "\r\x1b[K{text}");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_begun {
            note("");
        }
    }
}

fn write(to: &mut impl Write, text: impl Display) -> Result<(), Failure> {
    match write!(to, "{text}").and_then(|()| to.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            UNREAD.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(Failure::new(exit::IO, format!("standard output: {error}"))),
    }
}
