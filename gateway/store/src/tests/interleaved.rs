//! Random commits of several sessions, some invalid: the invariants hold, and invalid commits affect no
//! others.

use super::fixtures::{event, insert_session, key, reopen, run};
use crate::{Store, StoreError, meta};
use acp_core::rows::RunRow;
use acp_core::run::RunState;
use acp_core::writes::{ActorFence, Write};
use acp_shared::ids::SessionKey;
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::prelude::*;
use std::collections::HashMap;

const SESSIONS: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    SessionGap,
    RunGap,
    SecondRunning,
    Stale,
    Panic,
    Error,
}

#[derive(Debug, Clone, Copy)]
struct Op {
    session: usize,
    events: u64,
    in_run: bool,
    next_run: bool,
    fault: Fault,
}

fn op() -> impl Strategy<Value = Op> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::SessionGap),
        1 => Just(Fault::RunGap),
        1 => Just(Fault::SecondRunning),
        1 => Just(Fault::Stale),
        1 => Just(Fault::Panic),
        1 => Just(Fault::Error),
    ];
    (0..SESSIONS, 1..4_u64, any::<bool>(), prop::bool::weighted(0.2), fault).prop_map(
        |(session, events, in_run, next_run, fault)| Op { session, events, in_run, next_run, fault },
    )
}

/// Expected journal of one session.
struct Model {
    fence: ActorFence,
    run: RunRow,
    last: u64,
    run_last: u64,
    journal: Vec<(Option<String>, Option<u64>)>,
}

impl Model {
    async fn new(store: &Store, name: &str) -> Self {
        let row = insert_session(store, name).await;
        let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
        let run = run(&row.session_key, RunState::Running);
        store.commit(fence.clone(), vec![Write::Run(Box::new(run.clone()))]).await.unwrap();
        Self { fence, run, last: 0, run_last: 0, journal: Vec::new() }
    }

    /// Returns the writes of a valid step and applies them to the model.
    fn valid_writes(&mut self, op: Op) -> Vec<Write> {
        let mut writes = Vec::new();
        if op.next_run {
            let ended = RunRow { state: RunState::Completed, last_seq: self.run_last, ..self.run.clone() };
            writes.push(Write::Run(Box::new(ended)));
            self.run = run(&self.fence.session_key, RunState::Running);
            self.run_last = 0;
            writes.push(Write::Run(Box::new(self.run.clone())));
        }
        for _ in 0..op.events {
            self.last += 1;
            let run = op.in_run.then(|| {
                self.run_last += 1;
                (self.run.run_id, self.run_last)
            });
            self.journal.push((run.map(|(id, _)| id.to_string()), run.map(|(_, seq)| seq)));
            writes.push(event(self.last, run));
        }
        writes
    }

    fn invalid_writes(&self, fault: Fault) -> Vec<Write> {
        let valid_event = event(self.last + 1, Some((self.run.run_id, self.run_last + 1)));
        match fault {
            Fault::SessionGap => vec![valid_event, event(self.last + 3, None)],
            Fault::RunGap => {
                vec![valid_event, event(self.last + 2, Some((self.run.run_id, self.run_last + 3)))]
            }
            Fault::SecondRunning => {
                let second = run(&self.fence.session_key, RunState::Running);
                vec![valid_event, Write::Run(Box::new(second))]
            }
            Fault::Stale | Fault::None | Fault::Panic | Fault::Error => vec![valid_event],
        }
    }
}

async fn fail(store: &Store, panics: bool) -> Result<(), StoreError> {
    store
        .write("fail", move |tx| {
            meta::set(tx, "failed", "x")?;
            assert!(!panics, "intended panic");
            Err(StoreError::Refused("intended"))
        })
        .await
}

async fn run_waves(waves: Vec<Vec<Op>>) {
    let dir = tempfile::tempdir().unwrap();
    let store = reopen(dir.path());
    let mut models = Vec::new();
    for n in 0..SESSIONS {
        models.push(Model::new(&store, &format!("s{n}")).await);
    }
    for wave in waves {
        let mut steps = Vec::new();
        for op in wave {
            let model = &mut models[op.session];
            let mut fence = model.fence.clone();
            let step = match op.fault {
                Fault::None => store.commit(fence, model.valid_writes(op)).boxed(),
                Fault::Panic => fail(&store, true).boxed(),
                Fault::Error => fail(&store, false).boxed(),
                Fault::Stale => {
                    fence.epoch -= 1;
                    store.commit(fence, model.invalid_writes(op.fault)).boxed()
                }
                Fault::SessionGap | Fault::RunGap | Fault::SecondRunning => {
                    store.commit(fence, model.invalid_writes(op.fault)).boxed()
                }
            };
            let want = matches!(op.fault, Fault::None);
            steps.push(step.map(move |result| assert_eq!(result.is_ok(), want, "{op:?}: {result:?}")));
        }
        join_all(steps).await;
    }
    for (n, model) in models.iter().enumerate() {
        check(&store, &key(&format!("s{n}")), model).await;
    }
    assert_eq!(store.read("failed", |db| meta::get(db, "failed")).await.unwrap(), None);
    store.close().await;
}

async fn check(store: &Store, session: &SessionKey, model: &Model) {
    let events = store.events_after(session.clone(), None, 100_000, usize::MAX).await.unwrap().rows;
    let got: Vec<_> = events.iter().map(|e| (e.run_id.map(|id| id.to_string()), e.seq)).collect();
    assert_eq!(got, model.journal);
    // I3, checked on the rows.
    let mut per_run = HashMap::new();
    for (want, event) in (1..).zip(&events) {
        assert_eq!(event.session_seq, want);
        if let Some(run_id) = event.run_id {
            let last = per_run.entry(run_id).or_insert(0);
            assert_eq!(event.seq, Some(*last + 1));
            *last += 1;
        }
    }
    let row = store.session(session.clone()).await.unwrap().unwrap();
    assert_eq!(row.last_session_seq, model.last);
    // I2, and the last number of each run.
    let runs = store.runs(session.clone(), 100_000).await.unwrap();
    assert_eq!(runs.iter().filter(|run| run.state == RunState::Running).count(), 1);
    for run in runs {
        assert_eq!(run.last_seq, per_run.get(&run.run_id).copied().unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_interleaved_commits(
        waves in prop::collection::vec(prop::collection::vec(op(), 1..16), 1..8)
    ) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run_waves(waves));
    }
}
