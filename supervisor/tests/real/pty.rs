//! A program in a pseudo-terminal: reads its output, types keys, and inspects the terminal's settings.

use crate::common::{TIMEOUT, eventually};
use acp_testkit::processes::KillOnDrop;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

pub(crate) struct Pty {
    master: File,
    /// Kept open, so that the settings can be read after the program's end.
    slave: File,
    child: KillOnDrop,
    output: Arc<Mutex<String>>,
}

impl Pty {
    pub(crate) fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
        let slave_stdio = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        command.stdin(slave_stdio()).stdout(slave_stdio()).stderr(slave_stdio());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("COLUMNS");
        tcsetwinsize(&slave, size(columns, rows)).unwrap();
        let child = KillOnDrop(command.spawn().unwrap());
        let master = File::from(master);
        let output: Arc<Mutex<String>> = Arc::default();
        let (mut reader, shared) = (master.try_clone().unwrap(), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes) {
                if n == 0 {
                    return;
                }
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(bytes.get(..n).unwrap_or_default()));
            }
        });
        Self { master, slave, child, output }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Output so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Clears the recorded output.
    pub(crate) fn clear(&self) {
        self.output.lock().unwrap().clear();
    }

    /// Waits until the output contains `text`.
    pub(crate) fn until(&self, text: &str) {
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !self.output().contains(text) {
            assert!(std::time::Instant::now() < deadline, "timeout: no {text:?}: {:?}", self.output());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.slave, size(columns, rows)).unwrap();
    }

    /// True if the terminal edits and echoes lines.
    pub(crate) fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program in the terminal ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

const fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}
