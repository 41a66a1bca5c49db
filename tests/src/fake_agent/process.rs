//! Process operations of scripts.

use nix::sys::signal::{SigSet, Signal};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::process::{Command, Stdio};

/// Lifetime of the started processes if they are not killed.
const STAY_SECONDS: &str = "3600";

/// Blocks SIGTERM in the calling thread. Blocked in all threads, it has no effect.
pub(crate) fn block_sigterm() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    // It fails only for an invalid `how`.
    let _ = set.thread_block();
}

/// Kills this process with SIGKILL.
#[expect(clippy::disallowed_methods, reason = "the process's own pid cannot belong to another process")]
pub(crate) fn kill_self() -> Result<()> {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL)?;
    Ok(())
}

/// Kills a child that leads a process group, and the group. It is not reaped yet, so its pid cannot have been
/// reused.
#[expect(clippy::disallowed_methods, reason = "a child that is not reaped keeps its pid")]
pub(crate) fn kill_group(child: &std::process::Child) -> Result<()> {
    let leader = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let leader = leader.ok_or_else(|| Error::other("no such pid"))?;
    rustix::process::kill_process_group(leader, rustix::process::Signal::KILL)?;
    Ok(())
}

/// Starts a child in this process's group that inherits none of its pipes.
pub(crate) fn fork_child() -> Result<u32> {
    let child = Command::new("sleep")
        .arg(STAY_SECONDS)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child.id())
}

/// Starts a grandchild in its own process session that is orphaned at once and ignores SIGTERM.
pub(crate) fn spawn_setsid() -> Result<u32> {
    let stay = format!("trap '' TERM; echo $$; exec sleep {STAY_SECONDS} </dev/null >/dev/null 2>&1");
    let mut shell = Command::new("sh")
        .args(["-c", "setsid sh -c \"$0\" &", &stay])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let out = shell.stdout.take().ok_or_else(|| Error::other("no pipe"))?;
    shell.wait()?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    line.trim().parse().map_err(|_| Error::new(ErrorKind::InvalidData, "no pid"))
}
