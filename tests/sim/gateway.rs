//! One run of the gateway: all parts of the service, over simulated interfaces.

use crate::app;
use crate::app::service::GatewayService;
use crate::channel::{ChannelAdapter, Channels};
use crate::config::LiveConfig;
use crate::conversation::inbound::InboundService;
use crate::metrics::Metrics;
use crate::ops::retention;
use crate::runtime::agents::Agents;
use crate::runtime::hosts::{Host, Hosts};
use crate::runtime::lookup::{LookupRequest, LookupResults};
use crate::runtime::profiles::Profiles;
use crate::session::manager::Manager;
use crate::session::task::{ActorRequest, CommandQueues, Deps, FreshSession, LoadRetry, run};
use crate::sim::chat::SimChannel;
use crate::sim::store::SimWriter;
use crate::sim::supervisor::HOSTS;
use crate::sim::users::{PendingResponses, UserPort};
use crate::supervisor::SupervisorClient;
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_core::actor::{ActorLimits, AgentProfile};
use acp_core::config::load::{Inputs, LoadedConfig, load};
use acp_core::failure::Failure;
use acp_core::recovery;
use acp_core::retention::RetentionPolicy;
use acp_shared::clock::Clock;
use acp_shared::ids::AgentName;
use acp_store::Store;
use acp_store::retention::PruneRule;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::sync::CancellationToken;

/// Maximum length of a line of an agent, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 4_000;

/// Names of the hosts beside this machine.
pub(super) const OTHER_HOSTS: [&str; HOSTS - 1] = ["big1"];

/// Interval of the passes over the journal, and the age of rows that they prune, in milliseconds.
const PRUNE_INTERVAL_MS: u64 = 5_000;
const PRUNED_AGE_MS: u64 = 4_000;

/// Short timeouts, so that they expire within a simulation.
const CONFIG: &str = r#"
[acp]
default_agent = "demo"
[acp.runtime]
ttl_minutes = 4
[acp.control_plane.recovery]
eager_actors = 1
reconcile_running_after_ms = 20000
[session]
ttl_minutes = 9
[permission]
timeout_ms = 45000
[limits]
queue_runs_max = 6
turn_silent_ms = 30000
cancel_stuck_ms = 8000
"#;

pub(super) fn config() -> LoadedConfig {
    let inputs = Inputs { file: Some((Path::new("/sim.toml"), CONFIG)), ..Inputs::default() };
    load(inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// Interfaces of a gateway: its pending operations wait here until the scheduler executes them.
#[derive(Clone)]
pub(super) struct SimPorts {
    pub(super) pump: Arc<Mutex<SimWriter>>,
    /// Connection to the supervisor of the selected host.
    pub(super) wire: Arc<Mutex<SimSupervisorConnection>>,
    /// Connections to the supervisors of all hosts.
    wires: Vec<Arc<Mutex<SimSupervisorConnection>>>,
    pub(super) room: SimChannel,
    pub(super) answers: PendingResponses,
    pub(super) pause: Arc<IdleSignal>,
}

/// Tells the scheduler that the gateway is idle at this moment.
#[derive(Default)]
pub(super) struct IdleSignal {
    told: Notify,
    /// True while the scheduler waits for the gateway to become idle.
    settling: AtomicBool,
    /// True while the scheduler advances time until an operation is pending.
    sleeping: AtomicBool,
}

impl SimPorts {
    pub(super) fn new(pump: SimWriter, wire: SimSupervisorConnection, room: SimChannel) -> Self {
        Self::with_hosts(pump, vec![wire], room)
    }

    pub(super) fn with_hosts(pump: SimWriter, wires: Vec<SimSupervisorConnection>, room: SimChannel) -> Self {
        let wires: Vec<_> = wires.into_iter().map(|wire| Arc::new(Mutex::new(wire))).collect();
        Self {
            pump: Arc::new(Mutex::new(pump)),
            wire: Arc::clone(&wires[0]),
            wires,
            room,
            answers: Arc::default(),
            pause: Arc::default(),
        }
    }

    /// The same interfaces with the connection to this host selected.
    pub(super) fn on(&self, host: usize) -> Self {
        Self { wire: Arc::clone(self.wires.get(host).unwrap_or(&self.wire)), ..self.clone() }
    }

    /// True if an operation is pending at an interface.
    fn is_wanted(&self) -> bool {
        self.pump.lock().waiting().next().is_some()
            || self.wire.lock().has_requests()
            || self.room.is_called()
            || !self.answers.lock().is_empty()
    }

    /// Called when no task of the gateway can continue.
    pub(super) fn at_rest(&self) {
        let pause = &self.pause;
        let settled = pause.settling.swap(false, Ordering::SeqCst);
        if settled || (pause.sleeping.load(Ordering::SeqCst) && self.is_wanted()) {
            pause.told.notify_one();
        }
    }

    /// Lets the gateway run until it is idle.
    pub(super) async fn settle(&self) {
        self.pause.settling.store(true, Ordering::SeqCst);
        self.pause.told.notified().await;
    }

    /// Advances time until an operation is pending.
    pub(super) async fn sleep(&self, ms: u64) {
        self.pause.sleeping.store(true, Ordering::SeqCst);
        tokio::select! {
            biased;
            () = self.pause.told.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(ms)) => {}
        }
        self.pause.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Agents of the configuration, with a low limit of the line length.
struct ShortLines(Arc<Agents>);

impl Profiles for ShortLines {
    fn lookup(&self, agent: &AgentName, cwd: Option<&str>, directories: &[String]) -> LookupRequest {
        self.0.lookup(agent, cwd, directories)
    }

    fn configured(&self, agent: &AgentName) -> Result<AgentProfile, Failure> {
        self.0.configured(agent)
    }

    fn profile(&self, agent: &AgentName, found: &LookupResults) -> Result<AgentProfile, Failure> {
        self.0.profile(agent, found)
    }

    fn of_command(
        &self,
        agent: &AgentName,
        command: &[String],
        found: Option<&LookupResults>,
    ) -> Result<AgentProfile, Failure> {
        self.0.of_command(agent, command, found)
    }

    fn default_agent(&self) -> Result<AgentName, Failure> {
        self.0.default_agent()
    }

    fn cwd(&self, agent: &AgentName, asked: Option<&str>, found: &LookupResults) -> Result<String, Failure> {
        self.0.cwd(agent, asked, found)
    }

    fn directory(&self, agent: &AgentName, asked: &str, found: &LookupResults) -> Result<String, Failure> {
        self.0.directory(agent, asked, found)
    }

    fn limits(&self, agent: &AgentName) -> ActorLimits {
        ActorLimits { line_bytes_max: LINE_BYTES_MAX, ..Profiles::limits(self.0.as_ref(), agent) }
    }
}

/// Creates a single-threaded runtime with simulated time, for a gateway over `ports`, which are made inside of it. With
/// `tokio_unstable` its scheduling is seeded too.
///
/// # Errors
/// Errors of the runtime builder.
pub(super) fn runtime(ports: Arc<OnceLock<SimPorts>>, seed: u64) -> std::io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = seed;
    let at_rest = move || ports.get().into_iter().for_each(SimPorts::at_rest);
    builder.enable_time().start_paused(true).on_thread_park(at_rest).build()
}

/// A started gateway.
pub(super) struct SimGateway {
    pub(super) door: UserPort,
    pub(super) clock: Clock,
}

/// Builds the dependencies of actors.
fn deps(
    store: &Store,
    supervisors: &[SupervisorClient],
    config: &LoadedConfig,
    dir: &Path,
) -> (Deps, Arc<Agents>) {
    let live = LiveConfig::new(config.clone());
    let env = vec![("HOME".to_owned(), "/".to_owned())];
    let agents = Arc::new(Agents::new(live.clone(), env, Path::new("/bin/sh"), dir));
    let profiles = Arc::new(ShortLines(Arc::clone(&agents)));
    let deps = crate::tests::deps(store, supervisors[0].clone(), profiles);
    let host = |(name, supervisor): (&&str, &SupervisorClient)| Host {
        name: (*name).into(),
        supervisor: supervisor.clone(),
        ..deps.host.clone()
    };
    let others = OTHER_HOSTS.iter().zip(&supervisors[1..]).map(host).collect();
    let hosts = Arc::new(Hosts::new(live.clone(), deps.host.clone(), others));
    (Deps { live, hosts, ..deps }, agents)
}

/// Leaves actors of an earlier, superseded gateway behind: they claim the sessions that the next gateway
/// resumes at its start, and keep trying to write. A supervisor serves the newest gateway only, so they
/// cannot reach it; and one gateway never has two actors of one session (see `manager/mailbox.rs`). Returns
/// their senders.
pub(super) async fn leave_behind(
    store: &Store,
    config: &LoadedConfig,
    dir: &Path,
) -> Vec<Sender<ActorRequest>> {
    let Ok((found, _)) = store.found_sessions(0).await else { return Vec::new() };
    let (supervisor, _) = SimSupervisorConnection::new();
    let (deps, _) = deps(store, &[supervisor], config, dir);
    let start = |(key, _)| {
        let (mailbox, mailbox_receiver) = channel(1);
        let (urgent, urgent_receiver) = channel(1);
        let queues = CommandQueues { mailbox: mailbox_receiver, urgent: urgent_receiver };
        let deps = deps.clone();
        tokio::spawn(async move {
            run(deps, key, queues, LoadRetry::Once, FreshSession::default()).await;
            drop(urgent);
        });
        mailbox
    };
    recovery::recovery_plan(found, 0).now.into_iter().map(start).collect()
}

/// Prunes the journal often, since a simulation lasts minutes.
async fn prune(store: Store, metrics: Metrics, stop: CancellationToken) {
    loop {
        tokio::time::sleep(Duration::from_millis(PRUNE_INTERVAL_MS)).await;
        let before_ms = store.clock().wall_ms().saturating_sub(PRUNED_AGE_MS);
        let rule = PruneRule { policy: RetentionPolicy { before_ms, keep_turns: 1 }, webhooks: Vec::new() };
        if let Err(error) = retention::prune_once(&store, rule, &metrics, &stop).await {
            tracing::debug!(%error, "simulated pass of retention failed");
        }
    }
}

/// Starts everything, in the order of `app::serve`. Recovery uses the simulated interfaces too.
pub(super) fn start(
    store: &Store,
    ports: &SimPorts,
    supervisors: &[SupervisorClient],
    config: &LoadedConfig,
    dir: &Path,
) -> SimGateway {
    let (deps, agents) = deps(store, supervisors, config, dir);
    let Deps { hosts, live, metrics, stop, clock, .. } = deps.clone();
    let manager = Arc::new(Manager::new(deps, store.identity().instance_id));
    let room: Arc<dyn ChannelAdapter> = Arc::new(ports.room.clone());
    let channels = Channels::new([room]);
    let local = Arc::new(GatewayService {
        manager: Arc::clone(&manager),
        metrics: metrics.clone(),
        store: store.clone(),
        agents,
        hosts,
        channels: channels.clone(),
        durability: "full",
        live,
        listeners: Default::default(),
        file_reads: tokio::sync::Semaphore::new(1),
        started_at_ms: clock.now_ms(),
    });
    let inlet =
        InboundService::new(store.clone(), channels.clone(), Arc::clone(&local) as _, metrics.clone());
    tokio::spawn(prune(store.clone(), metrics, stop.clone()));
    let resumed = (Arc::clone(&manager), inlet.clone());
    tokio::spawn(async move {
        let (manager, first) = resumed;
        let begun = async {
            manager.resume().await.map_err(|error| error.to_string())?;
            first.bindings().reconcile().await.map_err(|error| error.to_string())?;
            first.resume().await.map_err(|error| error.to_string())
        };
        if let Err(error) = begun.await {
            tracing::warn!(%error, "simulated gateway did not start");
        }
        drop(app::spawn_background_tasks(&local, first, channels, clock, &stop));
    });
    let door = UserPort { inlet, manager, answers: Arc::clone(&ports.answers), fallback: None };
    SimGateway { door, clock }
}
