//! One request and its answer on a socket that speaks HTTP/1.1. While the answer is awaited, nothing is kept but the
//! state of the exchange: the request is dropped when it has gone, and room to read is made when there is something.

use std::io::{self, ErrorKind};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{Method, Request, Response};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until};
use ureq_proto::client::state::{RecvBody, RecvResponse};
use ureq_proto::client::{Call, RecvBodyResult, RecvResponseResult, SendRequestResult};
use ureq_proto::{BodyMode, Error as Fault};

use super::client::{Unanswered, late};

/// Most bytes of an answer that are kept because their end has not come: those of its head, or between its chunks.
pub(super) const UNENDED_BYTES_MAX: usize = 64 * 1024;
/// Room for one read.
const READ_BYTES: usize = 8 * 1024;

/// A request as it is sent, and what is to be known about it when the answer comes.
pub struct Outgoing {
    wire: Vec<u8>,
    call: Call<RecvResponse>,
}

/// An answer without its head.
pub struct Incoming {
    line: Line,
    state: State,
}

/// A socket, and what is on its way into it and out of it.
struct Line {
    stream: TcpStream,
    /// Empty when all of it has gone.
    wire: Vec<u8>,
    /// Bytes of it that the system has taken; more than there are where it takes no more.
    gone: usize,
    /// Read and not looked at.
    input: BytesMut,
}

enum State {
    Body(Box<Call<RecvBody>>),
    /// All was read. Whether the connection may be used again, for all that the server has said.
    End {
        reusable: bool,
    },
}

impl Outgoing {
    /// A request without headers of framing.
    ///
    /// # Errors
    /// [`Unanswered::Unsendable`] for a request that HTTP/1.1 does not have.
    pub fn new(mut request: Request<Bytes>) -> Result<Self, Unanswered> {
        let body = std::mem::take(request.body_mut());
        let length = HeaderValue::from(body.len());
        let is_told =
            !body.is_empty() || [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
        if is_told {
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let room = head_bytes(&request);
        let mut call = Call::new(request.map(drop)).map_err(Unanswered::Unsendable)?;
        if !body.is_empty() {
            call.force_send_body();
        }
        let mut call = call.proceed();
        let mut wire = Vec::with_capacity(room + body.len());
        wire.resize(room, 0);
        let written = call.write(&mut wire).map_err(Unanswered::Unsendable)?;
        wire.truncate(written);
        wire.extend_from_slice(&body);
        let call = match call.proceed().map_err(Unanswered::Unsendable)? {
            Some(SendRequestResult::RecvResponse(call)) => Some(call),
            Some(SendRequestResult::SendBody(mut call)) => {
                call.consume_direct_write(body.len())
                    .map_err(Unanswered::Unsendable)?;
                call.proceed()
            }
            Some(SendRequestResult::Await100(_)) | None => None,
        };
        let call = call.ok_or(Unanswered::Unsendable(Fault::OutputOverflow))?;
        Ok(Self { wire, call })
    }

    /// Sends the request until the head of its answer comes, or until `by`. What has not gone then is sent while the rest is
    /// read, unless the server refuses.
    ///
    /// # Errors
    /// [`Unanswered`]. A request of which nothing was sent is given back, too.
    pub async fn exchange(
        mut self: Box<Self>,
        stream: TcpStream,
        by: Instant,
    ) -> Result<Response<Incoming>, (Unanswered, Option<Box<Self>>)> {
        let mut line = Line {
            stream,
            wire: std::mem::take(&mut self.wire),
            gone: 0,
            input: BytesMut::new(),
        };
        // Boxed: it is read once, while the rest of this is kept in several states.
        let mut end = Box::pin(sleep_until(by));
        let answered = tokio::select! {
            biased;
            answered = self.answered(&mut line) => Some(answered),
            () = &mut end => None,
        };
        drop(end);
        let Some(answered) = answered else {
            let error = match line.gone {
                0 => Unanswered::Unsent(late()),
                _ => Unanswered::Lost(late()),
            };
            return Err((error, None));
        };
        match answered {
            Ok(answer) => {
                if answer.status().is_client_error() || answer.status().is_server_error() {
                    line.gone = usize::MAX;
                }
                let state = match self.call.proceed() {
                    Some(RecvResponseResult::RecvBody(call)) => State::Body(Box::new(call)),
                    Some(RecvResponseResult::Cleanup(call)) => State::of(call.must_close_connection()),
                    Some(RecvResponseResult::Redirect(call)) => State::of(call.must_close_connection()),
                    None => State::of(true),
                };
                Ok(answer.map(|()| Incoming { line, state }))
            }
            Err(error @ Unanswered::Unsent(_)) => {
                self.wire = line.wire;
                Err((error, Some(self)))
            }
            Err(error) => Err((error, None)),
        }
    }

    async fn answered(&mut self, line: &mut Line) -> Result<Response<()>, Unanswered> {
        loop {
            let read = line.more().await;
            if line.gone == 0 {
                // As servers say that they have waited for too long: not an answer to this.
                return Err(Unanswered::Unsent(read.err().unwrap_or_else(closed)));
            }
            if read.map_err(Unanswered::Lost)? == 0 {
                return Err(Unanswered::Lost(closed()));
            }
            if let Some(answer) = self.parse(&mut line.input)? {
                return Ok(answer);
            }
        }
    }

    /// The head of the answer, if all of it is there. What a server says before (1xx) is passed over.
    fn parse(&mut self, input: &mut BytesMut) -> Result<Option<Response<()>>, Unanswered> {
        loop {
            let (used, answer) = self.call.try_response(input, false).map_err(malformed)?;
            input.advance(used);
            if answer.is_some() {
                return Ok(answer);
            }
            if input.len() >= UNENDED_BYTES_MAX {
                return Err(unending());
            }
            if used == 0 || input.is_empty() {
                return Ok(None);
            }
        }
    }
}

impl Line {
    /// Reads what comes next, 0 bytes at the end, and sends meanwhile what has not gone.
    async fn more(&mut self) -> io::Result<usize> {
        loop {
            // A server that always has something to say leaves the processor to others, too.
            consume_budget().await;
            let is_sending = self.gone < self.wire.len();
            let waiting = if is_sending {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            let ready = self.stream.ready(waiting).await?;
            if ready.is_readable() {
                match self.receive() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    end => return end,
                }
            }
            if is_sending && ready.is_writable() {
                match self.stream.try_write(&self.wire[self.gone..]) {
                    Ok(bytes) => self.gone += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if self.gone == 0 => return Err(error),
                    // The server may have answered before it closed.
                    Err(_) => self.gone = usize::MAX,
                }
                if self.gone == self.wire.len() {
                    self.wire = Vec::new();
                }
            }
        }
    }

    /// Reads what is there, into room that is made for it.
    fn receive(&mut self) -> io::Result<usize> {
        self.input.reserve(READ_BYTES);
        let read = self.stream.try_read_buf(&mut self.input);
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        read
    }
}

/// Bytes that the head of a request needs at most.
fn head_bytes(request: &Request<Bytes>) -> usize {
    /// A colon, a blank, the end of a line; or blanks and the version in the first one.
    const LINE: usize = 16;
    let headers = request.headers().iter();
    let lines = headers.map(|(name, value)| name.as_str().len() + value.len() + LINE);
    let path = request
        .uri()
        .path_and_query()
        .map_or(1, |path| path.as_str().len());
    request.method().as_str().len() + path + 2 * LINE + lines.sum::<usize>()
}

impl State {
    fn of(must_close: bool) -> Self {
        Self::End {
            reusable: !must_close,
        }
    }
}

impl Incoming {
    /// The length of the body that the head has told.
    pub fn announced(&self) -> Option<u64> {
        match &self.state {
            State::Body(call) => match call.body_mode() {
                BodyMode::LengthDelimited(bytes) => Some(bytes),
                BodyMode::NoBody | BodyMode::Chunked | BodyMode::CloseDelimited => None,
            },
            State::End { .. } => Some(0),
        }
    }

    /// The next piece of the body, `None` behind the last.
    ///
    /// # Errors
    /// [`Unanswered`]. Nothing comes behind an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let State::Body(call) = &mut self.state else {
            return Ok(None);
        };
        let to_close = matches!(call.body_mode(), BodyMode::CloseDelimited);
        loop {
            let input = &mut self.line.input;
            if call.can_proceed() && !to_close {
                self.end();
                return Ok(None);
            }
            if !input.is_empty() {
                let mut output = vec![0; input.len()];
                let (used, bytes) = call.read(input, &mut output).map_err(malformed)?;
                input.advance(used);
                if bytes > 0 {
                    output.truncate(bytes);
                    return Ok(Some(output.into()));
                }
                if used > 0 {
                    continue;
                }
                if input.len() >= UNENDED_BYTES_MAX {
                    return Err(unending());
                }
            }
            if self.line.more().await.map_err(Unanswered::Lost)? > 0 {
                continue;
            }
            if to_close {
                self.state = State::of(true);
                return Ok(None);
            }
            return Err(Unanswered::Lost(closed()));
        }
    }

    fn end(&mut self) {
        if let State::Body(call) = std::mem::replace(&mut self.state, State::of(true)) {
            self.state = State::of(match call.proceed() {
                Some(RecvBodyResult::Cleanup(call)) => call.must_close_connection(),
                Some(RecvBodyResult::Redirect(call)) => call.must_close_connection(),
                None => true,
            });
        }
    }

    /// The socket, if another request may follow: all has been sent and read, and nothing else has come.
    pub fn into_socket(self) -> Option<TcpStream> {
        let reusable = matches!(self.state, State::End { reusable: true });
        let line = self.line;
        (reusable && line.wire.is_empty() && line.input.is_empty()).then_some(line.stream)
    }
}

fn malformed(fault: Fault) -> Unanswered {
    Unanswered::Malformed(fault.into())
}

fn unending() -> Unanswered {
    let what = format!("{UNENDED_BYTES_MAX} bytes of the answer without the end of its head or of a chunk's");
    Unanswered::Malformed(what.into())
}

fn closed() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "connection closed before the answer was whole",
    )
}
