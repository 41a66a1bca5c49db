//! The planned restart (H14): everything that a running supervisor knows and no file says, handed to the next image
//! of the program in the same process. Pid, children, open descriptors and the subreaper's part stay as they are
//! over `execve`; the rest travels in a sealed memory file.
//!
//! ```text
//! Request::Upgrade ─ trial of the new program ─ no spawn in flight ─ lease tasks pause ─ clients are let go
//!    ─ relays and lease tasks turn into values ─ memory file ─ the new program proves that it can read it
//!    ─ execve ─ Handover ─ thaw
//!               └ it failed: the same values, the same thaw, in this image
//! ```
//! There is one way back to life, `Owner::thaw`, for the new image and for the old one that could not leave. Nothing is written to or read from a pipe between the freezing of its relay and the thaw; what
//! arrives meanwhile waits in the pipe.
//!
//! The description is JSON with unknown fields refused and bytes beside it, not bincode: the two programs are of
//! different versions by purpose. A newer one can give a field that it added a default; an older one refuses what
//! it does not know instead of misreading it.

pub(crate) mod check;
mod exec;
mod freeze;
pub(crate) mod image;
mod passed;
pub(crate) mod program;
mod thaw;

pub(crate) use exec::{ResumeError, go_back, number, plain, resume};
pub use freeze::Pause;
pub(crate) use freeze::{Footing, Frozen, Tried, Upgrade, outlasting};
pub(crate) use passed::Passed;
pub(crate) use thaw::{Standing, Thawing};

use crate::core::admit::Installation;
use crate::core::backoff::{Agent, Crashes};
use crate::core::ladder::{Abilities, Holding};
use crate::core::lease::Lease;
use crate::core::stop::Stop;
use crate::files::HelperLeft;
use crate::relay::RelayState;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the supervisor as a whole hands over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    /// The process: the number stays over `execve`.
    pub(crate) pid: i32,
    /// The package version that wrote it.
    pub(crate) version: String,
    /// Stays: gateways take another one for another supervisor, which does not have their leases.
    pub(crate) supervisor_id: String,
    /// When the supervisor started, in nanoseconds of the monotonic clock: all its times count from there.
    pub(crate) started_ns: u64,
    /// When it was frozen, in the same.
    pub(crate) frozen_ns: u64,
    /// What the machine can do, and that orphans of dead wrappers come to this process: the same machine and process.
    pub(crate) abilities: Abilities,
    /// How it holds its trees: decided once, and kept whatever the configuration says now.
    pub(crate) holding: Holding,
    /// The limit on open files that it was started with: soft and hard.
    pub(crate) descriptors: (Option<u64>, Option<u64>),
    /// What the operator should know, in words.
    pub(crate) warnings: Vec<String>,
    /// The lock of the state directory: a `flock` belongs to the open file and stays with it.
    pub(crate) lock: Passed,
    /// The listening socket: who connects meanwhile waits.
    pub(crate) listener: Passed,
    /// Its name, where an image of this process made it: the last one removes it.
    pub(crate) to_remove: Option<PathBuf>,
    /// The program that was left, should the next one not even begin.
    pub(crate) left: Passed,
    /// Why the next one did not begin, once that has happened.
    #[serde(default)]
    pub(crate) failed: Option<String>,
    /// What is known of each gateway.
    pub(crate) installations: Vec<Installation>,
    /// Since when each gateway is away, on the supervisor's clock.
    pub(crate) detached_at_ms: Vec<(GatewayInstanceId, u64)>,
    /// Until when agents of gateways whose database went back in time are kept, on the supervisor's clock.
    #[serde(default)]
    pub(crate) kept_until_ms: Vec<(GatewayInstanceId, u64)>,
    /// Agents that crashed lately.
    #[serde(default)]
    pub(crate) crashes: Vec<(Agent, Crashes)>,
    /// How often an end was asked for meanwhile.
    pub(crate) stops: u32,
    /// File helpers that did not end in time. Left out where there is none, for older images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) helpers: Vec<HelperLeft>,
    /// What the wall clock said when the supervisor started.
    #[serde(default)]
    pub(crate) wall_at_start_ms: Option<u64>,
    /// When leases ended that it saw end, on the supervisor's clock.
    #[serde(default)]
    pub(crate) ended_seen_ms: Option<Vec<(LeaseId, u64)>>,
}

/// What one lease hands over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntryState {
    /// The row.
    pub(crate) lease: Lease,
    /// Something of its tree survives SIGKILL.
    pub(crate) stuck: bool,
    /// The end was asked for, and waits for the terminals until then.
    pub(crate) close_at_ms: Option<(u64, String)>,
    /// When its adapter began to run, on the supervisor's clock.
    #[serde(default)]
    pub(crate) open_since_ms: u64,
    /// Its task, while it lives.
    pub(crate) task: Option<TaskState>,
    /// Its streams, while they are kept.
    pub(crate) relay: Option<RelayState>,
}

/// What the task of a living lease hands over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskState {
    /// How far its end has come.
    pub(crate) stop: Stop,
    /// The wrapper's control socket, while it is open.
    pub(crate) control: Option<Passed>,
    /// The wrapper has ended and was reaped.
    pub(crate) wrapper_gone: bool,
    /// The wrapper told that it was done before it ended.
    pub(crate) done: bool,
    /// The wrapper ended silently while nobody had asked for an end.
    pub(crate) vanished: bool,
    /// An end that it was told of and had not begun.
    pub(crate) asked: Option<String>,
    /// The same without any grace.
    pub(crate) hurried: bool,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) head: Head,
    pub(crate) entries: Vec<EntryState>,
}

impl Handover {
    /// Every descriptor in it.
    pub(crate) fn passed(&mut self) -> Vec<&mut Passed> {
        let mut all = vec![&mut self.head.lock, &mut self.head.listener, &mut self.head.left];
        for entry in &mut self.entries {
            all.extend(entry.task.as_mut().and_then(|task| task.control.as_mut()));
            all.extend(entry.relay.iter_mut().flat_map(RelayState::passed));
        }
        all
    }

    /// How many process trees live in it.
    pub(crate) fn living(&self) -> usize {
        self.entries.iter().filter(|entry| entry.task.is_some()).count()
    }
}
