//! Registry of channel adapters by channel and account.

use super::{ChannelAdapter, ChannelHealth};
use acp_core::failure::Failure;
use acp_core::route;
use acp_core::rows::ConversationRef;
use acp_shared::codes::Code;
use acp_store::inbox::Outcome;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;

/// Channel and account.
type AccountKey = (String, String);

/// Error: no adapter serves the account of a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no adapter serves account {account_id:?} of channel {channel:?}")]
pub(crate) struct NoAdapterError {
    /// Channel.
    pub(crate) channel: String,
    /// Account.
    pub(crate) account_id: String,
}

impl From<NoAdapterError> for Failure {
    fn from(error: NoAdapterError) -> Self {
        route::no_adapter_error(&error.channel, &error.account_id)
    }
}

/// Error: another adapter already serves the account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "account {account_id:?} of channel {channel:?} is already served by another adapter: end that adapter \
     first"
)]
pub(crate) struct AlreadyServedError {
    /// Channel.
    pub(crate) channel: String,
    /// Account.
    pub(crate) account_id: String,
}

/// Another account of the channel through which a message arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SiblingAccount {
    /// Account.
    pub(crate) account_id: String,
    /// Reason if the account currently receives no messages from the conversation.
    pub(crate) unavailable_reason: Option<String>,
}

impl SiblingAccount {
    /// Returns the refusal of a command in a conversation in which this account works but receives no
    /// messages: no account runs the command, and the person gets an error message.
    pub(crate) fn refuse(self) -> Outcome {
        let why = self
            .unavailable_reason
            .unwrap_or_else(|| "it was not available when the message arrived".to_owned());
        let text = format!(
            "Account {:?} works in this conversation but does not receive its messages: {why}. Nothing was \
             done.",
            self.account_id
        );
        let failure =
            Failure::new(Code::ChannelUnavailable, text).origin("gateway").detail(ACCOUNT_UNAVAILABLE);
        Outcome::Refused { failure, reason: ACCOUNT_UNAVAILABLE.to_owned() }
    }
}

/// Detail code of the refusal.
const ACCOUNT_UNAVAILABLE: &str = "ACCOUNT_DEAF";

/// Adapters, one for each account of a channel. Cheap to clone; clones share the registry.
#[derive(Clone)]
pub(crate) struct Channels {
    adapters: Arc<watch::Sender<BTreeMap<AccountKey, Arc<dyn ChannelAdapter>>>>,
}

impl Default for Channels {
    fn default() -> Self {
        Self { adapters: Arc::new(watch::Sender::new(BTreeMap::new())) }
    }
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.adapters.borrow().keys()).finish()
    }
}

fn account_key_of(adapter: &Arc<dyn ChannelAdapter>) -> AccountKey {
    (adapter.id().to_owned(), adapter.account_id().to_owned())
}

fn account_key(at: &ConversationRef) -> AccountKey {
    (at.channel.clone(), at.account_id.clone())
}

impl Channels {
    /// Creates a registry with these adapters; for two adapters of one account the first one wins.
    #[cfg(test)]
    pub(crate) fn new(adapters: impl IntoIterator<Item = Arc<dyn ChannelAdapter>>) -> Self {
        let channels = Self::default();
        channels.add(adapters);
        channels
    }

    /// Adds these adapters; for two adapters of one account the first one wins.
    pub(crate) fn add(&self, adapters: impl IntoIterator<Item = Arc<dyn ChannelAdapter>>) {
        for adapter in adapters {
            if let Err(error) = self.register(adapter) {
                tracing::error!(%error, "channel adapter not registered");
            }
        }
    }

    /// Registers an adapter for an account. An earlier adapter of the account stays until unregistered.
    ///
    /// # Errors
    /// [`AlreadyServedError`] if the account has an adapter.
    pub(crate) fn register(&self, adapter: Arc<dyn ChannelAdapter>) -> Result<(), AlreadyServedError> {
        self.put(adapter, |found| found.is_none())
    }

    /// Replaces the adapter `old` of an account by `new`. Nothing changes if a third adapter serves the
    /// account.
    ///
    /// # Errors
    /// [`AlreadyServedError`] if a third adapter serves the account.
    #[cfg(any(feature = "discord", test))]
    pub(crate) fn replace(
        &self,
        old: &Arc<dyn ChannelAdapter>,
        new: Arc<dyn ChannelAdapter>,
    ) -> Result<(), AlreadyServedError> {
        self.put(new, |found| found.is_none_or(|found| Arc::ptr_eq(found, old)))
    }

    /// Replaces the adapter of its account if `may` accepts the current one.
    fn put(
        &self,
        adapter: Arc<dyn ChannelAdapter>,
        may: impl FnOnce(Option<&Arc<dyn ChannelAdapter>>) -> bool,
    ) -> Result<(), AlreadyServedError> {
        let key = account_key_of(&adapter);
        let is_put = self.adapters.send_if_modified(|all| {
            let is_free = may(all.get(&key));
            if is_free {
                all.insert(key.clone(), adapter);
            }
            is_free
        });
        let (channel, account_id) = key;
        if is_put { Ok(()) } else { Err(AlreadyServedError { channel, account_id }) }
    }

    /// Removes an adapter. Does nothing if another adapter has replaced it. Returns true if removed.
    pub(crate) fn unregister(&self, adapter: &Arc<dyn ChannelAdapter>) -> bool {
        let key = account_key_of(adapter);
        self.adapters.send_if_modified(|all| {
            let is_it = all.get(&key).is_some_and(|found| Arc::ptr_eq(found, adapter));
            is_it && all.remove(&key).is_some()
        })
    }

    /// Returns the adapter of a conversation.
    ///
    /// # Errors
    /// [`NoAdapterError`] if none is registered for the account.
    pub(crate) fn get(&self, at: &ConversationRef) -> Result<Arc<dyn ChannelAdapter>, NoAdapterError> {
        let found = self.adapters.borrow().get(&account_key(at)).map(Arc::clone);
        let missing = || NoAdapterError { channel: at.channel.clone(), account_id: at.account_id.clone() };
        found.ok_or_else(missing)
    }

    /// True if an adapter serves the conversation.
    pub(crate) fn has_adapter(&self, at: &ConversationRef) -> bool {
        self.adapters.borrow().contains_key(&account_key(at))
    }

    /// Returns the other accounts of the conversation's channel that have an adapter.
    pub(crate) fn sibling_accounts(&self, at: &ConversationRef) -> Vec<SiblingAccount> {
        let all = self.adapters.borrow();
        let others =
            all.iter().filter(|((channel, account), _)| *channel == at.channel && *account != at.account_id);
        others
            .map(|((_, account_id), adapter)| {
                let there = ConversationRef { account_id: account_id.clone(), ..at.clone() };
                SiblingAccount {
                    account_id: account_id.clone(),
                    unavailable_reason: adapter.unavailable_reason(&there),
                }
            })
            .collect()
    }

    /// Returns the health of each account that reports health, by channel and account.
    pub(crate) fn health(&self) -> Vec<(AccountKey, ChannelHealth)> {
        let all = self.adapters.borrow();
        all.iter().filter_map(|(key, adapter)| Some((key.clone(), adapter.health()?))).collect()
    }

    /// Returns the names of the channels that have an adapter.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.adapters.borrow().keys().map(|(channel, _)| channel.clone()).collect()
    }

    /// Subscribes to the registered adapters.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeMap<AccountKey, Arc<dyn ChannelAdapter>>> {
        self.adapters.subscribe()
    }

    /// Waits until an adapter serves the conversation.
    pub(crate) async fn wait_registered(&self, at: &ConversationRef) {
        let key = account_key(at);
        // The sender lives as long as this handle.
        let _ = self.adapters.subscribe().wait_for(|all| all.contains_key(&key)).await;
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::channel::console::{Console, conversation};
    use acp_store::{Durability, Store};

    #[tokio::test]
    async fn first_adapter_serves_account_until_unregistered() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Normal).unwrap();
        let adapter = || Arc::new(Console::new(store.clone())) as Arc<dyn ChannelAdapter>;
        let (first, second, at) = (adapter(), adapter(), conversation("room"));
        let channels = Channels::default();
        let missing = channels.get(&at).map(drop).unwrap_err();
        let text = Failure::from(missing.clone()).message;
        assert!(
            text.contains("\"default\" of channel \"console\"") && text.contains("configuration"),
            "{text}"
        );
        assert!(!channels.has_adapter(&at));
        channels.register(Arc::clone(&first)).unwrap();
        let taken = channels.register(Arc::clone(&second)).unwrap_err();
        assert_eq!((taken.channel.as_str(), taken.account_id.as_str()), ("console", "default"));
        assert!(!channels.unregister(&second), "the second adapter was never registered");
        assert!(Arc::ptr_eq(&channels.get(&at).unwrap(), &first));
        assert!(channels.unregister(&first));
        assert!(!channels.unregister(&first));
        assert_eq!(channels.get(&at).map(drop).unwrap_err(), missing);
        let waiting = tokio::spawn({
            let (channels, at) = (channels.clone(), at.clone());
            async move { channels.wait_registered(&at).await }
        });
        channels.register(Arc::clone(&second)).unwrap();
        waiting.await.unwrap();
        // `replace` replaces the registered adapter, and no other one.
        let third = adapter();
        channels.replace(&first, Arc::clone(&third)).unwrap_err();
        channels.replace(&second, Arc::clone(&third)).unwrap();
        assert!(Arc::ptr_eq(&channels.get(&at).unwrap(), &third));
        // Another account has a separate entry.
        let mut elsewhere = at;
        elsewhere.account_id = "second".to_owned();
        assert_eq!(channels.get(&elsewhere).map(drop).unwrap_err().account_id, "second");
    }
}
