//! Bounded queue of events, in order, from the gateway connection to its consumer.
//!
//! The producer never waits, since it also sends heartbeats. When the queue is full, events that a backfill
//! can recover are dropped until the queue is half empty; then one [`Event::Gap`] reports them. Interactions
//! have a reserve of their own, since they cannot be read again.

use super::event::{Event, GapCause};
use std::collections::VecDeque;

/// Treatment of an event when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OverflowPolicy {
    /// Dropped: a backfill recovers the event or its subject.
    Drop,
    /// Stored in the reserve: the event cannot be recovered.
    Reserve,
    /// Dropped without a report: the event is useless later.
    DropSilently,
    /// Always stored: gaps and connection states, which are few.
    Keep,
}

fn overflow_policy(event: &Event) -> OverflowPolicy {
    match event {
        Event::Command(_) | Event::Click(_) | Event::Submit(_) => OverflowPolicy::Reserve,
        Event::Autocomplete(_) => OverflowPolicy::DropSilently,
        Event::Ready(_)
        | Event::Resumed
        | Event::Disconnected { .. }
        | Event::Gap { .. }
        | Event::Failed(_) => OverflowPolicy::Keep,
        Event::Message(_)
        | Event::MessageEdited(_)
        | Event::MessagesDeleted { .. }
        | Event::ThreadCreated(_)
        | Event::ThreadChanged(_)
        | Event::ThreadDeleted(_)
        | Event::ChannelChanged(_)
        | Event::RightsChanged(_)
        | Event::ChannelDeleted(_)
        | Event::GuildGone { .. }
        | Event::GuildBack(_) => OverflowPolicy::Drop,
    }
}

/// Result of adding an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueResult {
    /// Added.
    Queued,
    /// Dropped for lack of room; a gap will report it.
    Dropped,
    /// Dropped for lack of room; the loss does not matter.
    Stale,
}

/// Event queue.
#[derive(Debug)]
pub struct EventQueue {
    events: VecDeque<Event>,
    /// Capacity for all events.
    capacity: usize,
    /// Additional capacity for interactions.
    reserve: usize,
    /// Number of events dropped since the queue was full; `None` while none are being dropped.
    dropped: Option<u64>,
}

impl EventQueue {
    /// Creates an empty queue, with a capacity for events and a reserve for clicks and commands.
    #[must_use]
    pub const fn new(capacity: usize, reserve: usize) -> Self {
        Self { events: VecDeque::new(), capacity, reserve, dropped: None }
    }

    /// Adds an event.
    pub fn put(&mut self, event: Event) -> EnqueueResult {
        let len = self.events.len();
        let fits = match overflow_policy(&event) {
            OverflowPolicy::Drop => self.dropped.is_none() && len < self.capacity,
            OverflowPolicy::DropSilently if self.dropped.is_some() || len >= self.capacity => {
                return EnqueueResult::Stale;
            }
            OverflowPolicy::DropSilently | OverflowPolicy::Keep => true,
            OverflowPolicy::Reserve => len < self.capacity + self.reserve,
        };
        if !fits {
            *self.dropped.get_or_insert(0) += 1;
            return EnqueueResult::Dropped;
        }
        // Adjacent gaps are merged: each makes the consumer read everything again.
        if let (Event::Gap { lost: more, .. }, Some(Event::Gap { lost, .. })) =
            (&event, self.events.back_mut())
        {
            *lost += more;
        } else {
            self.events.push_back(event);
        }
        EnqueueResult::Queued
    }

    /// Removes the next event.
    pub fn take(&mut self) -> Option<Event> {
        let next = self.events.pop_front();
        if self.events.len() <= self.capacity / 2
            && let Some(lost) = self.dropped.take()
        {
            self.put(Event::Gap { why: GapCause::Overflow, lost });
        }
        next.or_else(|| self.events.pop_front())
    }

    /// Number of events in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if the queue is empty and has no gap to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.dropped.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::EnqueueResult::{Dropped, Queued, Stale};
    use super::*;
    use crate::core::event::{Click, samples};
    use crate::core::ids::Snowflake;
    use proptest::prelude::*;

    fn channel_deleted(id: u64) -> Event {
        Event::ChannelDeleted(Snowflake(id))
    }

    fn click(id: u64) -> Event {
        let interaction = samples::interaction(id);
        Event::Click(Box::new(Click { interaction, custom_id: String::new(), message: Snowflake(1) }))
    }

    fn gap(lost: u64) -> Event {
        Event::Gap { why: GapCause::Overflow, lost }
    }

    fn drain(queue: &mut EventQueue) -> Vec<Event> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn overflow_is_reported_as_one_gap_in_order() {
        let mut queue = EventQueue::new(4, 1);
        let put: Vec<EnqueueResult> = (0..7).map(|id| queue.put(channel_deleted(id))).collect();
        assert_eq!(put, [Queued, Queued, Queued, Queued, Dropped, Dropped, Dropped]);
        // Clicks have a reserve.
        assert_eq!((queue.put(click(8)), queue.put(click(9))), (Queued, Dropped));
        // Drops continue until the queue is half empty: otherwise each event would have a gap of its own.
        assert_eq!(queue.take(), Some(channel_deleted(0)));
        assert_eq!(queue.put(channel_deleted(10)), Dropped);
        assert_eq!((queue.take(), queue.take()), (Some(channel_deleted(1)), Some(channel_deleted(2))));
        assert_eq!(queue.put(channel_deleted(11)), Queued);
        assert_eq!(drain(&mut queue), [channel_deleted(3), click(8), gap(5), channel_deleted(11)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn gap_is_reported_without_later_events() {
        let mut queue = EventQueue::new(1, 0);
        assert_eq!((queue.put(channel_deleted(0)), queue.put(channel_deleted(1))), (Queued, Dropped));
        assert_eq!(drain(&mut queue), [channel_deleted(0), gap(1)]);
        let mut empty = EventQueue::new(0, 0);
        assert_eq!(empty.put(channel_deleted(0)), Dropped);
        assert!(!empty.is_empty());
        assert_eq!(drain(&mut empty), [gap(1)]);
    }

    #[test]
    fn adjacent_gaps_merge() {
        let mut queue = EventQueue::new(9, 0);
        queue.put(Event::Gap { why: GapCause::Skipped, lost: 2 });
        queue.put(Event::Gap { why: GapCause::Unreadable, lost: 1 });
        queue.put(channel_deleted(1));
        queue.put(gap(1));
        assert_eq!(
            drain(&mut queue),
            [Event::Gap { why: GapCause::Skipped, lost: 3 }, channel_deleted(1), gap(1)]
        );
    }

    #[test]
    fn stale_autocomplete_is_dropped_without_gap() {
        let Event::Click(click) = click(1) else { panic!("no click") };
        let autocomplete = || {
            let interaction = click.interaction.clone();
            Event::Autocomplete(Box::new(crate::core::event::SlashCommand {
                interaction,
                name: String::new(),
                options: Vec::new(),
            }))
        };
        let mut queue = EventQueue::new(1, 1);
        assert_eq!((queue.put(autocomplete()), queue.put(autocomplete())), (Queued, Stale));
        assert_eq!(drain(&mut queue), [autocomplete()]);
    }

    proptest! {
        /// For any order of puts and takes, the output is the kept events in order, the queue stays bounded,
        /// and every drop is reported.
        #[test]
        fn every_dropped_event_is_reported(steps in proptest::collection::vec((any::<bool>(), any::<bool>()), 0..200)) {
            let mut queue = EventQueue::new(8, 3);
            let (mut kept, mut dropped) = (Vec::new(), 0);
            let (mut out, mut reported) = (Vec::new(), 0);
            let mut note = |event: Event| match event {
                Event::Gap { lost, .. } => reported += lost,
                event => out.push(event),
            };
            for (id, (put, is_click)) in steps.into_iter().enumerate() {
                if put {
                    let event = if is_click { click(id as u64) } else { channel_deleted(id as u64) };
                    match queue.put(event.clone()) {
                        Queued => kept.push(event),
                        Dropped => dropped += 1,
                        Stale => prop_assert!(false, "no event is stale"),
                    }
                } else if let Some(event) = queue.take() {
                    note(event);
                }
                prop_assert!(queue.len() <= 8 + 3 + 1);
            }
            drain(&mut queue).into_iter().for_each(note);
            prop_assert_eq!(out, kept);
            prop_assert_eq!(reported, dropped);
        }
    }
}
