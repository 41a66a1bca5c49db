//! Request queue: the schedule and the rate limiter behind one lock, with a timer task.

use super::counters::{Counters, RestCounts};
use crate::core::errors::RejectionKind;
use crate::core::headers::ResponseMeta;
use crate::core::rate_limiter::{Admission, RateLimitParams, RateLimiter, RequestOutcome, RequestPermit};
use crate::core::request_scheduler::{
    Priority, Schedule, ScheduleDecision, ScheduledRequest, StartDecision, Ticket, WAIT_UNKNOWN,
};
use crate::rest::error::RestError;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Decision sent to a waiting request.
#[derive(Debug)]
enum QueueDecision {
    Go(RequestPermit),
    GiveUp(Duration),
    Superseded,
    Unauthorized,
}

struct QueueState {
    schedule: Schedule<RateLimitParams>,
    limiter: RateLimiter,
    callers: HashMap<Ticket, oneshot::Sender<QueueDecision>>,
    wake_at: Option<Duration>,
}

struct SharedQueue {
    state: Mutex<QueueState>,
    counters: Arc<Counters>,
    started: Instant,
    alarm: Arc<Notify>,
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // The timer task wakes up, finds the queue dropped, and ends.
        self.alarm.notify_one();
    }
}

/// Request queue.
#[derive(Clone)]
pub(super) struct RequestQueue(Arc<SharedQueue>);

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Changes the state under the lock, then starts the requests that may start.
    fn change<T>(&self, change: impl FnOnce(&mut QueueState, Duration) -> T) -> T {
        let now = self.now();
        let mut state = self.lock();
        let result = change(&mut state, now);
        state.start_ready(now);
        drop(state);
        self.alarm.notify_one();
        result
    }
}

impl QueueState {
    fn start_ready(&mut self, now: Duration) {
        // A started request whose caller has gone frees capacity: repeat until no such request is left.
        loop {
            let limiter = &mut self.limiter;
            let step = self.schedule.step(now, |params| match limiter.try_acquire(now, params) {
                Admission::Go(permit) => StartDecision::Go(permit),
                Admission::Wait(until) => StartDecision::Wait(until),
                Admission::Unauthorized => StartDecision::Never,
            });
            self.wake_at = step.wake_at;
            let mut left = false;
            for (ticket, decision) in step.decisions {
                let decision = match decision {
                    ScheduleDecision::Start(permit) => QueueDecision::Go(permit),
                    ScheduleDecision::GiveUp { retry_after } => QueueDecision::GiveUp(retry_after),
                    ScheduleDecision::Never => QueueDecision::Unauthorized,
                };
                left |= self.notify_caller(now, ticket, decision);
            }
            if !left {
                return;
            }
        }
    }

    /// Sends a decision to a caller. Returns true if the request was to start but its caller has gone.
    fn notify_caller(&mut self, now: Duration, ticket: Ticket, decision: QueueDecision) -> bool {
        let decision = match self.callers.remove(&ticket) {
            Some(caller) => caller.send(decision).err(),
            None => Some(decision),
        };
        match decision {
            Some(QueueDecision::Go(permit)) => {
                self.limiter.record_outcome(now, &permit, &RequestOutcome::NotSent);
                self.schedule.done(ticket);
                true
            }
            Some(QueueDecision::GiveUp(_) | QueueDecision::Superseded | QueueDecision::Unauthorized)
            | None => false,
        }
    }
}

/// Timer task: runs the queue at its next deadline, as long as the queue exists.
async fn watch(shared: Weak<SharedQueue>, alarm: Arc<Notify>) {
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
                strong.lock().start_ready(now);
            }
        }
    }
}

impl RequestQueue {
    pub(super) fn new(limiter: RateLimiter, most: usize, counters: Arc<Counters>) -> Self {
        let alarm = Arc::new(Notify::new());
        let state =
            QueueState { schedule: Schedule::new(most), limiter, callers: HashMap::new(), wake_at: None };
        let shared = Arc::new(SharedQueue {
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
    pub(super) fn join(&self, request: ScheduledRequest<RateLimitParams>) -> Result<Waiter, RestError> {
        let route = request.params.route;
        let priority = request.priority;
        let (caller, receiver) = oneshot::channel();
        let ticket = self.0.change(|state, now| {
            let added = state.schedule.add(request);
            let (ticket, older) = added.map_err(|_| RestError::Limited { retry_after: WAIT_UNKNOWN })?;
            state.callers.insert(ticket, caller);
            if let Some(older) = older {
                state.notify_caller(now, older, QueueDecision::Superseded);
            }
            Ok(ticket)
        })?;
        Ok(Waiter {
            queue: self.clone(),
            ticket,
            receiver: Some(receiver),
            route,
            priority,
            since: self.now(),
        })
    }

    pub(super) fn authorize(&self) {
        self.0.change(|state, _| state.limiter.authorize());
    }

    pub(super) fn set_per_second(&self, per_second: u32) {
        self.0.change(|state, _| state.limiter.set_per_second(per_second));
    }

    /// Completes the counters with the current values: waiting, in flight, and what blocks all requests.
    pub(super) fn with_current_values(&self, counts: RestCounts) -> RestCounts {
        let now = self.now();
        let mut state = self.0.lock();
        RestCounts {
            waiting: state.schedule.waiting(),
            in_flight: state.schedule.in_flight(),
            unauthorized: state.limiter.is_unauthorized(),
            blocked_for: state.limiter.blocked_until(now).map(|until| until.saturating_sub(now)),
            ..counts
        }
    }
}

/// Request in the queue. Dropping it removes the request.
pub(super) struct Waiter {
    queue: RequestQueue,
    ticket: Ticket,
    receiver: Option<oneshot::Receiver<QueueDecision>>,
    route: &'static str,
    priority: Priority,
    since: Duration,
}

impl Waiter {
    /// Waits until the request may be sent.
    pub(super) async fn wait(mut self) -> Result<InFlightRequest, RestError> {
        let decision = match self.receiver.as_mut() {
            Some(receiver) => receiver.await,
            None => return Err(RestError::Superseded),
        };
        self.receiver = None;
        match decision {
            Ok(QueueDecision::Go(permit)) => {
                let waited = self.queue.now().saturating_sub(self.since);
                self.queue.0.counters.count_wait(self.priority, waited);
                let queue = self.queue.clone();
                Ok(InFlightRequest {
                    queue,
                    ticket: self.ticket,
                    permit: Some(permit),
                    in_flight: true,
                    priority: self.priority,
                })
            }
            Ok(QueueDecision::GiveUp(retry_after)) => Err(RestError::Limited { retry_after }),
            Ok(QueueDecision::Unauthorized) => {
                let why = "Discord refuses the bot's token; configure a new one".to_owned();
                Err(RestError::not_sent(self.route, RejectionKind::Unauthorized, why))
            }
            Ok(QueueDecision::Superseded) | Err(_) => Err(RestError::Superseded),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver.close();
        let decision = receiver.try_recv();
        self.queue.0.change(|state, now| {
            if let Ok(QueueDecision::Go(permit)) = decision {
                state.limiter.record_outcome(now, &permit, &RequestOutcome::NotSent);
            }
            state.callers.remove(&self.ticket);
            state.schedule.done(self.ticket);
        });
    }
}

/// Request in flight. Its outcome is reported once; dropping it without a report counts as a lost response.
pub(super) struct InFlightRequest {
    queue: RequestQueue,
    ticket: Ticket,
    permit: Option<RequestPermit>,
    in_flight: bool,
    priority: Priority,
}

impl InFlightRequest {
    /// Reports the outcome of the request. The request remains the writer of its channel until this value is
    /// dropped.
    pub(super) fn report(&mut self, outcome: &RequestOutcome) {
        let Some(permit) = self.permit.take() else { return };
        self.queue.0.change(|state, now| state.limiter.record_outcome(now, &permit, outcome));
    }

    /// Reports a response.
    pub(super) fn report_response(&mut self, meta: ResponseMeta) {
        self.report(&RequestOutcome::Responded(meta));
    }

    /// Puts the request back into the queue, at its old position.
    pub(super) fn requeue(mut self, route: &'static str, give_up_at: Duration) -> Result<Waiter, RestError> {
        let (caller, receiver) = oneshot::channel();
        self.in_flight = false;
        let permit = self.permit.take();
        let (queue, ticket) = (self.queue.clone(), self.ticket);
        let waits = queue.0.change(|state, now| {
            if let Some(permit) = permit {
                state.limiter.record_outcome(now, &permit, &RequestOutcome::Lost);
            }
            let waits = state.schedule.requeue(ticket, give_up_at);
            if waits {
                state.callers.insert(ticket, caller);
            }
            waits
        });
        if !waits {
            return Err(RestError::Superseded);
        }
        let (priority, since) = (self.priority, queue.now());
        Ok(Waiter { queue, ticket, receiver: Some(receiver), route, priority, since })
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if !self.in_flight {
            return;
        }
        let permit = self.permit.take();
        self.queue.0.change(|state, now| {
            if let Some(permit) = permit {
                state.limiter.record_outcome(now, &permit, &RequestOutcome::Lost);
            }
            state.schedule.done(self.ticket);
        });
    }
}
