//! Request queue: the schedule and the rate limiter behind one lock, with a timer task.

use super::counters::{Counters, Counts};
use super::fault::Fault;
use crate::core::errors::Meaning;
use crate::core::gate::{Asked, Became, Counted, Gate, Pass};
use crate::core::headers::Said;
use crate::core::schedule::{Fate, Job, Priority, Schedule, Ticket, Turn, WAIT_UNKNOWN};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Decision sent to a waiting request.
#[derive(Debug)]
enum Told {
    Go(Pass),
    GiveUp(Duration),
    Superseded,
    Unauthorized,
}

struct State {
    schedule: Schedule<Counted>,
    gate: Gate,
    callers: HashMap<Ticket, oneshot::Sender<Told>>,
    wake_at: Option<Duration>,
}

struct Shared {
    state: Mutex<State>,
    counters: Arc<Counters>,
    started: Instant,
    alarm: Arc<Notify>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The timer task wakes up, finds the queue dropped, and ends.
        self.alarm.notify_one();
    }
}

/// Request queue.
#[derive(Clone)]
pub(super) struct Queue(Arc<Shared>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Changes the state under the lock, then starts the requests that may start.
    fn change<T>(&self, change: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        let result = change(&mut state, now);
        state.pump(now);
        drop(state);
        self.alarm.notify_one();
        result
    }
}

impl State {
    fn pump(&mut self, now: Duration) {
        // A started request whose caller has gone frees its place: repeat until no such request is left.
        loop {
            let gate = &mut self.gate;
            let step = self.schedule.step(now, |counted| match gate.ask(now, counted) {
                Asked::Go(pass) => Turn::Go(pass),
                Asked::Wait(until) => Turn::Wait(until),
                Asked::Unauthorized => Turn::Never,
            });
            self.wake_at = step.wake_at;
            let mut left = false;
            for (ticket, fate) in step.fates {
                let told = match fate {
                    Fate::Start(pass) => Told::Go(pass),
                    Fate::GiveUp { retry_after } => Told::GiveUp(retry_after),
                    Fate::Never => Told::Unauthorized,
                };
                left |= self.tell(now, ticket, told);
            }
            if !left {
                return;
            }
        }
    }

    /// Sends a decision to a caller. Returns true if the request was to start but its caller has gone.
    fn tell(&mut self, now: Duration, ticket: Ticket, told: Told) -> bool {
        let told = match self.callers.remove(&ticket) {
            Some(caller) => caller.send(told).err(),
            None => Some(told),
        };
        match told {
            Some(Told::Go(pass)) => {
                self.gate.tell(now, &pass, &Became::Unused);
                self.schedule.done(ticket);
                true
            }
            Some(Told::GiveUp(_) | Told::Superseded | Told::Unauthorized) | None => false,
        }
    }
}

/// Timer task: runs the queue at its next deadline, as long as the queue exists.
async fn watch(shared: Weak<Shared>, alarm: Arc<Notify>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let wake_at = strong.lock().wake_at.map(|at| strong.started + at);
        drop(strong);
        let Some(wake_at) = wake_at else {
            alarm.notified().await;
            continue;
        };
        tokio::select! {
            () = alarm.notified() => {}
            () = tokio::time::sleep_until(wake_at) => {
                let Some(strong) = shared.upgrade() else { return };
                let now = strong.now();
                strong.lock().pump(now);
            }
        }
    }
}

impl Queue {
    pub(super) fn new(gate: Gate, most: usize, counters: Arc<Counters>) -> Self {
        let alarm = Arc::new(Notify::new());
        let state = State { schedule: Schedule::new(most), gate, callers: HashMap::new(), wake_at: None };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            counters,
            started: Instant::now(),
            alarm: Arc::clone(&alarm),
        });
        tokio::spawn(watch(Arc::downgrade(&shared), alarm));
        Self(shared)
    }

    /// Time by the clock of the queue.
    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Adds a request to the queue, possibly superseding a waiting one of the same sequence.
    pub(super) fn join(&self, job: Job<Counted>) -> Result<Waiter, Fault> {
        let route = job.counted.route;
        let priority = job.priority;
        let (caller, turn) = oneshot::channel();
        let ticket = self.0.change(|state, now| {
            let added = state.schedule.add(job);
            let (ticket, older) = added.map_err(|_| Fault::Limited { retry_after: WAIT_UNKNOWN })?;
            state.callers.insert(ticket, caller);
            if let Some(older) = older {
                state.tell(now, older, Told::Superseded);
            }
            Ok(ticket)
        })?;
        Ok(Waiter { queue: self.clone(), ticket, turn: Some(turn), route, priority, since: self.now() })
    }

    pub(super) fn authorize(&self) {
        self.0.change(|state, _| state.gate.authorize());
    }

    /// Completes the counters with the current values: waiting, in flight, and what blocks all requests.
    pub(super) fn with_now(&self, counts: Counts) -> Counts {
        let now = self.now();
        let mut state = self.0.lock();
        Counts {
            waiting: state.schedule.waiting(),
            under_way: state.schedule.under_way(),
            unauthorized: state.gate.is_unauthorized(),
            shut_for: state.gate.shut_until(now).map(|until| until.saturating_sub(now)),
            ..counts
        }
    }
}

/// Request in the queue. Dropping it removes the request.
pub(super) struct Waiter {
    queue: Queue,
    ticket: Ticket,
    turn: Option<oneshot::Receiver<Told>>,
    route: &'static str,
    priority: Priority,
    since: Duration,
}

impl Waiter {
    /// Waits until the request may be sent.
    pub(super) async fn turn(mut self) -> Result<Held, Fault> {
        let told = match self.turn.as_mut() {
            Some(turn) => turn.await,
            None => return Err(Fault::Superseded),
        };
        self.turn = None;
        match told {
            Ok(Told::Go(pass)) => {
                let waited = self.queue.now().saturating_sub(self.since);
                self.queue.0.counters.waited(self.priority, waited);
                let queue = self.queue.clone();
                Ok(Held {
                    queue,
                    ticket: self.ticket,
                    pass: Some(pass),
                    under_way: true,
                    priority: self.priority,
                })
            }
            Ok(Told::GiveUp(retry_after)) => Err(Fault::Limited { retry_after }),
            Ok(Told::Unauthorized) => {
                let why = "Discord does not take the bot's token; give it another one".to_owned();
                Err(Fault::not_sent(self.route, Meaning::Unauthorized, why))
            }
            Ok(Told::Superseded) | Err(_) => Err(Fault::Superseded),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        turn.close();
        let told = turn.try_recv();
        self.queue.0.change(|state, now| {
            if let Ok(Told::Go(pass)) = told {
                state.gate.tell(now, &pass, &Became::Unused);
            }
            state.callers.remove(&self.ticket);
            state.schedule.done(self.ticket);
        });
    }
}

/// Request in flight. Its outcome is reported once; dropping it without a report counts as a lost response.
pub(super) struct Held {
    queue: Queue,
    ticket: Ticket,
    pass: Option<Pass>,
    under_way: bool,
    priority: Priority,
}

impl Held {
    /// Reports the outcome of the request. The request remains the writer of its channel until this value is
    /// dropped.
    pub(super) fn became(&mut self, became: &Became) {
        let Some(pass) = self.pass.take() else { return };
        self.queue.0.change(|state, now| state.gate.tell(now, &pass, became));
    }

    /// Reports a response.
    pub(super) fn answered(&mut self, said: Said) {
        self.became(&Became::Answered(said));
    }

    /// Puts the request back into the queue, at its old position.
    pub(super) fn again(mut self, route: &'static str, give_up_at: Duration) -> Result<Waiter, Fault> {
        let (caller, turn) = oneshot::channel();
        self.under_way = false;
        let pass = self.pass.take();
        let (queue, ticket) = (self.queue.clone(), self.ticket);
        let waits = queue.0.change(|state, now| {
            if let Some(pass) = pass {
                state.gate.tell(now, &pass, &Became::Lost);
            }
            let waits = state.schedule.again(ticket, give_up_at);
            if waits {
                state.callers.insert(ticket, caller);
            }
            waits
        });
        if !waits {
            return Err(Fault::Superseded);
        }
        let (priority, since) = (self.priority, queue.now());
        Ok(Waiter { queue, ticket, turn: Some(turn), route, priority, since })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.under_way {
            return;
        }
        let pass = self.pass.take();
        self.queue.0.change(|state, now| {
            if let Some(pass) = pass {
                state.gate.tell(now, &pass, &Became::Lost);
            }
            state.schedule.done(self.ticket);
        });
    }
}
