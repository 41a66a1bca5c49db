//! Whether the database can be written, for everybody who must wait until it can.

use crate::store::error::StoreError;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether commits go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Health {
    /// They do.
    #[default]
    Well,
    /// The disk is full.
    Full,
    /// The file system cannot be written.
    ReadOnly,
    /// The file was taken away.
    Gone,
    /// The file is damaged. This one stays.
    Damaged,
    /// Something else; the log says what.
    Failing,
}

impl Health {
    /// What a group that was lost says.
    pub(crate) const fn after(error: &StoreError) -> Self {
        match error {
            StoreError::Full => Self::Full,
            StoreError::ReadOnly => Self::ReadOnly,
            StoreError::Gone { .. } => Self::Gone,
            StoreError::Damaged { .. } => Self::Damaged,
            _ => Self::Failing,
        }
    }

    /// The word in answers and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Gone => "gone",
            Self::Damaged => "damaged",
            Self::Failing => "failing",
        }
    }
}

/// The end that the writer holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct HealthSender {
    sender: Arc<watch::Sender<Health>>,
}

impl HealthSender {
    /// Says how it is now; tells those who wait only if that is new. Damage does not go away while a gateway serves:
    /// the next start looks at the whole file.
    pub(crate) fn set(&self, health: Health) {
        let changed = self.sender.send_if_modified(|before| {
            *before != Health::Damaged && std::mem::replace(before, health) != health
        });
        if changed && health == Health::Well {
            tracing::warn!("the control plane can be written again");
        } else if changed {
            tracing::error!(health = health.as_str(), "the control plane cannot be written");
        }
    }

    /// Whether commits go through.
    pub(crate) fn is_well(&self) -> bool {
        *self.sender.borrow() == Health::Well
    }

    /// Whether a write met damage: none follows it.
    pub(crate) fn is_damaged(&self) -> bool {
        *self.sender.borrow() == Health::Damaged
    }

    /// How it is, now and later.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.sender.subscribe()
    }
}
