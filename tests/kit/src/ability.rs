//! Abilities of the machine, each probed by trying it: a container may remove what the kernel's version
//! promises.

use crate::sys;
use rustix::process::geteuid;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An ability that a test may need and a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// The tests run as root.
    Root,
    /// A process can be created with a chosen pid (`clone3` with `set_tid`).
    ChosenPid,
    /// A mount namespace with a `/proc` that hides the processes of others.
    HiddenProc,
    /// A pid namespace with its own `/proc`.
    PidNamespace,
    /// A time namespace with another boot time.
    TimeNamespace,
    /// A filter of system calls.
    Seccomp,
    /// One process can trace another.
    Ptrace,
    /// cgroups of version 2 can limit memory, processes and CPU time.
    CgroupLimits,
    /// cgroups can be frozen so that not even SIGKILL takes effect (version 1).
    CgroupFreezer,
    /// Processes of another user can be created.
    ForeignUser,
    /// Network namespaces with cables between them can be created (`iproute2`, root).
    NetworkNamespaces,
}

/// The user of foreign processes in tests: `nobody`.
pub const FOREIGN_UID: u32 = 65_534;

/// Probes an ability.
///
/// # Errors
/// The attempt and its result, if the ability is missing.
pub fn has(ability: Ability) -> Result<(), String> {
    match ability {
        Ability::Root => root(),
        Ability::ChosenPid => chosen_pid(),
        Ability::HiddenProc => {
            run(&["unshare", "-m", "mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"])
        }
        Ability::PidNamespace => run(&["unshare", "-p", "-f", "--mount-proc", "true"]),
        Ability::TimeNamespace => run(&["unshare", "-T", "--boottime", "1000", "true"]),
        Ability::Seccomp => seccomp(),
        Ability::Ptrace => ptrace(),
        Ability::CgroupLimits => cgroup_limits(),
        Ability::CgroupFreezer => cgroup_freezer(),
        Ability::ForeignUser => foreign_user(),
        // Namespaces that are gone with the process: `ip netns` needs the same privileges.
        Ability::NetworkNamespaces => {
            run(&["unshare", "-n", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"])?;
            root().and_then(|()| run(&["nsenter", "--version"]))
        }
    }
}

fn run(argv: &[&str]) -> Result<(), String> {
    let Some((program, args)) = argv.split_first() else { return Err("nothing to run".into()) };
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{argv:?}: {}: {}", output.status, stderr.trim()))
    }
}

fn root() -> Result<(), String> {
    let uid = geteuid().as_raw();
    if uid == 0 { Ok(()) } else { Err(format!("the tests run as uid {uid}")) }
}

fn chosen_pid() -> Result<(), String> {
    const ATTEMPTS_MAX: u32 = 20;
    let mut last = String::new();
    for _ in 0..ATTEMPTS_MAX {
        // A pid that was just freed.
        let mut dead = Command::new("true").spawn().map_err(|e| format!("true: {e}"))?;
        dead.wait().map_err(|e| format!("wait: {e}"))?;
        let pid = i32::try_from(dead.id()).map_err(|e| e.to_string())?;
        match sys::ForeignProcess::with_pid(pid, &["/bin/sleep", "60"], &[], None) {
            Ok(_) => return Ok(()),
            Err(e) => last = format!("clone3 with pid {pid}: {e}"),
        }
    }
    Err(last)
}

fn seccomp() -> Result<(), String> {
    let mut command = Command::new("true");
    sys::refuse(&mut command, &[nix::libc::SYS_pidfd_open], nix::libc::ENOSYS);
    let status = command.status().map_err(|e| format!("a filter for pidfd_open: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("a program under a filter: {status}")) }
}

fn ptrace() -> Result<(), String> {
    use nix::sys::ptrace::{Options, detach, seize};
    let mut child = Command::new("sleep").arg("60").spawn().map_err(|e| format!("sleep: {e}"))?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).map_err(|e| e.to_string())?);
    let seized = seize(pid, Options::empty()).map_err(|e| format!("PTRACE_SEIZE: {e}"));
    // Only a stopped process can be detached.
    let _ = detach(pid, None);
    let killed = child.kill().and_then(|()| child.wait()).map_err(|e| format!("the traced process: {e}"));
    seized.and(killed.map(drop))
}

/// Path of the test's own cgroup in the version 1 freezer.
///
/// # Errors
/// If the freezer is not mounted.
pub fn cgroup_freezer_home() -> Result<PathBuf, String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
    let found = text.lines().find_map(|line| line.split_once(":freezer:"));
    let (_, own) = found.ok_or("no :freezer: in /proc/self/cgroup")?;
    Ok(mount_point("cgroup", "freezer")?.join(own.trim_start_matches('/')))
}

fn mount_point(kind: &str, option: &str) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string("/proc/self/mounts").map_err(|e| format!("/proc/self/mounts: {e}"))?;
    let mut rows = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = rows.find_map(|row| match row.as_slice() {
        [_, at, is, options, ..] if *is == kind => {
            (option.is_empty() || options.split(',').any(|o| o == option)).then(|| PathBuf::from(at))
        }
        _ => None,
    });
    found.ok_or(format!("no {kind} {option} is mounted"))
}

fn with_probe_dir(home: &Path, probe: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let dir = home.join(format!("acp-probe-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|e| format!("mkdir {}: {e}", dir.display()))?;
    let result = probe(&dir);
    std::fs::remove_dir(&dir).map_err(|e| format!("rmdir {}: {e}", dir.display()))?;
    result
}

/// Checks the controllers of a cgroup below the root, where the tests create theirs. No test enables a controller
/// for the whole machine.
fn cgroup_limits() -> Result<(), String> {
    let mounts =
        std::fs::read_to_string("/proc/self/mounts").map_err(|e| format!("/proc/self/mounts: {e}"))?;
    with_probe_dir(&mount_point("cgroup2", "")?, |dir| {
        let file = dir.join("cgroup.controllers");
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let has: Vec<&str> = text.split_ascii_whitespace().collect();
        let wanted = ["memory", "pids", "cpu"].into_iter();
        let missing: Vec<String> = wanted
            .filter(|name| !has.contains(name))
            .map(|name| format!("{name} ({})", controller_location(name, &mounts)))
            .collect();
        let why = || format!("controllers missing in {}: {}", file.display(), missing.join(", "));
        if missing.is_empty() { Ok(()) } else { Err(why()) }
    })
}

/// Place of a controller missing from version 2.
fn controller_location(controller: &str, mounts: &str) -> String {
    let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = rows.find_map(|row| match row.as_slice() {
        [_, at, "cgroup", options, ..] if options.split(',').any(|o| o == controller) => Some(*at),
        _ => None,
    });
    found.map_or("not enabled for the groups below the root".into(), |at| format!("in cgroup v1 at {at}"))
}

fn cgroup_freezer() -> Result<(), String> {
    with_probe_dir(&cgroup_freezer_home()?, |dir| {
        let state = dir.join("freezer.state");
        std::fs::write(&state, "THAWED").map_err(|e| format!("{}: {e}", state.display()))
    })
}

fn foreign_user() -> Result<(), String> {
    let status = Command::new("true").uid(FOREIGN_UID).gid(FOREIGN_UID).status();
    let status = status.map_err(|e| format!("a process of uid {FOREIGN_UID}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("a process of uid {FOREIGN_UID}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip_unless;

    /// Every probe terminates, explains a failure, and does not affect the next one.
    #[test]
    fn repeated_probes_agree() {
        let all = [
            Ability::Root,
            Ability::ChosenPid,
            Ability::HiddenProc,
            Ability::PidNamespace,
            Ability::TimeNamespace,
            Ability::Seccomp,
            Ability::Ptrace,
            Ability::CgroupLimits,
            Ability::CgroupFreezer,
            Ability::ForeignUser,
        ];
        for ability in all {
            let first = has(ability);
            println!("{ability:?}: {first:?}");
            assert_eq!(has(ability).is_ok(), first.is_ok(), "{ability:?}");
            assert!(first.err().is_none_or(|why| !why.is_empty()), "{ability:?}");
        }
    }

    #[test]
    fn process_gets_chosen_pid() {
        skip_unless!(Ability::ChosenPid);
        let mut dead = Command::new("true").spawn().unwrap_or_else(|e| panic!("{e}"));
        dead.wait().unwrap_or_else(|e| panic!("{e}"));
        let pid = i32::try_from(dead.id()).unwrap_or_else(|e| panic!("{e}"));
        let process = sys::ForeignProcess::with_pid(pid, &["/bin/sleep", "60"], &[("A", "b")], None);
        let process = process.unwrap_or_else(|e| panic!("{e}"));
        assert!(process.is_running());
        assert!(sys::ForeignProcess::with_pid(pid, &["/bin/sleep", "60"], &[], None).is_err());
    }

    #[test]
    fn refused_system_call_fails_in_child_only() {
        skip_unless!(Ability::Seccomp);
        let mut command = Command::new("kill");
        command.args(["-0", &std::process::id().to_string()]).stderr(Stdio::null());
        sys::refuse(&mut command, &[nix::libc::SYS_kill], nix::libc::EPERM);
        let status = command.status().unwrap_or_else(|e| panic!("{e}"));
        assert!(!status.success(), "{status}");
        let status = Command::new("kill").args(["-0", &std::process::id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}
