//! The supervisor alone: its overhead of a start and of a byte, the cost of a lease, and its activity while
//! idle.

use crate::leases::Leases;
use crate::orphans;
use crate::proc::{Private, cpu_ms, sleeps};
use crate::report::Report;
use crate::stats::{Sample, count, ms};
use acp_shared::protocol::{LeaseInfo, Reply, Request, Spawn};
use acp_testkit::processes::KillOnDrop;
use acp_tests::service::Service;
use acp_tests::wait::LONG;
use acp_tests::world::{SUPERVISOR_DB, World};
use std::io::{Read as _, Write as _};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 11;
/// Number of simultaneous starts.
const CONCURRENT: usize = 50;
/// Number of simultaneously open leases.
const OPEN: usize = 100;
const WARM: usize = 10;
const LOOKS: usize = 5;
const IDLE_MS: u64 = 10_000;
/// Settling time: idle threads of the runtime end after ten seconds.
const SETTLE_MS: u64 = 12_000;
const ECHOES: usize = 500;
const LINE: &[u8; 64] = b"a line of a conversation, as long as a short message of ACP is.\n";
const FLOOD_BYTES: u64 = 256 * 1024 * 1024;
const FLOODS: usize = 5;
const AGENT: &[&str] = &["/bin/cat"];

/// Measures everything.
pub(crate) fn measure(report: &mut Report) {
    let world = World::new();
    let supervisor = world.supervisor();
    let mut leases = Leases::connect(&world, &supervisor);
    rest(&supervisor, 0, report);
    held(&world, &supervisor, &mut leases, report);
    starts(&mut leases, report);
    echoes(&mut leases, report);
    floods(&mut leases, report);
    drop(leases);
    let _ = supervisor.terminate(LONG);
    drop(world);
    orphans::measure(report);
}

fn rest(supervisor: &Service, open: usize, report: &mut Report) {
    report.part("rest", &format!("wake-ups of the supervisor within {IDLE_MS} ms, no requests"));
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let before = sleeps(supervisor.pid());
    std::thread::sleep(Duration::from_millis(IDLE_MS));
    let woken = count(sleeps(supervisor.pid()) - before);
    report.figure(&format!("{open} open leases, wake-ups"), woken, "count");
}

/// Measures the cost of open leases: commits, memory, evidence checks, wake-ups.
fn held(world: &World, supervisor: &Service, leases: &mut Leases, report: &mut Report) {
    let agents =
        |leases: &Leases, count: usize| -> Vec<Spawn> { (0..count).map(|_| leases.agent(AGENT)).collect() };
    let warm = agents(leases, WARM);
    let (warm, _) = leases.spawn(&warm);
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", supervisor.pid())).map_or(0, Iterator::count);
    let (memory, descriptors, commits) = (Private::of(supervisor.pid()), fds(), commits(world));
    let asked = agents(leases, OPEN);
    let (open, took) = leases.spawn(&asked);
    let made = self::commits(world).saturating_sub(commits);
    report.part(
        "leases",
        &format!("{OPEN} agents that do nothing, spawned at once; rows of the store are durable"),
    );
    report.figure("from the first request to the last that runs", ms(took), "ms");
    report.figure("commits for all of them", count(made), "count");
    rest(supervisor, OPEN + WARM, report);
    report.part("lease", &format!("what each of {OPEN} open leases costs"));
    let more = Private::of(supervisor.pid());
    let each = count(OPEN);
    report.figure("supervisor, private memory", (more.kib - memory.kib) / each, "KiB");
    report.figure("supervisor, descriptors", count(fds() - descriptors) / each, "count");
    let wrappers: Sample =
        open.iter().filter_map(|lease| Some(Private::of(lease.wrapper_pid?).dirty_kib)).collect();
    report.figure("its wrapper, private memory that was written", wrappers.median(), "KiB");
    verify(supervisor, leases, &open, report);
    leases.close(&[warm, open].concat());
}

fn verify(supervisor: &Service, leases: &mut Leases, open: &[LeaseInfo], report: &mut Report) {
    let mut times = Sample::default();
    let before = cpu_ms(supervisor.pid());
    for lease in std::iter::repeat_n(open, LOOKS).flatten() {
        let began = Instant::now();
        let reply = leases.call(Request::Verify { lease_id: lease.lease_id });
        times.push(ms(began.elapsed()));
        assert!(matches!(&reply, Reply::Evidence(evidence) if evidence.verdict == "owned"), "{reply:?}");
    }
    let each = (cpu_ms(supervisor.pid()) - before) / count(LOOKS * open.len());
    report.figure("verify, median", times.median(), "ms");
    report.figure("verify, p90", times.p90(), "ms");
    report.figure("verify, CPU of the supervisor", each, "ms");
}

/// Number of commits in the store's write-ahead log: frames that end a commit and have the salt of the log's
/// header.
fn commits(world: &World) -> usize {
    let path = world.path("supervisor").join(format!("{SUPERVISOR_DB}-wal"));
    let log = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let number = |at: usize| {
        let bytes = log.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_be_bytes(bytes.unwrap_or_else(|| panic!("{} is cut off", path.display())))
    };
    let (page, salt) = (number(8) as usize, (number(16), number(20)));
    let frames = (32..log.len().saturating_sub(page + 23)).step_by(page + 24);
    frames.filter(|at| (number(at + 8), number(at + 12)) == salt && number(at + 4) != 0).count()
}

/// Starts the same program by fork and exec alone.
fn plain(argv: &[&str]) -> KillOnDrop {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    KillOnDrop(command.spawn().unwrap_or_else(|e| panic!("{argv:?}: {e}")))
}

/// Starts programs at the same time, each on a thread. Returns the time until the last one has called exec.
fn plain_at_once(number: usize) -> Duration {
    let barrier = Barrier::new(number + 1);
    std::thread::scope(|scope| {
        let start = || {
            barrier.wait();
            let child = plain(AGENT);
            (child, Instant::now())
        };
        let started: Vec<_> = (0..number).map(|_| scope.spawn(start)).collect();
        barrier.wait();
        let began = Instant::now();
        let mut last = began;
        for one in started {
            let (child, at) = one.join().unwrap_or_else(|_| panic!("not started"));
            last = last.max(at);
            drop(child);
        }
        last - began
    })
}

fn starts(leases: &mut Leases, report: &mut Report) {
    report.part(
        "start",
        &format!("request to an agent that runs, beside fork and exec alone, medians of {ROUNDS} interleaved rounds"),
    );
    for number in [1, CONCURRENT] {
        let (mut raw, mut ours) = (Sample::default(), Sample::default());
        for _ in 0..ROUNDS {
            raw.push(ms(plain_at_once(number)));
            let specs: Vec<Spawn> = (0..number).map(|_| leases.agent(AGENT)).collect();
            let (started, took) = leases.spawn(&specs);
            ours.push(ms(took));
            leases.close(&started);
        }
        report.figure(&format!("{number} at once, fork and exec"), raw.median(), "ms");
        report.figure(&format!("{number} at once, supervisor"), ours.median(), "ms");
        report.figure(&format!("{number} at once, supervisor, each"), ours.median() / count(number), "ms");
        report.figure(&format!("{number} at once, ratio"), ours.median() / raw.median(), "times");
    }
}

fn pipes(child: &mut KillOnDrop) -> (std::process::ChildStdin, ChildStdout) {
    match (child.stdin.take(), child.stdout.take()) {
        (Some(stdin), Some(stdout)) => (stdin, stdout),
        _ => panic!("the agent has no pipes"),
    }
}

fn attach(leases: &mut Leases, argv: &[&str]) -> LeaseInfo {
    let spec = leases.agent(argv);
    let (mut started, _) = leases.spawn(&[spec]);
    let lease = started.pop().unwrap_or_else(|| panic!("no lease"));
    let _ = leases.call(Request::Attach { lease_id: lease.lease_id, from_offset: 0 });
    lease
}

fn echoes(leases: &mut Leases, report: &mut Report) {
    report.part("echo", &format!("{} bytes to an agent and back, {ECHOES} interleaved rounds", LINE.len()));
    let mut child = plain(AGENT);
    let (mut stdin, mut stdout) = pipes(&mut child);
    let lease = attach(leases, AGENT);
    let (mut raw, mut ours) = (Sample::default(), Sample::default());
    let (mut seq, mut offset) = (0, 0);
    for _ in 0..ECHOES {
        let began = Instant::now();
        let mut back = [0; LINE.len()];
        let done = stdin.write_all(LINE).and_then(|()| stdout.read_exact(&mut back));
        done.unwrap_or_else(|e| panic!("no echo: {e}"));
        raw.push(ms(began.elapsed()));
        seq += 1;
        let length = LINE.len() as u64;
        ours.push(ms(leases.drive(lease.lease_id, seq, LINE, offset, length)));
        offset += length;
    }
    drop(child);
    leases.close(&[lease]);
    for (name, sample) in [("pipe", &raw), ("relay", &ours)] {
        report.figure(&format!("{name}, median"), sample.median(), "ms");
        report.figure(&format!("{name}, p90"), sample.p90(), "ms");
    }
    report.figure("relay minus pipe, median", ours.median() - raw.median(), "ms");
}

fn floods(leases: &mut Leases, report: &mut Report) {
    let mib = FLOOD_BYTES / (1024 * 1024);
    report.part(
        "flood",
        &format!("{mib} MiB from an agent to its reader, medians of {FLOODS} interleaved rounds"),
    );
    let script = format!("while read line; do head -c {FLOOD_BYTES} /dev/zero; done");
    let argv = ["/bin/sh", "-c", &script];
    let mut child = plain(&argv);
    let (mut stdin, mut stdout) = pipes(&mut child);
    let lease = attach(leases, &argv);
    let (mut raw, mut ours) = (Sample::default(), Sample::default());
    let mut buffer = vec![0; 256 * 1024];
    let rate = |took: Duration| count(mib) / took.as_secs_f64();
    for seq in 1..=FLOODS as u64 {
        let began = Instant::now();
        stdin.write_all(b"\n").unwrap_or_else(|e| panic!("the agent does not read: {e}"));
        let mut left = FLOOD_BYTES;
        while left > 0 {
            let got = stdout.read(&mut buffer).unwrap_or_else(|e| panic!("the agent's output: {e}"));
            assert!(got > 0, "the agent exited");
            left -= got as u64;
        }
        raw.push(rate(began.elapsed()));
        let took = leases.drive(lease.lease_id, seq, b"\n", (seq - 1) * FLOOD_BYTES, FLOOD_BYTES);
        ours.push(rate(took));
    }
    drop(child);
    leases.close(&[lease]);
    report.figure("pipe", raw.median(), "MiB/s");
    report.figure("relay", ours.median(), "MiB/s");
    report.figure("relay, share of the pipe", ours.median() / raw.median(), "times");
}
