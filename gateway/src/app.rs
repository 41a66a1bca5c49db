//! The service as a whole: what is opened in which order, and closed in the reverse one.

use crate::agents::Agents;
use crate::api::SOCKET;
use crate::channel::console::Console;
use crate::channel::{Channel, Channels};
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::core::actor::Limits;
use crate::core::lines::LINE_BYTES_MAX;
use crate::delivery;
use crate::error::Failure;
use crate::http::console::{self, ConsoleApi};
use crate::http::server::Bound;
use crate::http::{Api, ApiLimits, router};
use crate::inbound::Inlet;
use crate::local::Local;
use crate::manager::{Manager, Policy};
use crate::metrics::Metrics;
use crate::runtime::direct::DirectRuntime;
use crate::runtime::{Registry, Runtime as _};
use crate::scrape::{self, Scrape};
use crate::session_task::Deps;
use crate::store::identity::Home;
use crate::store::schema::CHECKED_FIRST_BYTES;
use crate::store::{Durability, Health, Store, StoreError, now_ms};
use crate::store::{check, levels};
use crate::strays;
use crate::supervisor::{LinkStatus, Supervisor, hello};
use acp_shared::codes::Code;
use acp_shared::protocol::{self, Role};
use futures_util::FutureExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a closed session waits for its cancelled turn before its process is ended, in milliseconds.
const CLOSE_WAIT_MS: u64 = 2_000;
/// How often an idle agent is asked whether it is there, and how long it may take to answer, in milliseconds.
const PROBE_MS: u64 = 5 * 60_000;
const ALIVE_MS: u64 = 60_000;
/// How often answers under old idempotency keys are forgotten, in milliseconds, and how many at a time.
const EXPIRE_MS: u64 = 10 * 60_000;
const EXPIRE_ROWS: u64 = 1_000;

/// What a gateway is started with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Its state directory; made if there is none.
    pub(crate) state_dir: PathBuf,
    /// Its configuration.
    pub(crate) config: Config,
    /// The supervisor to use.
    pub(crate) supervisor_socket: PathBuf,
    /// The file with the secret that it wants to hear.
    pub(crate) supervisor_secret: PathBuf,
}

/// The gateway accepts work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Its pid.
    pub(crate) pid: u32,
    /// Where the local API listens.
    pub(crate) socket: PathBuf,
}

/// Serves until one of the signals comes, which are listened for since before anything was started. Ready when the
/// supervisor answers; until then it waits and says so.
///
/// # Errors
/// The state directory is in use, a copy, or cannot be opened; the socket cannot be bound.
pub(crate) async fn serve(
    settings: Settings,
    mut signals: Signals,
    on_ready: impl FnOnce(Ready) + Send,
) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let store = open_store(&settings).await?;
    let service = Arc::new(start(&settings, &store, &stop)?);
    let socket = settings.state_dir.join(SOCKET);
    let bound = Bound::bind(&socket).map_err(|error| cannot("listen at", &socket, &error))?;
    let api = Api {
        service: Arc::clone(&service) as _,
        limits: api_limits(&settings.config),
        ending: stop.clone(),
    };
    let console: Arc<dyn Channel> = Arc::new(Console::new(store.clone()));
    let channels = Channels::new([console]);
    let metrics = service.metrics.clone();
    let scrape =
        Scrape { metrics: metrics.clone(), store: store.clone(), supervisor: service.supervisor.clone() };
    let inlet = Inlet::new(store.clone(), channels.clone(), Arc::clone(&service) as _, metrics.clone());
    let console = ConsoleApi { inlet: inlet.clone(), store: store.clone() };
    let routes = router(api.clone()).merge(console::router(api, console)).merge(scrape.clone().router());
    let listener = match settings.config.metrics.listen {
        Some(at) => Some(scrape::listen(at).await.map_err(|error| cannot_listen(at, &error))?),
        None => None,
    };
    let manager = &service.manager;
    let resumed = manager.resume().await?;
    // Before anybody can say something new: what was said before the restart comes first.
    inlet.resume().await?;
    let serving = tokio::spawn(bound.serve(routes, api_limits(&settings.config), stop.clone()));
    let delivering = tokio::spawn(delivery::run(store.clone(), channels, metrics.clone(), stop.clone()));
    tokio::spawn(look_through(store.clone()));
    tokio::spawn(strays::run(store.clone(), service.supervisor.clone(), stop.clone()));
    let watching = tokio::spawn(scrape::watch(metrics, stop.clone()));
    let healing = tokio::spawn(heal(store.clone(), inlet, stop.clone()));
    if let Some(listener) = listener {
        tokio::spawn(scrape::serve(listener, scrape, stop.clone()));
    }
    let expiring =
        tokio::spawn(expire(store.clone(), settings.config.acp.idempotency.ttl_hours, stop.clone()));
    tracing::info!(sessions = resumed, state_dir = %settings.state_dir.display(), "gateway started");
    let ready = Ready { pid: std::process::id(), socket };
    tokio::select! {
        () = supervisor_is_up(&service.supervisor) => {
            on_ready(ready);
            signals.next().await;
        }
        () = signals.next() => {}
    }
    tracing::info!("gateway is ending");
    service.registry.unregister(DirectRuntime.id());
    stop.cancel();
    manager.stopped().await;
    for (what, task) in [
        ("watchdog", watching),
        ("recovery", healing),
        ("expiry", expiring),
        ("delivery", delivering),
        ("local API", serving),
    ] {
        if task.await.is_err() {
            tracing::warn!(what, "ended in disorder");
        }
    }
    tracing::info!(counts = ?store.counts(), "control plane closed");
    store.close().await;
    Ok(())
}

async fn open_store(settings: &Settings) -> Result<Store, Failure> {
    let dir = settings.state_dir.clone();
    let durability = durability(&settings.config);
    let opened = tokio::task::spawn_blocking(move || Store::open(&dir, durability)).await;
    let opened = opened.map_err(|_| Failure::of(Code::StoreUnavailable))?;
    opened.map_err(|error| not_opened(error, &settings.state_dir))
}

/// Why there is no gateway on a state directory. The person who starts it reads this: it is not only in the log.
fn not_opened(error: StoreError, state_dir: &Path) -> Failure {
    let dir = state_dir.display().to_string();
    let mut failure = Failure::from(error.clone());
    if failure.detail_code.is_some() {
        if !failure.message.contains(&dir) {
            failure.message = format!("The control plane in {dir} cannot be opened: {}", failure.message);
        }
        return failure;
    }
    let what = format!(
        "The control plane in {dir} cannot be opened: {}. Nothing was changed. `acp-gateway store check` looks at it; \
         `acp-gateway store restore FILE` brings a backup back.",
        error.whole()
    );
    Failure::new(Code::StoreUnavailable, what).origin("gateway")
}

fn start(settings: &Settings, store: &Store, stop: &CancellationToken) -> Result<Local, Failure> {
    let identity = store.identity();
    let home = Home::of(&settings.state_dir).map_err(Failure::from)?;
    let role = Role::Gateway {
        instance_id: identity.instance_id,
        epoch: identity.epoch,
        home: protocol::Home { machine_id: home.machine_id, dev: home.dev, ino: home.ino },
    };
    let socket = settings.supervisor_socket.clone();
    let secret = settings.supervisor_secret.clone();
    let supervisor = Supervisor::start(socket, secret, hello(role), stop.clone());
    let registry = Arc::new(Registry::default());
    registry.register(Arc::new(DirectRuntime));
    let exe = std::env::current_exe().map_err(|error| cannot("find", Path::new("this program"), &error))?;
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let agents = Arc::new(Agents::new(settings.config.clone(), env.collect(), &exe, &settings.state_dir));
    let clock = Clock::start();
    let metrics = Metrics::new(store.counters().sizes.clone(), store.counters().seconds.clone());
    let deps = Deps {
        store: store.clone(),
        supervisor: supervisor.clone(),
        registry: Arc::clone(&registry),
        clock,
        limits: limits(&settings.config),
        profiles: Arc::clone(&agents) as _,
        metrics: metrics.clone(),
        stop: stop.clone(),
    };
    let manager = Arc::new(Manager::new(deps, policy(&settings.config, identity.instance_id)));
    Ok(Local {
        manager,
        metrics,
        store: store.clone(),
        agents,
        supervisor,
        registry,
        supervisor_socket: settings.supervisor_socket.clone(),
        durability: match durability(&settings.config) {
            Durability::Full => "full",
            Durability::Normal => "normal",
        },
        started_at_ms: clock.now_ms(),
    })
}

/// A database too large to be looked at before it is used is looked at now.
async fn look_through(store: Store) {
    let (bytes, _) = levels::sizes(store.dir());
    if bytes <= CHECKED_FIRST_BYTES {
        return;
    }
    match store.read("look_through", |db| check::pages(db, true)).await {
        Ok(found) if found.is_empty() => tracing::info!(bytes, "the database is sound"),
        Ok(found) => tracing::error!(?found, "the database is damaged: `acp-gateway store check` says where"),
        Err(error) => tracing::error!(%error, "the database cannot be looked through"),
    }
}

/// When what is asked can be committed again, takes up the messages that nothing was done about meanwhile.
async fn heal(store: Store, inlet: Inlet, stop: CancellationToken) {
    let mut health = store.health();
    let mut was = *health.borrow_and_update();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = health.changed() => if changed.is_err() { return },
        }
        let now = *health.borrow_and_update();
        if was != Health::Well && now == Health::Well {
            match inlet.resume().await {
                Ok(count) => tracing::info!(count, "messages that had to wait were taken up"),
                Err(error) => tracing::warn!(%error, "messages that had to wait cannot be read"),
            }
        }
        was = now;
    }
}

/// Forgets answers that nobody will ask for again.
async fn expire(store: Store, ttl_hours: u64, stop: CancellationToken) {
    let mut every = tokio::time::interval(Duration::from_millis(EXPIRE_MS));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = every.tick() => {}
        }
        let before_ms = now_ms().saturating_sub(ttl_hours.saturating_mul(3_600_000));
        match store.expire_answers(before_ms, EXPIRE_ROWS).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "old answers forgotten"),
            Err(error) => tracing::warn!(%error, "old answers cannot be forgotten"),
        }
    }
}

async fn supervisor_is_up(supervisor: &Supervisor) {
    let mut status = supervisor.status();
    // The sender lives as long as the handle: it cannot be gone here.
    let _ = status.wait_for(|status| matches!(status, LinkStatus::Up { .. })).await;
}

const fn durability(config: &Config) -> Durability {
    match config.acp.control_plane.durability {
        config::Durability::Full => Durability::Full,
        config::Durability::Normal => Durability::Normal,
    }
}

fn policy(config: &Config, instance_id: acp_shared::ids::GatewayInstanceId) -> Policy {
    Policy {
        enabled: config.acp.enabled,
        dispatch_enabled: config.acp.dispatch.enabled,
        backend: config.acp.backend.clone(),
        sessions_max: config.acp.max_concurrent_sessions,
        instance_id,
    }
}

fn limits(config: &Config) -> Limits {
    let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Limits {
        queue_runs_max: count(config.limits.queue_runs_max),
        prompt_bytes_max: count(config.limits.prompt_bytes_max),
        line_bytes_max: LINE_BYTES_MAX,
        cancel_ms: config.limits.cancel_stuck_ms,
        close_wait_ms: CLOSE_WAIT_MS,
        silent_ms: config.limits.turn_silent_ms,
        probe_ms: PROBE_MS,
        alive_ms: ALIVE_MS,
        permission_ms: config.permission.timeout_ms,
    }
}

fn api_limits(config: &Config) -> ApiLimits {
    let default = ApiLimits::default();
    let body = usize::try_from(config.limits.prompt_bytes_max).unwrap_or(usize::MAX);
    ApiLimits {
        // JSON may need six bytes for one of the prompt.
        body_bytes_max: body.saturating_mul(6).saturating_add(64 * 1024),
        connections_max: usize::try_from(config.limits.connections_max).unwrap_or(default.connections_max),
        ..default
    }
}

fn cannot_listen(at: std::net::SocketAddr, error: &std::io::Error) -> Failure {
    let text = format!("Cannot answer scrapes at {at} (metrics.listen): {error}");
    Failure::new(Code::Runtime, text).origin("gateway")
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Code::Runtime, format!("Cannot {what} {}: {error}", path.display())).origin("gateway")
}

/// The signals that end a service.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// From now on they no longer end the process by themselves. `hangup`: SIGHUP is one of them.
    ///
    /// # Errors
    /// The system does not let us listen.
    pub(crate) fn listen(hangup: bool) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Code::Runtime, format!("Cannot listen for signals: {error}")).origin("gateway")
            })
        };
        let hangup = if hangup { Some(listen(SignalKind::hangup())?) } else { None };
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hangup })
    }

    /// Whether one has come already.
    pub(crate) fn came(&mut self) -> bool {
        self.next().now_or_never().is_some()
    }

    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = hangup => {}
        }
    }
}
