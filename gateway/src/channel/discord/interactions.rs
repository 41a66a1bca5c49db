//! Slash commands and clicks: acknowledged first, since Discord waits for three seconds; then done like any message;
//! then answered. The interaction's id is the message id, so that each is done once, whatever Discord repeats.

use super::Inner;
use super::render::{self, body};
use super::slash::{specs, typed};
use crate::channel::{Answer, AnswerShown, Inbound, Inbox, Offered, Said};
use crate::core::command;
use acp_discord::core::commands::line;
use acp_discord::core::custom_id::{Carried, decode};
use acp_discord::core::event::{Click, Command, Interaction, Member};
use acp_discord::core::message::{Body, Callback, EPHEMERAL};
use std::time::Duration;

/// How often one is offered that cannot be kept just now, and the pause between.
const OFFERS: (u32, Duration) = (8, Duration::from_millis(500));
/// The longest answer, in UTF-16 units; the rest is in the session's history.
const ANSWER_CHARS_MAX: usize = 1_900;

/// The name that people see.
pub(super) fn shown(who: &Member) -> String {
    who.user.shown.clone().unwrap_or_else(|| who.user.name.clone())
}

impl Inner {
    /// A slash command.
    pub(super) async fn command(&self, inbox: &dyn Inbox, command: Command) {
        let at = &command.at;
        let text = match line(&specs(), &command) {
            Ok(text) => text,
            Err(why) => return self.refuse(at, &why.to_string()).await,
        };
        if let Some(why) = self.closed_to(at) {
            return self.refuse(at, &why).await;
        }
        let is_private = command::parse(&text).is_none_or(|command| command.is_private());
        let later = Callback::Later { flags: if is_private { EPHEMERAL } else { 0 } };
        if !self.acknowledge(at, &later).await {
            return;
        }
        let said = self.offer(inbox, at, text).await;
        let text = if said.text.is_empty() { "Done.".to_owned() } else { cut(&said.text) };
        let answer = body(&text, &said.actions);
        match self.rest.edit_original(at.application, &at.token, &answer).await {
            Ok(posted) if !said.actions.is_empty() => {
                let message_id = posted.id.to_string();
                let shown = AnswerShown { message_id, text: answer.content };
                inbox.answered(self.at(at.channel, at.parent), at.id.to_string(), shown).await;
            }
            Ok(_) => {}
            Err(fault) => tracing::warn!(%fault, "the answer to a command could not be shown"),
        }
    }

    /// A click: the command that stands in the button.
    pub(super) async fn click(&self, inbox: &dyn Inbox, click: Click) {
        let at = &click.at;
        let text = match decode(&click.custom_id) {
            Carried::Text(text) => text.to_owned(),
            Carried::OtherVersion(_) => {
                let why =
                    "This button is of another version of the gateway. Type the command instead: /acp help.";
                return self.refuse(at, why).await;
            }
            Carried::Foreign => return self.refuse(at, "This button means nothing here.").await,
        };
        if let Some(why) = self.closed_to(at) {
            return self.refuse(at, &why).await;
        }
        if !self.acknowledge(at, &Callback::UpdateLater).await {
            return;
        }
        let said = self.offer(inbox, at, text).await;
        if said.text.is_empty() || said.shown {
            return;
        }
        let answer = Body { flags: EPHEMERAL, ..body(&cut(&said.text), &said.actions) };
        if let Err(fault) = self.rest.followup(at.application, &at.token, &answer).await {
            tracing::warn!(%fault, "the answer to a click could not be shown");
        }
    }

    /// Suggestions while somebody types.
    pub(super) async fn autocomplete(&self, inbox: &dyn Inbox, command: Command) {
        let at = &command.at;
        let mut choices = Vec::new();
        if let (None, Some((what, prefix))) = (self.closed_to(at), typed(&command)) {
            let who = at.who.user.id.to_string();
            choices = render::choices(inbox.suggest(what, self.at(at.channel, at.parent), who, prefix).await);
        }
        if let Err(fault) = self.rest.callback(at.id, &at.token, &Callback::Choices(choices)).await {
            tracing::debug!(%fault, "suggestions could not be shown");
        }
    }

    /// Why somebody is not served, if so.
    fn closed_to(&self, at: &Interaction) -> Option<String> {
        let settings = self.settings();
        let door = &settings.door;
        if !door.serves(at.guild) {
            return Some("This server is not served by this gateway.".to_owned());
        }
        (!door.admits(&at.who)).then(|| {
            format!(
                "You may not use this gateway's agents. Whoever runs it can add your id {} to \
                 channels.discord.accounts.{}.allowed_users, or give you a role of allowed_roles there.",
                at.who.user.id, self.account
            )
        })
    }

    async fn refuse(&self, at: &Interaction, why: &str) {
        let answer = Callback::Message(Body { flags: EPHEMERAL, ..Body::text(cut(why)) });
        self.acknowledge(at, &answer).await;
    }

    /// Whether Discord heard the first answer in time.
    async fn acknowledge(&self, at: &Interaction, callback: &Callback) -> bool {
        match self.rest.callback(at.id, &at.token, callback).await {
            Ok(()) => true,
            Err(fault) => {
                tracing::warn!(%fault, interaction = %at.id, "an interaction was not acknowledged");
                // What Discord brings twice is done once; what it did not hear of may still be done by typing.
                false
            }
        }
    }

    async fn offer(&self, inbox: &dyn Inbox, at: &Interaction, text: String) -> Said {
        let parent = match at.parent {
            Some(parent) => Some(parent),
            None => self.parent_of(at.channel).await,
        };
        let conversation = self.at(at.channel, parent);
        let message = Inbound {
            author_id: at.who.user.id.to_string(),
            approves: self.settings().door.approves(&at.who),
            answer: Answer::ByCaller,
            ..Inbound::new(conversation, at.id.to_string(), shown(&at.who), text)
        };
        for _ in 0..OFFERS.0 {
            match inbox.offer(message.clone()).await {
                Offered::Taken(said) => return said,
                Offered::Refused { why } => return Said { text: why, private: true, ..Said::default() },
                Offered::Later { why } => {
                    tracing::warn!(why, interaction = %at.id, "an interaction waits");
                    tokio::time::sleep(OFFERS.1).await;
                }
            }
        }
        let text =
            "The gateway cannot take that now. If it was kept it is done later; look before you repeat it.";
        Said { text: text.to_owned(), private: true, ..Said::default() }
    }
}

/// As much of a text as one answer holds.
fn cut(text: &str) -> String {
    let limit = crate::channel::Limit::new(crate::channel::Unit::Utf16, ANSWER_CHARS_MAX);
    crate::core::split::split(text, limit).into_iter().next().unwrap_or_default()
}
