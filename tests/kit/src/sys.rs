//! System calls without a wrapper crate. The only file of the test packages with `unsafe` code.

#![expect(
    unsafe_code,
    reason = "clone3 with a chosen pid, filters of system calls in a child: no safe wrapper"
)]

use nix::errno::Errno;
use nix::libc;
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A process with a chosen pid; dropping the value kills and reaps it.
#[derive(Debug)]
pub struct ForeignProcess {
    pid: i32,
    pidfd: OwnedFd,
}

impl ForeignProcess {
    /// Starts a program, given by its full path, with a free pid and optionally this standard input.
    ///
    /// # Errors
    /// `EEXIST` if the pid is in use, `EPERM` without the privilege to choose one.
    pub fn with_pid(
        pid: i32,
        argv: &[&str],
        env: &[(&str, &str)],
        stdin: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let texts = |list: Vec<String>| {
            list.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().map_err(io::Error::other)
        };
        let argv = texts(argv.iter().map(|arg| (*arg).to_owned()).collect())?;
        let env = texts(env.iter().map(|(name, value)| format!("{name}={value}")).collect())?;
        let (args, vars) = (pointers(&argv), pointers(&env));
        let stdin = stdin.map(|fd| fd.as_raw_fd());
        let mut pidfd: libc::c_int = -1;
        let tids = [pid];
        // SAFETY: all zeros is a valid clone_args.
        let mut how: libc::clone_args = unsafe { std::mem::zeroed() };
        how.flags = u64::try_from(libc::CLONE_PIDFD).map_err(io::Error::other)?;
        how.pidfd = (&raw mut pidfd).addr() as u64;
        how.exit_signal = libc::SIGCHLD as u64;
        how.set_tid = tids.as_ptr().addr() as u64;
        how.set_tid_size = 1;
        // SAFETY: without CLONE_VM the child has its own memory, as after fork. All pointers in `how` outlive the call.
        let made = unsafe { libc::syscall(libc::SYS_clone3, &raw mut how, size_of::<libc::clone_args>()) };
        if made == 0 {
            // SAFETY: the child calls only functions allowed after a fork of a threaded process, with prepared arrays
            // that end in null.
            unsafe {
                if let Some(fd) = stdin {
                    libc::dup2(fd, 0);
                }
                libc::execve(args[0], args.as_ptr(), vars.as_ptr());
                libc::_exit(127);
            }
        }
        if made < 0 {
            return Err(Errno::last().into());
        }
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        Ok(Self { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
    }

    /// Pid of the process.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// True if the process has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Opens a pidfd.
///
/// # Errors
/// If no such process exists.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Makes these system calls fail with `errno` in a command and its descendants.
pub fn refuse(command: &mut Command, calls: &[libc::c_long], errno: i32) {
    let filter = filter(calls, errno);
    let install = move || {
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: two calls of prctl; the program outlives the second.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    #[expect(clippy::disallowed_methods, reason = "a filter can only be set by the process itself")]
    unsafe {
        command.pre_exec(install);
    }
}

/// Builds a seccomp filter: these calls fail, all others are allowed.
fn filter(calls: &[libc::c_long], errno: i32) -> Vec<libc::sock_filter> {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf: 0,
        k,
    };
    // The number of the call is the first field of the kernel's `seccomp_data`.
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let to_refusal = u8::try_from(calls.len() - at).unwrap_or(u8::MAX);
        let number = u32::try_from(*call).unwrap_or(u32::MAX);
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_refusal, number));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let refusal = libc::SECCOMP_RET_ERRNO | (errno.cast_unsigned() & libc::SECCOMP_RET_DATA);
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, refusal));
    program
}

/// Version of Landlock in the kernel.
///
/// # Errors
/// If the kernel does not support Landlock.
pub fn landlock_abi() -> io::Result<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes a null pointer and a size of 0.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(abi).map_err(|_| io::Error::last_os_error())
}

/// System call boundary of a stopped traced thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Before this system call.
    Entry {
        /// Number of the call.
        call: libc::c_long,
        /// Arguments of the call.
        args: [u64; 6],
    },
    /// After a system call with this result.
    Exit(i64),
}

/// Returns the boundary at which a thread traced by the calling thread is stopped; `None` for a dead thread or
/// another stop.
#[must_use]
pub fn boundary(thread: nix::unistd::Pid) -> Option<Boundary> {
    let info = nix::sys::ptrace::syscall_info(thread).ok()?;
    match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` names the valid union member.
            let entry = unsafe { info.u.entry };
            Some(Boundary::Entry { call: entry.nr.try_into().ok()?, args: entry.args })
        }
        // SAFETY: as above.
        libc::PTRACE_SYSCALL_INFO_EXIT => Some(Boundary::Exit(unsafe { info.u.exit }.sval)),
        _ => None,
    }
}
