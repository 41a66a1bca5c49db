//! Output of the wrapper when a person starts it.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

fn wrapper(args: &[&str], stdin: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_acp-wrapper")).args(args).stdin(stdin).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_and_version_are_printed() {
    let version = format!("acp-wrapper {}\n", env!("CARGO_PKG_VERSION"));
    for (arg, want) in
        [("--help", "launch.json"), ("-h", "launch.json"), ("--version", &version), ("-V", &version)]
    {
        let output = wrapper(&[arg], Stdio::null());
        assert_eq!(output.status.code(), Some(0), "{arg}");
        assert!(text(&output.stdout).contains(want), "{arg}");
        assert_eq!(text(&output.stderr), "", "{arg}");
    }
}

#[test]
fn manual_start_prints_usage() {
    let (other_kind_of_socket, _peer) = UnixStream::pair().unwrap();
    for (name, args, stdin) in [
        ("nothing", &[][..], Stdio::null()),
        ("a pipe", &[], Stdio::piped()),
        ("a stream socket", &[], Stdio::from(std::os::fd::OwnedFd::from(other_kind_of_socket))),
        ("a program", &["/bin/sh"], Stdio::null()),
        ("an unknown flag", &["--foreground"], Stdio::null()),
    ] {
        let output = wrapper(args, stdin);
        assert_eq!(output.status.code(), Some(64), "{name}");
        assert!(text(&output.stderr).contains("acp-supervisor"), "{name}");
        assert_eq!(text(&output.stdout), "", "{name}");
    }
}

#[test]
fn unwritable_help_fails() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_acp-wrapper")).arg("--help").stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
