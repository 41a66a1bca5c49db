//! Start of a gateway on a large control plane: time until it accepts work, until the first prompt is
//! answered and until interrupted turns are settled, compared with a plain read of the same file.

use super::ground::world;
use super::seed::{Grown, Size, grow, resting};
use crate::api::Api;
use crate::proc::{Private, cpu_ms, read_bytes};
use crate::report::{Limit, Report};
use crate::stats::{Sample, ms};
use acp_testkit::processes::KillOnDrop;
use acp_tests::house::GATEWAY;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{SUPERVISOR_DB, World};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SIZE: Size = Size { resting: 10_000, prompted_every: 1, runs: 10, chunks: 8, running: 100 };
const ROUNDS: usize = 5;
/// Maximum share of the file that is read until the gateway accepts work, and until the first prompt is
/// answered.
const READ_SHARE_MAX: f64 = 0.1;
const SETTLE_MS: u64 = 3_000;

/// Samples of all starts, in ms since exec and in bytes.
#[derive(Debug, Default)]
struct Starts {
    ready: Sample,
    served: Sample,
    settled: Sample,
    count: Sample,
    scan: Sample,
    ready_of_scan: Sample,
    cpu: Sample,
    cpu_later: Sample,
    memory: Sample,
    read: Sample,
    read_later: Sample,
}

/// Measures the starts.
pub(crate) fn measure(report: &mut Report) {
    let world = world();
    let began = Instant::now();
    let grown = grow(&world, SIZE);
    let db = world.path(GATEWAY).join("gateway.db");
    let kept = Kept::copy(&world);
    let Grown { sessions, events } = grown;
    report.part(
        "boot",
        &format!("start on {sessions} sessions and {events} events, {} of them in a turn; times since exec, medians of {ROUNDS} interleaved rounds", SIZE.running),
    );
    report.remark(&format!("made in {:.1} s", began.elapsed().as_secs_f64()));
    let began = Instant::now();
    let check = world.cli(GATEWAY, &["store", "check"]).ok().json();
    assert_eq!(check["ok"], true, "{check}");
    report.remark(&format!("`store check` finds nothing wrong, in {:.1} s", began.elapsed().as_secs_f64()));
    let bytes = share(db.metadata().map_or(0, |meta| meta.len()));
    let mut starts = Starts::default();
    for _ in 0..ROUNDS {
        kept.restore();
        starts.one(&world, &db);
    }
    starts.tell(bytes, report);
}

impl Starts {
    fn one(&mut self, world: &World, db: &Path) {
        let (count, scan) = read_plainly(db);
        self.count.push(ms(count));
        self.scan.push(ms(scan));
        let supervisor = world.supervisor();
        let gateway = Started::start(world, &supervisor.socket());
        let pid = gateway.child.pid();
        self.ready.push(ms(gateway.ready));
        self.ready_of_scan.push(ms(gateway.ready) / ms(scan));
        self.cpu.push(cpu_ms(pid));
        self.read.push(share(read_bytes(pid)));
        let mut api = Api::new(&gateway.socket);
        // The least recently used session: nothing of it was loaded at the start.
        let _ = api.prompt(&resting(SIZE.resting), "hello");
        self.served.push(ms(gateway.began.elapsed()));
        self.read_later.push(share(read_bytes(pid)));
        let journal = world.journal(GATEWAY);
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM acp_runs WHERE state = 'running')";
        until(LONG, "no run is in state running", || {
            journal.query_row(sql, [], |row| row.get(0)) == Ok(true)
        });
        self.settled.push(ms(gateway.began.elapsed()));
        std::thread::sleep(Duration::from_millis(SETTLE_MS));
        self.cpu_later.push(cpu_ms(pid));
        self.memory.push(Private::of(pid).dirty_kib / 1024.0);
        drop(journal);
        drop(gateway);
        let _ = supervisor.terminate(SOON);
    }

    fn tell(&self, bytes: f64, report: &mut Report) {
        let scan = ("plain read of every event", self.scan.median());
        report.against("ready", (self.ready.median(), "ms"), scan, (self.ready_of_scan.median(), None));
        report.figure("ready, spread", self.ready.spread(), "times");
        report.figure("ready, ratio to a plain count(*)", self.ready.median() / self.count.median(), "times");
        let to_scan = |sample: &Sample| sample.median() / self.scan.median();
        for (name, sample) in [("first prompt answered", &self.served), ("everything settled", &self.settled)]
        {
            report.figure(name, sample.median(), "ms");
            report.figure(&format!("{name}, ratio to plain read of every event"), to_scan(sample), "times");
        }
        for (name, sample) in [("ready", &self.read), ("first prompt answered", &self.read_later)] {
            let limit = Limit::AtMost(READ_SHARE_MAX);
            report.limited(
                &format!("{name}, read, share of the file"),
                sample.median() / bytes,
                "times",
                limit,
            );
        }
        report.figure("file", bytes / 1_048_576.0, "MiB");
        report.figure("ready, CPU", self.cpu.median(), "ms");
        report.figure("3 s after everything settled, CPU", self.cpu_later.median(), "ms");
        report.figure(
            "3 s after everything settled, private memory that was written",
            self.memory.median(),
            "MiB",
        );
    }
}

fn share(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a file of this size loses no precision")]
    let bytes = bytes as f64;
    bytes
}

/// Copies of the files by which the services recognize a state directory. The supervisor's record of the gateway
/// belongs to the gateway's database: a database older than the record is refused.
struct Kept(Vec<(PathBuf, PathBuf)>);

impl Kept {
    /// Copies the files of services that do not run.
    fn copy(world: &World) -> Self {
        let gateway = world.path(GATEWAY);
        let supervisor = world.path("supervisor").join(SUPERVISOR_DB);
        let (db, rollback) = (gateway.join("gateway.db"), gateway.join("gateway.rollback"));
        let kept = world.dir("kept");
        let files = [log_of(&db), db, rollback, log_of(&supervisor), supervisor];
        let pairs = files.map(|file| {
            let copy = kept.join(file.file_name().unwrap_or_default());
            replace(&file, &copy);
            (file, copy)
        });
        Self(pairs.into())
    }

    /// Puts the files back.
    fn restore(&self) {
        for (file, copy) in &self.0 {
            replace(copy, file);
        }
    }
}

/// Path of the write-ahead log of a database.
fn log_of(db: &Path) -> PathBuf {
    let mut path = db.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Replaces `to` with a copy of `from`, or removes it if `from` does not exist.
fn replace(from: &Path, to: &Path) {
    let _ = fs::remove_file(to);
    if from.exists() {
        let _ = fs::copy(from, to).unwrap_or_else(|e| panic!("{} to {}: {e}", from.display(), to.display()));
    }
}

/// Times counting the events and, with a new connection, reading each of them.
fn read_plainly(path: &Path) -> (Duration, Duration) {
    let read = |sql: &str| {
        let began = Instant::now();
        let db = acp_tests::world::open_read_only(path);
        let found: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert!(found > 0, "no events in {}", path.display());
        began.elapsed()
    };
    (read("SELECT count(*) FROM acp_events"), read("SELECT sum(length(payload_json)) FROM acp_events"))
}

/// A gateway whose ready line is read as soon as it is written.
pub(super) struct Started {
    /// Killed at the end: the supervisor ends its agents and the file is replaced.
    pub(super) child: KillOnDrop,
    began: Instant,
    pub(super) ready: Duration,
    pub(super) socket: PathBuf,
}

impl Started {
    pub(super) fn start(world: &World, supervisor: &Path) -> Self {
        let mut command = world.command("acp-gateway");
        command.arg("serve").arg("--json").arg("--state-dir").arg(world.path(GATEWAY));
        command.arg("--config").arg(world.path(&format!("{GATEWAY}.toml")));
        command.arg("--supervisor-socket").arg(supervisor).stdin(Stdio::null()).stdout(Stdio::piped());
        let log = world.path("log/boot.stderr");
        let file = fs::File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let began = Instant::now();
        let child = command.stderr(file).spawn();
        let mut child = KillOnDrop(child.unwrap_or_else(|e| panic!("{command:?}: {e}")));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("the gateway has no standard output"));
        let (sender, receiver) = mpsc::sync_channel(1);
        let _reader = std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send((read.map(|_| line), began.elapsed()));
        });
        let (line, ready) = receiver
            .recv_timeout(LONG)
            .unwrap_or_else(|e| panic!("{e}: the gateway is not ready; see {}", log.display()));
        let line = line.unwrap_or_else(|e| panic!("output of the gateway: {e}"));
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e} in {line:?}"));
        let socket = PathBuf::from(said["socket"].as_str().unwrap_or_else(|| panic!("no socket: {said}")));
        Self { child, began, ready, socket }
    }
}
