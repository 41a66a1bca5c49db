//! Slash commands and clicks: committed, acknowledged within Discord's limit of three seconds, processed like
//! messages, and answered ([`crate::channel::discord::interaction_response`]). The interaction id serves as message id, so repeated
//! deliveries are processed once.
//!
//! No interaction is acknowledged before the commit. A committed interaction is processed, unless Discord
//! certainly did not receive the acknowledgement: then the user sees a failure, and nothing is done. If a
//! reply to the user is not possible (acknowledgement uncertain, or gateway killed), the gateway replies in
//! the conversation.

use super::Inner;
use super::render::{self, body};
use crate::channel::discord::command_definitions::{focused_suggestion, specs};
use crate::channel::discord::forms::form_id;
use crate::channel::discord::interaction_response::{PendingResponse, ResendEffect};
use crate::channel::{
    CallerReply, Inbound, InboundPort, IntakeOutcome, MessageLimit, PostedReply, ReplyRoute, ReserveOutcome,
    Unit,
};
use acp_core::command;
use acp_core::message_split::split;
use acp_discord::core::commands::line;
use acp_discord::core::custom_id::{DecodedCustomId, decode};
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::event::{Click, Interaction, Member, SlashCommand};
use acp_discord::core::message::{Callback, EPHEMERAL, MessageBody};
use acp_discord::rest::{RestError, SentMessage};
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for the commit of an interaction, so that the acknowledgement is in time.
const ACKNOWLEDGE_DEADLINE: Duration = Duration::from_secs(1);

/// Maximum number of attempts to process an interaction, and the pause between attempts.
const OFFER_ATTEMPTS: (u32, Duration) = (8, Duration::from_millis(500));
/// Maximum length of a reply, in UTF-16 units; the rest is in the history of the session.
const ANSWER_CHARS_MAX: usize = 1_900;
/// End of a reply that was cut.
const CUT_MARK: &str = "\n… (cut; the command line of `acp-gateway` shows all of it)";

/// Returns the display name of a member.
pub(super) fn display_name(who: &Member) -> String {
    who.user.display_name.clone().unwrap_or_else(|| who.user.name.clone())
}

impl Inner {
    /// Handles a slash command.
    pub(super) async fn command(&self, inbox: &dyn InboundPort, command: SlashCommand) {
        let at = &command.interaction;
        let text = match line(&specs(), &command) {
            Ok(text) => text,
            Err(why) => return self.respond_denied(at, &why.to_string()).await,
        };
        if let Some(why) = self.denial_reason(at).await {
            return self.respond_denied(at, &why).await;
        }
        self.run_command(inbox, at, text).await;
    }

    /// Runs an authorised command and replies to its author.
    pub(super) async fn run_command(&self, inbox: &dyn InboundPort, at: &Interaction, text: String) {
        let is_private = command::parse(&text).is_none_or(|command| command.is_private());
        let later = Callback::Deferred { flags: if is_private { EPHEMERAL } else { 0 } };
        let Some(due) = self.accept(inbox, at, text, &later).await else { return };
        let said = &due.said;
        let text = if said.text.is_empty() { "Done.".to_owned() } else { cut(&said.text) };
        let answer = body(&text, &said.actions);
        let has_buttons = !said.actions.is_empty();
        let give = || self.rest.edit_original(at.application, &at.token, &answer);
        let shown = |posted: &SentMessage| {
            let (message_id, text) = (posted.id.to_string(), answer.content.clone());
            has_buttons.then_some(PostedReply { message_id, text })
        };
        self.respond(inbox, at, due, ResendEffect::Replaces, give, shown).await;
    }

    /// Handles a click: runs the command encoded in the button.
    pub(super) async fn click(&self, inbox: &dyn InboundPort, click: Click) {
        let at = &click.interaction;
        let text = match decode(&click.custom_id) {
            DecodedCustomId::Text(text) => text.to_owned(),
            DecodedCustomId::OtherVersion(_) => {
                let why = "This button is from another version of the gateway. Type the command instead: \
                           /acp help.";
                return self.respond_denied(at, why).await;
            }
            DecodedCustomId::Foreign => {
                return self.respond_denied(at, "This button does not belong to this gateway.").await;
            }
        };
        if let Some(why) = self.denial_reason(at).await {
            return self.respond_denied(at, &why).await;
        }
        if let Some(id) = form_id(&text) {
            return self.open_form(inbox, at, id).await;
        }
        let Some(due) = self.accept(inbox, at, text, &Callback::DeferredUpdate).await else { return };
        let said = &due.said;
        if said.text.is_empty() || said.shown {
            return self.record_reply(inbox, due, None).await;
        }
        let answer = MessageBody { flags: EPHEMERAL, ..body(&cut(&said.text), &said.actions) };
        let give = || self.rest.followup(at.application, &at.token, &answer);
        self.respond(inbox, at, due, ResendEffect::Duplicates, give, |_| None).await;
    }

    /// Sends suggestions to a person who is typing a command.
    pub(super) async fn autocomplete(&self, inbox: &dyn InboundPort, command: SlashCommand) {
        let at = &command.interaction;
        let mut choices = Vec::new();
        if let (None, Some((what, prefix))) = (self.denial_reason(at).await, focused_suggestion(&command)) {
            let who = at.member.user.id.to_string();
            choices = render::choices(inbox.suggest(what, self.at(at.channel, at.parent), who, prefix).await);
        }
        if let Err(fault) = self.rest.callback(at.id, &at.token, &Callback::Choices(choices)).await {
            tracing::debug!(%fault, "autocomplete reply failed");
        }
    }

    /// Returns the reason if an interaction is not authorized.
    pub(super) async fn denial_reason(&self, at: &Interaction) -> Option<String> {
        let settings = self.settings();
        let access = &settings.access;
        if !access.is_guild_allowed(at.guild) {
            return Some("This gateway does not serve this server.".to_owned());
        }
        let is_known = at.parent.is_some() || at.is_thread == Some(false);
        let is_served = access.is_channel_allowed(at.channel, at.parent)
            || (!is_known
                && tokio::time::timeout(ACKNOWLEDGE_DEADLINE, self.is_channel_allowed(at.channel))
                    .await
                    .unwrap_or(false));
        if !is_served {
            return Some("This gateway does not serve this channel.".to_owned());
        }
        (!access.is_allowed(&at.member)).then(|| {
            format!(
                "You may not use this gateway's agents. Its operator can add your id {} to \
                 channels.discord.accounts.{}.allowed_users, or give you a role listed in allowed_roles \
                 there.",
                at.member.user.id, self.account
            )
        })
    }

    pub(super) async fn respond_denied(&self, at: &Interaction, why: &str) {
        let answer = Callback::Message(MessageBody { flags: EPHEMERAL, ..MessageBody::text(cut(why)) });
        if let Err(fault) = self.rest.callback(at.id, &at.token, &answer).await {
            tracing::warn!(%fault, interaction = %at.id, "denial reply failed");
        }
    }

    /// Commits, acknowledges and processes an interaction. Returns the pending reply, if the caller must send
    /// one.
    async fn accept(
        &self,
        inbox: &dyn InboundPort,
        at: &Interaction,
        text: String,
        taken: &Callback,
    ) -> Option<PendingResponse> {
        let begun = Instant::now();
        let until = begun + ACKNOWLEDGE_DEADLINE;
        let Ok(message) = tokio::time::timeout_at(until, self.inbound(at, text)).await else {
            self.respond_denied(
                at,
                "Discord did not describe this channel in time, so nothing was done. Try again.",
            )
            .await;
            return None;
        };
        let left = until.saturating_duration_since(Instant::now());
        let reservation = match inbox.reserve(message.clone(), left).await {
            ReserveOutcome::Reserved(reservation) => reservation,
            ReserveOutcome::Duplicate => {
                tracing::info!(interaction = %at.id, "duplicate interaction ignored");
                return None;
            }
            ReserveOutcome::NotReserved { why } => {
                tracing::warn!(why, interaction = %at.id, "interaction reservation failed");
                let text = format!(
                    "The gateway cannot store this command now ({why}), so nothing was done. Try again in a \
                     moment."
                );
                self.respond_denied(at, &text).await;
                return None;
            }
            ReserveOutcome::Unknown { why } => {
                tracing::warn!(why, interaction = %at.id, "interaction reservation uncertain");
                let text = "It is unknown whether the gateway stored this command. If it did, the command \
                            runs and its reply appears in this conversation: check before you repeat it.";
                self.respond_denied(at, text).await;
                return None;
            }
        };
        match self.acknowledge(at, taken, reservation.is_new()).await {
            AcknowledgementReceipt::Yes => {
                let said = self.offer(inbox, at, message.clone()).await;
                Some(PendingResponse::new(reservation, message, said, begun))
            }
            AcknowledgementReceipt::No if reservation.is_new() => {
                let withdrawn = inbox.withdraw(message).await;
                tracing::info!(
                    interaction = %at.id,
                    withdrawn,
                    "unacknowledged interaction withdrawn"
                );
                None
            }
            AcknowledgementReceipt::No | AcknowledgementReceipt::Unknown => {
                // The gateway replies in the conversation: the user may be out of reach.
                drop(reservation);
                drop(self.offer(inbox, at, message).await);
                if let Callback::Deferred { .. } = taken {
                    self.delete_placeholder(at).await;
                }
                None
            }
        }
    }

    /// Acknowledges an interaction. `is_new`: no process of this gateway acknowledged the interaction before.
    async fn acknowledge(
        &self,
        at: &Interaction,
        callback: &Callback,
        is_new: bool,
    ) -> AcknowledgementReceipt {
        let Err(fault) = self.rest.callback(at.id, &at.token, callback).await else {
            return AcknowledgementReceipt::Yes;
        };
        let heard = acknowledgement_receipt(&fault, is_new);
        tracing::warn!(%fault, interaction = %at.id, receipt = ?heard, "interaction acknowledgement failed");
        heard
    }

    async fn inbound(&self, at: &Interaction, text: String) -> Inbound {
        let is_known = at.parent.is_some() || at.is_thread == Some(false);
        if is_known {
            self.cache.set_location(at.channel, at.parent, at.guild);
        }
        let parent = if is_known { at.parent } else { self.parent_of(at.channel).await };
        Inbound {
            author_id: at.member.user.id.to_string(),
            approves: self.settings().access.approval_scope(&at.member),
            answer: ReplyRoute::ByCaller,
            ..Inbound::new(self.at(at.channel, parent), at.id.to_string(), display_name(&at.member), text)
        }
    }

    /// Processes a committed interaction. Returns the reply; on `Err` a notice, and the gateway processes
    /// later.
    async fn offer(
        &self,
        inbox: &dyn InboundPort,
        at: &Interaction,
        message: Inbound,
    ) -> Result<CallerReply, CallerReply> {
        for _ in 0..OFFER_ATTEMPTS.0 {
            match inbox.offer(message.clone()).await {
                IntakeOutcome::Accepted(said) => return Ok(said),
                IntakeOutcome::Refused { why } => {
                    return Err(CallerReply { text: why, private: true, ..CallerReply::default() });
                }
                IntakeOutcome::Later { why } => {
                    tracing::warn!(why, interaction = %at.id, "interaction deferred");
                    tokio::time::sleep(OFFER_ATTEMPTS.1).await;
                }
            }
        }
        let text = "The gateway stored this command but cannot run it now. It runs later; its reply appears \
                    in this conversation.";
        Err(CallerReply { text: text.to_owned(), private: true, ..CallerReply::default() })
    }
}

/// Knowledge about the receipt of an acknowledgement by Discord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcknowledgementReceipt {
    Yes,
    /// The user sees a failure.
    No,
    Unknown,
}

/// Interprets the fault of an acknowledgement.
const fn acknowledgement_receipt(fault: &RestError, is_new: bool) -> AcknowledgementReceipt {
    match fault {
        // An earlier process of this gateway acknowledged; for a new interaction some other program did.
        RestError::Rejected(why) if matches!(why.kind, RejectionKind::AlreadyAnswered) && !is_new => {
            AcknowledgementReceipt::Yes
        }
        RestError::Rejected(_) | RestError::Limited { .. } | RestError::Superseded => {
            AcknowledgementReceipt::No
        }
        RestError::Uncertain { .. } => AcknowledgementReceipt::Unknown,
    }
}

/// Returns a text, or its beginning with a mark, up to the maximum length of a reply.
fn cut(text: &str) -> String {
    let parts = |units| split(text, MessageLimit::new(Unit::Utf16, units)).into_iter();
    let mut whole = parts(ANSWER_CHARS_MAX);
    match (whole.next(), whole.next()) {
        (first, None) => first.unwrap_or_default(),
        _ => parts(ANSWER_CHARS_MAX - CUT_MARK.len()).next().unwrap_or_default() + CUT_MARK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::discord::retry::rejected;

    #[test]
    fn long_reply_is_cut_with_a_mark() {
        let fitting = "x".repeat(ANSWER_CHARS_MAX);
        assert_eq!(cut(&fitting), fitting);
        assert_eq!(cut(""), "");
        for (text, end) in [
            ("x".repeat(ANSWER_CHARS_MAX + 1), "x"),
            ("😀".repeat(ANSWER_CHARS_MAX), "😀"),
            (format!("```sh\n{}```\nmore", "echo\n".repeat(ANSWER_CHARS_MAX)), "```"),
        ] {
            let got = cut(&text);
            assert!(got.encode_utf16().count() <= ANSWER_CHARS_MAX, "{got}");
            assert!(got.ends_with(&format!("{end}{CUT_MARK}")), "{got}");
        }
    }

    #[test]
    fn acknowledgement_faults_map_to_receipt_states() {
        let limited = RestError::Limited { retry_after: Duration::from_secs(1) };
        for (fault, is_new, want) in [
            (rejected(RejectionKind::TooLate), true, AcknowledgementReceipt::No),
            (rejected(RejectionKind::TooLate), false, AcknowledgementReceipt::No),
            (rejected(RejectionKind::NotSent), true, AcknowledgementReceipt::No),
            (rejected(RejectionKind::AlreadyAnswered), true, AcknowledgementReceipt::No),
            (rejected(RejectionKind::AlreadyAnswered), false, AcknowledgementReceipt::Yes),
            (limited, true, AcknowledgementReceipt::No),
            (RestError::Uncertain { why: "reset".to_owned() }, true, AcknowledgementReceipt::Unknown),
            (RestError::Uncertain { why: "reset".to_owned() }, false, AcknowledgementReceipt::Unknown),
        ] {
            assert_eq!(acknowledgement_receipt(&fault, is_new), want, "{fault:?} {is_new}");
        }
    }
}
