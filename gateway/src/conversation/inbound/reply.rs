//! Replies to messages: sent once, with a nonce derived from the message.

use super::{Inner, message_nonce};
use crate::channel::{ChannelAdapter, LookupOutcome, Outgoing, SendOutcome, Signal};
use crate::conversation::inbound::reservation::late_reply_text;
use acp_core::failure::Failure;
use acp_core::message_split::split;
use acp_core::render::PartKind;
use acp_shared::codes::Code;
use acp_store::command_replies::{self, ReplySearchKey};
use acp_store::inbox::{Inbound, Outcome, ReplyRoute};
use acp_store::interactive_messages::ButtonMessage;
use std::time::Duration;

/// Maximum number of attempts before a reply is deferred.
const REPLY_ATTEMPTS_MAX: u32 = 3;
/// Maximum wait for a rate-limited channel, in milliseconds.
const REPLY_LIMIT_MS: u64 = 5_000;
/// Maximum duration of a reaction, in milliseconds.
const SIGNAL_TIMEOUT_MS: u64 = 10_000;

/// Sender of a possible earlier reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PriorReply {
    /// The message was executed just now: no reply was sent.
    NotSent,
    /// The gateway may have replied in the conversation.
    MaybeSent,
    /// The adapter may have responded to the interaction, or the gateway after it.
    MaybeSentByCaller,
}

/// Sent message of a reply.
pub(super) struct SentReply {
    /// Nonce of the message.
    pub(super) nonce: String,
    /// The channel's message id, and the text.
    pub(super) message: ButtonMessage,
    /// True if the message has the buttons of the outcome.
    pub(super) has_buttons: bool,
}

impl Inner {
    /// Sends the reply to a message, once: its nonce is derived from the message id. Returns the sent
    /// messages.
    pub(super) async fn send_reply(
        &self,
        inbound: &Inbound,
        outcome: &Outcome,
        received_at_ms: u64,
        before: PriorReply,
    ) -> Result<Vec<SentReply>, Failure> {
        if outcome.is_shown() {
            return Ok(Vec::new());
        }
        // Deferred until an adapter serves the conversation, like the agent's output.
        let channel = self.channels.get(&inbound.conversation).map_err(Failure::from)?;
        let text = match inbound.answer {
            ReplyRoute::ByMessage => outcome.text(),
            ReplyRoute::ByCaller => late_reply_text(
                inbound,
                outcome,
                before == PriorReply::MaybeSentByCaller,
                channel.properties().renders_markdown,
            )
            .into(),
        };
        let kind =
            if matches!(outcome, Outcome::Refused { .. }) { PartKind::Error } else { PartKind::Notice };
        let session_key = match outcome {
            Outcome::Prompted { session_key, .. } => Some(session_key.clone()),
            Outcome::Command { session_key, .. } => session_key.clone(),
            Outcome::Refused { .. } | Outcome::Ignored { .. } => None,
        };
        let mut said = Vec::new();
        let texts = split(&text, channel.properties().limit);
        let count = texts.len();
        for (number, text) in texts.into_iter().enumerate() {
            let asks = outcome.asks().filter(|_| number + 1 == count);
            let nonce = message_nonce(inbound, &format!("reply {number}"));
            let ReplySearchKey { tag, others } =
                self.reserve_reply(inbound, &nonce, &text, received_at_ms).await?;
            let message = Outgoing {
                kind,
                text,
                nonce,
                session_key: session_key.clone(),
                actions: asks.map(|asks| asks.actions.clone()).unwrap_or_default(),
                not_before_ms: Some(received_at_ms),
                others,
                tag,
                ..Outgoing::default()
            };
            let Some(message_id) =
                self.send_message(channel.as_ref(), inbound, &message, before != PriorReply::NotSent).await?
            else {
                let nonce = message.nonce;
                let never = move |tx: &acp_store::Tx<'_>| command_replies::record_outcome(tx, &nonce, None);
                self.store.write("reply_rejected", never).await?;
                continue;
            };
            said.push(SentReply {
                nonce: message.nonce,
                message: ButtonMessage { message_id, kind, text: message.text },
                has_buttons: asks.is_some(),
            });
        }
        Ok(said)
    }

    /// Stores the reply before it is sent, and returns the key by which a later search can tell it from the
    /// gateway's other messages (H12).
    async fn reserve_reply(
        &self,
        inbound: &Inbound,
        nonce: &str,
        text: &str,
        received_at_ms: u64,
    ) -> Result<ReplySearchKey, Failure> {
        let (at, nonce, text) = (inbound.conversation.clone(), nonce.to_owned(), text.to_owned());
        let since_ms = received_at_ms.saturating_sub(command_replies::SEARCH_WINDOW_MS);
        let begin = move |tx: &acp_store::Tx<'_>| command_replies::begin(tx, &at, &nonce, &text, since_ms);
        self.store.write("reply_begin", begin).await.map_err(Failure::from)
    }

    /// Sends one message of a reply and returns the channel's message id. If an earlier attempt has an
    /// unknown result (response lost, or made by an earlier process), the message is looked up first and
    /// never sent blindly.
    async fn send_message(
        &self,
        channel: &dyn ChannelAdapter,
        inbound: &Inbound,
        message: &Outgoing,
        mut is_unknown: bool,
    ) -> Result<Option<String>, Failure> {
        for attempt in 1..=REPLY_ATTEMPTS_MAX {
            let looked = if is_unknown {
                channel.lookup(&inbound.conversation, message).await
            } else {
                LookupOutcome::Absent
            };
            let outcome = match looked {
                LookupOutcome::Found { message_id } => return Ok(Some(message_id)),
                LookupOutcome::Unknown { why } => SendOutcome::Uncertain { why },
                LookupOutcome::Later { retry_after_ms, .. } => SendOutcome::Limited { retry_after_ms },
                LookupOutcome::Absent => channel.send(&inbound.conversation, message).await.of(message),
            };
            is_unknown |= matches!(outcome, SendOutcome::Uncertain { .. });
            match outcome {
                SendOutcome::Sent { message_id } => return Ok(Some(message_id)),
                SendOutcome::Rejected { again: false, why } => {
                    tracing::error!(message_id = inbound.message_id, why, "reply rejected");
                    return Ok(None);
                }
                SendOutcome::Limited { retry_after_ms } if attempt < REPLY_ATTEMPTS_MAX => {
                    tokio::time::sleep(Duration::from_millis(retry_after_ms.min(REPLY_LIMIT_MS))).await;
                }
                outcome if attempt == REPLY_ATTEMPTS_MAX => {
                    tracing::warn!(
                        message_id = inbound.message_id,
                        why = outcome.as_str(),
                        "reply attempts exhausted; reply deferred"
                    );
                }
                SendOutcome::Limited { .. }
                | SendOutcome::Rejected { .. }
                | SendOutcome::FilesRefused { .. }
                | SendOutcome::Uncertain { .. } => {}
            }
        }
        let failure = Failure::new(Code::StoreUnavailable, "The reply could not be sent.");
        Err(failure.origin("gateway").retryable())
    }

    /// Acknowledges a prompt with a reaction, in the background.
    pub(super) fn acknowledge(&self, inbound: &Inbound, outcome: &Outcome) {
        let Outcome::Prompted { queued_behind, .. } = outcome else { return };
        let Ok(channel) = self.channels.get(&inbound.conversation) else { return };
        if inbound.answer == ReplyRoute::ByCaller || !channel.properties().can_signal {
            return;
        }
        let message_id = inbound.message_id.clone();
        let signal =
            if *queued_behind == 0 { Signal::Received { message_id } } else { Signal::Queued { message_id } };
        let at = inbound.conversation.clone();
        tokio::spawn(async move {
            let shown = channel.signal(&at, &signal);
            drop(tokio::time::timeout(Duration::from_millis(SIGNAL_TIMEOUT_MS), shown).await);
        });
    }
}
