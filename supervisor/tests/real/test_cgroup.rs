//! Control groups of tests: one parent for each host, removed with it.

use crate::common::TIMEOUT;
use acp_shared::ids::LeaseId;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Prints a failed probe of an ability.
#[expect(clippy::print_stderr, reason = "a test that cannot run prints the reason")]
pub(crate) fn report_probe(tried: &str, got: &dyn std::fmt::Debug) {
    eprintln!("probe: {tried}: {got:?}");
}

/// Mount point of cgroup v2.
fn mount() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// A cgroup owned by the test; dropping the value kills all processes in it.
pub(crate) struct TestGroup(PathBuf);

impl TestGroup {
    /// Creates the cgroup. Returns `None` and prints the error if the machine does not allow it.
    pub(crate) fn new() -> Option<Self> {
        let Some(mount) = mount() else {
            report_probe("a cgroup2 line in /proc/self/mountinfo", &"none");
            return None;
        };
        let dir = mount.join(format!("acp-test-{}", LeaseId::mint()));
        match std::fs::create_dir(&dir) {
            Err(error) => {
                report_probe(&format!("mkdir {}", dir.display()), &error);
                None
            }
            Ok(()) => Some(Self(dir)),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// All cgroups below it.
    pub(crate) fn descendants(&self) -> Vec<PathBuf> {
        descendants(&self.0)
    }

    /// Cgroup of a lease.
    pub(crate) fn leaf(&self, lease_id: LeaseId) -> Option<PathBuf> {
        self.descendants().into_iter().find(|dir| dir.ends_with(lease_id.to_string()))
    }
}

fn descendants(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path());
    dirs.flat_map(|dir| std::iter::once(dir.clone()).chain(descendants(&dir))).collect()
}

/// Processes of a cgroup itself.
pub(crate) fn members(group: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// Moves a process into a cgroup.
pub(crate) fn add_process(group: &Path, pid: i32) {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let until = Instant::now() + TIMEOUT;
        let mut removed = false;
        while !removed && Instant::now() < until {
            for dir in self.descendants().iter().rev() {
                let _ = std::fs::remove_dir(dir);
            }
            removed = std::fs::remove_dir(&self.0).is_ok();
            std::thread::yield_now();
        }
        assert!(removed || std::thread::panicking(), "cannot remove the test's cgroups");
    }
}
