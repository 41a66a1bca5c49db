//! Many clients of one gateway at the same time, each with its own session.

use crate::api::{Connections, runtime};
use crate::turn::Turn;
use acp_tests::house::AGENT;
use acp_tests::model::exponential;
use acp_tests::seed::Seed;
use acp_tests::wait::SOON;
use futures_util::future::{join, join_all};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Number of agents that start at the same time: more would only wait for each other.
const STARTS: usize = 8;
/// Polling interval while a session starts, in milliseconds.
const LOOK_MS: u64 = 5;

/// The clients.
#[derive(Debug)]
pub(crate) struct Crowd {
    runtime: Runtime,
    clients: Vec<Connections>,
}

impl Crowd {
    /// Creates `count` clients.
    pub(crate) fn new(socket: &Path, count: usize) -> Self {
        Self { runtime: runtime(), clients: (0..count).map(|_| Connections::new(socket)).collect() }
    }

    /// Starts a session of the scripted agent for each client, one in each directory, and waits until all are
    /// ready.
    pub(crate) fn spawn(&mut self, directories: &[PathBuf]) -> Vec<String> {
        let mut keys = Vec::new();
        let pairs: Vec<_> = self.clients.iter_mut().zip(directories).collect();
        let mut pairs = pairs.into_iter().peekable();
        while pairs.peek().is_some() {
            let some = pairs.by_ref().take(STARTS);
            keys.extend(self.runtime.block_on(join_all(some.map(|(client, cwd)| spawn(client, cwd)))));
        }
        keys
    }

    /// Each client prompts its session `rounds` times and waits for the end of each turn. Returns the total
    /// time.
    pub(crate) fn prompt(&mut self, keys: &[String], text: &str, rounds: usize) -> Duration {
        self.clients.iter_mut().for_each(Connections::forget);
        let began = Instant::now();
        let turns = self.clients.iter_mut().zip(keys).map(|(client, key)| async move {
            for _ in 0..rounds {
                let _ = client.prompt(key, text, |_| {}).await;
            }
        });
        self.runtime.block_on(join_all(turns));
        began.elapsed()
    }

    /// Each client prompts its session and reads to the end of the turn; calls `on` with each line as it
    /// arrives.
    pub(crate) fn follow(&mut self, keys: &[String], text: &str, on: impl Fn(&str)) {
        self.clients.iter_mut().for_each(Connections::forget);
        let on = &on;
        let turns = self.clients.iter_mut().zip(keys).map(|(client, key)| client.prompt(key, text, on));
        drop(self.runtime.block_on(join_all(turns)));
    }

    /// Each client prompts its session; returns when every prompt is accepted.
    pub(crate) fn accept(&mut self, keys: &[String], text: &str) {
        self.clients.iter_mut().for_each(Connections::forget);
        let accepted = self.clients.iter_mut().zip(keys).map(|(client, key)| client.accept(key, text));
        drop(self.runtime.block_on(join_all(accepted)));
    }

    /// Each client prompts its session after exponential pauses of this mean, in seconds, until `end`. Calls `at` after `begin` and
    /// at `end`. Returns the turns with the time of their prompt.
    pub(crate) fn visit(
        &mut self,
        keys: &[String],
        (text, pause): (&str, f64),
        [begin, end]: [Duration; 2],
        mut at: impl FnMut(),
    ) -> Vec<(Duration, Turn)> {
        self.clients.iter_mut().for_each(Connections::forget);
        let began = Instant::now();
        let people = self.clients.iter_mut().zip(keys).zip(0..).map(|((client, key), number)| async move {
            let (mut seed, mut turns) = (Seed::from_number(number), Vec::new());
            loop {
                let pause = Duration::from_secs_f64(exponential(&mut seed, pause));
                tokio::time::sleep(pause.min(end.saturating_sub(began.elapsed()))).await;
                let prompted = began.elapsed();
                if prompted >= end {
                    return turns;
                }
                turns.push((prompted, client.prompt(key, text, |_| {}).await));
            }
        });
        let marks = async {
            for mark in [begin, end] {
                tokio::time::sleep(mark.saturating_sub(began.elapsed())).await;
                at();
            }
        };
        let (turns, ()) = self.runtime.block_on(join(join_all(people), marks));
        turns.into_iter().flatten().collect()
    }

    /// Closes the sessions.
    pub(crate) fn close(&mut self, keys: &[String]) {
        self.clients.iter_mut().for_each(Connections::forget);
        let closed = self.clients.iter_mut().zip(keys).map(|(client, key)| async move {
            client.json("POST", &format!("/v1/sessions/{key}/close"), Some(&json!({}))).await
        });
        drop(self.runtime.block_on(join_all(closed)));
    }
}

async fn spawn(client: &mut Connections, cwd: &Path) -> String {
    let spawned = client.json("POST", "/v1/sessions", Some(&json!({"agent": AGENT, "cwd": cwd}))).await;
    let key = spawned["session_key"].as_str().unwrap_or_else(|| panic!("no key: {spawned}")).to_owned();
    let began = Instant::now();
    loop {
        let session = client.json("GET", &format!("/v1/sessions/{key}"), None).await;
        match session["state"].as_str() {
            Some("idle") => return key,
            Some("creating") if began.elapsed() < SOON => {
                tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
            }
            _ => panic!("the session does not become ready: {session}"),
        }
    }
}
