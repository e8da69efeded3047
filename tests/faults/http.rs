//! As much of an HTTP/1.1 server as a peer needs that may break any rule.

use std::collections::BTreeMap;
use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// One request, read to its end.
#[derive(Debug)]
pub struct Request {
    pub path: String,
    /// With lower-case names.
    headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    /// Its idempotency key.
    pub fn key(&self) -> &str {
        &self.headers["idempotency-key"]
    }
}

/// The next request. `None`: the caller has left.
pub async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let path = first.split(' ').nth(1).expect("a request line").to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").expect("a header");
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers["content-length"].parse().expect("a length")];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { path, headers, body }))
}

/// Answers with a body of JSON.
pub async fn answer(stream: &mut BufReader<TcpStream>, status: &str, body: &str) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await
}
