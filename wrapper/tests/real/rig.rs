//! Plays the supervisor: makes the launch directory, starts the wrapper, talks on the control socket, and finds every
//! process of the lease by the mark in its environment. Dropping it kills what is left, through pidfds.

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

/// The exit code of a wrapper that could not do its work.
pub(crate) const EXIT_WRAPPER: i32 = 125;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `done`; panics after [`PATIENCE`].
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A launch of a shell script, with short graces.
pub(crate) fn script(text: &str) -> Launch {
    program(&["/bin/sh", "-c", text])
}

/// A launch of any program.
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

/// A launch of a shell script with this time between SIGTERM and SIGKILL.
pub(crate) fn script_with_grace(term_grace_ms: u64, text: &str) -> Launch {
    Launch { term_grace_ms, ..script(text) }
}

/// A confinement to another user and group, without further groups.
pub(crate) fn user(uid: u32, gid: u32) -> Confine {
    Confine { run_as: Some(RunAs { uid, gid, groups: Vec::new() }), ..Confine::default() }
}

/// A ruleset that forbids nothing that a test does; the kernel must know the rights.
fn harmless_ruleset() -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let rights = landlock::AccessFs::Truncate | landlock::AccessFs::MakeBlock;
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(rights)?;
    let root = landlock::PathFd::new("/").unwrap();
    ruleset.create()?.add_rule(landlock::PathBeneath::new(root, rights))
}

/// Whether this kernel can confine writes; else it says what it saw.
pub(crate) fn landlock_works() -> bool {
    let made = harmless_ruleset();
    if let Err(e) = &made {
        println!("probe: no Landlock that confines writes: {e}: left out");
    }
    made.is_ok()
}

/// A wrapper under test, and the supervisor's ends of everything.
pub(crate) struct Rig {
    pub(crate) child: Child,
    pub(crate) control: Option<OwnedFd>,
    pub(crate) stdin: Option<std::fs::File>,
    stdout: Option<std::fs::File>,
    pub(crate) lease: LeaseId,
    directory: tempfile::TempDir,
}

/// The launch directory: the wrapper linked into it, and `launch.json`. It lies on the binary's file system.
pub(crate) fn launch_directory(launch_json: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    launch_directory_in(Path::new(env!("CARGO_TARGET_TMPDIR")), launch_json, mode)
}

fn launch_directory_in(place: &Path, launch_json: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(place).unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let wrapper = directory.path().join(WRAPPER_FILE);
    let built = Path::new(env!("CARGO_BIN_EXE_acp-wrapper"));
    if std::fs::hard_link(built, &wrapper).is_err() {
        // Copied by another process: while this one holds it open for writing, a fork elsewhere would make exec fail.
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
    /// Starts the wrapper for `launch`, without saying anything to it.
    pub(crate) fn start(launch: &Launch) -> Self {
        Self::start_by(launch, |wrapper| {
            let mut command = Command::new(wrapper);
            command.arg0("acp-wrapper");
            command
        })
    }

    /// The same by a command that starts the wrapper, whose path is its last argument.
    pub(crate) fn start_under(launch: &Launch, prefix: &[&str]) -> Self {
        Self::start_by(launch, |wrapper| {
            let mut command = Command::new(prefix[0]);
            command.args(&prefix[1..]).arg(wrapper);
            command
        })
    }

    fn start_by(launch: &Launch, command: impl FnOnce(&Path) -> Command) -> Self {
        Self::start_with(launch.lease_id, &serde_json::to_vec(launch).unwrap(), 0o600, command)
    }

    /// The same with everything open: the text of launch.json, its mode, and the command.
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
        // What a dying wrapper leaves behind comes to the test, not to a pid 1 that may not reap.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (control, theirs) = control_pair();
        let child = command(&wrapper)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, control: Some(control), stdin: None, stdout: None, lease, directory }
    }

    /// Starts it as another user, who has the launch directory. Needs root.
    pub(crate) fn start_as(uid: u32, launch: &Launch) -> Self {
        let json = serde_json::to_vec(launch).unwrap();
        let (directory, wrapper) = launch_directory_in(&std::env::temp_dir(), &json, 0o600);
        // A link would give the built binary itself to the user.
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

    /// Starts it as the child of a shell, which is then what [`Rig::signal`] and [`Rig::exit_code`] are about.
    pub(crate) fn below_a_shell(launch: &Launch) -> Self {
        Self::start_under(launch, &["/bin/sh", "-c", "\"$0\"; exit $?"])
    }

    /// Starts it below as many rulesets as the kernel takes, so that it can enforce no more.
    pub(crate) fn under_full_landlock(launch: &Launch) -> Self {
        // Rulesets belong to a thread: the others of this test go without.
        std::thread::scope(|scope| {
            let start = || {
                while harmless_ruleset().unwrap().restrict_self().is_ok() {}
                Self::start(launch)
            };
            scope.spawn(start).join().unwrap()
        })
    }

    /// Starts it and takes it as far as a running adapter.
    pub(crate) fn running(launch: &Launch) -> Self {
        let mut rig = Self::start(launch);
        rig.go();
        rig
    }

    /// From its start as far as a running adapter.
    pub(crate) fn go(&mut self) {
        self.release();
        assert_eq!(self.hear(), FromWrapper::Running);
    }

    /// From its start until it lets the adapter go; returns the pids of the wrapper and of the adapter.
    pub(crate) fn release(&mut self) -> (i32, i32) {
        let pids = self.greeted();
        self.say(&ToWrapper::Go);
        pids
    }

    /// From its start until it says that it is there; returns the pids of the wrapper and of the adapter.
    pub(crate) fn greeted(&mut self) -> (i32, i32) {
        self.launch();
        match self.hear() {
            FromWrapper::Hello { wrapper_pid, adapter_pid } => (wrapper_pid, adapter_pid),
            other => panic!("no hello: {other:?}"),
        }
    }

    /// The adapter ends so, and the wrapper with it, without survivors.
    #[track_caller]
    pub(crate) fn adapter_ends(&self, status: ExitStatus) {
        let done = FromWrapper::Done { status, survivors: Vec::new() };
        assert_eq!(self.hear_all(), [FromWrapper::AdapterExited { status }, done]);
    }

    /// The adapter cannot start, for this reason: the wrapper says so and ends with this code.
    #[track_caller]
    pub(crate) fn cannot_exec(launch: &Launch, stage: &str, errno: i32, code: i32) {
        let mut rig = Self::start(launch);
        rig.release();
        let failed = FromWrapper::ExecFailed { errno, stage: stage.to_owned() };
        let done = FromWrapper::Done { status: ExitStatus::Exited(code), survivors: Vec::new() };
        assert_eq!(rig.hear_all(), [failed, done], "{launch:?}");
        assert_eq!(rig.exit_code(), code, "{launch:?}");
    }

    /// The errno of the one thing that the wrapper says before it ends: that the setup failed.
    #[track_caller]
    pub(crate) fn refused(&mut self) -> i32 {
        let errno = match self.hear_all().as_slice() {
            [FromWrapper::SetupFailed { errno, stage }] if !stage.is_empty() => *errno,
            other => panic!("only a failed setup was expected: {other:?}"),
        };
        assert_eq!(self.exit_code(), EXIT_WRAPPER);
        errno
    }

    /// Errno and stage of an adapter that could not start.
    pub(crate) fn hear_failed_exec(mut self) -> (i32, String) {
        self.release();
        match self.hear() {
            FromWrapper::ExecFailed { errno, stage } => (errno, stage),
            other => panic!("the adapter must not start: {other:?}"),
        }
    }

    /// Where launch.json lies.
    pub(crate) fn launch_file(&self) -> PathBuf {
        self.directory.path().join(LAUNCH_FILE)
    }

    pub(crate) fn wrapper_pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends the launch message with the adapter's pipes.
    pub(crate) fn launch(&mut self) {
        let (stdin, ours_in) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (ours_out, stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stderr = stdout.try_clone().unwrap();
        self.say_with(
            &wire::encode(&ToWrapper::Launch, CONTROL_BYTES_MAX).unwrap(),
            &[&stdin, &stdout, &stderr],
        );
        self.stdin = Some(ours_in.into());
        self.stdout = Some(ours_out.into());
    }

    pub(crate) fn say(&self, message: &ToWrapper) {
        self.say_with(&wire::encode(message, CONTROL_BYTES_MAX).unwrap(), &[]);
    }

    /// Sends any packet with any descriptors.
    pub(crate) fn say_with(&self, packet: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let control = self.control.as_ref().unwrap();
        rustix::net::sendmsg(control, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message of the wrapper.
    pub(crate) fn hear(&self) -> FromWrapper {
        self.listen().unwrap_or_else(|| panic!("the wrapper closed the control socket"))
    }

    /// Everything that the wrapper says until it closes the socket.
    pub(crate) fn hear_all(&self) -> Vec<FromWrapper> {
        std::iter::from_fn(|| self.listen()).collect()
    }

    /// The next message; `None` when the wrapper has closed the socket.
    fn listen(&self) -> Option<FromWrapper> {
        let control = self.control.as_ref().unwrap();
        assert!(is_readable(control), "the wrapper sends nothing");
        let mut bytes = vec![0; CONTROL_BYTES_MAX];
        match rustix::net::recv(control, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => None,
            Ok((length, _)) => Some(wire::decode(&bytes[..length]).unwrap()),
            Err(e) => panic!("{e}"),
        }
    }

    /// Waits until the adapter has written `text`, then returns all it wrote so far.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        self.read_until_times(text, 1)
    }

    /// The same, for a text that comes several times.
    pub(crate) fn read_until_times(&mut self, text: &str, times: usize) -> String {
        let mut seen = String::new();
        while seen.matches(text).count() < times {
            let mut bytes = [0; 4096];
            let stdout = self.stdout.as_mut().unwrap();
            assert!(is_readable(stdout), "only {seen:?} so far");
            let length = stdout.read(&mut bytes).unwrap();
            assert!(length > 0, "it ended after {seen:?}");
            seen.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
        seen
    }

    /// All that the adapter's tree writes until the last holder of its stdout is gone.
    pub(crate) fn read_all(&mut self) -> String {
        let mut all = String::new();
        self.stdout.as_mut().unwrap().read_to_string(&mut all).unwrap();
        all
    }

    /// Waits for the wrapper's end: its exit code, or 1000 + the signal that ended it.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let mut status = None;
        eventually("the wrapper ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 1000 + status.signal().unwrap())
    }

    /// The living processes of the lease, found by their environment.
    pub(crate) fn living(&self) -> Vec<i32> {
        let is_ours = |pid: &i32| has_env(*pid, ENV_LEASE_ID, &self.lease.to_string()) && is_alive(*pid);
        all_pids().into_iter().filter(is_ours).collect()
    }

    /// The one living process of the lease, once there is just one: while a program takes the place of another, its
    /// environment is empty for a moment.
    pub(crate) fn only(&self) -> i32 {
        let mut living = Vec::new();
        eventually("one process of the lease lives", || {
            living = self.living();
            living.len() == 1
        });
        living[0]
    }

    /// The living processes below the wrapper, whatever their environment says; the adapter first.
    pub(crate) fn below(&self) -> Vec<i32> {
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

    /// Waits until no process of the lease lives.
    pub(crate) fn nobody_lives(&self) {
        eventually("no process of the lease lives", || self.living().is_empty());
    }

    /// Sends a signal to the wrapper, which this test has not reaped.
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
            let living = self.living();
            if living.is_empty() {
                return;
            }
            for pid in living {
                if let Ok(pidfd) = acp_testkit::sys::open(pid)
                    && self.living().contains(&pid)
                {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                }
            }
        }
    }
}

/// Whether there is something to be read within [`PATIENCE`]; of a pidfd, whether its process ends.
pub(crate) fn is_readable(fd: &impl AsFd) -> bool {
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&patience)) == Ok(1)
}

/// Sends a signal to a process that is the one that is meant, as `is_it` says once a handle on it is open.
pub(crate) fn signal_verified(pid: i32, signal: Signal, is_it: impl FnOnce() -> bool) {
    let pidfd = acp_testkit::sys::open(pid).unwrap();
    assert!(is_it(), "{pid} is another process");
    rustix::process::pidfd_send_signal(&pidfd, signal).unwrap();
}

/// Kills a process that is the one that is meant.
pub(crate) fn kill_verified(pid: i32, is_it: impl FnOnce() -> bool) {
    signal_verified(pid, Signal::KILL, is_it);
}

/// Waits until a process is in this state, as `/proc` says it.
pub(crate) fn await_state(pid: i32, state: char) {
    let is_there = || status_field(pid, "State").is_some_and(|now| now.starts_with(state));
    eventually(&format!("process {pid} is in state {state}"), is_there);
}
