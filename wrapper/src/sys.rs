//! The system calls that no crate wraps safely. This is the wrapper's only file with `unsafe`.
//!
//! The wrapper has one thread for its whole life. That is what makes `fork` sound (no lock can be held by a thread
//! that is not there in the child), and what makes `PR_SET_PDEATHSIG` mean the death of the wrapper: the kernel ties
//! it to the thread that forked.
#![expect(unsafe_code, reason = "fork, execve, waitid with the pid of the child, signal dispositions")]

use crate::plan::Plan;
use acp_shared::launch::ExitStatus;
use nix::errno::Errno;
use nix::libc::{self, c_char, c_int};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The highest signal number of Linux.
const SIGNAL_MAX: c_int = 64;
/// Bytes of the kernel's signal set: one bit for each signal.
const KERNEL_SIGSET_BYTES: usize = SIGNAL_MAX as usize / 8;
/// Exit code of an adapter that was never let go.
const EXIT_NOT_RELEASED: c_int = 125;
/// Bytes of the report about a failed exec: the stage, then the errno.
pub(crate) const REPORT_BYTES: usize = 5;
/// Stage of a report: the working directory could not be entered.
pub(crate) const STAGE_CHDIR: u8 = 1;
/// Stage of a report: no candidate could be executed.
pub(crate) const STAGE_EXEC: u8 = 2;

/// The descriptors of the adapter's side. All of them have numbers above 2.
#[derive(Debug)]
pub(crate) struct AdapterFds {
    /// What becomes its stdin, stdout and stderr.
    pub(crate) stdio: [OwnedFd; 3],
    /// One byte here lets it go; the end of the file ends it.
    pub(crate) go: OwnedFd,
    /// Close-on-exec: a failed exec is reported here, a successful one closes it.
    pub(crate) report: OwnedFd,
}

/// With SIGCHLD at its default, dead children are kept for `waitid`. An inherited "ignore" would reap them unseen.
pub(crate) fn keep_dead_children() -> Result<(), Errno> {
    // SAFETY: SIG_DFL installs no handler, and the pointers are a valid sigaction and null.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &default_action(), std::ptr::null_mut()) })
        .map(drop)
}

fn default_action() -> libc::sigaction {
    // SAFETY: all zeros is a valid sigaction: SIG_DFL, an empty mask, no flags.
    unsafe { std::mem::zeroed() }
}

/// Forks the adapter, blocked before exec. `close` are the wrapper's own descriptors.
///
/// The child leads its own process group, dies with the wrapper, and waits for a byte on `go`.
pub(crate) fn fork_adapter(plan: &Plan, fds: &AdapterFds, close: &[RawFd]) -> Result<i32, Errno> {
    let vectors = Vectors { argv: pointers(&plan.argv), env: pointers(&plan.env) };
    let wrapper = std::process::id().cast_signed();
    // SAFETY: the process has one thread, so the child's memory is consistent; the child allocates nothing.
    match Errno::result(unsafe { libc::fork() })? {
        // SAFETY: this is the forked child, and everything it needs was made before.
        0 => unsafe { adapter(wrapper, plan, &vectors, fds, close) },
        pid => Ok(pid),
    }
}

struct Vectors {
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
}

/// A null-terminated array that points into `texts`, which must outlive it.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

/// The child's side: only async-signal-safe calls, no allocation, no panic.
///
/// # Safety
/// To be called in a freshly forked child of a process with one thread.
unsafe fn adapter(wrapper: i32, plan: &Plan, vectors: &Vectors, fds: &AdapterFds, close: &[RawFd]) -> ! {
    // SAFETY: system calls on numbers and on memory that outlives them; `execve` gets null-terminated arrays of
    // C strings that `plan` keeps alive.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != wrapper {
            libc::_exit(EXIT_NOT_RELEASED);
        }
        for fd in close {
            libc::close(*fd);
        }
        for (number, fd) in (0..).zip(&fds.stdio) {
            if libc::dup2(fd.as_raw_fd(), number) == -1 {
                libc::_exit(EXIT_NOT_RELEASED);
            }
        }
        for fd in &fds.stdio {
            libc::close(fd.as_raw_fd());
        }
        wait_for_go(fds.go.as_raw_fd());
        libc::close(fds.go.as_raw_fd());
        restore_signals();
        let report = fds.report.as_raw_fd();
        if libc::chdir(plan.cwd.as_ptr()) == -1 {
            fail(report, STAGE_CHDIR, Errno::last_raw());
        }
        let mut errno = 0;
        for program in &plan.programs {
            libc::execve(program.as_ptr(), vectors.argv.as_ptr(), vectors.env.as_ptr());
            match Errno::last_raw() {
                libc::EACCES => errno = libc::EACCES,
                e @ (libc::ENOENT | libc::ENOTDIR) if errno == 0 => errno = e,
                libc::ENOENT | libc::ENOTDIR => {}
                e => fail(report, STAGE_EXEC, e),
            }
        }
        fail(report, STAGE_EXEC, if errno == 0 { libc::ENOENT } else { errno })
    }
}

/// # Safety
/// As [`adapter`].
unsafe fn wait_for_go(go: RawFd) {
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte of writable memory is given.
        match unsafe { libc::read(go, (&raw mut byte).cast(), 1) } {
            1 => return,
            -1 if Errno::last_raw() == libc::EINTR => {}
            // SAFETY: ends the child without running anything of the wrapper.
            _ => unsafe { libc::_exit(EXIT_NOT_RELEASED) },
        }
    }
}

/// Default dispositions and an empty mask. The kernel is asked directly: the C library refuses to touch the two signals
/// that it keeps for itself, and somebody above may have left them ignored.
///
/// # Safety
/// As [`adapter`].
unsafe fn restore_signals() {
    // The kernel's own sigaction, all zeros: SIG_DFL, no flags, an empty mask. No architecture's is longer.
    let default = [0u64; 8];
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: SIG_DFL installs no handler; a refused number (KILL, STOP) changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                KERNEL_SIGSET_BYTES,
            )
        };
    }
    // SAFETY: `sigemptyset` initialises the set that `sigprocmask` reads.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// # Safety
/// As [`adapter`].
unsafe fn fail(report: RawFd, stage: u8, errno: i32) -> ! {
    let [a, b, c, d] = errno.to_ne_bytes();
    let bytes: [u8; REPORT_BYTES] = [stage, a, b, c, d];
    let not_found = stage == STAGE_EXEC && errno == libc::ENOENT;
    // SAFETY: REPORT_BYTES bytes of readable memory are given; then the child ends.
    unsafe {
        libc::write(report, bytes.as_ptr().cast(), REPORT_BYTES);
        libc::_exit(if not_found { 127 } else { 126 })
    }
}

/// A child that ended and can still be waited for: it stays a zombie, so its number stays its own.
pub(crate) fn peek_dead_child() -> Result<Option<(i32, ExitStatus)>, Errno> {
    wait(libc::P_ALL, 0, libc::WNOWAIT)
}

/// How one child ended, if it ended; it stays a zombie.
pub(crate) fn peek_child(pid: i32) -> Result<Option<ExitStatus>, Errno> {
    Ok(wait(libc::P_PID, pid, libc::WNOWAIT)?.map(|(_, status)| status))
}

/// Reaps one child, if it ended.
pub(crate) fn reap(pid: i32) -> Result<Option<ExitStatus>, Errno> {
    Ok(wait(libc::P_PID, pid, 0)?.map(|(_, status)| status))
}

fn wait(kind: libc::idtype_t, pid: i32, flags: c_int) -> Result<Option<(i32, ExitStatus)>, Errno> {
    let flags = flags | libc::WEXITED | libc::WNOHANG;
    loop {
        // SAFETY: all zeros is a valid siginfo_t; it is written by the call.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is writable and lives over the call.
        match Errno::result(unsafe { libc::waitid(kind, pid.cast_unsigned(), &mut info, flags) }) {
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
            Ok(_) => {
                // SAFETY: after a successful waitid these fields are those of a child, or zero.
                let (pid, code) = unsafe { (info.si_pid(), info.si_status()) };
                return Ok(match (pid, info.si_code) {
                    (0, _) => None,
                    (_, libc::CLD_EXITED) => Some((pid, ExitStatus::Exited(code))),
                    _ => Some((pid, ExitStatus::Signaled(code))),
                });
            }
        }
    }
}

/// Sends a signal to the group of a child that the caller has not reaped yet: until then the number cannot become
/// another group's. True when somebody got it.
pub(crate) fn signal_group_of_unreaped(leader: i32, signal: i32) -> bool {
    // SAFETY: no memory is involved. `leader` > 1 keeps kill from meaning "everybody".
    leader > 1 && unsafe { libc::kill(-leader, signal) } == 0
}
