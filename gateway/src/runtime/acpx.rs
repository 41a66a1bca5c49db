//! Backend `acpx`: its registration, and its health from look-ups of its programs where agents run. Versions are checked
//! when a session starts, by the bridge.

use crate::config::LiveConfig;
use crate::runtime::lookup::{LookupError, LookupRequest, look_up};
use crate::supervisor::SupervisorClient;
use acp_core::config::Config;
use acp_core::runtime::acpx::{AcpxRuntime, ID, INSTALL};
use acp_core::runtime::{BackendHealth, Registry, Runtime};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::private_home;
use acp_shared::service::wrapper_of;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// File name of the bridge, in the directory of the wrapper.
pub(crate) const BRIDGE_FILE: &str = "acp-acpx-bridge";
/// Program that runs npm's acpx.
const NODE: &str = "node";
/// Minimum time between two look-ups.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

/// True if the configuration names the backend for new sessions.
pub(crate) fn names_acpx(config: &Config) -> bool {
    let of_agents = config.agents.values().map(|agent| agent.backend.as_deref());
    let of_bindings = config.bindings.iter().map(|binding| binding.backend.as_deref());
    let is_named = config.acp.backend == ID || of_agents.chain(of_bindings).flatten().any(|name| name == ID);
    is_named && config.backends.acpx.enabled
}

/// Registers the backend and keeps its health up to date.
pub(crate) struct AcpxProbe {
    live: LiveConfig,
    supervisor: SupervisorClient,
    runtime: Arc<AcpxRuntime>,
    health: Arc<Mutex<BackendHealth>>,
    /// Notified by each check of the health while the backend is not usable: its programs may be installed now.
    asked: Arc<Notify>,
}

impl AcpxProbe {
    /// Creates the backend of the gateway `instance`; `exe` is the path of this program.
    pub(crate) fn new(
        live: LiveConfig,
        supervisor: SupervisorClient,
        exe: &Path,
        instance: GatewayInstanceId,
    ) -> Self {
        let bridge = wrapper_of(exe).with_file_name(BRIDGE_FILE).to_string_lossy().into_owned();
        let unknown = BackendHealth { ok: false, details: "acpx was not looked up yet".to_owned() };
        let health = Arc::new(Mutex::new(unknown));
        let asked = Arc::new(Notify::new());
        let (settings, starter, cached) = (live.clone(), supervisor.clone(), Arc::clone(&health));
        let (ask, creator) = (Arc::clone(&asked), supervisor.clone());
        let runtime = AcpxRuntime::new(
            bridge,
            move || settings.now().config.backends.acpx.clone(),
            move |key| {
                let below = private_home::below_home(&instance.to_string(), key.as_str());
                creator.has_feature(private_home::FEATURE).then(|| private_home::root(&below))
            },
            move || match starter.outage() {
                Some(why) => BackendHealth { ok: false, details: format!("no agent can be started: {why}") },
                None => {
                    let health = cached.lock().clone();
                    if !health.ok {
                        ask.notify_one();
                    }
                    health
                }
            },
        );
        Self { live, supervisor, runtime: Arc::new(runtime), health, asked }
    }

    /// Registers the backend, or removes it if the configuration disables it.
    pub(crate) fn register(&self, registry: &Registry) {
        if self.live.now().config.backends.acpx.enabled {
            registry.register(Arc::clone(&self.runtime) as _);
        } else {
            registry.unregister(ID);
        }
    }

    /// Looks the programs up at start, after each reload and reconnect, and when the health of an unusable backend is asked
    /// for, until `stop`.
    pub(crate) async fn run(self, registry: Arc<Registry>, stop: CancellationToken) {
        let (mut changes, mut status) = (self.live.changes(), self.supervisor.status());
        loop {
            self.register(&registry);
            if self.live.now().config.backends.acpx.enabled {
                self.look_up().await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
                changed = status.changed() => if changed.is_err() { return },
                () = async {
                    self.asked.notified().await;
                    tokio::time::sleep(LOOK_UP_PAUSE).await;
                } => {}
            }
        }
    }

    async fn look_up(&self) {
        let programs = self.runtime.programs();
        let lookup = LookupRequest {
            programs: programs.iter().cloned().chain([NODE.to_owned()]).collect(),
            search: std::env::var("PATH").unwrap_or_default(),
            ..LookupRequest::default()
        };
        let found = match look_up(&self.supervisor, &lookup).await {
            Ok(found) => found.programs,
            // The outage itself is reported while it lasts.
            Err(LookupError::Away) => return,
            Err(LookupError::Failed(failure)) => {
                *self.health.lock() = BackendHealth { ok: false, details: failure.message };
                return;
            }
        };
        let missing: Vec<&str> =
            programs.iter().filter(|name| !found.contains_key(*name)).map(String::as_str).collect();
        let health = if missing.is_empty() {
            let paths: Vec<&str> =
                programs.iter().filter_map(|name| found.get(name)).map(String::as_str).collect();
            // A configured program may be no script of Node, so this is a remark.
            let names_node = |path: &&str| Path::new(path).file_name().is_some_and(|name| name == NODE);
            let node = if found.contains_key(NODE) || paths.iter().any(names_node) {
                ""
            } else {
                "; no node in PATH: npm's acpx needs Node.js 22 or later"
            };
            BackendHealth { ok: true, details: format!("programs: {}{node}", paths.join(", ")) }
        } else {
            BackendHealth {
                ok: false,
                details: format!("{} is not installed. {INSTALL}", missing.join(" and ")),
            }
        };
        *self.health.lock() = health;
    }
}
