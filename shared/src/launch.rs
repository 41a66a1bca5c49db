//! Contract between supervisor and wrapper: environment variables, `launch.json`, and the messages on the
//! control socket.
//!
//! The wrapper is started with its standard input connected to a `SOCK_SEQPACKET` socket, one message per
//! packet. The supervisor's first message carries the adapter's three pipes as file descriptors, so no other
//! descriptor has to be inherited through `exec`. Source: design §4 "Spawn" and §5, reference
//! `supervision.md` §6.

use crate::ids::{GatewayInstanceId, LeaseId};
use serde::{Deserialize, Serialize};

/// Environment variable of every wrapped process: id of its lease.
pub const ENV_LEASE_ID: &str = "OPENCLAW_ACPX_LEASE_ID";
/// Environment variable of every wrapped process: id of the gateway that requested it.
pub const ENV_GATEWAY_INSTANCE_ID: &str = "OPENCLAW_GATEWAY_INSTANCE_ID";
/// File name of the wrapper inside its launch directory. `/proc/PID/exe` of a wrapper therefore names its lease.
pub const WRAPPER_FILE: &str = "acp-wrapper";
/// File name of the launch description, in the directory of the wrapper, mode 0600.
pub const LAUNCH_FILE: &str = "launch.json";
/// Version of [`Launch`] and of the control messages.
pub const LAUNCH_VERSION: u16 = 1;
/// Maximum size of a control message, in bytes.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Setup stage reported when a directory of [`Landlock::write`] could not be opened.
pub const STAGE_OPEN_ROOT: &str = "confine writes: open a root";
/// Number of descriptors sent with [`ToWrapper::Launch`]: the adapter's stdin, stdout and stderr, in this
/// order.
pub const LAUNCH_FDS: usize = 3;

/// Content of `launch.json`: all parameters of the wrapper, so that none of them is visible in an argument
/// vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// [`LAUNCH_VERSION`] of the writer; another version is refused.
    pub version: u16,
    /// Lease of this process tree.
    pub lease_id: LeaseId,
    /// Gateway that requested it.
    pub gateway_instance_id: GatewayInstanceId,
    /// Program and arguments of the adapter. A program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<String>,
    /// Complete environment of the adapter. No variable is inherited.
    pub env: Vec<(String, String)>,
    /// Working directory of the adapter, absolute.
    pub cwd: String,
    /// Time between SIGTERM and SIGKILL when the wrapper cleans up, in milliseconds.
    pub term_grace_ms: u64,
    /// Time after the first SIGKILL during which the wrapper keeps killing before it gives up on survivors,
    /// in milliseconds.
    pub sweep_ms: u64,
    /// User and restrictions of the adapter.
    pub confine: Confine,
}

/// User and restrictions of an adapter and all its descendants. The default changes nothing.
///
/// The wrapper itself keeps the supervisor's user, so that it is permitted to kill the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confine {
    /// Other user to run as; requires a wrapper that runs as root.
    pub run_as: Option<RunAs>,
    /// Set `PR_SET_NO_NEW_PRIVS`: programs with a set-user-id bit or file capabilities give the tree no
    /// privileges.
    pub no_new_privs: bool,
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// Resource limits, see setrlimit(2).
    pub limits: Vec<ResourceLimit>,
    /// Adjustment of the out-of-memory killer's score, -1000 to 1000. A higher value is killed sooner.
    pub oom_score_adj: Option<i32>,
    /// Paths that the tree may write to.
    pub landlock: Option<Landlock>,
    /// Refuse a working directory whose path contains symbolic links.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cwd_without_links: bool,
}

/// Numeric identity of a user.
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

/// Limit of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceLimit {
    /// The limited resource.
    pub resource: Resource,
    /// Soft limit, in the unit of the resource.
    pub soft: u64,
    /// Hard limit: the maximum to which the tree may raise its soft limit.
    pub hard: u64,
}

/// Resources that can be limited, see setrlimit(2).
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
    /// Size of a written file, in bytes.
    FileSize,
    /// Open files of one process.
    OpenFiles,
    /// Processes and threads of the user.
    Processes,
}

/// Landlock ruleset, see landlock(7). If the kernel does not support it, nothing is started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    /// Absolute paths of directories and files that the tree may write to. Reading and executing are not
    /// restricted.
    pub write: Vec<String>,
    /// Writable directories that the tree's user creates if they do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<PrivateDirectory>,
    /// Restrict signals and abstract Unix sockets to the tree itself, if the kernel supports that.
    pub scope: bool,
}

/// Directory of one tree below the home directory of its user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateDirectory {
    /// Absolute path of the home directory. It exists, and may contain links.
    pub home: String,
    /// Path below the home directory. A symbolic link in this path is refused.
    pub below: String,
}

/// Messages from the supervisor to the wrapper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWrapper {
    /// Fork the adapter, blocked before exec. Its pipes are attached ([`LAUNCH_FDS`]).
    Launch,
    /// Let the adapter exec: both pids are durable in the lease.
    Go,
}

/// Messages from the wrapper to the supervisor.
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
        /// Failed step: `chdir`, `exec`, or one of the confinement: `oom_score_adj`, `setrlimit`,
        /// `setgroups`, `setresgid`, `setresuid`, `capset`, `no_new_privs`, `landlock`.
        stage: String,
    },
    /// The wrapper failed before the adapter was forked.
    SetupFailed {
        /// The `errno` of the failed call.
        errno: i32,
        /// Failed step.
        stage: String,
    },
    /// The adapter ended; the wrapper now cleans up the rest of its tree.
    AdapterExited {
        /// Exit status of the adapter.
        status: ExitStatus,
    },
    /// Last message: the tree is gone, or the sweep deadline has passed.
    Done {
        /// Exit status of the adapter.
        status: ExitStatus,
        /// Pids that were still alive at the sweep deadline (uninterruptible, or of another user).
        survivors: Vec<i32>,
    },
}

/// Exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// The process exited with this code.
    Exited(i32),
    /// The process was killed by this signal.
    Signaled(i32),
    /// The exit status could not be read.
    Unknown,
}

impl ExitStatus {
    /// Returns the exit code as a shell shows it: the code, or 128 + signal; `None` if unknown.
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
