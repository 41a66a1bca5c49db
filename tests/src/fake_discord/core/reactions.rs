//! Reactions and typing.

use super::Machine;
use super::error::ApiError;
use super::gateway::{Audience, Event};
use super::model::{Channel, Id, Ms};
use super::permissions as may;
use super::render;
use super::rest::{Ctx, Reply};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Different emojis on one message.
const EMOJIS_MAX: usize = 20;

impl Machine {
    /// `POST /channels/{}/typing`.
    pub(super) fn post_typing(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?.clone();
        let channel = self.seen_channel(&bot, ctx.id(0)?)?;
        let sends = if channel.thread.is_some() { may::SEND_MESSAGES_IN_THREADS } else { may::SEND_MESSAGES };
        self.demand(&bot, &channel, sends)?;
        self.typing(ctx.now, &channel, bot.user_id);
        Ok(Reply::Nothing)
    }

    /// Sends TYPING_START for a user.
    pub fn typing(&mut self, now: Ms, channel: &Channel, user_id: Id) {
        let guild = self.world.guilds.get(channel.guild_id);
        let member = guild.and_then(|guild| self.render_member(guild, user_id));
        let data = json!({
            "channel_id": render::id(channel.id), "guild_id": render::id(channel.guild_id),
            "user_id": render::id(user_id), "timestamp": now / 1000, "member": member,
        });
        *self.tally.typing.entry(channel.id.to_string()).or_default() += 1;
        self.emit(now, &Event::plain("TYPING_START", Audience::Channel(channel.id), data));
    }

    /// `PUT /channels/{}/messages/{}/reactions/{}/@me`.
    pub(super) fn put_reaction(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        self.demand(bot, &channel, may::READ_MESSAGE_HISTORY)?;
        let message = self.world.message(channel.id, ctx.id(1)?)?;
        let emoji = known_emoji(ctx.text(2))?;
        self.demand_unarchived(&channel)?;
        if !message.reactions.contains_key(&emoji) {
            self.demand(bot, &channel, may::ADD_REACTIONS)?;
            if message.reactions.len() >= EMOJIS_MAX {
                return Err(ApiError::max_reactions());
            }
        }
        let (id, user_id) = (message.id, bot.user_id);
        self.react(ctx.now, id, user_id, &emoji, true);
        Ok(Reply::Nothing)
    }

    /// `DELETE /channels/{}/messages/{}/reactions/{}/@me`.
    pub(super) fn delete_reaction(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        let id = self.world.message(channel.id, ctx.id(1)?)?.id;
        let emoji = known_emoji(ctx.text(2))?;
        self.demand_unarchived(&channel)?;
        let user_id = bot.user_id;
        self.react(ctx.now, id, user_id, &emoji, false);
        Ok(Reply::Nothing)
    }

    /// Adds or removes a reaction, and sends the event if that changed anything.
    pub fn react(&mut self, now: Ms, id: Id, user_id: Id, emoji: &str, add: bool) {
        let Some(message) = self.world.messages.edit(id) else { return };
        let who: &mut BTreeSet<Id> = message.reactions.entry(emoji.to_owned()).or_default();
        let changed = if add { who.insert(user_id) } else { who.remove(&user_id) };
        message.reactions.retain(|_, who| !who.is_empty());
        let (channel_id, author_id) = (message.channel_id, message.author_id);
        let Some(channel) = self.world.channels.get(channel_id).filter(|_| changed) else { return };
        let mut data = json!({
            "user_id": render::id(user_id), "channel_id": render::id(channel_id), "message_id": render::id(id),
            "guild_id": render::id(channel.guild_id), "emoji": render::emoji(emoji), "burst": false, "type": 0,
        });
        if add {
            let guild = self.world.guilds.get(channel.guild_id);
            data["member"] =
                guild.and_then(|guild| self.render_member(guild, user_id)).unwrap_or(Value::Null);
            data["message_author_id"] = render::id(author_id);
        }
        let name = if add { "MESSAGE_REACTION_ADD" } else { "MESSAGE_REACTION_REMOVE" };
        self.emit(now, &Event::plain(name, Audience::Channel(channel_id), data));
    }
}

/// Unicode, or `name:id`. ASCII letters and digits alone are not an emoji.
fn known_emoji(text: &str) -> Result<String, ApiError> {
    let custom = text.split_once(':').is_some_and(|(name, id)| {
        !name.is_empty() && !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())
    });
    let keycap = text.contains('\u{20e3}');
    let plain = !text.is_ascii() && !text.chars().any(char::is_alphanumeric);
    if custom || keycap || plain { Ok(text.to_owned()) } else { Err(ApiError::unknown_emoji()) }
}
