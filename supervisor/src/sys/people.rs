//! What people want to read about processes; nothing is decided by it.

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Resident memory of these processes together, in bytes; `None` where it cannot be read.
#[must_use]
pub fn memory_bytes(pids: &[i32]) -> Option<u64> {
    if pids.is_empty() {
        return None;
    }
    let wanted: Vec<Pid> = pids.iter().filter_map(|pid| usize::try_from(*pid).ok()).map(Pid::from).collect();
    let mut system = System::new().ok()?;
    let kind = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&wanted), true, kind);
    Some(wanted.iter().filter_map(|pid| system.process(*pid)).map(sysinfo::Process::memory).sum())
}
