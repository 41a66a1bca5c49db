//! Programs that start another program and stay its parent, each used as its documentation says.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{
    CONTROL_BYTES_MAX, FromWrapper, LAUNCH_FILE, LAUNCH_VERSION, Launch, ToWrapper, WRAPPER_FILE,
};
use acp_shared::wire;
use acp_testkit::processes::KillOnDrop;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The only environment variable of the measured programs.
const PATH: &str = "/usr/bin:/bin";

/// Parent of the program.
#[derive(Debug, Clone)]
pub(crate) enum Above {
    /// Nothing.
    Bare,
    /// A peer: its program and the arguments before the program's own.
    Peer(PathBuf, &'static [&'static str]),
    /// A build of the wrapper.
    Wrapper(PathBuf),
}

/// A program that was started with one of these parents.
#[derive(Debug)]
pub(crate) struct Started {
    child: KillOnDrop,
    /// The supervisor's end of the wrapper's control socket.
    control: Option<OwnedFd>,
}

impl Above {
    /// Starts a program. With a wrapper, returns once the wrapper has let the program exec.
    ///
    /// # Panics
    /// When that fails.
    pub(crate) fn start(&self, argv: &[&str], directory: &Path) -> Started {
        let (program, arguments) = match self {
            Self::Bare => (Path::new(argv[0]), [&[], &argv[1..]]),
            Self::Peer(program, own) => (program.as_path(), [*own, argv]),
            Self::Wrapper(program) => return wrapped(program, argv, directory),
        };
        let mut command = Command::new(program);
        command.args(arguments.concat()).env_clear().env("PATH", PATH).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Started { child: KillOnDrop(child), control: None }
    }

    /// Creates the wrapper's launch directory, which [`Above::start`] needs. It is the supervisor's cost and
    /// not the wrapper's.
    ///
    /// # Panics
    /// When that fails.
    pub(crate) fn prepare(&self, argv: &[&str], directory: &Path) {
        let Self::Wrapper(program) = self else { return };
        let launch = Launch {
            version: LAUNCH_VERSION,
            lease_id: LeaseId::mint(),
            gateway_instance_id: GatewayInstanceId::mint(),
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            env: vec![("PATH".to_owned(), PATH.to_owned())],
            cwd: "/".to_owned(),
            term_grace_ms: 1_000,
            sweep_ms: 1_000,
            confine: acp_shared::launch::Confine::default(),
        };
        let file = directory.join(LAUNCH_FILE);
        let text = serde_json::to_vec(&launch).unwrap_or_else(|e| panic!("{e}"));
        let done = fs::create_dir_all(directory)
            .and_then(|()| fs::write(&file, text))
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))
            .and_then(|()| fs::hard_link(program, directory.join(WRAPPER_FILE)));
        done.unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    }
}

impl Started {
    /// Pid of the parent, or of the program without one.
    pub(crate) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Reads the wrapper's remaining messages and waits for the exit.
    ///
    /// # Panics
    /// When the exit code is not 0.
    pub(crate) fn finish(mut self) {
        while self.control.as_ref().is_some_and(|control| hear(control).is_some()) {}
        let status = self.child.wait().unwrap_or_else(|e| panic!("cannot wait: {e}"));
        assert!(status.success(), "the process ended with {status}");
    }
}

fn wrapped(program: &Path, argv: &[&str], directory: &Path) -> Started {
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (control, theirs) = pair.unwrap_or_else(|e| panic!("no socket: {e}"));
    let mut command = Command::new(directory.join(WRAPPER_FILE));
    command.arg0("acp-wrapper").env_clear().current_dir("/");
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap_or_else(|e| panic!("{} {argv:?}: {e}", program.display()));
    let child = KillOnDrop(child);
    drop(command);
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = OwnedFd::from(null.unwrap_or_else(|e| panic!("/dev/null: {e}")));
    say(&control, &ToWrapper::Launch, &[&null, &null, &null]);
    assert!(matches!(hear(&control), Some(FromWrapper::Hello { .. })), "no hello of {}", program.display());
    say(&control, &ToWrapper::Go, &[]);
    assert_eq!(hear(&control), Some(FromWrapper::Running), "{} does not run {argv:?}", program.display());
    Started { child, control: Some(control) }
}

fn say(control: &OwnedFd, message: &ToWrapper, fds: &[&OwnedFd]) {
    let packet = wire::encode(message, CONTROL_BYTES_MAX).unwrap_or_else(|e| panic!("{e}"));
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "no room for descriptors");
    }
    let sent = rustix::net::sendmsg(control, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL);
    sent.unwrap_or_else(|e| panic!("cannot send to the wrapper: {e}"));
}

/// The next message; `None` when the wrapper has closed the socket.
fn hear(control: &OwnedFd) -> Option<FromWrapper> {
    let mut bytes = vec![0; CONTROL_BYTES_MAX];
    match rustix::net::recv(control, &mut bytes[..], RecvFlags::empty()) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => None,
        Ok((length, _)) => Some(wire::decode(&bytes[..length]).unwrap_or_else(|e| panic!("{e}"))),
        Err(e) => panic!("the control socket: {e}"),
    }
}
