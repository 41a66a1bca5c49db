//! Invalid launch descriptions and control messages.

use crate::rig::{EXIT_WRAPPER, Rig, launch_directory, script};
use acp_shared::launch::{ExitStatus, FromWrapper, ToWrapper};
use acp_shared::wire;
use nix::libc;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Wrapper whose adapter would create a file, that file, and its directory.
fn start_with_marker_file() -> (Rig, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ran");
    (Rig::start(&script(&format!("touch {}", path.display()))), path, directory)
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn invalid_launch_json_is_refused() {
    let launch = script("exit 0");
    let changed = |change: fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let mut json = serde_json::to_value(&launch).unwrap();
        change(json.as_object_mut().unwrap());
        serde_json::to_vec(&json).unwrap()
    };
    let good = serde_json::to_vec(&launch).unwrap();
    for (name, json, mode, want) in [
        ("version", changed(|l| drop(l.insert("version".into(), 2.into()))), 0o600, libc::EPROTONOSUPPORT),
        ("unknown member", changed(|l| drop(l.insert("shell".into(), true.into()))), 0o600, libc::EINVAL),
        ("missing member", changed(|l| drop(l.remove("cwd"))), 0o600, libc::EINVAL),
        ("no argv", changed(|l| drop(l.insert("argv".into(), serde_json::json!([])))), 0o600, libc::EINVAL),
        ("not JSON", b"{".to_vec(), 0o600, libc::EINVAL),
        ("empty", Vec::new(), 0o600, libc::EINVAL),
        ("readable by the group", good.clone(), 0o640, libc::EPERM),
        ("readable by others", good.clone(), 0o604, libc::EPERM),
    ] {
        let mut rig = Rig::start_with(launch.lease_id, &json, mode, |wrapper| Command::new(wrapper));
        assert_eq!(rig.setup_errno(), want, "{name}");
    }
}

#[test]
fn missing_or_linked_launch_json_is_refused() {
    let launch = script("exit 0");
    let json = serde_json::to_vec(&launch).unwrap();
    let (elsewhere, _) = launch_directory(&json, 0o600);
    let link = elsewhere.path().join("launch.json");
    type Change<'a> = &'a dyn Fn(&Path);
    let table: [(&str, Change<'_>, i32); 3] = [
        ("missing", &|_| {}, libc::ENOENT),
        ("a link", &|path| std::os::unix::fs::symlink(&link, path).unwrap(), libc::ELOOP),
        ("a directory", &|path| std::fs::create_dir(path).unwrap(), libc::EINVAL),
    ];
    for (name, change, want) in table {
        let mut rig = Rig::start_with(launch.lease_id, &json, 0o600, |wrapper| {
            let file = wrapper.with_file_name("launch.json");
            std::fs::remove_file(&file).unwrap();
            change(&file);
            Command::new(wrapper)
        });
        assert_eq!(rig.setup_errno(), want, "{name}");
    }
}

#[test]
fn invalid_first_message_is_refused() {
    let launch_packet = wire::encode(&ToWrapper::Launch, 64).unwrap();
    let run_adapter = wire::encode(&ToWrapper::Go, 64).unwrap();
    let mut trailing = launch_packet.clone();
    trailing.push(0);
    for (name, packet, fds) in [
        ("no descriptors", launch_packet.clone(), 0),
        ("two descriptors", launch_packet.clone(), 2),
        ("four descriptors", launch_packet.clone(), 4),
        ("too many descriptors", launch_packet.clone(), 20),
        ("unexpected message", run_adapter, 3),
        ("unknown message", vec![9], 3),
        ("trailing bytes", trailing, 3),
        ("descriptors without a message", Vec::new(), 3),
        ("a very long packet", vec![0; 4096], 3),
    ] {
        let (mut rig, ran, _directory) = start_with_marker_file();
        let fds: Vec<OwnedFd> = (0..fds).map(|_| null()).collect();
        rig.send_packet(&packet, &fds.iter().collect::<Vec<_>>());
        assert_eq!(rig.setup_errno(), libc::EPROTO, "{name}");
        assert!(!ran.exists(), "{name}");
    }
}

#[test]
fn invalid_second_message_is_refused_before_adapter_runs() {
    let run_adapter = wire::encode(&ToWrapper::Go, 64).unwrap();
    for (name, packet, fds) in [
        ("launch again", wire::encode(&ToWrapper::Launch, 64).unwrap(), 3),
        ("go with a descriptor", run_adapter, 1),
        ("unknown message", vec![200], 0),
    ] {
        let (mut rig, ran, _directory) = start_with_marker_file();
        rig.await_hello();
        let fds: Vec<OwnedFd> = (0..fds).map(|_| null()).collect();
        rig.send_packet(&packet, &fds.iter().collect::<Vec<_>>());
        assert!(matches!(rig.receive(), FromWrapper::SetupFailed { errno: libc::EPROTO, .. }), "{name}");
        let killed = ExitStatus::Signaled(libc::SIGKILL);
        let rest = rig.receive_all();
        assert_eq!(rest.last(), Some(&FromWrapper::Done { status: killed, survivors: Vec::new() }), "{name}");
        assert_eq!(rig.exit_code(), EXIT_WRAPPER, "{name}");
        assert!(!ran.exists(), "{name}");
    }
}

/// A running agent is not killed for an invalid packet.
#[test]
fn invalid_later_messages_are_ignored() {
    let mut rig = Rig::running(&script("read x; exit 7"));
    rig.send(&ToWrapper::Go);
    rig.send_packet(&[200], &[&null()]);
    rig.send_packet(&[0; 4096], &[]);
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 7);
}

/// Ends a wrapper before and after its first message and asserts that the adapter never ran.
fn assert_nothing_runs_after(end: fn(&mut Rig)) {
    for is_greeted in [false, true] {
        let (mut rig, ran, _directory) = start_with_marker_file();
        if is_greeted {
            rig.await_hello();
        }
        end(&mut rig);
        assert_ne!(rig.exit_code(), 0);
        rig.await_no_process();
        assert!(!ran.exists());
    }
}

#[test]
fn socket_closed_before_go_runs_nothing() {
    assert_nothing_runs_after(|rig| drop(rig.control.take()));
}

#[test]
fn sigterm_before_go_runs_nothing() {
    assert_nothing_runs_after(|rig| rig.signal(rustix::process::Signal::TERM));
}
