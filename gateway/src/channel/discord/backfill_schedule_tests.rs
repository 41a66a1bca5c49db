//! Backfill schedule for all kinds of events, with simulated time.

use super::*;
use proptest::prelude::*;

const GUILD: Snowflake = Snowflake(9);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ids(ids: &[u64]) -> Vec<Snowflake> {
    ids.iter().copied().map(Snowflake).collect()
}

/// A thread of a channel.
fn thread(id: u64, channel: u64, is_inaccessible: bool) -> BackfillTarget {
    BackfillTarget {
        id: Snowflake(id),
        parent: Some(Snowflake(channel)),
        guild: Some(GUILD),
        is_inaccessible,
    }
}

/// Threads of one channel.
fn threads(count: u64, is_inaccessible: bool) -> Vec<BackfillTarget> {
    (100..100 + count).map(|id| thread(id, 1, is_inaccessible)).collect()
}

/// Simulation with readable and refused conversations; logs the backfills.
struct World {
    reads: BackfillSchedule,
    bound: Vec<BackfillTarget>,
    asked: Vec<Snowflake>,
    refused: usize,
}

impl World {
    fn new(bound: Vec<BackfillTarget>) -> Self {
        Self { reads: BackfillSchedule::default(), bound, asked: Vec::new(), refused: 0 }
    }

    fn apply(&mut self, now: Duration, actions: BackfillActions, may: &dyn Fn(Snowflake) -> bool) {
        let mut next = vec![actions];
        while let Some(BackfillActions { read, inaccessible }) = next.pop() {
            for target in &mut self.bound {
                target.is_inaccessible |= inaccessible.contains(&target.id);
            }
            for id in read {
                self.asked.push(id);
                let came = if may(id) { BackfillOutcome::Read } else { BackfillOutcome::Refused };
                self.refused += usize::from(came == BackfillOutcome::Refused);
                for target in self.bound.iter_mut().filter(|target| target.id == id) {
                    target.is_inaccessible = came == BackfillOutcome::Refused;
                }
                next.push(self.reads.record_outcome(now, id, came));
            }
        }
    }

    /// Runs the schedule up to a time.
    fn until(&mut self, end: Duration, may: &dyn Fn(Snowflake) -> bool) {
        while let Some(due) = self.reads.due().filter(|due| *due <= end) {
            let actions = self.reads.due_actions(due, &self.bound.clone());
            self.apply(due, actions, may);
        }
    }
}

#[test]
fn events_that_come_close_together_are_one_reason_to_read() {
    let mut world = World::new(threads(200, false));
    for number in 0..30 {
        let now = Duration::from_millis(number * 50);
        world.until(now, &|_| true);
        world.reads.request_backfill(BackfillScope::Guild(GUILD), now);
    }
    assert_eq!((world.asked.len(), world.reads.due()), (0, Some(Duration::from_millis(3_450))));
    world.until(s(60), &|_| true);
    assert_eq!(world.asked.len(), 200, "each is read once");
    assert_eq!(world.reads.due(), None);
}

/// Under constant events a backfill still happens, less and less often.
#[test]
fn events_without_an_end_are_read_at_a_pace() {
    let mut world = World::new(threads(10, false));
    for second in 0..600 {
        world.until(s(second), &|_| true);
        world.reads.request_backfill(BackfillScope::Guild(GUILD), s(second));
    }
    let rounds = world.asked.len() / 10;
    assert!((8..=16).contains(&rounds), "{rounds}");
}

/// 200 inaccessible conversations and events for ten minutes: far fewer refusals than Discord's limit.
#[test]
fn what_is_shut_costs_few_refusals() {
    for scope in [BackfillScope::Guild(GUILD), BackfillScope::Channel(Snowflake(1)), BackfillScope::All] {
        let mut world = World::new(threads(200, false));
        for second in 0..600 {
            world.until(s(second), &|_| false);
            world.reads.request_backfill(scope, s(second));
        }
        assert!(world.refused <= 40, "{scope:?}: {}", world.refused);
        assert!(world.bound.iter().all(|target| target.is_inaccessible));
        // Access is restored: one conversation shows this, and all are read.
        world.asked.clear();
        world.reads.request_backfill(scope, s(700));
        world.until(s(900), &|_| true);
        let read: BTreeSet<Snowflake> = world.asked.iter().copied().collect();
        assert_eq!(read.len(), 200, "{scope:?}");
        assert!(world.bound.iter().all(|target| !target.is_inaccessible));
    }
}

#[test]
fn many_channels_that_are_shut_are_tried_a_few_at_a_time() {
    let bound: Vec<BackfillTarget> = (0..50).map(|n| thread(100 + n, 1_000 + n, true)).collect();
    let mut world = World::new(bound);
    for round in 0..20 {
        world.reads.request_backfill(BackfillScope::Guild(GUILD), s(round * 1_000));
        world.until(s(round * 1_000 + 500), &|_| false);
    }
    assert_eq!(world.asked.len(), 20 * INACCESSIBLE_MAX);
    let tried: BTreeSet<Snowflake> = world.asked.iter().copied().collect();
    assert!(tried.len() >= 20, "the same ones twice: {}", tried.len());
}

#[test]
fn one_of_a_channel_is_read_before_the_others() {
    let bound = [thread(11, 1, false), thread(12, 1, false), thread(13, 1, true), thread(21, 2, false)];
    let round = |read: &[u64]| BackfillActions { read: ids(read), inaccessible: vec![] };
    let inaccessible =
        |inaccessible: &[u64]| BackfillActions { read: vec![], inaccessible: ids(inaccessible) };
    // Results of the first backfill, then of the second, with the resulting actions.
    for (steps, name) in [
        (vec![(11, BackfillOutcome::Read, round(&[12, 13]))], "it may be read"),
        (
            vec![
                (11, BackfillOutcome::Refused, round(&[12])),
                (12, BackfillOutcome::Refused, inaccessible(&[13])),
            ],
            "two are refused",
        ),
        (
            vec![(11, BackfillOutcome::Refused, round(&[12])), (12, BackfillOutcome::Read, round(&[13]))],
            "it was the thread",
        ),
        (
            vec![(11, BackfillOutcome::Nothing, round(&[12])), (12, BackfillOutcome::Nothing, round(&[13]))],
            "what is gone says nothing of the others",
        ),
        (
            vec![(21, BackfillOutcome::Read, round(&[])), (99, BackfillOutcome::Refused, round(&[]))],
            "alone, and unasked",
        ),
    ] {
        let mut reads = BackfillSchedule::default();
        reads.request_backfill(BackfillScope::All, s(0));
        assert_eq!(reads.due_actions(s(0), &bound), round(&[11, 21]), "{name}");
        for (id, came, want) in steps {
            assert_eq!(reads.record_outcome(s(1), Snowflake(id), came), want, "{name}");
        }
    }
}

#[test]
fn what_is_not_answered_holds_up_no_other() {
    let bound = [thread(11, 1, false), thread(12, 1, false), thread(13, 1, true)];
    let mut reads = BackfillSchedule::default();
    reads.request_backfill(BackfillScope::All, s(0));
    assert_eq!(reads.due_actions(s(0), &bound).read, ids(&[11]));
    assert_eq!(reads.due(), Some(PROBE_TIMEOUT));
    assert_eq!(reads.due_actions(PROBE_TIMEOUT, &bound).read, ids(&[12]), "the next one is tried");
    assert_eq!(reads.record_outcome(s(11), Snowflake(11), BackfillOutcome::Read), BackfillActions::default());
    assert_eq!(reads.record_outcome(s(11), Snowflake(12), BackfillOutcome::Read).read, ids(&[13]));
    assert_eq!(reads.due(), None);
}

/// H8: missed messages come before new ones, however long other backfills wait.
#[test]
fn where_somebody_speaks_is_read_first_and_once() {
    let mut reads = BackfillSchedule::default();
    let [one, two, elsewhere] = [thread(11, 1, false), thread(12, 1, false), thread(21, 2, false)];
    assert!(!reads.on_message(&one), "nothing was missed");
    assert!(reads.on_message(&thread(13, 1, true)), "an inaccessible channel has an event");
    reads.request_backfill(BackfillScope::Channel(Snowflake(1)), s(0));
    let spoke =
        |reads: &mut BackfillSchedule| [&one, &one, &elsewhere].map(|target| reads.on_message(target));
    assert_eq!(spoke(&mut reads), [true, false, false]);
    reads.request_backfill(BackfillScope::Channel(Snowflake(1)), s(1));
    assert_eq!(spoke(&mut reads), [true, false, false], "a message may have been missed again");
    let bound = [one, two, elsewhere];
    assert_eq!(reads.due_actions(s(3), &bound).read, ids(&[11]));
    assert!(
        reads.on_message(&two) && !reads.on_message(&two),
        "while another thread of the channel is probed"
    );
    assert_eq!(reads.record_outcome(s(4), Snowflake(11), BackfillOutcome::Read), BackfillActions::default());
}

/// Threads may be inaccessible although the channel is accessible: the first readable one triggers a backfill
/// of the others.
#[test]
fn what_was_taken_to_be_shut_is_read_once_one_of_it_can_be() {
    let mut world = World::new(threads(20, false));
    let may = |id: Snowflake| id.0 > 101;
    world.reads.request_backfill(BackfillScope::All, s(0));
    world.until(s(60), &may);
    assert_eq!(world.asked, ids(&[100, 101]));
    world.reads.request_backfill(BackfillScope::Inaccessible, s(80));
    world.until(s(80), &may);
    let read: BTreeSet<Snowflake> = world.asked.iter().copied().collect();
    assert_eq!(read.len(), 20);
    assert!(world.bound.iter().all(|target| target.is_inaccessible != may(target.id)));
}

#[test]
fn a_scope_holds_what_may_be_in_it() {
    let unknown = BackfillTarget { guild: None, ..thread(11, 1, false) };
    let channel =
        BackfillTarget { id: Snowflake(1), parent: None, guild: Some(GUILD), is_inaccessible: false };
    for (scope, target, want) in [
        (BackfillScope::All, unknown, true),
        (BackfillScope::Guild(GUILD), thread(11, 1, false), true),
        (BackfillScope::Guild(GUILD), unknown, true),
        (BackfillScope::Guild(Snowflake(8)), thread(11, 1, false), false),
        (BackfillScope::Channel(Snowflake(1)), thread(11, 1, false), true),
        (BackfillScope::Channel(Snowflake(1)), channel, true),
        (BackfillScope::Channel(Snowflake(2)), thread(11, 1, false), false),
        (BackfillScope::Channel(Snowflake(11)), thread(11, 1, false), true),
        (BackfillScope::Inaccessible, thread(11, 1, true), true),
        (BackfillScope::Inaccessible, thread(11, 1, false), false),
    ] {
        assert_eq!(scope.includes(&target), want, "{scope:?} {target:?}");
    }
}

proptest! {
    /// For all event sequences: each readable conversation is read after the last event, and the schedule
    /// comes to rest.
    #[test]
    fn what_may_be_read_is_read_after_the_last_event(
        inaccessible in proptest::collection::vec(any::<bool>(), 12),
        denied in proptest::collection::vec(proptest::bool::weighted(0.2), 4),
        events in proptest::collection::vec((0_u64..20_000, 0_usize..3), 1..40),
    ) {
        let bound: Vec<BackfillTarget> = (0..12).zip(&inaccessible).map(|(n, inaccessible)| thread(100 + n, n % 4, *inaccessible && n % 3 > 0)).collect();
        let may = |id: Snowflake| !denied[usize::try_from((id.0 - 100) % 4).unwrap_or(0)];
        let mut world = World::new(bound);
        let mut now = 0;
        for (after, what) in events {
            now += after;
            world.until(Duration::from_millis(now), &may);
            let scope = [BackfillScope::All, BackfillScope::Guild(GUILD), BackfillScope::Guild(GUILD)][what];
            world.reads.request_backfill(scope, Duration::from_millis(now));
            world.asked.clear();
        }
        world.until(Duration::from_millis(now + 600_000), &may);
        prop_assert_eq!(world.reads.due(), None);
        for target in &world.bound {
            prop_assert!(!may(target.id) || world.asked.contains(&target.id), "{:?}", target);
        }
    }
}
