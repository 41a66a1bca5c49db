//! People: users and groups as the system knows them, and what people want to read about processes.

use crate::core::tenant::Account;
use nix::unistd::{Gid, Group, Uid, User};
use std::ffi::CString;
use std::io;
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

/// The user with this number, if there is one.
///
/// # Errors
/// The system's list of users cannot be read.
pub fn account(uid: u32) -> io::Result<Option<Account>> {
    Ok(User::from_uid(Uid::from_raw(uid))?.map(of))
}

/// The user with this name, if there is one.
///
/// # Errors
/// As [`account`].
pub fn account_named(name: &str) -> io::Result<Option<Account>> {
    Ok(User::from_name(name)?.map(of))
}

/// The number of the group with this name, if there is one.
///
/// # Errors
/// The system's list of groups cannot be read.
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
        entry: Some((user.name, user.dir.to_string_lossy().into_owned())),
    }
}
