//! Control groups on Linux: discovery, creation of the subtree for leases, and a functional test. Decisions
//! about groups are in [`crate::core::cgroup`] and [`crate::core::containment`].

use crate::core::cgroup::{
    CgroupKillPermit, CgroupMembers, CgroupMount, CgroupSubtree, LeaseCgroup, UnknownCgroup, of_process,
};
use crate::core::containment::{CgroupLimits, CgroupSupport};
use crate::core::limits::{CONTROLLERS_FILE, Controllers};
use acp_shared::ids::LeaseId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum number of groups below one lease. With more, listing fails and processes are ended one at a time.
const GROUPS_BELOW_MAX: usize = 4096;
/// Time limit for the test process to end.
const TEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Controllers used for limits of leases.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Mounted cgroup v2 hierarchy.
#[derive(Debug, Clone)]
pub struct CgroupTree(CgroupMount);

impl CgroupTree {
    /// Finds the mounted hierarchy.
    #[must_use]
    pub fn find() -> Option<Self> {
        CgroupMount::parse(&fs::read_to_string("/proc/self/mountinfo").ok()?).map(Self)
    }

    fn dir(&self, group: &str) -> io::Result<PathBuf> {
        let dir = self.0.dir(group).map(PathBuf::from);
        dir.ok_or_else(|| io::Error::other(format!("the control group {group} is not below the mount")))
    }

    /// Creates the group of a new lease. Returns the limits that could not be set.
    ///
    /// # Errors
    /// The group cannot be created or already exists.
    pub fn make(&self, leaf: &LeaseCgroup, limits: &CgroupLimits) -> io::Result<Vec<String>> {
        let dir = self.dir(leaf.path())?;
        fs::create_dir(&dir)?;
        let set = |(name, value): &(&'static str, u64)| fs::write(dir.join(name), value.to_string()).is_err();
        Ok(limits.files().iter().filter(|limit| set(limit)).map(|(name, _)| (*name).to_owned()).collect())
    }

    /// Opens the group of a lease, to start a process in it.
    ///
    /// # Errors
    /// The group cannot be opened.
    pub fn open(&self, leaf: &LeaseCgroup) -> io::Result<fs::File> {
        fs::File::open(self.dir(leaf.path())?)
    }

    /// Moves a process into the group. The caller has not reaped this child, so the pid cannot have been
    /// reused.
    ///
    /// # Errors
    /// The kernel denied the move.
    pub fn join(&self, leaf: &LeaseCgroup, pid: i32) -> io::Result<()> {
        fs::write(self.dir(leaf.path())?.join("cgroup.procs"), pid.to_string())
    }

    /// Returns the members of a lease's group. A missing group has none.
    ///
    /// # Errors
    /// The group is unreadable.
    pub fn list(&self, leaf: &LeaseCgroup) -> io::Result<CgroupMembers> {
        // An unreachable hierarchy is an error and does not prove that the group is empty.
        fs::metadata(Path::new(&self.0.point).join("cgroup.procs"))?;
        let dir = self.dir(leaf.path())?;
        let mut pids = Vec::new();
        for group in below(&dir)? {
            match fs::read_to_string(group.join("cgroup.procs")) {
                Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
                // Removed meanwhile, or it contains threads of a process listed in a parent group.
                Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        pids.sort_unstable();
        pids.dedup();
        let populated = match fs::read_to_string(dir.join("cgroup.events")) {
            Ok(text) => is_populated(&text),
            Err(error) if is_gone(&error) => false,
            Err(error) => return Err(error),
        };
        Ok(CgroupMembers { pids, populated })
    }

    /// Checks whether an unrecognised group or a group below contains processes. A missing group contains
    /// none.
    ///
    /// # Errors
    /// The group is unreadable or not part of this hierarchy.
    pub fn populated(&self, strange: &UnknownCgroup) -> io::Result<bool> {
        fs::metadata(Path::new(&self.0.point).join("cgroup.procs"))?;
        let dir = self.dir(strange.path())?;
        match fs::read_to_string(dir.join("cgroup.events")) {
            Ok(text) => Ok(is_populated(&text)),
            Err(error) if is_gone(&error) && !dir.exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends SIGKILL to all processes of a group, then waits at most `wait` until the group is empty.
    ///
    /// # Errors
    /// The kernel denied the signal.
    pub fn kill(&self, cleared: &CgroupKillPermit, wait: Duration) -> io::Result<()> {
        let dir = self.dir(cleared.leaf().path())?;
        match fs::write(dir.join("cgroup.kill"), "1").and_then(|()| wait_until_empty(&dir, wait)) {
            Err(error) if !is_gone(&error) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes a group and all groups below. Groups with processes cannot be removed.
    ///
    /// # Errors
    /// A group still contains processes.
    pub fn remove(&self, leaf: &LeaseCgroup) -> io::Result<()> {
        remove_all(&self.dir(leaf.path())?)
    }

    /// Removes empty groups of ended leases.
    pub fn remove_empty_groups(&self, subtree: &CgroupSubtree, living: &HashSet<LeaseId>) {
        let Ok(dir) = self.dir(&subtree.path()) else { return };
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|name| LeaseId::parse(name).ok());
            if let Some(id) = id.filter(|id| !living.contains(id))
                && let Err(error) = remove_all(&entry.path())
            {
                tracing::warn!(lease_id = %id, %error, "cannot remove cgroup of ended lease");
            }
        }
    }

    /// Removes the subtree at shutdown. Groups with processes and the supervisor's own group remain.
    pub fn remove_subtree(&self, subtree: &CgroupSubtree) {
        self.remove_empty_groups(subtree, &HashSet::new());
        if let Err(error) = self.dir(&subtree.path()).and_then(fs::remove_dir) {
            tracing::debug!(%error, "cannot remove cgroup subtree");
        }
    }

    /// Prepares the subtree: creates the directory, enables the controllers, and tests with a real process.
    /// `inert` is a program that does nothing until end of file on its standard input. Returns the
    /// availability of groups and the enabled controllers.
    #[must_use]
    pub fn prepare(&self, subtree: &CgroupSubtree, inert: &Path) -> (CgroupSupport, HashSet<&'static str>) {
        let none = |groups| (groups, HashSet::new());
        let (Ok(base), Ok(dir)) = (self.dir(subtree.base()), self.dir(&subtree.path())) else {
            return none(CgroupSupport::OutOfSight);
        };
        if let Err(error) = fs::create_dir(&dir)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return none(match Errno::from_io_error(&error) {
                Some(Errno::ROFS) => CgroupSupport::ReadOnly,
                Some(Errno::NOENT) => CgroupSupport::Missing,
                _ => CgroupSupport::NotDelegated,
            });
        }
        if !dir.join("cgroup.kill").exists() {
            drop(fs::remove_dir(&dir));
            return none(CgroupSupport::NoKill);
        }
        let controllers = self.delegate(subtree, &base, &dir);
        match self.test_groups(subtree, inert) {
            Ok(()) => (CgroupSupport::Work, controllers),
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "cgroup test failed");
                drop(fs::remove_dir(&dir));
                none(CgroupSupport::Broken)
            }
        }
    }

    /// Enables the delegated controllers for the groups of leases. A group with limits below may contain no
    /// processes, so the supervisor moves into its own group if necessary and if no other process is in the
    /// parent group.
    fn delegate(&self, subtree: &CgroupSubtree, base: &Path, dir: &Path) -> HashSet<&'static str> {
        let offered = words(&base.join(CONTROLLERS_FILE));
        let turn_on =
            |at: &Path, name: &str| fs::write(at.join("cgroup.subtree_control"), format!("+{name}"));
        let mut on = HashSet::new();
        for name in CONTROLLERS.into_iter().filter(|name| offered.contains(*name)) {
            let mut done = turn_on(base, name);
            if done.as_ref().is_err_and(|e| Errno::from_io_error(e) == Some(Errno::BUSY))
                && self.move_to_own_group(subtree, base).is_ok()
            {
                done = turn_on(base, name);
            }
            if done.is_ok() && turn_on(dir, name).is_ok() {
                on.insert(name);
            }
        }
        on
    }

    /// Returns the available controllers for this subtree, for diagnostics.
    #[must_use]
    pub fn controllers(&self, subtree: &CgroupSubtree) -> Controllers {
        let base = self.dir(subtree.base()).unwrap_or_else(|_| PathBuf::from(&self.0.point));
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let offered = read(&base.join(CONTROLLERS_FILE));
        Controllers::found(&base.to_string_lossy(), &offered, &read(Path::new("/proc/self/mountinfo")))
    }

    fn move_to_own_group(&self, subtree: &CgroupSubtree, base: &Path) -> io::Result<()> {
        let me = std::process::id().to_string();
        if words(&base.join("cgroup.procs")) != HashSet::from([me.clone()]) {
            return Err(io::Error::other("the supervisor is not alone in its control group"));
        }
        let own = self.dir(&subtree.self_group())?;
        match fs::create_dir(&own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::write(own.join("cgroup.procs"), me)
    }

    /// Creates a group, moves a process into the group, kills both, and checks the result.
    fn test_groups(&self, subtree: &CgroupSubtree, inert: &Path) -> io::Result<()> {
        let leaf = subtree.leaf(LeaseId::mint());
        self.make(&leaf, &CgroupLimits::default())?;
        let result = self.test_kill(&leaf, inert);
        result.and(self.remove(&leaf))
    }

    fn test_kill(&self, leaf: &LeaseCgroup, inert: &Path) -> io::Result<()> {
        let (theirs, _ours) = super::packet::control_pair()?;
        let mut command = Command::new(inert);
        let mut child = command
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let tried = self.join(leaf, pid).and_then(|()| {
            let members = self.list(leaf)?;
            if (members.pids.as_slice(), members.populated) != (&[pid], true) {
                return Err(io::Error::other("a process that was moved into a group is not listed there"));
            }
            let dir = self.dir(leaf.path())?;
            fs::write(dir.join("cgroup.kill"), "1")?;
            wait_until_empty(&dir, TEST_TIMEOUT)?;
            let left = self.list(leaf)?.populated;
            if left { Err(io::Error::other("cgroup.kill did not end a process")) } else { Ok(()) }
        });
        // A child of this process: ensures its end if `cgroup.kill` failed.
        child.kill()?;
        child.wait()?;
        tried
    }
}

/// Chooses the subtree for a state directory with this short id: below `root` if configured, otherwise below
/// the group of this process.
///
/// # Errors
/// The obstacle.
pub fn choose_subtree(
    tree: Option<&CgroupTree>,
    root: Option<&Path>,
    short_id: &str,
) -> Result<CgroupSubtree, CgroupSupport> {
    let tree = tree.ok_or(CgroupSupport::NotMounted)?;
    let base = match root {
        Some(root) => {
            let dir = fs::canonicalize(root).map_err(|_| CgroupSupport::Missing)?;
            tree.0.group(&dir.to_string_lossy())
        }
        None => fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| of_process(&text)),
    };
    base.map(|base| CgroupSubtree::new(&base, short_id)).ok_or(CgroupSupport::OutOfSight)
}

/// Returns the words of a file; empty if the file is unreadable.
fn words(path: &Path) -> HashSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn is_populated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 1")
}

/// True for errors caused by a removed group, before or after opening the file.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV))
}

/// Returns a group and all groups below, parents first.
fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(at) = found.get(next).cloned() {
        next += 1;
        let entries = match fs::read_dir(&at) {
            Err(error) if is_gone(&error) => continue,
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        if found.len() > GROUPS_BELOW_MAX {
            return Err(io::Error::other("there are too many control groups below this one"));
        }
    }
    Ok(found)
}

fn remove_all(dir: &Path) -> io::Result<()> {
    for group in below(dir)?.iter().rev() {
        match fs::remove_dir(group) {
            Err(error) if !is_gone(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Waits at most `wait` until a group is empty. The kernel signals changes of `cgroup.events`.
fn wait_until_empty(dir: &Path, wait: Duration) -> io::Result<()> {
    let until = Instant::now() + wait;
    let mut events = fs::File::open(dir.join("cgroup.events"))?;
    loop {
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        let left = until.saturating_duration_since(Instant::now());
        if !is_populated(&text) || left.is_zero() {
            return Ok(());
        }
        let fd = OwnedFd::from(events.try_clone()?);
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
