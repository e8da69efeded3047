use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use hyper_util::client::legacy::connect::HttpConnector;

use super::*;
use crate::clients::told;
use crate::effects::certainty::Ending;
use crate::effects::http::client::Resolver;
use crate::effects::http::exchange::UNENDED_BYTES_MAX;
use crate::effects::network::Network;

/// Until when a call that has time enough may take.
fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// What the server has seen.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// The head of a request, and the number of its connection.
    Request(usize, String),
    /// The end of a connection.
    End(usize),
}

/// A server that answers each request with `answer`, for so many requests on each connection.
struct Server {
    origin: Origin,
    seen: Receiver<Seen>,
}

impl Server {
    fn start(answer: &'static str, requests_each: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (tell, seen) = channel();
        let server = Self::at(&listener, seen);
        thread::spawn(move || {
            for (socket, n) in listener.incoming().zip(0..) {
                let tell: Sender<Seen> = tell.clone();
                thread::spawn(move || {
                    let mut socket = socket.expect("a connection");
                    let mut lines = BufReader::new(socket.try_clone().expect("a handle"));
                    for _ in 0..requests_each {
                        let Some(head) = head(&mut lines) else { break };
                        tell.send(Seen::Request(n, head)).expect("told");
                        socket.write_all(answer.as_bytes()).expect("sent");
                    }
                    drop((socket, lines));
                    tell.send(Seen::End(n)).expect("told");
                });
            }
        });
        server
    }

    fn at(listener: &TcpListener, seen: Receiver<Seen>) -> Self {
        let address = listener.local_addr().expect("bound");
        let origin = Origin {
            scheme: "http".to_owned(),
            host: address.ip().to_string(),
            port: Some(address.port()),
        };
        Self { origin, seen }
    }

    fn pool(&self) -> Pool {
        self.pool_for(Duration::from_mins(10))
    }

    fn pool_for(&self, idle_max: Duration) -> Pool {
        let connector = InTime {
            connector: HttpConnector::new_with_resolver(Resolver(Network::default())),
            limit: Duration::from_secs(30),
        };
        Pool::new(connector, &self.origin, idle_max).expect("an origin")
    }

    fn next(&self) -> Seen {
        self.seen
            .recv_timeout(Duration::from_secs(30))
            .expect("something")
    }

    /// The number of the connection that the next request came by, whatever has ended before.
    fn next_request(&self) -> usize {
        loop {
            if let Seen::Request(n, _) = self.next() {
                return n;
            }
        }
    }

    /// The same where nothing has ended.
    fn connection(&self) -> usize {
        match self.next() {
            Seen::Request(n, _) => n,
            Seen::End(n) => panic!("connection {n} has ended"),
        }
    }
}

/// The head of a request whose body is read, too; `None` at the end of the connection.
fn head(lines: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            lines.read_exact(&mut vec![0; length]).expect("a body");
            return Some(head);
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a number");
        }
        head.push_str(&line);
    }
}

/// The head of the next request.
fn request_on(socket: &std::net::TcpStream) -> String {
    let mut lines = BufReader::new(socket.try_clone().expect("a handle"));
    head(&mut lines).expect("a request")
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

fn post(url: &str) -> Request<Bytes> {
    Request::post(url)
        .body(Bytes::from_static(b"{\"n\":1}"))
        .expect("a request")
}

/// The body of the answer to a call.
async fn answered(pool: &Pool) -> String {
    sent(pool, post("http://elsewhere/")).await
}

async fn sent(pool: &Pool, request: Request<Bytes>) -> String {
    let mut rest = pool
        .send(request, in_time())
        .await
        .expect("an answer")
        .into_body();
    let mut body = Vec::new();
    while let Some(chunk) = rest.chunk().await.expect("whole") {
        body.extend_from_slice(&chunk);
    }
    String::from_utf8(body).expect("text")
}

fn idle(pool: &Pool) -> usize {
    pool.idle.waiting().sockets.len()
}

#[tokio::test]
async fn calls_go_to_the_origin_with_the_path_of_their_url() {
    let server = Server::start(ANSWER, 2);
    let pool = server.pool();
    sent(&pool, post("http://elsewhere:1/a/b?c=d#e")).await;
    let port = server.origin.port.expect("a port");
    let Seen::Request(0, head) = server.next() else {
        panic!("no request")
    };
    assert_eq!(
        head,
        format!("POST /a/b?c=d HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: 7\r\n")
    );

    let mut own = post("http://elsewhere");
    own.headers_mut()
        .insert(HOST, HeaderValue::from_static("virtual.example"));
    sent(&pool, own).await;
    let Seen::Request(_, head) = server.next() else {
        panic!("no request")
    };
    assert!(
        head.starts_with("POST / HTTP/1.1\r\nhost: virtual.example\r\n"),
        "{head}"
    );
}

#[test]
fn the_default_port_is_not_written() {
    let host = |port| {
        let origin = Origin {
            scheme: "http".to_owned(),
            host: "bank".to_owned(),
            port: Some(port),
        };
        let server = Server {
            origin,
            ..Server::start(ANSWER, 0)
        };
        server.pool().host
    };
    assert_eq!(
        (host(80), host(8080)),
        (
            HeaderValue::from_static("bank"),
            HeaderValue::from_static("bank:8080")
        )
    );
}

#[tokio::test]
async fn a_connection_is_used_again_when_its_answer_is_read() {
    for (answer, body) in [
        (ANSWER, "{}"),
        ("HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", ""),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n1\r\n \r\n0\r\nx-more: 1\r\n\r\n",
            "{} ",
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 500 Oh\r\ncontent-length: 1\r\n\r\n!",
            "!",
        ),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}",
            "{}",
        ),
    ] {
        let server = Server::start(answer, 100);
        let pool = server.pool();
        for _ in 0..5 {
            assert_eq!(answered(&pool).await, body);
            assert_eq!((server.connection(), idle(&pool)), (0, 1), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_server_gives_up_is_not_used_again() {
    for (answer, body) in [
        (
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
            "{}",
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", "{}"),
        // More than was asked for.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n",
            "{}",
        ),
    ] {
        let server = Server::start(answer, 100);
        let pool = server.pool();
        for n in 0..3 {
            assert_eq!(answered(&pool).await, body);
            assert_eq!((server.next_request(), idle(&pool)), (n, 0), "{answer}");
        }
    }
    // The end of the connection is the end of the body.
    let server = Server::start("HTTP/1.1 200 OK\r\n\r\n{}", 1);
    let pool = server.pool();
    for n in 0..3 {
        assert_eq!(
            (answered(&pool).await.as_str(), server.next_request(), idle(&pool)),
            ("{}", n, 0)
        );
    }
}

#[tokio::test]
async fn a_connection_whose_answer_is_not_read_is_not_used() {
    let server = Server::start("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", 9);
    let pool = server.pool();
    for n in 0..3 {
        pool.send(post("http://elsewhere/"), in_time())
            .await
            .expect("a head");
        assert_eq!(server.connection(), n);
        assert_eq!(server.next(), Seen::End(n));
    }
    assert_eq!(idle(&pool), 0);
}

#[tokio::test]
async fn a_connection_closed_by_the_server_is_replaced_and_the_request_sent_once() {
    let server = Server::start(ANSWER, 1);
    let pool = server.pool();
    for n in 0..100 {
        assert_eq!(answered(&pool).await, "{}");
        assert_eq!(server.connection(), n);
        assert_eq!(server.next(), Seen::End(n));
    }
}

/// As a server does that refuses what is too large.
#[tokio::test]
async fn an_answer_is_an_answer_before_the_request_has_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (_tell, seen) = channel();
    let server = Server::at(&listener, seen);
    let held = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        socket.read_exact(&mut [0]).expect("a byte");
        let refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}";
        socket.write_all(refusal).expect("sent");
        // Open for as long as the test runs, and not read any further.
        socket
    });
    let pool = server.pool();
    // More than the system takes for a connection that nobody reads.
    let large = Request::post("http://elsewhere/").body(Bytes::from(vec![b'x'; 64 * 1024 * 1024]));
    assert_eq!(sent(&pool, large.expect("a request")).await, "{}");
    assert_eq!(idle(&pool), 0);
    held.join().expect("accepted");
}

/// A success may be told before the request has gone: the server still needs all of it.
#[tokio::test]
async fn the_rest_of_a_request_is_sent_while_the_answer_is_read() {
    const BODY: usize = 64 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (_tell, seen) = channel();
    let server = Server::at(&listener, seen);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            let mut lines = BufReader::new(socket.try_clone().expect("a handle"));
            for line in lines.by_ref().lines() {
                if line.expect("text").is_empty() {
                    break;
                }
            }
            let begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n";
            socket.write_all(begin).expect("sent");
            let read = std::io::copy(&mut lines.take(BODY as u64), &mut std::io::sink());
            assert_eq!(read.expect("a body"), BODY as u64);
            socket.write_all(b"1\r\n]\r\n0\r\n\r\n").expect("sent");
        }
    });
    let pool = server.pool();
    let large = Request::post("http://elsewhere/").body(Bytes::from(vec![b'x'; BODY]));
    assert_eq!(sent(&pool, large.expect("a request")).await, "[1]");
}

#[tokio::test]
async fn connections_end_when_nobody_needs_them() {
    let server = Server::start(ANSWER, 9);
    let pool = server.pool_for(Duration::from_millis(50));
    for n in 0..2 {
        answered(&pool).await;
        assert_eq!(server.connection(), n);
        while !matches!(server.seen.try_recv(), Ok(Seen::End(_))) {
            tokio::task::yield_now().await;
        }
        assert!(!pool.idle.waiting().is_reaped);
    }
}

/// Once, the server would have closed first, with the next call on its way.
#[tokio::test]
async fn a_connection_ends_before_the_time_that_its_server_announces() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (tell, seen) = channel();
    let server = Server::at(&listener, seen);
    thread::spawn(move || {
        for (socket, n) in listener.incoming().zip(0..) {
            let mut socket = socket.expect("a connection");
            let head = request_on(&socket);
            tell.send(Seen::Request(n, head)).expect("told");
            let answer = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2, max=100\r\ncontent-length: 2\r\n\r\n{}";
            socket.write_all(answer).expect("sent");
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .expect("set");
            // It closes at its own time, and tells only of a client that has closed before.
            if let Ok(0) = socket.read(&mut [0]) {
                tell.send(Seen::End(n)).expect("told");
            }
        }
    });
    let pool = server.pool();
    assert_eq!(answered(&pool).await, "{}");
    assert_eq!((server.connection(), idle(&pool)), (0, 1));
    while pool.idle.waiting().is_reaped {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.next(), Seen::End(0));
    assert_eq!(answered(&pool).await, "{}");
    assert_eq!(server.connection(), 1);
}

#[tokio::test]
async fn an_announced_keep_alive_replaces_the_default() {
    for (announced, kept) in [("timeout=1", 0), ("timeout=5", 4), ("max=7, Timeout=\"11\"", 10)] {
        let answer = format!("HTTP/1.1 200 OK\r\nkeep-alive: {announced}\r\ncontent-length: 2\r\n\r\n{{}}");
        let server = Server::start(answer.leak(), 1);
        let pool = server.pool_for(Duration::from_secs(2));
        let before = Instant::now();
        answered(&pool).await;
        let end = pool.idle.waiting().sockets.front().map(|(_, end)| *end);
        let bounds = |end| (before..=Instant::now()).contains(&(end - Duration::from_secs(kept)));
        assert_eq!(end.map(bounds), (kept > 0).then_some(true), "{announced}");
    }
}

#[tokio::test]
async fn a_call_whose_time_is_over_knows_whether_it_was_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (_tell, seen) = channel();
    let server = Server::at(&listener, seen);
    let pool = server.pool();
    let soon = || Instant::now() + Duration::from_millis(100);
    let silent = pool.send(post("http://elsewhere/"), soon()).await;
    assert_eq!(silent.map(drop).expect_err("no answer").ending(), Ending::Late);
    // A pool of connections that are never made.
    let origin = Origin {
        host: "192.0.2.1".to_owned(),
        ..server.origin.clone()
    };
    let nowhere = Server { origin, ..server };
    let unsent = nowhere.pool().send(post("http://elsewhere/"), soon()).await;
    let ending = unsent.map(drop).expect_err("no connection").ending();
    assert!(
        [Ending::LateUnsent, Ending::Unconnected].contains(&ending),
        "{ending:?}"
    );
}

#[tokio::test]
async fn those_that_were_used_last_are_kept() {
    let server = Server::start(ANSWER, 9);
    let pool = server.pool();
    tokio::join!(answered(&pool), answered(&pool));
    assert_eq!(idle(&pool), 2);
    let later = Instant::now() + pool.idle.max;
    let taken = pool.idle.take().expect("a connection");
    pool.idle.put(taken, pool.idle.max);
    assert!(pool.idle.expire(later).is_some());
    assert_eq!(idle(&pool), 1);
    assert_eq!(pool.idle.expire(Instant::now() + pool.idle.max), None);
    assert_eq!(idle(&pool), 0);
}

/// What happens to a call that is answered like this, by a server that closes then.
async fn failed(answer: &'static str) -> Unanswered {
    let server = Server::start(answer, 1);
    let pool = server.pool();
    let mut rest = match pool.send(post("http://elsewhere/"), in_time()).await {
        Ok(answer) => answer.into_body(),
        Err(error) => return error,
    };
    loop {
        match rest.chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("{answer:?} is whole"),
            Err(error) => {
                assert!(
                    matches!(rest.chunk().await, Ok(None)),
                    "nothing comes behind an error"
                );
                assert_eq!(idle(&pool), 0);
                return error;
            }
        }
    }
}

#[tokio::test]
async fn answers_that_are_none_are_told_from_those_that_break_off() {
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 99 No\r\n\r\n",
        "HTTP/1.1 200 OK\r\n name: folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}!!\r\n",
    ] {
        let error = failed(answer).await;
        assert!(matches!(error, Unanswered::Malformed(_)), "{answer:?}: {error:?}");
        assert_eq!(error.ending(), Ending::Lost);
    }
    for answer in [
        "",
        "HTTP/1.1 200",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ] {
        let error = failed(answer).await;
        assert!(matches!(error, Unanswered::Lost(_)), "{answer:?}: {error:?}");
        assert_eq!(error.ending(), Ending::Lost);
    }
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_given_up() {
    let name = "x".repeat(UNENDED_BYTES_MAX);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for answer in [
        format!("HTTP/1.1 200 OK\r\n{name}"),
        // 1xx without end are read and forgotten; the last is too long.
        format!(
            "{}HTTP/1.1 103 Hint\r\nlink: {name}",
            "HTTP/1.1 103 Hint\r\n\r\n".repeat(10_000)
        ),
        format!("{chunked}0\r\nx-trailer: {name}"),
    ] {
        let error = failed(answer.leak()).await;
        assert!(told("", &error).contains("without the end"), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_only_says_that_it_works_does_not_hold_up_others() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (_tell, seen) = channel();
    let server = Server::at(&listener, seen);
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        request_on(&socket);
        let word = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1_000);
        while socket.write_all(word.as_bytes()).is_ok() {}
    });
    let pool = server.pool();
    let answer = tokio::time::timeout(
        Duration::from_millis(200),
        pool.send(post("http://elsewhere/"), in_time()),
    );
    assert!(answer.await.is_err(), "it is never answered");
}

/// As some servers do when a connection has been idle for too long.
#[tokio::test]
async fn bytes_received_without_a_request_do_not_answer_the_next_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (tell, seen) = channel();
    let server = Server::at(&listener, seen);
    let (idle_for_long, now) = channel();
    thread::spawn(move || {
        for (socket, n) in listener.incoming().zip(0..) {
            let mut socket = socket.expect("a connection");
            let head = request_on(&socket);
            tell.send(Seen::Request(n, head)).expect("told");
            socket.write_all(ANSWER.as_bytes()).expect("sent");
            now.recv().expect("a word");
            let late = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";
            socket.write_all(late).expect("sent");
            tell.send(Seen::End(n)).expect("told");
        }
    });
    let pool = server.pool();
    for n in 0..3 {
        assert_eq!((answered(&pool).await.as_str(), idle(&pool)), ("{}", 1));
        assert_eq!(server.connection(), n);
        idle_for_long.send(()).expect("heard");
        assert_eq!(server.next(), Seen::End(n));
    }
}

#[tokio::test]
async fn an_answer_may_come_in_pieces() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (_tell, seen) = channel();
    let server = Server::at(&listener, seen);
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        socket.set_nodelay(true).expect("set");
        let answer = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            2\r\n{}\r\n3;name=value\r\n[1]\r\n0\r\nx-trailer: 1\r\n\r\n";
        loop {
            request_on(&socket);
            for byte in answer.as_bytes() {
                socket.write_all(&[*byte]).expect("sent");
                thread::yield_now();
            }
        }
    });
    let pool = server.pool();
    for _ in 0..3 {
        assert_eq!(answered(&pool).await, "{}[1]");
        assert_eq!(idle(&pool), 1);
    }
}

#[tokio::test]
async fn the_length_of_a_body_is_told_as_it_is() {
    for (method, body, length) in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "", Some("content-length: 0")),
        ("PUT", "{}", Some("content-length: 2")),
        ("GET", "{}", Some("content-length: 2")),
        ("DELETE", "{}", Some("content-length: 2")),
    ] {
        let server = Server::start(ANSWER, 1);
        let request = Request::builder()
            .method(method)
            .uri("http://elsewhere/")
            .body(Bytes::from_static(body.as_bytes()));
        sent(&server.pool(), request.expect("a request")).await;
        let Seen::Request(_, head) = server.next() else {
            panic!("no request")
        };
        let told: Vec<&str> = head.lines().skip(2).collect();
        assert_eq!(told, Vec::from_iter(length), "{method} {body:?}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_before_the_first_byte_has_gone_was_not_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).await;
    let stream = stream.expect("a connection");
    drop(listener.accept().expect("accepted"));
    stream.readable().await.expect("its end");
    let request = Request::post("http://localhost/charges").body(Bytes::from_static(b"{}"));
    let outgoing = Outgoing::new(request.expect("a request")).expect("it can be sent");
    let by = Instant::now() + Duration::from_secs(30);
    let (error, again) = Box::new(outgoing)
        .exchange(stream, by)
        .await
        .map(drop)
        .expect_err("no answer");
    assert_eq!(error.ending(), Ending::LostUnsent, "{error:?}");
    assert!(again.is_some(), "it can go over another connection");
}

#[tokio::test]
async fn a_connection_lost_after_sending_is_unknown_and_a_failed_connect_is_not() {
    let server = Server::start("", 1);
    let error = server
        .pool()
        .send(post("http://elsewhere/"), in_time())
        .await
        .map(drop)
        .expect_err("no answer");
    assert_eq!(error.ending(), Ending::Lost, "{error:?}");

    let unused = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = unused.local_addr().expect("bound").port();
    drop(unused);
    let origin = Origin {
        port: Some(port),
        ..server.origin.clone()
    };
    let nobody = Server { origin, ..server };
    let error = nobody
        .pool()
        .send(post("http://elsewhere/"), in_time())
        .await
        .map(drop)
        .expect_err("no connection");
    assert_eq!(error.ending(), Ending::Unconnected, "{error:?}");
}

/// Thousands wait at the same time.
#[tokio::test]
async fn a_call_that_waits_takes_little_memory() {
    let server = Server::start(ANSWER, 1);
    let pool = server.pool();
    let call = size_of_val(&pool.send(post("http://elsewhere/"), in_time()));
    let exchange = size_of::<Outgoing>();
    assert!(call <= 512 && exchange <= 768, "{call} and {exchange} bytes");
}
