//! The fault cases that the reference lists: 72 of supervision (its §5), A1–A21 of the process acceptance list.

/// Where a case comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum List {
    /// The fault cases of process supervision: `cNN` in the name of a test.
    Supervision,
    /// The acceptance cases of process and supervisor: `aNN` in the name of a test.
    Acceptance,
    /// Sessions and runs of the control plane: `bNN`.
    Sessions,
    /// Its delivery: `cNN`, in the gateway and up to 14 in `tests/`.
    Delivery,
    /// Its bindings: `dNN`.
    Bindings,
    /// Its commands: `eNN`.
    Commands,
}

impl List {
    /// The letter that names it in tests.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Supervision | Self::Delivery => 'c',
            Self::Acceptance => 'a',
            Self::Sessions => 'b',
            Self::Bindings => 'd',
            Self::Commands => 'e',
        }
    }

    /// Whether it is about processes rather than about the control plane.
    pub(crate) const fn of_processes(self) -> bool {
        matches!(self, Self::Supervision | Self::Acceptance)
    }
}

/// How a case is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// In the simulator: `_s_` after the numbers.
    Simulated,
    /// With real processes: `_r_` after the numbers.
    Real,
    /// In the gateway's own suite: nothing after the numbers.
    Suite,
}

impl Kind {
    /// As the reference writes it.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Simulated => 'S',
            Self::Real => 'R',
            Self::Suite => 'U',
        }
    }
}

/// What the reference asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A test of each of these kinds.
    Each(&'static [Kind]),
    /// A test, of whichever kind.
    Any,
}

/// One case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// The list it stands in.
    pub(crate) list: List,
    /// Its number there.
    pub(crate) number: u32,
    /// What it is about, in short.
    pub(crate) title: &'static str,
    /// What kinds of test it must have.
    pub(crate) asked: Asked,
}

const S: Asked = Asked::Each(&[Kind::Simulated]);
const R: Asked = Asked::Each(&[Kind::Real]);
const SR: Asked = Asked::Each(&[Kind::Simulated, Kind::Real]);

/// Number n is entry n - 1.
const SUPERVISION: [(&str, Asked); 72] = [
    ("pid reused by a stranger, other start time", SR),
    ("pid reused within the same tick, other inode", SR),
    ("the same on a kernel without inodes", S),
    ("pid reused by another gateway's wrapper", SR),
    ("pid reused by a newer lease of the own gateway", SR),
    ("stored command quoted, living argv not", S),
    ("process title rewritten", R),
    ("wrapper's file replaced: exe \"(deleted)\"", R),
    ("comm with \") S 1 (\" and a newline", SR),
    ("lease of an earlier boot", S),
    ("same boot, other pid namespace", SR),
    ("inode of a pid namespace reused", S),
    ("other time namespace", SR),
    ("pids 0, 1, negative, own, the supervisor's", S),
    ("the lease's pid is a thread of a stranger", SR),
    ("wall clock jumps", S),
    ("state directory copied while the first lives", SR),
    ("two gateways of one user and one wrapper", R),
    ("process list unavailable", S),
    ("hidepid=2", SR),
    ("environment unreadable", SR),
    ("environment cleared by a grandchild", R),
    ("marker forged", S),
    ("signal not permitted: foreign user", R),
    ("pidfd_* refused", SR),
    ("adapter ends, grandchild in its group", R),
    ("adapter reaped, group not empty", R),
    ("group empty, number recycled into a stranger's", R),
    ("grandchild: setsid and double fork", R),
    ("grandchild in a group for each tool call", R),
    ("escapee after the wrapper's SIGKILL", R),
    ("escapee in a nested pid namespace", R),
    ("children forked by threads", R),
    ("fork bomb, in the group and with setsid", R),
    ("zombie adapter, group of zombies", R),
    ("pid 1 that does not reap", R),
    ("start-up orphan: wrapper, adapter, grandchild", SR),
    ("adapter ignores SIGTERM", R),
    ("adapter stopped", R),
    ("wrapper stopped when the supervisor dies", R),
    ("supervisor stopped", R),
    ("frozen cgroup, uninterruptible sleep", R),
    ("adapter under a stuck tracer", R),
    ("close twice, close against cancel", SR),
    ("signals 1..31, dispositions and mask", R),
    ("many children end at once", R),
    ("exit codes", R),
    ("SIGTERM to the wrapper before exec", R),
    ("supervisor killed", R),
    ("supervisor dies before the wrapper's first instruction", R),
    ("forking thread ends", R),
    ("control socket leaked into a sibling", R),
    ("parent's pid reused after its death", R),
    ("subreaper or pid 1 as ancestor", R),
    ("wrapper killed", R),
    ("wrapper and supervisor killed", R),
    ("out of memory", R),
    ("torn, damaged, empty store", SR),
    ("disk full or read-only at reserve and at bind", SR),
    ("store deleted or replaced while running", S),
    ("crash during compaction", SR),
    ("two supervisors on one store", R),
    ("stale lease without a process; retention", S),
    ("unknown newer schema", S),
    ("lease found closing at start", SR),
    ("duplicate ids, two leases with one pid", S),
    ("exec fails", R),
    ("fork or descriptors fail", SR),
    ("hello from a wrong pid", SR),
    ("adapter ends before hello, before go, after exec", R),
    ("SIGKILL at each step, supervisor and wrapper", R),
    ("planned restart", SR),
];

/// Number n is entry n - 1. The reference does not say of which kind; each needs a test.
const ACCEPTANCE: [&str; 21] = [
    "pid reused: stranger, other gateway, other lease",
    "identity changes between SIGTERM and SIGKILL",
    "stored command quoted, living argv not",
    "process table unreadable",
    "adapter ends, grandchild remains",
    "parent killed: bounded end, any ancestor",
    "escaped descendants found",
    "start-up orphan; lease without pid: one, none, two matches",
    "foreign gateways untouched; copied state directory",
    "tree that ignores SIGTERM; survivors named",
    "cancel keeps the pid, close removes all, both idempotent",
    "supervisor crash in the middle of spawn and reap",
    "gateway crash: leases intact, policy applies",
    "concurrent lease writes, crash between them",
    "wrapper killed: its group is reaped",
    "agent never answers initialize",
    "child ends before the terminal event",
    "sweep and retention",
    "never self, supervisor, pid 1, ancestors",
    "zombie counts as dead",
    "legacy record without lease id",
];

/// Every case of processes, in order.
pub(crate) fn cases() -> Vec<Case> {
    let supervision = (1..).zip(SUPERVISION).map(|(number, (title, asked))| Case {
        list: List::Supervision,
        number,
        title,
        asked,
    });
    let acceptance = (1..).zip(ACCEPTANCE).map(|(number, title)| Case {
        list: List::Acceptance,
        number,
        title,
        asked: Asked::Any,
    });
    supervision.chain(acceptance).collect()
}
