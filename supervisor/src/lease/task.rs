//! Task of one lease, from the spawn request to the verified end. It owns the row, the wrapper's handle and
//! control socket, and carries out the actions of [`crate::core::escalation`].

use crate::context::event::Event;
use crate::context::{Context, wall_ms};
use crate::core::escalation::{Escalation, EscalationAction, EscalationInput, SURVIVOR_SWEEP_MS};
use crate::core::lease::{EndedTree, Lease, LeaseEvent, UNENDED, ending_event};
use crate::core::verify::{Verdict, verify};
use crate::lease::pause::{PauseRequest, TaskState};
use crate::lease::spawn::{self, SpawnError, SpawnRequest, StartedWrapper};
use crate::lease::tree_kill::{self, TreeQuery};
use crate::relay::{Relay, RelayCmd, wait_if_some};
use crate::sys::blocking_io;
use crate::sys::child::{Child, Control, ControlPacket};
use crate::sys::inherited_fd::HandoverFd;
use crate::sys::linux::Linux;
use crate::sys::{OpenProcess, Signal, Sys};
use acp_shared::launch::{ExitStatus, FromWrapper};
use acp_shared::protocol::{LeaseState, Refusal};
use acp_shared::wire::WireError;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of rounds of one kill; the next kill follows after [`crate::core::escalation::SWEEP_MS`].
const KILL_ROUNDS_MAX: u32 = 8;
/// Maximum time for the cleanup by a wrapper whose start failed.
const FAILED_START_GRACE: Duration = Duration::from_millis(1_500);

/// Commands from the owner to a lease task.
#[derive(Debug)]
pub enum LeaseCmd {
    /// End the tree with grace periods.
    Close {
        /// Reason, for the record.
        reason: String,
    },
    /// End the tree without further grace periods.
    Hurry,
    /// Pause, until it is decided if the state of the task is exported for a handover (H14).
    Pause(PauseRequest),
}

/// Input from the wrapper's control socket.
enum ControlEvent {
    Packet(ControlPacket),
    Closed,
}

struct LeaseTask<S: Sys = Linux> {
    context: Arc<Context<S>>,
    lease: Lease,
    relay: Relay,
    /// The wrapper, until it was reaped.
    child: Option<Child<S>>,
    control: Option<Control>,
    stop: Escalation,
    /// True if the wrapper sent `Done` before it ended.
    done: bool,
    /// True if the wrapper ended without `Done` while no close was in progress.
    vanished: bool,
    /// Number of messages from other processes on the wrapper's socket.
    foreign_messages: u64,
}

/// Runs a lease. The owner is notified of every change by [`Event`]s.
pub async fn run<S: Sys>(
    context: Arc<Context<S>>,
    lease: Lease,
    asked: SpawnRequest,
    mut commands: mpsc::Receiver<LeaseCmd>,
) {
    // The state of a start is larger than that of a running lease, so it is boxed.
    let Some(mut task) = Box::pin(LeaseTask::start(context, lease, asked)).await else { return };
    if let Some(to) = task.run_until_ended(&mut commands).await {
        drop(to.send(task.export(commands)));
    }
}

/// Resumes a lease from the exported state of its task.
pub async fn resume<S: Sys>(
    context: Arc<Context<S>>,
    lease: Lease,
    state: TaskState,
    relay: Relay,
    mut commands: mpsc::Receiver<LeaseCmd>,
) {
    let control = state.control.and_then(|control| {
        let (lease_id, opened) = (lease.lease_id, control.take().and_then(Control::new));
        opened.inspect_err(|error| tracing::error!(%lease_id, %error, "control socket lost in handover")).ok()
    });
    let (stop, done, vanished) = (state.stop, state.done, state.vanished);
    let mut task =
        LeaseTask { context, lease, relay, child: None, control, stop, done, vanished, foreign_messages: 0 };
    let mut inputs = Vec::new();
    if !state.wrapper_gone && !task.reopen_wrapper() {
        inputs.extend(task.on_wrapper_ended(ExitStatus::Unknown).await);
    }
    if let Some(reason) = state.asked {
        task.start_closing(&reason).await;
        inputs.push(EscalationInput::Begin);
    }
    inputs.extend(state.hurried.then_some(EscalationInput::Hurry));
    for input in inputs {
        if task.step(input).await {
            return;
        }
    }
    if let Some(to) = task.run_until_ended(&mut commands).await {
        drop(to.send(task.export(commands)));
    }
}

/// Cleans up after a failed start: no process of it may stay.
async fn clean_up_failed_start<S: Sys>(
    context: &Arc<Context<S>>,
    mut lease: Lease,
    started: Option<StartedWrapper<S>>,
    error: SpawnError,
) {
    let (refusal, crashed) = (error.refusal(), error.is_agent_fault());
    tracing::warn!(lease_id = %lease.lease_id, error = refusal.message, "spawn failed");
    if let Some(started) = started {
        // The closed control socket makes the wrapper end, if it has not ended because of its own error.
        let StartedWrapper { mut child, control, .. } = started;
        drop(control);
        if tokio::time::timeout(FAILED_START_GRACE, child.ended()).await.is_err() {
            kill_child(context, &lease, &child);
            drop(tokio::time::timeout(FAILED_START_GRACE, child.ended()).await);
        }
        // No task waits for the wrapper from now on: if it still exists, it is reaped as an orphan.
        context.release_child(child.handle().pid());
        if child.status().is_none() || !kill_tree(context, &mut lease).await.unwrap_or(false) {
            return wait_out_failed_start(context, lease, refusal, crashed).await;
        }
    }
    if let Some(bound) = lease.bound {
        context.remove_root(bound.wrapper.pid);
    }
    // If the processes did not match the wrapper's report, there may be other, unknown processes.
    let is_doubtful = matches!(error, SpawnError::Mismatch(_));
    let tree = if is_doubtful { EndedTree::Doubtful } else { EndedTree::Accounted };
    record_end(context, &mut lease, tree, &refusal.message).await;
    context.send_event(Event::Spawned { lease, result: Err(refusal), crashed }).await;
}

/// Handles a failed start with processes that survive SIGKILL or cannot be checked: the lease, and with it
/// the session (H5), stays closing until the tree is verified gone.
async fn wait_out_failed_start<S: Sys>(
    context: &Arc<Context<S>>,
    mut lease: Lease,
    refusal: Refusal,
    crashed: bool,
) {
    apply_event(&mut lease, LeaseEvent::Close, &refusal.message);
    tracing::error!(lease_id = %lease.lease_id, "processes of failed spawn survive");
    context.store.record(&lease, "closing").await;
    context.send_event(Event::Spawned { lease: lease.clone(), result: Err(refusal), crashed }).await;
    kill_until_gone(context, lease).await;
}

/// Kills the remaining processes of a tree without a task, until the tree is gone.
pub(crate) async fn kill_until_gone<S: Sys>(context: &Arc<Context<S>>, mut lease: Lease) {
    while !kill_tree(context, &mut lease).await.unwrap_or(false) {
        tokio::time::sleep(Duration::from_millis(SURVIVOR_SWEEP_MS)).await;
    }
    if let Some(bound) = lease.bound {
        context.remove_root(bound.wrapper.pid);
    }
    record_end(context, &mut lease, EndedTree::Accounted, "").await;
    context.send_event(Event::Changed { lease, stuck: false }).await;
}

/// Kills the wrapper itself, an own child that was not reaped yet.
fn kill_child<S: Sys>(context: &Context<S>, lease: &Lease, child: &Child<S>) {
    let evidence = context.sys.kernel_evidence(child.handle());
    let Some(process) = child.handle().record() else { return };
    let target = TreeQuery::of(lease, &context.containment.subtree);
    if let Verdict::Owned(proof) =
        verify(&target.claim(process), &evidence, &context.guard(Some(process.pid)))
        && let Err(error) = context.sys.signal(child.handle(), &proof, Signal::Kill)
    {
        tracing::warn!(lease_id = %lease.lease_id, %error, "cannot kill a wrapper");
    }
}

/// Kills the remaining processes of the lease's tree and stores what the search found as evidence. Returns
/// true if no process is left, or an error if the process list cannot be read.
async fn kill_tree<S: Sys>(context: &Arc<Context<S>>, lease: &mut Lease) -> io::Result<bool> {
    let (target, guard) = (
        TreeQuery::of(lease, &context.containment.subtree),
        context.guard(lease.bound.map(|b| b.wrapper.pid)),
    );
    let swept = context.blocking(move |sys| tree_kill::kill(sys, &target, &guard, KILL_ROUNDS_MAX)).await;
    let found = swept.inspect_err(|error| {
        tracing::warn!(lease_id = %lease.lease_id, %error, "process tree search failed");
    })?;
    lease.last_evidence_json = Some(found.json(wall_ms()));
    Ok(found.is_gone())
}

/// Records the end of a lease. If the store fails, the lease ends anyway: processes have priority over
/// records (H19).
async fn record_end<S: Sys>(context: &Arc<Context<S>>, lease: &mut Lease, tree: EndedTree, reason: &str) {
    if lease.state != LeaseState::Closing {
        apply_event(lease, LeaseEvent::Close, reason);
    }
    let reason = if lease.state_reason.is_empty() { reason.to_owned() } else { lease.state_reason.clone() };
    apply_event(lease, ending_event(lease.state, tree), &reason);
    lease.ended_at_ms = Some(wall_ms());
    context.store.record(lease, "end").await;
    blocking_io::wait_for_jobs(vec![context.spawn_cleanup(lease)]).await;
}

fn apply_event(lease: &mut Lease, event: LeaseEvent, reason: &str) {
    let from = lease.state;
    match lease.apply(event, reason) {
        Ok(()) => {
            tracing::info!(lease_id = %lease.lease_id, session_key = %lease.session_key, %from, to = %lease.state, reason, "lease state changed");
        }
        Err(error) => tracing::error!(lease_id = %lease.lease_id, %error, "invalid lease transition"),
    }
}

async fn recv_control(control: Option<&Control>) -> ControlEvent {
    let Some(control) = control else { return std::future::pending().await };
    match control.recv().await {
        Ok(Some(heard)) => ControlEvent::Packet(heard),
        Ok(None) => ControlEvent::Closed,
        Err(error) => {
            tracing::warn!(%error, "wrapper control socket failed");
            ControlEvent::Closed
        }
    }
}

impl<S: Sys> LeaseTask<S> {
    /// Spawns the agent; `None` after the cleanup of a failed start.
    async fn start(context: Arc<Context<S>>, mut lease: Lease, asked: SpawnRequest) -> Option<Self> {
        let mut started = match spawn::start(&context, &mut lease, &asked).await {
            Ok(started) => started,
            Err(error) => {
                clean_up_failed_start(&context, lease, None, error).await;
                return None;
            }
        };
        if let Err(error) = spawn::bind_and_release(&context, &mut lease, &asked.spec, &mut started).await {
            clean_up_failed_start(&context, lease, Some(started), error).await;
            return None;
        }
        let (child, control, relay) = started.start_relay(&context, &lease, &asked.spec.env);
        context
            .send_event(Event::Spawned { lease: lease.clone(), result: Ok(relay.clone()), crashed: false })
            .await;
        let stop = Escalation::new(lease.graces);
        let (child, control) = (Some(child), Some(control));
        Some(Self {
            context,
            lease,
            relay,
            child,
            control,
            stop,
            done: false,
            vanished: false,
            foreign_messages: 0,
        })
    }

    /// Runs until the lease has ended, or until a handover requests the state of the task. Returns the
    /// channel for the state in the latter case.
    async fn run_until_ended(
        &mut self,
        commands: &mut mpsc::Receiver<LeaseCmd>,
    ) -> Option<oneshot::Sender<(Lease, TaskState)>> {
        loop {
            let wake = self.stop.wake_at_ms().map(|at| self.context.instant(at));
            let input = tokio::select! {
                said = recv_control(self.control.as_ref()) => self.on_control_event(said).await,
                status = wait_if_some(self.child.as_mut().map(Child::ended)) => self.on_wrapper_ended(status).await,
                command = commands.recv() => match command {
                    Some(LeaseCmd::Pause(pause)) => match pause.wait().await {
                        Some(to) => return Some(to),
                        None => None,
                    },
                    command => self.on_command(command).await,
                },
                () = wait_if_some(wake.map(tokio::time::sleep_until)) => Some(EscalationInput::Tick),
            };
            if let Some(input) = input
                && self.step(input).await
            {
                return None;
            }
        }
    }

    /// Exports the state of the task, including commands that were queued and not yet handled.
    fn export(self, mut commands: mpsc::Receiver<LeaseCmd>) -> (Lease, TaskState) {
        commands.close();
        let (mut asked, mut hurried) = (None, false);
        while let Ok(command) = commands.try_recv() {
            match command {
                LeaseCmd::Close { reason } => asked = Some(reason),
                LeaseCmd::Hurry => hurried = true,
                LeaseCmd::Pause(_) => {}
            }
        }
        let control = self.control.and_then(|control| {
            let (lease_id, fd) = (self.lease.lease_id, control.into_fd());
            fd.inspect_err(|error| tracing::error!(%lease_id, %error, "control socket handover failed")).ok()
        });
        let state = TaskState {
            stop: self.stop,
            control: control.map(HandoverFd::new),
            wrapper_gone: self.child.is_none(),
            done: self.done,
            vanished: self.vanished,
            asked,
            hurried,
        };
        (self.lease, state)
    }

    /// Reopens the wrapper by pid: it is an own child that was not reaped, so its pid was not reused. True if
    /// it exists and matches the record. The evidence is recorded.
    fn reopen_wrapper(&mut self) -> bool {
        let Some(bound) = self.lease.bound else { return false };
        let opened = self.context.sys.open_child(bound.wrapper.pid);
        let handle = opened.inspect_err(|error| {
            tracing::error!(lease_id = %self.lease.lease_id, %error, "wrapper lost in handover");
        });
        let Ok(handle) = handle else { return false };
        let (found, evidence) = (handle.record(), self.context.sys.kernel_evidence(&handle));
        let same = found == Some(bound.wrapper);
        let seen = serde_json::json!({ "at_ms": wall_ms(), "resumed": same, "life": format!("{:?}", evidence.life) });
        self.lease.last_evidence_json = Some(seen.to_string());
        self.context.store.post_lease(&self.lease);
        if !same {
            let (lease_id, recorded) = (self.lease.lease_id, bound.wrapper);
            tracing::error!(%lease_id, ?recorded, ?found, "wrapper pid belongs to another process");
            return false;
        }
        let child = Child::new(Arc::clone(&self.context.sys), handle);
        let lease_id = self.lease.lease_id;
        self.child =
            child.inspect_err(|error| tracing::error!(%lease_id, %error, "cannot watch wrapper")).ok();
        self.child.is_some()
    }

    async fn on_command(&mut self, command: Option<LeaseCmd>) -> Option<EscalationInput> {
        match command {
            Some(LeaseCmd::Close { reason }) => {
                self.start_closing(&reason).await;
                Some(EscalationInput::Begin)
            }
            Some(LeaseCmd::Pause(_)) => None,
            // The owner is gone, so this task ends soon too.
            Some(LeaseCmd::Hurry) | None => {
                self.start_closing("the supervisor ends").await;
                Some(EscalationInput::Hurry)
            }
        }
    }

    async fn on_control_event(&mut self, said: ControlEvent) -> Option<EscalationInput> {
        let wrapper = self.child.as_ref().map(|child| Arc::clone(child.handle()));
        match said {
            ControlEvent::Packet(heard) => match self.authenticate_message(heard, wrapper.as_deref())? {
                Ok(message) => self.on_message(message).await,
                Err(error) => {
                    tracing::warn!(lease_id = %self.lease.lease_id, %error, "wrapper control socket failed");
                    self.control = None;
                    None
                }
            },
            ControlEvent::Closed => {
                self.control = None;
                None
            }
        }
    }

    /// Returns the message if the wrapper itself sent it. Messages of an adapter that got hold of the socket
    /// are ignored.
    fn authenticate_message(
        &mut self,
        heard: ControlPacket,
        wrapper: Option<&S::Handle>,
    ) -> Option<Result<FromWrapper, WireError>> {
        let heard = heard.from(self.context.sys.as_ref(), wrapper?);
        heard
            .inspect_err(|stranger| {
                self.foreign_messages += 1;
                // Limits the log: an adapter may send any number of messages.
                if self.foreign_messages.is_power_of_two() {
                    let (count, lease_id) = (self.foreign_messages, self.lease.lease_id);
                    tracing::warn!(%lease_id, count, ?stranger, "foreign control message ignored");
                }
            })
            .ok()
    }

    async fn on_message(&mut self, message: FromWrapper) -> Option<EscalationInput> {
        match message {
            FromWrapper::AdapterExited { status } => {
                self.adapter_ended(status);
                self.start_closing(&format!("the adapter ended: {status}")).await;
                Some(EscalationInput::AdapterGone)
            }
            FromWrapper::Done { status, survivors } => {
                if !survivors.is_empty() {
                    tracing::warn!(lease_id = %self.lease.lease_id, ?survivors, "processes survived wrapper");
                }
                self.done = true;
                self.adapter_ended(status);
                None
            }
            FromWrapper::Hello { .. }
            | FromWrapper::Running
            | FromWrapper::ExecFailed { .. }
            | FromWrapper::SetupFailed { .. } => None,
        }
    }

    fn adapter_ended(&mut self, status: ExitStatus) {
        if self.lease.exit.is_none() {
            self.lease.exit = Some(status);
            self.relay.send(RelayCmd::AdapterEnded(status));
        }
    }

    async fn on_wrapper_ended(&mut self, status: ExitStatus) -> Option<EscalationInput> {
        let wrapper = self.child.as_ref().map(|child| Arc::clone(child.handle()));
        self.release_wrapper();
        // The last messages may still be in the socket.
        let words = self.control.take().map(|control| control.drain_messages());
        for heard in words.unwrap_or_default() {
            if let Some(Ok(message)) = self.authenticate_message(heard, wrapper.as_deref()) {
                self.on_message(message).await;
            }
        }
        self.vanished = !self.done && self.lease.state != LeaseState::Closing;
        if !self.done {
            tracing::warn!(lease_id = %self.lease.lease_id, %status, "wrapper ended without report");
        }
        self.adapter_ended(ExitStatus::Unknown);
        self.start_closing(&format!("its wrapper ended without a report ({status})")).await;
        Some(EscalationInput::WrapperGone)
    }

    /// Unregisters the wrapper after it was reaped: its pid may be reused.
    fn release_wrapper(&mut self) {
        self.child = None;
        if let Some(bound) = self.lease.bound {
            self.context.release_child(bound.wrapper.pid);
            // A reaped process' pid may be reused.
            self.context.remove_root(bound.wrapper.pid);
        }
    }

    /// Records the closing before the tree is touched. If the store fails, the tree is closed anyway.
    async fn start_closing(&mut self, reason: &str) {
        if self.lease.state == LeaseState::Closing {
            return;
        }
        apply_event(&mut self.lease, LeaseEvent::Close, reason);
        self.context.store.record(&self.lease, "closing").await;
        self.relay.send(RelayCmd::State(LeaseState::Closing));
        self.context.send_event(Event::Changed { lease: self.lease.clone(), stuck: false }).await;
    }

    /// Executes one step of the escalation. Returns true if the lease has ended.
    async fn step(&mut self, input: EscalationInput) -> bool {
        let mut actions = self.stop.step(self.context.now_ms(), input);
        let mut next = 0;
        while let Some(action) = actions.get(next).copied() {
            next += 1;
            match action {
                EscalationAction::CloseStdin => self.relay.send(RelayCmd::CloseStdin),
                EscalationAction::Terminate => self.terminate(),
                EscalationAction::Kill => {
                    if self.kill().await {
                        actions.extend(self.stop.step(self.context.now_ms(), EscalationInput::TreeGone));
                    }
                }
                EscalationAction::NameSurvivors => self.name_survivors().await,
                EscalationAction::Finish => {
                    self.finish().await;
                    return true;
                }
            }
        }
        false
    }

    /// Sends SIGTERM to the wrapper, which forwards it to the whole tree.
    fn terminate(&self) {
        let (Some(bound), Some(child)) = (self.lease.bound, &self.child) else { return };
        let handle = child.handle();
        let target = TreeQuery::of(&self.lease, &self.context.containment.subtree);
        let claim = target.claim(bound.wrapper);
        for signal in [Signal::Term, Signal::Cont] {
            let evidence = self.context.sys.kernel_evidence(handle);
            match verify(&claim, &evidence, &self.context.guard(Some(bound.wrapper.pid))) {
                Verdict::Owned(proof) => {
                    if let Err(error) = self.context.sys.signal(handle, &proof, signal) {
                        tracing::warn!(lease_id = %self.lease.lease_id, %error, ?signal, "signal not sent");
                    }
                }
                other @ (Verdict::NotOurs(_) | Verdict::Gone(_) | Verdict::Unknown(_)) => {
                    tracing::debug!(lease_id = %self.lease.lease_id, why = other.why(), "signal withheld");
                }
            }
        }
    }

    /// Sends SIGKILL to all remaining processes. Returns true if the tree is verified gone.
    async fn kill(&mut self) -> bool {
        let gone = match kill_tree(&self.context, &mut self.lease).await {
            Ok(gone) => gone,
            Err(_) => {
                // Without a process list only the own child can be identified, by its handle.
                if let Some(child) = &self.child {
                    kill_child(&self.context, &self.lease, child);
                }
                false
            }
        };
        if gone && let Some(child) = &mut self.child {
            // The wrapper was just killed: reap it.
            let collected = tokio::time::timeout(Duration::from_millis(200), child.ended()).await;
            if collected.is_ok() {
                self.release_wrapper();
            }
        }
        gone && self.child.is_none()
    }

    async fn name_survivors(&mut self) {
        let (target, guard) = (
            TreeQuery::of(&self.lease, &self.context.containment.subtree),
            self.context.guard(self.lease.bound.map(|b| b.wrapper.pid)),
        );
        let found = self.context.blocking(move |sys| tree_kill::find_now(sys, &target, &guard)).await;
        let names = found.map(|found| found.survivors()).unwrap_or_default();
        self.lease.explain(&format!("{}; {UNENDED}: {names}", self.lease.state_reason));
        tracing::error!(
            lease_id = %self.lease.lease_id,
            survivors = names,
            "lease cannot be closed; processes survive"
        );
        self.context.store.post_lease(&self.lease);
        self.context.send_event(Event::Changed { lease: self.lease.clone(), stuck: true }).await;
    }

    async fn finish(&mut self) {
        self.adapter_ended(ExitStatus::Unknown);
        let totals = self.relay.finish().await;
        self.lease.stdout_base = totals.stdout_base;
        self.lease.stdout_end = totals.stdout_end;
        self.lease.stdin_written = totals.stdin_written;
        if let Some(bound) = self.lease.bound {
            self.context.remove_root(bound.wrapper.pid);
        }
        let reason = self.lease.state_reason.clone();
        let tree = if self.vanished { EndedTree::Vanished } else { EndedTree::Accounted };
        record_end(&self.context, &mut self.lease, tree, &reason).await;
        self.relay.send(RelayCmd::State(self.lease.state));
        self.context.send_event(Event::Changed { lease: self.lease.clone(), stuck: false }).await;
    }
}
