//! Why a binding was not made, changed or found.

use crate::channel::NoAdapter;
use crate::core::binding::Capabilities;
use crate::error::Failure;
use crate::store::StoreError;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BindingError {
    /// Nothing serves the conversation's channel and account.
    #[error(transparent)]
    NoAdapter(#[from] NoAdapter),
    /// The channel cannot do that in this conversation.
    #[error("the channel {channel} cannot bind that way: {can:?}")]
    NotHere {
        /// The channel.
        channel: String,
        /// What it can do there.
        can: Capabilities,
    },
    /// There is no such session.
    #[error("there is no session {session_key}")]
    NoSession {
        /// What was asked for.
        session_key: SessionKey,
    },
    /// A closed session is bound to nothing any more.
    #[error("the session {session_key} is closed")]
    SessionClosed {
        /// Which one.
        session_key: SessionKey,
    },
    /// The conversation has no active binding.
    #[error("the conversation is bound to nothing")]
    NotBound,
    /// The conversation that was to be made was not, and the binding is over.
    #[error("the conversation could not be made: {why}")]
    NotMade {
        /// What the channel says.
        why: String,
    },
    /// The conversation is still to be made.
    #[error("the conversation is not made yet: {why}")]
    NotMadeYet {
        /// What the channel says.
        why: String,
    },
    /// The control plane did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<BindingError> for Failure {
    /// What the person is told.
    fn from(error: BindingError) -> Self {
        match error {
            BindingError::NoAdapter(error) => error.into(),
            BindingError::Store(error) => error.into(),
            BindingError::NoSession { .. } => Self::of(Code::NoSession).origin("gateway"),
            BindingError::SessionClosed { .. } => Self::of(Code::SessionClosed).origin("gateway"),
            BindingError::NotBound => Self::of(Code::NotBound).origin("gateway"),
            BindingError::NotHere { can, .. } => {
                let instead = match (can.here, can.child) {
                    (true, _) => "This conversation itself can be bound: ask for that instead.",
                    (false, true) => "A conversation below it can be: ask for that instead.",
                    (false, false) => "Use another conversation.",
                };
                let text = format!("Sessions cannot be bound here in that way. {instead}");
                Self::new(Code::Usage, text).detail("PLACEMENT_NOT_POSSIBLE").origin("client")
            }
            BindingError::NotMade { why } => {
                let text = format!(
                    "The conversation for it could not be made: {why}. Nothing is bound. Try it again, or bind this one."
                );
                Self::new(Code::ChannelUnavailable, text).detail("CONVERSATION_NOT_MADE").origin("gateway")
            }
            BindingError::NotMadeYet { why } => {
                let text = format!(
                    "The conversation for it is not there yet: {why}. It is tried again by itself; the session runs."
                );
                let failure = Self::new(Code::ChannelUnavailable, text).detail("CONVERSATION_PENDING");
                failure.origin("gateway").retryable()
            }
        }
    }
}
