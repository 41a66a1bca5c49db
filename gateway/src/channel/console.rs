//! The built-in channel: conversations that live in the control plane itself.
//!
//! A message is delivered when its row is committed (H25); whoever looks at a conversation is a cursor over the
//! rows. So nothing is ever uncertain here, and the same nonce gives the same row.

use crate::channel::{Channel, EditOutcome, Lookup, Outgoing, Reply, SendOutcome};
use crate::core::route::Destination;
use crate::core::rows::ConversationRef;
use crate::core::split::{Limit, Unit};
use crate::store::Store;
use crate::store::console::{self, NewConsoleMessage};

/// The channel's name in conversations.
pub(crate) const CONSOLE: &str = "console";
/// The most that one message holds, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The console channel.
#[derive(Debug, Clone)]
pub(crate) struct Console {
    store: Store,
}

impl Console {
    /// Over this control plane.
    pub(crate) const fn new(store: Store) -> Self {
        Self { store }
    }
}

/// The console conversation of that name.
pub(crate) fn conversation(id: &str) -> ConversationRef {
    ConversationRef {
        channel: CONSOLE.to_owned(),
        account_id: "default".to_owned(),
        conversation_id: id.to_owned(),
        parent_conversation_id: None,
    }
}

impl Channel for Console {
    fn id(&self) -> &'static str {
        CONSOLE
    }

    fn limit(&self) -> Limit {
        Limit::new(Unit::Bytes, MESSAGE_BYTES_MAX)
    }

    fn normal(&self) -> Destination {
        Destination::Hint
    }

    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> Reply<'a, SendOutcome> {
        let row = NewConsoleMessage {
            conversation_id: to.conversation_id.clone(),
            author: String::new(),
            text: message.text.clone(),
            nonce: message.nonce.clone(),
            kind: message.kind.as_str(),
            session_key: message.session_key.clone(),
            run_id: message.run_id,
        };
        Box::pin(async move {
            match self.store.write("console_send", move |tx| console::insert(tx, &row)).await {
                Ok(id) => SendOutcome::Sent { message_id: id.to_string() },
                // An error means that nothing of it is durable.
                Err(error) => SendOutcome::Rejected { why: error.to_string(), again: true },
            }
        })
    }

    fn lookup<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> Reply<'a, Lookup> {
        let nonce = message.nonce.clone();
        Box::pin(async move {
            match self.store.read("console_lookup", move |db| console::id_of(db, &nonce)).await {
                Ok(Some(id)) => Lookup::Found { message_id: id.to_string() },
                Ok(None) => Lookup::Absent,
                Err(error) => Lookup::Unknown { why: error.to_string() },
            }
        })
    }

    fn can_edit(&self) -> bool {
        true
    }

    fn edit<'a>(
        &'a self,
        to: &'a ConversationRef,
        message_id: &'a str,
        message: &'a Outgoing,
    ) -> Reply<'a, EditOutcome> {
        let (conversation_id, text) = (to.conversation_id.clone(), message.text.clone());
        Box::pin(async move {
            let Ok(id) = message_id.parse() else {
                return EditOutcome::Gone { why: "no number of a message".to_owned() };
            };
            let edit = move |tx: &crate::store::Tx<'_>| console::edit(tx, &conversation_id, id, &text);
            match self.store.write("console_edit", edit).await {
                Ok(true) => EditOutcome::Edited,
                Ok(false) => EditOutcome::Gone { why: "no such message".to_owned() },
                Err(error) => EditOutcome::Failed { why: error.to_string() },
            }
        })
    }
}
