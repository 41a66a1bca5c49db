//! Control groups for tests: a group for each host, removed with it, and what is to be read in a lease's own.

use crate::common::DEADLINE;
use acp_shared::ids::LeaseId;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Says what was tried of an ability that this machine lacks.
#[expect(clippy::print_stderr, reason = "a test that cannot run prints the reason")]
pub(crate) fn probe(tried: &str, got: &dyn std::fmt::Debug) {
    eprintln!("probe: {tried}: {got:?}");
}

/// Where cgroup v2 is mounted.
fn mount() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// A group that this test may do everything in. Dropped, it is ended with all that is in it.
pub(crate) struct TestGroup(PathBuf);

impl TestGroup {
    /// `None`, with what was tried printed, where this machine does not let the test make one.
    pub(crate) fn new() -> Option<Self> {
        let Some(mount) = mount() else {
            probe("a cgroup2 line in /proc/self/mountinfo", &"none");
            return None;
        };
        let dir = mount.join(format!("acp-test-{}", LeaseId::mint()));
        match std::fs::create_dir(&dir) {
            Err(error) => {
                probe(&format!("mkdir {}", dir.display()), &error);
                None
            }
            Ok(()) => Some(Self(dir)),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// Every group below it.
    pub(crate) fn below(&self) -> Vec<PathBuf> {
        below(&self.0)
    }

    /// The group of a lease.
    pub(crate) fn leaf(&self, lease_id: LeaseId) -> Option<PathBuf> {
        self.below().into_iter().find(|dir| dir.ends_with(lease_id.to_string()))
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path());
    dirs.flat_map(|dir| std::iter::once(dir.clone()).chain(below(&dir))).collect()
}

/// The processes that are in a group itself.
pub(crate) fn members(group: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// Moves a process into a group.
pub(crate) fn put(group: &Path, pid: i32) {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let until = Instant::now() + DEADLINE;
        let mut removed = false;
        while !removed && Instant::now() < until {
            for dir in self.below().iter().rev() {
                let _ = std::fs::remove_dir(dir);
            }
            removed = std::fs::remove_dir(&self.0).is_ok();
            std::thread::yield_now();
        }
        assert!(removed || std::thread::panicking(), "the groups of the test cannot be removed");
    }
}
