//! Initial state of the adapter, and failures to start it.

use crate::rig::{Rig, program, script, status_field};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, FromWrapper, ToWrapper};
use nix::libc;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

fn file(directory: &tempfile::TempDir, name: &str, mode: u32, text: &[u8]) -> String {
    let path = directory.path().join(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode).open(&path).unwrap().write_all(text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn exec_failure_reports_errno() {
    let directory = tempfile::tempdir().unwrap();
    let denied = file(&directory, "denied", 0o644, b"#!/bin/sh\n");
    let no_format = file(&directory, "no-format", 0o755, b"echo no\n");
    let no_interpreter = file(&directory, "no-interpreter", 0o755, b"#!/no/such/interpreter\n");
    Rig::assert_exec_fails(&program(&["/no/such/program"]), "exec", libc::ENOENT, 127);
    Rig::assert_exec_fails(&program(&["no-such-program"]), "exec", libc::ENOENT, 127);
    Rig::assert_exec_fails(&program(&[&no_interpreter]), "exec", libc::ENOENT, 127);
    Rig::assert_exec_fails(&program(&[&denied]), "exec", libc::EACCES, 126);
    Rig::assert_exec_fails(&program(&["/"]), "exec", libc::EACCES, 126);
    Rig::assert_exec_fails(&program(&["/dev/null/x"]), "exec", libc::ENOTDIR, 126);
    Rig::assert_exec_fails(&program(&[&no_format]), "exec", libc::ENOEXEC, 126);
}

#[test]
fn every_directory_of_path_is_tried() {
    let first = tempfile::tempdir().unwrap();
    let second = tempfile::tempdir().unwrap();
    file(&first, "agent", 0o644, b"#!/bin/sh\nexit 1\n");
    let mut launch = program(&["agent"]);
    let search = format!("/no/such/dir:{}:{}", first.path().display(), second.path().display());
    launch.env = vec![("PATH".to_owned(), search)];
    Rig::assert_exec_fails(&launch, "exec", libc::EACCES, 126);
    let found = file(&second, "agent", 0o755, b"#!/bin/sh\nexit 42\n");
    assert_eq!(std::fs::metadata(found).unwrap().permissions().mode() & 0o777, 0o755);
    let mut rig = Rig::running(&launch);
    assert_eq!(rig.exit_code(), 42);
    launch.env = vec![("PATH".to_owned(), String::new())];
    Rig::assert_exec_fails(&launch, "exec", libc::ENOENT, 127);
}

#[test]
fn unusable_working_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut launch = script("exit 0");
    launch.cwd = directory.path().join("gone").to_str().unwrap().to_owned();
    Rig::assert_exec_fails(&launch, "chdir", libc::ENOENT, 126);
    launch.cwd = file(&directory, "file", 0o644, b"");
    Rig::assert_exec_fails(&launch, "chdir", libc::ENOTDIR, 126);
}

#[test]
fn working_directory_applies_to_adapter_only() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path().canonicalize().unwrap();
    let mut launch = script("pwd; echo up; read x");
    launch.cwd = cwd.to_str().unwrap().to_owned();
    let mut rig = Rig::running(&launch);
    assert_eq!(rig.read_until("up\n"), format!("{}\nup\n", cwd.display()));
    let of_wrapper = std::fs::read_link(format!("/proc/{}/cwd", rig.wrapper_pid())).unwrap();
    assert_eq!(of_wrapper, std::path::Path::new("/"));
}

#[test]
fn environment_is_given_variables_and_markers() {
    let mut launch = program(&["/usr/bin/env", "-0"]);
    launch.env =
        vec![("B".to_owned(), "two words\nand lines = ü".to_owned()), ("A".to_owned(), String::new())];
    let mut rig = Rig::running(&launch);
    let want = format!(
        "B=two words\nand lines = ü\0A=\0{ENV_LEASE_ID}={}\0{ENV_GATEWAY_INSTANCE_ID}={}\0",
        launch.lease_id, launch.gateway_instance_id
    );
    assert_eq!(rig.read_all(), want);
}

#[test]
fn arguments_are_passed_unchanged() {
    let args = ["a b", "", "'\"", "$HOME `x` \\", "é\n"];
    let mut argv = vec!["/usr/bin/printf", "%s|"];
    argv.extend(args);
    let mut rig = Rig::running(&program(&argv));
    assert_eq!(rig.read_all(), format!("{}|", args.join("|")));
}

/// Waits until only stdio is open: the dynamic loader opens libraries for a moment.
fn await_only_stdio_open(adapter: i32) {
    crate::rig::eventually("only stdio is open", || {
        let entries = std::fs::read_dir(format!("/proc/{adapter}/fd")).unwrap();
        let mut open: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        open.sort();
        open == ["0", "1", "2"]
    });
}

#[test]
fn adapter_inherits_only_stdio_and_default_signals() {
    let mut rig = Rig::running(&program(&["/bin/sleep", "60"]));
    let adapter = rig.only_process();
    await_only_stdio_open(adapter);
    for field in ["SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"] {
        assert_eq!(status_field(adapter, field).unwrap(), "0".repeat(16), "{field}");
    }
    assert_eq!(status_field(adapter, "PPid").unwrap(), rig.wrapper_pid().to_string());
    drop(rig.control.take());
    rig.exit_code();
}

/// Starts the wrapper with ignored signals and leaked descriptors.
#[test]
fn inherited_state_of_wrapper_is_not_passed_on() {
    let launch = script("exec sleep 60");
    let dirty = "trap '' HUP INT USR1 CHLD TERM; exec 7</ 8<&0 9>/dev/null; exec \"$0\"";
    let mut rig = Rig::start_with_prefix(&launch, &["/bin/sh", "-c", dirty]);
    rig.run_adapter();
    let adapter = rig.only_process();
    crate::rig::eventually("the shell has become sleep", || {
        status_field(adapter, "Name").is_some_and(|name| name == "sleep")
    });
    await_only_stdio_open(adapter);
    assert_eq!(status_field(adapter, "SigIgn").unwrap(), "0".repeat(16));
    rig.signal(rustix::process::Signal::TERM);
    assert_eq!(rig.exit_code(), 128 + libc::SIGTERM);
}

#[test]
fn hello_reports_pids_before_adapter_runs() {
    let mut rig = Rig::start(&script("exit 0"));
    let (wrapper_pid, adapter_pid) = rig.await_hello();
    assert_eq!(wrapper_pid, rig.wrapper_pid());
    let pid = rustix::process::Pid::from_raw(adapter_pid);
    let wrapper = rustix::process::Pid::from_raw(wrapper_pid);
    assert_eq!(rustix::process::getpgid(pid).ok(), pid);
    assert_eq!(rustix::process::getsid(pid).ok(), wrapper);
    assert_eq!(rustix::process::getsid(wrapper).ok(), wrapper);
    assert_eq!(status_field(adapter_pid, "PPid").unwrap(), wrapper_pid.to_string());
    let exe = std::fs::read_link(format!("/proc/{adapter_pid}/exe")).unwrap();
    assert!(exe.ends_with("acp-wrapper"), "no exec before Go: {}", exe.display());
    rig.send(&ToWrapper::Go);
    assert_eq!(rig.receive(), FromWrapper::Running);
    assert_eq!(rig.exit_code(), 0);
}
