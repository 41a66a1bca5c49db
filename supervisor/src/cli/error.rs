//! Errors of commands: a message with cause and next step, a code for programs, and an exit code.

use super::text;
use crate::app::AppError;
use crate::app::environment::StartupError;
use crate::server::remote::RemoteError;
use crate::store::StoreError;
use acp_shared::conn::ConnError;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::RefusalCode;
use acp_shared::report::with_causes;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Exit code for a failure or a negative verdict.
pub(super) const FAILED: u8 = 1;
/// Exit code for an invalid command line or configuration.
pub(super) const USAGE: u8 = 2;
/// Exit code for a supervisor that cannot be reached or does not answer.
const UNREACHABLE: u8 = 3;
/// Exit code of `serve` for a damaged store: restarting does not help until an operator has repaired it.
const DAMAGED: u8 = 3;

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error("{}", unreachable(.socket, .source))]
    Connect {
        socket: PathBuf,
        #[source]
        source: ConnError,
    },
    #[error(transparent)]
    Call(#[from] ConnError),
    #[error("{0}")]
    Usage(String),
    #[error("unknown lease {0}; list the known ones with `acp-supervisor leases list`")]
    NoLease(String),
    #[error("lease {0} cannot be closed: {1}")]
    NotClosed(LeaseId, String),
    #[error("unexpected reply of the supervisor; it may have another version, see `acp-supervisor doctor`")]
    OutOfTurn,
    #[error("this supervisor has no metrics: its program is older; `acp-supervisor upgrade` replaces it")]
    NoFigures,
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
    #[error("cannot write {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot check the records in {path}")]
    Records {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The result was already printed; only the exit code remains.
    #[error("ended with {0}")]
    Ended(u8),
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("the upgrade failed, and the earlier program keeps running: {0}")]
    FellBack(String),
    #[error("cannot resume from the handover: {0}")]
    Handover(String),
    #[error("the new program does not answer; see the log of the supervisor")]
    NoAnswer,
    #[error(transparent)]
    Service(#[from] acp_shared::service::ServiceError),
    #[error("{0} must not run as a service of the system: {1}")]
    ServiceProgram(PathBuf, String),
    #[error("this host was not enrolled: {0}")]
    Enrol(String),
    #[error("there is no home directory for the state directory; name one with --state-dir")]
    NoHome,
}

/// Describes why the supervisor cannot be reached, and the next step.
fn unreachable(socket: &Path, error: &ConnError) -> String {
    let at = socket.display();
    match error {
        ConnError::Io(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "this user may not use the socket {at}; run this as root or as the supervisor's user, or join one of its \
             admin_gids"
        ),
        ConnError::Io(_) => format!(
            "no supervisor answers at {at}; start one with `acp-supervisor serve`, or name another with --socket or \
             --state-dir. `acp-gateway up --state-dir DIR` starts one with --state-dir DIR/supervisor"
        ),
        ConnError::Refused(_) => format!("the supervisor at {at} refused the connection"),
        ConnError::Timeout(_) => format!("the supervisor at {at} does not answer; see its log"),
        ConnError::Wire(_) | ConnError::Closed | ConnError::OutOfTurn | ConnError::RolledBack(_) => format!(
            "the program that listens at {at} does not speak this version of the protocol; see \
             `acp-supervisor doctor`"
        ),
    }
}

impl CliError {
    /// Creates an error for an invalid command line that the parser accepts.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Returns the error code for programs.
    pub(super) fn code(&self) -> &'static str {
        self.codes().0
    }

    /// Returns the exit code, as documented in `--help`.
    pub(super) fn exit(&self) -> u8 {
        self.codes().1
    }

    /// Returns the error code and the exit code.
    fn codes(&self) -> (&'static str, u8) {
        match self {
            Self::Connect { source: ConnError::Refused(refusal), .. }
            | Self::Call(ConnError::Refused(refusal)) => match refusal.code {
                RefusalCode::ShuttingDown => (refusal.code.as_str(), UNREACHABLE),
                code => (code.as_str(), FAILED),
            },
            Self::Connect { .. } | Self::Call(ConnError::Io(_) | ConnError::Closed) => {
                ("SUPERVISOR_UNAVAILABLE", UNREACHABLE)
            }
            Self::Call(ConnError::Timeout(_)) => ("TIMEOUT", UNREACHABLE),
            Self::Usage(_) | Self::NoHome => ("USAGE", USAGE),
            Self::NoLease(_) => ("LEASE_UNKNOWN", FAILED),
            Self::NotClosed(..) | Self::NoAnswer => ("TIMEOUT", FAILED),
            Self::FellBack(_) | Self::Handover(_) => ("UPGRADE_FAILED", FAILED),
            Self::Enrol(_) => ("ENROL_FAILED", FAILED),
            Self::Ended(code) => ("ENDED", *code),
            Self::Config(_)
            | Self::App(
                AppError::Config(_) | AppError::Remote(RemoteError::Config(_) | RemoteError::Tls(_)),
            ) => ("CONFIG_INVALID", USAGE),
            Self::App(AppError::Locked { .. }) => ("STATE_DIR_LOCKED", FAILED),
            Self::App(AppError::Startup(StartupError::Containment(_))) => ("RUNG_UNAVAILABLE", USAGE),
            Self::App(AppError::Store(StoreError::Damaged { .. })) => ("STORE_DAMAGED", DAMAGED),
            Self::Call(ConnError::Wire(_) | ConnError::OutOfTurn | ConnError::RolledBack(_))
            | Self::OutOfTurn
            | Self::NoFigures
            | Self::Output(_)
            | Self::File { .. }
            | Self::Records { .. }
            | Self::App(_)
            | Self::Service(_)
            | Self::ServiceProgram(..)
            | Self::Runtime(_) => ("RUNTIME", FAILED),
        }
    }

    /// Returns the error and its causes as one text, with unsafe terminal characters escaped.
    pub(super) fn message(&self) -> String {
        text::plain_lines(&with_causes(self))
    }

    /// True if the reader closed the output pipe because no more output is needed.
    pub(super) fn is_unread(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == ErrorKind::BrokenPipe)
    }
}
