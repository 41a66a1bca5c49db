//! Opens COUNT connections to a Unix socket and holds them without reading: `hold-connections SOCKET COUNT [TEXT]`.
//! Writes TEXT to each, reopens closed ones, and prints `held` after all are open. Exits at the end of stdin.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = || io::Error::other("hold-connections SOCKET COUNT [TEXT]");
    let (socket, count) = (args.next().ok_or_else(usage)?, args.next().ok_or_else(usage)?);
    let (count, text) = (count.parse().map_err(io::Error::other)?, args.next().unwrap_or_default());
    let input = std::thread::spawn(|| io::copy(&mut io::stdin(), &mut io::sink()));
    let mut held: Vec<UnixStream> = Vec::new();
    let mut is_done = false;
    while !input.is_finished() {
        held.retain(is_open);
        while held.len() < count {
            let Ok(stream) = connect(&socket, &text) else { break };
            held.push(stream);
        }
        if held.len() == count && !is_done {
            is_done = true;
            let mut out = io::stdout();
            out.write_all(b"held\n")?;
            out.flush()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn connect(socket: &str, text: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_nonblocking(true)?;
    // A long text is truncated; a closed connection is noticed later.
    let _ = stream.write(text.as_bytes());
    Ok(stream)
}

/// True if the other side has not closed the connection. No data is read.
fn is_open(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
}
