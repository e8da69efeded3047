//! Escapes control characters of lines for people: a line break in a key or a subject must not begin a line that looks like another one
//! of the log, and no character may command the terminal. JSON lines escape them anyway.

use std::io::{self, Write};

/// Writes lines, each given in one piece, with its control characters escaped as Rust writes them.
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(&escaped(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The line break at the end stays, and so do the colours, which begin with the only escape character that the formatter lets through.
fn escaped(line: &[u8]) -> Vec<u8> {
    let (text, end) = match line.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    for &byte in text {
        if byte.is_ascii_control() && byte != ESCAPE {
            out.extend(byte.escape_ascii());
        } else {
            out.push(byte);
        }
    }
    out.extend(end);
    out
}

const ESCAPE: u8 = 0x1b;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_field_begins_a_line_or_commands_the_terminal() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .compact()
            .with_ansi(false)
            .with_writer(move || Escaping(writer.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let key = "o-1\nERROR forged\r\u{1b}[31m\u{7}";
            tracing::info!(%key, text = key, "an instance");
        });
        let text = String::from_utf8(kept.0.lock().expect("not poisoned").clone()).expect("UTF-8");
        assert_eq!(text.lines().count(), 1, "{text}");
        let controls = text.trim_end_matches('\n').chars().filter(|c| c.is_control());
        assert_eq!(controls.count(), 0, "{text:?}");
        assert!(text.contains("ERROR forged"), "{text}");
    }
}
