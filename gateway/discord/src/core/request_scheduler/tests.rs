use super::{
    Priority, Schedule, ScheduleDecision, ScheduleStep, ScheduledRequest, Sequence, StartDecision, Ticket,
};
use crate::core::ids::Snowflake;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use Priority::{Card, Final, Look, Notice, Permission, Reaction, Typing};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn request(channel: u64, priority: Priority, sequence: Option<Sequence>) -> ScheduledRequest<u8> {
    ScheduledRequest {
        channel: Some(Snowflake(channel)),
        priority,
        sequence,
        give_up_at: ms(10_000),
        params: 0,
    }
}

fn add(schedule: &mut Schedule<u8>, request: ScheduledRequest<u8>) -> (Ticket, Option<Ticket>) {
    schedule.add(request).unwrap_or_else(|full| panic!("{full:?}"))
}

fn edit(message: u64) -> Option<Sequence> {
    Some(Sequence::Edit(Snowflake(message)))
}

/// Returns the requests that start if all rate limits permit them.
fn starts(schedule: &mut Schedule<u8>) -> Vec<Ticket> {
    let step = schedule.step(ms(0), |_| StartDecision::Go(()));
    step.decisions
        .into_iter()
        .filter(|(_, decision)| *decision == ScheduleDecision::Start(()))
        .map(|(ticket, _)| ticket)
        .collect()
}

#[test]
fn durable_requests_of_a_channel_start_first_and_serially() {
    let mut schedule = Schedule::new(100);
    let kinds = [Typing, Card, Final, Notice, Permission, Final];
    let tickets = kinds.map(|priority| add(&mut schedule, request(1, priority, None)).0);
    let mut order = Vec::new();
    loop {
        let started = starts(&mut schedule);
        let Some(ticket) = started.first() else { break };
        order.push(tickets.iter().position(|t| t == ticket).unwrap_or(99));
        // A best-effort request starts together with the last durable one.
        order.extend(
            started.iter().skip(1).map(|other| tickets.iter().position(|t| t == other).unwrap_or(99)),
        );
        assert_eq!(started.len(), if order.len() == 5 { 2 } else { 1 }, "{order:?}");
        started.iter().for_each(|ticket| schedule.done(*ticket));
    }
    // Permission, both finals in order of arrival, notice; then the best-effort ones.
    assert_eq!(order, [4, 2, 5, 3, 1, 0]);
}

/// If only one request at a time is possible, a backfill check comes last.
#[test]
fn backfill_checks_have_lowest_priority() {
    let mut schedule = Schedule::new(100);
    let look = add(&mut schedule, ScheduledRequest { channel: None, ..request(1, Look, None) }).0;
    let tickets = [Typing, Card, Notice].map(|priority| add(&mut schedule, request(2, priority, None)).0);
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut has_room = true;
        let admit = |_: &u8| {
            if std::mem::take(&mut has_room) { StartDecision::Go(()) } else { StartDecision::Wait(None) }
        };
        let decisions = schedule.step(ms(0), admit).decisions;
        for (ticket, _) in decisions {
            order.push(ticket);
            schedule.done(ticket);
        }
    }
    let [typing, card, notice] = tickets;
    assert_eq!(order, [notice, card, typing, look]);
}

#[test]
fn final_does_not_wait_for_card_in_flight() {
    let mut schedule = Schedule::new(100);
    let card = add(&mut schedule, request(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [card]);
    let last = add(&mut schedule, request(1, Final, None)).0;
    let typing = add(&mut schedule, request(1, Typing, None)).0;
    let elsewhere = add(&mut schedule, request(2, Final, None)).0;
    assert_eq!(starts(&mut schedule), [last, elsewhere]);
    schedule.done(card);
    assert_eq!(starts(&mut schedule), [typing]);
}

#[test]
fn best_effort_requests_leave_budget_for_durable_ones() {
    let mut schedule = Schedule::new(100);
    let last = add(&mut schedule, request(1, Final, None)).0;
    let card = add(&mut schedule, ScheduledRequest { params: 1, ..request(1, Card, None) }).0;
    let other = add(&mut schedule, ScheduledRequest { params: 1, ..request(2, Card, None) }).0;
    let step = schedule.step(ms(0), |params| {
        if *params == 0 { StartDecision::Wait(Some(ms(500))) } else { StartDecision::Go(()) }
    });
    assert_eq!(
        step,
        ScheduleStep { decisions: vec![(other, ScheduleDecision::Start(()))], wake_at: Some(ms(500)) }
    );
    let step = schedule.step(ms(500), |_| StartDecision::Go(()));
    assert_eq!(step.decisions, [(last, ScheduleDecision::Start(())), (card, ScheduleDecision::Start(()))]);
}

#[test]
fn newer_edit_supersedes_queued_edit() {
    let mut schedule = Schedule::new(3);
    let first = add(&mut schedule, request(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [first]);
    let second = add(&mut schedule, request(1, Card, edit(7))).0;
    let other = add(&mut schedule, request(1, Card, edit(8))).0;
    let (third, superseded) = add(&mut schedule, request(1, Card, edit(7)));
    assert_eq!(superseded, Some(second));
    // The new request has the best priority of all it replaced, and the position of the first.
    let (fourth, superseded) = add(&mut schedule, request(1, Reaction, edit(7)));
    assert_eq!(superseded, Some(third));
    schedule.done(first);
    assert_eq!(starts(&mut schedule), [fourth]);
    schedule.done(fourth);
    assert_eq!(starts(&mut schedule), [other]);
    // Reactions do not supersede each other: each is sent, in order.
    let reactions = Some(Sequence::Reactions(Snowflake(7)));
    let [add_one, remove] = [0, 1].map(|_| add(&mut schedule, request(1, Reaction, reactions)));
    assert_eq!((add_one.1, remove.1), (None, None));
    schedule.done(other);
    assert_eq!(starts(&mut schedule), [add_one.0]);
    schedule.done(add_one.0);
    assert_eq!(starts(&mut schedule), [remove.0]);
}

#[test]
fn requests_beyond_their_deadline_give_up_at_once() {
    let mut schedule = Schedule::new(2);
    let patient = add(&mut schedule, ScheduledRequest { params: 1, ..request(1, Final, None) }).0;
    let hasty =
        add(&mut schedule, ScheduledRequest { give_up_at: ms(400), params: 1, ..request(2, Card, None) }).0;
    assert!(schedule.add(request(3, Final, None)).is_err());
    let admit = |_: &u8| StartDecision::<()>::Wait(Some(ms(5000)));
    let gave_up = (hasty, ScheduleDecision::GiveUp { retry_after: ms(5000) });
    assert_eq!(
        schedule.step(ms(0), admit),
        ScheduleStep { decisions: vec![gave_up], wake_at: Some(ms(5000)) }
    );
    // The time of the next response is unknown, so the request waits until its deadline.
    let step = schedule.step(ms(5000), |_| StartDecision::<()>::Wait(None));
    assert_eq!(step, ScheduleStep { decisions: vec![], wake_at: Some(ms(10_000)) });
    let step = schedule.step(ms(10_000), |_| StartDecision::<()>::Wait(None));
    assert_eq!(step.decisions, [(patient, ScheduleDecision::GiveUp { retry_after: super::WAIT_UNKNOWN })]);
    assert_eq!((schedule.waiting(), schedule.in_flight()), (0, 0));
    let never = add(&mut schedule, request(1, Final, None)).0;
    assert_eq!(
        schedule.step(ms(0), |_| StartDecision::<()>::Never).decisions,
        [(never, ScheduleDecision::Never)]
    );
}

#[test]
fn requeued_request_keeps_its_position() {
    let mut schedule = Schedule::new(100);
    let first = add(&mut schedule, request(1, Final, None)).0;
    assert_eq!(starts(&mut schedule), [first]);
    let second = add(&mut schedule, request(1, Final, None)).0;
    assert!(schedule.requeue(first, ms(10_000)));
    assert_eq!(starts(&mut schedule), [first]);
    schedule.done(first);
    assert_eq!(starts(&mut schedule), [second]);
    schedule.done(second);
    // A refused edit is superseded by a newer one that waits.
    let old = add(&mut schedule, request(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [old]);
    let new = add(&mut schedule, request(1, Card, edit(7))).0;
    assert!(!schedule.requeue(old, ms(10_000)));
    assert_eq!(starts(&mut schedule), [new]);
}

#[derive(Debug, Clone)]
enum Action {
    Add {
        channel: u64,
        priority: Priority,
        message: Option<u64>,
        bucket: u8,
    },
    /// A request in flight ends; `index` selects it.
    End {
        index: usize,
        requeue: bool,
    },
    /// The caller of a waiting request goes away.
    Drop {
        index: usize,
    },
    /// A rate limit opens or closes.
    Bucket {
        bucket: u8,
        open: bool,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let priority = prop_oneof![
        Just(Permission),
        Just(Final),
        Just(Notice),
        Just(Card),
        Just(Reaction),
        Just(Typing),
        Just(Look)
    ];
    let add = (0..3_u64, priority, prop::option::of(0..3_u64), 0..4_u8);
    let action = prop_oneof![
        5 => add.prop_map(|(channel, priority, message, bucket)| Action::Add { channel, priority, message, bucket }),
        3 => (0..10_usize, prop::bool::weighted(0.2)).prop_map(|(index, requeue)| Action::End { index, requeue }),
        1 => (0..10_usize).prop_map(|index| Action::Drop { index }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(bucket, open)| Action::Bucket { bucket, open }),
    ];
    prop::collection::vec(action, 1..80)
}

/// Observer's view: waiting requests and requests in flight.
#[derive(Default)]
struct Observer {
    waiting: BTreeMap<Ticket, ScheduledRequest<u8>>,
    in_flight: BTreeMap<Ticket, ScheduledRequest<u8>>,
    closed: BTreeSet<u8>,
}

impl Observer {
    fn started(&mut self, ticket: Ticket) -> Result<(), TestCaseError> {
        let request = self.waiting.remove(&ticket);
        let request = request.ok_or_else(|| TestCaseError::fail("started without waiting"))?;
        prop_assert!(!self.closed.contains(&request.params), "started while its rate limit is closed");
        let durable = request.priority.is_durable();
        for other in self.in_flight.values() {
            let two = other.channel == request.channel && other.priority.is_durable() == durable;
            prop_assert!(!two, "two concurrent requests of a class: {request:?} {other:?}");
            prop_assert!(
                other.sequence.is_none() || other.sequence != request.sequence,
                "starts before {other:?} ends"
            );
        }
        let is_durable =
            |other: &ScheduledRequest<u8>| other.channel == request.channel && other.priority.is_durable();
        for (position, other) in &self.waiting {
            prop_assert!(durable || !is_durable(other), "{request:?} starts before durable {other:?}");
            let earlier =
                *position < ticket && other.priority == request.priority && durable && is_durable(other);
            // A request that replaced another one has an earlier position than its number says.
            prop_assert!(!earlier || request.sequence.is_some(), "{request:?} starts before {other:?}");
        }
        self.in_flight.insert(ticket, request);
        Ok(())
    }

    fn nth(of: &BTreeMap<Ticket, ScheduledRequest<u8>>, index: usize) -> Option<Ticket> {
        of.keys().nth(index.checked_rem(of.len())?).copied()
    }
}

fn run(actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut schedule = Schedule::new(1000);
    let mut observer = Observer::default();
    for action in actions {
        match action {
            Action::Add { channel, priority, message, bucket } => {
                let sequence = match priority {
                    Reaction => message.map(|message| Sequence::Reactions(Snowflake(message))),
                    Typing => Some(Sequence::Typing(Snowflake(channel))),
                    _ => message.and_then(edit),
                };
                let request = ScheduledRequest { params: bucket, ..request(channel, priority, sequence) };
                let (ticket, superseded) = add(&mut schedule, request.clone());
                let older = superseded.and_then(|superseded| observer.waiting.remove(&superseded));
                prop_assert_eq!(older.is_some(), superseded.is_some());
                let priority = older.map_or(priority, |older| older.priority.min(priority));
                observer.waiting.insert(ticket, ScheduledRequest { priority, ..request });
            }
            Action::End { index, requeue } => {
                let Some(ticket) = Observer::nth(&observer.in_flight, index) else { continue };
                let request = observer.in_flight.remove(&ticket);
                if requeue && schedule.requeue(ticket, ms(10_000)) {
                    observer.waiting.extend(request.map(|request| (ticket, request)));
                } else if !requeue {
                    schedule.done(ticket);
                }
            }
            Action::Drop { index } => {
                let Some(ticket) = Observer::nth(&observer.waiting, index) else { continue };
                observer.waiting.remove(&ticket);
                schedule.done(ticket);
            }
            Action::Bucket { bucket, open } => {
                if open {
                    observer.closed.remove(&bucket)
                } else {
                    observer.closed.insert(bucket)
                };
            }
        }
        let closed = observer.closed.clone();
        let admit = |bucket: &u8| {
            if closed.contains(bucket) { StartDecision::Wait(None) } else { StartDecision::Go(()) }
        };
        for (ticket, decision) in schedule.step(ms(0), admit).decisions {
            prop_assert_eq!(decision, ScheduleDecision::Start(()));
            observer.started(ticket)?;
        }
        prop_assert_eq!(
            (schedule.waiting(), schedule.in_flight()),
            (observer.waiting.len(), observer.in_flight.len())
        );
        for (message, channel) in (0..3).flat_map(|m| (0..3).map(move |c| (m, c))) {
            for sequence in [Sequence::Edit(Snowflake(message)), Sequence::Typing(Snowflake(channel))] {
                let waits =
                    observer.waiting.values().filter(|request| request.sequence == Some(sequence)).count();
                prop_assert!(waits <= 1, "{waits} requests wait in {sequence:?}");
            }
        }
    }
    // With open rate limits, all requests start in the end.
    loop {
        for ticket in std::mem::take(&mut observer.in_flight).into_keys() {
            schedule.done(ticket);
        }
        observer.closed.clear();
        let decisions = schedule.step(ms(0), |_| StartDecision::Go(())).decisions;
        if decisions.is_empty() {
            break;
        }
        for (ticket, _) in decisions {
            observer.started(ticket)?;
        }
    }
    prop_assert!(observer.waiting.is_empty(), "never started: {:?}", observer.waiting);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The invariants at the top of the module, for any order of actions.
    #[test]
    fn scheduler_invariants_hold(actions in actions()) {
        run(actions)?;
    }
}
