//! The wrapper compared with programs that do a part of its work: its overhead of a start, and its resources
//! afterwards.

use crate::peers::Above;
use crate::proc::{Private, sleeps, usage_ms};
use crate::report::{Limit, Report};
use crate::stats::{Sample, count};
use acp_testkit::processes::children;
use acp_tests::wait::{SOON, eventually};
use acp_tests::world::bin;
use nix::sys::resource::UsageWho;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 11;
const STARTS: usize = 40;
/// Maximum private memory of the wrapper.
const PRIVATE_KIB_MAX: f64 = 512.0;
/// Number of memory measurements: the mapped pages vary with the address at which a program is loaded.
const LOOKS: usize = 7;
const SETTLE_MS: u64 = 200;
const IDLE_MS: u64 = 10_000;
/// The peer whose CPU time of a start is the limit.
const PACE: &str = "tini";
const TRUE: &[&str] = &["/bin/true"];
const SLEEP: &[&str] = &["/bin/sleep", "3600"];
/// Name and arguments of each peer: `-s` makes tini a subreaper, as the others are.
const PEERS: [(&str, &[&str]); 3] = [("tini", &["-s", "--"]), ("dumb-init", &[]), ("catatonit", &["--"])];

/// Measures the budgets of the wrapper.
pub(crate) fn measure(report: &mut Report) {
    report.part(
        "wrapper",
        &format!("CPU of `X true`, {ROUNDS} interleaved rounds of {STARTS}; X above an idle child"),
    );
    let target = target();
    let sides = sides(report, &target);
    let directory = beside(&target);
    let added = added_cpu(&sides, directory.path(), report);
    let pace = sides.iter().zip(&added).find(|((name, _), _)| name == PACE).map(|(_, added)| *added);
    if pace.is_none() {
        report.remark(&format!("without {PACE}, the CPU of a start has no limit"));
    }
    for ((name, above), added) in sides.iter().zip(added).skip(1) {
        let held = idle(above, &directory.path().join(name));
        let rows = [
            (format!("{name}, CPU added to a start"), added, "ms", pace),
            (format!("{name}, private memory"), held.private_kib, "KiB", Some(PRIVATE_KIB_MAX)),
            (format!("{name}, wake-ups in {} s", IDLE_MS / 1000), held.woken, "count", Some(0.0)),
        ];
        for (row, value, unit, limit) in rows {
            match limit {
                Some(limit) if matches!(above, Above::Wrapper(_)) => {
                    report.limited(&row, value, unit, Limit::AtMost(limit));
                }
                _ => report.figure(&row, value, unit),
            }
        }
    }
}

/// CPU time that each adds to a start, in ms: the median of the differences to the bare start of the same
/// round.
fn added_cpu(sides: &[(String, Above)], directory: &Path, report: &mut Report) -> Vec<f64> {
    let mut bare = Sample::default();
    let mut added = vec![Sample::default(); sides.len()];
    for round in 0..ROUNDS {
        let mut of_bare = f64::NAN;
        for (side, ((_, above), sample)) in sides.iter().zip(&mut added).enumerate() {
            let at = |n: usize| directory.join(format!("{round}-{side}-{n}"));
            (0..STARTS).for_each(|n| above.prepare(TRUE, &at(n)));
            let before = usage_ms(UsageWho::RUSAGE_CHILDREN);
            (0..STARTS).for_each(|n| above.start(TRUE, &at(n)).finish());
            let each = (usage_ms(UsageWho::RUSAGE_CHILDREN) - before) / count(STARTS);
            if matches!(above, Above::Bare) {
                of_bare = each;
                bare.push(each);
            }
            sample.push(each - of_bare);
        }
    }
    report.figure("bare true, CPU of a start", bare.median(), "ms");
    added.iter().map(Sample::median).collect()
}

/// Target directory of cargo.
pub(crate) fn target() -> PathBuf {
    let program = bin("acp-wrapper");
    let target = program.parent().and_then(Path::parent);
    target.unwrap_or_else(|| panic!("{} is in no target directory", program.display())).to_owned()
}

/// All programs to compare, the bare one first; missing peers are remarked in the report.
fn sides(report: &Report, target: &Path) -> Vec<(String, Above)> {
    let mut sides = vec![("bare".to_owned(), Above::Bare)];
    let fetched = target.join("peers/usr/bin");
    for (name, arguments) in PEERS {
        match Some(fetched.join(name)).filter(|program| program.is_file()).or_else(|| on_path(name)) {
            Some(program) => sides.push((name.to_owned(), Above::Peer(program, arguments))),
            None => report.remark(&format!("{name} is not installed: left out")),
        }
    }
    // The shipped build: linked against musl if that target is installed, else against the machine's C
    // library.
    let built = ["musl", "gnu"].iter().find_map(|library| {
        let triple = format!("{}-unknown-linux-{library}", std::env::consts::ARCH);
        let program = target.join(triple).join("dist/acp-wrapper");
        program.is_file().then(|| (format!("wrapper ({library})"), Above::Wrapper(program)))
    });
    sides
        .push(built.unwrap_or_else(|| panic!("no wrapper is built in {}: `make wrapper`", target.display())));
    sides
}

struct Held {
    private_kib: f64,
    woken: f64,
}

/// Memory and wake-ups of one parent of an idle program.
fn idle(above: &Above, directory: &Path) -> Held {
    let look = |n: usize, idle_ms: u64| {
        let directory = directory.join(n.to_string());
        above.prepare(SLEEP, &directory);
        let started = above.start(SLEEP, &directory);
        let sleeper = Sleeper::below(started.pid());
        std::thread::sleep(Duration::from_millis(SETTLE_MS));
        let before = sleeps(started.pid());
        std::thread::sleep(Duration::from_millis(idle_ms));
        let woken = sleeps(started.pid()) - before;
        let private = Private::of(started.pid()).kib;
        drop(sleeper);
        (private, count(woken))
    };
    let (private, woken) = look(0, IDLE_MS);
    let sample: Sample = (1..LOOKS).map(|n| look(n, 0).0).chain([private]).collect();
    Held { private_kib: sample.median(), woken }
}

/// The idle program. It is killed after the measurement, because the child of a peer would outlive it.
struct Sleeper {
    pid: i32,
    link: String,
}

impl Sleeper {
    fn below(parent: i32) -> Self {
        let pid = eventually(SOON, "the parent has a child", || children(parent).first().copied());
        let sleeper = Self { pid, link: format!("/proc/{pid}/exe") };
        eventually(SOON, "the child sleeps", || sleeper.sleeps().then_some(()));
        sleeper
    }

    fn sleeps(&self) -> bool {
        std::fs::read_link(&self.link).is_ok_and(|exe| exe.ends_with("sleep"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(child) = acp_tests::processes::ProcessHandle::open(self.pid)
            && self.sleeps()
        {
            let _ = child.kill();
        }
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// A directory on the file system of the programs, so that they can be linked into it.
fn beside(target: &Path) -> TempDir {
    tempfile::tempdir_in(target).unwrap_or_else(|e| panic!("{}: {e}", target.display()))
}
