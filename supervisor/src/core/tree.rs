//! Process trees in a snapshot. A snapshot is only a hint: each process found here is verified through its
//! own handle before any action on it.

use crate::core::lease::ProcessRecord;
use std::collections::{HashMap, HashSet};

/// Process in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proc {
    /// Process id.
    pub pid: i32,
    /// Parent process id.
    pub ppid: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// True if the process is dead and not reaped yet.
    pub zombie: bool,
    /// Resident memory, in pages.
    pub rss_pages: u64,
    /// Short name of the program.
    pub name: String,
}

/// Parses `/proc/PID/stat`. The program's name may contain any bytes, so the fields are read from the last
/// `)` on.
#[must_use]
pub fn parse_stat(stat: &[u8]) -> Option<Proc> {
    let open = stat.iter().position(|b| *b == b'(')?;
    let close = stat.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let fields: Vec<&str> =
        std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let state = *fields.first()?;
    Some(Proc {
        pid,
        ppid: number(1)?,
        pgid: number(2)?,
        sid: number(3)?,
        start_ticks: fields.get(19)?.parse().ok()?,
        zombie: matches!(state, "Z" | "X" | "x"),
        rss_pages: fields.get(21).and_then(|text| text.parse().ok()).unwrap_or(0),
        name,
    })
}

/// Returns every descendant of `roots` with its parent, parents before children and without the roots. Cycles
/// in torn snapshots are harmless: each pid is visited once.
#[must_use]
pub fn descendants(snapshot: &[Proc], roots: &[i32]) -> Vec<(i32, i32)> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in snapshot {
        children.entry(process.ppid).or_default().push(process.pid);
    }
    let mut seen: HashSet<i32> = roots.iter().copied().collect();
    let mut found = Vec::new();
    let mut queue: Vec<i32> = roots.to_vec();
    let mut next = 0;
    while let Some(parent) = queue.get(next).copied() {
        next += 1;
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(*child) {
                found.push((*child, parent));
                queue.push(*child);
            }
        }
    }
    found
}

/// Maximum number of ancestors that are followed.
const GENERATIONS_MAX: usize = 4096;

/// Checks whether a process runs below one of `roots`. `parent` returns the parent of a pid. Returns `None`
/// if an ancestor cannot be read: the process might belong to any tree.
#[must_use]
pub fn is_below(pid: i32, roots: &HashSet<i32>, parent: impl Fn(i32) -> Option<i32>) -> Option<bool> {
    let mut at = pid;
    for _ in 0..GENERATIONS_MAX {
        if roots.contains(&at) {
            return Some(true);
        }
        if at <= 1 {
            return Some(false);
        }
        at = parent(at)?;
    }
    None
}

/// Resource usage of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeUsage {
    /// Number of processes, without zombies.
    pub processes: u64,
    /// Sum of their resident memory, in pages.
    pub rss_pages: u64,
}

/// Returns the resource usage of each tree in one snapshot. A tree is given by its roots. A root counts only
/// if its start time matches, so that reused pids are ignored. For reports only; no decision depends on the
/// result.
#[must_use]
pub fn measure_trees(snapshot: &[Proc], trees: &[Vec<ProcessRecord>]) -> Vec<TreeUsage> {
    let by_pid: HashMap<i32, &Proc> = snapshot.iter().map(|p| (p.pid, p)).collect();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in snapshot {
        children.entry(process.ppid).or_default().push(process.pid);
    }
    let weigh_one = |roots: &Vec<ProcessRecord>| {
        let is_it =
            |root: &&ProcessRecord| by_pid.get(&root.pid).is_some_and(|p| p.start_ticks == root.start_ticks);
        let mut queue: Vec<i32> = roots.iter().filter(is_it).map(|root| root.pid).collect();
        let mut seen: HashSet<i32> = HashSet::new();
        let mut weight = TreeUsage::default();
        while let Some(pid) = queue.pop() {
            if !seen.insert(pid) {
                continue;
            }
            if let Some(process) = by_pid.get(&pid).filter(|p| !p.zombie) {
                weight.processes += 1;
                weight.rss_pages = weight.rss_pages.saturating_add(process.rss_pages);
            }
            queue.extend(children.get(&pid).into_iter().flatten());
        }
        weight
    };
    trees.iter().map(weigh_one).collect()
}

/// Returns the pids that may carry a lease's marker: running, and not older than the lease's root.
#[must_use]
pub fn marker_candidates(snapshot: &[Proc], not_before_ticks: u64) -> Vec<i32> {
    // Kernel threads exist only in the first pid namespace; elsewhere pid 2 is an ordinary process.
    let kthreadd = snapshot.iter().find(|p| p.pid == 2 && p.ppid == 0 && p.sid == 0 && p.name == "kthreadd");
    let of_kernel = |p: &Proc| kthreadd.is_some_and(|k| p.pid == k.pid || p.ppid == k.pid);
    let fits = |p: &&Proc| !p.zombie && p.start_ticks >= not_before_ticks && !of_kernel(p);
    snapshot.iter().filter(fits).map(|p| p.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(pid: i32, ppid: i32) -> Proc {
        Proc {
            pid,
            ppid,
            pgid: pid,
            sid: pid,
            start_ticks: u64::from(pid.unsigned_abs()),
            zombie: false,
            rss_pages: 0,
            name: String::new(),
        }
    }

    #[test]
    fn parents_come_before_children_and_cycles_end() {
        let snapshot = [proc(5, 4), proc(3, 1), proc(4, 3), proc(6, 3), proc(9, 8), proc(8, 9), proc(7, 1)];
        assert_eq!(descendants(&snapshot, &[3]), [(4, 3), (6, 3), (5, 4)]);
        assert_eq!(descendants(&snapshot, &[9]), [(8, 9)]);
        assert_eq!(descendants(&snapshot, &[77]), []);
        assert_eq!(descendants(&snapshot, &[3, 4]), [(6, 3), (5, 4)]);
    }

    #[test]
    fn unreadable_parent_is_not_outside_tree() {
        // 10 is a root with 11 and 12 below it, 20 is outside, the parent of 30 is hidden, and 40 is its own ancestor.
        let parent = |pid| match pid {
            12 => Some(11),
            11 => Some(10),
            10 | 20 => Some(1),
            30 => Some(31),
            40 => Some(41),
            41 => Some(40),
            _ => None,
        };
        let roots = HashSet::from([10]);
        for (pid, want) in [
            (12, Some(true)),
            (10, Some(true)),
            (20, Some(false)),
            (1, Some(false)),
            (0, Some(false)),
            (30, None),
            (31, None),
            (40, None),
        ] {
            assert_eq!(is_below(pid, &roots, parent), want, "{pid}");
        }
    }

    #[test]
    fn tree_memory_is_summed_from_one_snapshot() {
        let heavy = |pid, ppid, rss_pages| Proc { rss_pages, ..proc(pid, ppid) };
        let snapshot = [
            heavy(3, 1, 10),
            heavy(4, 3, 20),
            heavy(5, 4, 40),
            Proc { zombie: true, ..heavy(6, 4, 80) },
            heavy(7, 6, 160),
            heavy(20, 1, 320),
        ];
        let root = |pid, start_ticks| ProcessRecord { pid, start_ticks, inode: None };
        let trees = [
            // The adapter is below its wrapper and counts once.
            vec![root(3, 3), root(4, 4)],
            // The wrapper has ended.
            vec![root(2, 2), root(4, 4)],
            // The pid is reused.
            vec![root(20, 19)],
            vec![],
        ];
        let used = |processes, rss_pages| TreeUsage { processes, rss_pages };
        assert_eq!(measure_trees(&snapshot, &trees), [used(4, 230), used(3, 220), used(0, 0), used(0, 0)]);
    }

    #[test]
    fn older_and_dead_processes_carry_no_marker() {
        let kthreadd = Proc { name: "kthreadd".into(), start_ticks: 20, sid: 0, ..proc(2, 0) };
        let snapshot =
            [proc(5, 4), proc(30, 1), Proc { zombie: true, ..proc(31, 1) }, proc(32, 2), kthreadd.clone()];
        assert_eq!(marker_candidates(&snapshot, 10), [30]);
        // In a container pid 2 may be an ordinary process, even a subreaper.
        let snapshot = [Proc { ppid: 1, sid: 2, ..kthreadd }, proc(32, 2)];
        assert_eq!(marker_candidates(&snapshot, 10), [2, 32]);
    }

    #[test]
    fn kthreadd_is_recognised_by_all_facts() {
        let kthreadd = Proc { name: "kthreadd".into(), sid: 0, ..proc(2, 0) };
        // A process that lacks one fact of kthreadd is an ordinary one.
        for (name, process, children) in [
            ("kthreadd", kthreadd.clone(), 2),
            ("another number", Proc { pid: 3, ..kthreadd.clone() }, 3),
            ("a parent", Proc { ppid: 1, ..kthreadd.clone() }, 2),
            ("a session", Proc { sid: 2, ..kthreadd.clone() }, 2),
            ("another name", Proc { name: "sh".into(), ..kthreadd.clone() }, 2),
            ("a session and another name", Proc { name: "sh".into(), sid: 2, ..kthreadd.clone() }, 2),
            ("pid only", Proc { name: "sh".into(), ..proc(2, 1) }, 2),
            ("name only", Proc { name: "kthreadd".into(), ..proc(9, 1) }, 9),
            ("no session only", Proc { sid: 0, ..proc(9, 1) }, 9),
            ("no parent only", proc(9, 0), 9),
        ] {
            let snapshot = [process.clone(), proc(32, children)];
            let want = if process == kthreadd { vec![] } else { vec![process.pid, 32] };
            assert_eq!(marker_candidates(&snapshot, 0), want, "{name}");
        }
    }

    #[test]
    fn process_name_cannot_forge_stat_fields() {
        let tail = "7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 555 1000 42 18446744073709551615";
        let want = |name: &str, zombie| {
            Some(Proc {
                pid: 12,
                ppid: 7,
                pgid: 8,
                sid: 9,
                start_ticks: 555,
                zombie,
                rss_pages: 42,
                name: name.into(),
            })
        };
        for (name, state, zombie) in
            [("sh", 'S', false), (") S 1 (", 'R', false), ("a\nb) Z 1 1", 'T', false), ("x", 'Z', true)]
        {
            let stat = format!("12 ({name}) {state} {tail}\n");
            assert_eq!(parse_stat(stat.as_bytes()), want(name, zombie), "{stat:?}");
        }
        for bad in ["", "12 (sh", "12 sh) S 1", "12 (sh) S 7 8 9", "x (sh) S 1 2 3"] {
            assert_eq!(parse_stat(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
