//! Containment levels (rungs): what each level requires from the host, which processes it contains and which
//! it cannot (H23). The level is chosen once, at start, and stored in each lease.
//!
//! R0, a pid namespace for each agent, is not implemented: it would change the agent's view of pids, `/proc`
//! and signals, and needs an init process in each namespace. An agent that wants a namespace can start
//! `unshare` or a container itself; on R1 the control group contains its namespace like everything else.

use crate::config::{Config, ContainmentSetting};
use crate::core::cgroup::{CgroupSubtree, LeaseCgroup};
use acp_shared::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// Availability of one control group per lease, and the obstacle if unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupSupport {
    /// Available: a test group was created, a process in it was killed, and the group was removed.
    Work,
    /// Not probed, because another level is configured.
    NotTried,
    /// No cgroup v2 file system is mounted.
    NotMounted,
    /// The parent group does not lie below the mount.
    OutOfSight,
    /// The configured group does not exist.
    Missing,
    /// No group can be created in the parent group.
    NotDelegated,
    /// The file system is mounted read-only.
    ReadOnly,
    /// The kernel is older than 5.14 and has no `cgroup.kill`.
    NoKill,
    /// A group was created, but a process in it could not be moved, killed or waited for.
    Broken,
}

impl CgroupSupport {
    /// Returns the obstacle and the remedy.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Work => "control groups work",
            Self::NotTried => "control groups were not probed, because another level is configured",
            Self::NotMounted => {
                "no cgroup v2 file system is mounted; mount one, or boot with the unified hierarchy"
            }
            Self::OutOfSight => {
                "the parent group for lease groups is outside of the mounted part of the cgroup tree; set \
                 cgroup_root to a group below the mount"
            }
            Self::Missing => "cgroup_root does not exist; create it and give it to the supervisor's user",
            Self::NotDelegated => {
                "no control group can be created there; run the supervisor as a unit with Delegate=yes, or \
                 give its user a group and set cgroup_root to it"
            }
            Self::ReadOnly => {
                "the cgroup file system is mounted read-only, as in most containers; mount it writable, with a cgroup namespace of its own"
            }
            Self::NoKill => "this kernel has no cgroup.kill; use Linux 5.14 or later",
            Self::Broken => {
                "a group can be created there, but a process cannot be moved into it and killed with it; \
                 start the supervisor inside of the delegated group"
            }
        }
    }
}

/// Kernel features, as probed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFeatures {
    /// Signals can be sent through handles (pidfds and `/proc` directories).
    pub signals: bool,
    /// `pidfd_open` works.
    pub pidfd: bool,
    /// pidfds have an inode that is unique until the next boot.
    pub pidfs_inode: bool,
    /// A process group can be signalled through its leader's pidfd.
    pub pidfd_group: bool,
    /// A socket message can carry a pidfd of its sender.
    pub scm_pidfd: bool,
    /// `/proc` lists processes.
    pub proc_list: bool,
    /// Orphans of a dead wrapper are reparented to the supervisor.
    pub subreaper: bool,
    /// Availability of control groups for leases.
    pub groups: CgroupSupport,
    /// Memory of a control group can be limited.
    pub limit_memory: bool,
    /// The number of processes of a control group can be limited.
    pub limit_pids: bool,
    /// A control group can have a CPU weight.
    pub limit_cpu: bool,
}

impl KernelFeatures {
    /// No features at all.
    pub const NONE: Self = Self {
        signals: false,
        pidfd: false,
        pidfs_inode: false,
        pidfd_group: false,
        scm_pidfd: false,
        proc_list: false,
        subreaper: false,
        groups: CgroupSupport::NotMounted,
        limit_memory: false,
        limit_pids: false,
        limit_cpu: false,
    };

    /// Lists the features by name, for reports.
    #[must_use]
    pub fn named(&self) -> Vec<(String, bool)> {
        [
            ("pidfd", self.pidfd),
            ("pidfs_inode", self.pidfs_inode),
            ("pidfd_group", self.pidfd_group),
            ("scm_pidfd", self.scm_pidfd),
            ("proc_list", self.proc_list),
            ("subreaper", self.subreaper),
            ("cgroup_kill", self.groups == CgroupSupport::Work),
            ("cgroup_memory", self.limit_memory),
            ("cgroup_pids", self.limit_pids),
            ("cgroup_cpu", self.limit_cpu),
        ]
        .map(|(name, has)| (name.to_owned(), has))
        .to_vec()
    }
}

acp_shared::named! {
    /// Containment level, best first, named as in leases and reports.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    pub enum ContainmentLevel {
        /// One control group per lease.
        R1 = "R1",
        /// A subreaper above each tree, and a tree walk with pidfds.
        R2 = "R2",
        /// Session and process group, and a tree walk with `/proc` directories.
        R3 = "R3",
        /// Nothing can be contained, so no agent is started.
        R4 = "R4",
    }
}

impl ContainmentLevel {
    /// Returns the containment mechanism, as text.
    #[must_use]
    pub const fn holds_by(self) -> &'static str {
        match self {
            Self::R1 => "a control group for each lease, ended by cgroup.kill",
            Self::R2 => "a subreaper above each tree, and a verified walk by pidfds",
            Self::R3 => "session and process group, and a verified walk by /proc directories",
            Self::R4 => "nothing: no agent is started",
        }
    }

    /// Returns the host requirements, as text.
    #[must_use]
    pub const fn needs(self) -> &'static str {
        match self {
            Self::R1 => "a writable part of the cgroup v2 tree, Linux 5.14, a readable /proc",
            Self::R2 => "pidfds (Linux 5.3; group signals and inodes 6.9), a readable /proc",
            Self::R3 => "a readable /proc",
            Self::R4 => "nothing",
        }
    }

    /// Returns which processes of a tree are found and ended, as text.
    #[must_use]
    pub const fn catches(self) -> &'static str {
        match self {
            Self::R1 => {
                "all descendants of the agent: in sessions of their own, with cleared environments, of other \
                 users, in nested pid namespaces or in frozen groups, and the processes that remain after \
                 wrapper and supervisor were both killed"
            }
            Self::R2 => {
                "all descendants of the agent while its wrapper or its supervisor lives, and later the \
                 processes that still carry the lease in their environment"
            }
            Self::R3 => {
                "the tree below the wrapper, and the processes that carry the lease in their environment"
            }
            Self::R4 => "nothing, because nothing is started",
        }
    }

    /// Returns which processes of a tree are missed, as text.
    #[must_use]
    pub const fn misses(self) -> &'static str {
        match self {
            Self::R1 => {
                "work handed to another service (systemd-run, docker, at, a tmux server), and processes that \
                 root, or a process of the supervisor's own user, moves out of the group while their \
                 environment is cleared"
            }
            Self::R2 => {
                "work handed to another service; processes of another user, unless the supervisor is root \
                 (they are named, and the lease stays closing); processes of a nested pid namespace that \
                 were reparented to its first process and carry no lease"
            }
            Self::R3 => "as R2, and processes that left the tree and cleared their environment",
            Self::R4 => "nothing",
        }
    }

    /// Returns the known gaps in the containment of this level, as text.
    #[must_use]
    pub const fn residue(self) -> &'static [&'static str] {
        const KERNEL: &str = "A process in uninterruptible sleep outlives SIGKILL until the kernel releases \
                              it: the lease stays closing, and its reason names the process.";
        const SETUID: &str = "An agent that is itself a set-user-id or file-capability program loses its parent-death signal: when its wrapper is killed, it runs until the supervisor has swept the tree.";
        const HIDDEN: &str = "Where /proc hides processes of other users (hidepid), a process that changed \
                              its user is found as the child of a visible one (Linux 6.13 or later); with an \
                              older kernel it is reported and its lease stays closing. After its wrapper was \
                              killed it is not found again.";
        const UNREAD: &str = "A process whose memory cannot be read without blocking, for example because \
                              its disk does not answer, is found as a descendant and not by its environment.";
        const BOTH: &str = "A process that cleared its environment and left the session is not found again \
                            once wrapper and supervisor were both killed.";
        match self {
            Self::R1 => &[
                KERNEL,
                SETUID,
                "Root, or a process of the supervisor's own user, can move a foreign process into the group \
                 of a lease; it is killed with the tree, unless it is the supervisor, an ancestor or the \
                 root of another lease and was in the group when the group was read.",
            ],
            Self::R2 => &[KERNEL, SETUID, BOTH, HIDDEN, UNREAD],
            Self::R3 => &[
                KERNEL,
                SETUID,
                BOTH,
                HIDDEN,
                UNREAD,
                "Without pidfds and their inodes a process is identified by pid, start time and environment: \
                 one that cannot be read is left alone, and its lease keeps its state.",
            ],
            Self::R4 => &[],
        }
    }
}

impl ContainmentSetting {
    /// Returns the level, if one is configured by name.
    #[must_use]
    pub const fn level(self) -> Option<ContainmentLevel> {
        match self {
            Self::Auto => None,
            Self::R1 => Some(ContainmentLevel::R1),
            Self::R2 => Some(ContainmentLevel::R2),
            Self::R3 => Some(ContainmentLevel::R3),
        }
    }
}

/// Error: the configured level is not available on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("rung = {:?} is configured but not available here: {why}; or set rung = \"auto\"", rung.as_str())]
pub struct ContainmentError {
    /// Configured level.
    pub rung: ContainmentLevel,
    /// Obstacle and remedy.
    pub why: &'static str,
}

/// Returns the obstacle to a level; `None` if the level is available.
fn unmet_requirement(rung: ContainmentLevel, abilities: &KernelFeatures) -> Option<&'static str> {
    const NO_LIST: &str = "/proc does not list processes; mount it";
    const NO_SIGNALS: &str =
        "pidfd_send_signal does not work; the kernel is older than 5.1, or a seccomp filter forbids it";
    match rung {
        ContainmentLevel::R1 | ContainmentLevel::R2 | ContainmentLevel::R3 if !abilities.signals => {
            Some(NO_SIGNALS)
        }
        ContainmentLevel::R1 if abilities.groups != CgroupSupport::Work => Some(abilities.groups.why()),
        ContainmentLevel::R1 | ContainmentLevel::R3 => (!abilities.proc_list).then_some(NO_LIST),
        ContainmentLevel::R2 if !abilities.pidfd => {
            Some("pidfd_open does not work; the kernel is older than 5.3, or a seccomp filter forbids it")
        }
        ContainmentLevel::R2 => (!abilities.proc_list).then_some(NO_LIST),
        ContainmentLevel::R4 => None,
    }
}

/// Chooses the containment level: the configured one, or the best available one. [`ContainmentLevel::R4`] is not an error
/// in automatic mode: the supervisor runs, reports the reasons, and starts no agent.
///
/// # Errors
/// [`ContainmentError`] if a level is configured by name and not available: it is never replaced by another.
pub fn select_level(
    abilities: &KernelFeatures,
    wish: ContainmentSetting,
) -> Result<ContainmentLevel, ContainmentError> {
    match wish.level() {
        Some(rung) => {
            unmet_requirement(rung, abilities).map_or(Ok(rung), |why| Err(ContainmentError { rung, why }))
        }
        None => Ok(ContainmentLevel::ALL
            .into_iter()
            .find(|r| unmet_requirement(*r, abilities).is_none())
            .unwrap_or(ContainmentLevel::R4)),
    }
}

/// Explanation of one containment level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainmentReport {
    /// `R1` … `R4`.
    pub rung: &'static str,
    /// Containment mechanism.
    pub holds_by: &'static str,
    /// True if this host supports the level.
    pub possible: bool,
    /// Obstacle and remedy, if the host does not support the level.
    pub why_not: Option<String>,
    /// True if the level is the one in use with this configuration.
    pub chosen: bool,
    /// Host requirements.
    pub needs: &'static str,
    /// Processes of a tree that are found and ended.
    pub catches: &'static str,
    /// Processes of a tree that are missed.
    pub misses: &'static str,
    /// Known gaps in the containment of this level.
    pub residue: &'static [&'static str],
}

impl ContainmentLevel {
    fn report(self, chosen: bool, why_not: Option<String>) -> ContainmentReport {
        ContainmentReport {
            rung: self.as_str(),
            holds_by: self.holds_by(),
            possible: why_not.is_none(),
            why_not,
            chosen,
            needs: self.needs(),
            catches: self.catches(),
            misses: self.misses(),
            residue: self.residue(),
        }
    }
}

/// Explains all levels, best first, for this host and configuration.
#[must_use]
pub fn report_levels(abilities: &KernelFeatures, config: &Config) -> Vec<ContainmentReport> {
    let chosen = select_level(abilities, config.rung).ok();
    let why_not = |rung| unmet_requirement(rung, abilities).map(str::to_owned);
    ContainmentLevel::ALL.map(|rung| rung.report(chosen == Some(rung), why_not(rung))).to_vec()
}

/// Returns the unavailable levels with the obstacle of each, for the status of a running supervisor.
#[must_use]
pub fn unavailable_levels(abilities: &KernelFeatures) -> Vec<(String, String)> {
    let line = |rung: ContainmentLevel| {
        Some((rung.as_str().to_owned(), unmet_requirement(rung, abilities)?.to_owned()))
    };
    ContainmentLevel::ALL.into_iter().filter_map(line).collect()
}

/// Explains all levels from the status of a running supervisor: its level, and its list of [`unavailable_levels`]
/// levels.
#[must_use]
pub fn report_from_status(chosen: &str, out_of_reach: &[(String, String)]) -> Vec<ContainmentReport> {
    let why_not = |rung: ContainmentLevel| {
        out_of_reach.iter().find(|(name, _)| name == rung.as_str()).map(|(_, why)| why.clone())
    };
    ContainmentLevel::ALL.map(|rung| rung.report(chosen == rung.as_str(), why_not(rung))).to_vec()
}

/// Resource limits of each lease's control group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupLimits {
    /// `memory.max`, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
}

impl CgroupLimits {
    /// Returns these limits, with unset ones taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes_max: self.memory_bytes_max.or(others.memory_bytes_max),
            pids_max: self.pids_max.or(others.pids_max),
            cpu_weight: self.cpu_weight.or(others.cpu_weight),
        }
    }

    /// Returns the control files to write and their values.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("memory.max", self.memory_bytes_max),
            ("pids.max", self.pids_max),
            ("cpu.weight", self.cpu_weight),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Containment settings of a supervisor: decided once, at start, and kept across in-place upgrades (H14).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Containment {
    /// Containment level for new leases.
    pub rung: ContainmentLevel,
    /// Subtree of control groups of this state directory. Set on every level: earlier leases may have groups
    /// there.
    pub subtree: CgroupSubtree,
    /// Limits of each new lease.
    pub limits: CgroupLimits,
}

impl Containment {
    /// Returns the control group of a new lease, if the level uses control groups.
    #[must_use]
    pub fn leaf(&self, lease_id: LeaseId) -> Option<LeaseCgroup> {
        match self.rung {
            ContainmentLevel::R1 => Some(self.subtree.leaf(lease_id)),
            ContainmentLevel::R2 | ContainmentLevel::R3 | ContainmentLevel::R4 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: KernelFeatures = KernelFeatures {
        signals: true,
        pidfd: true,
        pidfs_inode: true,
        pidfd_group: true,
        scm_pidfd: true,
        proc_list: true,
        subreaper: true,
        groups: CgroupSupport::Work,
        limit_memory: true,
        limit_pids: true,
        limit_cpu: true,
    };

    #[test]
    fn best_available_or_configured_level_is_chosen() {
        use ContainmentSetting::{Auto, R1, R2, R3};
        let no_groups = KernelFeatures { groups: CgroupSupport::NotDelegated, ..ALL };
        let no_pidfd = KernelFeatures { pidfd: false, ..no_groups };
        let only_groups = KernelFeatures { pidfd: false, ..ALL };
        let blind = KernelFeatures { proc_list: false, ..ALL };
        let mute = KernelFeatures { signals: false, ..ALL };
        for (name, abilities, wish, want) in [
            ("everything", ALL, Auto, Ok("R1")),
            ("no groups", no_groups, Auto, Ok("R2")),
            ("25: no pidfds", no_pidfd, Auto, Ok("R3")),
            ("groups without pidfds", only_groups, Auto, Ok("R1")),
            ("19: no process list", blind, Auto, Ok("R4")),
            ("25: nothing can be signalled", mute, Auto, Ok("R4")),
            ("nothing", KernelFeatures::NONE, Auto, Ok("R4")),
            ("asked for less", ALL, R2, Ok("R2")),
            ("asked for much less", ALL, R3, Ok("R3")),
            ("asked for what is there", ALL, R1, Ok("R1")),
            ("R1 without groups", no_groups, R1, Err(CgroupSupport::NotDelegated.why())),
            (
                "R2 without pidfds",
                no_pidfd,
                R2,
                Err("pidfd_open does not work; the kernel is older than 5.3, or a seccomp filter forbids it"),
            ),
            ("R1 without a list", blind, R1, Err("/proc does not list processes; mount it")),
            ("R2 without a list", blind, R2, Err("/proc does not list processes; mount it")),
            ("R3 without a list", blind, R3, Err("/proc does not list processes; mount it")),
        ] {
            let got = select_level(&abilities, wish).map(ContainmentLevel::as_str).map_err(|no| no.why);
            assert_eq!(got, want, "{name}");
        }
        let refusal = ContainmentError { rung: ContainmentLevel::R1, why: CgroupSupport::NotDelegated.why() }
            .to_string();
        assert!(
            refusal
                .starts_with("rung = \"R1\" is configured but not available here: no control group can be"),
            "{refusal}"
        );
    }

    #[test]
    fn every_level_is_reported_with_its_residue() {
        let no_groups = KernelFeatures { groups: CgroupSupport::ReadOnly, ..ALL };
        let shown = |abilities: &KernelFeatures, config: &Config| {
            report_levels(abilities, config)
                .into_iter()
                .map(|r| format!("{} {}{}", r.rung, r.possible, if r.chosen { " *" } else { "" }))
                .collect::<Vec<_>>()
        };
        let config = Config::default();
        assert_eq!(shown(&ALL, &config), ["R1 true *", "R2 true", "R3 true", "R4 true"]);
        assert_eq!(shown(&no_groups, &config), ["R1 false", "R2 true *", "R3 true", "R4 true"]);
        let asked = Config { rung: ContainmentSetting::R1, ..config };
        assert_eq!(shown(&no_groups, &asked), ["R1 false", "R2 true", "R3 true", "R4 true"]);
        for report in report_levels(&no_groups, &asked) {
            assert_eq!(report.why_not.is_none(), report.possible, "{}", report.rung);
            assert_eq!(report.residue.is_empty(), report.rung == "R4", "{}", report.rung);
            assert!(!report.misses.is_empty() && !report.catches.is_empty());
        }
        assert!(
            ContainmentLevel::R1 < ContainmentLevel::R2 && ContainmentLevel::R3 < ContainmentLevel::R4,
            "best first"
        );
        // Who only hears of it explains the same.
        for abilities in [&ALL, &no_groups, &KernelFeatures::NONE] {
            let chosen =
                select_level(abilities, ContainmentSetting::Auto).map_or("", ContainmentLevel::as_str);
            assert_eq!(
                report_from_status(chosen, &unavailable_levels(abilities)),
                report_levels(abilities, &Config::default())
            );
        }
    }

    /// What operators read is what the program says.
    #[test]
    fn runbook_contains_level_descriptions() {
        let runbook = include_str!("../../../docs/manual/runbook.md");
        let runbook = runbook.split_whitespace().collect::<Vec<_>>().join(" ");
        for report in report_levels(&ALL, &Config::default()) {
            let said = [report.holds_by, report.needs, report.catches, report.misses];
            for words in said.iter().chain(report.residue) {
                assert!(runbook.contains(words), "{}: the runbook does not say: {words}", report.rung);
            }
        }
    }
}
