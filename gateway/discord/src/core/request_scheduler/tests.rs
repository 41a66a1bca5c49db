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

fn job(channel: u64, priority: Priority, sequence: Option<Sequence>) -> ScheduledRequest<u8> {
    ScheduledRequest {
        channel: Some(Snowflake(channel)),
        priority,
        sequence,
        give_up_at: ms(10_000),
        params: 0,
    }
}

fn add(schedule: &mut Schedule<u8>, job: ScheduledRequest<u8>) -> (Ticket, Option<Ticket>) {
    schedule.add(job).unwrap_or_else(|full| panic!("{full:?}"))
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
fn in_a_channel_what_is_owed_goes_first_and_one_by_one() {
    let mut schedule = Schedule::new(100);
    let kinds = [Typing, Card, Final, Notice, Permission, Final];
    let tickets = kinds.map(|priority| add(&mut schedule, job(1, priority, None)).0);
    let mut order = Vec::new();
    loop {
        let started = starts(&mut schedule);
        let Some(ticket) = started.first() else { break };
        order.push(tickets.iter().position(|t| t == ticket).unwrap_or(99));
        // A best-effort request starts together with the last durable one.
        order.extend(
            started.iter().skip(1).map(|beside| tickets.iter().position(|t| t == beside).unwrap_or(99)),
        );
        assert_eq!(started.len(), if order.len() == 5 { 2 } else { 1 }, "{order:?}");
        started.iter().for_each(|ticket| schedule.done(*ticket));
    }
    // Permission, both finals in order of arrival, notice; then the best-effort ones.
    assert_eq!(order, [4, 2, 5, 3, 1, 0]);
}

/// If only one request at a time is possible, a backfill check comes last.
#[test]
fn a_look_goes_when_nothing_else_does() {
    let mut schedule = Schedule::new(100);
    let look = add(&mut schedule, ScheduledRequest { channel: None, ..job(1, Look, None) }).0;
    let tickets = [Typing, Card, Notice].map(|priority| add(&mut schedule, job(2, priority, None)).0);
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut has_room = true;
        let ask = |_: &u8| {
            if std::mem::take(&mut has_room) { StartDecision::Go(()) } else { StartDecision::Wait(None) }
        };
        let decisions = schedule.step(ms(0), ask).decisions;
        for (ticket, _) in decisions {
            order.push(ticket);
            schedule.done(ticket);
        }
    }
    let [typing, card, notice] = tickets;
    assert_eq!(order, [notice, card, typing, look]);
}

#[test]
fn a_final_does_not_wait_for_a_card_that_is_under_way() {
    let mut schedule = Schedule::new(100);
    let card = add(&mut schedule, job(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [card]);
    let last = add(&mut schedule, job(1, Final, None)).0;
    let typing = add(&mut schedule, job(1, Typing, None)).0;
    let elsewhere = add(&mut schedule, job(2, Final, None)).0;
    assert_eq!(starts(&mut schedule), [last, elsewhere]);
    schedule.done(card);
    assert_eq!(starts(&mut schedule), [typing]);
}

#[test]
fn nothing_best_effort_uses_up_what_is_owed_something() {
    let mut schedule = Schedule::new(100);
    let last = add(&mut schedule, job(1, Final, None)).0;
    let card = add(&mut schedule, ScheduledRequest { params: 1, ..job(1, Card, None) }).0;
    let other = add(&mut schedule, ScheduledRequest { params: 1, ..job(2, Card, None) }).0;
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
fn a_newer_edit_takes_the_place_of_one_that_waits() {
    let mut schedule = Schedule::new(3);
    let first = add(&mut schedule, job(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [first]);
    let second = add(&mut schedule, job(1, Card, edit(7))).0;
    let other = add(&mut schedule, job(1, Card, edit(8))).0;
    let (third, gone) = add(&mut schedule, job(1, Card, edit(7)));
    assert_eq!(gone, Some(second));
    // The new request has the best priority of all it replaced, and the position of the first.
    let (fourth, gone) = add(&mut schedule, job(1, Reaction, edit(7)));
    assert_eq!(gone, Some(third));
    schedule.done(first);
    assert_eq!(starts(&mut schedule), [fourth]);
    schedule.done(fourth);
    assert_eq!(starts(&mut schedule), [other]);
    // Reactions do not supersede each other: each is sent, in order.
    let reactions = Some(Sequence::Reactions(Snowflake(7)));
    let [add_one, remove] = [0, 1].map(|_| add(&mut schedule, job(1, Reaction, reactions)));
    assert_eq!((add_one.1, remove.1), (None, None));
    schedule.done(other);
    assert_eq!(starts(&mut schedule), [add_one.0]);
    schedule.done(add_one.0);
    assert_eq!(starts(&mut schedule), [remove.0]);
}

#[test]
fn who_would_wait_too_long_is_told_so_at_once() {
    let mut schedule = Schedule::new(2);
    let patient = add(&mut schedule, ScheduledRequest { params: 1, ..job(1, Final, None) }).0;
    let hasty =
        add(&mut schedule, ScheduledRequest { give_up_at: ms(400), params: 1, ..job(2, Card, None) }).0;
    assert!(schedule.add(job(3, Final, None)).is_err());
    let ask = |_: &u8| StartDecision::<()>::Wait(Some(ms(5000)));
    let gave_up = (hasty, ScheduleDecision::GiveUp { retry_after: ms(5000) });
    assert_eq!(schedule.step(ms(0), ask), ScheduleStep { decisions: vec![gave_up], wake_at: Some(ms(5000)) });
    // The time of the next response is unknown, so the request waits until its deadline.
    let step = schedule.step(ms(5000), |_| StartDecision::<()>::Wait(None));
    assert_eq!(step, ScheduleStep { decisions: vec![], wake_at: Some(ms(10_000)) });
    let step = schedule.step(ms(10_000), |_| StartDecision::<()>::Wait(None));
    assert_eq!(step.decisions, [(patient, ScheduleDecision::GiveUp { retry_after: super::WAIT_UNKNOWN })]);
    assert_eq!((schedule.waiting(), schedule.in_flight()), (0, 0));
    let never = add(&mut schedule, job(1, Final, None)).0;
    assert_eq!(
        schedule.step(ms(0), |_| StartDecision::<()>::Never).decisions,
        [(never, ScheduleDecision::Never)]
    );
}

#[test]
fn one_that_was_refused_waits_where_it_stood() {
    let mut schedule = Schedule::new(100);
    let first = add(&mut schedule, job(1, Final, None)).0;
    assert_eq!(starts(&mut schedule), [first]);
    let second = add(&mut schedule, job(1, Final, None)).0;
    assert!(schedule.requeue(first, ms(10_000)));
    assert_eq!(starts(&mut schedule), [first]);
    schedule.done(first);
    assert_eq!(starts(&mut schedule), [second]);
    schedule.done(second);
    // A refused edit is superseded by a newer one that waits.
    let old = add(&mut schedule, job(1, Card, edit(7))).0;
    assert_eq!(starts(&mut schedule), [old]);
    let new = add(&mut schedule, job(1, Card, edit(7))).0;
    assert!(!schedule.requeue(old, ms(10_000)));
    assert_eq!(starts(&mut schedule), [new]);
}

/// Action on a schedule.
#[derive(Debug, Clone)]
enum Act {
    Add {
        channel: u64,
        priority: Priority,
        message: Option<u64>,
        bucket: u8,
    },
    /// A request in flight ends; `which` selects it.
    End {
        which: usize,
        again: bool,
    },
    /// The caller of a waiting request goes away.
    Drop {
        which: usize,
    },
    /// A rate limit opens or closes.
    Bucket {
        bucket: u8,
        open: bool,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
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
    let act = prop_oneof![
        5 => add.prop_map(|(channel, priority, message, bucket)| Act::Add { channel, priority, message, bucket }),
        3 => (0..10_usize, prop::bool::weighted(0.2)).prop_map(|(which, again)| Act::End { which, again }),
        1 => (0..10_usize).prop_map(|which| Act::Drop { which }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(bucket, open)| Act::Bucket { bucket, open }),
    ];
    prop::collection::vec(act, 1..80)
}

/// Observer's view: waiting requests and requests in flight.
#[derive(Default)]
struct Seen {
    waiting: BTreeMap<Ticket, ScheduledRequest<u8>>,
    in_flight: BTreeMap<Ticket, ScheduledRequest<u8>>,
    closed: BTreeSet<u8>,
}

impl Seen {
    fn started(&mut self, ticket: Ticket) -> Result<(), TestCaseError> {
        let job = self.waiting.remove(&ticket);
        let job = job.ok_or_else(|| TestCaseError::fail("started and did not wait"))?;
        prop_assert!(!self.closed.contains(&job.params), "its budget is exhausted");
        let durable = job.priority.is_durable();
        for other in self.in_flight.values() {
            let two = other.channel == job.channel && other.priority.is_durable() == durable;
            prop_assert!(!two, "two writers of a kind: {job:?} {other:?}");
            prop_assert!(other.sequence.is_none() || other.sequence != job.sequence, "overtakes {other:?}");
        }
        let owed = |other: &ScheduledRequest<u8>| other.channel == job.channel && other.priority.is_durable();
        for (position, other) in &self.waiting {
            prop_assert!(durable || !owed(other), "{job:?} goes before {other:?}, which is owed");
            let earlier = *position < ticket && other.priority == job.priority && durable && owed(other);
            // A request that replaced another one has an earlier position than its number says.
            prop_assert!(!earlier || job.sequence.is_some(), "{job:?} overtakes {other:?}");
        }
        self.in_flight.insert(ticket, job);
        Ok(())
    }

    fn nth(of: &BTreeMap<Ticket, ScheduledRequest<u8>>, which: usize) -> Option<Ticket> {
        of.keys().nth(which.checked_rem(of.len())?).copied()
    }
}

fn run(acts: Vec<Act>) -> Result<(), TestCaseError> {
    let mut schedule = Schedule::new(1000);
    let mut seen = Seen::default();
    for act in acts {
        match act {
            Act::Add { channel, priority, message, bucket } => {
                let sequence = match priority {
                    Reaction => message.map(|message| Sequence::Reactions(Snowflake(message))),
                    Typing => Some(Sequence::Typing(Snowflake(channel))),
                    _ => message.and_then(edit),
                };
                let job = ScheduledRequest { params: bucket, ..job(channel, priority, sequence) };
                let (ticket, gone) = add(&mut schedule, job.clone());
                let older = gone.and_then(|gone| seen.waiting.remove(&gone));
                prop_assert_eq!(older.is_some(), gone.is_some());
                let priority = older.map_or(priority, |older| older.priority.min(priority));
                seen.waiting.insert(ticket, ScheduledRequest { priority, ..job });
            }
            Act::End { which, again } => {
                let Some(ticket) = Seen::nth(&seen.in_flight, which) else { continue };
                let job = seen.in_flight.remove(&ticket);
                if again && schedule.requeue(ticket, ms(10_000)) {
                    seen.waiting.extend(job.map(|job| (ticket, job)));
                } else if !again {
                    schedule.done(ticket);
                }
            }
            Act::Drop { which } => {
                let Some(ticket) = Seen::nth(&seen.waiting, which) else { continue };
                seen.waiting.remove(&ticket);
                schedule.done(ticket);
            }
            Act::Bucket { bucket, open } => {
                if open {
                    seen.closed.remove(&bucket)
                } else {
                    seen.closed.insert(bucket)
                };
            }
        }
        let closed = seen.closed.clone();
        let ask = |bucket: &u8| {
            if closed.contains(bucket) { StartDecision::Wait(None) } else { StartDecision::Go(()) }
        };
        for (ticket, decision) in schedule.step(ms(0), ask).decisions {
            prop_assert_eq!(decision, ScheduleDecision::Start(()));
            seen.started(ticket)?;
        }
        prop_assert_eq!(
            (schedule.waiting(), schedule.in_flight()),
            (seen.waiting.len(), seen.in_flight.len())
        );
        for (message, channel) in (0..3).flat_map(|m| (0..3).map(move |c| (m, c))) {
            for sequence in [Sequence::Edit(Snowflake(message)), Sequence::Typing(Snowflake(channel))] {
                let waits = seen.waiting.values().filter(|job| job.sequence == Some(sequence)).count();
                prop_assert!(waits <= 1, "{waits} wait as {sequence:?}");
            }
        }
    }
    // With open rate limits, all requests start in the end.
    loop {
        for ticket in std::mem::take(&mut seen.in_flight).into_keys() {
            schedule.done(ticket);
        }
        seen.closed.clear();
        let decisions = schedule.step(ms(0), |_| StartDecision::Go(())).decisions;
        if decisions.is_empty() {
            break;
        }
        for (ticket, _) in decisions {
            seen.started(ticket)?;
        }
    }
    prop_assert!(seen.waiting.is_empty(), "never started: {:?}", seen.waiting);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The invariants at the top of the module, for any order of actions.
    #[test]
    fn the_laws_hold(acts in acts()) {
        run(acts)?;
    }
}
