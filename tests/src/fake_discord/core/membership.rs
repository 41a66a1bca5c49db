//! Members of threads. Without the privileged intent for members a bot receives only its own changes.

use super::Machine;
use super::error::ApiError;
use super::gateway::{Audience, Event};
use super::model::{Channel, Id, Ms, Thread, message_kind};
use super::permissions as may;
use super::render;
use super::rest::{Ctx, Reply};
use serde_json::{Value, json};

impl Machine {
    /// Adds the author of a post to the thread.
    pub(super) fn join_by_post(&mut self, now: Ms, id: Id, user_id: Id) {
        if self.world.users.get(user_id).is_some() {
            self.join(now, id, user_id);
        }
    }

    /// Adds a user to a thread.
    pub fn join(&mut self, now: Ms, id: Id, user_id: Id) {
        let thread = self.world.channels.get(id).and_then(|channel| channel.thread.as_ref());
        if thread.is_none_or(|thread| thread.members.contains_key(&user_id)) {
            return;
        }
        let edited = self.world.channels.edit(id);
        if let Some(thread) = edited.and_then(|channel| channel.thread.as_mut()) {
            thread.members.insert(user_id, now);
        }
        // A bot that is added gets THREAD_CREATE as for a new thread, without `newly_created`.
        if let Some(bot) = self.world.bots.get(user_id)
            && let Some(channel) = self.world.channels.get(id)
        {
            let (bot_id, guild_id) = (bot.user_id, channel.guild_id);
            let data = self.render_channel(channel, bot_id);
            self.emit(now, &Event::plain("THREAD_CREATE", Audience::Bot { bot_id, guild_id }, data));
        }
        self.emit_member_added(now, id, user_id);
    }

    /// Sends THREAD_MEMBERS_UPDATE. Without the intent for members a bot receives only its own changes.
    pub(super) fn emit_member_added(&mut self, now: Ms, id: Id, user_id: Id) {
        let Some(channel) = self.world.channels.get(id) else { return };
        let Some(guild) = self.world.guilds.get(channel.guild_id) else { return };
        let Some(bot) = self.world.bots.get(user_id) else { return };
        let joined = channel.thread.as_ref().and_then(|thread| thread.members.get(&user_id));
        let mut member = render::thread_member(id, user_id, joined.copied().unwrap_or(now));
        member["member"] = self.render_member(guild, user_id).unwrap_or(Value::Null);
        member["presence"] = Value::Null;
        let count = channel.thread.as_ref().map_or(0, |thread| thread.members.len().min(50));
        let data = json!({
            "id": render::id(id), "guild_id": render::id(guild.id), "member_count": count,
            "added_members": [member], "removed_member_ids": [],
        });
        let audience = Audience::Bot { bot_id: bot.user_id, guild_id: guild.id };
        self.emit(now, &Event::plain("THREAD_MEMBERS_UPDATE", audience, data));
    }

    /// Removes a user from a thread.
    pub fn leave(&mut self, now: Ms, id: Id, user_id: Id) {
        let Some(channel) = self.world.channels.edit(id) else { return };
        let guild_id = channel.guild_id;
        let Some(thread) = channel.thread.as_mut() else { return };
        if thread.members.remove(&user_id).is_none() {
            return;
        }
        let data = json!({
            "id": render::id(id), "guild_id": render::id(guild_id), "member_count": thread.members.len().min(50),
            "added_members": [], "removed_member_ids": [render::id(user_id)],
        });
        if self.world.bots.get(user_id).is_some() {
            let audience = Audience::Bot { bot_id: user_id, guild_id };
            self.emit(now, &Event::plain("THREAD_MEMBERS_UPDATE", audience, data));
        }
    }

    fn thread_of(&self, ctx: &Ctx<'_>) -> Result<(Channel, Thread), ApiError> {
        let channel = self.seen_channel(ctx.bot()?, ctx.id(0)?)?;
        let thread = channel.thread.clone().ok_or_else(ApiError::wrong_channel_type)?;
        Ok((channel, thread))
    }

    fn member_arg(ctx: &Ctx<'_>) -> Result<Id, ApiError> {
        if ctx.text(1) == "@me" { Ok(ctx.bot()?.user_id) } else { ctx.id(1) }
    }

    /// `GET /channels/{}/thread-members`.
    pub(super) fn get_thread_members(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (channel, thread) = self.thread_of(ctx)?;
        let members = thread.members.iter();
        Ok(Reply::Ok(
            members.map(|(user_id, joined)| render::thread_member(channel.id, *user_id, *joined)).collect(),
        ))
    }

    /// `PUT /channels/{}/thread-members/{}`.
    pub(super) fn put_thread_member(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (channel, _) = self.thread_of(ctx)?;
        self.demand_unarchived(&channel)?;
        let user_id = Self::member_arg(ctx)?;
        self.world.users.get(user_id).ok_or_else(ApiError::unknown_user)?;
        self.join(ctx.now, channel.id, user_id);
        if user_id != ctx.bot()?.user_id {
            let by = ctx.bot()?.user_id;
            self.notice(ctx.now, channel.id, by, message_kind::RECIPIENT_ADD, String::new(), None);
        }
        Ok(Reply::Nothing)
    }

    /// `DELETE /channels/{}/thread-members/{}`.
    pub(super) fn delete_thread_member(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (channel, thread) = self.thread_of(ctx)?;
        self.demand_unarchived(&channel)?;
        let (user_id, bot) = (Self::member_arg(ctx)?, ctx.bot()?);
        if user_id != bot.user_id && thread.owner_id != bot.user_id {
            self.demand(bot, &channel, may::MANAGE_THREADS)?;
        }
        self.leave(ctx.now, channel.id, user_id);
        Ok(Reply::Nothing)
    }

    /// `GET /guilds/{}/threads/active`.
    pub(super) fn get_active_threads(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let guild = self.guild_of(ctx)?;
        let seen: Vec<&Channel> =
            self.world.active_threads(guild.id).filter(|thread| self.can_see(bot, thread)).collect();
        let threads: Vec<Value> =
            seen.iter().rev().map(|thread| self.render_channel(thread, bot.user_id)).collect();
        let members: Vec<Value> = seen
            .iter()
            .filter_map(|thread| {
                let joined = thread.thread.as_ref()?.members.get(&bot.user_id)?;
                Some(render::thread_member(thread.id, bot.user_id, *joined))
            })
            .collect();
        Ok(Reply::Ok(json!({"threads": threads, "members": members})))
    }
}
