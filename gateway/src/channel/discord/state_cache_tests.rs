//! Facts about Discord: what is known, for how long, and what is tried again.

use super::*;
use crate::channel::discord::health::tests::ready;
use acp_discord::core::event::GapCause;

#[test]
fn archiving_after_inactivity_is_not_by_person() {
    let hour = 60 * MINUTE_MS;
    for (silent_ms, minutes, want) in
        [(hour - 1, 60, true), (hour, 60, false), (0, 60, true), (24 * hour, 1_440, false), (0, 0, false)]
    {
        assert_eq!(is_archived_by_person(1_000, 1_000 + silent_ms, minutes), want, "{silent_ms} {minutes}");
    }
    assert!(is_archived_by_person(1_000, 999, 60), "a message that crossed the archiving");
}

#[test]
fn check_counts_only_without_event_loss() {
    let lost = || Event::Disconnected { why: "the connection broke".to_owned() };
    let hole = || Event::Gap { why: GapCause::Skipped, lost: 1 };
    let at = Snowflake(7);
    for (before, during, want) in [
        (vec![], vec![], false),
        (vec![ready()], vec![], true),
        (vec![ready()], vec![Event::Unknown { kind: "X".to_owned() }], true),
        (vec![ready()], vec![lost()], false),
        (vec![ready()], vec![lost(), Event::Resumed], false),
        (vec![ready()], vec![hole()], false),
        (vec![ready(), lost()], vec![], false),
        (vec![ready(), lost()], vec![Event::Resumed], false),
        (vec![ready(), lost(), Event::Resumed], vec![], true),
        (vec![ready(), hole()], vec![], true),
        (vec![lost(), hole()], vec![], false),
    ] {
        let known = StateCache::default();
        before.iter().for_each(|event| known.on_event(event));
        let epoch = known.stream_epoch();
        during.iter().for_each(|event| known.on_event(event));
        known.record_archive_check(at, epoch);
        assert_eq!(known.has_archive_state(at), want, "{before:?} {during:?}");
        known.on_event(&lost());
        assert!(!known.has_archive_state(at));
    }
}

#[test]
fn denied_feature_is_retried_after_delay() {
    let known = StateCache::default();
    let [channel, thread, other] = [1, 2, 3].map(Snowflake);
    known.set_location(thread, Some(channel), None);
    known.deny(OptionalFeature::Reaction, thread, 1_000);
    let shown = |now_ms| {
        [channel, thread, other].map(|at| {
            (
                known.is_allowed(OptionalFeature::Reaction, at, now_ms),
                known.is_allowed(OptionalFeature::Typing, at, now_ms),
            )
        })
    };
    assert_eq!(shown(1_000), [(false, true), (false, true), (true, true)]);
    assert_eq!(shown(1_000 + REFUSED_MS), [(true, true); 3]);
}

#[test]
fn permission_change_clears_denials_in_scope() {
    let [guild, channel, thread, other] = [9, 1, 2, 3].map(Snowflake);
    for (at, here, there) in [
        (EventScope::Channel(channel), true, false),
        (EventScope::Channel(other), false, true),
        (EventScope::Guild(guild), true, false),
        (EventScope::Guild(Snowflake(8)), false, false),
    ] {
        let known = StateCache::default();
        known.set_location(thread, Some(channel), Some(guild));
        [thread, other].into_iter().for_each(|at| known.deny(OptionalFeature::Files, at, 1_000));
        known.on_permissions_changed(at);
        let may = [thread, other].map(|at| known.is_allowed(OptionalFeature::Files, at, 1_000));
        assert_eq!(may, [here, there], "{at:?}");
    }
}

#[test]
fn denied_channel_is_probed_by_one_thread() {
    let known = StateCache::default();
    let threads = [11, 12, 13, 14].map(Snowflake);
    threads.iter().for_each(|thread| known.set_location(*thread, Some(Snowflake(1)), None));
    let tries = |now_ms| {
        threads.iter().filter(|thread| known.should_attempt(Access::Write, **thread, now_ms)).count()
    };
    for thread in threads.iter().take(DENIED_MIN) {
        assert_eq!(tries(0), 4, "the denial may concern the thread alone");
        known.record_access(Access::Write, *thread, true);
    }
    let all: Vec<usize> = (0..15).map(|second| tries(second * 1_000)).collect();
    assert_eq!(all, [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert!(known.should_attempt(Access::Write, Snowflake(2), 15_000), "another channel");
    known.record_access(Access::Write, threads[3], false);
    assert_eq!(tries(15_000), 4);
}

/// A denied channel is read by one conversation at a time.
#[test]
fn reads_of_a_denied_channel_are_paced() {
    let known = StateCache::default();
    let [guild, channel] = [9, 1].map(Snowflake);
    let threads: Vec<Snowflake> = (11..31).map(Snowflake).collect();
    threads.iter().for_each(|thread| known.set_location(*thread, Some(channel), Some(guild)));
    let refused = |now_ms| {
        let tried = threads.iter().filter(|thread| known.should_attempt(Access::Read, **thread, now_ms));
        tried.map(|thread| known.record_access(Access::Read, *thread, true)).count()
    };
    let mut total = 0;
    for second in 0..600 {
        if second % 60 == 0 {
            known.on_permissions_changed(EventScope::Guild(guild));
        }
        total += refused(second * 1_000);
    }
    assert!(total <= 40, "{total}");
    assert!(known.should_attempt(Access::Write, threads[0], 0), "writes are separate");
    known.record_access(Access::Read, threads[7], false);
    assert_eq!(refused(600_000), DENIED_MIN + 1, "each may be tried until some are refused");
}

/// The data on denied conversations is bounded and removed with the conversations.
#[test]
fn denials_are_bounded_and_removed_with_conversation() {
    let known = StateCache::default();
    let channel = Snowflake(1);
    let threads: Vec<Snowflake> = (10..60).map(Snowflake).collect();
    for thread in &threads {
        known.set_location(*thread, Some(channel), None);
        known.record_access(Access::Write, *thread, true);
    }
    let kept = |known: &StateCache| {
        known
            .state
            .lock()
            .denied_channels
            .get(&(channel, Access::Write))
            .map(|denied| denied.conversations.len())
    };
    assert_eq!(kept(&known), Some(DENIED_MIN));
    threads.iter().for_each(|thread| known.remove_conversation(*thread));
    assert_eq!((kept(&known), known.location(threads[0])), (None, None));
    for id in 0..=u64::try_from(CONVERSATIONS_MAX).unwrap_or_default() {
        known.record_access(Access::Write, Snowflake(1_000 + id), true);
    }
    assert!(known.state.lock().denied_channels.len() <= CONVERSATIONS_MAX);
}

#[test]
fn guilds_are_those_of_last_shard_snapshots() {
    let known = StateCache::default();
    let [even, odd, more] = [2_u64 << 22, 3 << 22, 4 << 22].map(Snowflake);
    known.set_guilds(&[even], (0, 2));
    known.set_guilds(&[odd], (1, 2));
    known.set_membership(more, true);
    assert_eq!(known.guilds(), BTreeSet::from([even, odd, more]));
    known.set_guilds(&[more], (0, 2));
    known.set_membership(odd, false);
    assert_eq!(known.guilds(), BTreeSet::from([more]), "left while it was disconnected");
}

#[test]
fn last_message_time_only_moves_forward() {
    let known = StateCache::default();
    assert_eq!(known.last_message_ms(Snowflake(1)), None);
    let (early, late) = (Snowflake::from_ms(1_500_000_000_000), Snowflake::from_ms(1_600_000_000_000));
    known.record_message(Snowflake(1), late);
    known.record_message(Snowflake(1), early);
    assert_eq!(known.last_message_ms(Snowflake(1)), Some(1_600_000_000_000));
}

#[test]
fn conversation_location_is_kept() {
    let known = StateCache::default();
    let some = |id| Some(Snowflake(id));
    known.set_location(Snowflake(1), some(9), some(7));
    known.set_location(Snowflake(1), some(9), None);
    known.set_location(Snowflake(2), None, None);
    let spot = |parent, guild| Some(ConversationLocation { parent, guild });
    let seen = [1, 2, 3].map(|id| known.location(Snowflake(id)));
    assert_eq!(seen, [spot(some(9), some(7)), spot(None, None), None]);
    let told = [(1, true), (1, true), (1, false), (1, false)]
        .map(|(id, shut)| known.set_inaccessible(Snowflake(id), shut));
    assert_eq!((told, known.inaccessible()), ([true, false, true, false], BTreeSet::new()));
}
