//! Hosts: machines with a supervisor for agents, including this machine.

use crate::config::LiveConfig;
use crate::runtime::profiles::Profiles;
use crate::supervisor::{SupervisorClient, SupervisorStatus};
use acp_core::config::remote::LOCAL;
use acp_core::failure::Failure;
use acp_core::placement::{self, HostCandidate};
use acp_core::runtime::Registry;
use acp_core::runtime::direct::DirectRuntime;
use acp_shared::figures::{self, Figure};
use acp_shared::ids::AgentName;
use acp_shared::protocol::{Reply, Request};
use acp_store::Store;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval between two readings of a host's figures.
const FIGURES_EVERY: Duration = Duration::from_secs(5);

/// A host with its client, agents and backends. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Host {
    /// Name; [`LOCAL`] for this machine.
    pub(crate) name: Arc<str>,
    /// Address of its supervisor, for people.
    pub(crate) address: Arc<str>,
    /// Client of its supervisor.
    pub(crate) supervisor: SupervisorClient,
    /// Agents, as they are started there.
    pub(crate) profiles: Arc<dyn Profiles>,
    /// Runtime backends that can be used there.
    pub(crate) registry: Arc<Registry>,
}

impl Host {
    /// Creates a host whose agents speak ACP with the gateway directly.
    pub(crate) fn new(
        name: &str,
        address: String,
        supervisor: SupervisorClient,
        profiles: Arc<dyn Profiles>,
    ) -> Self {
        let registry = Arc::new(Registry::default());
        let starter = supervisor.clone();
        registry.register(Arc::new(DirectRuntime::new(move || starter.outage())));
        Self { name: name.into(), address: address.into(), supervisor, profiles, registry }
    }
}

/// Figures from the last answer of a host.
#[derive(Debug, Clone, Copy, Default)]
struct HostFigures {
    agents: u64,
    memory_bytes: u64,
    /// Time without a connection after which the agents of this gateway have ended; `None` if the host never answered.
    agents_end: Option<Duration>,
    /// Connection of the answer.
    connection: u64,
}

impl HostFigures {
    fn of(all: &[Figure], connection: u64) -> Self {
        let value = |name: &str| all.iter().find(|it| it.name == name).map(|it| it.value);
        Self {
            agents: value(figures::LIVING).unwrap_or(0),
            memory_bytes: value(figures::MEMORY).unwrap_or(0),
            agents_end: value(figures::DETACHED_GRACE).map(Duration::from_secs),
            connection,
        }
    }
}

struct Entry {
    host: Host,
    figures: Mutex<HostFigures>,
    /// Connection and time of the last report that is in the database.
    recorded: Mutex<Option<(u64, Duration)>>,
}

impl Entry {
    /// Reads the figures again and again, at once after each connection. Their report is recorded in the store, if there is one.
    async fn read_all_figures(&self, store: Option<&Store>) {
        let mut status = self.host.supervisor.status();
        loop {
            self.read_figures().await;
            if let Some(store) = store {
                self.record(store).await;
            }
            // The sender lives as long as the client.
            drop(tokio::time::timeout(FIGURES_EVERY, status.changed()).await);
        }
    }

    /// Records the end of agents that the host reported, for a later process.
    async fn record(&self, store: &Store) {
        let HostFigures { agents_end, connection, .. } = *self.figures.lock();
        let report = agents_end.map(|agents_end| (connection, agents_end));
        let Some((_, agents_end)) = report.filter(|_| *self.recorded.lock() != report) else { return };
        if connection == 0 {
            return;
        }
        match store.record_host_report(&self.host.name, connection, agents_end).await {
            Ok(()) => *self.recorded.lock() = report,
            Err(error) => tracing::warn!(host = %self.host.name, %error, "report of a host not recorded"),
        }
    }

    async fn read_figures(&self) {
        let supervisor = &self.host.supervisor;
        let connection = supervisor.connections();
        if !supervisor.has_feature(figures::FEATURE) {
            return;
        }
        let asked = tokio::time::timeout(FIGURES_EVERY, supervisor.call(Request::Figures));
        if let Ok(Ok(Reply::Figures(found))) = asked.await {
            *self.figures.lock() = HostFigures::of(&found, connection);
        }
    }
}

/// All hosts of the configuration.
pub(crate) struct Hosts {
    live: LiveConfig,
    /// Host for requests without one.
    first: Entry,
    others: Vec<Entry>,
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|host| &host.name)).finish()
    }
}

impl Hosts {
    /// Creates the list of hosts. `first` is the host for requests without one: this machine, if its supervisor is used.
    pub(crate) fn new(live: LiveConfig, first: Host, others: Vec<Host>) -> Self {
        let entry = |host| Entry { host, figures: Mutex::default(), recorded: Mutex::default() };
        Self { live, first: entry(first), others: others.into_iter().map(entry).collect() }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns all hosts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Host> {
        self.entries().map(|entry| &entry.host)
    }

    /// Returns the first host: this machine, if its supervisor is used.
    pub(crate) const fn first(&self) -> &Host {
        &self.first.host
    }

    /// Returns the host for requests without one: this machine, or without its supervisor the first host that is connected.
    pub(crate) fn default_host(&self) -> &Host {
        let is_local = *self.first.host.name == *LOCAL;
        let connected = || self.iter().find(|host| host.supervisor.outage().is_none());
        if is_local { None } else { connected() }.unwrap_or(&self.first.host)
    }

    /// Waits until agents can be started: on this machine, or without its supervisor on any host.
    pub(crate) async fn wait_until_up(&self) {
        let is_up = |host: &Host| {
            let mut status = host.supervisor.status();
            // The sender lives as long as the client.
            async move { drop(status.wait_for(SupervisorStatus::is_up).await) }
        };
        if *self.first.host.name == *LOCAL {
            return is_up(&self.first.host).await;
        }
        let mut waits: FuturesUnordered<_> = self.iter().map(is_up).collect();
        waits.next().await;
    }

    /// Returns the host with this name. Sessions on a host that is no longer configured wait for it, and can be closed.
    pub(crate) fn get(&self, name: &str) -> Host {
        if let Some(host) = self.iter().find(|host| &*host.name == name) {
            return host.clone();
        }
        let why = match name {
            LOCAL => "supervisor.enabled = false, and the session is on this machine".to_owned(),
            name => format!("the configuration has no [remote.hosts.{name}]"),
        };
        // Its backends are needed to read the saved state of an agent.
        Host {
            name: name.into(),
            address: "".into(),
            supervisor: SupervisorClient::unreachable(why),
            ..self.first.host.clone()
        }
    }

    /// Chooses the host for a new session.
    ///
    /// # Errors
    /// As [`placement::place`].
    pub(crate) fn place(&self, requested: Option<&str>, agent: &AgentName) -> Result<Host, Failure> {
        let candidates = self.candidates();
        let chosen = placement::place(&candidates, requested, &self.labels_of(agent))?;
        self.count_agent(&chosen.name);
        Ok(self.get(&chosen.name))
    }

    /// Counts an agent on a host until the next reading, so that spawns at the same time do not all choose the same host.
    fn count_agent(&self, name: &str) {
        if let Some(entry) = self.entries().find(|entry| *entry.host.name == *name) {
            let mut figures = entry.figures.lock();
            figures.agents = figures.agents.saturating_add(1);
        }
    }

    fn labels_of(&self, agent: &AgentName) -> Vec<String> {
        self.live.now().config.agents.get(agent).map(|agent| agent.host_labels.clone()).unwrap_or_default()
    }

    /// Checks that a session of this agent may be moved to a host.
    ///
    /// # Errors
    /// `USAGE`.
    pub(crate) fn check(&self, name: &str, agent: &AgentName) -> Result<(), Failure> {
        placement::place(&self.candidates(), Some(name), &self.labels_of(agent)).map(drop)
    }

    fn candidate(&self, entry: &Entry) -> HostCandidate {
        let config = &self.live.at_start().remote.hosts;
        let HostFigures { agents, memory_bytes, .. } = *entry.figures.lock();
        HostCandidate {
            name: entry.host.name.to_string(),
            labels: config.get(&*entry.host.name).map(|host| host.labels.clone()).unwrap_or_default(),
            outage: entry.host.supervisor.outage(),
            agents,
            memory_bytes,
        }
    }

    /// Restores the hosts' reports to an earlier process. Each is valid until the first connection to its host.
    pub(crate) fn restore_reports(&self, reports: &BTreeMap<String, Duration>) {
        for entry in self.entries() {
            let mut figures = entry.figures.lock();
            if figures.connection == 0 {
                figures.agents_end = reports.get(&*entry.host.name).copied();
            }
        }
    }

    /// True if `remote.shared_roots` is set.
    pub(crate) fn shares_directories(&self) -> bool {
        !self.live.at_start().remote.shared_roots.is_empty()
    }

    /// True for directories that all hosts share.
    pub(crate) fn are_shared(&self, directories: &[PathBuf]) -> bool {
        let roots = &self.live.at_start().remote.shared_roots;
        directories.iter().all(|directory| placement::is_shared(directory, roots))
    }

    /// Returns the remote hosts that are disconnected and whose agents have all ended, unless no other remote host is connected.
    pub(crate) fn lost(&self) -> Vec<String> {
        let remote = || self.iter().filter(|host| *host.name != *LOCAL);
        if remote().all(|host| host.supervisor.outage().is_some()) {
            return Vec::new();
        }
        let names = remote().map(|host| host.name.to_string());
        names.filter(|name| self.agents_end_in(name, Duration::ZERO) == Some(Duration::ZERO)).collect()
    }

    /// Chooses the host at which a session of this agent and backend continues without the host `lost`.
    pub(crate) fn place_elsewhere(&self, lost: &str, agent: &AgentName, backend: &str) -> Option<String> {
        let usable = self.entries().filter(|entry| entry.host.registry.get(backend).is_some());
        let candidates: Vec<HostCandidate> = usable.map(|entry| self.candidate(entry)).collect();
        let chosen = placement::place_elsewhere(&candidates, lost, &self.labels_of(agent))?;
        self.count_agent(&chosen.name);
        Some(chosen.name.clone())
    }

    /// Returns the time after which a host that is away has ended all agents of this gateway: it ends them when it has had no
    /// connection of the gateway for the time that it reported. Zero once that time is over, and for a host that is no longer
    /// configured, which the operator has ended; `None` for a host that is connected, and for one that did not report that time
    /// on its last connection. Before the first connection, the report to an earlier process counts, from the start on. `graces` are
    /// those of an agent that may be newer than the report.
    pub(crate) fn agents_end_in(&self, name: &str, graces: Duration) -> Option<Duration> {
        let Some(entry) = self.entries().find(|entry| *entry.host.name == *name) else {
            return Some(Duration::ZERO);
        };
        let away = entry.host.supervisor.away_for()?;
        let HostFigures { agents_end, connection, .. } = *entry.figures.lock();
        let is_newest = connection == entry.host.supervisor.connections();
        agents_end.filter(|_| is_newest).map(|reported| placement::agents_end_in(reported, graces, away))
    }

    /// Returns all hosts as candidates.
    pub(crate) fn candidates(&self) -> Vec<HostCandidate> {
        self.entries().map(|entry| self.candidate(entry)).collect()
    }

    /// Reads the figures of all hosts again and again, until `stop`. With one host there is nothing to choose.
    pub(crate) async fn read_figures(self: Arc<Self>, store: Store, stop: CancellationToken) {
        if self.others.is_empty() && *self.first.host.name == *LOCAL {
            return;
        }
        let remote = &self.live.at_start().remote;
        let all = self.entries().map(|entry| {
            let store = Some(&store).filter(|_| remote.keeps_reports(&entry.host.name));
            entry.read_all_figures(store)
        });
        tokio::select! {
            () = stop.cancelled() => {}
            _ = join_all(all) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::simulated::SimSupervisorConnection;
    use crate::tests::host_of;
    use acp_core::config::load::LoadedConfig;

    /// The report of an earlier connection proves nothing: the host may have another configuration since.
    #[tokio::test]
    async fn end_of_agents_is_known_from_the_last_connection_only() {
        let (supervisor, mut wire) = SimSupervisorConnection::new();
        let host = Host { name: "big1".into(), ..host_of(supervisor) };
        let hosts = Hosts::new(LiveConfig::new(LoadedConfig::default()), host, Vec::new());
        let report = |connection| {
            let reported = [Figure::new(figures::DETACHED_GRACE, 900)];
            *hosts.first.figures.lock() = HostFigures::of(&reported, connection);
        };
        assert_eq!(hosts.agents_end_in("big1", Duration::ZERO), None, "never connected");
        hosts.restore_reports(&BTreeMap::from([("big1".to_owned(), Duration::from_secs(900))]));
        let recalled = hosts.agents_end_in("big1", Duration::ZERO);
        assert!(recalled.is_some_and(|left| left > Duration::from_secs(1_000)), "{recalled:?}");
        assert!(hosts.lost().is_empty(), "the time since the start is not over");
        wire.up("s");
        report(1);
        assert_eq!(hosts.agents_end_in("big1", Duration::ZERO), None, "connected");
        wire.down();
        let left = hosts.agents_end_in("big1", Duration::ZERO);
        assert!(left.is_some_and(|left| left > Duration::from_secs(1_000)), "{left:?}");
        wire.up("s");
        wire.down();
        assert_eq!(hosts.agents_end_in("big1", Duration::ZERO), None, "not reported on the last connection");
        report(2);
        assert!(hosts.agents_end_in("big1", Duration::ZERO).is_some());
        assert_eq!(hosts.agents_end_in("big2", Duration::ZERO), Some(Duration::ZERO), "not configured");
    }
}
