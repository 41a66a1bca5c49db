//! How an account of a channel is: a sentence for people, and numbers for `/metrics`.

pub use crate::metrics::Figure;

/// How an account is, as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether it can hear and speak.
    pub ok: bool,
    /// What to know about it, and what to do where something is wrong. It holds no secret.
    pub details: String,
    /// What was counted since the start.
    pub figures: Vec<(Figure, u64)>,
}
