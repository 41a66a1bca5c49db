//! Recipients of events, and the parts of an event that they may see.

use super::super::Machine;
use super::super::model::{Bot, Id};
use super::super::render;
use super::super::settings::Rule;
use super::intent;
use serde_json::Value;
use std::collections::BTreeSet;

/// Potential recipients of an event, before intents are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Bots that can see a channel.
    Channel(Id),
    /// Bots of a guild.
    Guild(Id),
    /// The guild's shard of one bot.
    Bot {
        /// The bot.
        bot_id: Id,
        /// The guild it is about.
        guild_id: Id,
    },
}

/// Origin of a message event's content, used to withhold it from bots without the intent.
#[derive(Debug, Clone, Default)]
pub struct Redact {
    /// Its author.
    pub author_id: Id,
    /// The mentioned users.
    pub mentioned: BTreeSet<Id>,
    /// The application behind it.
    pub application_id: Option<Id>,
}

/// An event without a sequence number.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its potential recipients.
    pub audience: Audience,
    /// Its data.
    pub data: Value,
    /// Set for message events.
    pub redact: Option<Redact>,
}

impl Event {
    /// An event without message content.
    #[must_use]
    pub fn plain(name: &'static str, audience: Audience, data: Value) -> Self {
        Self { name, audience, data, redact: None }
    }

    fn intents(&self, direct: bool) -> u64 {
        match self.name {
            "MESSAGE_CREATE" | "MESSAGE_UPDATE" | "MESSAGE_DELETE" if direct => intent::DIRECT_MESSAGES,
            "MESSAGE_CREATE" | "MESSAGE_UPDATE" | "MESSAGE_DELETE" => intent::GUILD_MESSAGES,
            "INTERACTION_CREATE" => 0,
            _ => intent::GUILDS,
        }
    }
}

impl Machine {
    /// The data of an event for a session; `None` if the session does not receive it.
    pub(super) fn view_of(&self, session_id: &str, event: &Event) -> Option<Value> {
        let session = self.gateway.sessions.get(session_id)?;
        let bot = self.world.bots.get(session.bot_id)?;
        let direct = match event.audience {
            Audience::Channel(id) => self.world.channels.get(id)?.guild_id == 0,
            Audience::Guild(_) | Audience::Bot { .. } => false,
        };
        let wanted = event.intents(direct);
        if session.intents & wanted != wanted {
            return None;
        }
        let guild_id = match event.audience {
            Audience::Channel(channel_id) => {
                let channel = self.world.channels.get(channel_id)?;
                if !self.can_see(bot, channel) {
                    return None;
                }
                channel.guild_id
            }
            Audience::Guild(guild_id) => {
                let guild = self.world.guilds.get(guild_id)?;
                if !guild.members.contains_key(&bot.user_id) {
                    return None;
                }
                guild_id
            }
            Audience::Bot { bot_id, guild_id } => {
                if bot_id != bot.user_id {
                    return None;
                }
                guild_id
            }
        };
        // Direct messages have no guild and belong to shard 0, as the number 0 does.
        let (shard, shards) = session.shard;
        if (guild_id >> 22) % shards != shard {
            return None;
        }
        let mut data = event.data.clone();
        self.adapt_to_bot(bot, session.intents, event, &mut data);
        Some(data)
    }

    fn adapt_to_bot(&self, bot: &Bot, intents: u64, event: &Event, data: &mut Value) {
        // The membership in a thread object is that of the receiving bot.
        if matches!(event.name, "THREAD_CREATE" | "THREAD_UPDATE")
            && let Audience::Channel(id) = event.audience
            && let Some(channel) = self.world.channels.get(id)
        {
            let newly = data.get("newly_created").cloned();
            *data = self.render_channel(channel, bot.user_id);
            if let Some(newly) = newly {
                data["newly_created"] = newly;
            }
        }
        let Some(redact) = &event.redact else { return };
        // Only the author of a message gets its nonce.
        if redact.author_id != bot.user_id
            && let Some(members) = data.as_object_mut()
        {
            members.remove("nonce");
        }
        let own = redact.author_id == bot.user_id
            || redact.mentioned.contains(&bot.user_id)
            || redact.application_id == Some(bot.application_id);
        if !own && intents & intent::MESSAGE_CONTENT == 0 && self.holds(Rule::MessageContentIntent) {
            render::redact(data);
        }
    }
}
