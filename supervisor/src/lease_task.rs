//! The life of one lease, from the spawn request to the verified end: a task that owns the row, the wrapper's
//! handle and control socket, and carries out what [`crate::core::stop`] says.

use crate::context::{Context, wall_ms};
use crate::core::lease::{Lease, LeaseEvent, UNENDED, ending};
use crate::core::stop::{Action, Input, SURVIVOR_SWEEP_MS, Stop};
use crate::core::verify::{Verdict, verify};
use crate::disk;
use crate::handover::Passed;
use crate::owner::Event;
use crate::relay::{Relay, RelayCmd};
use crate::spawn::{self, Asked, SpawnError, Started};
use crate::sweep::{self, Target};
use crate::sys::linux::Linux;
use crate::sys::watch::{Child, Control, Heard};
use crate::sys::{OpenProcess, Signal, Sys};
use acp_shared::launch::{ExitStatus, FromWrapper};
use acp_shared::protocol::{LeaseState, Refusal};
use acp_shared::wire::WireError;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Rounds of one kill; the next one follows after [`crate::core::stop::SWEEP_MS`].
const KILL_ROUNDS_MAX: u32 = 8;
/// How long a wrapper whose start failed may take to clean up by itself.
const FAILED_START_GRACE: Duration = Duration::from_millis(1_500);

pub use crate::handover::{Pause, TaskState};

/// What the owner tells a lease.
#[derive(Debug)]
pub enum LeaseCmd {
    /// End the tree in the orderly way.
    Close {
        /// Why, for the record.
        reason: String,
    },
    /// End it without any more grace.
    Hurry,
    /// Do nothing, until it is decided whether the task turns into a value (H14).
    Pause(Pause),
}

/// What comes over the wrapper's control socket, or that nothing does any more.
enum Said {
    Heard(Heard),
    Closed,
}

struct Task<S: Sys = Linux> {
    context: Arc<Context<S>>,
    lease: Lease,
    relay: Relay,
    /// The wrapper, until it has ended and was reaped.
    child: Option<Child<S>>,
    control: Option<Control>,
    stop: Stop,
    /// The wrapper told that it was done before it ended.
    done: bool,
    /// The wrapper ended silently while nobody had asked for an end.
    vanished: bool,
    /// What others said in the wrapper's name.
    strange: u64,
}

/// Runs a lease. The owner learns of every change by [`Event`]s.
pub async fn run<S: Sys>(
    context: Arc<Context<S>>,
    mut lease: Lease,
    asked: Asked,
    mut commands: mpsc::Receiver<LeaseCmd>,
) {
    let mut started = match spawn::start(&context, &mut lease, &asked).await {
        Ok(started) => started,
        Err(error) => return failed(&context, lease, None, error).await,
    };
    if let Err(error) = spawn::go(&context, &mut lease, &asked.spec, &mut started).await {
        return failed(&context, lease, Some(started), error).await;
    }
    let (child, control, relay) = started.into_relay(&context, &lease, &asked.spec.env);
    context.tell(Event::Spawned { lease: lease.clone(), result: Ok(relay.clone()), crashed: false }).await;
    let stop = Stop::new(lease.graces);
    let mut task = Task {
        context,
        lease,
        relay,
        child: Some(child),
        control: Some(control),
        stop,
        done: false,
        vanished: false,
        strange: 0,
    };
    if let Some(to) = task.live(&mut commands).await {
        drop(to.send(task.freeze(commands)));
    }
}

/// Goes on with a lease where its task was frozen.
pub async fn resume<S: Sys>(
    context: Arc<Context<S>>,
    (lease, state): (Lease, TaskState),
    relay: Relay,
    mut commands: mpsc::Receiver<LeaseCmd>,
) {
    let control = state.control.and_then(|control| {
        let opened = control.take().and_then(Control::new);
        opened.inspect_err(|error| tracing::error!(lease_id = %lease.lease_id, %error, "a control socket did not survive the handover")).ok()
    });
    let (stop, done, vanished) = (state.stop, state.done, state.vanished);
    let mut task = Task { context, lease, relay, child: None, control, stop, done, vanished, strange: 0 };
    let mut inputs = Vec::new();
    if !state.wrapper_gone && !task.reopen() {
        inputs.extend(task.on_wrapper_ended(ExitStatus::Unknown).await);
    }
    if let Some(reason) = state.asked {
        task.begin_close(&reason).await;
        inputs.push(Input::Begin);
    }
    inputs.extend(state.hurried.then_some(Input::Hurry));
    for input in inputs {
        if task.step(input).await {
            return;
        }
    }
    if let Some(to) = task.live(&mut commands).await {
        drop(to.send(task.freeze(commands)));
    }
}

/// A start that failed: nothing of it may stay.
async fn failed<S: Sys>(
    context: &Arc<Context<S>>,
    mut lease: Lease,
    started: Option<Started<S>>,
    error: SpawnError,
) {
    let (refusal, crashed) = (error.refusal(), error.is_the_agents());
    tracing::warn!(lease_id = %lease.lease_id, error = refusal.message, "a spawn failed");
    if let Some(started) = started {
        // The closed control socket tells the wrapper to end; so does its own fault.
        let Started { mut child, control, .. } = started;
        drop(control);
        if tokio::time::timeout(FAILED_START_GRACE, child.ended()).await.is_err() {
            kill_child(context, &lease, &child);
            drop(tokio::time::timeout(FAILED_START_GRACE, child.ended()).await);
        }
        // Nobody waits for it from now on: should it be there still, it is reaped as a stray.
        context.forget_child(child.handle().pid());
        if child.status().is_none() || !tree_gone(context, &mut lease).await.unwrap_or(false) {
            return outlast(context, lease, refusal, crashed).await;
        }
    }
    if let Some(bound) = lease.bound {
        context.remove_root(bound.wrapper.pid);
    }
    // Where the processes were not what the wrapper said, nobody knows what else there is.
    let doubtful = matches!(error, SpawnError::Mismatch(_));
    end(context, &mut lease, (false, doubtful), &refusal.message).await;
    context.tell(Event::Spawned { lease, result: Err(refusal), crashed }).await;
}

/// Something of a failed start survives SIGKILL, or cannot be told: its lease, and with it the session (H5), stays
/// closing until it is verified gone.
async fn outlast<S: Sys>(context: &Arc<Context<S>>, mut lease: Lease, refusal: Refusal, crashed: bool) {
    change(&mut lease, LeaseEvent::Close, &refusal.message);
    tracing::error!(lease_id = %lease.lease_id, "what a failed start left behind does not end");
    context.store.record(&lease, "the closing of a lease").await;
    context.tell(Event::Spawned { lease: lease.clone(), result: Err(refusal), crashed }).await;
    until_gone(context, lease).await;
}

/// Kills what is left of a tree that has no task of its own until nothing is.
pub(crate) async fn until_gone<S: Sys>(context: &Arc<Context<S>>, mut lease: Lease) {
    while !tree_gone(context, &mut lease).await.unwrap_or(false) {
        tokio::time::sleep(Duration::from_millis(SURVIVOR_SWEEP_MS)).await;
    }
    if let Some(bound) = lease.bound {
        context.remove_root(bound.wrapper.pid);
    }
    end(context, &mut lease, (false, false), "").await;
    context.tell(Event::Changed { lease, stuck: false }).await;
}

/// Kills the wrapper itself, our own un-reaped child.
fn kill_child<S: Sys>(context: &Context<S>, lease: &Lease, child: &Child<S>) {
    let evidence = context.sys.glance(child.handle());
    let Some(process) = child.handle().record() else { return };
    let target = Target::of(lease, &context.holding.subtree);
    if let Verdict::Owned(proof) =
        verify(&target.claim(process), &evidence, &context.guard(Some(process.pid)))
        && let Err(error) = context.sys.signal(child.handle(), &proof, Signal::Kill)
    {
        tracing::warn!(lease_id = %lease.lease_id, %error, "cannot kill a wrapper");
    }
}

/// Whether nothing of the tree is left, killing what is. What was seen last goes on record. An error when the process
/// list cannot be read.
async fn tree_gone<S: Sys>(context: &Arc<Context<S>>, lease: &mut Lease) -> io::Result<bool> {
    let (target, guard) =
        (Target::of(lease, &context.holding.subtree), context.guard(lease.bound.map(|b| b.wrapper.pid)));
    let swept = context.blocking(move |sys| sweep::kill(sys, &target, &guard, KILL_ROUNDS_MAX)).await;
    let found = swept.inspect_err(|error| {
        tracing::warn!(lease_id = %lease.lease_id, %error, "cannot look for a tree");
    })?;
    lease.last_evidence_json = Some(found.json(wall_ms()));
    Ok(found.is_gone())
}

/// Records the end of a lease. Where the store fails the lease ends all the same: processes come first (H19).
async fn end<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    (vanished, doubtful): (bool, bool),
    reason: &str,
) {
    if lease.state != LeaseState::Closing {
        change(lease, LeaseEvent::Close, reason);
    }
    let reason = if lease.state_reason.is_empty() { reason.to_owned() } else { lease.state_reason.clone() };
    change(lease, ending(lease.state, vanished, doubtful), &reason);
    lease.ended_at_ms = Some(wall_ms());
    context.store.record(lease, "the end of a lease").await;
    disk::waited(vec![context.leave_nothing(lease)]).await;
}

fn change(lease: &mut Lease, event: LeaseEvent, reason: &str) {
    let from = lease.state;
    match lease.apply(event, reason) {
        Ok(()) => {
            tracing::info!(lease_id = %lease.lease_id, session_key = %lease.session_key, %from, to = %lease.state, reason, "lease");
        }
        Err(error) => tracing::error!(lease_id = %lease.lease_id, %error, "a lease took an impossible turn"),
    }
}

/// Waits for the end of the wrapper, while there is one.
async fn ended<S: Sys>(child: Option<&mut Child<S>>) -> ExitStatus {
    match child {
        Some(child) => child.ended().await,
        None => std::future::pending().await,
    }
}

async fn hear(control: Option<&Control>) -> Said {
    let Some(control) = control else { return std::future::pending().await };
    match control.recv().await {
        Ok(Some(heard)) => Said::Heard(heard),
        Ok(None) => Said::Closed,
        Err(error) => {
            tracing::warn!(%error, "a wrapper's control socket");
            Said::Closed
        }
    }
}

impl<S: Sys> Task<S> {
    /// Lives until the lease is over, or until somebody wants the task as a value: then it says who.
    async fn live(
        &mut self,
        commands: &mut mpsc::Receiver<LeaseCmd>,
    ) -> Option<oneshot::Sender<(Lease, TaskState)>> {
        loop {
            let wake = self.stop.wake_at_ms().map(|at| self.context.instant(at));
            let input = tokio::select! {
                said = hear(self.control.as_ref()) => self.on_said(said).await,
                status = ended(self.child.as_mut()) => self.on_wrapper_ended(status).await,
                command = commands.recv() => match command {
                    Some(LeaseCmd::Pause(pause)) => match pause.wait().await {
                        Some(to) => return Some(to),
                        None => None,
                    },
                    command => self.on_command(command).await,
                },
                () = sleep_until(wake) => Some(Input::Tick),
            };
            if let Some(input) = input
                && self.step(input).await
            {
                return None;
            }
        }
    }

    /// Everything as a value, what it was told and had not begun too.
    fn freeze(self, mut commands: mpsc::Receiver<LeaseCmd>) -> (Lease, TaskState) {
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
            let fd = control.into_fd();
            fd.inspect_err(|error| tracing::error!(lease_id = %self.lease.lease_id, %error, "a control socket cannot be handed over")).ok()
        });
        let state = TaskState {
            stop: self.stop,
            control: control.map(Passed::new),
            wrapper_gone: self.child.is_none(),
            done: self.done,
            vanished: self.vanished,
            asked,
            hurried,
        };
        (self.lease, state)
    }

    /// Opens the wrapper once more: an own child that was not reaped, so its number is its own. Whether it is there
    /// and is the recorded one; what was seen goes on record.
    fn reopen(&mut self) -> bool {
        let Some(bound) = self.lease.bound else { return false };
        let opened = self.context.sys.open_child(bound.wrapper.pid);
        let handle = opened.inspect_err(|error| {
            tracing::error!(lease_id = %self.lease.lease_id, %error, "its wrapper did not survive the handover");
        });
        let Ok(handle) = handle else { return false };
        let (found, evidence) = (handle.record(), self.context.sys.glance(&handle));
        let same = found == Some(bound.wrapper);
        let seen = serde_json::json!({ "at_ms": wall_ms(), "resumed": same, "life": format!("{:?}", evidence.life) });
        self.lease.last_evidence_json = Some(seen.to_string());
        self.context.store.post_lease(&self.lease);
        if !same {
            tracing::error!(lease_id = %self.lease.lease_id, recorded = ?bound.wrapper, ?found, "another process has its wrapper's number");
            return false;
        }
        let child = Child::new(Arc::clone(&self.context.sys), handle);
        self.child = child.inspect_err(|error| tracing::error!(lease_id = %self.lease.lease_id, %error, "its wrapper cannot be watched")).ok();
        self.child.is_some()
    }

    async fn on_command(&mut self, command: Option<LeaseCmd>) -> Option<Input> {
        match command {
            Some(LeaseCmd::Close { reason }) => {
                self.begin_close(&reason).await;
                Some(Input::Begin)
            }
            Some(LeaseCmd::Pause(_)) => None,
            // The owner is gone: so are we, soon.
            Some(LeaseCmd::Hurry) | None => {
                self.begin_close("the supervisor ends").await;
                Some(Input::Hurry)
            }
        }
    }

    async fn on_said(&mut self, said: Said) -> Option<Input> {
        let wrapper = self.child.as_ref().map(|child| Arc::clone(child.handle()));
        match said {
            Said::Heard(heard) => match self.said_by(heard, wrapper.as_deref())? {
                Ok(message) => self.on_message(message).await,
                Err(error) => {
                    tracing::warn!(lease_id = %self.lease.lease_id, %error, "a wrapper's control socket");
                    self.control = None;
                    None
                }
            },
            Said::Closed => {
                self.control = None;
                None
            }
        }
    }

    /// What the wrapper itself said. An adapter that got hold of the socket does not speak for it.
    fn said_by(
        &mut self,
        heard: Heard,
        wrapper: Option<&S::Handle>,
    ) -> Option<Result<FromWrapper, WireError>> {
        let heard = heard.from(self.context.sys.as_ref(), wrapper?);
        heard
            .inspect_err(|stranger| {
                self.strange += 1;
                // It may say as much as it likes.
                if self.strange.is_power_of_two() {
                    let (count, lease_id) = (self.strange, self.lease.lease_id);
                    tracing::warn!(%lease_id, count, ?stranger, "ignored: what came over a wrapper's control socket is not its own");
                }
            })
            .ok()
    }

    async fn on_message(&mut self, message: FromWrapper) -> Option<Input> {
        match message {
            FromWrapper::AdapterExited { status } => {
                self.adapter_ended(status);
                self.begin_close(&format!("the adapter ended: {status}")).await;
                Some(Input::AdapterGone)
            }
            FromWrapper::Done { status, survivors } => {
                if !survivors.is_empty() {
                    tracing::warn!(lease_id = %self.lease.lease_id, ?survivors, "the wrapper could not end these");
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
            self.relay.tell(RelayCmd::AdapterEnded(status));
        }
    }

    async fn on_wrapper_ended(&mut self, status: ExitStatus) -> Option<Input> {
        let wrapper = self.child.as_ref().map(|child| Arc::clone(child.handle()));
        self.forget_wrapper();
        // Its last words may still lie in the socket.
        let words = self.control.take().map(|control| control.last_words());
        for heard in words.unwrap_or_default() {
            if let Some(Ok(message)) = self.said_by(heard, wrapper.as_deref()) {
                self.on_message(message).await;
            }
        }
        self.vanished = !self.done && self.lease.state != LeaseState::Closing;
        if !self.done {
            tracing::warn!(lease_id = %self.lease.lease_id, %status, "a wrapper ended without a word");
        }
        self.adapter_ended(ExitStatus::Unknown);
        self.begin_close(&format!("its wrapper ended without a word ({status})")).await;
        Some(Input::WrapperGone)
    }

    /// The wrapper has ended and was reaped: its number is nobody's any more.
    fn forget_wrapper(&mut self) {
        self.child = None;
        if let Some(bound) = self.lease.bound {
            self.context.forget_child(bound.wrapper.pid);
            // Collected, it leaves its number to others.
            self.context.remove_root(bound.wrapper.pid);
        }
    }

    /// The row says so before anything is done to the tree; where the store fails it is done all the same.
    async fn begin_close(&mut self, reason: &str) {
        if self.lease.state == LeaseState::Closing {
            return;
        }
        change(&mut self.lease, LeaseEvent::Close, reason);
        self.context.store.record(&self.lease, "the closing of a lease").await;
        self.relay.tell(RelayCmd::State(LeaseState::Closing));
        self.context.tell(Event::Changed { lease: self.lease.clone(), stuck: false }).await;
    }

    /// One step of the escalation; whether the lease is over.
    async fn step(&mut self, input: Input) -> bool {
        let mut actions = self.stop.step(self.context.now_ms(), input);
        let mut next = 0;
        while let Some(action) = actions.get(next).copied() {
            next += 1;
            match action {
                Action::CloseStdin => self.relay.tell(RelayCmd::CloseStdin),
                Action::Terminate => self.terminate(),
                Action::Kill => {
                    if self.kill().await {
                        actions.extend(self.stop.step(self.context.now_ms(), Input::TreeGone));
                    }
                }
                Action::NameSurvivors => self.name_survivors().await,
                Action::Finish => {
                    self.finish().await;
                    return true;
                }
            }
        }
        false
    }

    /// SIGTERM to the wrapper, which passes it on to the whole tree.
    fn terminate(&self) {
        let (Some(bound), Some(child)) = (self.lease.bound, &self.child) else { return };
        let handle = child.handle();
        let target = Target::of(&self.lease, &self.context.holding.subtree);
        let claim = target.claim(bound.wrapper);
        for signal in [Signal::Term, Signal::Cont] {
            let evidence = self.context.sys.glance(handle);
            match verify(&claim, &evidence, &self.context.guard(Some(bound.wrapper.pid))) {
                Verdict::Owned(proof) => {
                    if let Err(error) = self.context.sys.signal(handle, &proof, signal) {
                        tracing::warn!(lease_id = %self.lease.lease_id, %error, ?signal, "not sent");
                    }
                }
                other @ (Verdict::NotOurs(_) | Verdict::Gone(_) | Verdict::Unknown(_)) => {
                    tracing::debug!(lease_id = %self.lease.lease_id, why = other.why(), "no signal");
                }
            }
        }
    }

    /// SIGKILL to what is left; whether the tree is verified gone.
    async fn kill(&mut self) -> bool {
        let gone = match tree_gone(&self.context, &mut self.lease).await {
            Ok(gone) => gone,
            Err(_) => {
                // Without a list nobody else can be told; the own child can, by its handle.
                if let Some(child) = &self.child {
                    kill_child(&self.context, &self.lease, child);
                }
                false
            }
        };
        if gone && let Some(child) = &mut self.child {
            // It was killed just now: collect it.
            let collected = tokio::time::timeout(Duration::from_millis(200), child.ended()).await;
            if collected.is_ok() {
                self.forget_wrapper();
            }
        }
        gone && self.child.is_none()
    }

    async fn name_survivors(&mut self) {
        let (target, guard) = (
            Target::of(&self.lease, &self.context.holding.subtree),
            self.context.guard(self.lease.bound.map(|b| b.wrapper.pid)),
        );
        let found = self.context.blocking(move |sys| sweep::find_now(sys, &target, &guard)).await;
        let names = found.map(|found| found.survivors()).unwrap_or_default();
        self.lease.explain(&format!("{}; {UNENDED}: {names}", self.lease.state_reason));
        tracing::error!(lease_id = %self.lease.lease_id, survivors = names, "a lease cannot be closed");
        self.context.store.post_lease(&self.lease);
        self.context.tell(Event::Changed { lease: self.lease.clone(), stuck: true }).await;
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
        end(&self.context, &mut self.lease, (self.vanished, false), &reason).await;
        self.relay.tell(RelayCmd::State(self.lease.state));
        self.context.tell(Event::Changed { lease: self.lease.clone(), stuck: false }).await;
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
