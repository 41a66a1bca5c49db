//! Programs that start another one and stay above it, each driven as its own users drive it.

use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{
    CONTROL_BYTES_MAX, FromWrapper, LAUNCH_FILE, LAUNCH_VERSION, Launch, ToWrapper, WRAPPER_FILE,
};
use acp_shared::wire;
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
use std::process::{Child, Command, Stdio};

/// All that the measured programs see of an environment.
const PATH: &str = "/usr/bin:/bin";

/// What stands above the program.
#[derive(Debug, Clone)]
pub(crate) enum Above {
    /// Nothing.
    Bare,
    /// A peer: its program and the arguments before the program's own.
    Peer(PathBuf, &'static [&'static str]),
    /// A build of the wrapper.
    Wrapper(PathBuf),
}

/// A program that was started below one of them.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    /// The supervisor's end of the wrapper's control socket.
    control: Option<OwnedFd>,
}

impl Above {
    /// Starts a program, and returns once the wrapper, if it is one, has let it exec.
    ///
    /// # Panics
    /// When it cannot.
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
        Started { child, control: None }
    }

    /// Makes what [`Above::start`] needs in `directory`: the wrapper's launch directory, which is the
    /// supervisor's cost and not the wrapper's.
    ///
    /// # Panics
    /// When it cannot.
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
    /// Pid of what stands above.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for the end and takes what the wrapper still says.
    ///
    /// # Panics
    /// When it does not end well.
    pub(crate) fn finish(mut self) {
        while self.control.as_ref().is_some_and(|control| hear(control).is_some()) {}
        let status = self.child.wait().unwrap_or_else(|e| panic!("cannot wait: {e}"));
        assert!(status.success(), "it ended with {status}");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Our own child; when it was reaped already, nothing is signalled.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    sent.unwrap_or_else(|e| panic!("the wrapper does not listen: {e}"));
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
