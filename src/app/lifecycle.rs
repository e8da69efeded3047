//! The life of the process: signals first, then the API, then the node, and the drain at the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::adapters::{Adapters, SystemAdapters};
use super::node::Node;
use super::ownership::Adoption;
use super::{StartError, SystemClock, definitions, last_good, reload, runtime};
use crate::api::{self, ApiState};
use crate::config::Manifest;
use crate::effects::Registry;
use crate::ports::clock::Clock;
use crate::ports::control::Control;
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// How long background tasks may take to end once the drain is over.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Runs a node until it is told to stop, and drains it.
///
/// # Errors
/// [`StartError`] for what waiting cannot cure.
pub fn main(manifest: Manifest, registry: Registry, adoption: Adoption) -> Result<(), StartError> {
    let adapters = Arc::new(SystemAdapters(Arc::new(registry)));
    run(manifest, adapters, adoption, Arc::new(SystemClock::new()))
}

/// As [`main`], by another clock and over other adapters.
///
/// # Errors
/// [`StartError`] for what waiting cannot cure.
pub fn main_with_adapters(
    manifest: Manifest,
    clock: Arc<dyn Clock>,
    adapters: Arc<dyn Adapters>,
) -> Result<(), StartError> {
    run(manifest, adapters, Adoption::default(), clock)
}

fn run(
    manifest: Manifest,
    adapters: Arc<dyn Adapters>,
    adoption: Adoption,
    clock: Arc<dyn Clock>,
) -> Result<(), StartError> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(serve(manifest, adapters, adoption, clock));
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    outcome
}

async fn serve(
    manifest: Manifest,
    adapters: Arc<dyn Adapters>,
    adoption: Adoption,
    clock: Arc<dyn Clock>,
) -> Result<(), StartError> {
    // Before anything else: an unhandled SIGTERM would end the process without its drain.
    let mut signals = Signals::install()?;
    install_tls_provider();
    let (loaded, refused) = match definitions::load(&manifest) {
        Ok(loaded) => (loaded, None),
        Err(error) if last_good::may_stand_in(&error) => match last_good::instead(&manifest) {
            Some(loaded) => (loaded, Some(error)),
            None => return Err(error),
        },
        Err(error) => return Err(error),
    };
    let listener = TcpListener::bind(manifest.http.listen)
        .await
        .map_err(|error| StartError::System(format!("http.listen {}: {error}", manifest.http.listen)))?;
    let drain_timeout = manifest.drain_timeout.duration();
    let (settings, tenancy) = (manifest.http.clone(), manifest.tenancy());
    let node = Node::with_adapters(manifest, loaded, clock, Arc::new(Metrics::new()), adapters)?;
    node.adopt(adoption);
    if let Some(error) = refused {
        reload::refused_at_start(&node, error);
    }
    let stop_http = CancellationToken::new();
    let api = ApiState {
        control: Arc::clone(&node) as Arc<dyn Control>,
        tenancy,
        accept_events: settings.accept_events,
    };
    let http = serve_http(listener, api, settings, node.tasks.clone(), stop_http.clone());
    let http = node.tasks.spawn(Task::Http, "", http);

    let begun = tokio::select! {
        outcome = node.start() => outcome.map(|()| Begun::Running),
        () = signals.next() => Ok(Begun::ToldToStop),
        () = node.drain_requested() => Ok(Begun::ToldToStop),
    };
    match begun {
        Ok(Begun::Running) => {
            serve_until_told(&node, &mut signals).await;
            tracing::info!(timeout_ms = drain_timeout.as_millis(), "draining");
            tokio::select! {
                () = node.drain(drain_timeout) => tracing::info!("drained"),
                () = signals.next() => tracing::warn!("second signal; exiting at once"),
            }
        }
        // Nothing runs yet that would have to be drained.
        Ok(Begun::ToldToStop) => tracing::info!("stop signal during the start; exiting at once"),
        Err(_) => {}
    }
    stop_http.cancel();
    // The API answers until the end; a client that holds its connection does not hold the process.
    let _ended = tokio::time::timeout(SHUTDOWN_GRACE, http).await;
    begun.map(drop)
}

/// How the start ended, where nothing was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    Running,
    /// By a signal or a drain, before everything ran.
    ToldToStop,
}

/// Waits for the end; HUP is a reload meanwhile.
async fn serve_until_told(node: &Node, signals: &mut Signals) {
    loop {
        tokio::select! {
            told = signals.any() => if told == Told::Stop { return },
            () = node.drain_requested() => return,
        }
        // The log has the outcome, whoever asked.
        let _told = node.reload().await;
    }
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Stop,
    Reload,
}

/// TERM, INT and HUP.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> Result<Self, StartError> {
        let install =
            |kind| signal(kind).map_err(|error| StartError::System(format!("signal handler: {error}")));
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
            hangup: install(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    /// Waits for a signal that means stop.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn serve_http(
    listener: TcpListener,
    state: ApiState,
    settings: api::Settings,
    tasks: Tasks,
    stop: CancellationToken,
) {
    let crowded = api::crowded(state.clone());
    let on_panic: api::OnPanic = Arc::new(move |panic| {
        tasks.panicked(Task::Http, "a request", panic);
    });
    let router = api::router(state, &settings, on_panic);
    api::serve(listener, router, crowded, &settings, stop).await;
}

/// One TLS provider for every client in the process.
fn install_tls_provider() {
    // A second installation reports the first one, which is the same.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
