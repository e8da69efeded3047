//! Escapes control characters of lines for people: a line break in a key or a subject must not begin a line that looks like another one
//! of the log, and no character may command the terminal. JSON lines escape them anyway.

use std::io::{self, Write};

/// Writes lines, each given in one piece, with its control characters escaped as Rust writes them.
pub struct Escaping<W> {
    pub out: W,
    /// The formatter colours its lines: its colours stay, and so may one of a field, which does nothing else.
    pub is_coloured: bool,
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.out.write_all(&escaped(line, self.is_coloured))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The line break at the end stays, and in coloured lines the colours.
fn escaped(line: &[u8], is_coloured: bool) -> Vec<u8> {
    let (text, end) = match line.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let colour = STYLES.iter().find(|style| is_coloured && rest.starts_with(style));
        if let Some(style) = colour {
            out.extend_from_slice(style);
            rest = &rest[style.len()..];
            continue;
        }
        if byte.is_ascii_control() {
            out.extend(byte.escape_ascii());
        } else {
            out.push(byte);
        }
        rest = behind;
    }
    out.extend(end);
    out
}

/// The styles of the formatter: none, bold, dimmed, italic, and red to cyan.
const STYLES: [&[u8]; 10] = [
    b"\x1b[0m",
    b"\x1b[1m",
    b"\x1b[2m",
    b"\x1b[3m",
    b"\x1b[31m",
    b"\x1b[32m",
    b"\x1b[33m",
    b"\x1b[34m",
    b"\x1b[35m",
    b"\x1b[36m",
];

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

    /// What is written of a line with this key.
    fn written(key: &str, is_coloured: bool) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .compact()
            .with_ansi(is_coloured)
            .with_writer(move || Escaping {
                out: writer.clone(),
                is_coloured,
            })
            .finish();
        tracing::subscriber::with_default(subscriber, || tracing::info!(%key, text = key, "an instance"));
        String::from_utf8(kept.0.lock().expect("not poisoned").clone()).expect("UTF-8")
    }

    #[test]
    fn no_field_begins_a_line_or_commands_the_terminal() {
        let key = "o-1\nERROR forged\r\u{1b}[31m\u{7}\u{1b}[2J";
        let is_coloured = false;
        let text = written(key, is_coloured);
        assert_eq!(text.lines().count(), 1, "{text}");
        let controls = text.trim_end_matches('\n').chars().filter(|c| c.is_control());
        assert_eq!(controls.count(), 0, "{text:?}");
        assert!(text.contains("ERROR forged"), "{text}");

        let is_coloured = true;
        let text = written(key, is_coloured);
        assert_eq!(text.lines().count(), 1, "{text}");
        let plain = STYLES.iter().fold(text.clone(), |text, style| {
            text.replace(std::str::from_utf8(style).expect("ASCII"), "")
        });
        assert_ne!(plain, text, "the colours of the formatter stay");
        let controls = plain.trim_end_matches('\n').chars().filter(|c| c.is_control());
        assert_eq!(controls.count(), 0, "{text:?}");
    }
}
