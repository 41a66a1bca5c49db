//! What stands in the place of the bots in a program that was built without Discord.

use crate::channel::{Channels, Inbox};
use crate::live::Live;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Nothing of Discord.
pub(crate) struct Bots;

impl Bots {
    /// Says so where the configuration names accounts.
    pub(crate) fn new(live: &Live, _: Channels, _: CancellationToken) -> Self {
        if !live.at_start().channels.discord.accounts.is_empty() {
            tracing::error!("this program was built without Discord: its accounts are not served");
        }
        Self
    }

    /// Has nothing to listen to.
    pub(crate) async fn serve(self, _: Arc<dyn Inbox>) {}
}
