//! Resource usage of processes, from `/proc`.

use nix::sys::resource::{UsageWho, getrusage};
use std::fs;

/// Private memory of one process, in KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Private {
    /// All private memory. Pages of a program's file count too, as long as no other process runs that
    /// program.
    pub(crate) kib: f64,
    /// Written pages: they stay private, however many processes run the program.
    pub(crate) dirty_kib: f64,
}

impl Private {
    /// Reads the private memory of a process.
    ///
    /// # Panics
    /// When the process is gone.
    pub(crate) fn of(pid: i32) -> Self {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let sum = |prefix: &str| -> f64 {
            let sizes = text.lines().filter(|line| line.starts_with(prefix));
            sizes.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok()).map(f64::from).sum()
        };
        Self { kib: sum("Private_"), dirty_kib: sum("Private_Dirty:") }
    }
}

/// Voluntary context switches of the process's threads so far. Each wake-up ends with one.
pub(crate) fn sleeps(pid: i32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks.flatten().filter_map(|task| voluntary(&task.path().join("status"))).sum()
}

fn voluntary(status: &std::path::Path) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// CPU time of a process so far, user and system, including ended threads, in ms. The kernel counts in steps
/// of 10 ms.
///
/// # Panics
/// When the process is gone.
pub(crate) fn cpu_ms(pid: i32) -> f64 {
    const TICK_MS: f64 = 10.0;
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let after = text.rsplit_once(") ").map_or("", |(_, after)| after);
    let ticks: u32 = after.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
    f64::from(ticks) * TICK_MS
}

/// CPU time of this thread, or of all ended children, user and system, in ms.
///
/// # Panics
/// When `getrusage` fails.
pub(crate) fn usage_ms(who: UsageWho) -> f64 {
    let usage = getrusage(who).unwrap_or_else(|e| panic!("no usage: {e}"));
    let times = [usage.user_time(), usage.system_time()];
    let part = |number: i64| f64::from(i32::try_from(number).unwrap_or(0));
    times.iter().map(|time| part(time.tv_sec()) * 1e3 + part(time.tv_usec()) / 1e3).sum()
}

/// Returns the result of `work` and the CPU time that this thread used for it, in ms.
///
/// # Panics
/// When `getrusage` fails.
pub(crate) fn thread_cpu_ms<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let used = || usage_ms(UsageWho::RUSAGE_THREAD);
    let before = used();
    let done = work();
    (done, used() - before)
}

/// Bytes that a process has read so far, from files and other sources, cached or not.
///
/// # Panics
/// When the process is gone.
pub(crate) fn read_bytes(pid: i32) -> u64 {
    io_bytes(pid, "rchar: ")
}

/// Bytes that a process has written so far, to files and other targets.
///
/// # Panics
/// When the process is gone.
pub(crate) fn written_bytes(pid: i32) -> u64 {
    io_bytes(pid, "wchar: ")
}

fn io_bytes(pid: i32, what: &str) -> u64 {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{path}: {text}"))
}
