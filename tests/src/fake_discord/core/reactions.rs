//! Reactions and typing. Their events need intents that the product does not request: they are not modelled.

use super::Machine;
use super::error::ApiError;
use super::model::Id;
use super::permissions as may;
use super::rest::{Ctx, Reply};
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
        *self.tally.typing.entry(channel.id.to_string()).or_default() += 1;
        Ok(Reply::Nothing)
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
        self.react(id, user_id, &emoji, true);
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
        self.react(id, user_id, &emoji, false);
        Ok(Reply::Nothing)
    }

    fn react(&mut self, id: Id, user_id: Id, emoji: &str, add: bool) {
        let Some(message) = self.world.messages.edit(id) else { return };
        let who: &mut BTreeSet<Id> = message.reactions.entry(emoji.to_owned()).or_default();
        if add {
            who.insert(user_id)
        } else {
            who.remove(&user_id)
        };
        message.reactions.retain(|_, who| !who.is_empty());
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
