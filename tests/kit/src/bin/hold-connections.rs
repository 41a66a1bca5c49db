//! Opens connections to a Unix socket and keeps them open without reading: `hold-connections SOCKET COUNT [TEXT]`.
//! Writes TEXT to each of them, replaces each one that the other side closes, and writes `held` to standard
//! output once all are open. Exits at the end of its standard input.

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
    // A text that does not fit is truncated; a closed connection is noticed later.
    let _ = stream.write(text.as_bytes());
    Ok(stream)
}

/// Whether the other side has the connection open. Its data stays unread.
fn is_open(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
}
