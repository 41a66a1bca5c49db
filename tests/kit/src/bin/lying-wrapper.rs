//! A wrapper with false messages, selected by the adapter's command line: `lie KIND PID`.

use acp_shared::launch::{CONTROL_BYTES_MAX, ExitStatus, FromWrapper, LAUNCH_FILE, Launch};
use acp_shared::wire;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Number of descriptors sent with a message, and parse_pid of false messages.
const DESCRIPTORS: usize = 20;
const FALSE_MESSAGES: usize = 100;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--version"] => Ok(()),
        ["send_hello", wrapper, adapter] => send_hello(parse_pid(wrapper)?, parse_pid(adapter)?),
        ["impersonate"] => impersonate(),
        _ => lie(),
    }
}

fn parse_pid(text: &str) -> io::Result<i32> {
    text.parse().map_err(io::Error::other)
}

fn send_hello(wrapper_pid: i32, adapter_pid: i32) -> io::Result<()> {
    send(&FromWrapper::Hello { wrapper_pid, adapter_pid })
}

fn send(message: &FromWrapper) -> io::Result<()> {
    let packet = wire::encode(message, CONTROL_BYTES_MAX).map_err(io::Error::other)?;
    rustix::net::send(io::stdin(), &packet, SendFlags::empty())?;
    Ok(())
}

/// Sends a message with unexpected descriptors.
fn send_with_descriptors(message: &FromWrapper) -> io::Result<()> {
    let packet = wire::encode(message, CONTROL_BYTES_MAX).map_err(io::Error::other)?;
    let stdin = io::stdin();
    let fds = [stdin.as_fd(); DESCRIPTORS];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(&stdin, &[io::IoSlice::new(&packet)], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Sends messages from a child of the wrapper.
fn impersonate() -> io::Result<()> {
    rustix::net::send(io::stdin(), &[], SendFlags::empty())?;
    rustix::net::send(io::stdin(), &[0xff; 64], SendFlags::empty())?;
    rustix::net::send(io::stdin(), &[0xff; 2 * CONTROL_BYTES_MAX], SendFlags::empty())?;
    let status = ExitStatus::Exited(9);
    for _ in 0..FALSE_MESSAGES {
        send(&FromWrapper::AdapterExited { status })?;
        send_with_descriptors(&FromWrapper::Done { status, survivors: Vec::new() })?;
    }
    Ok(())
}

/// Starts a real adapter.
fn adapter() -> io::Result<i32> {
    let adapter = Command::new("sleep").arg("300").stdin(Stdio::null()).process_group(0).spawn()?;
    i32::try_from(adapter.id()).map_err(io::Error::other)
}

/// Starts an adapter as a wrapper does, waits for Go, and reports Running.
fn run_correctly(own: i32) -> io::Result<()> {
    send_hello(own, adapter()?)?;
    for _ in ["the launch", "go"] {
        rustix::net::recv(io::stdin(), &mut [0; CONTROL_BYTES_MAX], RecvFlags::empty())?;
    }
    send(&FromWrapper::Running)
}

fn lie() -> io::Result<()> {
    let exe = std::env::current_exe()?;
    let launch: Launch = serde_json::from_slice(&std::fs::read(exe.with_file_name(LAUNCH_FILE))?)?;
    let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    rustix::process::setsid()?;
    match launch.argv.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        // Claims that another process is the wrapper.
        ["lie", "wrapper", pid] => send_hello(parse_pid(pid)?, parse_pid(pid)?)?,
        // Claims that another process is the adapter.
        ["lie", "adapter", pid] => send_hello(own, parse_pid(pid)?)?,
        // Another process sends the true message.
        ["lie", "sender", _] => {
            let adapter = adapter()?.to_string();
            Command::new(exe).args(["send_hello", &own.to_string(), &adapter]).spawn()?.wait()?;
        }
        // The true message carries descriptors.
        ["lie", "descriptors", _] => {
            let adapter_pid = adapter()?;
            send_with_descriptors(&FromWrapper::Hello { wrapper_pid: own, adapter_pid })?;
        }
        // Correct until the adapter runs; then a child sends messages, and this process sends descriptors.
        ["lie", "impersonated", done] => {
            run_correctly(own)?;
            Command::new(exe).arg("impersonate").spawn()?.wait()?;
            for _ in 0..FALSE_MESSAGES {
                send_with_descriptors(&FromWrapper::AdapterExited { status: ExitStatus::Exited(8) })?;
            }
            std::fs::write(done, "")?;
        }
        ["lie", "garbage", _] => {
            rustix::net::send(io::stdin(), &[0xff; 64], SendFlags::empty())?;
        }
        _ => return Ok(()),
    }
    // Ignores SIGTERM and closed sockets.
    loop {
        std::thread::park();
    }
}
