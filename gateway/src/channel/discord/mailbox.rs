//! What waits for one conversation. One lane takes from it; it is closed only while nothing is in it, so that nothing
//! is put where nobody takes it.

use acp_discord::core::ids::Snowflake;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What no read brings back has so many times the room.
const RESERVE: usize = 16;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// The conversation is to be read, before anything else: from its mark on, and from this message on, where there was
    /// no room for it or for one after it.
    Read(Option<Snowflake>),
    /// This is to be done.
    Job(T),
}

/// What became of something that was put in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put<T> {
    /// It waits.
    Kept,
    /// There is no room for it: the conversation is read instead.
    Full,
    /// Nobody takes from here any more.
    Closed(T),
}

/// What waits: pure.
#[derive(Debug)]
struct Waiting<T> {
    /// With the messages that a read from there on brings back.
    jobs: VecDeque<(Option<Snowflake>, T)>,
    most: usize,
    /// It is to be read. However often that is said until it begins, it is read once.
    wants_read: bool,
    /// The first message that waited or came when there was no room for one.
    missed: Option<Snowflake>,
    is_closed: bool,
}

impl<T> Waiting<T> {
    const fn new(most: usize) -> Self {
        Self { jobs: VecDeque::new(), most, wants_read: false, missed: None, is_closed: false }
    }

    fn put(&mut self, job: T, from: Option<Snowflake>) -> Put<T> {
        if self.is_closed {
            return Put::Closed(job);
        }
        let most = if from.is_some() { self.most } else { self.most * RESERVE };
        if self.jobs.len() >= most {
            self.miss(from);
            return Put::Full;
        }
        self.jobs.push_back((from, job));
        Put::Kept
    }

    /// There is no room for a message. What waits already is older: so that all of it comes in its order, the read
    /// begins there. False: it is closed.
    fn miss(&mut self, from: Option<Snowflake>) -> bool {
        let waits = self.jobs.iter().find_map(|(from, _)| *from).filter(|_| from.is_some());
        self.missed = [self.missed, from, waits].into_iter().flatten().min();
        self.read()
    }

    /// False: it is closed.
    const fn read(&mut self) -> bool {
        self.wants_read |= !self.is_closed;
        !self.is_closed
    }

    fn next(&mut self) -> Option<Next<T>> {
        if std::mem::take(&mut self.wants_read) {
            return Some(Next::Read(self.missed.take()));
        }
        self.jobs.pop_front().map(|(_, job)| Next::Job(job))
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && !self.wants_read
    }

    fn close(&mut self) -> bool {
        self.is_closed |= self.is_empty();
        self.is_closed
    }
}

/// What waits for a conversation, between those who put and the one who takes.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    waiting: Mutex<Waiting<T>>,
    more: Notify,
}

impl<T> Mailbox<T> {
    /// With room for so many jobs.
    pub(super) fn new(most: usize) -> Self {
        Self { waiting: Mutex::new(Waiting::new(most)), more: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // It is whole between any two of its steps.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in. Never waits. Whether a read from some message on brings it back decides how much room there is
    /// for it.
    pub(super) fn put(&self, job: T, from: Option<Snowflake>) -> Put<T> {
        let put = self.lock().put(job, from);
        self.more.notify_one();
        put
    }

    /// There was no room for a message elsewhere: the conversation is read as if there had been none here. False: nobody
    /// takes from here any more.
    pub(super) fn miss(&self, from: Snowflake) -> bool {
        let is_open = self.lock().miss(Some(from));
        self.more.notify_one();
        is_open
    }

    /// Has the conversation read before anything else. False: nobody takes from here any more.
    pub(super) fn read(&self) -> bool {
        let is_open = self.lock().read();
        self.more.notify_one();
        is_open
    }

    /// Takes what comes next, once there is something.
    pub(super) async fn next(&self) -> Next<T> {
        loop {
            if let Some(next) = self.lock().next() {
                return next;
            }
            self.more.notified().await;
        }
    }

    /// Comes back when something waits.
    pub(super) async fn arrives(&self) {
        while self.lock().is_empty() {
            self.more.notified().await;
        }
    }

    /// Takes nothing more from here, unless something came just now.
    pub(super) fn close(&self) -> bool {
        self.lock().close()
    }

    /// Nobody takes from here any more, whatever is in it.
    pub(super) fn abandon(&self) {
        self.lock().is_closed = true;
    }

    /// Whether nobody takes from here any more.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Put,
        Read,
        Next,
        Close,
    }

    proptest! {
        /// Everything that was kept comes out, once and in order; what did not fit leads to a read after it; a wish to
        /// read is answered by one; nothing is kept by what is closed.
        #[test]
        fn nothing_that_was_kept_is_lost(steps in proptest::collection::vec(
            prop_oneof![3 => Just(Step::Put), 1 => Just(Step::Read), 3 => Just(Step::Next), 1 => Just(Step::Close)],
            0..60,
        )) {
            let mut waiting = Waiting::new(3);
            let (mut kept, mut out, mut owes_read, mut is_closed) = (Vec::new(), Vec::new(), false, false);
            let mut from = None;
            for (number, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Put => match waiting.put(number, Some(Snowflake(number))) {
                        Put::Kept => kept.push(number),
                        Put::Full => {
                            owes_read = true;
                            // The first one that waits, or the one that there was no room for before it.
                            from = from.or(kept.get(out.len()).copied().map(Snowflake));
                        }
                        Put::Closed(back) => prop_assert!(is_closed && back == number),
                    },
                    Step::Read => {
                        let is_open = waiting.read();
                        prop_assert_eq!(is_open, !is_closed);
                        owes_read |= is_open;
                    }
                    Step::Next => match waiting.next() {
                        Some(Next::Read(begins)) => {
                            prop_assert!(std::mem::take(&mut owes_read));
                            prop_assert_eq!(begins, from.take());
                        }
                        Some(Next::Job(job)) => {
                            prop_assert!(!owes_read, "a read comes first");
                            out.push(job);
                        }
                        None => prop_assert!(!owes_read && out == kept),
                    },
                    Step::Close => {
                        is_closed |= waiting.close();
                        prop_assert!(!is_closed || (out == kept && !owes_read), "something was in it");
                    }
                }
            }
            while let Some(next) = waiting.next() {
                match next {
                    Next::Read(_) => prop_assert!(std::mem::take(&mut owes_read)),
                    Next::Job(job) => out.push(job),
                }
            }
            prop_assert_eq!((out, owes_read), (kept, false));
        }
    }

    #[test]
    fn what_no_read_brings_back_has_more_room() {
        let mut waiting = Waiting::new(1);
        let from = |id: u64| Some(Snowflake(id));
        assert_eq!([waiting.put(1, from(1)), waiting.put(2, from(2))], [Put::Kept, Put::Full]);
        assert_eq!(waiting.put(3, None), Put::Kept);
        assert_eq!([waiting.next(), waiting.next()], [Some(Next::Read(from(1))), Some(Next::Job(1))]);
        assert_eq!(waiting.next(), Some(Next::Job(3)));
        let kept = (0..100).filter(|number| waiting.put(*number, None) == Put::Kept).count();
        assert_eq!((kept, waiting.next()), (RESERVE, Some(Next::Read(None))), "no message was missed");
        assert!(waiting.miss(from(9)) && waiting.miss(from(8)));
        assert_eq!(waiting.next(), Some(Next::Read(from(8))));
    }

    /// A lane that ends at its idle time is not given anything at that moment that nobody takes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_comes_while_a_lane_ends_is_taken_or_given_back() {
        for _ in 0..200 {
            let mailbox = Arc::new(Mailbox::new(4));
            let taker = Arc::clone(&mailbox);
            let taken = tokio::spawn(async move {
                let mut count = 0;
                loop {
                    match tokio::time::timeout(Duration::ZERO, taker.next()).await {
                        Ok(_) => count += 1,
                        Err(_) if taker.close() => return count,
                        Err(_) => {}
                    }
                }
            });
            let mut kept = 0;
            for number in 0..3 {
                kept += i32::from(mailbox.put(number, Some(Snowflake(1))) == Put::Kept);
                tokio::task::yield_now().await;
            }
            assert_eq!(taken.await.ok(), Some(kept));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_by_a_wish_to_read_too() {
        let mailbox = Mailbox::<u8>::new(1);
        let wait = || tokio::time::timeout(Duration::from_secs(1), mailbox.arrives());
        assert!(wait().await.is_err());
        assert!(mailbox.read() && mailbox.read());
        assert!(wait().await.is_ok());
        assert_eq!(mailbox.next().await, Next::Read(None));
        assert!(wait().await.is_err(), "it was said twice and is done once");
    }
}
