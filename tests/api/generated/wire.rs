//! Requests as bytes, so that any can be sent, and answers as they come.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest time until an answer is complete; a request that hangs takes for ever.
const PATIENCE: Duration = Duration::from_mins(1);

/// One request.
#[derive(Clone, Default)]
pub struct Request {
    pub method: String,
    /// Path and query as they are sent.
    pub target: Vec<u8>,
    pub headers: Vec<(&'static str, Vec<u8>)>,
    pub body: Option<Vec<u8>>,
    /// Announces a body of so many bytes and sends none.
    pub announced: Option<usize>,
}

impl Request {
    fn head(&self) -> Vec<u8> {
        let mut head = format!("{} ", self.method).into_bytes();
        head.extend(&self.target);
        head.extend(b" HTTP/1.1\r\nconnection: close\r\n");
        for (name, value) in &self.headers {
            head.extend(format!("{name}: ").bytes());
            head.extend(value);
            head.extend(b"\r\n");
        }
        if let Some(length) = self.announced.or_else(|| self.body.as_ref().map(Vec::len)) {
            head.extend(format!("content-length: {length}\r\n").bytes());
        }
        head.extend(b"\r\n");
        head
    }

    /// For a message about it: the head and the beginning of the body, escaped.
    pub fn shown(&self) -> String {
        let mut shown = String::new();
        let head = self.head();
        for line in head.split(|byte| *byte == b'\n') {
            let line = &line[..line.len().min(300)];
            writeln!(shown, "  {}", line.escape_ascii()).expect("to a text");
        }
        let body = self.body.as_deref().unwrap_or_default();
        let most = body.len().min(600);
        write!(shown, "  {} ({} bytes)", body[..most].escape_ascii(), body.len()).expect("to a text");
        shown
    }

    /// Sends it over a connection of its own. `None`: nobody answers there any more.
    pub fn send(&self, address: SocketAddr) -> Option<Answer> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // The runner may answer, and close, before it has read everything.
        let _ = stream.write_all(&self.head());
        if let (Some(body), None) = (&self.body, self.announced) {
            let _ = stream.write_all(body);
        }
        Answer::read(&mut stream, self.method == "HEAD")
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Of a stream of events nothing is read.
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    fn read(stream: &mut TcpStream, is_of_head: bool) -> Option<Self> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 16 * 1024];
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            match stream.read(&mut buffer) {
                Ok(read) if read > 0 => bytes.extend(&buffer[..read]),
                Ok(_) | Err(_) => return None,
            }
        };
        let mut body = bytes.split_off(head + 4);
        let head = String::from_utf8(bytes).expect("a head of ASCII");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).expect("a status");
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        let mut answer = Self {
            status,
            headers: headers.collect(),
            body: Vec::new(),
        };
        let kind = answer.header("content-type").unwrap_or_default();
        if is_of_head || kind.starts_with("text/event-stream") {
            return Some(answer);
        }
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => body.extend(&buffer[..read]),
                // What came before is looked at all the same.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("no whole answer: {error}"),
            }
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            body = whole(&body);
        }
        answer.body = body;
        Some(answer)
    }
}

/// The bytes of a chunked body.
fn whole(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        // A file breaks off where the runner ends meanwhile.
        let Some(line) = chunks.windows(2).position(|two| two == b"\r\n") else {
            return body;
        };
        let length = std::str::from_utf8(&chunks[..line]).expect("a length");
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        if length == 0 {
            return body;
        }
        let behind = &chunks[line + 2..];
        body.extend(&behind[..length.min(behind.len())]);
        chunks = behind.get(length + 2..).unwrap_or_default();
    }
}
