//! The service as a whole: opens its parts in order and closes them in reverse order.

pub(crate) mod hosts;
pub(crate) mod reload;
pub(crate) mod rollback;
pub(crate) mod service;
pub(crate) mod signals;
pub(crate) mod standby;
pub(crate) mod store;

use crate::api::access;
use crate::api::acp::{self, AcpLimits};
use crate::api::console::{self, ConsoleApi};
use crate::api::http::HttpServer;
use crate::api::listeners::{BoundSockets, ConsoleListener, ListenerStates, Listeners};
use crate::api::session_tools::{self, socket::AgentsListener};
use crate::api::sign_in::{self, ConsoleDesk};
use crate::api::socket::ApiListener;
use crate::api::tokens::{self, TokenRegistry};
use crate::api::{Api, ApiLimits, router};
use crate::app::reload::{Reload, reload_on_signal};
use crate::app::service::GatewayService;
use crate::app::signals::ServiceSignals;
use crate::app::standby::Standby;
use crate::app::store::{OpenedStore, wait_for_store};
use crate::channel::accounts::DiscordAccounts;
use crate::channel::console::Console;
use crate::channel::{ChannelAdapter, Channels, InboundPort};
use crate::config::LiveConfig;
use crate::conversation::delivery;
use crate::conversation::inbound::InboundService;
use crate::metrics::Metrics;
use crate::ops::completions;
use crate::ops::integrity_check;
use crate::ops::metrics_endpoint::{self, MetricsEndpoint};
use crate::ops::notify;
use crate::ops::orphaned_leases;
use crate::ops::retention;
use crate::ops::shared_sessions;
use crate::ops::timeouts;
use crate::runtime::acpx::AcpxProbe;
use crate::runtime::agents::Agents;
use crate::runtime::hosts::Host;
use crate::session::manager::Manager;
use crate::session::task::Deps;
use acp_core::api::SOCKET;
use acp_core::config::load::LoadedConfig;
use acp_core::config::{Config, ControlPlane, StoreKind};
use acp_core::failure::Failure;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_store::{Durability, GroupBounds, Store, StoreHealth};
use axum::Router;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Maximum time of an orderly end after the loss of the database server.
const LOST_END_MAX: Duration = Duration::from_secs(5);

/// Maximum number of consoles that wait for a listener at the same time.
const CONSOLES_WAITING_MAX: usize = 16;

/// Start parameters of a gateway.
pub(crate) struct StartOptions {
    /// State directory; created if missing.
    pub(crate) state_dir: PathBuf,
    /// Configuration.
    pub(crate) loaded: LoadedConfig,
    /// Reload of the configuration.
    pub(crate) reload: Reload,
    /// Socket of the supervisor.
    pub(crate) supervisor_socket: PathBuf,
    /// File with the supervisor's shared secret.
    pub(crate) supervisor_secret: PathBuf,
    /// If the supervisor refuses this gateway: keep running and report the reason on the API, instead of
    /// exiting with it.
    pub(crate) stays_refused: bool,
}

/// Serves until one of `signals` arrives; they are registered before anything is started. Calls `on_ready`
/// with the path of the local API's socket once the supervisor answers, and logs the wait until then.
/// `channels` are added to the built-in ones.
///
/// # Errors
/// The state directory is in use, is a copy, or cannot be opened; the socket cannot be bound.
pub(crate) async fn serve(
    settings: StartOptions,
    mut channels: Vec<Arc<dyn ChannelAdapter>>,
    mut signals: ServiceSignals,
    on_ready: impl FnOnce(&Path) + Send,
) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let live = LiveConfig::new(settings.loaded.clone());
    let config = live.at_start();
    let opened = wait_for_store(&settings.state_dir, &live, &mut signals).await?;
    let Some(OpenedStore { store, mut standby }) = opened else { return Ok(()) };
    store.begin_admissions(hosts::names(config)).await?;
    let clock = store.clock();
    let all = Channels::default();
    let service = Arc::new(start(&settings, &live, &store, &all, clock, &stop)?);
    match config.remote.shared_roots.is_empty() {
        // A report must not outlive the times in which it is kept up to date.
        true => store.clear_host_reports().await?,
        false => service.hosts.restore_reports(&store.host_reports(hosts::names(config)).await?),
    }
    let socket = settings.state_dir.join(SOCKET);
    standby.iter_mut().for_each(Standby::release_local);
    let api = Api::new(Arc::clone(&service) as _, api_limits(config), stop.clone());
    if let Some(end) = refuse_to_serve(&service, &api, &socket, settings.stays_refused, &mut signals).await {
        stop.cancel();
        store.close().await;
        return end;
    }
    let bound = ApiListener::bind(&socket).map_err(|error| io_failure("listen at", &socket, &error))?;
    channels.push(Arc::new(Console::new(store.clone())));
    all.add(channels.iter().cloned());
    let bots = DiscordAccounts::new(&live, all.clone(), &store, stop.clone());
    let metrics = service.metrics.clone();
    let inlet = InboundService::new(store.clone(), all.clone(), Arc::clone(&service) as _, metrics.clone());
    let scrape = metrics_of(&service, &all);
    let console = ConsoleApi { inlet: inlet.clone(), store: store.clone() };
    let registry = TokenRegistry::open(store.clone()).await?;
    let (consoles, asked) = mpsc::channel(CONSOLES_WAITING_MAX);
    let desk = ConsoleDesk { tokens: registry.clone(), listeners: consoles };
    let routes = all_routes(&service, api.clone(), console, &scrape, desk);
    let listener = open_metrics_listener(config).await?;
    let resumed = resume_work(&service.manager, &inlet).await?;
    let sockets = standby.map(Standby::into_sockets).unwrap_or_default();
    let listeners = open_listeners(&service, routes.clone(), registry, sockets, asked).await?;
    let agents = serve_session_tools(&service, &api, clock, &stop)?;
    let serving = tokio::spawn(bound.with_metrics(metrics).serve(routes, api_limits(config), stop.clone()));
    let listeners = tokio::spawn(listeners.run(stop.clone()));
    for channel in &channels {
        tokio::spawn(listen(Arc::clone(channel), Arc::new(inlet.clone()), stop.clone()));
    }
    let bots = tokio::spawn(bots.serve(Arc::new(inlet.clone())));
    let mut tasks = spawn_background_tasks(&service, inlet, all.clone(), clock, &stop);
    tasks.extend([("local API", serving), ("listeners", listeners), ("bots", bots)]);
    tasks.push(agents);
    if let Some(listener) = listener {
        let bounds = metrics_endpoint::ScrapeLimits::default();
        tokio::spawn(metrics_endpoint::serve(listener, scrape.router(), bounds, stop.clone()));
    }
    if let Some(asked) = signals.reload.take() {
        tokio::spawn(reload_on_signal(settings.reload, asked, live.clone(), stop.clone()));
    }
    tracing::info!(sessions = resumed, state_dir = %settings.state_dir.display(), "gateway started");
    let ended = serve_until_signal(&service, signals, || on_ready(&socket)).await;
    stop_all(&service, &channels, tasks, &stop).await;
    ended
}

/// Stops all parts in order, and closes the store.
async fn stop_all(
    service: &GatewayService,
    channels: &[Arc<dyn ChannelAdapter>],
    tasks: Vec<(&'static str, JoinHandle<()>)>,
    stop: &CancellationToken,
) {
    tracing::info!("gateway stopping");
    let store = &service.store;
    // A server that is hung may never answer what the orderly end waits for.
    let watched = store.clone();
    drop(tokio::spawn(async move { wait_for_lost_server(&watched).await }));
    stop.cancel();
    service.manager.stopped().await;
    join_all(tasks).await;
    // Unregistered last: until then a conversation must not look as if its channel were no longer served.
    for registry in service.hosts.iter().map(|host| &host.registry) {
        registry.ids().iter().for_each(|id| registry.unregister(id));
    }
    for channel in channels {
        service.channels.unregister(channel);
    }
    tracing::info!(counts = ?store.counts(), "control plane closed");
    store.close().await;
}

fn metrics_of(service: &GatewayService, channels: &Channels) -> MetricsEndpoint {
    let GatewayService { metrics, store, hosts, .. } = service;
    let (metrics, store, hosts) = (metrics.clone(), store.clone(), Arc::clone(hosts));
    MetricsEndpoint { metrics, store, hosts, channels: channels.clone() }
}

/// Returns the routes of all listeners, with the check of scopes around them.
fn all_routes(
    service: &Arc<GatewayService>,
    api: Api,
    console: ConsoleApi,
    scrape: &MetricsEndpoint,
    desk: ConsoleDesk,
) -> Router {
    let routes = router(api.clone())
        .merge(console::router(api.clone(), console))
        .merge(scrape.clone().router())
        .merge(acp::router(&api, AcpLimits::default(), service.metrics.clone()))
        .merge(tokens::router(api.clone(), desk.tokens.clone()))
        .merge(sign_in::router(api, desk));
    access::protected(routes, Arc::clone(service) as _, service.metrics.clone())
}

/// Opens the listeners besides the local socket.
async fn open_listeners(
    service: &GatewayService,
    router: Router,
    tokens: TokenRegistry,
    sockets: BoundSockets,
    asked: mpsc::Receiver<ConsoleListener>,
) -> Result<Listeners, Failure> {
    let GatewayService { live, metrics, listeners, .. } = service;
    let server = HttpServer { router, limits: api_limits(live.at_start()) };
    let shown = (metrics.clone(), listeners.clone());
    Listeners::open(server, live.clone(), tokens, shown, sockets, asked).await
}

/// Opens the socket of the session tools, and serves it.
fn serve_session_tools(
    service: &GatewayService,
    api: &Api,
    clock: Clock,
    stop: &CancellationToken,
) -> Result<(&'static str, JoinHandle<()>), Failure> {
    let (socket, metrics) = (service.agents.agents_socket(), service.metrics.clone());
    let is_elsewhere = service.live.at_start().northbound.agents_socket.is_some();
    let bound = AgentsListener::bind(socket, is_elsewhere, metrics.clone());
    let bound = bound.map_err(|error| io_failure("listen at", socket, &error))?;
    let routes = session_tools::router(api.clone(), metrics, clock);
    Ok(("session tools", tokio::spawn(bound.serve(routes, api.limits, stop.clone()))))
}

async fn open_metrics_listener(config: &Config) -> Result<Option<TcpListener>, Failure> {
    let Some(at) = config.metrics.listen else { return Ok(None) };
    metrics_endpoint::listen(at).await.map(Some).map_err(|error| cannot_listen(at, &error))
}

/// Waits for background tasks to end.
async fn join_all(tasks: Vec<(&'static str, JoinHandle<()>)>) {
    for (what, task) in tasks {
        if task.await.is_err() {
            tracing::warn!(task = what, "background task panicked");
        }
    }
}

/// Serves until a signal arrives, or the supervisor refuses this gateway as rolled back.
async fn serve_until_signal(
    service: &GatewayService,
    mut signals: ServiceSignals,
    on_ready: impl FnOnce() + Send,
) -> Result<(), Failure> {
    let served = async {
        let is_up = tokio::select! {
            () = service.hosts.wait_until_up() => true,
            () = signals.next() => false,
        };
        if is_up {
            on_ready();
            signals.next().await;
        }
    };
    tokio::select! {
        () = served => Ok(()),
        lost = wait_for_lost_server(&service.store) => Err(lost),
        rollback = rollback::wait_for_refusal(&service.hosts) => Err(rollback::note(&service.store, &rollback).await),
    }
}

/// Ends the process after a while, whatever still waits for a database server that does not answer: another gateway may own the
/// cell.
#[expect(
    clippy::disallowed_methods,
    reason = "what would be dropped waits for a server that may never answer"
)]
fn end_in_time() {
    std::thread::spawn(|| {
        std::thread::sleep(LOST_END_MAX);
        tracing::error!("gateway ended without waiting for the database server");
        std::process::exit(1);
    });
}

/// Waits until the store has lost its database server, and sets the process an end. What the last commit did is not known then:
/// the next start finds out.
async fn wait_for_lost_server(store: &Store) -> Failure {
    let mut health = store.health();
    // The sender lives as long as the store.
    let _ = health.wait_for(|health| *health == StoreHealth::Lost).await;
    end_in_time();
    let text = "The connection to the database server was lost. The gateway ends, and continues from the database at its next \
        start, which its service makes; agents keep running meanwhile.";
    Failure::new(Code::StoreUnavailable, text).detail("STORE_LOST").origin("gateway")
}

/// Refuses to serve while the supervisor refuses this gateway as rolled back. Returns the gateway's exit
/// result if the gateway must end.
async fn refuse_to_serve(
    service: &GatewayService,
    api: &Api,
    socket: &Path,
    stays_refused: bool,
    signals: &mut ServiceSignals,
) -> Option<Result<(), Failure>> {
    let (store, hosts) = (&service.store, &service.hosts);
    let refusing = async {
        let failure = rollback::startup_refusal(store, hosts).await?;
        if !stays_refused {
            return Some(Err(failure));
        }
        let answered = rollback::answer(api.clone(), hosts, failure, socket).await;
        answered.err().map(|error| Err(io_failure("listen at", socket, &error)))
    };
    tokio::select! {
        result = refusing => result,
        () = signals.next() => Some(Ok(())),
    }
}

/// Resumes work that was in progress before a restart, before new input is accepted. Returns the number of
/// sessions.
async fn resume_work(manager: &Manager, inlet: &InboundService) -> Result<usize, Failure> {
    let resumed = manager.resume().await?;
    match inlet.bindings().reconcile().await {
        Ok(found) => tracing::info!(?found, "bindings reconciled"),
        Err(error) => tracing::warn!(%error, "binding reconciliation failed; all bindings kept"),
    }
    inlet.resume().await?;
    Ok(resumed)
}

/// Spawns the background tasks. Returns, by name, the tasks that shutdown waits for.
pub(crate) fn spawn_background_tasks(
    service: &GatewayService,
    inlet: InboundService,
    channels: Channels,
    clock: Clock,
    stop: &CancellationToken,
) -> Vec<(&'static str, JoinHandle<()>)> {
    let GatewayService { manager, store, hosts, metrics, live, .. } = service;
    tokio::spawn(integrity_check::watch(store.clone(), metrics.clone(), stop.clone()));
    for host in hosts.iter() {
        tokio::spawn(orphaned_leases::run(store.clone(), host.supervisor.clone(), stop.clone()));
    }
    tokio::spawn(Arc::clone(hosts).read_figures(store.clone(), stop.clone()));
    tokio::spawn(shared_sessions::run(store.clone(), Arc::clone(hosts), Arc::clone(manager), stop.clone()));
    let windows = live.clone();
    let windows = move || windows.windows();
    let reaping = timeouts::run(store.clone(), Arc::clone(manager), windows, clock, stop.clone());
    let delivering = delivery::run(store.clone(), channels, live.clone(), metrics.clone(), stop.clone());
    vec![
        ("watchdog", tokio::spawn(metrics_endpoint::watch(metrics.clone(), stop.clone()))),
        ("answers", tokio::spawn(retention::expire_results(store.clone(), live.clone(), stop.clone()))),
        ("said", tokio::spawn(retention::expire_sent_messages(store.clone(), stop.clone()))),
        (
            "journal",
            tokio::spawn(retention::prune_journal(
                store.clone(),
                live.clone(),
                metrics.clone(),
                stop.clone(),
            )),
        ),
        ("windows", tokio::spawn(reaping)),
        ("completions", tokio::spawn(completions::run(store.clone(), Arc::clone(manager), stop.clone()))),
        ("bindings", tokio::spawn(inlet.bindings().clone().run_retries(stop.clone()))),
        ("inbox", tokio::spawn(inlet.run_retries(stop.clone()))),
        ("delivery", tokio::spawn(delivering)),
        ("notify", tokio::spawn(notify::run(store.clone(), live.changes(), clock, stop.clone()))),
    ]
}

/// Passes a channel's incoming events to the inbox until `stop`.
async fn listen(channel: Arc<dyn ChannelAdapter>, inbox: Arc<dyn InboundPort>, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = channel.listen(inbox) => {}
    }
}

fn start(
    settings: &StartOptions,
    live: &LiveConfig,
    store: &Store,
    channels: &Channels,
    clock: Clock,
    stop: &CancellationToken,
) -> Result<GatewayService, Failure> {
    let identity = store.identity();
    let exe =
        std::env::current_exe().map_err(|error| io_failure("find", Path::new("this program"), &error))?;
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let agents = Arc::new(Agents::new(live.clone(), env.collect(), &exe, &settings.state_dir));
    let hosts = Arc::new(hosts::connect(settings, live, store, &agents, stop)?);
    // acpx is looked up on this machine only.
    if live.at_start().supervisor.enabled {
        let Host { supervisor, registry, .. } = hosts.default_host().clone();
        let acpx = AcpxProbe::new(live.clone(), supervisor, &exe, identity.instance_id);
        acpx.register(&registry);
        tokio::spawn(acpx.run(registry, stop.clone()));
    }
    let metrics = Metrics::new(store.counters().sizes.clone(), store.counters().seconds.clone());
    let deps = Deps {
        store: store.clone(),
        host: hosts.default_host().clone(),
        hosts: Arc::clone(&hosts),
        channels: channels.clone(),
        clock,
        live: live.clone(),
        metrics: metrics.clone(),
        stop: stop.clone(),
    };
    let manager = Arc::new(Manager::new(deps, identity.instance_id));
    Ok(GatewayService {
        manager,
        metrics,
        store: store.clone(),
        agents,
        hosts,
        channels: channels.clone(),
        durability: match &live.at_start().acp.control_plane {
            ControlPlane { store: StoreKind::Sqlite, durability: Durability::Normal, .. } => "normal",
            _ => "full",
        },
        live: live.clone(),
        listeners: ListenerStates::default(),
        file_reads: Semaphore::new(service::FILE_READS_MAX),
        started_at_ms: clock.now_ms(),
    })
}

/// Maximum size and duration of one group commit.
pub(crate) const fn group_bounds(config: &Config) -> GroupBounds {
    let checkpoint = &config.acp.control_plane.checkpoint;
    GroupBounds { events_max: checkpoint.flush_every_events, open_ms: checkpoint.flush_every_ms }
}

/// Limits of the local API.
pub(crate) fn api_limits(config: &Config) -> ApiLimits {
    let default = ApiLimits::default();
    let body = usize::try_from(config.limits.prompt_bytes_max).unwrap_or(usize::MAX);
    ApiLimits {
        // JSON may need six bytes for one byte of the prompt.
        body_bytes_max: body.saturating_mul(6).saturating_add(64 * 1024),
        connections_max: usize::try_from(config.limits.connections_max).unwrap_or(default.connections_max),
        ..default
    }
}

fn cannot_listen(at: std::net::SocketAddr, error: &std::io::Error) -> Failure {
    let text = format!("Cannot listen for scrapes at {at} (metrics.listen): {error}");
    Failure::new(Code::Runtime, text).origin("gateway")
}

fn io_failure(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Code::Runtime, format!("Cannot {what} {}: {error}", path.display())).origin("gateway")
}
