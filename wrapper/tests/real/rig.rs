//! Plays the supervisor: makes the launch directory, starts the wrapper, talks on the control socket, and finds every
//! process of the lease by the mark in its environment. Dropping it kills what is left, through pidfds.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{
    CONTROL_BYTES_MAX, ENV_LEASE_ID, FromWrapper, LAUNCH_FILE, LAUNCH_VERSION, Launch, ToWrapper,
    WRAPPER_FILE,
};
use acp_shared::wire;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `done`; panics after [`PATIENCE`].
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "still not: {what}");
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
        confine: acp_shared::launch::Confine::default(),
    }
}

/// A wrapper under test, and the supervisor's ends of everything.
pub(crate) struct Rig {
    pub(crate) child: Child,
    pub(crate) control: Option<OwnedFd>,
    pub(crate) stdin: Option<std::fs::File>,
    stdout: Option<std::fs::File>,
    pub(crate) lease: LeaseId,
    _directory: tempfile::TempDir,
}

/// The launch directory: the wrapper linked into it, and `launch.json`. It lies on the binary's file system.
pub(crate) fn launch_directory(launch_json: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let wrapper = directory.path().join(WRAPPER_FILE);
    let built = Path::new(env!("CARGO_BIN_EXE_acp-wrapper"));
    if std::fs::hard_link(built, &wrapper).is_err() {
        // Copied by another process: while this one holds it open for writing, a fork elsewhere would make exec fail.
        assert!(Command::new("cp").arg(built).arg(&wrapper).status().unwrap().success());
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(mode).open(directory.path().join(LAUNCH_FILE)).unwrap();
    file.write_all(launch_json).unwrap();
    (directory, wrapper)
}

pub(crate) fn control_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl Rig {
    /// Starts the wrapper for `launch`, without saying anything to it.
    pub(crate) fn start(launch: &Launch) -> Self {
        let json = serde_json::to_vec(launch).unwrap();
        Self::start_with(launch.lease_id, &json, 0o600, |wrapper| {
            let mut command = Command::new(wrapper);
            command.arg0("acp-wrapper");
            command
        })
    }

    /// The same with everything open: the text of launch.json, its mode, and the command.
    pub(crate) fn start_with(
        lease: LeaseId,
        launch_json: &[u8],
        mode: u32,
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        // What a dying wrapper leaves behind comes to the test, not to a pid 1 that may not reap.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (directory, wrapper) = launch_directory(launch_json, mode);
        let (control, theirs) = control_pair();
        let child = command(&wrapper)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, control: Some(control), stdin: None, stdout: None, lease, _directory: directory }
    }

    /// Starts it and takes it as far as a running adapter.
    pub(crate) fn running(launch: &Launch) -> Self {
        let mut rig = Self::start(launch);
        rig.launch();
        assert!(matches!(rig.hear(), FromWrapper::Hello { .. }));
        rig.say(&ToWrapper::Go);
        assert_eq!(rig.hear(), FromWrapper::Running);
        rig
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
        self.listen().expect_message()
    }

    /// Everything that the wrapper says until it closes the socket.
    pub(crate) fn hear_all(&self) -> Vec<FromWrapper> {
        std::iter::from_fn(|| self.listen().0).collect()
    }

    fn listen(&self) -> Heard {
        let control = self.control.as_ref().unwrap();
        let mut ready = [PollFd::new(control, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ready, Some(&patience)), Ok(1), "the wrapper says nothing");
        let mut bytes = vec![0; CONTROL_BYTES_MAX];
        match rustix::net::recv(control, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Heard(None),
            Ok((length, _)) => Heard(Some(wire::decode(&bytes[..length]).unwrap())),
            Err(e) => panic!("{e}"),
        }
    }

    /// Waits until the adapter has written `text`, then returns all it wrote so far.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            let mut bytes = [0; 4096];
            let stdout = self.stdout.as_mut().unwrap();
            let mut ready = [PollFd::new(stdout, PollFlags::IN)];
            let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut ready, Some(&patience)), Ok(1), "only {seen:?} so far");
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
        let mark = format!("{ENV_LEASE_ID}={}", self.lease);
        let marked = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
        };
        all_pids().into_iter().filter(|pid| marked(*pid) && is_alive(*pid)).collect()
    }

    /// Waits until no process of the lease lives.
    pub(crate) fn nobody_lives(&self) {
        eventually("nobody of the lease lives", || self.living().is_empty());
    }

    /// Sends a signal to the wrapper, which this test has not reaped.
    #[expect(clippy::disallowed_methods, reason = "an own child that is not reaped: its number is its own")]
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_raw(self.wrapper_pid()).unwrap(), signal).unwrap();
    }
}

struct Heard(Option<FromWrapper>);

impl Heard {
    fn expect_message(self) -> FromWrapper {
        self.0.unwrap_or_else(|| panic!("the wrapper closed the control socket"))
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
                if let Ok(pidfd) =
                    rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty())
                    && self.living().contains(&pid)
                {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                }
            }
        }
    }
}

fn all_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process is there and no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    status_field(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// A field of /proc/PID/status.
pub(crate) fn status_field(pid: i32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}
