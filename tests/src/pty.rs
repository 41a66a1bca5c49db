//! A program in a pseudo-terminal, with the screen that a person sees.

use crate::processes::ProcessHandle;
use crate::wait::{LONG, eventually};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines of the history above the screen.
const SCROLLBACK: usize = 2_000;

/// Output so far.
struct PtyOutput {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

/// Program in a terminal. Dropping it kills the program.
pub struct Pty {
    master: File,
    /// Kept open, so that the settings can be read after the program's end.
    slave: File,
    child: Child,
    output: Arc<Mutex<PtyOutput>>,
}

impl std::fmt::Debug for Pty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.screen())
    }
}

impl Pty {
    /// Starts a program in a terminal of this size.
    ///
    /// # Panics
    /// When the terminal or the program cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = master.unwrap_or_else(|e| panic!("no pseudo-terminal: {e}"));
        grantpt(&master)
            .and_then(|()| unlockpt(&master))
            .unwrap_or_else(|e| panic!("no pseudo-terminal: {e}"));
        let name = ptsname(&master, Vec::new()).unwrap_or_else(|e| panic!("no pseudo-terminal: {e}"));
        let slave = OpenOptions::new().read(true).write(true).open(name.to_string_lossy().as_ref());
        let slave = slave.unwrap_or_else(|e| panic!("{}: {e}", name.to_string_lossy()));
        let stdio = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap_or_else(|e| panic!("{e}"))));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("COLUMNS");
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap_or_else(|e| panic!("cannot set the size: {e}"));
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let parser = vt100::Parser::new(rows, columns, SCROLLBACK);
        let output = Arc::new(Mutex::new(PtyOutput { parser, bytes: Vec::new() }));
        let master = File::from(master);
        let (mut reader, shared) =
            (master.try_clone().unwrap_or_else(|e| panic!("{e}")), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes) {
                let read = bytes.get(..n).unwrap_or_default();
                if read.is_empty() {
                    return;
                }
                let mut output = shared.lock().unwrap_or_else(PoisonError::into_inner);
                output.parser.process(read);
                output.bytes.extend_from_slice(read);
            }
        });
        Self { master, slave, child, output }
    }

    fn output(&self) -> MutexGuard<'_, PtyOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes keys in one piece.
    ///
    /// # Panics
    /// When the terminal is closed.
    pub fn write(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap_or_else(|e| panic!("cannot type {keys:?}: {e}"));
    }

    /// Text of the screen, without blank ends.
    #[must_use]
    pub fn screen(&self) -> String {
        let text = self.output().parser.screen().contents();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    /// Everything that the program wrote.
    #[must_use]
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.output().bytes).into_owned()
    }

    /// Waits until the screen fulfils a condition, and returns it.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn screen_with(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let end = std::time::Instant::now() + LONG;
        eventually(LONG + LONG, what, || {
            let screen = self.screen();
            assert!(std::time::Instant::now() < end, "not on the screen: {what}\n{screen}");
            is(&screen).then_some(screen)
        })
    }

    /// Waits until the screen contains a text, and returns it.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn until(&self, text: &str) -> String {
        self.screen_with(text, |screen| screen.contains(text))
    }

    /// True if the terminal edits and echoes lines, as before the program.
    ///
    /// # Panics
    /// When the settings cannot be read.
    #[must_use]
    pub fn is_cooked(&self) -> bool {
        let settings = tcgetattr(&self.slave).unwrap_or_else(|e| panic!("no settings: {e}"));
        settings.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// True if the program is stopped.
    ///
    /// # Panics
    /// When it does not exist.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Continues the stopped program, as `fg` of a shell does.
    ///
    /// # Panics
    /// When it does not exist.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Interrupts the program, as Ctrl-C does in a terminal that controls it.
    ///
    /// # Panics
    /// When it does not exist.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap_or_else(|e| panic!("{e}"));
        let held = ProcessHandle::open(pid).unwrap_or_else(|| panic!("the program does not exist"));
        assert!(held.signal(signal), "the program does not take signals");
    }

    /// Waits for the end of the program, and returns its exit code.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn exit_code(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let status = eventually(LONG, "the program in the terminal ends", || child.try_wait().ok().flatten());
        status.code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // The pid is not reused before the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
