//! Health of a channel account: a description for people, and counters for `/metrics`.

pub use crate::metrics::ChannelMetric;

/// Current health of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelHealth {
    /// True if the account can receive and send.
    pub ok: bool,
    /// Description of the state and of the remedy for a problem. Contains no secret.
    pub details: String,
    /// Counters since the start of the process.
    pub figures: Vec<(ChannelMetric, u64)>,
}
