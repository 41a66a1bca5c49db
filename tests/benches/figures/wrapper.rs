//! The wrapper beside programs that do a part of its work: what it adds to a start, and what it holds afterwards.

use crate::peers::Above;
use crate::proc::{Private, sleeps};
use crate::report::{Limit, Report};
use crate::stats::Sample;
use acp_tests::wait::{SOON, eventually};
use acp_tests::world::bin;
use nix::sys::resource::{UsageWho, getrusage};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 7;
const STARTS: usize = 50;
/// CPU that a start may take beyond the bare one.
const START_MS_MAX: f64 = 0.6;
/// Memory that may be the wrapper's alone.
const PRIVATE_KIB_MAX: f64 = 512.0;
const SETTLE_MS: u64 = 200;
const IDLE_MS: u64 = 2_000;
const TRUE: &[&str] = &["/bin/true"];
const SLEEP: &[&str] = &["/bin/sleep", "3600"];
/// Name, and the arguments that make it what it is for: `-s` gives tini the orphans, as the others take them.
const PEERS: [(&str, &[&str]); 3] = [("tini", &["-s", "--"]), ("dumb-init", &[]), ("catatonit", &["--"])];

/// Measures the budgets of the wrapper.
pub(crate) fn measure(report: &mut Report) {
    report.part(
        "wrapper",
        &format!("CPU of `X true`, {ROUNDS} interleaved rounds of {STARTS}; X above an idle child"),
    );
    let sides = sides(report);
    let directory = beside(&bin("acp-wrapper"));
    let mut cpu = vec![Sample::default(); sides.len()];
    for round in 0..ROUNDS {
        for (side, (above, sample)) in sides.iter().map(|(_, above)| above).zip(&mut cpu).enumerate() {
            let at = |n: usize| directory.path().join(format!("{round}-{side}-{n}"));
            (0..STARTS).for_each(|n| above.prepare(TRUE, &at(n)));
            let before = cpu_ms();
            (0..STARTS).for_each(|n| above.start(TRUE, &at(n)).finish());
            sample.push((cpu_ms() - before) / f64::from(u32::try_from(STARTS).unwrap_or(u32::MAX)));
        }
    }
    let bare = cpu.first().map_or(f64::NAN, Sample::median);
    report.figure("bare true, CPU of a start", bare, "ms");
    for ((name, above), sample) in sides.iter().zip(&cpu).skip(1) {
        let added = sample.median() - bare;
        let held = idle(above, &directory.path().join(name));
        let (start, memory) = (format!("{name}, CPU added to a start"), format!("{name}, private memory"));
        if matches!(above, Above::Wrapper(_)) {
            report.limited(&start, added, "ms", Limit::AtMost(START_MS_MAX));
            report.limited(&memory, held.memory.kib, "KiB", Limit::AtMost(PRIVATE_KIB_MAX));
            report.limited(
                &format!("{name}, wake-ups in {IDLE_MS} ms"),
                held.woken,
                "count",
                Limit::AtMost(0.0),
            );
        } else {
            report.figure(&start, added, "ms");
            report.figure(&memory, held.memory.kib, "KiB");
        }
        report.figure(&format!("{name}, of it written"), held.memory.dirty_kib, "KiB");
    }
}

/// Everything to compare; what is not here is said.
fn sides(report: &Report) -> Vec<(String, Above)> {
    let mut sides = vec![("bare".to_owned(), Above::Bare)];
    for (name, arguments) in PEERS {
        match on_path(name) {
            Some(program) => sides.push((name.to_owned(), Above::Peer(program, arguments))),
            None => report.remark(&format!("{name} is not installed: left out")),
        }
    }
    let release = bin("acp-wrapper");
    let target = release.parent().and_then(Path::parent).unwrap_or_else(|| panic!("no target directory"));
    let builds = [
        ("wrapper (release)", release.clone()),
        ("wrapper (dist)", target.join("dist/acp-wrapper")),
        (
            "wrapper (dist, musl)",
            target.join(format!("{}-unknown-linux-musl/dist/acp-wrapper", std::env::consts::ARCH)),
        ),
    ];
    for (name, program) in builds {
        if program.is_file() {
            sides.push((name.to_owned(), Above::Wrapper(program)));
        } else {
            report.remark(&format!("{name} is not built: left out"));
        }
    }
    sides
}

struct Held {
    memory: Private,
    woken: f64,
}

/// What one of them holds and does above a program that does nothing.
fn idle(above: &Above, directory: &Path) -> Held {
    above.prepare(SLEEP, directory);
    let started = above.start(SLEEP, directory);
    let children = format!("/proc/{0}/task/{0}/children", started.pid());
    let child = eventually(SOON, "it has its child", || {
        std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse::<i32>().ok()
    });
    let link = format!("/proc/{child}/exe");
    eventually(SOON, "the child sleeps", || {
        std::fs::read_link(&link).ok().filter(|exe| exe.ends_with("sleep"))
    });
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let before = sleeps(started.pid());
    std::thread::sleep(Duration::from_millis(IDLE_MS));
    let woken = sleeps(started.pid()) - before;
    let held = Held {
        memory: Private::of(started.pid()),
        woken: f64::from(u32::try_from(woken).unwrap_or(u32::MAX)),
    };
    // The program below must not outlive this: the child of a peer would.
    if let Some(child) = acp_tests::processes::Held::take(child)
        && std::fs::read_link(&link).is_ok_and(|exe| exe.ends_with("sleep"))
    {
        let _ = child.kill();
    }
    held
}

/// CPU of all children that ended, user and system, in ms.
fn cpu_ms() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap_or_else(|e| panic!("no usage: {e}"));
    let times = [usage.user_time(), usage.system_time()];
    times
        .iter()
        .map(|time| {
            f64::from(i32::try_from(time.tv_sec()).unwrap_or(0)) * 1e3
                + f64::from(i32::try_from(time.tv_usec()).unwrap_or(0)) / 1e3
        })
        .sum()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// A directory on the file system of the program, so that it can be linked into it.
fn beside(program: &Path) -> TempDir {
    let parent = program.parent().unwrap_or_else(|| panic!("{} has no directory", program.display()));
    tempfile::tempdir_in(parent).unwrap_or_else(|e| panic!("{}: {e}", parent.display()))
}
