//! Control groups (v2) as text: where they are mounted, which one holds a process, which one belongs to a lease,
//! and whether `cgroup.kill` may be used on it. Nothing is read or written here.

use crate::core::lease::Lease;
use crate::core::verify::Guard;
use acp_shared::ids::LeaseId;
use serde::{Deserialize, Serialize};

/// What the name of every subtree of a supervisor begins with.
const SUBTREE_PREFIX: &str = "acp-supervisor-";
/// The group inside of the subtree that the supervisor moves itself to where a group with processes in it may have
/// no limits below it.
pub const SELF_GROUP: &str = "supervisor";

/// A mounted tree of control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The group that is seen at the mount point.
    pub root: String,
    /// The mount point.
    pub point: String,
}

impl Mount {
    /// Finds the first cgroup v2 mount in `/proc/self/mountinfo`; on hybrid machines it is not `/sys/fs/cgroup`.
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

    /// The directory of a group; `None` when it is not below this mount, or is no plain path.
    #[must_use]
    pub fn dir(&self, group: &str) -> Option<String> {
        let below = if self.root == "/" { group } else { group.strip_prefix(self.root.as_str())? };
        let plain = below.is_empty() || below == "/" || is_plain(below);
        plain.then(|| format!("{}{}", self.point.trim_end_matches('/'), below.trim_end_matches('/')))
    }

    /// The group of a directory; the reverse of [`Mount::dir`].
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

/// Blanks and backslashes stand as three octal digits in `mountinfo`.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// Whether a path is absolute and goes down only.
fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// The v2 group of a process from its `/proc/PID/cgroup`.
#[must_use]
pub fn of_process(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The part of the tree in which a supervisor makes one group for each lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subtree {
    /// The group that it lies in.
    base: String,
    /// Its own name, the same for each supervisor of one state directory.
    name: String,
}

impl Subtree {
    /// The subtree of the supervisor whose state directory has this short id, in `base`: the group that was
    /// configured, or the one that the supervisor runs in. A supervisor that was started by another image of itself
    /// runs in its own subtree already.
    #[must_use]
    pub fn new(base: &str, short_id: &str) -> Self {
        let name = format!("{SUBTREE_PREFIX}{short_id}");
        let base = base.strip_suffix(&format!("/{name}/{SELF_GROUP}")).unwrap_or(base);
        Self { base: base.trim_end_matches('/').to_owned(), name }
    }

    /// The group it lies in.
    #[must_use]
    pub fn base(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }

    /// Its own group.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.base, self.name)
    }

    /// The group that the supervisor moves to, if it must.
    #[must_use]
    pub fn self_group(&self) -> String {
        format!("{}/{SELF_GROUP}", self.path())
    }

    /// The group for a new lease.
    #[must_use]
    pub fn leaf(&self, lease_id: LeaseId) -> Leaf {
        Leaf(format!("{}/{lease_id}", self.path()))
    }

    /// Whether a group is that of a lease of this state directory, or below one.
    #[must_use]
    pub fn is_of_a_lease(&self, group: &str) -> bool {
        let inside = group.split_once(&format!("/{}/", self.name)).map(|(_, inside)| inside);
        inside.and_then(|inside| inside.split('/').next()).is_some_and(|name| LeaseId::parse(name).is_ok())
    }

    /// The group that a lease recorded, if it did.
    #[must_use]
    pub fn recorded(&self, lease: &Lease) -> Recorded {
        let Some(path) = lease.cgroup_path.as_deref() else { return Recorded::Nothing };
        let ours = format!("/{}/{}", self.name, lease.lease_id);
        if is_plain(path) && path.ends_with(&ours) {
            Recorded::Own(Leaf(path.to_owned()))
        } else {
            Recorded::Strange(Strange(path.to_owned()))
        }
    }
}

/// What a lease recorded about its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It has none.
    Nothing,
    /// One that a supervisor of this state directory made for this very lease.
    Own(Leaf),
    /// Another path: the state directory was moved since, or the row is damaged.
    Strange(Strange),
}

impl Recorded {
    /// The group that is surely the lease's.
    #[must_use]
    pub const fn own(&self) -> Option<&Leaf> {
        match self {
            Self::Own(leaf) => Some(leaf),
            Self::Nothing | Self::Strange(_) => None,
        }
    }
}

/// A recorded group that is not recognised as the lease's. Nothing in there is signalled for being in there; while
/// something is, the lease cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strange(String);

impl Strange {
    /// The path, as it was recorded.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

/// The group of one lease. Made by [`Subtree`] alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf(String);

impl Leaf {
    /// Its path in the tree of groups, as `/proc/PID/cgroup` shows it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }
}

/// What is in a group and below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// The processes that can still run.
    pub pids: Vec<i32>,
    /// Whether the kernel says that something is in there, be it only on its way out.
    pub populated: bool,
}

/// Whether a process in `group` is in `leaf` or below it.
#[must_use]
pub fn is_within(group: &str, leaf: &str) -> bool {
    group.strip_prefix(leaf).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Leave to end everything in one group at once. Made by [`how_to_kill`] alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Cleared(Leaf);

impl Cleared {
    /// The group.
    #[must_use]
    pub const fn leaf(&self) -> &Leaf {
        &self.0
    }
}

/// How the processes of a lease get their SIGKILL.
#[derive(Debug, PartialEq, Eq)]
pub enum KillBy {
    /// All that is in its group, by `cgroup.kill`.
    Group(Cleared),
    /// One by one, each verified. Why not by group.
    Walk(&'static str),
}

/// `cgroup.kill` signals without proof. Before it, what is in the group is read: with this supervisor, an ancestor,
/// the root of another lease or something that cannot be named in there, each process is verified by itself (H21).
///
/// `listed` is what is in the group and below it; `None` when that cannot be read.
#[must_use]
pub fn how_to_kill(leaf: Option<&Leaf>, listed: Option<&[i32]>, guard: &Guard) -> KillBy {
    let Some(leaf) = leaf else { return KillBy::Walk("the lease has no control group") };
    let Some(listed) = listed else { return KillBy::Walk("what is in the control group cannot be read") };
    if listed.is_empty() {
        return KillBy::Walk("the control group is empty");
    }
    match listed.iter().find_map(|pid| guard.forbids(*pid)) {
        Some(_) => KillBy::Walk("the control group holds a process that is never signalled"),
        None => KillBy::Group(Cleared(leaf.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::fixture;
    use std::collections::HashSet;

    #[test]
    fn mounts_are_found_where_they_are() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let container = "41 31 0:38 /docker/ab /sys/fs/c\\040g rw - cgroup2 cgroup rw,nsdelegate\n";
        let mount = |root: &str, point: &str| Some(Mount { root: root.into(), point: point.into() });
        for (name, text, want) in [
            ("hybrid", hybrid, mount("/", "/sys/fs/cgroup/unified")),
            ("a container with a blank in the path", container, mount("/docker/ab", "/sys/fs/c g")),
            ("version 1 alone", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None),
            ("torn", "41 31 0:38 - cgroup2", None),
            ("nothing", "", None),
        ] {
            assert_eq!(Mount::parse(text), want, "{name}");
        }
    }

    #[test]
    fn groups_and_directories_are_the_two_sides_of_a_mount() {
        let whole = Mount { root: "/".into(), point: "/sys/fs/cgroup".into() };
        let part = Mount { root: "/docker/ab".into(), point: "/cg".into() };
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
    fn the_group_of_a_process_is_the_v2_line() {
        let hybrid = "9:name=systemd:/\n8:pids:/x\n0::/a.slice/b\n";
        assert_eq!(of_process(hybrid).as_deref(), Some("/a.slice/b"));
        assert_eq!(of_process("8:pids:/x\n"), None);
    }

    #[test]
    fn a_subtree_lies_in_its_base_also_after_the_move_to_the_leaf() {
        for (own, base, path) in [
            ("/", "/", "/acp-supervisor-ab"),
            (
                "/system.slice/acp.service",
                "/system.slice/acp.service",
                "/system.slice/acp.service/acp-supervisor-ab",
            ),
            ("/s/acp-supervisor-ab/supervisor", "/s", "/s/acp-supervisor-ab"),
            // Started by an agent of another supervisor: inside of that agent's group.
            (
                "/s/acp-supervisor-cd/supervisor",
                "/s/acp-supervisor-cd/supervisor",
                "/s/acp-supervisor-cd/supervisor/acp-supervisor-ab",
            ),
        ] {
            let subtree = Subtree::new(own, "ab");
            assert_eq!((subtree.base(), subtree.path().as_str()), (base, path), "{own}");
            assert_eq!(subtree.self_group(), format!("{path}/supervisor"));
        }
    }

    #[test]
    fn only_a_group_made_for_this_lease_is_recognised() {
        let subtree = Subtree::new("/s", "ab");
        let lease = fixture::lease();
        let (id, other) = (lease.lease_id, fixture::lease().lease_id);
        for (name, path, want) in [
            ("its own", format!("/s/acp-supervisor-ab/{id}"), true),
            ("its own, when the supervisor ran elsewhere", format!("/old/acp-supervisor-ab/{id}"), true),
            ("of another lease", format!("/s/acp-supervisor-ab/{other}"), false),
            ("of another state directory", format!("/s/acp-supervisor-cd/{id}"), false),
            ("the subtree itself", "/s/acp-supervisor-ab".to_owned(), false),
            ("everything", "/".to_owned(), false),
            ("nothing", String::new(), false),
            ("a way up", format!("/s/../acp-supervisor-ab/{id}"), false),
            ("a way up at the end", format!("/s/acp-supervisor-ab/{id}/.."), false),
            ("not absolute", format!("s/acp-supervisor-ab/{id}"), false),
            ("below it", format!("/s/acp-supervisor-ab/{id}/x"), false),
        ] {
            let lease = Lease { cgroup_path: Some(path.clone()), ..lease.clone() };
            let recorded = subtree.recorded(&lease);
            let strange = Recorded::Strange(Strange(path.clone()));
            assert_eq!(recorded, if want { Recorded::Own(Leaf(path)) } else { strange }, "{name}");
        }
        assert_eq!(subtree.recorded(&lease), Recorded::Nothing);
        assert_eq!(subtree.leaf(id).path(), format!("/s/acp-supervisor-ab/{id}"));
    }

    #[test]
    fn h9_what_is_in_the_group_of_any_lease_is_told() {
        let subtree = Subtree::new("/s", "ab");
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
    fn within_is_the_group_and_what_is_below() {
        for (group, want) in
            [("/a/b", true), ("/a/b/c", true), ("/a/bc", false), ("/a", false), ("/a/b (deleted)", false)]
        {
            assert_eq!(is_within(group, "/a/b"), want, "{group}");
        }
    }

    #[test]
    fn h21_a_group_with_somebody_else_in_it_is_never_killed_at_once() {
        let leaf = Subtree::new("/", "ab").leaf(fixture::lease().lease_id);
        let guard = Guard { own_line: HashSet::from([10, 9]), other_roots: HashSet::from([70]) };
        let some = Some(&leaf);
        for (name, leaf, listed, by_group) in [
            ("its own tree", some, Some([100, 101].as_slice()), true),
            ("no group", None, Some([100].as_slice()), false),
            ("unreadable", some, None, false),
            ("empty", some, Some([].as_slice()), false),
            ("this supervisor", some, Some([100, 10].as_slice()), false),
            ("an ancestor", some, Some([9, 100].as_slice()), false),
            ("the root of another lease", some, Some([100, 70].as_slice()), false),
            ("a process of another pid namespace", some, Some([100, 0].as_slice()), false),
            ("the first process", some, Some([1].as_slice()), false),
        ] {
            let by = how_to_kill(leaf, listed, &guard);
            assert_eq!(matches!(by, KillBy::Group(_)), by_group, "{name}: {by:?}");
        }
        let KillBy::Group(cleared) = how_to_kill(some, Some(&[100]), &guard) else { panic!("its own tree") };
        assert_eq!(cleared.leaf(), &leaf);
    }
}
