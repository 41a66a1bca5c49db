//! Commands of acpx: at most one watch and one other command run at a time.

use crate::home::PrivateHome;
use crate::program::AcpxProgram;
use crate::protocol::{Command, Input, Message, WatchCommand};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{self, Child, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Maximum length of a line of acpx, in bytes: acpx's own limit of a message, escaped.
const LINE_BYTES_MAX: u64 = 80 * 1024 * 1024;

/// Maximum length of a line of acpx as a JSON string, in bytes: the gateway ends an agent that writes a line of 12 MiB.
const SENT_BYTES_MAX: usize = 11 * 1024 * 1024 + 512 * 1024;

/// Maximum length of the members that stay of a longer line, in bytes.
const MEMBER_BYTES_MAX: usize = 4 * 1024;

/// Maximum number of commands that wait for their turn.
const QUEUE_MAX: usize = 64;

/// Maximum time between the end of a command and that of its output.
const READ_WAIT: Duration = Duration::from_secs(1);

/// Standard output, one message a line. Clones write in turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessageWriter(Arc<Mutex<()>>);

impl MessageWriter {
    /// Writes a message. A reader that is gone ends the lease, so errors have no other effect.
    pub(crate) fn send(&self, message: &Message) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        let _turn = lock(&self.0);
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Process that other threads can end.
#[derive(Debug, Clone, Default)]
struct Slot(Arc<Mutex<SlotState>>);

#[derive(Debug, Default)]
struct SlotState {
    running: Option<Running>,
    /// True once the process was killed; only commands that the end waits for start now.
    is_killed: bool,
}

/// Running command.
#[derive(Debug)]
struct Running {
    child: Child,
    /// True if the end of standard input waits for the command.
    finish: bool,
}

impl Slot {
    /// Kills the process with its group, unless the end waits for it. The queue owner has a group of its own.
    #[expect(clippy::disallowed_methods, reason = "the leader is not reaped, so its number is nobody else's")]
    fn kill(&self) {
        let mut slot = lock(&self.0);
        slot.is_killed = true;
        if let Some(running) = slot.running.as_ref().filter(|running| !running.finish) {
            // It is reaped under this lock, after it was taken out of the slot.
            let _ = kill_process_group(pid_of(&running.child), Signal::KILL);
        }
    }
}

/// Shared by the threads of the commands.
#[derive(Debug)]
struct Shared {
    program: AcpxProgram,
    home: PrivateHome,
    output: MessageWriter,
    /// Queue owner whose end is awaited.
    owner: Mutex<Option<Pid>>,
}

/// Commands of one session.
#[derive(Debug)]
pub(crate) struct Commands {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Command>>,
    running: Slot,
    worker: Option<JoinHandle<()>>,
    watch: Option<(Slot, JoinHandle<()>)>,
    is_discarded: bool,
}

impl Commands {
    pub(crate) fn new(program: AcpxProgram, home: PrivateHome, output: MessageWriter) -> Self {
        let shared = Arc::new(Shared { program, home, output, owner: Mutex::default() });
        let (queue, jobs) = mpsc::sync_channel(QUEUE_MAX);
        let running = Slot::default();
        let worker = thread::spawn({
            let (shared, running) = (Arc::clone(&shared), running.clone());
            move || shared.work(&jobs, &running)
        });
        Self { shared, queue: Some(queue), running, worker: Some(worker), watch: None, is_discarded: false }
    }

    /// Carries out a line of the gateway; does not wait for commands.
    pub(crate) fn carry_out(&mut self, input: Input) {
        match input {
            Input::File { name, text } => {
                if let Err(error) = self.shared.home.write(&name, &text) {
                    self.shared
                        .output
                        .send(&Message::Fault { text: format!("cannot write {name}: {error}") });
                }
            }
            Input::Run(mut command) => {
                if let Some(WatchCommand { id, argv }) = command.watch.take() {
                    self.start_watch(id, argv);
                }
                let id = command.id;
                if self.queue.as_ref().is_none_or(|queue| queue.try_send(command).is_err()) {
                    let text = format!("more than {QUEUE_MAX} commands wait");
                    self.shared.output.send(&Message::Fault { text });
                    self.shared.output.send(&Message::Exit { id, code: None, signal: None });
                }
            }
            Input::Watch(WatchCommand { id, argv }) => self.start_watch(id, argv),
            Input::Unwatch => self.end_watch(),
            Input::Timer { id, ms } => {
                let output = self.shared.output.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(ms));
                    output.send(&Message::Timer { id });
                });
            }
            Input::Discard => self.is_discarded = true,
        }
    }

    /// Starts the watch command; an earlier one is ended first.
    fn start_watch(&mut self, id: u64, argv: Vec<String>) {
        self.end_watch();
        let (shared, slot) = (Arc::clone(&self.shared), Slot::default());
        let command =
            Command { id, argv, stdin: None, count: Vec::new(), finish: false, watch: None, owner: false };
        let running = slot.clone();
        let thread = thread::spawn(move || {
            shared.run(&command, &running, move |line| Message::Watch { id, line });
        });
        self.watch = Some((slot, thread));
    }

    fn end_watch(&mut self) {
        if let Some((slot, thread)) = self.watch.take() {
            slot.kill();
            let _ = thread.join();
        }
    }

    /// Ends all commands but those that are to be finished, and removes the sockets.
    pub(crate) fn end(mut self) {
        self.queue = None;
        self.end_watch();
        self.running.kill();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        self.shared.home.remove_queues();
        if self.is_discarded {
            self.shared.home.discard();
        }
    }
}

impl Shared {
    /// Runs commands in order.
    fn work(self: &Arc<Self>, jobs: &Receiver<Command>, running: &Slot) {
        while let Ok(command) = jobs.recv() {
            let id = command.id;
            self.run(&command, running, move |line| Message::Out { id, line });
        }
    }

    /// Runs one command; reports its output lines and its exit status.
    fn run(
        self: &Arc<Self>,
        command: &Command,
        slot: &Slot,
        message: impl Fn(String) -> Message + Send + 'static,
    ) {
        let id = command.id;
        let (pid, stdout) = match self.start(command, slot) {
            Ok(started) => started,
            Err(error) => {
                self.output.send(&Message::Fault { text: format!("cannot start acpx: {error}") });
                self.output.send(&Message::Exit { id, code: None, signal: None });
                return;
            }
        };
        let reader =
            LineReader { output: self.output.clone(), count: command.count.clone(), is_over: Arc::default() };
        let is_over = Arc::clone(&reader.is_over);
        let (read, all_read) = mpsc::sync_channel(1);
        thread::spawn(move || {
            reader.read(stdout, message);
            let _ = read.send(());
        });
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        // A descendant may hold the pipe open; nothing of it is read after the end.
        let _ = all_read.recv_timeout(READ_WAIT);
        *lock(&is_over) = true;
        if command.owner {
            self.await_owner();
        }
        let status = lock(&slot.0).running.take().and_then(|mut running| running.child.wait().ok());
        let (code, signal) = (status.and_then(|it| it.code()), status.and_then(|it| it.signal()));
        self.output.send(&Message::Exit { id, code, signal });
    }

    /// Reports the end of the present queue owner, once for each.
    fn await_owner(self: &Arc<Self>) {
        let Some(pid) = self.home.queue_owner() else { return };
        let mut awaited = lock(&self.owner);
        if *awaited == Some(pid) {
            return;
        }
        let Ok(owner) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        *awaited = Some(pid);
        drop(awaited);
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let mut ended = [PollFd::new(&owner, PollFlags::IN)];
            while poll(&mut ended, None) == Err(Errno::INTR) {}
            *lock(&shared.owner) = None;
            shared.output.send(&Message::OwnerEnded);
        });
    }

    fn start(&self, command: &Command, slot: &Slot) -> std::io::Result<(Pid, process::ChildStdout)> {
        let words = &self.program.words;
        let mut acpx = process::Command::new(words.first().map_or("acpx", String::as_str));
        acpx.args(words.iter().skip(1)).args(&command.argv).env("HOME", &self.home.dir).process_group(0);
        acpx.stdin(if command.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped());
        let mut slot = lock(&slot.0);
        if slot.is_killed && !command.finish {
            return Err(std::io::Error::other("the command is no longer needed"));
        }
        let mut child = acpx.spawn()?;
        if let (Some(text), Some(mut stdin)) = (command.stdin.clone(), child.stdin.take()) {
            // A thread of its own: acpx may write before it has read everything.
            thread::spawn(move || stdin.write_all(text.as_bytes()));
        }
        let (pid, stdout) = (pid_of(&child), child.stdout.take());
        slot.running = Some(Running { child, finish: command.finish });
        Ok((pid, stdout.ok_or_else(|| std::io::Error::other("no standard output"))?))
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Reads the lines of one command.
struct LineReader {
    output: MessageWriter,
    count: Vec<String>,
    /// True once the end of the command was reported.
    is_over: Arc<Mutex<bool>>,
}

impl LineReader {
    fn read(&self, stdout: process::ChildStdout, message: impl Fn(String) -> Message) {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            match stdout.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
            let is_over = lock(&self.is_over);
            if !text.is_empty() && !*is_over {
                self.output.send(&message(shortened(counted(text, &self.count))));
            }
        }
    }
}

/// Removes the large members of a JSON object that is too long for the gateway.
fn shortened(line: String) -> String {
    // An escape has six bytes at most.
    let is_long = line.len() > SENT_BYTES_MAX / 6
        && serde_json::to_string(&line).is_ok_and(|escaped| escaped.len() > SENT_BYTES_MAX);
    if !is_long {
        return line;
    }
    let Ok(Value::Object(mut object)) = serde_json::from_str(&line) else { return line };
    object.retain(|_, value| value.to_string().len() <= MEMBER_BYTES_MAX);
    object.insert("left_out_bytes".to_owned(), line.len().into());
    Value::Object(object).to_string()
}

/// Replaces large members of a JSON object by their number of entries.
fn counted(line: String, members: &[String]) -> String {
    if members.is_empty() {
        return line;
    }
    let Ok(Value::Object(mut object)) = serde_json::from_str(&line) else { return line };
    for member in members {
        if let Some(value) = object.get_mut(member) {
            let count = match value {
                Value::Array(entries) => entries.len(),
                Value::Object(entries) => entries.len(),
                _ => continue,
            };
            *value = count.into();
        }
    }
    Value::Object(object).to_string()
}
