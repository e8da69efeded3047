//! One request and its answer on a socket that speaks HTTP/1.1. While the answer is awaited, nothing is kept but the
//! state of the exchange: the request is dropped when it has gone, and room to read is made when there is something.

use std::io::{self, ErrorKind};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::{Method, Request, Response};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::consume_budget;
use ureq_proto::client::state::{RecvBody, RecvResponse};
use ureq_proto::client::{Call, RecvBodyResult, RecvResponseResult, SendRequestResult};
use ureq_proto::{BodyMode, Error as Fault};

use super::client::Unanswered;

/// Most bytes of an answer that are kept because their end has not come: those of its head, or between its chunks.
pub(super) const UNENDED_BYTES_MAX: usize = 64 * 1024;
/// Room for one read.
const READ_BYTES: usize = 8 * 1024;

/// A request as it is sent, and what is to be known about it when the answer comes.
pub struct Outgoing {
    /// Empty when all of it has gone.
    wire: Vec<u8>,
    call: Call<RecvResponse>,
}

/// An answer without its head.
pub struct Incoming {
    stream: TcpStream,
    /// Read from the socket and not looked at.
    input: BytesMut,
    state: State,
    /// Whether all of the request has gone.
    sent: bool,
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

    /// Sends the request and waits for the head of its answer, whichever comes first: a server may refuse what it has not
    /// read.
    ///
    /// # Errors
    /// [`Unanswered`]. A request of which nothing was sent is given back, too.
    pub async fn exchange(
        mut self: Box<Self>,
        stream: TcpStream,
    ) -> Result<Response<Incoming>, (Unanswered, Option<Box<Self>>)> {
        match self.answered(&stream).await {
            Ok((answer, input)) => {
                let sent = self.wire.is_empty();
                let state = match self.call.proceed() {
                    Some(RecvResponseResult::RecvBody(call)) => State::Body(Box::new(call)),
                    Some(RecvResponseResult::Cleanup(call)) => State::of(call.must_close_connection()),
                    Some(RecvResponseResult::Redirect(call)) => State::of(call.must_close_connection()),
                    None => State::of(true),
                };
                Ok(answer.map(|()| Incoming {
                    stream,
                    input,
                    state,
                    sent,
                }))
            }
            Err(error @ Unanswered::Unsent(_)) => Err((error, Some(self))),
            Err(error) => Err((error, None)),
        }
    }

    async fn answered(&mut self, stream: &TcpStream) -> Result<(Response<()>, BytesMut), Unanswered> {
        let mut input = BytesMut::new();
        // Bytes that the system has taken.
        let mut gone = 0;
        loop {
            // A server that always has something to say leaves the processor to others, too.
            consume_budget().await;
            let waiting = if gone < self.wire.len() {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            let lost = |error: io::Error, gone: usize| match gone {
                0 => Unanswered::Unsent(error),
                1.. => Unanswered::Lost(error),
            };
            let ready = stream.ready(waiting).await.map_err(|error| lost(error, gone))?;
            if ready.is_readable() {
                match receive(stream, &mut input) {
                    Ok(0) => return Err(lost(closed(), gone)),
                    // As servers say that they have waited for too long: not an answer to this.
                    Ok(_) if gone == 0 => return Err(Unanswered::Unsent(closed())),
                    Ok(_) => {
                        if let Some(answer) = self.parse(&mut input)? {
                            return Ok((answer, input));
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(lost(error, gone)),
                }
            }
            if gone < self.wire.len() && ready.is_writable() {
                match stream.try_write(&self.wire[gone..]) {
                    Ok(bytes) => gone += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if gone == 0 => return Err(Unanswered::Unsent(error)),
                    // The server may have answered before it closed.
                    Err(_) => gone = usize::MAX,
                }
                if gone == self.wire.len() {
                    self.wire = Vec::new();
                }
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
            consume_budget().await;
            if call.can_proceed() && !to_close {
                self.end();
                return Ok(None);
            }
            if !self.input.is_empty() {
                let mut output = vec![0; self.input.len()];
                let (used, bytes) = call.read(&self.input, &mut output).map_err(malformed)?;
                self.input.advance(used);
                if bytes > 0 {
                    output.truncate(bytes);
                    return Ok(Some(output.into()));
                }
                if used > 0 {
                    continue;
                }
                if self.input.len() >= UNENDED_BYTES_MAX {
                    return Err(unending());
                }
            }
            self.stream.readable().await.map_err(Unanswered::Lost)?;
            match receive(&self.stream, &mut self.input) {
                Ok(0) if to_close => {
                    self.state = State::of(true);
                    return Ok(None);
                }
                Ok(0) => return Err(Unanswered::Lost(closed())),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(Unanswered::Lost(error)),
                Ok(_) | Err(_) => {}
            }
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
        (reusable && self.sent && self.input.is_empty()).then_some(self.stream)
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

/// Reads what is there, into room that is made for it.
fn receive(stream: &TcpStream, input: &mut BytesMut) -> io::Result<usize> {
    input.reserve(READ_BYTES);
    let read = stream.try_read_buf(input);
    if input.is_empty() {
        *input = BytesMut::new();
    }
    read
}
