//! System calls without a safe wrapper in a crate. This is the only file of the wrapper with `unsafe`.
//!
//! The wrapper has one thread for its whole life. This makes `fork` sound (no lock can be held by a thread
//! that does not exist in the child), and ties `PR_SET_PDEATHSIG` to the death of the wrapper: the kernel
//! ties it to the thread that forked.
#![expect(unsafe_code, reason = "fork, calls of the child before exec, waitid, signal dispositions")]

use crate::confine::{self, Confinement, PrivatePath};
use crate::exec_step::ExecStep;
use crate::launch_spec::LaunchPlan;
use acp_shared::launch::ExitStatus;
use nix::errno::Errno;
use nix::libc::{self, c_char, c_int, c_long, c_uint};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Highest signal number of Linux.
const SIGNAL_MAX: c_int = 64;
/// Size of the kernel's signal set, in bytes: one bit for each signal.
const KERNEL_SIGSET_BYTES: usize = SIGNAL_MAX as usize / 8;
/// Exit code of an adapter that was never released.
const EXIT_NOT_RELEASED: c_int = 125;
/// Size of the report about a failed start, in bytes: the [`ExecStep`], then the errno.
pub(crate) const REPORT_BYTES: usize = 5;
/// Flags of open(2) for a directory whose entries are not read.
const DIRECTORY: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
/// Descriptors of the child after the fork. All of them have numbers above 2.
#[derive(Debug)]
pub(crate) struct AdapterFds {
    /// Future stdin, stdout and stderr of the adapter.
    pub(crate) stdio: [OwnedFd; 3],
    /// Read end of the release pipe: one byte releases the child, end of file ends it.
    pub(crate) go: OwnedFd,
    /// Write end of the report pipe, close-on-exec: a failed exec is reported here, a successful one closes
    /// it.
    pub(crate) report: OwnedFd,
}

/// Closes every descriptor from `first` on. No other code may own one of them.
pub(crate) fn close_all_from(first: c_uint) -> Result<(), Errno> {
    // SAFETY: no memory is involved; it is called before the wrapper has opened anything.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) }).map(drop)
}

/// Resets SIGCHLD to its default, so that dead children are kept for `waitid`. With an inherited "ignore",
/// the kernel would reap them.
pub(crate) fn keep_children_waitable() -> Result<(), Errno> {
    // SAFETY: SIG_DFL installs no handler, and the pointers are a valid sigaction and null.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &default_sigaction(), std::ptr::null_mut()) })
        .map(drop)
}

fn default_sigaction() -> libc::sigaction {
    // SAFETY: all zeros is a valid sigaction: SIG_DFL, an empty mask, no flags.
    unsafe { std::mem::zeroed() }
}

/// Inputs of the child after the fork.
#[derive(Debug)]
pub(crate) struct AdapterProcess<'a> {
    /// Program to execute.
    pub(crate) plan: &'a LaunchPlan,
    /// Restrictions to apply before the exec.
    pub(crate) confinement: &'a Confinement,
    /// Descriptors of the child.
    pub(crate) fds: AdapterFds,
}

/// Forks the adapter, blocked before exec. `close` lists the wrapper's own descriptors.
///
/// The child leads its own process group, dies with the wrapper, and waits for a byte on `go`.
pub(crate) fn fork_adapter(adapter: &AdapterProcess<'_>, close: &[RawFd]) -> Result<i32, Errno> {
    let vectors = ExecVectors { argv: pointers(&adapter.plan.argv), env: pointers(&adapter.plan.env) };
    let wrapper = std::process::id().cast_signed();
    // SAFETY: the process has one thread, so the child's memory is consistent; the child allocates nothing.
    match Errno::result(unsafe { libc::fork() })? {
        // SAFETY: this is the forked child, and everything it needs was made before.
        0 => unsafe { become_adapter(wrapper, adapter, &vectors, close) },
        pid => Ok(pid),
    }
}

struct ExecVectors {
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
}

/// Returns a null-terminated array of pointers into `texts`, which must outlive the array.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

/// Runs the child: only async-signal-safe calls, no allocation, no panic.
///
/// # Safety
/// To be called in a freshly forked child of a process with one thread.
unsafe fn become_adapter(
    wrapper: i32,
    adapter: &AdapterProcess<'_>,
    vectors: &ExecVectors,
    close: &[RawFd],
) -> ! {
    let report = adapter.fds.report.as_raw_fd();
    // SAFETY: as this function's own; every step makes system calls on numbers and on memory that outlives it.
    let (stage, errno) = unsafe {
        libc::setpgid(0, 0);
        set_parent_death_signal(wrapper);
        set_up_stdio(&adapter.fds, close);
        wait_for_go(adapter.fds.go.as_raw_fd());
        libc::close(adapter.fds.go.as_raw_fd());
        restore_signals();
        match apply_restrictions(wrapper, adapter.confinement, adapter.plan) {
            Ok(()) => (ExecStep::Exec, exec(adapter.plan, vectors)),
            Err(failed) => failed,
        }
    };
    // SAFETY: as this function's own; the descriptor is open.
    unsafe { report_failure(report, stage, errno) }
}

/// Lets the kernel kill this child when the wrapper dies. If the wrapper is already dead, the child exits.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn set_parent_death_signal(wrapper: i32) {
    // SAFETY: no memory is involved; `_exit` runs nothing of the wrapper.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != wrapper {
            libc::_exit(EXIT_NOT_RELEASED);
        }
    }
}

/// Makes the adapter's three pipes its stdio and closes the wrapper's descriptors.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn set_up_stdio(fds: &AdapterFds, close: &[RawFd]) {
    // SAFETY: no memory is involved, and no descriptor that is closed here is used again in this child.
    unsafe {
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
    }
}

/// Drops the supervisor's privileges. The order matters: steps that need the supervisor's user come first,
/// the working directory is entered as the adapter's user, and the ruleset comes last.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn apply_restrictions(
    wrapper: i32,
    confinement: &Confinement,
    plan: &LaunchPlan,
) -> Result<(), (ExecStep, i32)> {
    // SAFETY: system calls on numbers and on memory that `confinement` and `plan` keep alive.
    unsafe {
        if let Some(score) = &confinement.oom_score_adj {
            write_file(c"/proc/self/oom_score_adj", score).map_err(|errno| (ExecStep::OomScore, errno))?;
        }
        for (resource, limit) in &confinement.limits {
            let none = std::ptr::null_mut::<libc::rlimit64>();
            check(
                ExecStep::Limits,
                libc::syscall(libc::SYS_prlimit64, 0, *resource, &raw const *limit, none),
            )?;
        }
        if let Some(identity) = &confinement.identity {
            give_stdio_to(identity.uid);
            let (groups, count) = (identity.groups.as_ptr(), identity.groups.len());
            check(ExecStep::Groups, libc::setgroups(count, groups))?;
            check(ExecStep::Group, libc::setresgid(identity.gid, identity.gid, identity.gid))?;
            check(ExecStep::User, libc::setresuid(identity.uid, identity.uid, identity.uid))?;
            drop_capabilities().map_err(|errno| (ExecStep::Capabilities, errno))?;
            // The change of the user has reset the signal of `set_parent_death_signal`.
            set_parent_death_signal(wrapper);
        }
        if let Some(umask) = confinement.umask {
            libc::umask(umask);
        }
        if confinement.no_new_privs {
            check(ExecStep::NoNewPrivs, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        }
        change_dir(&plan.cwd, confinement.cwd_without_links)?;
        if let Some(ruleset) = &confinement.ruleset {
            for private in &confinement.private {
                allow_private(ruleset.as_raw_fd(), private)
                    .map_err(|errno| (ExecStep::PrivateHome, errno))?;
            }
            check(
                ExecStep::Landlock,
                libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0),
            )?;
        }
        Ok(())
    }
}

/// Enters the working directory; with `without_links`, only by a path without links.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn change_dir(cwd: &CStr, without_links: bool) -> Result<(), (ExecStep, i32)> {
    // SAFETY: the path ends with NUL; all zeros is a valid `open_how`, of which as many bytes are read as there are.
    unsafe {
        if !without_links {
            return check(ExecStep::Chdir, libc::chdir(cwd.as_ptr()));
        }
        let fd = open_without_links(libc::AT_FDCWD, cwd).map_err(|errno| (ExecStep::Chdir, errno))?;
        // The descriptor is closed by the exec.
        check(ExecStep::Chdir, libc::fchdir(fd))
    }
}

/// Opens a directory by a path without links.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn open_without_links(at: RawFd, path: &CStr) -> Result<RawFd, i32> {
    // SAFETY: the path ends with NUL; all zeros is a valid `open_how`, of which as many bytes are read as there are.
    unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = u64::from(DIRECTORY.cast_unsigned());
        how.resolve = libc::RESOLVE_NO_SYMLINKS;
        let bytes = size_of::<libc::open_how>();
        match libc::syscall(libc::SYS_openat2, at, path.as_ptr(), &raw mut how, bytes) {
            -1 => Err(Errno::last_raw()),
            fd => Ok(c_int::try_from(fd).unwrap_or(-1)),
        }
    }
}

/// Creates a private directory as the adapter's user, and allows the adapter to write in it. Only the home directory may
/// be reached by links: one below it could redirect the permission.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn allow_private(ruleset: RawFd, private: &PrivatePath) -> Result<(), i32> {
    /// `LANDLOCK_RULE_PATH_BENEATH` of linux/landlock.h.
    const PATH_BENEATH: c_int = 1;
    // SAFETY: all paths end with NUL; `stat` is writable, and `rule` is laid out as the kernel's structure, which it reads.
    // Descriptors that are left open here are closed by the exec.
    unsafe {
        let mut fd = libc::open(private.home.as_ptr(), DIRECTORY);
        if fd == -1 {
            return Err(Errno::last_raw());
        }
        for name in &private.names {
            if libc::mkdirat(fd, name.as_ptr(), 0o700) == -1 && Errno::last_raw() != libc::EEXIST {
                return Err(Errno::last_raw());
            }
            fd = open_without_links(fd, name)?;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) == -1 {
            return Err(Errno::last_raw());
        }
        if stat.st_uid != libc::geteuid() {
            return Err(libc::EPERM);
        }
        let rule = PathBeneathRule { allowed_access: confine::private_rights(), parent_fd: fd };
        match libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, 0) {
            -1 => Err(Errno::last_raw()),
            _ => Ok(()),
        }
    }
}

/// `landlock_path_beneath_attr` of linux/landlock.h.
#[repr(C, packed)]
struct PathBeneathRule {
    allowed_access: u64,
    parent_fd: c_int,
}

/// Converts the result of a call that returns -1 on failure.
fn check(stage: ExecStep, result: impl Into<c_long>) -> Result<(), (ExecStep, i32)> {
    if result.into() == -1 { Err((stage, Errno::last_raw())) } else { Ok(()) }
}

/// Gives pipes on stdio to the adapter's user: a pipe belongs to its creator, and reopening it, for example
/// as `/dev/stderr`, needs ownership. A failure is ignored.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn give_stdio_to(uid: libc::uid_t) {
    for fd in 0..=2 {
        // SAFETY: all zeros is a valid stat, which the call writes; then no memory is involved.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO {
                libc::fchown(fd, uid, libc::gid_t::MAX);
            }
        }
    }
}

/// Clears all capabilities. The change from root to another user does so by default, but inherited securebits
/// can prevent it.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn drop_capabilities() -> Result<(), i32> {
    /// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h, for this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    /// Effective, permitted, inheritable; twice, for capabilities above 31.
    const NONE: [u32; 6] = [0; 6];
    // SAFETY: the two arrays are laid out as the kernel's structures, and it reads only.
    unsafe {
        // Fails on old kernels without ambient capabilities, which have none to clear.
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        match libc::syscall(libc::SYS_capset, HEADER.as_ptr(), NONE.as_ptr()) {
            0 => Ok(()),
            _ => Err(Errno::last_raw()),
        }
    }
}

/// # Safety
/// As [`become_adapter`].
unsafe fn write_file(path: &CStr, text: &[u8]) -> Result<(), i32> {
    // SAFETY: the path ends with NUL, and as many bytes are read as there are.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd == -1 {
            return Err(Errno::last_raw());
        }
        let wrote = libc::write(fd, text.as_ptr().cast(), text.len());
        let errno = Errno::last_raw();
        libc::close(fd);
        if wrote == -1 { Err(errno) } else { Ok(()) }
    }
}

/// Tries the candidate paths in order. Returns only if none could be executed, with the most informative
/// errno.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn exec(plan: &LaunchPlan, vectors: &ExecVectors) -> i32 {
    let mut errno = 0;
    for program in &plan.programs {
        // SAFETY: `execve` gets null-terminated arrays of C strings that `plan` keeps alive.
        unsafe { libc::execve(program.as_ptr(), vectors.argv.as_ptr(), vectors.env.as_ptr()) };
        match Errno::last_raw() {
            libc::EACCES => errno = libc::EACCES,
            e @ (libc::ENOENT | libc::ENOTDIR) if errno == 0 => errno = e,
            libc::ENOENT | libc::ENOTDIR => {}
            e => return e,
        }
    }
    if errno == 0 { libc::ENOENT } else { errno }
}

/// # Safety
/// As [`become_adapter`].
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

/// Restores default dispositions and an empty mask. Calls the kernel directly: the C library refuses to
/// change its two reserved signals, which a parent process may have left ignored.
///
/// # Safety
/// As [`become_adapter`].
unsafe fn restore_signals() {
    // The kernel's sigaction, all zeros: SIG_DFL, no flags, empty mask. Large enough for all architectures.
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
/// As [`become_adapter`].
unsafe fn report_failure(report: RawFd, stage: ExecStep, errno: i32) -> ! {
    let [a, b, c, d] = errno.to_ne_bytes();
    let bytes: [u8; REPORT_BYTES] = [stage as u8, a, b, c, d];
    let not_found = stage == ExecStep::Exec && errno == libc::ENOENT;
    // SAFETY: REPORT_BYTES bytes of readable memory are given; then the child ends.
    unsafe {
        libc::write(report, bytes.as_ptr().cast(), REPORT_BYTES);
        libc::_exit(if not_found { 127 } else { 126 })
    }
}

/// Returns a child that has ended, without reaping the child: a zombie's pid is not reused.
pub(crate) fn peek_dead_child() -> Result<Option<(i32, ExitStatus)>, Errno> {
    wait(libc::P_ALL, 0, libc::WNOWAIT)
}

/// Returns the exit status of an ended child, without reaping the child.
pub(crate) fn peek_child(pid: i32) -> Result<Option<ExitStatus>, Errno> {
    Ok(wait(libc::P_PID, pid, libc::WNOWAIT)?.map(|(_, status)| status))
}

/// Reaps a child, if it has ended.
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

/// Sends a signal to the process group of a child that the caller has not reaped yet: until then the group id
/// cannot be reused. Returns true if a process received the signal.
pub(crate) fn signal_group_of_unreaped(leader: i32, signal: i32) -> bool {
    // SAFETY: no memory is involved. `leader` > 1 keeps kill from meaning "everybody".
    leader > 1 && unsafe { libc::kill(-leader, signal) } == 0
}
