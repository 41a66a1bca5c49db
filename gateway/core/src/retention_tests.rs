//! The rule against a model: a journal whose rows say for themselves if they are needed.

use super::*;
use proptest::prelude::*;

/// Run of the model.
#[derive(Debug, Clone)]
struct ModelRun {
    run_id: RunId,
    is_turn: bool,
    is_ended: bool,
    has_card: bool,
}

/// Row of the model. Its event id is ten times its number.
#[derive(Debug, Clone)]
struct ModelRow {
    run: Option<usize>,
    at_ms: u64,
}

/// Journal of a session; row number `n` is at `n - 1`.
#[derive(Debug, Clone)]
struct Journal {
    rows: Vec<ModelRow>,
    runs: Vec<ModelRun>,
    delivered: Option<u64>,
    notified: Option<u64>,
    is_waiting: bool,
    pruned: u64,
}

const EVENT_IDS: u64 = 10;

fn number(at: usize) -> u64 {
    at as u64 + 1
}

impl Journal {
    fn numbers_of(&self, run: usize) -> impl Iterator<Item = u64> {
        let rows = self.rows.iter().enumerate();
        rows.filter(move |(_, row)| row.run == Some(run)).map(|(at, _)| number(at))
    }

    /// Runs that have rows left, in the order of their first rows.
    fn runs_left(&self) -> Vec<usize> {
        let mut left: Vec<(u64, usize)> = (0..self.runs.len())
            .filter_map(|run| Some((self.numbers_of(run).find(|number| *number > self.pruned)?, run)))
            .collect();
        left.sort_unstable();
        left.into_iter().map(|(_, run)| run).collect()
    }

    fn turns_left(&self) -> Vec<usize> {
        self.runs_left().into_iter().filter(|run| self.runs[*run].is_turn).collect()
    }

    fn facts(&self, keep_turns: u64, runs_max: usize) -> JournalFacts {
        let left = self.runs_left();
        let span = |run: &usize| {
            let (first, last) = (self.numbers_of(*run).min().unwrap(), self.numbers_of(*run).max().unwrap());
            let at_ms = self.rows[usize::try_from(last).unwrap() - 1].at_ms;
            let it = &self.runs[*run];
            RunSpan {
                run_id: it.run_id,
                first,
                last,
                last_event_id: last * EVENT_IDS,
                last_at_ms: at_ms,
                is_settled: it.is_ended && !it.has_card,
            }
        };
        let turns = self.turns_left();
        let kept = usize::try_from(keep_turns).unwrap();
        let oldest = turns.len().checked_sub(kept).filter(|at| *at < turns.len()).map(|at| turns[at]);
        JournalFacts {
            pruned_seq: self.pruned,
            last_seq: self.rows.len() as u64,
            runs: left.iter().take(runs_max).map(span).collect(),
            has_more_runs: left.len() > runs_max,
            kept_from: oldest.and_then(|run| self.numbers_of(run).min()),
            delivered_through: self.delivered,
            notified_through: self.notified,
            is_waiting: self.is_waiting,
        }
    }

    /// True if somebody may need one of the rows up to a number.
    fn is_needed(&self, through: u64, policy: RetentionPolicy) -> bool {
        let turns = self.turns_left();
        let kept = turns.len().saturating_sub(usize::try_from(policy.keep_turns).unwrap());
        let is_kept = |run: usize| turns.iter().position(|turn| *turn == run).is_some_and(|at| at >= kept);
        let gone =
            self.rows.iter().enumerate().filter(|(at, _)| (self.pruned + 1..=through).contains(&number(*at)));
        gone.into_iter().any(|(at, row)| {
            let of_run = row.run.is_some_and(|run| {
                let it = &self.runs[run];
                let ends_later = self.numbers_of(run).any(|number| number > through);
                !it.is_ended || it.has_card || is_kept(run) || ends_later
            });
            of_run
                || self.is_waiting
                || row.at_ms >= policy.before_ms
                || number(at) == self.rows.len() as u64
                || self.delivered.is_some_and(|through| number(at) > through)
                || self.notified.is_some_and(|id| number(at) * EVENT_IDS > id)
        })
    }
}

/// Journals with rows in the order of time, of runs that overlap.
fn journals() -> impl Strategy<Value = Journal> {
    let run = (any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.05));
    let row = (prop::option::weighted(0.9, 0..12_usize), 0..3_u64);
    let settings = (
        prop::option::weighted(0.5, 0..60_u64),
        prop::option::weighted(0.5, 0..600_u64),
        prop::bool::weighted(0.05),
    );
    (prop::collection::vec(run, 12), prop::collection::vec(row, 1..60), settings).prop_map(
        |(runs, rows, (delivered, notified, is_waiting))| {
            let runs = runs.into_iter().map(|(is_turn, is_ended, has_card)| {
                let run_id = RunId::mint();
                ModelRun { run_id, is_turn, is_ended, has_card }
            });
            let mut at_ms = 0;
            let total = rows.len();
            let rows = rows.into_iter().enumerate().map(|(at, (run, later))| {
                at_ms += later;
                // A run is near one place of the journal.
                let run = run.map(|run| (run % 3 + at * 10 / total).min(11));
                ModelRow { run, at_ms }
            });
            Journal { rows: rows.collect(), runs: runs.collect(), delivered, notified, is_waiting, pruned: 0 }
        },
    )
}

proptest! {
    #[test]
    fn needed_rows_stay_and_floor_only_rises(
        journal in journals(),
        keep_turns in 0..4_u64,
        before_ms in 0..60_u64,
        runs_max in 1..14_usize,
    ) {
        let policy = RetentionPolicy { before_ms, keep_turns };
        let mut journal = journal;
        let whole = prunable_through(&journal.facts(keep_turns, usize::MAX), policy);
        for _ in 0..20 {
            let through = prunable_through(&journal.facts(keep_turns, runs_max), policy);
            prop_assert!(through >= journal.pruned, "the floor only rises");
            prop_assert!(through == journal.pruned || !journal.is_needed(through, policy), "{through}: {journal:?}");
            if through == journal.pruned {
                break;
            }
            journal.pruned = through;
        }
        // Steps of few runs never exceed one of all runs, and steps of all runs end where one ends.
        prop_assert!(journal.pruned <= whole);
        journal.pruned = whole;
        prop_assert_eq!(prunable_through(&journal.facts(keep_turns, usize::MAX), policy), whole, "idempotent");
    }

    #[test]
    fn stricter_limits_prune_no_more(journal in journals(), keep_turns in 0..4_u64, before_ms in 0..60_u64) {
        let through = |keep_turns, before_ms| {
            prunable_through(&journal.facts(keep_turns, usize::MAX), RetentionPolicy { before_ms, keep_turns })
        };
        let now = through(keep_turns, before_ms);
        prop_assert!(through(keep_turns + 1, before_ms) <= now);
        prop_assert!(through(keep_turns, before_ms.saturating_sub(5)) <= now);
    }
}

#[test]
fn ended_old_turns_before_the_kept_ones_are_pruned() {
    let run = |first, last| RunSpan {
        run_id: RunId::mint(),
        first,
        last,
        last_event_id: last,
        last_at_ms: last,
        is_settled: true,
    };
    let facts = JournalFacts {
        last_seq: 30,
        runs: vec![run(2, 9), run(10, 19), run(20, 30)],
        kept_from: Some(20),
        ..JournalFacts::default()
    };
    let policy = RetentionPolicy { before_ms: 100, keep_turns: 1 };
    let through = |facts: &JournalFacts| prunable_through(facts, policy);
    assert_eq!(through(&facts), 19);
    assert_eq!(through(&JournalFacts { kept_from: None, ..facts.clone() }), 0);
    assert_eq!(through(&JournalFacts { delivered_through: Some(12), ..facts.clone() }), 9);
    assert_eq!(through(&JournalFacts { notified_through: Some(8), ..facts.clone() }), 0);
    assert_eq!(through(&JournalFacts { is_waiting: true, ..facts.clone() }), 0);
    assert_eq!(
        through(&JournalFacts { has_more_runs: true, runs: facts.runs[..2].to_vec(), ..facts.clone() }),
        9
    );
    let running = RunSpan { is_settled: false, ..run(10, 19) };
    assert_eq!(through(&JournalFacts { runs: vec![run(2, 9), running], ..facts.clone() }), 9);
    let steered = run(8, 12);
    assert_eq!(through(&JournalFacts { runs: vec![run(2, 9), steered, run(20, 30)], ..facts }), 12);
}
