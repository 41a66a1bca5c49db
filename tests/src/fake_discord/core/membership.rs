//! Members of threads. Without the privileged intent for members a bot receives only its own changes.

use super::Machine;
use super::gateway::{Audience, Event};
use super::model::{Id, Ms};
use super::render;
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
}
