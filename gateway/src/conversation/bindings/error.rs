//! Errors of making, changing and finding bindings.

use crate::channel::NoAdapterError;
use acp_core::binding::Capabilities;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use acp_store::StoreError;

/// Failure of an operation on bindings.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BindingError {
    /// No adapter serves the conversation's channel and account.
    #[error(transparent)]
    NoAdapter(#[from] NoAdapterError),
    /// The channel does not support this placement in this conversation.
    #[error("channel {channel} does not support this placement: {can:?}")]
    NotHere {
        /// Name of the channel.
        channel: String,
        /// Placements that the channel supports there.
        can: Capabilities,
    },
    /// The session does not exist.
    #[error("there is no session {session_key}")]
    NoSession {
        /// Requested session.
        session_key: SessionKey,
    },
    /// The session is closed, and closed sessions have no bindings.
    #[error("the session {session_key} is closed")]
    SessionClosed {
        /// Requested session.
        session_key: SessionKey,
    },
    /// The conversation has no active binding.
    #[error("the conversation has no binding")]
    NotBound,
    /// The new conversation could not be created, and the binding has ended.
    #[error("the conversation could not be created: {why}")]
    NotMade {
        /// Reason given by the channel.
        why: String,
    },
    /// The new conversation is not created yet.
    #[error("the conversation is not created yet: {why}")]
    NotMadeYet {
        /// Reason given by the channel.
        why: String,
    },
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<BindingError> for Failure {
    /// Builds the error message for the user.
    fn from(error: BindingError) -> Self {
        match error {
            BindingError::NoAdapter(error) => error.into(),
            BindingError::Store(error) => error.into(),
            BindingError::NoSession { .. } => Self::of(Code::NoSession).origin("gateway"),
            BindingError::SessionClosed { .. } => Self::of(Code::SessionClosed).origin("gateway"),
            BindingError::NotBound => Self::of(Code::NotBound).origin("gateway"),
            BindingError::NotHere { can, .. } => {
                let instead = match (can.here, can.child) {
                    (true, _) => "This conversation itself can be bound: request that instead.",
                    (false, true) => "A new conversation below it can be bound: request that instead.",
                    (false, false) => "Use another conversation.",
                };
                let text = format!("Sessions cannot be bound here in that way. {instead}");
                Self::new(Code::Usage, text).detail("PLACEMENT_NOT_POSSIBLE").origin("client")
            }
            BindingError::NotMade { why } => {
                let text = format!(
                    "The conversation for the session could not be created: {why}. Nothing was bound. Try \
                     again, or bind this conversation."
                );
                Self::new(Code::ChannelUnavailable, text).detail("CONVERSATION_NOT_MADE").origin("gateway")
            }
            BindingError::NotMadeYet { why } => {
                let text = format!(
                    "The conversation for the session is not created yet: {why}. The gateway retries \
                     automatically; /acp sessions shows the session."
                );
                let failure = Self::new(Code::ChannelUnavailable, text).detail("CONVERSATION_PENDING");
                failure.origin("gateway").retryable()
            }
        }
    }
}
