//! Built-in console channel: conversations stored in the gateway's own database.
//!
//! A message counts as delivered when the row is committed (H25); readers follow a conversation with a cursor
//! over the rows. So no outcome is ever uncertain, and the same nonce yields the same row.

use crate::channel::{
    BoxFuture, ChannelAdapter, ChannelProperties, EditOutcome, LookupOutcome, OpenChildOutcome, Outgoing,
    SendOutcome,
};
use acp_core::binding::Capabilities;
use acp_core::command::authorization::RequesterRole;
use acp_core::message_split::{MessageLimit, Unit};
use acp_core::nonce::nonce_of;
use acp_core::render::PartKind;
use acp_core::route::UnboundDestination;
use acp_core::rows::ConversationRef;
use acp_store::Store;
use acp_store::console::{self, NewConsoleMessage};

/// Channel name in conversations.
pub(crate) const CONSOLE: &str = "console";
/// Maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Number of leading characters of the starter's nonce that form the id of a child conversation.
const CHILD_TAG_CHARS: usize = 8;

/// Console channel.
#[derive(Debug, Clone)]
pub(crate) struct Console {
    store: Store,
}

impl Console {
    /// Creates the channel over a store.
    pub(crate) const fn new(store: Store) -> Self {
        Self { store }
    }
}

/// Returns the reference of the console conversation with this id.
pub(crate) fn conversation(id: &str) -> ConversationRef {
    ConversationRef::new(CONSOLE, "default", id)
}

impl ChannelAdapter for Console {
    fn id(&self) -> &'static str {
        CONSOLE
    }

    fn capabilities(&self, _: &ConversationRef) -> Capabilities {
        Capabilities { here: true, child: true, child_first: false }
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties {
            // The clients of the console choose the message ids themselves.
            receives_own_messages: false,
            can_edit: true,
            ..ChannelProperties::new(
                MessageLimit::new(Unit::Bytes, MESSAGE_BYTES_MAX),
                UnboundDestination::Hint,
            )
        }
    }

    /// Operator: only the gateway's own user has access to the socket, and this user runs the gateway.
    fn author_role(&self, _author: &str) -> RequesterRole {
        RequesterRole::Operator
    }

    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        let row = row(&to.conversation_id, message);
        Box::pin(async move {
            match self.store.write("console_send", move |tx| console::insert(tx, &row)).await {
                Ok(id) => SendOutcome::Sent { message_id: id.to_string() },
                // On an error no part of the write is durable.
                Err(error) => SendOutcome::Rejected { why: error.to_string(), again: true },
            }
        })
    }

    fn lookup<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        let nonce = message.nonce.clone();
        Box::pin(async move {
            match self.store.read("console_lookup", move |db| console::id_of(db, &nonce)).await {
                Ok(Some(id)) => LookupOutcome::Found { message_id: id.to_string() },
                Ok(None) => LookupOutcome::Absent,
                Err(error) => LookupOutcome::Unknown { why: error.to_string() },
            }
        })
    }

    /// Creates a child conversation by inserting the starter. The child's id is derived from the starter's
    /// nonce; a notice in the parent names the child.
    fn open_child<'a>(
        &'a self,
        parent: &'a ConversationRef,
        starter: &'a Outgoing,
    ) -> BoxFuture<'a, OpenChildOutcome> {
        let tag: String = starter.nonce.chars().take(CHILD_TAG_CHARS).collect();
        let child = format!("{}/{tag}", parent.conversation_id);
        let begins = row(&child, starter);
        let session =
            starter.session_key.as_ref().map_or_else(|| "A session".to_owned(), ToString::to_string);
        let text = format!("{session} is bound to the conversation {child}.");
        let nonce = nonce_of(&["parent", &starter.nonce]);
        let told = Outgoing { kind: PartKind::Notice, text, nonce, ..starter.clone() };
        let told = row(&parent.conversation_id, &told);
        Box::pin(async move {
            let both = move |tx: &acp_store::Tx<'_>| {
                console::insert(tx, &begins)?;
                console::insert(tx, &told).map(drop)
            };
            match self.store.write("console_child", both).await {
                Ok(()) => OpenChildOutcome::Made { conversation_id: child },
                Err(error) => OpenChildOutcome::Rejected { why: error.to_string(), again: true },
            }
        })
    }

    fn edit<'a>(
        &'a self,
        to: &'a ConversationRef,
        message_id: &'a str,
        message: &'a Outgoing,
    ) -> BoxFuture<'a, EditOutcome> {
        let (conversation_id, text) = (to.conversation_id.clone(), message.text.clone());
        Box::pin(async move {
            let Ok(id) = message_id.parse() else {
                return EditOutcome::Gone { why: "not a message id".to_owned() };
            };
            let edit = move |tx: &acp_store::Tx<'_>| console::edit(tx, &conversation_id, id, &text);
            match self.store.write("console_edit", edit).await {
                Ok(true) => EditOutcome::Edited,
                Ok(false) => EditOutcome::Gone { why: "no such message".to_owned() },
                Err(error) => EditOutcome::Failed { why: error.to_string() },
            }
        })
    }
}

/// Converts a message to a row of a conversation.
fn row(conversation_id: &str, message: &Outgoing) -> NewConsoleMessage {
    NewConsoleMessage {
        conversation_id: conversation_id.to_owned(),
        author: String::new(),
        text: message.text.clone(),
        nonce: message.nonce.clone(),
        kind: message.kind.as_str(),
        session_key: message.session_key.clone(),
        run_id: message.run_id,
    }
}
