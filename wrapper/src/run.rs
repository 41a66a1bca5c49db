//! Startup steps and main loop of the wrapper.

use crate::confine::Confinement;
use crate::control::{Control, Received};
use crate::error::{StepContext, StepError};
use crate::escalation::{EscalationAction, EscalationInput, EscalationPhase, EscalationTimes};
use crate::exec_step::ExecStep;
use crate::launch_spec::{self, LaunchPlan};
use crate::process_group::ProcessTree;
use crate::sys::{self, AdapterFds, AdapterProcess};
use crate::{EXIT_WRAPPER, confine, setup, tree};
use acp_shared::launch::{ExitStatus, FromWrapper, LAUNCH_FDS, ToWrapper};
use nix::libc;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Event sources of the main loop.
struct EventSources {
    control: Control,
    signals: SignalFd,
    parent: Option<OwnedFd>,
}

/// Runs the adapter to its end and returns the exit code.
pub(crate) fn run() -> u8 {
    let control = match setup::take_control_socket() {
        Ok(socket) => Control::new(socket),
        Err(_) => return EXIT_WRAPPER,
    };
    match prepare() {
        Ok(PreparedStart { plan, confinement, signals, parent }) => {
            let events = EventSources { control, signals, parent };
            match await_launch(&events) {
                Ok(Some(stdio)) => match Wrapper::start(events, &plan, &confinement, stdio) {
                    Ok(wrapper) => wrapper.run(),
                    Err((events, fault)) => refuse(&events.control, fault),
                },
                Ok(None) => EXIT_WRAPPER,
                Err(fault) => refuse(&events.control, fault),
            }
        }
        Err(fault) => refuse(&control, fault),
    }
}

fn refuse(control: &Control, fault: StepError) -> u8 {
    control.send_setup_error(fault);
    EXIT_WRAPPER
}

/// Resources prepared before the first message is received.
struct PreparedStart {
    plan: LaunchPlan,
    confinement: Confinement,
    signals: SignalFd,
    parent: Option<OwnedFd>,
}

fn prepare() -> Result<PreparedStart, StepError> {
    setup::detach_session()?;
    let mut plan = launch_spec::read_launch_file()?;
    let confinement = confine::prepare(std::mem::take(&mut plan.confine))?;
    let signals = setup::open_signalfd()?;
    let parent = setup::watch_parent()?;
    Ok(PreparedStart { plan, confinement, signals, parent })
}

/// Waits for the adapter's pipes. Returns `None` if the supervisor is gone or a signal stops the wrapper.
fn await_launch(events: &EventSources) -> Result<Option<[OwnedFd; LAUNCH_FDS]>, StepError> {
    loop {
        let parent = events.parent.as_ref().map(AsFd::as_fd);
        let sources = [parent, Some(events.control.as_fd()), Some(events.signals.as_fd())];
        let [parent, _, _] = poll(events, sources, None).during("wait for the launch message")?;
        if parent {
            return Ok(None);
        }
        while let Ok(Some(signal)) = events.signals.read_signal() {
            let signal = signal.ssi_signo.cast_signed();
            if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT) {
                return Ok(None);
            }
        }
        match events.control.receive()? {
            Received::Nothing => {}
            Received::Closed => return Ok(None),
            Received::Message(ToWrapper::Launch, fds) => {
                return fds
                    .try_into()
                    .map(Some)
                    .map_err(|_| StepError::protocol("read the launch message: not three descriptors"));
            }
            Received::Message(ToWrapper::Go, _) => {
                return Err(StepError::protocol("read the launch message: unexpected message"));
            }
        }
    }
}

/// Waits until one of `sources` is readable or `timeout` has passed; returns which ones are readable. A pidfd
/// is readable when its process is dead.
fn poll<const N: usize>(
    events: &EventSources,
    sources: [Option<BorrowedFd<'_>>; N],
    timeout: Option<&Timespec>,
) -> Result<[bool; N], Errno> {
    // Placeholder without requested events, for absent sources.
    let nothing = PollFd::from_borrowed_fd(events.signals.as_fd(), PollFlags::empty());
    let asked = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = sources.map(|source| source.map_or_else(|| nothing.clone(), asked));
    rustix::event::poll(&mut fds, timeout)?;
    Ok(fds.map(|fd| !fd.revents().is_empty()))
}

/// State of the wrapper after the fork.
struct Wrapper {
    events: EventSources,
    /// True while the control socket is open.
    supervised: bool,
    tree: ProcessTree,
    /// Pidfd of the adapter, readable when it is dead; `None` once its death is handled.
    adapter: Option<OwnedFd>,
    /// Write end of the release pipe: one byte lets the adapter exec.
    go: Option<OwnedFd>,
    /// Read end of the pipe that reports the result of exec; `None` once it was read.
    report: Option<OwnedFd>,
    /// True if the adapter was released.
    released: bool,
    /// True if the adapter could not exec.
    exec_failed: bool,
    /// True if the supervisor violated the contract before the adapter was released.
    protocol_violated: bool,
    /// True if the adapter's exit was handled.
    ended: bool,
    /// True if no process is left below the wrapper.
    empty: bool,
    phase: EscalationPhase,
    graces: EscalationTimes,
    started: Instant,
}

impl Wrapper {
    /// Forks the adapter, blocked before exec, and reports it to the supervisor.
    fn start(
        events: EventSources,
        plan: &LaunchPlan,
        confinement: &Confinement,
        stdio: [OwnedFd; LAUNCH_FDS],
    ) -> Result<Self, (EventSources, StepError)> {
        match fork(&events, plan, confinement, stdio) {
            Err(fault) => Err((events, fault)),
            Ok((pid, go, report)) => {
                let wrapper_pid = std::process::id().cast_signed();
                events.control.send(&FromWrapper::Hello { wrapper_pid, adapter_pid: pid });
                Ok(Self {
                    events,
                    supervised: true,
                    tree: ProcessTree::new(pid),
                    adapter: setup::watch_child(pid),
                    go: Some(go),
                    report: Some(report),
                    released: false,
                    exec_failed: false,
                    protocol_violated: false,
                    ended: false,
                    empty: false,
                    phase: EscalationPhase::Held,
                    graces: plan.graces,
                    started: Instant::now(),
                })
            }
        }
    }

    /// Main loop. It sleeps until an event arrives; a timer runs only while the tree is being ended.
    fn run(mut self) -> u8 {
        while self.phase != EscalationPhase::Over {
            let ready = self.wait();
            if ready.report {
                self.read_report();
            }
            if ready.parent {
                self.events.parent = None;
                self.step(EscalationInput::Stop);
            }
            if ready.control {
                self.read_control();
            }
            if ready.signals {
                self.read_signals();
            }
            if ready.adapter {
                self.adapter = None;
                self.tree.adapter_is_dead();
            }
            self.reap();
            self.step(EscalationInput::Tick);
        }
        self.report_and_exit_code()
    }

    fn wait(&self) -> Readiness {
        let control = self.supervised.then_some(&self.events.control);
        let sources: [Option<BorrowedFd<'_>>; 5] = [
            Some(self.events.signals.as_fd()),
            control.map(AsFd::as_fd),
            self.events.parent.as_ref().map(AsFd::as_fd),
            self.report.as_ref().filter(|_| self.released).map(AsFd::as_fd),
            self.adapter.as_ref().map(AsFd::as_fd),
        ];
        let timeout = self.phase.deadline_ms().map(|at_ms| timespec(at_ms.saturating_sub(self.now_ms())));
        match poll(&self.events, sources, timeout.as_ref()) {
            Ok([signals, control, parent, report, adapter]) => {
                Readiness { signals, control, parent, report, adapter }
            }
            // After a failed poll (out of memory), check all sources that can be read without blocking.
            Err(_) => Readiness {
                signals: true,
                control: self.supervised,
                parent: false,
                report: self.released,
                adapter: false,
            },
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn step(&mut self, input: EscalationInput) {
        let (phase, step) = self.phase.on(input, self.now_ms(), self.graces);
        self.phase = phase;
        match step {
            EscalationAction::Wait | EscalationAction::Finish => {}
            EscalationAction::Term => self.tree.term(),
            EscalationAction::Kill => {
                self.tree.kill();
                self.go = None;
            }
        }
    }

    fn read_control(&mut self) {
        match self.events.control.receive() {
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) => {
                self.supervised = false;
                self.step(EscalationInput::Stop);
            }
            Ok(Received::Message(ToWrapper::Go, fds))
                if self.phase == EscalationPhase::Held && fds.is_empty() =>
            {
                self.release();
            }
            Ok(Received::Message(..)) => self.abort_on_protocol_error(StepError::protocol(
                "process a control message: unexpected message",
            )),
            Err(fault) => self.abort_on_protocol_error(fault),
        }
    }

    /// Refuses to release the adapter after a contract violation. An adapter that already runs is left alone.
    fn abort_on_protocol_error(&mut self, fault: StepError) {
        if self.phase == EscalationPhase::Held {
            self.protocol_violated = true;
            self.events.control.send_setup_error(fault);
            self.step(EscalationInput::Stop);
        }
    }

    /// Lets the adapter exec. If it is already dead, the write fails and its death is reported as usual.
    fn release(&mut self) {
        self.released = true;
        if let Some(go) = self.go.take() {
            let _ = rustix::io::write(&go, b"g");
        }
        self.step(EscalationInput::Released);
    }

    /// Reads the result of exec: five bytes describe a failure, end of file means success.
    fn read_report(&mut self) {
        let Some(report) = &self.report else { return };
        let mut bytes = [0u8; sys::REPORT_BYTES];
        let said = match rustix::io::read(report, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(sys::REPORT_BYTES) => {
                let [stage, a, b, c, d] = bytes;
                self.exec_failed = true;
                let stage = ExecStep::name_of(stage).to_owned();
                FromWrapper::ExecFailed { errno: i32::from_ne_bytes([a, b, c, d]), stage }
            }
            Ok(_) | Err(_) => FromWrapper::Running,
        };
        self.report = None;
        self.events.control.send(&said);
    }

    fn read_signals(&mut self) {
        let own = std::process::id();
        while let Ok(Some(signal)) = self.events.signals.read_signal() {
            match signal.ssi_signo.cast_signed() {
                libc::SIGCHLD => {}
                // SIGPIPE of the wrapper's own write to a closed pipe.
                libc::SIGPIPE if signal.ssi_pid == own => {}
                libc::SIGTERM => self.step(EscalationInput::Stop),
                other => self.tree.forward(other),
            }
        }
    }

    fn reap(&mut self) {
        self.empty = self.tree.reap();
        if let Some(status) = self.tree.exit().filter(|_| !self.ended) {
            self.ended = true;
            self.adapter = None;
            if self.released {
                // The result of exec is reported before the exit.
                self.read_report();
            }
            if !self.exec_failed {
                self.events.control.send(&FromWrapper::AdapterExited { status });
            }
            if !self.empty {
                self.step(EscalationInput::AdapterExited);
            }
        }
        if self.empty {
            self.step(EscalationInput::TreeEmpty);
        }
    }

    fn report_and_exit_code(self) -> u8 {
        let status = self.tree.exit().unwrap_or(ExitStatus::Unknown);
        let survivors = if self.empty { Vec::new() } else { tree::survivors() };
        self.events.control.send(&FromWrapper::Done { status, survivors });
        match status.shell_code() {
            Some(code) if !self.protocol_violated => u8::try_from(code & 0xff).unwrap_or(EXIT_WRAPPER),
            _ => EXIT_WRAPPER,
        }
    }
}

/// Sources that are readable without blocking.
#[derive(Debug, Clone, Copy)]
struct Readiness {
    signals: bool,
    control: bool,
    parent: bool,
    report: bool,
    adapter: bool,
}

fn timespec(ms: u64) -> Timespec {
    let tv_sec = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::try_from(ms % 1000).unwrap_or(0) * 1_000_000 }
}

/// Forks the adapter and closes the wrapper's copies of its pipes: only the adapter may keep them open.
fn fork(
    events: &EventSources,
    plan: &LaunchPlan,
    confinement: &Confinement,
    stdio: [OwnedFd; LAUNCH_FDS],
) -> Result<(i32, OwnedFd, OwnedFd), StepError> {
    const STAGE: &str = "create the pipes to the adapter";
    let (go_read, go_write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).during(STAGE)?;
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let (report_read, report_write) = rustix::pipe::pipe_with(flags).during(STAGE)?;
    let fds = AdapterFds { stdio, go: go_read, report: report_write };
    let signals = events.signals.as_fd().as_raw_fd();
    let close = [
        events.control.as_fd().as_raw_fd(),
        signals,
        go_write.as_raw_fd(),
        report_read.as_raw_fd(),
        // Without a parent to watch, `signals` is closed twice, which is harmless.
        events.parent.as_ref().map_or(signals, AsRawFd::as_raw_fd),
    ];
    let adapter = AdapterProcess { plan, confinement, fds };
    let pid = sys::fork_adapter(&adapter, &close).during("fork the adapter")?;
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // Both sides call setpgid, so the group exists for both from now on; the second call has no effect.
        let _ = rustix::process::setpgid(Some(pid), Some(pid));
    }
    Ok((pid, go_write, report_read))
}
