//! Permissions: bots have all, except those that a test denied in a guild, channel or parent channel.
//!
//! Names and bits are from the documentation's page on permissions.

use super::Machine;
use super::error::ApiError;
use super::model::{Bot, Channel, Id};
use super::settings::Rule;

/// See messages and channels.
pub const VIEW_CHANNEL: &str = "VIEW_CHANNEL";
/// Post in channels.
pub const SEND_MESSAGES: &str = "SEND_MESSAGES";
/// Post in threads; SEND_MESSAGES has no effect there.
pub const SEND_MESSAGES_IN_THREADS: &str = "SEND_MESSAGES_IN_THREADS";
/// Read earlier messages.
pub const READ_MESSAGE_HISTORY: &str = "READ_MESSAGE_HISTORY";
/// Create public threads.
pub const CREATE_PUBLIC_THREADS: &str = "CREATE_PUBLIC_THREADS";
/// Rename, lock threads of others.
pub const MANAGE_THREADS: &str = "MANAGE_THREADS";
/// Create webhooks.
pub const MANAGE_WEBHOOKS: &str = "MANAGE_WEBHOOKS";
/// React with an emoji that the message does not have yet.
pub const ADD_REACTIONS: &str = "ADD_REACTIONS";
/// Send files.
pub const ATTACH_FILES: &str = "ATTACH_FILES";
/// Have embeds shown.
pub const EMBED_LINKS: &str = "EMBED_LINKS";
/// Ping everyone and roles.
pub const MENTION_EVERYONE: &str = "MENTION_EVERYONE";

/// All permissions of the fake, with their bits.
pub const ALL: [(&str, u32); 16] = [
    ("MANAGE_CHANNELS", 4),
    ("ADD_REACTIONS", 6),
    ("VIEW_CHANNEL", 10),
    ("SEND_MESSAGES", 11),
    ("MANAGE_MESSAGES", 13),
    ("EMBED_LINKS", 14),
    ("ATTACH_FILES", 15),
    ("READ_MESSAGE_HISTORY", 16),
    ("MENTION_EVERYONE", 17),
    ("MANAGE_WEBHOOKS", 29),
    ("USE_APPLICATION_COMMANDS", 31),
    ("MANAGE_THREADS", 34),
    ("CREATE_PUBLIC_THREADS", 35),
    ("CREATE_PRIVATE_THREADS", 36),
    ("SEND_MESSAGES_IN_THREADS", 38),
    ("PIN_MESSAGES", 51),
];

impl Machine {
    /// Whether a bot has a permission in a channel.
    #[must_use]
    pub fn has_permission(&self, bot: &Bot, channel: &Channel, permission: &str) -> bool {
        let scopes = [Some(channel.id), channel.parent_id, Some(channel.guild_id)];
        let denied = |scope: Id| bot.denied.get(&scope).is_some_and(|names| names.contains(permission));
        !self.holds(Rule::Permissions) || !scopes.into_iter().flatten().any(denied)
    }

    /// Whether a bot can see a channel: it must be in the guild and have the permission, or be a recipient.
    #[must_use]
    pub fn can_see(&self, bot: &Bot, channel: &Channel) -> bool {
        if !channel.recipients.is_empty() {
            return channel.recipients.contains(&bot.user_id);
        }
        let guild = self.world.guild(channel.guild_id);
        guild.is_ok_and(|guild| guild.members.contains_key(&bot.user_id))
            && self.has_permission(bot, channel, VIEW_CHANNEL)
    }

    /// A channel that exists and that the bot can see.
    ///
    /// # Errors
    /// 10003, 50001.
    pub fn seen_channel(&self, bot: &Bot, id: Id) -> Result<Channel, ApiError> {
        let channel = self.world.channel(id)?;
        if self.can_see(bot, channel) { Ok(channel.clone()) } else { Err(ApiError::missing_access()) }
    }

    /// Requires a permission.
    ///
    /// # Errors
    /// 50013.
    pub fn demand(&self, bot: &Bot, channel: &Channel, permission: &str) -> Result<(), ApiError> {
        if self.has_permission(bot, channel, permission) {
            Ok(())
        } else {
            Err(ApiError::missing_permissions())
        }
    }

    /// The permissions of a bot in a channel, as bits.
    #[must_use]
    pub fn permission_bits(&self, bot: &Bot, channel: &Channel) -> u64 {
        let held = ALL.iter().filter(|(name, _)| self.has_permission(bot, channel, name));
        held.fold(0, |bits, (_, bit)| bits | (1 << bit))
    }
}
