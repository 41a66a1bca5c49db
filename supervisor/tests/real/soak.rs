//! Soak test: three gateways use one supervisor in random order. Agents are spawned, used, closed and killed, wrappers
//! are killed, gateways reconnect, the supervisor is killed and restarted. Throughout, no process is orphaned, no
//! foreign process dies, the table of leases is correct, and the idle supervisor does not grow.
//!
//! `ACP_SOAK_SECONDS`: duration (default 20; 600 in `make nightly`). `ACP_SOAK_SEED`: repeats an order.

mod gateways;
mod monitor;

use crate::common::{Host, eventually, kill, report};
use acp_shared::protocol::LeaseState;
use gateways::{ExpectedEnd, Gateway, GatewayGroup};
pub(crate) use monitor::Size;
use monitor::{Monitor, pids_of_lease};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const SECONDS: u64 = 20;
/// Duration from which every kind of action must have happened, in seconds.
const LONG_SECONDS: u64 = 60;
/// Minimum number of agents in ten minutes; shorter runs need their share.
const AGENTS_IN_TEN_MINUTES: u64 = 500;
const GATEWAYS: usize = 3;
/// Steps between two checks at rest.
const STEPS: u64 = 60;
/// Keeps few ended leases, so that the table stops growing early, and sets no crash limits.
const CONFIG: &str = "reap_term_ms = 300\nended_per_gateway_max = 100\ncrash_backoff_ms = 0\ncrashes_max = 0\nreap_every_ms = 1000";

/// Repeatable random numbers (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = match std::env::var("ACP_SOAK_SEED") {
            Ok(text) => text.parse().unwrap(),
            Err(_) => acp_shared::ids::LeaseId::mint()
                .to_string()
                .bytes()
                .fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte))),
        };
        report(&format!("ACP_SOAK_SEED={seed}"));
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Random index of a list of `len` items; `None` if empty.
    pub(crate) fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| usize::try_from(self.below(len as u64)).unwrap())
    }
}

/// Number of actions of each kind.
#[derive(Debug, Default)]
pub(crate) struct ActionCounts {
    pub(crate) agents: u64,
    pub(crate) terminals: u64,
    pub(crate) inputs: u64,
    pub(crate) closed: u64,
    pub(crate) adapters_killed: u64,
    pub(crate) wrappers_killed: u64,
    pub(crate) disconnects: u64,
    pub(crate) supervisors_killed: u64,
    pub(crate) wrappers_stopped: u64,
    pub(crate) checks: u64,
}

struct Soak {
    host: Host,
    group: GatewayGroup,
    // Dropped after the host, whose end kills agents; kills remaining processes.
    monitor: Monitor,
    random: Random,
    /// Size of the supervisor at its first check, before any use.
    first: Option<Size>,
    /// Size at the first check after use.
    warm: Option<Size>,
}

#[tokio::test]
async fn heavy_soak_leaves_no_orphans_and_no_leaks() {
    let seconds = std::env::var("ACP_SOAK_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let began = Instant::now();
    let mut host = Host::prepare(CONFIG);
    start(&mut host);
    let gateways: Vec<Gateway> = (0..GATEWAYS).map(|_| Gateway::new(host.gateway())).collect();
    let monitor = Monitor::new(gateways.iter().map(|gateway| gateway.identity.id).collect());
    let group = GatewayGroup { gateways, counts: ActionCounts::default() };
    let mut soak = Soak { host, group, monitor, random: Random::new(), first: None, warm: None };
    soak.check_at_rest().await;
    while began.elapsed() < time {
        // No kill in the last third, so that leaks can grow.
        let may_die = began.elapsed() < time * 2 / 3;
        let dies_at = soak.random.below(STEPS * 2);
        for step in 0..STEPS {
            soak.step().await;
            if step == dies_at && may_die {
                soak.kill_supervisor().await;
            }
        }
        soak.check_at_rest().await;
    }
    soak.finish(seconds);
}

/// Logs errors only, since killed wrappers cause warnings.
fn start(host: &mut Host) {
    let mut command = host.command();
    command.env("RUST_LOG", "error");
    host.start_as(command);
}

impl Soak {
    async fn step(&mut self) {
        let at = self.random.index(GATEWAYS).unwrap();
        self.group.step(at, &mut self.random).await;
        if let Some(lease) = self.group.gateways[at].any_lease(&mut self.random) {
            self.monitor.add_disguised(lease);
        }
        self.monitor.check_periodically(&self.group);
    }

    /// Connects all gateways, closes all agents, and compares the supervisor with its earlier size.
    async fn check_at_rest(&mut self) {
        for gateway in &mut self.group.gateways {
            gateway.reconnect().await;
            gateway.close_all().await;
            gateway.await_endings().await;
        }
        self.monitor.check_now(&self.group);
        assert_eq!(self.monitor.own_pids(), [0; 0], "process without a lease");
        let table = self.host.json(&["leases", "list"]);
        let ended = |state: &str| state == "closed" || state == "lost";
        for lease in table.as_array().unwrap() {
            assert!(ended(lease["state"].as_str().unwrap()), "{lease}");
        }
        self.group.counts.checks += 1;
        self.compare();
    }

    fn compare(&mut self) {
        let pid = self.host.pid();
        let Some(first) = self.first else {
            self.first = Some(Size::of(pid));
            return;
        };
        eventually(&format!("no more descriptors than {first:?}"), || Size::of(pid).fds <= first.fds + 2);
        let now = Size::of(pid);
        let warm = *self.warm.get_or_insert(now);
        assert!(now.rss_kib <= warm.rss_kib + Size::RSS_KIB_MORE_MAX, "grows: {warm:?}, then {now:?}");
        report(&format!("at rest: {now:?}, {:?}", self.group.counts));
    }

    /// Kills the supervisor during spawns, with some wrappers stopped, so that their trees remain for the next
    /// supervisor, and kills some of these wrappers.
    async fn kill_supervisor(&mut self) {
        self.group.send_spawns(&mut self.random).await;
        let mut stopped = Vec::new();
        for wrapper in self.group.wrappers() {
            if self.random.below(2) == 0 {
                kill(wrapper, Signal::STOP);
                stopped.push(wrapper);
            }
        }
        self.group.counts.wrappers_stopped += stopped.len() as u64;
        self.host.crash();
        for wrapper in stopped {
            if self.random.below(3) == 0 {
                kill(wrapper, Signal::KILL);
            }
        }
        let known = self.group.mark_all_ended();
        start(&mut self.host);
        for lease in &known {
            assert_eq!(
                pids_of_lease(&self.monitor.own_processes(), *lease),
                [0; 0],
                "an orphan survived the start"
            );
        }
        eventually("nothing of the earlier supervisor runs", || self.monitor.own_pids().is_empty());
        for gateway in &mut self.group.gateways {
            if gateway.was_connected {
                gateway.reconnect().await;
            }
        }
        (self.first, self.warm) = (None, None);
        self.check_at_rest().await;
    }

    fn finish(mut self, seconds: u64) {
        let counts = &self.group.counts;
        report(&format!(
            "{counts:?}, {} checks of all processes, {:?}",
            self.monitor.checks,
            Size::of(self.host.pid())
        ));
        assert!(counts.agents >= AGENTS_IN_TEN_MINUTES * seconds / 600, "{counts:?}");
        if seconds >= LONG_SECONDS {
            let each = [
                counts.inputs,
                counts.closed,
                counts.adapters_killed,
                counts.wrappers_killed,
                counts.disconnects,
                counts.supervisors_killed,
                counts.wrappers_stopped,
                counts.terminals,
            ];
            assert!(each.iter().all(|count| *count > 0), "{counts:?}");
        }
        self.monitor.assert_foreign_alive();
    }
}

impl ExpectedEnd {
    /// True if a lease may end in this state.
    fn allows(self, state: LeaseState) -> bool {
        match self {
            Self::Closed => state == LeaseState::Closed,
            Self::Lost => state == LeaseState::Lost,
            Self::Either => state.is_ended(),
        }
    }
}
