//! Inputs of the owner's loop: the messages that clients, lease tasks and signals send to it.

use crate::core::lease::Lease;
use crate::core::retention::LostFinding;
use crate::relay::Relay;
use crate::relay::connection::{ConnectionHandle, ConnectionId, Responder};
use acp_shared::conn::Peer;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{Hello, Marks, Notice, Refusal, Request, Rollback, ToClient, Welcome};
use tokio::sync::oneshot;

/// Inputs of the owner's loop.
#[derive(Debug)]
pub enum Event {
    /// A client sent its Hello.
    Hello {
        /// The Hello.
        hello: Hello,
        /// Negotiated protocol version.
        version: u16,
        /// Durable progress of a gateway; `None` for an admin and for a gateway of version 1.
        marks: Option<Marks>,
        /// Peer identity.
        peer: Peer,
        /// Connection of the client.
        link: ConnectionHandle,
        /// Channel for the answer.
        answer: oneshot::Sender<Result<Welcome, Denial>>,
    },
    /// A client sent a request.
    Request {
        /// The request.
        body: Request,
        /// The gateway's epoch, for a request that changes something; `None` for an admin and for a gateway
        /// of version 1.
        epoch: Option<u64>,
        /// Responder for the answer.
        to: Responder,
    },
    /// A connection ended.
    Unlinked(ConnectionId),
    /// A spawn is complete, successful or not.
    Spawned {
        /// Current lease.
        lease: Lease,
        /// Its relay, or the refusal for the gateway.
        result: Result<Relay, Refusal>,
        /// True if the spawn failed because of the agent.
        crashed: bool,
    },
    /// A lease changed.
    Changed {
        /// Current lease.
        lease: Lease,
        /// True if a process of the tree survived SIGKILL: shutdown does not wait for its end.
        stuck: bool,
    },
    /// Lost leases were checked again.
    LostFindings(Vec<(LeaseId, LostFinding)>),
    /// A notice for a gateway, on any connection.
    Notice {
        /// Gateway to notify.
        gateway: GatewayInstanceId,
        /// The notice.
        notice: Notice,
    },
    /// The trial of a new program has ended (H14).
    TrialFinished(TrialResult),
    /// Request to end the supervisor; a second one skips the grace periods.
    Stop,
}

/// Reason why a client is not admitted.
#[derive(Debug)]
pub enum Denial {
    /// Refusal that every protocol version supports.
    Refused(Refusal),
    /// The gateway's database is older than the record of it.
    RolledBack(Box<Rollback>),
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Denial {
    /// Returns code and text of the denial.
    pub(crate) const fn refusal(&self) -> &Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::RolledBack(rollback) => &rollback.refusal,
        }
    }

    /// Returns the last message of the connection.
    pub(crate) fn message(self) -> ToClient {
        match self {
            Self::Refused(refusal) => ToClient::Refused(refusal),
            Self::RolledBack(rollback) => ToClient::RolledBack(*rollback),
        }
    }
}

/// Result of the trial: the version of the program, or the reason why it cannot take over.
#[derive(Debug)]
pub struct TrialResult(pub(crate) Result<String, String>);
