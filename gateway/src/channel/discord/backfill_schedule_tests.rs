//! Backfill schedule for all kinds of events, with simulated time.

use super::*;
use proptest::prelude::*;

const GUILD: Snowflake = Snowflake(9);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn thread(id: u64, channel: u64, is_inaccessible: bool) -> BackfillTarget {
    BackfillTarget {
        id: Snowflake(id),
        parent: Some(Snowflake(channel)),
        guild: Some(GUILD),
        is_inaccessible,
    }
}

fn threads(count: u64, is_inaccessible: bool) -> Vec<BackfillTarget> {
    (100..100 + count).map(|id| thread(id, 1, is_inaccessible)).collect()
}

fn run(schedule: &mut BackfillSchedule, bound: &[BackfillTarget], end: Duration) -> Vec<Snowflake> {
    let mut read = Vec::new();
    while let Some(due) = schedule.due().filter(|due| *due <= end) {
        read.extend(schedule.due_targets(due, bound));
    }
    read
}

#[test]
fn close_events_cause_one_backfill() {
    let (mut schedule, bound) = (BackfillSchedule::default(), threads(200, false));
    for number in 0..30 {
        let now = Duration::from_millis(number * 50);
        assert_eq!(run(&mut schedule, &bound, now), []);
        schedule.request_backfill(BackfillScope::Guild(GUILD), now);
    }
    assert_eq!(schedule.due(), Some(Duration::from_millis(3_450)));
    assert_eq!(run(&mut schedule, &bound, seconds(60)).len(), 200, "each conversation is read once");
    assert_eq!(schedule.due(), None);
}

#[test]
fn constant_events_cause_paced_backfills() {
    for scope in [BackfillScope::Guild(GUILD), BackfillScope::Channel(Snowflake(1)), BackfillScope::All] {
        let (mut schedule, bound) = (BackfillSchedule::default(), threads(10, false));
        let mut count = 0;
        for second in 0..600 {
            count += run(&mut schedule, &bound, seconds(second)).len();
            schedule.request_backfill(scope, seconds(second));
        }
        assert!((8..=16).contains(&(count / 10)), "{scope:?} {count}");
    }
}

/// In a denied channel only the first conversation of a round is tried.
#[test]
fn each_round_begins_with_another_conversation() {
    let (mut schedule, bound) = (BackfillSchedule::default(), threads(20, true));
    let firsts = (0..20).filter_map(|round| {
        schedule.request_backfill(BackfillScope::Inaccessible, seconds(20 * round));
        run(&mut schedule, &bound, seconds(20 * round)).first().copied()
    });
    assert_eq!(firsts.collect::<BTreeSet<_>>().len(), 20);
}

/// H8: missed messages come before new ones, however long other backfills wait.
#[test]
fn conversation_with_new_message_is_read_first_and_once() {
    let mut schedule = BackfillSchedule::default();
    let [one, two, elsewhere] = [thread(11, 1, false), thread(12, 1, false), thread(21, 2, false)];
    assert!(!schedule.on_message(&one), "no messages were missed");
    assert!(schedule.on_message(&thread(13, 1, true)), "an inaccessible channel has an event");
    schedule.request_backfill(BackfillScope::Channel(Snowflake(1)), seconds(0));
    let notify_messages =
        |schedule: &mut BackfillSchedule| [&one, &one, &elsewhere].map(|target| schedule.on_message(target));
    assert_eq!(notify_messages(&mut schedule), [true, false, false]);
    schedule.request_backfill(BackfillScope::Channel(Snowflake(1)), seconds(1));
    assert_eq!(notify_messages(&mut schedule), [true, false, false], "a message may have been missed again");
    let bound = [one, two, elsewhere];
    let read: BTreeSet<Snowflake> = run(&mut schedule, &bound, seconds(3)).into_iter().collect();
    assert_eq!(read, [11, 12].map(Snowflake).into());
    assert!(!schedule.on_message(&two), "a conversation being read is not read again");
}

#[test]
fn backfill_scope_includes_possible_members() {
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
    #[test]
    fn each_conversation_is_read_after_the_last_event(
        events in proptest::collection::vec((0_u64..20_000, 0_usize..3), 1..40),
    ) {
        let (mut schedule, bound) = (BackfillSchedule::default(), threads(12, false));
        let mut now = 0;
        for (after, index) in events {
            now += after;
            run(&mut schedule, &bound, Duration::from_millis(now));
            let scope = [BackfillScope::All, BackfillScope::Guild(GUILD), BackfillScope::Channel(Snowflake(1))][index];
            schedule.request_backfill(scope, Duration::from_millis(now));
        }
        let read: BTreeSet<Snowflake> =
            run(&mut schedule, &bound, Duration::from_millis(now + 600_000)).into_iter().collect();
        prop_assert_eq!((schedule.due(), read.len()), (None, 12));
    }
}
