//! A name that means one address when it is checked and another when it is called (DNS rebinding), with each provider.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::effects::egress::Egress;
use crate::effects::environment::Environment;
use crate::effects::provider::{CallOutcome, Certainty};
use crate::effects::registry::Registry;
use crate::effects::settings::Settings;
use crate::effects::testing::{Answers, attempt, secrets};
use crate::effects::{egress::EgressDenied, providers};
use crate::kernel::definition::{SourceFile, load};

/// Takes connections, counts them and ends them.
fn peer(listener: TcpListener) -> Arc<AtomicUsize> {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    thread::spawn(move || {
        for socket in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(socket);
        }
    });
    seen
}

/// Two peers behind one port: where calls may go, and where they may not.
fn peers() -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    for _ in 0..100 {
        let allowed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = allowed.local_addr().expect("bound").port();
        if let Ok(inner) = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)) {
            return (port, peer(allowed), peer(inner));
        }
    }
    panic!("no port is free on both addresses");
}

async fn rebinds(address: &str, section: &str) {
    let (port, allowed, inner) = peers();
    let text = format!(
        "apiVersion: sagas/v1\nkind: Effect\nname: probe\nretry: {{attempts: 1}}\n\
         timeout: {{connect: 2s, total: 4s}}\n{section}\n"
    );
    let source = SourceFile {
        path: "effects/probe.yaml".to_owned(),
        text: text.into(),
    };
    let loaded = load(&[], &[source]);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let answers = Answers::of(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let upstreams = BTreeMap::from([("peer".to_owned(), address.replace("PORT", &port.to_string()))]);
    let environment = Environment::new(secrets(&BTreeMap::new()), &upstreams, None);
    let environment = Arc::new(environment.with_resolver(answers.clone()));
    let settings = Settings {
        egress: Egress {
            allow_private: false,
            allow: vec!["127.0.0.1/32".parse().expect("a network")],
        },
        ..Settings::default()
    };
    let provider = providers::of(&loaded.effects[0], &environment, &settings, &Registry::default());
    let provider = provider.unwrap_or_else(|reason| panic!("{address}: {reason}"));
    let mut last = None;
    for _ in 0..2 {
        last = Some(attempt(&*provider, &environment, "probe", "{}").await);
    }
    let Some(CallOutcome::Failed(failure)) = last else {
        panic!("{address}: the peer answers nobody: {last:?}");
    };
    assert_eq!(
        (&*failure.class, failure.certainty),
        ("egress.denied", Certainty::NotDone),
        "{address}: {failure:?}"
    );
    let denied = EgressDenied {
        host: "peer.test".to_owned(),
        address: Ipv4Addr::new(127, 0, 0, 2).into(),
    };
    assert!(failure.message.contains(&denied.to_string()), "{failure:?}");
    assert!(
        allowed.load(Ordering::SeqCst) > 0,
        "{address}: the first answer is not called"
    );
    assert_eq!(
        inner.load(Ordering::SeqCst),
        0,
        "{address}: the second one is called"
    );
}

const HTTP: &str = "http: {method: POST, url: \"${upstreams.peer}/\"}";
const GRPC: &str = "grpc: {url: \"${upstreams.peer}\", method: a.v1.A/B, reflection: true}";
const SMTP: &str =
    "smtp: {server: \"${upstreams.peer}\", from: a@example.org, to: b@example.org, subject: s, text: t}";
const SQL: &str =
    "sql: {database: \"${upstreams.peer}\", statements: [{query: \"SELECT 1\"}], read_only: true}";

#[tokio::test]
async fn a_name_is_called_at_the_addresses_that_were_checked() {
    rebinds("http://peer.test:PORT", HTTP).await;
    rebinds("https://peer.test:PORT", HTTP).await;
    rebinds("http://peer.test:PORT", GRPC).await;
    rebinds("https://peer.test:PORT", GRPC).await;
    rebinds("smtp://peer.test:PORT", SMTP).await;
    rebinds("smtps://peer.test:PORT", SMTP).await;
    rebinds("postgres://peer.test:PORT/db?sslmode=disable", SQL).await;
    rebinds("mysql://peer.test:PORT/db?sslmode=disable", SQL).await;
}
