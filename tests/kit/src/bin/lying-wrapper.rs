//! A program that a supervisor takes for its wrapper and that does not tell the truth. What it says stands where the
//! adapter's command should: `lie WHAT PID`.

use acp_shared::launch::{CONTROL_BYTES_MAX, FromWrapper, LAUNCH_FILE, Launch};
use acp_shared::wire;
use rustix::net::SendFlags;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--version"] => Ok(()),
        ["say", wrapper, adapter] => say(number(wrapper)?, number(adapter)?),
        _ => lie(),
    }
}

fn number(text: &str) -> io::Result<i32> {
    text.parse().map_err(io::Error::other)
}

fn say(wrapper_pid: i32, adapter_pid: i32) -> io::Result<()> {
    let hello = FromWrapper::Hello { wrapper_pid, adapter_pid };
    let packet = wire::encode(&hello, CONTROL_BYTES_MAX).map_err(io::Error::other)?;
    rustix::net::send(io::stdin(), &packet, SendFlags::empty())?;
    Ok(())
}

fn lie() -> io::Result<()> {
    let exe = std::env::current_exe()?;
    let launch: Launch = serde_json::from_slice(&std::fs::read(exe.with_file_name(LAUNCH_FILE))?)?;
    let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    rustix::process::setsid()?;
    match launch.argv.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        // Another process is the wrapper.
        ["lie", "wrapper", pid] => say(number(pid)?, number(pid)?)?,
        // Another process is the adapter.
        ["lie", "adapter", pid] => say(own, number(pid)?)?,
        // All of it is true, and somebody else says it.
        ["lie", "sender", _] => {
            let adapter = Command::new("sleep").arg("300").stdin(Stdio::null()).process_group(0).spawn()?;
            let mut speaker = Command::new(exe);
            speaker.args(["say", &own.to_string(), &adapter.id().to_string()]).spawn()?.wait()?;
        }
        ["lie", "garbage", _] => {
            rustix::net::send(io::stdin(), &[0xff; 64], SendFlags::empty())?;
        }
        _ => return Ok(()),
    }
    // It does not even leave when it is asked to.
    loop {
        std::thread::park();
    }
}
