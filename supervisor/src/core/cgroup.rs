//! Text handling of control groups (cgroup v2): mount points, the group of a process, the group of a lease,
//! and the check before `cgroup.kill`. No I/O.

use crate::core::lease::Lease;
use crate::core::verify::SignalGuard;
use acp_shared::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// Prefix of the name of every supervisor's subtree.
const SUBTREE_PREFIX: &str = "acp-supervisor-";
/// Group inside of the subtree for the supervisor's own process. The kernel allows no limits below a group
/// with processes, so the supervisor may have to leave the parent group.
pub const SELF_GROUP: &str = "supervisor";

/// Mounted cgroup v2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMount {
    /// Group visible at the mount point.
    pub root: String,
    /// Path of the mount point.
    pub point: String,
}

impl CgroupMount {
    /// Finds the first cgroup v2 mount in `/proc/self/mountinfo`. On hybrid systems this is not
    /// `/sys/fs/cgroup`.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Option<Self> {
        mountinfo.lines().find_map(|line| {
            let (fields, filesystem) = line.split_once(" - ")?;
            if filesystem.split(' ').next()? != "cgroup2" {
                return None;
            }
            let mut fields = fields.split(' ').skip(3);
            Some(Self { root: unescape(fields.next()?), point: unescape(fields.next()?) })
        })
    }

    /// Returns the directory of a group; `None` if the group is not below this mount or is not a plain path.
    #[must_use]
    pub fn dir(&self, group: &str) -> Option<String> {
        let below = if self.root == "/" { group } else { group.strip_prefix(self.root.as_str())? };
        let plain = below.is_empty() || below == "/" || is_plain(below);
        plain.then(|| format!("{}{}", self.point.trim_end_matches('/'), below.trim_end_matches('/')))
    }

    /// Returns the group of a directory; the inverse of [`CgroupMount::dir`].
    #[must_use]
    pub fn group(&self, dir: &str) -> Option<String> {
        let below = dir.strip_prefix(self.point.as_str())?;
        if !(below.is_empty() || is_plain(below)) {
            return None;
        }
        let group = format!("{}{below}", self.root.trim_end_matches('/'));
        Some(if group.is_empty() { "/".to_owned() } else { group })
    }
}

/// Decodes the octal escapes of whitespace and backslashes in `mountinfo`.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// True if a path is absolute and has no empty, `.` or `..` components.
fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// Returns the v2 group from the text of `/proc/PID/cgroup`.
#[must_use]
pub fn of_process(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Part of the hierarchy in which a supervisor creates one group for each lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupSubtree {
    /// Parent group of the subtree.
    base: String,
    /// Name of the subtree, the same for each supervisor of one state directory.
    name: String,
}

impl CgroupSubtree {
    /// Creates the subtree for the state directory with this short id. `base` is the configured group, or the
    /// group that the supervisor runs in. After an in-place upgrade that is its own group inside of the
    /// subtree, which is stripped.
    #[must_use]
    pub fn new(base: &str, short_id: &str) -> Self {
        let name = format!("{SUBTREE_PREFIX}{short_id}");
        let base = base.strip_suffix(&format!("/{name}/{SELF_GROUP}")).unwrap_or(base);
        Self { base: base.trim_end_matches('/').to_owned(), name }
    }

    /// Returns the parent group of the subtree.
    #[must_use]
    pub fn base(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// Returns the path of the subtree's own group.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.base, self.name)
    }

    /// Returns the supervisor's own group inside of the subtree.
    #[must_use]
    pub fn self_group(&self) -> String {
        format!("{}/{SELF_GROUP}", self.path())
    }

    /// Returns the group for a new lease.
    #[must_use]
    pub fn leaf(&self, lease_id: LeaseId) -> LeaseCgroup {
        LeaseCgroup(format!("{}/{lease_id}", self.path()))
    }

    /// True if a group belongs to a lease of this state directory or lies below such a group.
    #[must_use]
    pub fn is_of_a_lease(&self, group: &str) -> bool {
        let inside = group.split_once(&format!("/{}/", self.name)).map(|(_, inside)| inside);
        inside.and_then(|inside| inside.split('/').next()).is_some_and(|name| LeaseId::parse(name).is_ok())
    }

    /// Classifies the group that a lease recorded.
    #[must_use]
    pub fn recorded(&self, lease: &Lease) -> RecordedCgroup {
        let Some(path) = lease.cgroup_path.as_deref() else { return RecordedCgroup::Nothing };
        let ours = format!("/{}/{}", self.name, lease.lease_id);
        if is_plain(path) && path.ends_with(&ours) {
            RecordedCgroup::Own(LeaseCgroup(path.to_owned()))
        } else {
            RecordedCgroup::Unknown(UnknownCgroup(path.to_owned()))
        }
    }
}

/// Group recorded in a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedCgroup {
    /// No group was recorded.
    Nothing,
    /// A group that a supervisor of this state directory created for this lease.
    Own(LeaseCgroup),
    /// Another path: the state directory was moved, or the row is damaged.
    Unknown(UnknownCgroup),
}

impl RecordedCgroup {
    /// Returns the group that certainly belongs to the lease.
    #[must_use]
    pub const fn own(&self) -> Option<&LeaseCgroup> {
        match self {
            Self::Own(leaf) => Some(leaf),
            Self::Nothing | Self::Unknown(_) => None,
        }
    }
}

/// Recorded group that cannot be attributed to the lease. Membership is no reason to signal a process. While
/// the group contains processes, no verdict on the lease is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCgroup(String);

impl UnknownCgroup {
    /// Returns the recorded path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

/// Group of one lease. Only [`CgroupSubtree`] creates values of this type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseCgroup(String);

impl LeaseCgroup {
    /// Returns the path in the cgroup hierarchy, as `/proc/PID/cgroup` shows it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

/// Processes in a group and in the groups below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupMembers {
    /// Processes that can still run.
    pub pids: Vec<i32>,
    /// True if the kernel reports the group as populated, which includes processes that are exiting.
    pub populated: bool,
}

/// True if `group` is `leaf` or lies below it.
#[must_use]
pub fn is_within(group: &str, leaf: &str) -> bool {
    group.strip_prefix(leaf).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Permission to kill a whole group. Only [`how_to_kill`] creates values of this type.
#[derive(Debug, PartialEq, Eq)]
pub struct CgroupKillPermit(LeaseCgroup);

impl CgroupKillPermit {
    /// Returns the group.
    #[must_use]
    pub const fn leaf(&self) -> &LeaseCgroup {
        &self.0
    }
}

/// Method of sending SIGKILL to the processes of a lease.
#[derive(Debug, PartialEq, Eq)]
pub enum KillMethod {
    /// All processes of the group at once, with `cgroup.kill`.
    Group(CgroupKillPermit),
    /// One verified process at a time. Contains the reason why `cgroup.kill` is not used.
    Walk(&'static str),
}

/// Chooses how to kill a lease's processes. `cgroup.kill` signals without verification, so the group's
/// members are checked first: if they include this supervisor, an ancestor, the root of another lease or a
/// process without a pid in this namespace, each process is verified and signalled individually (H21).
///
/// `listed` contains the members of the group and of the groups below; `None` if they cannot be read.
#[must_use]
pub fn how_to_kill(leaf: Option<&LeaseCgroup>, listed: Option<&[i32]>, guard: &SignalGuard) -> KillMethod {
    let Some(leaf) = leaf else { return KillMethod::Walk("the lease has no control group") };
    let Some(listed) = listed else { return KillMethod::Walk("the control group cannot be read") };
    if listed.is_empty() {
        return KillMethod::Walk("the control group is empty");
    }
    match listed.iter().find_map(|pid| guard.forbids(*pid)) {
        Some(_) => KillMethod::Walk("the control group holds a process that is never signalled"),
        None => KillMethod::Group(CgroupKillPermit(leaf.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::fixture;
    use std::collections::HashSet;

    #[test]
    fn cgroup2_mount_is_found() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let container = "41 31 0:38 /docker/ab /sys/fs/c\\040g rw - cgroup2 cgroup rw,nsdelegate\n";
        let mount = |root: &str, point: &str| Some(CgroupMount { root: root.into(), point: point.into() });
        for (name, text, want) in [
            ("hybrid", hybrid, mount("/", "/sys/fs/cgroup/unified")),
            ("a container with a blank in the path", container, mount("/docker/ab", "/sys/fs/c g")),
            ("version 1 alone", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None),
            ("torn", "41 31 0:38 - cgroup2", None),
            ("empty", "", None),
        ] {
            assert_eq!(CgroupMount::parse(text), want, "{name}");
        }
    }

    #[test]
    fn cgroup_paths_map_to_mount_directories() {
        let whole = CgroupMount { root: "/".into(), point: "/sys/fs/cgroup".into() };
        let part = CgroupMount { root: "/docker/ab".into(), point: "/cg".into() };
        for (mount, group, dir) in [
            (&whole, "/", Some("/sys/fs/cgroup")),
            (&whole, "/a.slice/b", Some("/sys/fs/cgroup/a.slice/b")),
            (&whole, "/a/../b", None),
            (&whole, "/a//b", None),
            (&whole, "/..", None),
            (&part, "/docker/ab", Some("/cg")),
            (&part, "/docker/ab/c", Some("/cg/c")),
            (&part, "/docker/abc", None),
            (&part, "/other", None),
        ] {
            assert_eq!(mount.dir(group).as_deref(), dir, "{group}");
            if let Some(dir) = dir {
                assert_eq!(mount.group(dir).as_deref(), Some(group), "{dir}");
            }
        }
        assert_eq!(whole.group("/sys/fs/cgroup/../etc"), None);
        assert_eq!(whole.group("/etc"), None);
    }

    #[test]
    fn process_cgroup_is_read_from_v2_line() {
        let hybrid = "9:name=systemd:/\n8:pids:/x\n0::/a.slice/b\n";
        assert_eq!(of_process(hybrid).as_deref(), Some("/a.slice/b"));
        assert_eq!(of_process("8:pids:/x\n"), None);
    }

    #[test]
    fn cgroup_subtree_path_is_stable_after_move_to_leaf() {
        for (own, base, path) in [
            ("/", "/", "/acp-supervisor-ab"),
            ("/s.slice/acp.service", "/s.slice/acp.service", "/s.slice/acp.service/acp-supervisor-ab"),
            ("/s/acp-supervisor-ab/supervisor", "/s", "/s/acp-supervisor-ab"),
            // Started by an agent of another supervisor, inside of the agent's cgroup.
            (
                "/s/acp-supervisor-cd/supervisor",
                "/s/acp-supervisor-cd/supervisor",
                "/s/acp-supervisor-cd/supervisor/acp-supervisor-ab",
            ),
        ] {
            let subtree = CgroupSubtree::new(own, "ab");
            assert_eq!((subtree.base(), subtree.path().as_str()), (base, path), "{own}");
            assert_eq!(subtree.self_group(), format!("{path}/supervisor"));
        }
    }

    #[test]
    fn only_cgroup_of_this_lease_is_recognised() {
        let subtree = CgroupSubtree::new("/s", "ab");
        let lease = fixture::lease();
        let (id, other) = (lease.lease_id, fixture::lease().lease_id);
        for (name, path, want) in [
            ("own", format!("/s/acp-supervisor-ab/{id}"), true),
            ("own, of a moved supervisor", format!("/old/acp-supervisor-ab/{id}"), true),
            ("of another lease", format!("/s/acp-supervisor-ab/{other}"), false),
            ("of another state directory", format!("/s/acp-supervisor-cd/{id}"), false),
            ("the subtree itself", "/s/acp-supervisor-ab".to_owned(), false),
            ("the root", "/".to_owned(), false),
            ("empty", String::new(), false),
            ("parent component", format!("/s/../acp-supervisor-ab/{id}"), false),
            ("parent component at the end", format!("/s/acp-supervisor-ab/{id}/.."), false),
            ("not absolute", format!("s/acp-supervisor-ab/{id}"), false),
            ("below it", format!("/s/acp-supervisor-ab/{id}/x"), false),
        ] {
            let lease = Lease { cgroup_path: Some(path.clone()), ..lease.clone() };
            let strange = RecordedCgroup::Unknown(UnknownCgroup(path.clone()));
            let want = if want { RecordedCgroup::Own(LeaseCgroup(path)) } else { strange };
            assert_eq!(subtree.recorded(&lease), want, "{name}");
        }
        assert_eq!(subtree.recorded(&lease), RecordedCgroup::Nothing);
        assert_eq!(subtree.leaf(id).path(), format!("/s/acp-supervisor-ab/{id}"));
    }

    #[test]
    fn paths_below_any_lease_cgroup_are_recognised() {
        let subtree = CgroupSubtree::new("/s", "ab");
        let id = fixture::lease().lease_id;
        for (group, want) in [
            (format!("/s/acp-supervisor-ab/{id}"), true),
            (format!("/old/acp-supervisor-ab/{id}/deeper"), true),
            ("/s/acp-supervisor-ab/supervisor".to_owned(), false),
            ("/s/acp-supervisor-ab".to_owned(), false),
            (format!("/s/acp-supervisor-cd/{id}"), false),
            ("/s".to_owned(), false),
        ] {
            assert_eq!(subtree.is_of_a_lease(&group), want, "{group}");
        }
    }

    #[test]
    fn cgroup_contains_itself_and_its_descendants() {
        for (group, want) in
            [("/a/b", true), ("/a/b/c", true), ("/a/bc", false), ("/a", false), ("/a/b (deleted)", false)]
        {
            assert_eq!(is_within(group, "/a/b"), want, "{group}");
        }
    }

    #[test]
    fn shared_cgroup_is_never_killed_as_a_whole() {
        let leaf = CgroupSubtree::new("/", "ab").leaf(fixture::lease().lease_id);
        let guard = SignalGuard { own_ancestry: HashSet::from([10, 9]), other_roots: HashSet::from([70]) };
        let some = Some(&leaf);
        for (name, leaf, listed, by_group) in [
            ("own tree", some, Some([100, 101].as_slice()), true),
            ("no group", None, Some([100].as_slice()), false),
            ("unreadable", some, None, false),
            ("empty", some, Some([].as_slice()), false),
            ("this supervisor", some, Some([100, 10].as_slice()), false),
            ("an ancestor", some, Some([9, 100].as_slice()), false),
            ("the root of another lease", some, Some([100, 70].as_slice()), false),
            ("a process of another pid namespace", some, Some([100, 0].as_slice()), false),
            ("init", some, Some([1].as_slice()), false),
        ] {
            let by = how_to_kill(leaf, listed, &guard);
            assert_eq!(matches!(by, KillMethod::Group(_)), by_group, "{name}: {by:?}");
        }
        let KillMethod::Group(cleared) = how_to_kill(some, Some(&[100]), &guard) else { panic!("own tree") };
        assert_eq!(cleared.leaf(), &leaf);
    }
}
