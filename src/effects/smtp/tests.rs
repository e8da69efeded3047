use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use super::*;
use crate::clients::testing::Authority;
use crate::effects::egress::Egress;
use crate::effects::provider::Certainty;
use crate::effects::testing::{KEY, attempt_within, failure, payload, secrets as known_secrets};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::effect::AMBIGUOUS;
use crate::kernel::definition::{SourceFile, load};

const INPUT: &str = r#"{"order":"o-1","to":"Ann <ann@example.org>","all":["bo@example.org","cy@example.org"],"note":"Grüße","file":"aGVsbG8="}"#;
/// Longest wait for a message that was accepted.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mail server of another make, which ends with the test.
struct Sink {
    process: Child,
    /// Closed, it ends the server.
    _alive: ChildStdin,
    port: u16,
    letters: Receiver<Value>,
    /// The authority that has signed its certificate, in PEM.
    ca: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Drop for Sink {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sink {
    fn start(mode: &str) -> Self {
        let authority = Authority::new();
        Self::identified(mode, &authority.certify("localhost"), authority.pem())
    }

    fn identified(mode: &str, identity: &crate::clients::Identity, ca: Vec<u8>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = Command::new(root.join("scripts/smtp-sink.sh"))
            .output()
            .expect("the script runs");
        assert!(
            found.status.success(),
            "{}",
            String::from_utf8_lossy(&found.stderr)
        );
        let packages = String::from_utf8(found.stdout).expect("a path");
        let folder = tempfile::tempdir().expect("a folder");
        for (name, pem) in [("cert.pem", &identity.certificate), ("key.pem", &identity.key)] {
            std::fs::write(folder.path().join(name), pem).expect("written");
        }
        let mut process = Command::new("python3")
            .arg(root.join("tests/support/smtp_sink.py"))
            .arg(mode)
            .args([folder.path().join("cert.pem"), folder.path().join("key.pem")])
            .env("PYTHONPATH", packages.trim())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let alive = process.stdin.take().expect("piped");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let port = lines
            .next()
            .expect("the port")
            .expect("text")
            .parse()
            .expect("a number");
        let (sender, letters) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let letter = serde_json::from_str(&line).expect("one letter a line");
                if sender.send(letter).is_err() {
                    break;
                }
            }
        });
        Self {
            process,
            _alive: alive,
            port,
            letters,
            ca,
            _folder: folder,
        }
    }

    fn letter(&self) -> Value {
        self.letters.recv_timeout(PATIENCE).expect("a letter")
    }
}

const LETTER: &str = "  from: Shop <shop@example.com>
  to: ${input.to}
  subject: Order ${input.order}
  text: \"${input.note}\"
";

const LOGIN: &str = "  user: ${secrets.user}\n  password: ${secrets.password}\n";

fn definition(section: &str, rest: &str) -> Arc<EffectDefinition> {
    let head = "apiVersion: sagas/v1\nkind: Effect\nname: mail-send\nsmtp:\n  server: ${upstreams.mail}\n";
    let source = SourceFile {
        path: "effect.yaml".to_owned(),
        text: format!("{head}{section}{rest}").into(),
    };
    let loaded = load(&[], &[source]);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    Arc::clone(&loaded.effects[0])
}

struct Post {
    server: String,
    ca: Option<Vec<u8>>,
    password: &'static str,
    egress: Egress,
}

impl Post {
    fn to(server: String) -> Self {
        Self {
            server,
            ca: None,
            password: "s3cret",
            egress: Egress::default(),
        }
    }

    fn office(&self, section: &str, rest: &str) -> Result<Smtp, ProviderError> {
        let definition = definition(section, rest);
        let secrets = [("user", "shop"), ("password", self.password)];
        let secrets: BTreeMap<String, String> = secrets
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let upstreams = BTreeMap::from([("mail".to_owned(), self.server.clone())]);
        let tls = UpstreamTls {
            ca: self.ca.clone(),
            identity: None,
        };
        let environment = Environment::new(known_secrets(&secrets), &upstreams, None)
            .with_tls(BTreeMap::from([("mail".to_owned(), tls)]));
        let settings = Settings {
            egress: self.egress.clone(),
            // For texts that fill the buffers of a connection.
            expression_steps: u64::MAX,
            ..Settings::default()
        };
        let ProviderDefinition::Smtp(mail) = &definition.provider else {
            panic!("a message");
        };
        Smtp::new(&definition, mail, &Arc::new(environment), &settings)
    }

    async fn send(&self, section: &str, rest: &str, input: &str) -> CallOutcome {
        let provider = self.office(section, rest).expect("a provider");
        // As a worker that has time enough for whatever the definition asks.
        let limit = Duration::from_millis(provider.definition.timeout_ms);
        attempt_within(limit, &provider, &provider.environment, "mail-send", input).await
    }
}

#[tokio::test]
async fn a_message_arrives_whole_with_text_html_and_attachments() {
    let sink = Sink::start("plain");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    let section = "  security: none
  from: Shop <shop@example.com>
  to: ${input.to}
  cc: ${input.all}
  bcc: [dee@example.org]
  reply_to: help@example.com
  subject: \"Order ${input.order}: ${input.note}\"
  text: \"${input.note}\"
  html: \"<b>${input.note}</b>\"
  headers: {X-Order: \"${input.order}\"}
  attachments:
    - {name: \"${input.order}.bin\", type: application/pdf, base64: \"${input.file}\"}
    - {name: note.txt, text: \"${input.note}\"}
";
    let outcome = post.send(section, "", INPUT).await;
    assert_eq!(
        payload(outcome),
        format!(r#"{{"message_id":"<{KEY}@example.com>"}}"#)
    );
    let letter = sink.letter();
    assert_eq!(letter["from"], "shop@example.com");
    let all = [
        "ann@example.org",
        "bo@example.org",
        "cy@example.org",
        "dee@example.org",
    ];
    assert_eq!(letter["to"], serde_json::json!(all));
    let headers = &letter["headers"];
    assert_eq!(headers["from"], "Shop <shop@example.com>");
    assert_eq!(headers["to"], "Ann <ann@example.org>");
    assert_eq!(headers["cc"], "bo@example.org, cy@example.org");
    assert_eq!(headers["reply-to"], "help@example.com");
    assert_eq!(headers["subject"], "Order o-1: Grüße");
    assert_eq!(headers["message-id"], format!("<{KEY}@example.com>"));
    assert_eq!(headers["x-order"], "o-1");
    assert!(
        headers.get("bcc").is_none() && headers.get("date").is_some(),
        "{headers}"
    );
    let part = |kind: &str, name: Option<&str>, text: &str| serde_json::json!({"type": kind, "name": name, "text": text});
    assert_eq!(
        letter["parts"],
        serde_json::json!([
            part("text/plain", None, "Grüße"),
            part("text/html", None, "<b>Grüße</b>"),
            part("application/pdf", Some("o-1.bin"), "hello"),
            part("text/plain", Some("note.txt"), "Grüße"),
        ])
    );
}

#[tokio::test]
async fn a_connection_is_protected_before_the_password_is_told() {
    for (mode, scheme) in [("starttls", "smtp"), ("tls", "smtps")] {
        let sink = Sink::start(mode);
        let post = Post {
            ca: Some(sink.ca.clone()),
            ..Post::to(format!("{scheme}://localhost:{}", sink.port))
        };
        let section = format!("{LETTER}{LOGIN}");
        payload(post.send(&section, "", INPUT).await);
        let letter = sink.letter();
        assert_eq!(
            (&letter["user"], &letter["protected"]),
            (&"shop".into(), &true.into()),
            "{mode}"
        );

        let stranger = Post {
            password: "guess",
            ca: Some(sink.ca.clone()),
            ..Post::to(post.server.clone())
        };
        let refused = failure(stranger.send(&section, "", INPUT).await);
        assert_eq!(
            (&*refused.class, refused.certainty),
            ("permanent", Certainty::Refused),
            "{mode}: {refused:?}"
        );
        assert!(!refused.message.contains("guess"), "{refused:?}");

        let distrustful = Post::to(post.server.clone());
        let unknown = failure(distrustful.send(&section, "", INPUT).await);
        assert_eq!(
            (&*unknown.class, unknown.certainty),
            ("tls.untrusted", Certainty::NotDone),
            "{mode}: {unknown:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_protect_is_told_nothing() {
    let sink = Sink::start("plain");
    let post = Post::to(format!("smtp://localhost:{}", sink.port));
    let refused = failure(post.send(&format!("{LETTER}{LOGIN}"), "", INPUT).await);
    assert_eq!(
        (&*refused.class, refused.certainty),
        ("permanent", Certainty::NotDone),
        "{refused:?}"
    );
    assert!(refused.message.contains("STARTTLS"), "{refused:?}");
}

#[tokio::test]
async fn answers_of_the_server_have_classes_and_say_how_certain_they_are() {
    use Certainty::{NotDone, Refused, Unknown};
    let sink = Sink::start("plain");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    let plain = format!("  security: none\n{LETTER}");
    for (input, class, certainty, end) in [
        (
            INPUT.replace("ann@", "refused@"),
            "recipient.refused",
            Refused,
            CallEnd::Answered,
        ),
        (
            INPUT.replace("ann@", "later@"),
            "transient",
            NotDone,
            CallEnd::Answered,
        ),
        (
            INPUT.replace("o-1", "reject"),
            "permanent",
            Refused,
            CallEnd::Answered,
        ),
        (
            INPUT.replace("o-1", "vanish"),
            "ambiguous",
            Unknown,
            CallEnd::Failed,
        ),
    ] {
        let failure = failure(post.send(&plain, "", &input).await);
        assert_eq!(
            (&*failure.class, failure.certainty, failure.end),
            (class, certainty, end),
            "{input}: {failure:?}"
        );
    }
    let rules =
        "classify:\n  - {when: response.code == 554, as: spam}\nresult: {said: \"${response.message}\"}\n";
    let spam = failure(post.send(&plain, rules, &INPUT.replace("o-1", "reject")).await);
    assert_eq!((&*spam.class, spam.certainty), ("spam", Refused));
    let said = payload(post.send(&plain, rules, INPUT).await);
    assert_eq!(said, r#"{"said":"2.0.0 taken as 42"}"#);
}

#[tokio::test]
async fn nothing_is_sent_where_nothing_listens_or_may_be_called() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let section = format!("  security: none\n{LETTER}");
    let office = Post::to(format!("smtp://127.0.0.1:{port}"));
    let closed = failure(office.send(&section, "", INPUT).await);
    assert_eq!(
        (&*closed.class, closed.certainty, closed.end),
        ("transient", Certainty::NotDone, CallEnd::Failed),
        "{closed:?}"
    );
    let inward = Post {
        egress: Egress {
            allow_private: false,
            ..Egress::default()
        },
        ..Post::to(format!("smtp://localhost:{port}"))
    };
    let denied = failure(inward.send(&section, "", INPUT).await);
    assert_eq!(
        (&*denied.class, denied.certainty, denied.end),
        ("egress.denied", Certainty::NotDone, CallEnd::Abandoned)
    );
}

#[tokio::test]
async fn a_server_that_is_silent_before_the_message_is_a_known_outcome() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let office = Post::to(format!("smtp://127.0.0.1:{port}"));
    let section = format!("  security: none\n{LETTER}");
    let silent = failure(office.send(&section, "timeout: {total: 300ms}\n", INPUT).await);
    assert_eq!(
        (&*silent.class, silent.certainty, silent.end),
        ("timeout", Certainty::NotDone, CallEnd::Failed),
        "{silent:?}"
    );
    drop(listener);
}

#[tokio::test]
async fn no_value_adds_recipients_or_headers() {
    let post = Post::to("smtp://127.0.0.1:1".to_owned());
    let section = format!("  security: none\n{LETTER}");
    for (input, class) in [
        (
            INPUT.replace("o-1", "a\\r\\nBcc: eve@example.org"),
            "header.illegal",
        ),
        (
            INPUT.replace("ann@example.org>", "ann@example.org>\\r\\nBcc: eve@example.org"),
            "address.illegal",
        ),
        (INPUT.replace("Ann <ann@example.org>", "ann"), "address.illegal"),
        (INPUT.replace("Ann <ann@example.org>", ""), "address.illegal"),
    ] {
        let failure = failure(post.send(&section, "", &input).await);
        assert_eq!(
            (&*failure.class, failure.certainty),
            (class, Certainty::NotDone),
            "{input}: {failure:?}"
        );
    }
    let section = "  security: none\n  from: a@b.org\n  to: c@d.org\n  subject: x\n  text: x\n  attachments: [{name: a, base64: '${input.order}'}]\n";
    let broken = failure(post.send(section, "", INPUT).await);
    assert_eq!(&*broken.class, "attachment.illegal");
}

fn self_signed() -> crate::clients::Identity {
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = parameters.self_signed(&key).expect("signed");
    crate::clients::Identity {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_not_trusted_and_not_tried_again() {
    let identity = self_signed();
    for (mode, scheme) in [("starttls", "smtp"), ("tls", "smtps")] {
        let sink = Sink::identified(mode, &identity, identity.certificate.clone());
        let post = Post {
            ca: Some(sink.ca.clone()),
            ..Post::to(format!("{scheme}://localhost:{}", sink.port))
        };
        let unknown = failure(post.send(&format!("{LETTER}{LOGIN}"), "", INPUT).await);
        assert_eq!(
            (&*unknown.class, unknown.certainty),
            ("tls.untrusted", Certainty::NotDone),
            "{mode}: {unknown:?}"
        );
    }
}

#[test]
fn a_file_without_authorities_is_told_at_start() {
    let post = Post {
        ca: Some(b"no certificate".to_vec()),
        ..Post::to("smtp://localhost:1".to_owned())
    };
    let refused = post.office(LETTER, "").err().expect("refused").to_string();
    assert!(refused.contains("hold no certificate"), "{refused}");
}

/// A server may take ten minutes to answer the end of a message; who asks again meanwhile sends a second one.
#[test]
fn a_message_is_given_the_times_of_the_standard_and_is_sent_once_by_default() {
    for (rest, total, repeats) in [
        ("", 900_000, false),
        ("retry: {attempts: 5}\n", 900_000, false),
        ("timeout: {total: 2s}\non_ambiguous: retry\n", 2_000, true),
        ("retry: {errors: [transient, ambiguous]}\n", 900_000, true),
    ] {
        let definition = definition(LETTER, rest);
        let classes = &definition.retry_classes;
        assert_eq!(definition.timeout_ms, total, "{rest}");
        assert_eq!(
            classes.iter().any(|class| class == AMBIGUOUS),
            repeats,
            "{rest}: {classes:?}"
        );
        assert!(classes.iter().any(|class| class == "transient"), "{rest}");
    }
}

#[tokio::test]
async fn a_server_that_is_slow_to_take_a_message_gets_one() {
    let sink = Sink::start("plain");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    let section = format!("  security: none\n{LETTER}");
    let slow = INPUT.replace("o-1", "slow");
    payload(post.send(&section, "timeout: {total: 4s}\n", &slow).await);
    sink.letter();
    let late = failure(post.send(&section, "timeout: {total: 500ms}\n", &slow).await);
    assert_eq!(
        (&*late.class, late.certainty),
        (AMBIGUOUS, Certainty::Unknown),
        "{late:?}"
    );
    sink.letter();
}

#[tokio::test]
async fn a_message_whose_end_was_not_sent_was_not_taken() {
    for (closes, class) in [(true, "transient"), (false, "timeout")] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            take_until_data(&mut stream).await;
            // What is behind the answer to DATA is not read.
            if closes { None } else { Some(stream) }
        });
        let office = Post::to(format!("smtp://127.0.0.1:{port}"));
        let section =
            "  security: none\n  from: a@b.org\n  to: c@d.org\n  subject: x\n  text: \"${input.note}\"\n";
        let long = INPUT.replace("Grüße", &"a long message ".repeat(1_200_000));
        let broken = failure(office.send(section, "timeout: {total: 2s}\n", &long).await);
        assert_eq!(
            (&*broken.class, broken.certainty),
            (class, Certainty::NotDone),
            "{broken:?}"
        );
        server.await.expect("it runs");
    }
}

/// A server that says yes to everything up to the message.
async fn take_until_data(stream: &mut tokio::net::TcpStream) {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

    let (read, mut write) = stream.split();
    write.write_all(b"220 here\r\n").await.expect("written");
    let mut lines = tokio::io::BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await.expect("a command") {
        let is_data = line == "DATA";
        let answer: &[u8] = if is_data {
            b"354 go on\r\n"
        } else {
            b"250 well\r\n"
        };
        write.write_all(answer).await.expect("written");
        if is_data {
            return;
        }
    }
}

fn raw(letter: &Value) -> Vec<u8> {
    let raw = letter["raw"].as_str().expect("a text");
    data_encoding::BASE64.decode(raw.as_bytes()).expect("base64")
}

#[tokio::test]
async fn a_domain_that_is_not_ascii_goes_out_as_the_dns_has_it() {
    let sink = Sink::start("seven");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    let section = "  security: none
  from: Büro <shop@bücher.example>
  to: ${input.to}
  reply_to: help@bücher.example
  subject: \"${input.note}\"
  text: \"${input.note}\"
  headers: {X-Note: \"${input.note}\"}
  attachments:
    - {name: \"${input.note}.txt\", text: \"${input.note}\"}
";
    let input = INPUT.replace("Ann <ann@example.org>", "Änn <ann@straße.example>");
    payload(post.send(section, "", &input).await);
    let letter = sink.letter();
    assert_eq!(
        (&letter["from"], &letter["to"][0], &letter["hello"]),
        (
            &"shop@xn--bcher-kva.example".into(),
            &"ann@xn--strae-oqa.example".into(),
            &"xn--bcher-kva.example".into()
        )
    );
    assert_eq!(letter["options"], serde_json::json!([]));
    let bytes = raw(&letter);
    assert!(bytes.is_ascii(), "{}", String::from_utf8_lossy(&bytes));
    assert_eq!(letter["headers"]["subject"], "Grüße");
    assert_eq!(letter["parts"][0]["text"], "Grüße");
    assert_eq!(letter["parts"][1]["name"], "Grüße.txt");
}

#[tokio::test]
async fn a_name_before_the_at_sign_that_is_not_ascii_needs_a_server_that_takes_it() {
    let section = format!("  security: none\n{LETTER}");
    let input = INPUT.replace("ann@example.org", "jürgen@bücher.example");
    for mode in ["plain", "seven"] {
        let sink = Sink::start(mode);
        let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
        let refused = failure(post.send(&section, "", &input).await);
        assert_eq!(
            (&*refused.class, refused.certainty),
            ("address.illegal", Certainty::NotDone),
            "{mode}: {refused:?}"
        );
        // What arrives next is the first that it takes.
        payload(post.send(&section, "", INPUT).await);
        assert_eq!(sink.letter()["to"][0], "ann@example.org", "{mode}");
    }
    let sink = Sink::start("utf8");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    payload(post.send(&section, "", &input).await);
    let letter = sink.letter();
    assert_eq!(letter["to"][0], "jürgen@xn--bcher-kva.example");
    assert_eq!(
        letter["options"],
        serde_json::json!(["SMTPUTF8", "BODY=8BITMIME"])
    );
    let bytes = raw(&letter);
    let text = String::from_utf8(bytes).expect("UTF-8");
    assert!(text.contains("To: Ann <jürgen@xn--bcher-kva.example>"), "{text}");
}

#[tokio::test]
async fn the_runner_says_who_it_is() {
    let sink = Sink::start("plain");
    let post = Post::to(format!("smtp://127.0.0.1:{}", sink.port));
    for (key, hello) in [
        ("", "example.com"),
        ("  hello: mail.example.net\n", "mail.example.net"),
        ("  hello: \"[192.0.2.1]\"\n", "[192.0.2.1]"),
    ] {
        payload(
            post.send(&format!("  security: none\n{key}{LETTER}"), "", INPUT)
                .await,
        );
        assert_eq!(sink.letter()["hello"], hello);
    }
}

#[test]
fn servers_are_addresses_of_mail_servers() {
    for (address, expected) in [
        ("https://mail.internal", "not smtp://"),
        ("smtp://user:word@mail.internal", "not smtp://"),
        ("smtp://mail.internal/x", "not smtp://"),
        ("mail.internal:25", "not smtp://"),
    ] {
        let refused = Server::at(address, None, None)
            .err()
            .expect("refused")
            .to_string();
        assert!(refused.contains(expected), "{address}: {refused}");
    }
    for (address, security, port) in [
        ("smtp://mail.internal", None, 587),
        ("smtps://mail.internal", None, 465),
        ("smtp://mail.internal:25", Some(SmtpSecurity::None), 25),
        ("smtp://mail.internal", Some(SmtpSecurity::Tls), 465),
    ] {
        let server = Server::at(address, security, None).expect("a server");
        assert_eq!((&*server.host, server.port), ("mail.internal", port), "{address}");
    }
}
