//! A test in the role of the supervisor: makes the launch directory, starts the wrapper, uses the control socket.
//! Dropping a `Rig` kills the remaining processes of its lease.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{
    CONTROL_BYTES_MAX, Confine, ENV_LEASE_ID, ExitStatus, FromWrapper, LAUNCH_FILE, LAUNCH_VERSION, Launch,
    RunAs, ToWrapper, WRAPPER_FILE,
};
use acp_shared::wire;
use acp_testkit::processes::{all_pids, has_env};
pub(crate) use acp_testkit::processes::{is_alive, status_field};
use landlock::{CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Exit code after an internal error of the wrapper.
pub(crate) const EXIT_WRAPPER: i32 = 125;

/// Maximum wait for an expected state.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Polls until `done`; panics after [`TIMEOUT`].
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Launch of a shell script.
pub(crate) fn script(text: &str) -> Launch {
    program(&["/bin/sh", "-c", text])
}

/// Launch of any program.
pub(crate) fn program(argv: &[&str]) -> Launch {
    Launch {
        version: LAUNCH_VERSION,
        lease_id: LeaseId::mint(),
        gateway_instance_id: GatewayInstanceId::mint(),
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        cwd: "/".to_owned(),
        term_grace_ms: 10_000,
        sweep_ms: 10_000,
        confine: Confine::default(),
    }
}

/// Launch of a shell script with this time between SIGTERM and SIGKILL.
pub(crate) fn script_with_grace(term_grace_ms: u64, text: &str) -> Launch {
    Launch { term_grace_ms, ..script(text) }
}

/// Confinement to a user and group without supplementary groups.
pub(crate) fn user(uid: u32, gid: u32) -> Confine {
    Confine { run_as: Some(RunAs { uid, gid, groups: Vec::new() }), ..Confine::default() }
}

/// Ruleset for operations that no test does.
fn harmless_ruleset() -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let rights = landlock::AccessFs::Truncate | landlock::AccessFs::MakeBlock;
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(rights)?;
    let root = landlock::PathFd::new("/").unwrap();
    ruleset.create()?.add_rule(landlock::PathBeneath::new(root, rights))
}

/// True if the kernel can confine writes. Otherwise prints the error.
pub(crate) fn landlock_works() -> bool {
    let made = harmless_ruleset();
    if let Err(e) = &made {
        println!("probe: no Landlock that confines writes: {e}: skipped");
    }
    made.is_ok()
}

/// A wrapper under test with the supervisor's ends of its socket and pipes.
pub(crate) struct Rig {
    pub(crate) child: Child,
    pub(crate) control: Option<OwnedFd>,
    pub(crate) stdin: Option<std::fs::File>,
    stdout: Option<std::fs::File>,
    pub(crate) lease: LeaseId,
    directory: tempfile::TempDir,
}

/// Makes a launch directory with the wrapper and `launch.json`, on the file system of the binary.
pub(crate) fn launch_directory(launch_json: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    launch_directory_in(Path::new(env!("CARGO_TARGET_TMPDIR")), launch_json, mode)
}

fn launch_directory_in(parent: &Path, launch_json: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(parent).unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let wrapper = directory.path().join(WRAPPER_FILE);
    let built = Path::new(env!("CARGO_BIN_EXE_acp-wrapper"));
    if std::fs::hard_link(built, &wrapper).is_err() {
        // `cp` runs in another process: a fork while this one has the copy open for writing would make exec fail.
        assert!(Command::new("cp").arg(built).arg(&wrapper).status().unwrap().success());
    }
    let launch = directory.path().join(LAUNCH_FILE);
    std::fs::write(&launch, launch_json).unwrap();
    std::fs::set_permissions(&launch, std::fs::Permissions::from_mode(mode)).unwrap();
    (directory, wrapper)
}

pub(crate) fn control_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl Rig {
    /// Starts the wrapper for `launch` and sends nothing.
    pub(crate) fn start(launch: &Launch) -> Self {
        Self::start_by(launch, |wrapper| {
            let mut command = Command::new(wrapper);
            command.arg0("acp-wrapper");
            command
        })
    }

    /// Starts the wrapper by a command with the wrapper's path as its last argument.
    pub(crate) fn start_with_prefix(launch: &Launch, prefix: &[&str]) -> Self {
        Self::start_by(launch, |wrapper| {
            let mut command = Command::new(prefix[0]);
            command.args(&prefix[1..]).arg(wrapper);
            command
        })
    }

    fn start_by(launch: &Launch, command: impl FnOnce(&Path) -> Command) -> Self {
        Self::start_with(launch.lease_id, &serde_json::to_vec(launch).unwrap(), 0o600, command)
    }

    /// Starts the wrapper with this text and mode of launch.json.
    pub(crate) fn start_with(
        lease: LeaseId,
        launch_json: &[u8],
        mode: u32,
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        Self::start_in(launch_directory(launch_json, mode), lease, command)
    }

    fn start_in(
        (directory, wrapper): (tempfile::TempDir, PathBuf),
        lease: LeaseId,
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        // Orphans of a dying wrapper are reparented to the test.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (control, wrapper_end) = control_pair();
        let child = command(&wrapper)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(wrapper_end))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, control: Some(control), stdin: None, stdout: None, lease, directory }
    }

    /// Starts the wrapper as another user who owns the launch directory. Needs root.
    pub(crate) fn start_as(uid: u32, launch: &Launch) -> Self {
        let json = serde_json::to_vec(launch).unwrap();
        let (directory, wrapper) = launch_directory_in(&std::env::temp_dir(), &json, 0o600);
        // The user must not own a hard link to the built binary.
        let built = std::fs::read_link(&wrapper).unwrap_or_else(|_| wrapper.clone());
        let copy = directory.path().join("copy");
        assert!(Command::new("cp").arg(&built).arg(&copy).status().unwrap().success());
        std::fs::rename(&copy, &wrapper).unwrap();
        for path in [directory.path(), &wrapper, &directory.path().join(LAUNCH_FILE)] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
        }
        Self::start_in((directory, wrapper), launch.lease_id, |wrapper| {
            let mut command = Command::new(wrapper);
            command.uid(uid).gid(uid);
            command
        })
    }

    /// Starts the wrapper as the child of a shell. [`Rig::signal`] and [`Rig::exit_code`] then refer to the shell.
    pub(crate) fn start_below_shell(launch: &Launch) -> Self {
        Self::start_with_prefix(launch, &["/bin/sh", "-c", "\"$0\"; exit $?"])
    }

    /// Starts the wrapper below the kernel's maximum number of rulesets.
    pub(crate) fn start_with_landlock_exhausted(launch: &Launch) -> Self {
        // Rulesets belong to one thread.
        std::thread::scope(|scope| {
            let start = || {
                while harmless_ruleset().unwrap().restrict_self().is_ok() {}
                Self::start(launch)
            };
            scope.spawn(start).join().unwrap()
        })
    }

    /// Starts the wrapper and waits until the adapter runs.
    pub(crate) fn running(launch: &Launch) -> Self {
        let mut rig = Self::start(launch);
        rig.run_adapter();
        rig
    }

    /// Sends the launch and Go, and waits until the adapter runs.
    pub(crate) fn run_adapter(&mut self) {
        self.send_go();
        assert_eq!(self.receive(), FromWrapper::Running);
    }

    /// Sends the launch and Go; returns the pids of wrapper and adapter.
    pub(crate) fn send_go(&mut self) -> (i32, i32) {
        let pids = self.await_hello();
        self.send(&ToWrapper::Go);
        pids
    }

    /// Sends the launch and waits for Hello; returns the pids of wrapper and adapter.
    pub(crate) fn await_hello(&mut self) -> (i32, i32) {
        self.launch();
        match self.receive() {
            FromWrapper::Hello { wrapper_pid, adapter_pid } => (wrapper_pid, adapter_pid),
            other => panic!("no hello: {other:?}"),
        }
    }

    /// Asserts that the adapter ends with `status` and the wrapper reports no survivors.
    #[track_caller]
    pub(crate) fn assert_adapter_ends(&self, status: ExitStatus) {
        let done = FromWrapper::Done { status, survivors: Vec::new() };
        assert_eq!(self.receive_all(), [FromWrapper::AdapterExited { status }, done]);
    }

    /// Asserts that the adapter fails to start in this stage.
    #[track_caller]
    pub(crate) fn assert_exec_fails(launch: &Launch, stage: &str, errno: i32, code: i32) {
        let mut rig = Self::start(launch);
        rig.send_go();
        let failed = FromWrapper::ExecFailed { errno, stage: stage.to_owned() };
        let done = FromWrapper::Done { status: ExitStatus::Exited(code), survivors: Vec::new() };
        assert_eq!(rig.receive_all(), [failed, done], "{launch:?}");
        assert_eq!(rig.exit_code(), code, "{launch:?}");
    }

    /// Asserts that the setup fails and returns the errno.
    #[track_caller]
    pub(crate) fn setup_errno(&mut self) -> i32 {
        let errno = match self.receive_all().as_slice() {
            [FromWrapper::SetupFailed { errno, stage }] if !stage.is_empty() => *errno,
            other => panic!("expected SetupFailed only: {other:?}"),
        };
        assert_eq!(self.exit_code(), EXIT_WRAPPER);
        errno
    }

    /// Returns errno and stage of the failed exec.
    pub(crate) fn exec_errno(mut self) -> (i32, String) {
        self.send_go();
        match self.receive() {
            FromWrapper::ExecFailed { errno, stage } => (errno, stage),
            other => panic!("expected ExecFailed: {other:?}"),
        }
    }

    pub(crate) fn launch_file(&self) -> PathBuf {
        self.directory.path().join(LAUNCH_FILE)
    }

    pub(crate) fn wrapper_pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends the launch message with the adapter's pipes.
    pub(crate) fn launch(&mut self) {
        let (stdin, stdin_write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (stdout_read, stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stderr = stdout.try_clone().unwrap();
        self.send_packet(
            &wire::encode(&ToWrapper::Launch, CONTROL_BYTES_MAX).unwrap(),
            &[&stdin, &stdout, &stderr],
        );
        self.stdin = Some(stdin_write.into());
        self.stdout = Some(stdout_read.into());
    }

    pub(crate) fn send(&self, message: &ToWrapper) {
        self.send_packet(&wire::encode(message, CONTROL_BYTES_MAX).unwrap(), &[]);
    }

    /// Sends any packet with any descriptors.
    pub(crate) fn send_packet(&self, packet: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let control = self.control.as_ref().unwrap();
        rustix::net::sendmsg(control, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// Receives the next message of the wrapper.
    pub(crate) fn receive(&self) -> FromWrapper {
        self.try_receive().unwrap_or_else(|| panic!("the wrapper closed the control socket"))
    }

    /// Receives messages until the wrapper closes the socket.
    pub(crate) fn receive_all(&self) -> Vec<FromWrapper> {
        std::iter::from_fn(|| self.try_receive()).collect()
    }

    /// Receives the next message; `None` if the wrapper has closed the socket.
    fn try_receive(&self) -> Option<FromWrapper> {
        let control = self.control.as_ref().unwrap();
        assert!(is_readable(control), "timeout: no message from the wrapper");
        let mut bytes = vec![0; CONTROL_BYTES_MAX];
        match rustix::net::recv(control, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => None,
            Ok((length, _)) => Some(wire::decode(&bytes[..length]).unwrap()),
            Err(e) => panic!("{e}"),
        }
    }

    /// Waits until the adapter has written `text`; returns the output so far.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        self.read_until_times(text, 1)
    }

    /// Waits until the adapter has written `text` this many times.
    pub(crate) fn read_until_times(&mut self, text: &str, times: usize) -> String {
        let mut seen = String::new();
        while seen.matches(text).count() < times {
            let mut bytes = [0; 4096];
            let stdout = self.stdout.as_mut().unwrap();
            assert!(is_readable(stdout), "timeout after {seen:?}");
            let length = stdout.read(&mut bytes).unwrap();
            assert!(length > 0, "end of output after {seen:?}");
            seen.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
        seen
    }

    /// Reads stdout until its last writer is gone.
    pub(crate) fn read_all(&mut self) -> String {
        let mut all = String::new();
        self.stdout.as_mut().unwrap().read_to_string(&mut all).unwrap();
        all
    }

    /// Waits for the wrapper's exit: its code, or 1000 + signal.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let mut status = None;
        eventually("the wrapper ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 1000 + status.signal().unwrap())
    }

    /// Living processes of the lease, found by the marker in their environment.
    pub(crate) fn living_processes(&self) -> Vec<i32> {
        let is_of_lease = |pid: &i32| has_env(*pid, ENV_LEASE_ID, &self.lease.to_string()) && is_alive(*pid);
        all_pids().into_iter().filter(is_of_lease).collect()
    }

    /// The only living process of the lease. During an exec the environment is empty, so it polls.
    pub(crate) fn only_process(&self) -> i32 {
        let mut living_processes = Vec::new();
        eventually("one process of the lease lives", || {
            living_processes = self.living_processes();
            living_processes.len() == 1
        });
        living_processes[0]
    }

    /// Living descendants of the wrapper; the adapter first.
    pub(crate) fn descendants(&self) -> Vec<i32> {
        let parents: Vec<(i32, i32)> = all_pids()
            .into_iter()
            .filter(|pid| is_alive(*pid))
            .filter_map(|pid| Some((pid, status_field(pid, "PPid")?.parse().ok()?)))
            .collect();
        let mut found = vec![self.wrapper_pid()];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        found.split_off(1)
    }

    /// Waits until no process of the lease is alive.
    pub(crate) fn await_no_process(&self) {
        eventually("no process of the lease lives", || self.living_processes().is_empty());
    }

    /// Sends a signal to the wrapper.
    #[expect(clippy::disallowed_methods, reason = "an unreaped own child, so its pid is not reused")]
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(self.wrapper_pid()).unwrap(), signal).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.control.take());
        let deadline = Instant::now() + Duration::from_secs(2);
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        while Instant::now() < deadline {
            let living_processes = self.living_processes();
            if living_processes.is_empty() {
                return;
            }
            for pid in living_processes {
                if let Ok(pidfd) = acp_testkit::sys::open(pid)
                    && self.living_processes().contains(&pid)
                {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                }
            }
        }
    }
}

/// Waits up to [`TIMEOUT`] until `fd` is readable. A pidfd is readable after its process has ended.
pub(crate) fn is_readable(fd: &impl AsFd) -> bool {
    let patience = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&patience)) == Ok(1)
}

/// Sends a signal to a process after `is_it` has confirmed its identity with an open pidfd.
pub(crate) fn signal_verified(pid: i32, signal: Signal, is_it: impl FnOnce() -> bool) {
    let pidfd = acp_testkit::sys::open(pid).unwrap();
    assert!(is_it(), "{pid} is another process");
    rustix::process::pidfd_send_signal(&pidfd, signal).unwrap();
}

/// Kills a process after `is_it` has confirmed its identity.
pub(crate) fn kill_verified(pid: i32, is_it: impl FnOnce() -> bool) {
    signal_verified(pid, Signal::KILL, is_it);
}

/// Waits until a process has this state in `/proc`.
pub(crate) fn await_state(pid: i32, state: char) {
    let is_there = || status_field(pid, "State").is_some_and(|now| now.starts_with(state));
    eventually(&format!("process {pid} is in state {state}"), is_there);
}
