//! Replacement of the Discord bots in a build without Discord.

use crate::channel::{Channels, InboundPort};
use crate::config::LiveConfig;
use acp_store::Store;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Placeholder without any bots.
pub(crate) struct DiscordAccounts;

impl DiscordAccounts {
    /// Logs an error if the configuration contains accounts.
    pub(crate) fn new(live: &LiveConfig, _: Channels, _: &Store, _: CancellationToken) -> Self {
        if !live.at_start().channels.discord.accounts.is_empty() {
            tracing::error!("built without Discord; its accounts are not served");
        }
        Self
    }

    /// Does nothing.
    pub(crate) async fn serve(self, _: Arc<dyn InboundPort>) {}
}
