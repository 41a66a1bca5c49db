//! The control plane on a disk that fails below SQLite: syncs and writes that return EIO, a WAL frame that is torn.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_testkit::disk_fault::DiskFault;
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::invariants;
use acp_tests::scrape::Scrape;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, until};

/// A house whose gateway runs with the fault library.
struct Faulty {
    house: House,
    gateway: Option<Service>,
    disk: DiskFault,
}

impl Faulty {
    fn new() -> Self {
        let mut house = House::new(&[]);
        house.stop_gateway();
        let disk = DiskFault::build(&house.world.path(""));
        let mut faulty = Self { house, gateway: None, disk };
        faulty.start();
        faulty
    }

    fn start(&mut self) {
        let world = &self.house.world;
        let mut command = world.gateway_verb(GATEWAY, &["serve"]);
        command.arg("--supervisor-socket").arg(self.house.socket());
        self.disk.preload(&mut command);
        command.arg("--config").arg(world.path("gateway.toml"));
        self.gateway = Some(world.start_command(command));
    }

    fn spawn(&self) {
        let cwd = self.house.world.dir("work/project");
        let spawned = self.house.say("room", "spawn", &format!("/acp spawn {AGENT} --cwd {}", cwd.display()));
        assert_eq!(spawned["outcome"], "command", "{spawned}");
    }

    fn rows(&self, sql: &str) -> i64 {
        self.house.world.journal(GATEWAY).query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn is_writable(&self) -> bool {
        Scrape::fetch(&self.house.world.path(GATEWAY).join("gateway.sock")).value("acp_store_writable") == 1.0
    }

    fn finals(&self) -> i64 {
        self.rows("SELECT count(*) FROM acp_delivery_part WHERE kind = 'final' AND state = 'sent'")
    }

    /// The invariants of the database hold, each prompt reached the agent once, and both services end in order.
    fn end(mut self, prompts: &[&str]) {
        invariants::check(&self.house.world.journal(GATEWAY));
        for text in prompts {
            assert_eq!(self.house.prompts_received(text), 1, "{text}");
        }
        assert_eq!(self.gateway.take().unwrap().terminate(LONG), Some(0));
        self.house.start_gateway();
        self.house.end();
    }
}

/// A message whose commit fails is refused and not kept; the same message is taken once when the disk works again.
fn failing_calls_acknowledge_nothing(fault: &str) {
    let faulty = Faulty::new();
    faulty.spawn();
    assert_eq!(faulty.house.say("room", "1", "say before")["outcome"], "prompted");
    until(SOON, "the first prompt is answered", || faulty.finals() == 1);
    faulty.disk.set(fault);
    let refused = faulty.house.say("room", "2", "say during");
    assert!(refused["code"].is_string(), "the message is refused: {refused}");
    assert!(!faulty.is_writable(), "the metric shows it");
    faulty.disk.set("none");
    until(SOON, "the store accepts commits again", || faulty.is_writable());
    let taken = faulty.house.say("room", "2", "say during");
    assert_eq!(taken["outcome"], "prompted", "{taken}");
    until(SOON, "the second prompt is answered", || faulty.finals() == 2);
    faulty.end(&["say before", "say during"]);
}

#[test]
fn failing_syncs_acknowledge_nothing() {
    failing_calls_acknowledge_nothing("sync");
}

#[test]
fn failing_writes_acknowledge_nothing() {
    failing_calls_acknowledge_nothing("write");
}

#[test]
fn torn_wal_frame_loses_no_acknowledged_prompt() {
    let mut faulty = Faulty::new();
    faulty.spawn();
    assert_eq!(faulty.house.say("room", "1", "chunks 40 pace_ms=20")["outcome"], "prompted");
    let chunks = "SELECT count(*) FROM acp_events WHERE kind = 'agent_message'";
    until(SOON, "turn running", || faulty.rows(chunks) > 5);
    faulty.disk.set("torn");
    assert_eq!(faulty.gateway.take().unwrap().wait(LONG), None, "killed in the middle of a write");
    faulty.disk.set("none");
    faulty.start();
    until(LONG, "turn finished", || faulty.finals() == 1);
    assert_eq!(faulty.rows(chunks), 40, "each chunk once");
    faulty.end(&["chunks 40 pace_ms=20"]);
}
