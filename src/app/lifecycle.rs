//! The life of the process: signals first, then the API, then the node, and the drain at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::adapters::{Adapters, SystemAdapters};
use super::node::Node;
use super::ownership::Adoption;
use super::{
    StartError, SystemClock, audit, beside, credentials, definitions, last_good, rates, reload, runtime,
    spans, undeclared,
};
use crate::api::auth::Door;
use crate::api::endpoints::Place;
use crate::api::tls::Tls;
use crate::api::{self, ApiState, ForwardBounds, ForwardOwner};
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
/// [`StartError`] for what waiting cannot fix.
pub fn main(manifest: Manifest, registry: Registry, adoption: Adoption) -> Result<(), StartError> {
    let adapters = Arc::new(SystemAdapters(Arc::new(registry)));
    let clock = Arc::new(SystemClock::new());
    run(manifest, adapters, adoption, clock, Beside::Nothing)
}

/// As [`main`]; definitions are reloaded when a file changes, and what happens to each order is told on standard error.
///
/// # Errors
/// As [`main`].
pub fn dev(manifest: Manifest, registry: Registry) -> Result<(), StartError> {
    let adapters = Arc::new(SystemAdapters(Arc::new(registry)));
    let clock = Arc::new(SystemClock::new());
    run(manifest, adapters, Adoption::default(), clock, Beside::Developer)
}

/// What goes on beside the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Developer,
}

/// As [`main`], by another clock and over other adapters.
///
/// # Errors
/// [`StartError`] for what waiting cannot fix.
pub fn main_with_adapters(
    manifest: Manifest,
    clock: Arc<dyn Clock>,
    adapters: Arc<dyn Adapters>,
) -> Result<(), StartError> {
    run(manifest, adapters, Adoption::default(), clock, Beside::Nothing)
}

fn run(
    manifest: Manifest,
    adapters: Arc<dyn Adapters>,
    adoption: Adoption,
    clock: Arc<dyn Clock>,
    beside: Beside,
) -> Result<(), StartError> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(serve(manifest, adapters, adoption, clock, beside));
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    outcome
}

async fn serve(
    manifest: Manifest,
    adapters: Arc<dyn Adapters>,
    adoption: Adoption,
    clock: Arc<dyn Clock>,
    what_beside: Beside,
) -> Result<(), StartError> {
    // Before anything else: an unhandled SIGTERM would end the process without its drain.
    let mut signals = Signals::install()?;
    install_tls_provider();
    let (loaded, refused) = loaded(&manifest)?;
    let listeners = Listeners::bind(&manifest.http).await?;
    listeners.tell();
    let door = credentials::door(&manifest.http, &clock)?;
    let tls = credentials::tls(&manifest.http, &clock)?;
    let drain_timeout = manifest.drain_timeout.duration();
    let (settings, cluster) = (manifest.http.clone(), manifest.cluster.clone());
    let api_clock = Arc::clone(&clock);
    let node = Node::with_adapters(manifest, loaded, clock, Arc::new(Metrics::new()), adapters)?;
    let (collector, keeper) = (spans::begin(&node)?, audit::begin(&node));
    node.adopt(adoption);
    node.hearing.expect();
    if let Some(error) = refused {
        reload::refused_at_start(&node, error);
    }
    let stop_http = CancellationToken::new();
    let api = state(&node, door, api_clock, listeners.admin_address());
    let forwarded = Forwarded {
        state: api.clone(),
        settings: settings.clone(),
        cluster,
    };
    let served = Served {
        state: api,
        settings,
        tls,
    };
    let http = serve_http(listeners, served, node.tasks.clone(), stop_http.clone());
    let http = node.tasks.spawn(Task::Http, "", http);

    let begun = tokio::select! {
        outcome = node.start() => outcome.map(|()| Begun::Running),
        () = signals.next() => Ok(Begun::ToldToStop),
        () = node.drain_requested() => Ok(Begun::ToldToStop),
    };
    match begun {
        Ok(Begun::Running) => {
            forwarded.listen(&node, &stop_http);
            rates::begin(&node);
            undeclared::warnings(&node).await;
            tokio::select! {
                () = serve_until_told(&node, &mut signals) => {}
                () = beside::watch(Arc::clone(&node)), if what_beside == Beside::Developer => {}
            }
            drain(&node, drain_timeout, &mut signals).await;
        }
        // Nothing runs yet that would have to be drained.
        Ok(Begun::ToldToStop) => tracing::info!("stop signal during the start; exiting at once"),
        Err(_) => {}
    }
    stop_http.cancel();
    // The API answers until the end; a client that holds its connection does not hold the process.
    let _ended = tokio::time::timeout(SHUTDOWN_GRACE, http).await;
    keeper.end().await;
    if let Some(collector) = collector {
        collector.end().await;
    }
    begun.map(drop)
}

/// The definitions of the files; or those that were in force before, where they may stand in, with what is wrong with the files.
fn loaded(manifest: &Manifest) -> Result<(definitions::Read, Option<StartError>), StartError> {
    match definitions::load(manifest) {
        Ok(loaded) => Ok((loaded, None)),
        Err(error) if last_good::may_stand_in(&error) => match last_good::instead(manifest) {
            Some(loaded) => Ok((loaded, Some(error))),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn drain(node: &Node, timeout: Duration, signals: &mut Signals) {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(timeout_ms, "draining");
    tokio::select! {
        () = node.drain(timeout) => tracing::info!("drained"),
        () = signals.next() => tracing::warn!("second signal; exiting at once"),
    }
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
        audit::reload_by_signal(node).await;
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

/// Where the API is reached.
struct Listeners {
    tenants: TcpListener,
    /// `None`: the same serves both.
    admin: Option<TcpListener>,
}

impl Listeners {
    async fn bind(settings: &api::Settings) -> Result<Self, StartError> {
        let admin = match settings.own_admin_listen() {
            Some(address) => {
                let key = match settings.admin_listen {
                    Some(_) => "http.admin_listen",
                    None => "http.admin_listen (not set, so behind the port of http.listen)",
                };
                Some(bind(key, address).await?)
            }
            None => None,
        };
        let tenants = bind("http.listen", settings.listen).await?;
        Ok(Self { tenants, admin })
    }

    /// The address of operators, if it is one of its own.
    fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    /// Logs where the API is reached: the system may have chosen the ports.
    fn tell(&self) {
        let address = |listener: &TcpListener| listener.local_addr().ok().map(|address| address.to_string());
        let tenants = address(&self.tenants);
        let admin = self.admin.as_ref().map_or_else(|| tenants.clone(), address);
        tracing::info!(listen = tenants, admin_listen = admin, "the API listens");
    }
}

async fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let failed = |error| StartError::System(format!("{key} {address}: {error}"));
    TcpListener::bind(address).await.map_err(failed)
}

/// What is served, and how.
struct Served {
    state: ApiState,
    settings: api::Settings,
    tls: Option<Arc<Tls>>,
}

/// Requests that other processes of the cluster forward to this one.
struct Forwarded {
    state: ApiState,
    settings: api::Settings,
    cluster: String,
}

impl Forwarded {
    /// Begins to answer them, where this process has shards and others can reach it.
    fn listen(self, node: &Arc<Node>, stop: &CancellationToken) {
        let Some(way) = node.forwarded() else { return };
        let router = api::router(
            self.state,
            &self.settings,
            Place::Tenants,
            panics(node.tasks.clone()),
        );
        let (stop, of, owner) = (stop.clone(), "of forwarded requests", Arc::clone(node));
        node.tasks.keep(Task::Http, of, move || {
            let (cluster, router) = (self.cluster.clone(), router.clone());
            let ways = (Arc::clone(&way), Arc::clone(&owner) as Arc<dyn ForwardOwner>);
            api::serve_forwarded(ways, cluster, router, self.settings.clone(), stop.clone())
        });
    }
}

/// What the handlers of the API can reach. `clock` is that of the machine.
fn state(node: &Arc<Node>, door: Door, clock: Arc<dyn Clock>, admin_address: Option<SocketAddr>) -> ApiState {
    let settings = &node.manifest.http;
    ApiState {
        control: Arc::clone(node) as Arc<dyn Control>,
        tenancy: node.manifest.tenancy(),
        tenants: node.manifest.tenant_list().map(Into::into),
        door: Arc::new(door),
        clock,
        metrics: Arc::clone(&node.metrics),
        accept_events: settings.accept_events,
        waits: Arc::new(Semaphore::new(settings.waits_max.min(Semaphore::MAX_PERMITS))),
        streams: Arc::new(Semaphore::new(settings.streams_max.min(Semaphore::MAX_PERMITS))),
        wait_max: settings.wait_max.duration(),
        request_timeout: settings.request_timeout.duration(),
        answer_timeout: settings.answer_timeout.duration(),
        page_bytes_max: settings.page_bytes_max,
        reads: Arc::new(Semaphore::new(settings.reads_max.min(Semaphore::MAX_PERMITS))),
        answers: api::Answers::new(settings.answer_bytes_max, Arc::clone(&node.metrics)),
        admin_address,
        forwarding: bounds(settings, &node.manifest.cluster),
    }
}

fn bounds(settings: &api::Settings, cluster: &str) -> ForwardBounds {
    ForwardBounds {
        cluster: cluster.into(),
        timeout: settings.forward_timeout.duration(),
        bytes_max: settings.forward_bytes_max,
        places: Arc::new(Semaphore::new(settings.forwards_max.min(Semaphore::MAX_PERMITS))),
    }
}

/// Counts and tells panics of requests.
fn panics(tasks: Tasks) -> api::OnPanic {
    Arc::new(move |panic| {
        tasks.panicked(Task::Http, "a request", panic);
    })
}

async fn serve_http(listeners: Listeners, served: Served, tasks: Tasks, stop: CancellationToken) {
    let Served { state, settings, tls } = served;
    let door = Arc::clone(&state.door);
    let on_panic = panics(tasks);
    let serve = |listener, place| {
        let router = api::router(state.clone(), &settings, place, Arc::clone(&on_panic));
        api::serve(
            listener,
            router,
            api::crowded(state.clone()),
            &settings,
            tls.clone(),
            stop.clone(),
        )
    };
    let answering = async {
        match listeners.admin {
            None => serve(listeners.tenants, Place::Everywhere).await,
            Some(admin) => {
                tokio::join!(
                    serve(listeners.tenants, Place::Tenants),
                    serve(admin, Place::Admin)
                );
            }
        }
    };
    tokio::join!(answering, door.keep(&stop));
}

/// One TLS provider for every client in the process.
pub(super) fn install_tls_provider() {
    // A second installation reports the first one, which is the same.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
