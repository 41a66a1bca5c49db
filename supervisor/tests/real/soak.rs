//! Three gateways use one supervisor in every way for a while, in random order: agents are spawned, used, closed and
//! crashed, wrappers are killed, gateways go and come back, the supervisor is killed and started again. All along
//! nothing is orphaned, no stranger dies, the table of leases says what runs, and a supervisor at rest is as small
//! as it was.
//!

//! `ACP_SOAK_SECONDS` says how long (20 by default, 600 in `make nightly`); `ACP_SOAK_SEED` repeats the order.

mod fleet;
mod watch;

use crate::common::{Host, eventually, kill, say};
use acp_shared::protocol::LeaseState;
use fleet::{End, Fleet, Gateway};
use rustix::process::Signal;
use std::time::{Duration, Instant};
pub(crate) use watch::Size;
use watch::{Watch, marked_of};

const SECONDS: u64 = 20;
/// Duration from which every kind of action must have happened, in seconds.
const LONG_SECONDS: u64 = 60;
/// So many agents are the least of ten minutes; a shorter run has its share of it.
const AGENTS_IN_TEN_MINUTES: u64 = 500;
const GATEWAYS: usize = 3;
/// Steps from one rest to the next.
const STEPS: u64 = 60;
/// Few ended leases are kept, so that the table is as large at the end as soon after the beginning; crashes are
/// meant here.
const CONFIG: &str = "reap_term_ms = 300\nended_per_gateway_max = 100\ncrash_backoff_ms = 0\ncrashes_max = 0\nreap_every_ms = 1000";

/// Random numbers that can be had again (splitmix64).
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
        say(&format!("ACP_SOAK_SEED={seed}"));
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Some place in a list of `len`, if it has any.
    pub(crate) fn place(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| usize::try_from(self.below(len as u64)).unwrap())
    }
}

/// How often each thing happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) agents: u64,
    pub(crate) terminals: u64,
    pub(crate) inputs: u64,
    pub(crate) closed: u64,
    pub(crate) adapters_killed: u64,
    pub(crate) wrappers_killed: u64,
    pub(crate) gateways_gone: u64,
    pub(crate) supervisors_killed: u64,
    pub(crate) orphaned: u64,
    pub(crate) rests: u64,
}

struct Soak {
    host: Host,
    fleet: Fleet,
    // After the host, whose end would be read as the death of a stranger; it kills what is left.
    watch: Watch,
    random: Random,
    /// The supervisor at its first rest, when it had nothing to do yet.
    first: Option<Size>,
    /// At the first rest of its life at which it had been used.
    warm: Option<Size>,
}

#[tokio::test]
async fn heavy_soak_of_three_gateways() {
    let seconds = std::env::var("ACP_SOAK_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let began = Instant::now();
    let mut host = Host::idle(CONFIG);
    start(&mut host);
    let gateways: Vec<Gateway> = (0..GATEWAYS).map(|_| Gateway::new(host.gateway())).collect();
    let watch = Watch::new(gateways.iter().map(|gateway| gateway.identity.id).collect());
    let fleet = Fleet { gateways, tally: Tally::default() };
    let mut soak = Soak { host, fleet, watch, random: Random::new(), first: None, warm: None };
    soak.rest().await;
    while began.elapsed() < time {
        // The last third is one life: whatever grows has the time to.
        let may_die = began.elapsed() < time * 2 / 3;
        let dies_at = soak.random.below(STEPS * 2);
        for step in 0..STEPS {
            soak.step().await;
            if step == dies_at && may_die {
                soak.supervisor_dies().await;
            }
        }
        soak.rest().await;
    }
    soak.finish(seconds);
}

/// Wrappers that are killed are what it warns of.
fn start(host: &mut Host) {
    let mut command = host.command();
    command.env("RUST_LOG", "error");
    host.start_as(command);
}

impl Soak {
    async fn step(&mut self) {
        let at = self.random.place(GATEWAYS).unwrap();
        self.fleet.step(at, &mut self.random).await;
        if let Some(lease) = self.fleet.gateways[at].some_lease(&mut self.random) {
            self.watch.disguise(lease);
        }
        self.watch.look(&self.fleet);
    }

    /// Everybody is back, every agent is closed: nothing runs, and the supervisor is as it was.
    async fn rest(&mut self) {
        for gateway in &mut self.fleet.gateways {
            gateway.come_back().await;
            gateway.close_all().await;
            gateway.settle().await;
        }
        self.watch.look_now(&self.fleet);
        assert_eq!(self.watch.of_ours(), [0; 0], "a process outlives every lease");
        let table = self.host.json(&["leases", "list"]);
        let ended = |state: &str| state == "closed" || state == "lost";
        for lease in table.as_array().unwrap() {
            assert!(ended(lease["state"].as_str().unwrap()), "{lease}");
        }
        self.fleet.tally.rests += 1;
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
        assert!(now.rss_kib <= warm.rss_kib + Size::RSS_KIB_MORE_MAX, "it grows: {warm:?}, then {now:?}");
        say(&format!("at rest: {now:?}, {:?}", self.fleet.tally));
    }

    /// SIGKILL in the middle of things: some spawns are on their way, some wrappers are stopped, so that their trees
    /// wait for the next supervisor, and some of these wrappers die too.
    async fn supervisor_dies(&mut self) {
        self.fleet.spawns_on_their_way(&mut self.random).await;
        let mut stopped = Vec::new();
        for wrapper in self.fleet.wrappers() {
            if self.random.below(2) == 0 {
                kill(wrapper, Signal::STOP);
                stopped.push(wrapper);
            }
        }
        self.fleet.tally.orphaned += stopped.len() as u64;
        self.host.crash();
        for wrapper in stopped {
            if self.random.below(3) == 0 {
                kill(wrapper, Signal::KILL);
            }
        }
        let known = self.fleet.supervisor_died();
        start(&mut self.host);
        for lease in &known {
            assert_eq!(marked_of(&self.watch.ours(), *lease), [0; 0], "an orphan outlives the start");
        }
        eventually("nothing of the earlier supervisor runs", || self.watch.of_ours().is_empty());
        for gateway in &mut self.fleet.gateways {
            if gateway.was_there {
                gateway.come_back().await;
            }
        }
        (self.first, self.warm) = (None, None);
        self.rest().await;
    }

    fn finish(mut self, seconds: u64) {
        let tally = &self.fleet.tally;
        say(&format!(
            "{tally:?}, {} looks at every process, {:?}",
            self.watch.looks,
            Size::of(self.host.pid())
        ));
        assert!(tally.agents >= AGENTS_IN_TEN_MINUTES * seconds / 600, "{tally:?}");
        if seconds >= LONG_SECONDS {
            let each = [
                tally.inputs,
                tally.closed,
                tally.adapters_killed,
                tally.wrappers_killed,
                tally.gateways_gone,
                tally.supervisors_killed,
                tally.orphaned,
                tally.terminals,
            ];
            assert!(each.iter().all(|count| *count > 0), "{tally:?}");
        }
        self.watch.strangers_live();
    }
}

impl End {
    /// Whether a lease that ended in this state ended as it should.
    fn allows(self, state: LeaseState) -> bool {
        match self {
            Self::Closed => state == LeaseState::Closed,
            Self::Lost => state == LeaseState::Lost,
            Self::Either => state.is_ended(),
        }
    }
}
