//! A supervisor, a gateway and a client, with the default configuration.

use crate::api::Api;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The gateway's name in its world.
pub(crate) const GATEWAY: &str = "gateway";
/// Polling interval while a session starts, in milliseconds.
const LOOK_MS: u64 = 1;

/// The running services and their client.
#[derive(Debug)]
pub(crate) struct House {
    /// The client.
    pub(crate) api: Api,
    /// The gateway.
    pub(crate) gateway: Service,
    /// The supervisor.
    pub(crate) supervisor: Service,
    /// Their directory. The last field, so that it is dropped last.
    pub(crate) world: World,
}

impl House {
    /// Starts everything.
    ///
    /// # Panics
    /// When something does not become ready.
    pub(crate) fn build() -> Self {
        Self::configured("")
    }

    /// Starts everything with this configuration of the gateway, TOML.
    ///
    /// # Panics
    /// As [`House::build`].
    pub(crate) fn configured(toml: &str) -> Self {
        let world = World::new();
        world.write(&format!("{GATEWAY}.toml"), toml);
        let supervisor = world.supervisor();
        let gateway = world.gateway(GATEWAY, &supervisor.socket());
        let api = Api::new(&gateway.socket());
        Self { api, gateway, supervisor, world }
    }

    /// Durability setting that the gateway reports.
    pub(crate) fn durability(&mut self) -> String {
        let status = self.api.get("/v1/status");
        let word = status["durability"].as_str().unwrap_or_else(|| panic!("no durability: {status}"));
        format!("PRAGMA synchronous = {}", word.to_uppercase())
    }

    /// Journal mode of its database, read from the file.
    pub(crate) fn journal_mode(&self) -> String {
        let mode = self.world.journal(GATEWAY).pragma_query_value(None, "journal_mode", |row| row.get(0));
        mode.unwrap_or_else(|e| panic!("PRAGMA journal_mode: {e}"))
    }

    /// Type of the file system with its database: on `tmpfs` a commit costs nothing.
    pub(crate) fn file_system(&self) -> String {
        let path = self.world.path("");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        });
        let around = mounts.filter(|(mount, _)| path.starts_with(mount));
        around.max_by_key(|(mount, _)| mount.len()).map_or_else(String::new, |(_, kind)| kind.to_owned())
    }

    /// Starts a session of the demo agent and waits until its agent is ready. Returns its key and the
    /// time until then.
    ///
    /// # Panics
    /// When it does not become ready.
    pub(crate) fn spawn(&mut self, cwd: &str) -> (String, Duration) {
        let cwd = self.world.dir(cwd);
        let began = Instant::now();
        let spawned = self.api.post("/v1/sessions", &json!({"agent": "demo", "cwd": cwd}));
        let key = spawned["session_key"].as_str().unwrap_or_else(|| panic!("no key: {spawned}")).to_owned();
        loop {
            let session = self.session(&key);
            match session["state"].as_str() {
                Some("idle") => return (key, began.elapsed()),
                Some("creating") if began.elapsed() < SOON => {
                    std::thread::sleep(Duration::from_millis(LOOK_MS));
                }
                _ => panic!("the session does not become ready: {session}"),
            }
        }
    }

    /// Starts a session and runs a turn to warm it up. Returns its key.
    ///
    /// # Panics
    /// When the session or the turn fails.
    pub(crate) fn warm(&mut self, cwd: &str) -> String {
        let (key, _) = self.spawn(cwd);
        let _ = self.api.prompt(&key, "hello");
        key
    }

    /// A session as the API shows it.
    pub(crate) fn session(&mut self, key: &str) -> Value {
        self.api.get(&format!("/v1/sessions/{key}"))
    }

    /// Closes a session and waits until its lease has ended.
    ///
    /// # Panics
    /// When the lease does not end in time.
    pub(crate) fn close(&mut self, key: &str) {
        let _ = self.api.post(&format!("/v1/sessions/{key}/close"), &json!({}));
        let socket = self.supervisor.socket();
        until(SOON, "its lease is closed", || self.world.living_lease(&socket, key).is_none());
    }

    /// Stops both services with SIGTERM.
    ///
    /// # Panics
    /// When a service does not exit.
    pub(crate) fn end(self) {
        let _ = self.gateway.terminate(LONG);
        let _ = self.supervisor.terminate(LONG);
    }
}
