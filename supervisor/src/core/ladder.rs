//! The ladder of supervision: what a machine must give for each rung, what a rung holds and what it cannot hold
//! (H23). The rung is chosen once, at start, and stored in each lease.
//!
//! R0, a pid namespace for each agent, is not built: it changes what an agent sees of pids, `/proc` and signals, and
//! needs a first process of its own in each namespace. An agent that wants one can start `unshare` or a container
//! itself; on R1 its namespace is held by the control group like everything else.

use crate::config::{Config, RungWish};
use crate::core::cgroup::{Leaf, Subtree};
use acp_shared::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// What stands in the way of one control group for each lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Groups {
    /// Nothing: one was made, filled, killed and removed.
    Work,
    /// They were not tried, because another rung is configured.
    NotTried,
    /// No cgroup v2 file system is mounted here.
    NotMounted,
    /// The group to make them in does not lie below the mount.
    OutOfSight,
    /// The configured group does not exist.
    Missing,
    /// No group can be made there.
    NotDelegated,
    /// The file system is mounted read-only.
    ReadOnly,
    /// The kernel is older than 5.14.
    NoKill,
    /// A group was made, but a process in it could not be moved, killed or waited for.
    Broken,
}

impl Groups {
    /// What is in the way, and what to do about it.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Work => "control groups work",
            Self::NotTried => "control groups were not tried, because another rung is configured",
            Self::NotMounted => {
                "no cgroup v2 file system is mounted; mount one, or boot with the unified hierarchy"
            }
            Self::OutOfSight => {
                "the group to make leaves in is outside of the mounted part of the tree; set cgroup_root to one below it"
            }
            Self::Missing => "cgroup_root does not exist; make it and give it to the supervisor's user",
            Self::NotDelegated => {
                "no group can be made there; run the supervisor as a unit with Delegate=yes, or give its user a group and name it as cgroup_root"
            }
            Self::ReadOnly => {
                "the cgroup file system is mounted read-only, as in most containers; mount it writable, with a cgroup namespace of its own"
            }
            Self::NoKill => "this kernel has no cgroup.kill; it came with 5.14",
            Self::Broken => {
                "a group can be made there, but a process cannot be moved into it and killed with it; start the supervisor inside of the delegated group"
            }
        }
    }
}

/// What the kernel can do, as probed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abilities {
    /// Signals can be sent through handles, as pidfds and `/proc` directories are.
    pub signals: bool,
    /// `pidfd_open` works.
    pub pidfd: bool,
    /// pidfds have an inode that is unique until the next boot.
    pub pidfs_inode: bool,
    /// A group can be signalled through its leader's pidfd.
    pub pidfd_group: bool,
    /// A socket message can carry a pidfd of its sender.
    pub scm_pidfd: bool,
    /// `/proc` lists processes.
    pub proc_list: bool,
    /// Orphans of a dead wrapper come to the supervisor.
    pub subreaper: bool,
    /// Whether each lease can have a control group.
    pub groups: Groups,
    /// Memory of a control group can be limited.
    pub limit_memory: bool,
    /// The number of processes of a control group can be limited.
    pub limit_pids: bool,
    /// A control group can have a weight on the processors.
    pub limit_cpu: bool,
}

impl Abilities {
    /// A machine that can do nothing.
    pub const NONE: Self = Self {
        signals: false,
        pidfd: false,
        pidfs_inode: false,
        pidfd_group: false,
        scm_pidfd: false,
        proc_list: false,
        subreaper: false,
        groups: Groups::NotMounted,
        limit_memory: false,
        limit_pids: false,
        limit_cpu: false,
    };

    /// By name, for people and programs.
    #[must_use]
    pub fn named(&self) -> Vec<(String, bool)> {
        [
            ("pidfd", self.pidfd),
            ("pidfs_inode", self.pidfs_inode),
            ("pidfd_group", self.pidfd_group),
            ("scm_pidfd", self.scm_pidfd),
            ("proc_list", self.proc_list),
            ("subreaper", self.subreaper),
            ("cgroup_kill", self.groups == Groups::Work),
            ("cgroup_memory", self.limit_memory),
            ("cgroup_pids", self.limit_pids),
            ("cgroup_cpu", self.limit_cpu),
        ]
        .map(|(name, has)| (name.to_owned(), has))
        .to_vec()
    }
}

/// A rung of the ladder, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rung {
    /// A control group for each lease.
    R1,
    /// A subreaper above each tree, and a walk by pidfds.
    R2,
    /// Session and group, and a walk by `/proc` directories.
    R3,
    /// Nothing can be held: nothing is started.
    R4,
}

impl Rung {
    /// Every rung, best first.
    pub const ALL: [Self; 4] = [Self::R1, Self::R2, Self::R3, Self::R4];

    /// The name in leases and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::R1 => "R1",
            Self::R2 => "R2",
            Self::R3 => "R3",
            Self::R4 => "R4",
        }
    }

    /// What holds a tree, in words.
    #[must_use]
    pub const fn holds_by(self) -> &'static str {
        match self {
            Self::R1 => "a control group for each lease, ended by cgroup.kill",
            Self::R2 => "a subreaper above each tree, and a verified walk by pidfds",
            Self::R3 => "session and process group, and a verified walk by /proc directories",
            Self::R4 => "nothing: no agent is started",
        }
    }

    /// What the machine must give.
    #[must_use]
    pub const fn needs(self) -> &'static str {
        match self {
            Self::R1 => "a writable part of the cgroup v2 tree, Linux 5.14, a readable /proc",
            Self::R2 => "pidfds (Linux 5.3; group signals and inodes 6.9), a readable /proc",
            Self::R3 => "a readable /proc",
            Self::R4 => "nothing",
        }
    }

    /// What of a tree is found and ended.
    #[must_use]
    pub const fn catches(self) -> &'static str {
        match self {
            Self::R1 => {
                "all that descends from the agent: sessions of their own, cleared environments, processes of other users, nested pid namespaces, frozen groups, and what is left when wrapper and supervisor were both killed"
            }
            Self::R2 => {
                "all that descends from the agent while its wrapper or its supervisor lives, and later what still carries the lease in its environment"
            }
            Self::R3 => "the tree below the wrapper, and what carries the lease in its environment",
            Self::R4 => "nothing, because nothing is started",
        }
    }

    /// What of a tree is missed.
    #[must_use]
    pub const fn misses(self) -> &'static str {
        match self {
            Self::R1 => {
                "work handed to another service (systemd-run, docker, at, a tmux server), and what root, or a process of the supervisor's own user, moves out of the group and robs of its environment"
            }
            Self::R2 => {
                "work handed to another service; processes of another user, unless the supervisor is root (they are named, and the lease stays closing); members of a nested pid namespace whose first process adopted them and that carry no lease"
            }
            Self::R3 => "as R2, and whatever left both the tree and its environment behind",
            Self::R4 => "nothing",
        }
    }

    /// The windows in which even this rung does not hold what it says.
    #[must_use]
    pub const fn residue(self) -> &'static [&'static str] {
        const KERNEL: &str = "A process in uninterruptible sleep outlives SIGKILL until the kernel lets go of it: the lease stays closing, and says so.";
        const SETUID: &str = "An agent that is itself a set-user-id or file-capability program loses its parent-death signal: when its wrapper is killed, it runs until the supervisor has swept the tree.";
        const HIDDEN: &str = "Where /proc hides processes of other users (hidepid), one that became another user's is found as the child of one that is seen, by Linux 6.13; with an older kernel it is named and its lease stays closing. Once its wrapper was killed it is not found again.";
        const UNREAD: &str = "A process whose memory hangs, as that of one that sleeps in a disk that does not answer, is found as a descendant and not by its environment.";
        const BOTH: &str = "A process that cleared its environment and left the session is not found again once wrapper and supervisor were both killed.";
        match self {
            Self::R1 => &[
                KERNEL,
                SETUID,
                "Root, or a process of the supervisor's own user, can move a stranger into the group of a lease; it would be killed with the tree, unless it is the supervisor, an ancestor or the root of another lease and was there when the group was read.",
            ],
            Self::R2 => &[KERNEL, SETUID, BOTH, HIDDEN, UNREAD],
            Self::R3 => &[
                KERNEL,
                SETUID,
                BOTH,
                HIDDEN,
                UNREAD,
                "Without pidfds and their inodes a process is told by number, start time and environment: one that cannot be read is left alone, and its lease stays as it is.",
            ],
            Self::R4 => &[],
        }
    }
}

/// A rung that was asked for and cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("rung = {:?} is configured and cannot be had here: {why}; or set rung = \"auto\"", rung.as_str())]
pub struct NoRung {
    /// The rung.
    pub rung: Rung,
    /// What is in the way, and what to do about it.
    pub why: &'static str,
}

/// What is in the way of a rung.
fn missing(rung: Rung, abilities: &Abilities) -> Option<&'static str> {
    const NO_LIST: &str = "/proc does not list processes; mount it";
    const NO_SIGNALS: &str =
        "pidfd_send_signal does not work; the kernel is older than 5.1, or a seccomp filter forbids it";
    match rung {
        Rung::R1 | Rung::R2 | Rung::R3 if !abilities.signals => Some(NO_SIGNALS),
        Rung::R1 if abilities.groups != Groups::Work => Some(abilities.groups.why()),
        Rung::R1 | Rung::R3 => (!abilities.proc_list).then_some(NO_LIST),
        Rung::R2 if !abilities.pidfd => {
            Some("pidfd_open does not work; the kernel is older than 5.3, or a seccomp filter forbids it")
        }
        Rung::R2 => (!abilities.proc_list).then_some(NO_LIST),
        Rung::R4 => None,
    }
}

/// The rung to use: the one that was asked for, or the best there is. [`Rung::R4`] is never an error by itself: the
/// supervisor runs, explains itself, and starts nothing.
///
/// # Errors
/// [`NoRung`]: a rung that was asked for by name is never replaced by another.
pub fn choose(abilities: &Abilities, wish: RungWish) -> Result<Rung, NoRung> {
    let asked = match wish {
        RungWish::Auto => None,
        RungWish::R1 => Some(Rung::R1),
        RungWish::R2 => Some(Rung::R2),
        RungWish::R3 => Some(Rung::R3),
    };
    match asked {
        Some(rung) => missing(rung, abilities).map_or(Ok(rung), |why| Err(NoRung { rung, why })),
        None => Ok(Rung::ALL.into_iter().find(|r| missing(*r, abilities).is_none()).unwrap_or(Rung::R4)),
    }
}

/// One rung, explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RungReport {
    /// `R1` … `R4`.
    pub rung: &'static str,
    /// What holds a tree.
    pub holds_by: &'static str,
    /// Whether this machine has it.
    pub possible: bool,
    /// What is in the way, and what to do about it.
    pub why_not: Option<String>,
    /// Whether it is the one in use with this configuration.
    pub chosen: bool,
    /// What the machine must give.
    pub needs: &'static str,
    /// What of a tree is found and ended.
    pub catches: &'static str,
    /// What of a tree is missed.
    pub misses: &'static str,
    /// The windows in which it does not hold what it says.
    pub residue: &'static [&'static str],
}

impl Rung {
    fn report(self, chosen: bool, why_not: Option<String>) -> RungReport {
        RungReport {
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

/// The whole ladder, best rung first, as this machine and this configuration have it.
#[must_use]
pub fn explain(abilities: &Abilities, config: &Config) -> Vec<RungReport> {
    let chosen = choose(abilities, config.rung).ok();
    let why_not = |rung| missing(rung, abilities).map(str::to_owned);
    Rung::ALL.map(|rung| rung.report(chosen == Some(rung), why_not(rung))).to_vec()
}

/// The rungs that a machine does not have, with what is in the way: what a running supervisor says of itself.
#[must_use]
pub fn out_of_reach(abilities: &Abilities) -> Vec<(String, String)> {
    let line = |rung: Rung| Some((rung.as_str().to_owned(), missing(rung, abilities)?.to_owned()));
    Rung::ALL.into_iter().filter_map(line).collect()
}

/// The whole ladder as a running supervisor says that it is: the rung in use, and [`out_of_reach`].
#[must_use]
pub fn explain_told(chosen: &str, out_of_reach: &[(String, String)]) -> Vec<RungReport> {
    let why_not =
        |rung: Rung| out_of_reach.iter().find(|(name, _)| name == rung.as_str()).map(|(_, why)| why.clone());
    Rung::ALL.map(|rung| rung.report(chosen == rung.as_str(), why_not(rung))).to_vec()
}

/// Limits on each lease's group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// `memory.max`, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
}

impl Limits {
    /// These, and where they say nothing, the others.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes_max: self.memory_bytes_max.or(others.memory_bytes_max),
            pids_max: self.pids_max.or(others.pids_max),
            cpu_weight: self.cpu_weight.or(others.cpu_weight),
        }
    }

    /// What to write into which file of the group.
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

/// How a supervisor holds its trees: decided once, at start, and kept over upgrades in place (H14).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holding {
    /// The rung in use for new leases.
    pub rung: Rung,
    /// The part of the tree of control groups that is this state directory's, on every rung: earlier leases may
    /// have their groups there.
    pub subtree: Subtree,
    /// What each new lease is limited to.
    pub limits: Limits,
}

impl Holding {
    /// The control group of a new lease, on the rung that has them.
    #[must_use]
    pub fn leaf(&self, lease_id: LeaseId) -> Option<Leaf> {
        match self.rung {
            Rung::R1 => Some(self.subtree.leaf(lease_id)),
            Rung::R2 | Rung::R3 | Rung::R4 => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities {
        signals: true,
        pidfd: true,
        pidfs_inode: true,
        pidfd_group: true,
        scm_pidfd: true,
        proc_list: true,
        subreaper: true,
        groups: Groups::Work,
        limit_memory: true,
        limit_pids: true,
        limit_cpu: true,
    };

    #[test]
    fn the_best_rung_there_is_or_the_one_that_was_asked_for() {
        use RungWish::{Auto, R1, R2, R3};
        let no_groups = Abilities { groups: Groups::NotDelegated, ..ALL };
        let no_pidfd = Abilities { pidfd: false, ..no_groups };
        let only_groups = Abilities { pidfd: false, ..ALL };
        let blind = Abilities { proc_list: false, ..ALL };
        let mute = Abilities { signals: false, ..ALL };
        for (name, abilities, wish, want) in [
            ("everything", ALL, Auto, Ok("R1")),
            ("no groups", no_groups, Auto, Ok("R2")),
            ("25: no pidfds", no_pidfd, Auto, Ok("R3")),
            ("groups without pidfds", only_groups, Auto, Ok("R1")),
            ("19: no process list", blind, Auto, Ok("R4")),
            ("25: nothing can be signalled", mute, Auto, Ok("R4")),
            ("nothing", Abilities::NONE, Auto, Ok("R4")),
            ("asked for less", ALL, R2, Ok("R2")),
            ("asked for much less", ALL, R3, Ok("R3")),
            ("asked for what is there", ALL, R1, Ok("R1")),
            ("R1 without groups", no_groups, R1, Err(Groups::NotDelegated.why())),
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
            let got = choose(&abilities, wish).map(Rung::as_str).map_err(|no| no.why);
            assert_eq!(got, want, "{name}");
        }
        let refusal = NoRung { rung: Rung::R1, why: Groups::NotDelegated.why() }.to_string();
        assert!(
            refusal.starts_with("rung = \"R1\" is configured and cannot be had here: no group can be made"),
            "{refusal}"
        );
    }

    #[test]
    fn h23_every_rung_is_explained_with_its_residue() {
        let no_groups = Abilities { groups: Groups::ReadOnly, ..ALL };
        let shown = |abilities: &Abilities, config: &Config| {
            explain(abilities, config)
                .into_iter()
                .map(|r| format!("{} {}{}", r.rung, r.possible, if r.chosen { " *" } else { "" }))
                .collect::<Vec<_>>()
        };
        let config = Config::default();
        assert_eq!(shown(&ALL, &config), ["R1 true *", "R2 true", "R3 true", "R4 true"]);
        assert_eq!(shown(&no_groups, &config), ["R1 false", "R2 true *", "R3 true", "R4 true"]);
        let asked = Config { rung: RungWish::R1, ..config };
        assert_eq!(shown(&no_groups, &asked), ["R1 false", "R2 true", "R3 true", "R4 true"]);
        for report in explain(&no_groups, &asked) {
            assert_eq!(report.why_not.is_none(), report.possible, "{}", report.rung);
            assert_eq!(report.residue.is_empty(), report.rung == "R4", "{}", report.rung);
            assert!(!report.misses.is_empty() && !report.catches.is_empty());
        }
        assert!(Rung::R1 < Rung::R2 && Rung::R3 < Rung::R4, "best first");
        // Who only hears of it explains the same.
        for abilities in [&ALL, &no_groups, &Abilities::NONE] {
            let chosen = choose(abilities, RungWish::Auto).map_or("", Rung::as_str);
            assert_eq!(
                explain_told(chosen, &out_of_reach(abilities)),
                explain(abilities, &Config::default())
            );
        }
    }

    /// What operators read is what the program says.
    #[test]
    fn h23_the_runbook_says_the_same() {
        let runbook = include_str!("../../../packaging/doc/runbook.md");
        let runbook = runbook.split_whitespace().collect::<Vec<_>>().join(" ");
        for report in explain(&ALL, &Config::default()) {
            let said = [report.holds_by, report.needs, report.catches, report.misses];
            for words in said.iter().chain(report.residue) {
                assert!(runbook.contains(words), "{}: the runbook does not say: {words}", report.rung);
            }
        }
    }
}
