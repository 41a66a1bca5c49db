//! The adapters that are there, by channel and account.

use super::{Channel, Health};
use crate::core::route;
use crate::core::rows::ConversationRef;
use crate::error::Failure;
use crate::store::inbox::Outcome;
use acp_shared::codes::Code;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Channel and account.
type Place = (String, String);

/// Nothing serves a channel's account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no adapter serves account {account_id:?} of channel {channel:?}")]
pub(crate) struct NoAdapter {
    /// The channel.
    pub(crate) channel: String,
    /// The account.
    pub(crate) account_id: String,
}

impl From<NoAdapter> for Failure {
    fn from(error: NoAdapter) -> Self {
        route::no_adapter(&error.channel, &error.account_id)
    }
}

/// Another adapter serves that account already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("account {account_id:?} of channel {channel:?} is served already: end that adapter first")]
pub(crate) struct Served {
    /// The channel.
    pub(crate) channel: String,
    /// The account.
    pub(crate) account_id: String,
}

/// Another account of a channel, beside the one that brought a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The account.
    pub(crate) account_id: String,
    /// Why it cannot hear the conversation just now.
    pub(crate) deaf: Option<String>,
}

impl Beside {
    /// What becomes of a command in a conversation where this one works and does not hear it: it is done by nobody, and
    /// that is said.
    pub(crate) fn refuse(self) -> Outcome {
        let why = self.deaf.unwrap_or_else(|| "it was not there when the message came".to_owned());
        let text = format!(
            "Account {:?} works in this conversation and does not hear it: {why}. Nothing was done.",
            self.account_id
        );
        let failure = Failure::new(Code::ChannelUnavailable, text).origin("gateway").detail(DEAF);
        Outcome::Refused { failure, reason: DEAF.to_owned() }
    }
}

/// The detail of that refusal.
const DEAF: &str = "ACCOUNT_DEAF";

/// The adapters, one for each account of a channel. Cheap to clone; all clones see the same.
#[derive(Clone)]
pub(crate) struct Channels {
    adapters: Arc<watch::Sender<BTreeMap<Place, Arc<dyn Channel>>>>,
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

fn place_of(adapter: &Arc<dyn Channel>) -> Place {
    (adapter.id().to_owned(), adapter.account_id().to_owned())
}

fn place(at: &ConversationRef) -> Place {
    (at.channel.clone(), at.account_id.clone())
}

impl Channels {
    /// With these adapters; of two for one account the first one serves it.
    #[cfg(test)]
    pub(crate) fn new(adapters: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        let channels = Self::default();
        channels.add(adapters);
        channels
    }

    /// From now on with these adapters too; of two for one account the first one serves it.
    pub(crate) fn add(&self, adapters: impl IntoIterator<Item = Arc<dyn Channel>>) {
        for adapter in adapters {
            if let Err(error) = self.register(adapter) {
                tracing::error!(%error, "an adapter is not used");
            }
        }
    }

    /// From now on this adapter serves its account. One that serves it already goes on until it is unregistered.
    ///
    /// # Errors
    /// [`Served`].
    pub(crate) fn register(&self, adapter: Arc<dyn Channel>) -> Result<(), Served> {
        let (channel, account_id) = place_of(&adapter);
        let added = self.adapters.send_if_modified(|all| {
            use std::collections::btree_map::Entry;
            match all.entry((channel.clone(), account_id.clone())) {
                Entry::Occupied(_) => false,
                Entry::Vacant(free) => {
                    free.insert(adapter);
                    true
                }
            }
        });
        if added { Ok(()) } else { Err(Served { channel, account_id }) }
    }

    /// From now on this adapter serves what that one served. Nothing changes where another one serves it.
    ///
    /// # Errors
    /// [`Served`].
    #[cfg(any(feature = "discord", test))]
    pub(crate) fn exchange(&self, old: &Arc<dyn Channel>, new: Arc<dyn Channel>) -> Result<(), Served> {
        let (channel, account_id) = place_of(&new);
        let is_exchanged = self.adapters.send_if_modified(|all| {
            let place = (channel.clone(), account_id.clone());
            let is_it = all.get(&place).is_none_or(|found| Arc::ptr_eq(found, old));
            if is_it {
                all.insert(place, new);
            }
            is_it
        });
        if is_exchanged { Ok(()) } else { Err(Served { channel, account_id }) }
    }

    /// This adapter serves nothing any more; one that took its place stays. Whether it had served.
    pub(crate) fn unregister(&self, adapter: &Arc<dyn Channel>) -> bool {
        let place = place_of(adapter);
        self.adapters.send_if_modified(|all| {
            let is_it = all.get(&place).is_some_and(|found| Arc::ptr_eq(found, adapter));
            is_it && all.remove(&place).is_some()
        })
    }

    /// The adapter that serves a conversation.
    ///
    /// # Errors
    /// [`NoAdapter`].
    pub(crate) fn get(&self, at: &ConversationRef) -> Result<Arc<dyn Channel>, NoAdapter> {
        let found = self.adapters.borrow().get(&place(at)).map(Arc::clone);
        let missing = || NoAdapter { channel: at.channel.clone(), account_id: at.account_id.clone() };
        found.ok_or_else(missing)
    }

    /// Whether a conversation is served.
    pub(crate) fn serves(&self, at: &ConversationRef) -> bool {
        self.adapters.borrow().contains_key(&place(at))
    }

    /// The other accounts of a channel that are served beside that of a conversation.
    pub(crate) fn beside(&self, at: &ConversationRef) -> Vec<Beside> {
        let all = self.adapters.borrow();
        let others =
            all.iter().filter(|((channel, account), _)| *channel == at.channel && *account != at.account_id);
        others
            .map(|((_, account_id), adapter)| {
                let there = ConversationRef { account_id: account_id.clone(), ..at.clone() };
                Beside { account_id: account_id.clone(), deaf: adapter.deaf_to(&there) }
            })
            .collect()
    }

    /// How each account is that says so, by channel and account.
    pub(crate) fn health(&self) -> Vec<(Place, Health)> {
        let all = self.adapters.borrow();
        all.iter().filter_map(|(place, adapter)| Some((place.clone(), adapter.health()?))).collect()
    }

    /// Which accounts are served, now and later.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeMap<Place, Arc<dyn Channel>>> {
        self.adapters.subscribe()
    }

    /// Waits until a conversation is served.
    pub(crate) async fn served(&self, at: &ConversationRef) {
        let place = place(at);
        // The sender lives as long as this handle.
        let _ = self.adapters.subscribe().wait_for(|all| all.contains_key(&place)).await;
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::channel::console::{Console, conversation};
    use crate::store::{Durability, Store};

    /// The first one that lives is authoritative; the end of another one does not take it away.
    #[tokio::test]
    async fn an_account_is_served_by_the_first_adapter_until_that_one_ends() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Normal).unwrap();
        let adapter = || Arc::new(Console::new(store.clone())) as Arc<dyn Channel>;
        let (first, second, at) = (adapter(), adapter(), conversation("room"));
        let channels = Channels::default();
        let missing = channels.get(&at).map(drop).unwrap_err();
        let text = Failure::from(missing.clone()).message;
        assert!(
            text.contains("\"default\" of channel \"console\"") && text.contains("configuration"),
            "{text}"
        );
        assert!(!channels.serves(&at));
        channels.register(Arc::clone(&first)).unwrap();
        let taken = channels.register(Arc::clone(&second)).unwrap_err();
        assert_eq!((taken.channel.as_str(), taken.account_id.as_str()), ("console", "default"));
        assert!(!channels.unregister(&second), "it never served");
        assert!(Arc::ptr_eq(&channels.get(&at).unwrap(), &first));
        assert!(channels.unregister(&first));
        assert!(!channels.unregister(&first));
        assert_eq!(channels.get(&at).map(drop).unwrap_err(), missing);
        let waiting = tokio::spawn({
            let (channels, at) = (channels.clone(), at.clone());
            async move { channels.served(&at).await }
        });
        channels.register(Arc::clone(&second)).unwrap();
        waiting.await.unwrap();
        // Another one takes the place of the one that is there, and of no other.
        let third = adapter();
        channels.exchange(&first, Arc::clone(&third)).unwrap_err();
        channels.exchange(&second, Arc::clone(&third)).unwrap();
        assert!(Arc::ptr_eq(&channels.get(&at).unwrap(), &third));
        // Another account is another place.
        let mut elsewhere = at;
        elsewhere.account_id = "second".to_owned();
        assert_eq!(channels.get(&elsewhere).map(drop).unwrap_err().account_id, "second");
    }
}
