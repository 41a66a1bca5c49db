//! Invariants of all processes of the machine.

use super::gateways::GatewayGroup;
use crate::common::{eventually, is_alive};
use crate::crash::Decoy;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_testkit::processes::{KillOnDrop, all_pids, status_field};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Interval between two checks of all processes.
const INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of concurrent foreign processes that carry the id of one of the leases.
const DISGUISED_MAX: usize = 6;

/// A process with a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarkedProcess {
    pub(crate) pid: i32,
    pub(crate) lease: String,
    gateway: String,
}

/// Size of a supervisor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) fds: usize,
    pub(crate) rss_kib: u64,
}

impl Size {
    /// Memory that the allocator may keep.
    pub(crate) const RSS_KIB_MORE_MAX: u64 = 8 * 1024;

    pub(crate) fn of(pid: i32) -> Self {
        let rss_kib = status_field(pid, "VmRSS").unwrap().trim_end_matches(" kB").parse().unwrap();
        Self { fds: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), rss_kib }
    }
}

pub(crate) struct Monitor {
    gateways: Vec<String>,
    /// Foreign processes that live to the end.
    lasting: Vec<Decoy>,
    /// A process that resembles an agent, without a marker.
    look_alike: KillOnDrop,
    /// Foreign processes that carry the id of an existing lease.
    disguised: VecDeque<Decoy>,
    /// Time of the last check.
    last: Instant,
    pub(crate) checks: u64,
}

impl Monitor {
    pub(crate) fn new(gateways: Vec<GatewayInstanceId>) -> Self {
        let foreign = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
        let unknown = gateways.iter().map(|id| Decoy::new(LeaseId::mint(), *id));
        let lasting = unknown.chain([foreign]).collect();
        let look_alike =
            KillOnDrop(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let gateways = gateways.iter().map(ToString::to_string).collect();
        Self { gateways, lasting, look_alike, disguised: VecDeque::new(), last: Instant::now(), checks: 0 }
    }

    /// Starts a process of another gateway that carries the id of this lease.
    pub(crate) fn add_disguised(&mut self, lease: LeaseId) {
        if self.checks.is_multiple_of(7) || self.disguised.is_empty() {
            self.assert_foreign_alive();
            self.disguised.push_back(Decoy::new(lease, GatewayInstanceId::mint()));
            if self.disguised.len() > DISGUISED_MAX {
                self.disguised.pop_front();
            }
        }
    }

    /// Asserts that no foreign process was killed.
    pub(crate) fn assert_foreign_alive(&mut self) {
        for decoy in self.lasting.iter().chain(&self.disguised) {
            assert!(is_alive(decoy.pid()), "a foreign process was killed");
        }
        assert!(self.look_alike.try_wait().unwrap().is_none(), "a process like an agent was killed");
    }

    /// Processes that carry the marker of one of the gateways, without the foreign ones.
    pub(crate) fn own_processes(&self) -> Vec<MarkedProcess> {
        let foreign: Vec<i32> = self.lasting.iter().chain(&self.disguised).map(Decoy::pid).collect();
        let pids_of = all_pids().into_iter().filter(|pid| !foreign.contains(pid)).filter_map(marker_of);
        pids_of.filter(|one| self.gateways.contains(&one.gateway) && is_alive(one.pid)).collect()
    }

    pub(crate) fn own_pids(&self) -> Vec<i32> {
        self.own_processes().iter().map(|one| one.pid).collect()
    }

    /// Checks all processes if the last check is long ago.
    pub(crate) fn check_periodically(&mut self, group: &GatewayGroup) {
        if self.last.elapsed() > INTERVAL {
            self.check_now(group);
        }
    }

    /// Asserts that every process belongs to a lease, and every living lease has its two.
    pub(crate) fn check_now(&mut self, group: &GatewayGroup) {
        self.assert_foreign_alive();
        let own_processes = self.own_processes();
        let mut of: HashMap<&str, Vec<i32>> = HashMap::new();
        for one in &own_processes {
            of.entry(&one.lease).or_default().push(one.pid);
        }
        for (lease, wrapper, adapter) in group.living() {
            let pids = of.remove(lease.to_string().as_str()).unwrap_or_default();
            for pid in [wrapper, adapter] {
                assert!(is_alive(pid), "{lease} is open; {pids:?} run, but not {pid}");
                // During exec the environment cannot be read.
                let pids_of = || marker_of(pid).is_some_and(|one| one.lease == lease.to_string());
                eventually("the environment names the lease", || pids.contains(&pid) || pids_of());
            }
        }
        for (lease, pids) in of {
            assert!(group.may_have_processes(lease), "{pids:?} belong to the ended lease {lease}");
        }
        self.checks += 1;
        self.last = Instant::now();
    }
}

/// Pids of the processes of this lease.
pub(crate) fn pids_of_lease(own_processes: &[MarkedProcess], lease: LeaseId) -> Vec<i32> {
    let lease = lease.to_string();
    own_processes.iter().filter(|one| one.lease == lease).map(|one| one.pid).collect()
}

fn marker_of(pid: i32) -> Option<MarkedProcess> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let mut entries = environ.split(|byte| *byte == 0);
        entries.find_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix(name).map(str::to_owned))
    };
    Some(MarkedProcess {
        pid,
        lease: value("OPENCLAW_ACPX_LEASE_ID=")?,
        gateway: value("OPENCLAW_GATEWAY_INSTANCE_ID=")?,
    })
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Processes left by a failed run. Each is verified again through its pidfd.
        for one in self.own_processes() {
            let Some(Ok(pidfd)) = Pid::from_raw(one.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
            else {
                continue;
            };
            if marker_of(one.pid) == Some(one) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
    }
}
