//! Parts of a discrete-event simulation: a queue of events, random times, and stations that serve in the order of arrival.

use crate::seed::Seed;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Time in seconds since the begin of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64);

impl Eq for At {}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Event with its time. Events of one time are handled in the order in which they were added.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry<T> {
    at: At,
    order: u64,
    event: T,
}

/// Future events.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    added: u64,
    now: f64,
}

impl<T: Ord> Agenda<T> {
    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0, now: 0.0 }
    }

    pub(super) const fn now(&self) -> f64 {
        self.now
    }

    /// Adds an event. One that is due already is handled now.
    pub(super) fn add(&mut self, at: f64, event: T) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at: At(at.max(self.now)), order: self.added, event }));
    }

    /// Takes the next event before `end`, and moves the time to it.
    pub(super) fn next(&mut self, end: f64) -> Option<T> {
        let is_due = self.heap.peek().is_some_and(|Reverse(entry)| entry.at.0 < end);
        let Reverse(entry) = if is_due { self.heap.pop()? } else { return None };
        self.now = entry.at.0;
        Some(entry.event)
    }
}

/// Processors that serve jobs in the order of arrival.
#[derive(Debug)]
pub(super) struct Station {
    /// Times at which the processors are free.
    free: BinaryHeap<Reverse<At>>,
    busy: f64,
    /// Begin of the measured time.
    from: f64,
}

impl Station {
    pub(super) fn new(processors: usize, from: f64) -> Self {
        let free = std::iter::repeat_n(Reverse(At(0.0)), processors.max(1)).collect();
        Self { free, busy: 0.0, from }
    }

    /// Serves a job that arrives now, and returns the time at which it is done. A job that takes no
    /// time does not wait.
    pub(super) fn serve(&mut self, now: f64, time: f64) -> f64 {
        if time <= 0.0 {
            return now;
        }
        let Some(Reverse(At(free))) = self.free.pop() else { return now };
        let begin = free.max(now);
        let end = begin + time;
        self.free.push(Reverse(At(end)));
        self.busy += (end - begin.max(self.from)).max(0.0);
        end
    }

    /// Share of the processors' time from the begin of the measured time that jobs took. Above 1: they do not keep up.
    pub(super) fn used(&self, end: f64) -> f64 {
        self.busy / ((end - self.from) * super::number(self.free.len()))
    }
}

/// Draws a number from 0 to 1, without either.
pub(super) fn share(seed: &mut Seed) -> f64 {
    const STEPS: u32 = 1 << 30;
    let drawn = u32::try_from(seed.number() >> 34).unwrap_or(0);
    (f64::from(drawn) + 0.5) / f64::from(STEPS)
}

/// Draws an exponential time.
#[must_use]
pub fn exponential(seed: &mut Seed, mean: f64) -> f64 {
    -mean * share(seed).ln()
}
