//! Cached facts about Discord: lifetimes and retries.

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
    assert!(is_archived_by_person(1_000, 999, 60), "a message sent during the archiving");
}

#[test]
fn check_counts_only_without_event_loss() {
    let lost = || Event::Disconnected { why: "the connection broke".to_owned() };
    let gap = || Event::Gap { why: GapCause::Skipped, lost: 1 };
    let at = Snowflake(7);
    for (before, during, want) in [
        (vec![], vec![], false),
        (vec![ready()], vec![], true),
        (vec![ready()], vec![Event::GuildBack(at)], true),
        (vec![ready()], vec![lost()], false),
        (vec![ready()], vec![lost(), Event::Resumed], false),
        (vec![ready()], vec![gap()], false),
        (vec![ready(), lost()], vec![], false),
        (vec![ready(), lost()], vec![Event::Resumed], false),
        (vec![ready(), lost(), Event::Resumed], vec![], true),
        (vec![ready(), gap()], vec![], true),
        (vec![lost(), gap()], vec![], false),
    ] {
        let cache = StateCache::default();
        before.iter().for_each(|event| cache.on_event(event));
        let epoch = cache.stream_epoch();
        during.iter().for_each(|event| cache.on_event(event));
        cache.record_archive_check(at, epoch);
        assert_eq!(cache.has_archive_state(at), want, "{before:?} {during:?}");
        cache.on_event(&lost());
        assert!(!cache.has_archive_state(at));
    }
}

#[test]
fn denied_feature_is_retried_after_delay() {
    let cache = StateCache::default();
    let [channel, thread, other] = [1, 2, 3].map(Snowflake);
    cache.set_location(thread, Some(channel), None);
    cache.deny(OptionalFeature::Reaction, thread, 1_000);
    let shown = |now_ms| {
        [channel, thread, other].map(|at| {
            (
                cache.is_allowed(OptionalFeature::Reaction, at, now_ms),
                cache.is_allowed(OptionalFeature::Typing, at, now_ms),
            )
        })
    };
    assert_eq!(shown(1_000), [(false, true), (false, true), (true, true)]);
    assert_eq!(shown(1_000 + REFUSED_MS), [(true, true); 3]);
}

#[test]
fn permission_change_clears_denials_in_scope() {
    let [guild, channel, thread, other] = [9, 1, 2, 3].map(Snowflake);
    for (at, thread_allowed, other_allowed) in [
        (EventScope::Channel(channel), true, false),
        (EventScope::Channel(other), false, true),
        (EventScope::Guild(guild), true, false),
        (EventScope::Guild(Snowflake(8)), false, false),
    ] {
        let cache = StateCache::default();
        cache.set_location(thread, Some(channel), Some(guild));
        [thread, other].into_iter().for_each(|at| cache.deny(OptionalFeature::Files, at, 1_000));
        cache.on_permissions_changed(at);
        let may = [thread, other].map(|at| cache.is_allowed(OptionalFeature::Files, at, 1_000));
        assert_eq!(may, [thread_allowed, other_allowed], "{at:?}");
    }
}

#[test]
fn denied_channel_is_probed_by_one_thread() {
    let cache = StateCache::default();
    let threads = [11, 12, 13, 14].map(Snowflake);
    threads.iter().for_each(|thread| cache.set_location(*thread, Some(Snowflake(1)), None));
    let attempts = |now_ms| {
        threads.iter().filter(|thread| cache.should_attempt(Access::Write, **thread, now_ms)).count()
    };
    for thread in threads.iter().take(DENIED_MIN) {
        assert_eq!(attempts(0), 4, "the denial may concern the thread alone");
        cache.record_access(Access::Write, *thread, true);
    }
    let all: Vec<usize> = (0..15).map(|second| attempts(second * 1_000)).collect();
    assert_eq!(all, [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert!(cache.should_attempt(Access::Write, Snowflake(2), 15_000), "another channel");
    cache.record_access(Access::Write, threads[3], false);
    assert_eq!(attempts(15_000), 4);
}

#[test]
fn reads_of_a_denied_channel_are_paced() {
    let cache = StateCache::default();
    let [guild, channel] = [9, 1].map(Snowflake);
    let threads: Vec<Snowflake> = (11..31).map(Snowflake).collect();
    threads.iter().for_each(|thread| cache.set_location(*thread, Some(channel), Some(guild)));
    let refused = |now_ms| {
        let tried = threads.iter().filter(|thread| cache.should_attempt(Access::Read, **thread, now_ms));
        tried.map(|thread| cache.record_access(Access::Read, *thread, true)).count()
    };
    let mut total = 0;
    for second in 0..600 {
        if second % 60 == 0 {
            cache.on_permissions_changed(EventScope::Guild(guild));
        }
        total += refused(second * 1_000);
    }
    assert!(total <= 40, "{total}");
    assert!(cache.should_attempt(Access::Write, threads[0], 0), "writes are separate");
    cache.record_access(Access::Read, threads[7], false);
    assert_eq!(refused(600_000), DENIED_MIN + 1, "conversations are tried until enough are denied");
}

#[test]
fn denials_are_bounded_and_removed_with_conversation() {
    let cache = StateCache::default();
    let channel = Snowflake(1);
    let threads: Vec<Snowflake> = (10..60).map(Snowflake).collect();
    for thread in &threads {
        cache.set_location(*thread, Some(channel), None);
        cache.record_access(Access::Write, *thread, true);
    }
    let kept = |cache: &StateCache| {
        cache
            .state
            .lock()
            .denied_channels
            .get(&(channel, Access::Write))
            .map(|denied| denied.conversations.len())
    };
    assert_eq!(kept(&cache), Some(DENIED_MIN));
    threads.iter().for_each(|thread| cache.remove_conversation(*thread));
    assert_eq!((kept(&cache), cache.location(threads[0])), (None, None));
    for id in 0..=u64::try_from(CONVERSATIONS_MAX).unwrap_or_default() {
        cache.record_access(Access::Write, Snowflake(1_000 + id), true);
    }
    assert!(cache.state.lock().denied_channels.len() <= CONVERSATIONS_MAX);
}

#[test]
fn guilds_are_those_of_last_shard_snapshots() {
    let cache = StateCache::default();
    let [even, odd, more] = [2_u64 << 22, 3 << 22, 4 << 22].map(Snowflake);
    let (first, second) = (ShardId { number: 0, count: 2 }, ShardId { number: 1, count: 2 });
    cache.set_guilds(&[even], first);
    cache.set_guilds(&[odd], second);
    cache.set_membership(more, true);
    assert_eq!(cache.guilds(), BTreeSet::from([even, odd, more]));
    cache.set_guilds(&[more], first);
    cache.set_membership(odd, false);
    assert_eq!(cache.guilds(), BTreeSet::from([more]), "left while the shard was disconnected");
}

#[test]
fn last_message_time_only_moves_forward() {
    let cache = StateCache::default();
    assert_eq!(cache.last_message_ms(Snowflake(1)), None);
    let (early, late) = (Snowflake::from_ms(1_500_000_000_000), Snowflake::from_ms(1_600_000_000_000));
    cache.record_message(Snowflake(1), late);
    cache.record_message(Snowflake(1), early);
    assert_eq!(cache.last_message_ms(Snowflake(1)), Some(1_600_000_000_000));
}

#[test]
fn conversation_location_is_kept() {
    let cache = StateCache::default();
    let some = |id| Some(Snowflake(id));
    cache.set_location(Snowflake(1), some(9), some(7));
    cache.set_location(Snowflake(1), some(9), None);
    cache.set_location(Snowflake(2), None, None);
    let location_of = |parent, guild| Some(ConversationLocation { parent, guild });
    let seen = [1, 2, 3].map(|id| cache.location(Snowflake(id)));
    assert_eq!(seen, [location_of(some(9), some(7)), location_of(None, None), None]);
    let changes = [(1, true), (1, true), (1, false), (1, false)]
        .map(|(id, shut)| cache.set_inaccessible(Snowflake(id), shut));
    assert_eq!((changes, cache.inaccessible()), ([true, false, true, false], BTreeSet::new()));
}
