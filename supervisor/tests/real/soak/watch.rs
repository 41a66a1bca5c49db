//! What must hold at every moment, read from the processes of the machine.

use super::fleet::Fleet;
use crate::common::{eventually, runs};
use crate::crash::Decoy;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_testkit::processes::{Killed, all_pids, status_field};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at all processes.
const LOOK: Duration = Duration::from_millis(200);
/// How many strangers at a time say that they are of a lease of ours.
const DISGUISED_MAX: usize = 6;

/// A process that says whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) pid: i32,
    pub(crate) lease: String,
    gateway: String,
}

/// How large a supervisor is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) fds: usize,
    pub(crate) rss_kib: u64,
}

impl Size {
    /// What an allocator may keep, whatever was done in between.
    pub(crate) const RSS_KIB_MORE_MAX: u64 = 8 * 1024;

    pub(crate) fn of(pid: i32) -> Self {
        let rss_kib = status_field(pid, "VmRSS").unwrap().trim_end_matches(" kB").parse().unwrap();
        Self { fds: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), rss_kib }
    }
}

pub(crate) struct Watch {
    gateways: Vec<String>,
    /// Strangers that live to the end.
    lasting: Vec<Decoy>,
    /// One that looks like an agent in all but its marks.
    twin: Killed,
    /// Strangers that carry the id of a lease that there is.
    disguised: VecDeque<Decoy>,
    /// When all processes were last looked at.
    last: Instant,
    pub(crate) looks: u64,
}

impl Watch {
    pub(crate) fn new(gateways: Vec<GatewayInstanceId>) -> Self {
        let foreign = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
        let unknown = gateways.iter().map(|id| Decoy::new(LeaseId::mint(), *id));
        let lasting = unknown.chain([foreign]).collect();
        let twin = Killed(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let gateways = gateways.iter().map(ToString::to_string).collect();
        Self { gateways, lasting, twin, disguised: VecDeque::new(), last: Instant::now(), looks: 0 }
    }

    /// One more stranger, of another gateway, with the id of this lease.
    pub(crate) fn disguise(&mut self, lease: LeaseId) {
        if self.looks.is_multiple_of(7) || self.disguised.is_empty() {
            self.strangers_live();
            self.disguised.push_back(Decoy::new(lease, GatewayInstanceId::mint()));
            if self.disguised.len() > DISGUISED_MAX {
                self.disguised.pop_front();
            }
        }
    }

    /// Nobody has killed a stranger.
    pub(crate) fn strangers_live(&mut self) {
        for decoy in self.lasting.iter().chain(&self.disguised) {
            assert!(runs(decoy.pid()), "a foreign process was killed");
        }
        assert!(self.twin.try_wait().unwrap().is_none(), "a program like an agent's was killed");
    }

    /// Every process that says it is of one of our gateways, strangers left out.
    pub(crate) fn ours(&self) -> Vec<Marked> {
        let strangers: Vec<i32> = self.lasting.iter().chain(&self.disguised).map(Decoy::pid).collect();
        let marked = all_pids().into_iter().filter(|pid| !strangers.contains(pid)).filter_map(marks);
        marked.filter(|one| self.gateways.contains(&one.gateway) && runs(one.pid)).collect()
    }

    pub(crate) fn of_ours(&self) -> Vec<i32> {
        self.ours().iter().map(|one| one.pid).collect()
    }

    /// Looks if it was a while ago.
    pub(crate) fn look(&mut self, fleet: &Fleet) {
        if self.last.elapsed() > LOOK {
            self.look_now(fleet);
        }
    }

    /// Every process is of a lease that may have one; every living lease has its two.
    pub(crate) fn look_now(&mut self, fleet: &Fleet) {
        self.strangers_live();
        let ours = self.ours();
        let mut of: HashMap<&str, Vec<i32>> = HashMap::new();
        for one in &ours {
            of.entry(&one.lease).or_default().push(one.pid);
        }
        for (lease, wrapper, adapter) in fleet.living() {
            let pids = of.remove(lease.to_string().as_str()).unwrap_or_default();
            for pid in [wrapper, adapter] {
                assert!(runs(pid), "{lease} is open; {pids:?} run, but not {pid}");
                // The marks of a program that is being started cannot be read for a moment.
                let marked = || marks(pid).is_some_and(|one| one.lease == lease.to_string());
                eventually("its environment names its lease", || pids.contains(&pid) || marked());
            }
        }
        for (lease, pids) in of {
            assert!(fleet.may_have_processes(lease), "{pids:?} are of {lease}, which has ended");
        }
        self.looks += 1;
        self.last = Instant::now();
    }
}

/// The processes among these that are of this lease.
pub(crate) fn marked_of(ours: &[Marked], lease: LeaseId) -> Vec<i32> {
    let lease = lease.to_string();
    ours.iter().filter(|one| one.lease == lease).map(|one| one.pid).collect()
}

fn marks(pid: i32) -> Option<Marked> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let mut entries = environ.split(|byte| *byte == 0);
        entries.find_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix(name).map(str::to_owned))
    };
    Some(Marked {
        pid,
        lease: value("OPENCLAW_ACPX_LEASE_ID=")?,
        gateway: value("OPENCLAW_GATEWAY_INSTANCE_ID=")?,
    })
}

impl Drop for Watch {
    fn drop(&mut self) {
        // What a failed run leaves, stopped wrappers above all. Each is looked at again through its handle.
        for one in self.ours() {
            let Some(Ok(pidfd)) = Pid::from_raw(one.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
            else {
                continue;
            };
            if marks(one.pid) == Some(one) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
    }
}
