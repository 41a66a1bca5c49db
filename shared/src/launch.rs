//! The contract between supervisor and wrapper: names in the environment, `launch.json`, and the few messages
//! on the control socket.
//!
//! The wrapper is started with its standard input connected to a `SOCK_SEQPACKET` socket, one message a packet.
//! The supervisor's first message carries the adapter's three pipes as file descriptors, so no descriptor ever
//! has to survive an `exec` by luck. Source: design §4 "Spawn" and §5, reference `supervision.md` §6.

use crate::ids::{GatewayInstanceId, LeaseId};
use serde::{Deserialize, Serialize};

/// Environment variable of every wrapped process: the lease it belongs to.
pub const ENV_LEASE_ID: &str = "OPENCLAW_ACPX_LEASE_ID";
/// Environment variable of every wrapped process: the gateway that asked for it.
pub const ENV_GATEWAY_INSTANCE_ID: &str = "OPENCLAW_GATEWAY_INSTANCE_ID";
/// File name of the wrapper inside its launch directory. `/proc/PID/exe` of a wrapper therefore names its lease.
pub const WRAPPER_FILE: &str = "acp-wrapper";
/// File name of the launch description, beside the wrapper, mode 0600.
pub const LAUNCH_FILE: &str = "launch.json";
/// Version of [`Launch`] and of the control messages.
pub const LAUNCH_VERSION: u16 = 1;
/// The largest control message, in bytes.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Stage of a failed setup in which a directory of [`Landlock::write`] could not be opened.
pub const STAGE_OPEN_ROOT: &str = "confine writes: open a root";
/// How many descriptors come with [`ToWrapper::Launch`]: the adapter's stdin, stdout and stderr, in this order.
pub const LAUNCH_FDS: usize = 3;

/// What `launch.json` says: everything the wrapper needs, so that nothing of it stands in an argument vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// [`LAUNCH_VERSION`] of the writer; another version is refused.
    pub version: u16,
    /// The lease that this process tree belongs to.
    pub lease_id: LeaseId,
    /// The gateway that asked for it.
    pub gateway_instance_id: GatewayInstanceId,
    /// Program and arguments of the adapter; the program is looked up in `PATH` of `env` when it has no slash.
    pub argv: Vec<String>,
    /// The whole environment of the adapter. Nothing is inherited.
    pub env: Vec<(String, String)>,
    /// Working directory of the adapter, absolute.
    pub cwd: String,
    /// Milliseconds between SIGTERM and SIGKILL when the wrapper cleans up.
    pub term_grace_ms: u64,
    /// Milliseconds after SIGKILL for which the wrapper goes on sweeping before it gives up on survivors.
    pub sweep_ms: u64,
    /// As whom and within which bounds the adapter runs.
    pub confine: Confine,
}

/// As whom and within which bounds an adapter and everything it starts run. The default changes nothing.
///
/// The wrapper itself keeps the supervisor's user, and with it the power to end the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confine {
    /// Run as another user; only a wrapper that runs as root can.
    pub run_as: Option<RunAs>,
    /// Programs with a set-user-id bit or file capabilities give the tree no rights (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privs: bool,
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// Resource limits, see setrlimit(2).
    pub limits: Vec<ResourceLimit>,
    /// How much sooner than others the tree is ended when memory runs out, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Where the tree may write.
    pub landlock: Option<Landlock>,
    /// The working directory is entered only by a path without links.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cwd_without_links: bool,
}

/// A user, by numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunAs {
    /// User id: real, effective and saved.
    pub uid: u32,
    /// Group id: real, effective and saved.
    pub gid: u32,
    /// All supplementary groups; nothing is inherited.
    pub groups: Vec<u32>,
}

/// One resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimit {
    /// What is limited.
    pub resource: Resource,
    /// The limit in force, in the resource's own unit.
    pub soft: u64,
    /// How far the tree itself may raise it.
    pub hard: u64,
}

/// What can be limited, see setrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Address space of one process, in bytes.
    AddressSpace,
    /// Size of a core dump, in bytes.
    Core,
    /// CPU time of one process, in seconds.
    Cpu,
    /// Heap and data of one process, in bytes.
    Data,
    /// Size of a file that is written, in bytes.
    FileSize,
    /// Open files of one process.
    OpenFiles,
    /// Processes and threads of the user.
    Processes,
}

/// A Landlock ruleset, see landlock(7). Where the kernel has none, nothing is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    /// Absolute directories and files below which the tree may write; it may read and run everywhere.
    pub write: Vec<String>,
    /// Signals and abstract Unix sockets reach only the tree itself, where the kernel can do that.
    pub scope: bool,
}

/// From the supervisor to the wrapper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWrapper {
    /// The adapter's pipes are attached ([`LAUNCH_FDS`]): fork the adapter, blocked before exec.
    Launch,
    /// The lease is durable with both pids in it: let the adapter exec.
    Go,
}

/// From the wrapper to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromWrapper {
    /// The adapter is forked and waits for [`ToWrapper::Go`].
    Hello {
        /// Pid of the wrapper, leader of its own session.
        wrapper_pid: i32,
        /// Pid of the adapter, leader of its own process group.
        adapter_pid: i32,
    },
    /// The adapter has called exec successfully.
    Running,
    /// The adapter could not exec; the wrapper exits with 127 (not found) or 126.
    ExecFailed {
        /// The `errno` of the failed call.
        errno: i32,
        /// Which step failed: `chdir`, `exec`, or one of the confinement: `oom_score_adj`, `setrlimit`, `setgroups`,
        /// `setresgid`, `setresuid`, `capset`, `no_new_privs`, `landlock`.
        stage: String,
    },
    /// The wrapper could not get as far as a blocked adapter.
    SetupFailed {
        /// The `errno` of the failed call.
        errno: i32,
        /// What was being done.
        stage: String,
    },
    /// The adapter ended; the rest of its tree is being cleaned up now.
    AdapterExited {
        /// How it ended.
        status: ExitStatus,
    },
    /// The tree is gone, or the sweep deadline passed: the wrapper's last word.
    Done {
        /// How the adapter ended.
        status: ExitStatus,
        /// Pids that were still alive at the sweep deadline (uninterruptible, or of another user).
        survivors: Vec<i32>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It called exit with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// Nobody saw how it ended.
    Unknown,
}

impl ExitStatus {
    /// The code a shell would show: the exit code, or 128 + signal; `None` when nobody saw it.
    #[must_use]
    pub const fn shell_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(signal) => Some(128 + signal),
            Self::Unknown => None,
        }
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signaled(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}
