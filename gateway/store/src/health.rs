//! Ability of the database to commit, published to waiting tasks.

use crate::error::StoreError;
use std::sync::Arc;
use tokio::sync::watch;

acp_shared::named! {
    /// Ability of the database to commit, named as in API responses and metrics.
    #[derive(Default)]
    pub enum StoreHealth {
        /// Commits succeed.
        #[default]
        Well = "well",
        /// The disk is full.
        Full = "full",
        /// The file system is read-only.
        ReadOnly = "read_only",
        /// The database file was removed or replaced.
        Gone = "gone",
        /// The database file is damaged. This state is permanent until a restart.
        Damaged = "damaged",
        /// The connection to the database server was lost. This state is permanent until a restart, which finds out what was
        /// committed.
        Lost = "lost",
        /// Any other failure; the log has the error.
        Failing = "failing",
    }
}

impl StoreHealth {
    /// Returns the health that follows from the error of a failed group.
    pub const fn after(error: &StoreError) -> Self {
        match error {
            StoreError::Full => Self::Full,
            StoreError::ReadOnly => Self::ReadOnly,
            StoreError::Gone { .. } => Self::Gone,
            StoreError::Damaged { .. } => Self::Damaged,
            StoreError::ConnectionLost | StoreError::OutcomeUnknown => Self::Lost,
            _ => Self::Failing,
        }
    }
}

/// Sending half, held by the writer.
#[derive(Debug, Clone, Default)]
pub struct HealthSender {
    sender: Arc<watch::Sender<StoreHealth>>,
}

impl HealthSender {
    /// Sets the current health and notifies receivers if it changed. `Damaged` and `Lost` stay set while the gateway
    /// runs: the next start checks the whole file, or connects again.
    pub fn set(&self, health: StoreHealth) {
        let changed = self.sender.send_if_modified(|before| {
            !matches!(*before, StoreHealth::Damaged | StoreHealth::Lost)
                && std::mem::replace(before, health) != health
        });
        if changed && health == StoreHealth::Well {
            tracing::warn!("control plane writable again");
        } else if changed {
            tracing::error!(health = health.as_str(), "control plane not writable");
        }
    }

    /// True if commits succeed.
    pub fn is_well(&self) -> bool {
        *self.sender.borrow() == StoreHealth::Well
    }

    /// True if a write found damage; further writes are refused.
    pub fn is_damaged(&self) -> bool {
        *self.sender.borrow() == StoreHealth::Damaged
    }

    /// True if the connection to the database server was lost.
    pub fn is_lost(&self) -> bool {
        *self.sender.borrow() == StoreHealth::Lost
    }

    /// Receiver of the current health and its changes.
    pub fn subscribe(&self) -> watch::Receiver<StoreHealth> {
        self.sender.subscribe()
    }
}
