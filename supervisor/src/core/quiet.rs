//! How much of what strangers cause is written to the log: a few lines of each kind in a while, and then their number.
//! Whoever knocks all the time fills no journal.

use std::collections::HashMap;

/// Lines of one kind within [`WINDOW_MS`].
pub const LINES_MAX: u64 = 10;
/// How long lines of one kind are counted together, in milliseconds.
pub const WINDOW_MS: u64 = 10_000;
/// Kinds that are told apart; there are no more lines of all others together than of one of them.
const KINDS_MAX: usize = 1024;
const OTHERS: Kind = (u32::MAX, "others");

/// Of which user, and why.
pub type Kind = (u32, &'static str);

/// What is done with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// It is written.
    Write,
    /// It is counted. With the first of a window comes the duty to ask [`Quiet::end`] for the number once it is over.
    Count {
        /// Where they are counted, if this is the first.
        begins: Option<Kind>,
    },
}

#[derive(Debug)]
struct Window {
    since_ms: u64,
    lines: u64,
    left_out: u64,
}

/// What was written lately.
#[derive(Debug, Default)]
pub struct Quiet {
    windows: HashMap<Kind, Window>,
}

impl Quiet {
    /// There is a line of this kind to write.
    pub fn on(&mut self, now_ms: u64, kind: Kind) -> Line {
        let over =
            |window: &Window| window.left_out == 0 && now_ms.saturating_sub(window.since_ms) >= WINDOW_MS;
        if self.windows.len() >= KINDS_MAX && !self.windows.contains_key(&kind) {
            self.windows.retain(|_, window| !over(window));
        }
        let room = self.windows.len() < KINDS_MAX || self.windows.contains_key(&kind);
        let kind = if room { kind } else { OTHERS };
        let window = self.windows.entry(kind).or_insert(Window { since_ms: now_ms, lines: 0, left_out: 0 });
        if over(window) {
            (window.since_ms, window.lines) = (now_ms, 0);
        }
        if window.lines < LINES_MAX {
            window.lines += 1;
            return Line::Write;
        }
        window.left_out += 1;
        Line::Count { begins: (window.left_out == 1).then_some(kind) }
    }

    /// A window is over: how many lines were left out of it.
    pub fn end(&mut self, kind: Kind) -> u64 {
        self.windows.remove(&kind).map_or(0, |window| window.left_out)
    }

    /// Every window is over: what was left out of each.
    pub fn end_all(&mut self) -> Vec<(Kind, u64)> {
        let all = std::mem::take(&mut self.windows).into_iter();
        all.map(|(kind, window)| (kind, window.left_out)).filter(|(_, left_out)| *left_out > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_lines_and_then_their_number() {
        let mut quiet = Quiet::default();
        let (a, b) = ((1, "why"), (2, "why"));
        for at in 0..LINES_MAX {
            assert_eq!(quiet.on(at, a), Line::Write);
        }
        assert_eq!(quiet.on(20, a), Line::Count { begins: Some(a) });
        assert_eq!(quiet.on(21, a), Line::Count { begins: None });
        assert_eq!(quiet.on(22, b), Line::Write, "another user has lines of its own");
        assert_eq!(quiet.on(22, (1, "else")), Line::Write, "and another reason");
        assert_eq!(quiet.end(a), 2);
        assert_eq!(quiet.on(23, a), Line::Write);
        assert_eq!(quiet.on(22 + WINDOW_MS, b), Line::Write);
        assert_eq!(quiet.end_all(), []);
    }

    proptest! {
        /// Each line is written or counted, and there are never many.
        #[test]
        fn nothing_is_lost(steps in prop::collection::vec((0u64..3_000, 0u32..3_000), 0..3_000)) {
            let mut quiet = Quiet::default();
            let (mut now, mut written, mut told) = (0, 0u64, 0u64);
            let mut due: Vec<(u64, Kind)> = Vec::new();
            for (pause, uid) in &steps {
                now += pause;
                for (_, kind) in due.extract_if(.., |(at, _)| *at <= now) {
                    told += quiet.end(kind);
                }
                match quiet.on(now, (*uid, "why")) {
                    Line::Write => written += 1,
                    Line::Count { begins } => due.extend(begins.map(|kind| (now + WINDOW_MS, kind))),
                }
                prop_assert!(quiet.windows.len() <= KINDS_MAX + 1);
            }
            told += quiet.end_all().into_iter().map(|(_, left_out)| left_out).sum::<u64>();
            prop_assert_eq!(written + told, steps.len() as u64);
        }
    }
}
