//! User and group lookup, and memory usage of processes for reports.

use crate::core::tenant::{Account, PasswdEntry};
use nix::unistd::{Gid, Group, Uid, User};
use std::ffi::CString;
use std::io;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Returns the total resident memory of these processes, in bytes; `None` if unreadable.
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

/// Returns the user with this id, if any.
///
/// # Errors
/// The user database is unreadable.
pub fn account(uid: u32) -> io::Result<Option<Account>> {
    Ok(User::from_uid(Uid::from_raw(uid))?.map(of))
}

/// Returns the user with this name, if any.
///
/// # Errors
/// Same as [`account`].
pub fn account_named(name: &str) -> io::Result<Option<Account>> {
    Ok(User::from_name(name)?.map(of))
}

/// Returns the id of the group with this name, if any.
///
/// # Errors
/// The group database is unreadable.
pub fn group_named(name: &str) -> io::Result<Option<u32>> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

fn of(user: User) -> Account {
    let groups = CString::new(user.name.as_bytes())
        .ok()
        .and_then(|name| nix::unistd::getgrouplist(&name, user.gid).ok())
        .unwrap_or_default();
    Account {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        entry: Some(PasswdEntry {
            name: user.name,
            home: user.dir.to_string_lossy().into_owned(),
            shell: user.shell.to_string_lossy().into_owned(),
        }),
    }
}
