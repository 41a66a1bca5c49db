//! One attempt to deliver one part: the persona it is sent under, and the lookup of a part whose result is
//! unknown.

use crate::channel::{ChannelAdapter, LookupOutcome, Outgoing, SendOutcome};
use crate::conversation::delivery::retry::RetryState;
use crate::conversation::delivery::worker::DeliveryWorker;
use acp_core::render::PartKind;
use acp_core::rows::BindingRow;
use acp_store::delivery::{self as rows, PartRow};
use acp_store::{StoreError, sessions};

/// Maximum duration of the commit before a message under a persona, in milliseconds.
const BEGIN_MS_MAX: u64 = 5_000;

impl DeliveryWorker {
    /// Returns the persona that a part is or was sent under: for agents' answers, if the channel supports
    /// personas.
    pub(super) async fn persona(
        &self,
        binding: &BindingRow,
        row: &PartRow,
        channel: &dyn ChannelAdapter,
    ) -> Result<Option<String>, StoreError> {
        let was = row.persona_at_ms.is_some();
        let may = was || channel.has_personas(&binding.conversation);
        if !may || row.part.kind != PartKind::Final || row.part.asks.is_some() {
            return Ok(None);
        }
        let key = binding.session_key.clone();
        let session = self.store.read("delivery_persona", move |db| sessions::get(db, &key)).await?;
        let name = session.map(|session| session.label.unwrap_or_else(|| session.agent.to_string()));
        // A lookup needs some persona, whichever was used.
        Ok(name.or_else(|| was.then(String::new)))
    }

    /// Makes one attempt; a part whose result is unknown is looked up first. `None` if a person archived the
    /// conversation: sending would unarchive it.
    pub(super) async fn attempt(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        message: &Outgoing,
        retry: &mut RetryState,
    ) -> Result<Option<SendOutcome>, StoreError> {
        let (at, nonce) = (&binding.conversation, message.nonce.clone());
        // A persona is used once only: a repetition relies on the nonce, which deduplicates normal messages.
        let is_named = message.persona.is_some() && !retry.is_unknown && channel.has_personas(at);
        let named_at_ms = is_named.then(|| self.store.clock().wall_ms());
        if !self.store.write("delivery_begin", move |tx| rows::begin(tx, &nonce, named_at_ms)).await? {
            return Ok(None);
        }
        retry.persona_at_ms = named_at_ms.or(retry.persona_at_ms);
        if retry.is_unknown
            && let Some(outcome) = self.lookup_part(binding, channel, message, retry).await
        {
            return Ok(Some(outcome));
        }
        // After a slow commit the persona is not used, because the time in which it may arrive has started.
        let is_late =
            named_at_ms.is_none_or(|at_ms| self.store.clock().wall_ms().abs_diff(at_ms) > BEGIN_MS_MAX);
        let sent = match is_late {
            true => channel.send(at, &without_name(message)).await,
            false => channel.send(at, message).await,
        };
        Ok(Some(sent))
    }

    /// Looks up a part whose result is unknown; `None` if it was provably not sent and, under a persona, can
    /// no longer arrive.
    async fn lookup_part(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        message: &Outgoing,
        retry: &RetryState,
    ) -> Option<SendOutcome> {
        let at = &binding.conversation;
        let may_be_named = retry.persona_at_ms.is_some() && message.persona.is_some();
        let looked = match may_be_named {
            true => channel.lookup(at, message).await,
            false => channel.lookup(at, &without_name(message)).await,
        };
        match looked {
            LookupOutcome::Found { message_id } => Some(SendOutcome::Sent { message_id }),
            LookupOutcome::Unknown { why } => Some(SendOutcome::Uncertain { why }),
            LookupOutcome::Later { why, retry_after_ms } => {
                tracing::info!(session_key = %binding.session_key, why, "part lookup deferred");
                Some(SendOutcome::Limited { retry_after_ms })
            }
            LookupOutcome::Absent if !may_be_named => None,
            LookupOutcome::Absent => {
                let bytes = message.files.iter().map(|file| file.bytes.len() as u64).sum();
                let retry_after_ms = retry.next_lookup_delay_ms(self.store.clock().wall_ms(), bytes)?;
                Some(SendOutcome::Limited { retry_after_ms })
            }
        }
    }
}

/// Returns the message without a persona.
fn without_name(message: &Outgoing) -> Outgoing {
    Outgoing { persona: None, ..message.clone() }
}
