//! Operation as a service: notifications, socket activation, installed files.

use crate::common::{Host, TIMEOUT, agent, kill, report};
use acp_shared::protocol::LeaseState;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Receives the next notification.
fn receive(socket: &UnixDatagram) -> String {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut space = [0; 1024];
    let count = socket.recv(&mut space).unwrap();
    String::from_utf8(space[..count].to_vec()).unwrap()
}

fn receive_until(socket: &UnixDatagram, wanted: &str) -> usize {
    let mut watchdogs = 0;
    loop {
        let message = receive(socket);
        watchdogs += usize::from(message == "WATCHDOG=1");
        if message.lines().any(|line| line == wanted) {
            return watchdogs;
        }
    }
}

#[tokio::test]
async fn service_manager_is_notified_of_ready_watchdog_and_stop() {
    let mut host = Host::prepare("");
    let path = host.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = host.command();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    host.start_as(command);
    receive_until(&socket, "READY=1");
    for _ in 0..3 {
        receive_until(&socket, "WATCHDOG=1");
    }
    // A stopped supervisor does not feed the watchdog.
    kill(host.pid(), Signal::STOP);
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 1024]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(1_000))).unwrap();
    assert!(socket.recv(&mut [0; 1024]).is_err(), "a notification while stopped");
    kill(host.pid(), Signal::CONT);
    receive_until(&socket, "WATCHDOG=1");
    // The variables do not reach a wrapper.
    let mut gateway = host.gateway().connect().await;
    let info = gateway.spawn(&agent(&["cat"])).await;
    let environ = std::fs::read(format!("/proc/{}/environ", info.wrapper_pid.unwrap())).unwrap();
    let environ = String::from_utf8_lossy(&environ);
    assert!(!environ.contains("NOTIFY") && !environ.contains("WATCHDOG"), "{environ}");
    kill(host.pid(), Signal::TERM);
    receive_until(&socket, "STOPPING=1");
    assert_eq!(host.wait(), Some(0));
}

#[test]
fn abstract_notify_address_works_and_foreign_watchdog_is_ignored() {
    let mut host = Host::prepare("");
    let name = format!("acp-host-test-{}", host.dir.path().file_name().unwrap().to_string_lossy());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut command = host.command();
    command.env("NOTIFY_SOCKET", format!("@{name}")).env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    host.start_as(command);
    receive_until(&socket, "READY=1");
    kill(host.pid(), Signal::TERM);
    assert_eq!(receive_until(&socket, "STOPPING=1"), 0);
    assert_eq!(host.wait(), Some(0));
}

#[tokio::test]
async fn inherited_socket_is_used_and_kept() {
    let mut host = Host::prepare("");
    std::fs::create_dir(host.state_dir()).unwrap();
    let listener = UnixListener::bind(host.socket()).unwrap();
    let inode = std::fs::metadata(host.socket()).unwrap().ino();
    let plain = host.command();
    for _ in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-ec", "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&0 0</dev/null \"$@\"", "sh"]);
        command.arg(plain.get_program()).args(plain.get_args()).env("RUST_LOG", "warn");
        command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
        host.start_as(command);
        let mut gateway = host.gateway().connect().await;
        let info = gateway.spawn(&agent(&["cat"])).await;
        assert_eq!(info.state, LeaseState::Open);
        for pid in [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()] {
            let held = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let sockets = held.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            let own = format!("socket:[{}]", rustix::fs::fstat(&listener).unwrap().st_ino);
            assert!(
                !sockets.map(|s| s.to_string_lossy().into_owned()).any(|s| s == own),
                "the socket is inherited"
            );
        }
        assert_eq!(host.stop(), Some(0));
        assert_eq!(std::fs::metadata(host.socket()).unwrap().ino(), inode, "the socket was replaced");
    }
    // A socket meant for another process is ignored.
    drop(listener);
    let mut command = host.command();
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    host.start_as(command);
    // No process listens on the inherited socket, so this is the supervisor's own.
    host.gateway().connect().await;
}

#[test]
fn socket_has_configured_group_and_mode() {
    let gid = rustix::process::getegid().as_raw();
    let host = Host::with_config(&format!("socket_group = \"{gid}\"\nsocket_mode = \"0620\""));
    let meta = std::fs::metadata(host.socket()).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), (0o620, gid));
    let mut missing = Host::prepare("socket_group = \"no-such-group\"");
    let output = missing.command().output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("no-such-group"), "{output:?}");
    missing.config.clear();
    missing.start();
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").canonicalize().unwrap()
}

/// Returns a tool of systemd, or Debian's copy if none is installed. Prints the probe if there is none.
fn tool(name: &str) -> Option<Command> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("systemd");
    let output = Command::new(packaging().join("systemd/tools.sh")).arg(name).arg(dir).output().unwrap();
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() {
        return Some(Command::new(path));
    }
    report(&format!(
        "probe: no {name} here, and none to be had: {}",
        String::from_utf8_lossy(&output.stderr)
    ));
    assert!(std::env::var_os("CI").is_none(), "CI has to install the package systemd");
    None
}

#[test]
fn systemd_units_are_valid() {
    // The units run with test programs in place of the installed paths.
    for (units_of, count) in [("systemd", 5), ("systemd/user", 2)] {
        let Some(mut analyze) = tool("systemd-analyze") else { return };
        let dir = tempfile::tempdir().unwrap();
        let mut units = Vec::new();
        for entry in std::fs::read_dir(packaging().join(units_of)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if [".service", ".socket", ".timer"].iter().any(|kind| name.ends_with(kind)) {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let text = text.replace("/usr/bin/acp-supervisor", env!("CARGO_BIN_EXE_acp-supervisor"));
                let path = dir.path().join(name.replace('@', "@root"));
                std::fs::write(&path, text.replace("/usr/bin/acp-gateway", "/bin/true")).unwrap();
                units.push(path);
            }
        }
        assert_eq!(units.len(), count);
        let output = analyze.args(["verify", "--man=no"]).args(&units).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    }
}

/// The program accepts the options of the unit.
#[test]
fn unit_options_are_accepted() {
    let unit = std::fs::read_to_string(packaging().join("systemd/acp-supervisor.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/acp-supervisor ")).unwrap();
    let mut args: Vec<&str> = line.split(' ').collect();
    let at = args.iter().position(|arg| *arg == "--config").unwrap();
    args[at + 1] = "/nonexistent/supervisor.toml";
    let program = env!("CARGO_BIN_EXE_acp-supervisor");
    let output = Command::new(program).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("/nonexistent/supervisor.toml"), "unknown option: {stderr}");
}

#[test]
fn sysusers_and_tmpfiles_are_valid() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("etc")).unwrap();
    let at = format!("--root={}", root.path().display());
    let make = |name: &str, more: &[&str], file: &str| {
        let Some(mut tool) = tool(name) else { return false };
        let output = tool.arg(&at).args(more).arg(packaging().join(file)).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        true
    };
    if make("systemd-sysusers", &[], "sysusers.d/acp-host.conf") {
        let groups = std::fs::read_to_string(root.path().join("etc/group")).unwrap();
        assert!(groups.contains("acp-admin:"), "{groups}");
    }
    // Only root can set owners.
    if rustix::process::geteuid().is_root()
        && make("systemd-tmpfiles", &["--create"], "tmpfiles.d/acp-host.conf")
    {
        for dir in ["etc/acp-host", "var/lib/acp-gateway", "run/acp-supervisor"] {
            assert!(root.path().join(dir).is_dir(), "{dir}");
        }
    }
}
