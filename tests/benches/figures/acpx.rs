//! The machine contract beside npm's acpx, with the same scripted agent, in pairs: cold session, first chunk, warm turn, 10,000
//! chunks, and memory without the agent.

use crate::house::{GATEWAY, House};
use crate::proc::Private;
use crate::report::{Limit, Report};
use crate::stats::{Sample, count, ms};
use acp_tests::wait::{SOON, until};
use acp_tests::world::bin;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Number of pairs of each measurement.
const PAIRS: usize = 7;
/// Number of pairs with 10,000 chunks.
const LONG_PAIRS: usize = 3;
const CHUNKS: usize = 10_000;

/// One of the two programs.
enum Side {
    Own,
    Acpx(PathBuf),
}

/// Times of a command.
struct Times {
    first_ms: f64,
    whole_ms: f64,
    chunks: usize,
}

impl Side {
    fn command(&self, house: &House, args: &[&str]) -> Command {
        let base = house.world.command("acp-gateway");
        let cwd = house.world.dir("work/acpx");
        let mut command = match self {
            Self::Own => {
                let mut command = base;
                command.arg("--state-dir").arg(house.world.path(GATEWAY)).arg("acpx");
                command
                    .args(["--format", "json", "--json-strict", "--approve-all"])
                    .arg("--cwd")
                    .arg(&cwd)
                    .arg("scripted");
                command
            }
            Self::Acpx(program) => {
                let mut command = Command::new(program);
                command.env_clear().envs(base.get_envs().filter_map(|(name, value)| Some((name, value?))));
                let agent = bin("fake-agent").display().to_string();
                command.args([
                    "--format",
                    "json",
                    "--json-strict",
                    "--approve-all",
                    "--ttl",
                    "60",
                    "--agent",
                    &agent,
                ]);
                command.current_dir(&cwd);
                command
            }
        };
        command.args(args).stdin(Stdio::null()).stderr(Stdio::inherit()).stdout(Stdio::piped());
        command
    }

    fn start(&self, house: &House, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut command = self.command(house, args);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("no stdout of {command:?}"));
        (child, BufReader::with_capacity(64 * 1024, stdout))
    }

    /// Runs a command to its end.
    fn run(&self, house: &House, args: &[&str]) -> Times {
        let began = Instant::now();
        let (mut child, mut stdout) = self.start(house, args);
        let (mut first_ms, mut chunks, mut line) = (f64::NAN, 0, String::new());
        while stdout.read_line(&mut line).unwrap_or_else(|e| panic!("{args:?}: {e}")) > 0 {
            if line.contains("agent_message_chunk") {
                if chunks == 0 {
                    first_ms = ms(began.elapsed());
                }
                chunks += 1;
            }
            line.clear();
        }
        let status = child.wait().unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert!(status.success(), "{args:?} ended with {status}");
        Times { first_ms, whole_ms: ms(began.elapsed()), chunks }
    }

    /// Median private memory of the process between client and agent of one session, in KiB, the parts of gateway and supervisor
    /// left out.
    fn between(&self, house: &House) -> f64 {
        let word = match self {
            Self::Own => "acp-wrapper",
            Self::Acpx(_) => "__queue-owner",
        };
        median(house, word)
    }

    /// Private memory of client and [`Side::between`] while a turn waits, in KiB.
    fn turn_memory(&self, house: &House) -> f64 {
        let (mut child, mut stdout) = self.start(house, &["prompt", "-s", "warm", "say begun\nsleep 1500"]);
        let mut line = String::new();
        while !line.contains("begun\"") || !line.contains("agent_message_chunk") {
            line.clear();
            let read = stdout.read_line(&mut line).unwrap_or_else(|e| panic!("the turn: {e}"));
            assert!(read > 0, "the turn ended before it began");
        }
        let pid = i32::try_from(child.id()).unwrap_or_else(|e| panic!("{e}"));
        let memory = Private::of(pid).kib + self.between(house);
        let _ = child.wait();
        memory
    }
}

/// Median private memory of the processes of this world with a word in their command line, in KiB.
fn median(house: &House, word: &str) -> f64 {
    let found = house.world.processes();
    let wanted = found.iter().filter(|process| process.argv.iter().any(|arg| arg.contains(word)));
    let mut sample = Sample::default();
    for process in wanted {
        sample.push(Private::of(process.pid).kib);
    }
    sample.median()
}

/// Private memory of gateway and supervisor, in KiB.
fn services(house: &House) -> f64 {
    [&house.gateway, &house.supervisor].map(|service| Private::of(service.pid()).kib).iter().sum()
}

/// Measures everything.
pub(crate) fn measure(report: &mut Report) {
    report.part("acpx", "the machine contract beside npm's acpx 0.19.1, same agent, pairs");
    let foreign = std::env::var_os("ACP_FOREIGN_DIR").map(PathBuf::from).unwrap_or_default();
    let program = foreign.join("clients/acpx/bin/acpx");
    if !program.is_file() {
        report.remark("acpx is not installed: make test-foreign installs it");
        return;
    }
    let agent = bin("fake-agent").display().to_string();
    let house =
        House::configured(&format!("[agents.scripted]\ncommand = [{agent:?}]\ncwd_roots = [\"/\"]\n"));
    let sides = [Side::Own, Side::Acpx(program)];
    let each = |pairs: usize, run: &dyn Fn(&Side, usize) -> f64| -> [f64; 2] {
        let mut samples = [Sample::default(), Sample::default()];
        for pair in 0..pairs {
            for (side, sample) in sides.iter().zip(&mut samples) {
                sample.push(run(side, pair));
            }
        }
        samples.map(|sample| sample.median())
    };
    let before = services(&house);
    let cold = each(PAIRS, &|side, pair| {
        side.run(&house, &["sessions", "ensure", "--name", &format!("cold{pair}")]).whole_ms
    });
    let share = (services(&house) - before) / count(PAIRS);
    for side in &sides {
        let _ = side.run(&house, &["sessions", "ensure", "--name", "warm"]);
        let _ = side.run(&house, &["prompt", "-s", "warm", "say warm"]);
    }
    // A session of ours also costs its part of gateway and supervisor.
    let with_share = |[own, acpx]: [f64; 2]| [own + share, acpx];
    let idle = with_share(sides.each_ref().map(|side| side.between(&house)));
    let busy = with_share(sides.each_ref().map(|side| side.turn_memory(&house)));
    let hello = ["prompt", "-s", "warm", "say hello"];
    let first = each(PAIRS, &|side, _| side.run(&house, &hello).first_ms);
    let warm = each(PAIRS, &|side, _| side.run(&house, &hello).whole_ms);
    let text = format!("chunks {CHUNKS}");
    let chunks = each(LONG_PAIRS, &|side, _| {
        let times = side.run(&house, &["prompt", "-s", "warm", &text]);
        assert_eq!(times.chunks, CHUNKS, "all chunks arrive");
        times.whole_ms
    });
    for (name, [own, acpx], least) in [
        ("cold session", cold, 80.0),
        ("first chunk of a warm turn", first, 40.0),
        ("warm turn", warm, 150.0),
        ("10,000 chunks", chunks, 25.0),
    ] {
        report.against(name, (own, "ms"), ("acpx", acpx), (acpx / own, Some(Limit::AtLeast(least))));
    }
    report.against(
        "idle session without its agent",
        (idle[0], "KiB"),
        ("acpx", idle[1]),
        (idle[1] / idle[0], None),
    );
    report.against(
        "client and session in a turn",
        (busy[0], "KiB"),
        ("acpx", busy[1]),
        (busy[1] / busy[0], None),
    );
    for number in 0..PAIRS {
        let _ = sides[1].run(&house, &["sessions", "close", &format!("cold{number}")]);
    }
    let _ = sides[1].run(&house, &["sessions", "close", "warm"]);
    until(SOON, "acpx has ended its processes", || {
        house.world.processes().iter().all(|process| !process.argv.iter().any(|arg| arg == "__queue-owner"))
    });
    house.end();
}
