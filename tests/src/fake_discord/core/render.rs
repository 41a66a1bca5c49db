//! Renders the state as the documentation's JSON objects.

use super::model::{
    Attachment, Bot, Channel, Command, Guild, Id, Member, Message, Ms, Pings, Role, User, Webhook,
    message_kind,
};
use super::{Machine, permissions};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// An id as a JSON string.
#[must_use]
pub fn id(id: Id) -> Value {
    Value::String(id.to_string())
}

/// A time in ISO 8601, for example `2015-04-26T06:26:56.936000+00:00`.
#[must_use]
pub fn time(ms: Ms) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Days since 1970 to a date of the Gregorian calendar, by eras of 400 years that begin in March.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}000+00:00")
}

/// An account.
#[must_use]
pub fn user(user: &User) -> Value {
    json!({
        "id": id(user.id),
        "username": user.name,
        "discriminator": if user.bot { "0001" } else { "0" },
        "global_name": if user.bot { Value::Null } else { json!(user.name) },
        "avatar": null,
        "bot": user.bot,
        "system": false,
        "public_flags": 0,
        "banner": null,
        "accent_color": null,
        "avatar_decoration_data": null,
        "primary_guild": null,
        "collectibles": null,
    })
}

/// The account of the bot itself, as in `GET /users/@me` and READY.
#[must_use]
pub fn current_user(account: &User) -> Value {
    let mut rendered = user(account);
    rendered["verified"] = json!(true);
    rendered["mfa_enabled"] = json!(true);
    rendered["email"] = Value::Null;
    rendered["flags"] = json!(0);
    rendered
}

/// The partial member object of message events.
#[must_use]
pub fn partial_member(member: &Member) -> Value {
    json!({
        "roles": member.roles.iter().map(|role| id(*role)).collect::<Vec<_>>(),
        "joined_at": time(member.joined_ms),
        "nick": null,
        "avatar": null,
        "banner": null,
        "premium_since": null,
        "deaf": false,
        "mute": false,
        "flags": 0,
        "pending": false,
        "communication_disabled_until": null,
    })
}

/// A role.
#[must_use]
pub fn role(role: &Role, position: usize) -> Value {
    json!({
        "id": id(role.id),
        "name": role.name,
        "color": 0,
        "colors": {"primary_color": 0, "secondary_color": null, "tertiary_color": null},
        "hoist": false,
        "icon": null,
        "unicode_emoji": null,
        "position": position,
        "permissions": "0",
        "managed": false,
        "mentionable": role.mentionable,
        "flags": 0,
    })
}

/// A webhook.
#[must_use]
pub fn webhook(webhook: &Webhook, guild_id: Id, maker: Option<&User>) -> Value {
    json!({
        "id": id(webhook.id),
        "type": 1,
        "guild_id": id(guild_id),
        "channel_id": id(webhook.channel_id),
        "name": webhook.name,
        "avatar": null,
        "token": webhook.token,
        "application_id": webhook.application_id.map(id),
        "user": maker.map(user),
    })
}

/// A command.
#[must_use]
pub fn command(command: &Command) -> Value {
    let mut rendered = command.body.clone();
    let defaults = [
        ("type", json!(1)),
        ("description", json!("")),
        ("options", json!([])),
        ("nsfw", json!(false)),
        ("default_member_permissions", Value::Null),
        ("name_localizations", Value::Null),
        ("description_localizations", Value::Null),
        ("dm_permission", json!(true)),
        ("contexts", Value::Null),
        ("integration_types", json!([0])),
    ];
    for (key, value) in defaults {
        if rendered.get(key).is_none() {
            rendered[key] = value;
        }
    }
    rendered["id"] = id(command.id);
    rendered["application_id"] = id(command.application_id);
    rendered["version"] = id(command.version);
    if let Some(guild_id) = command.guild_id {
        rendered["guild_id"] = id(guild_id);
    }
    rendered
}

/// An emoji of a reaction: Unicode, or `name:id`.
#[must_use]
pub fn emoji(emoji: &str) -> Value {
    match emoji.split_once(':') {
        Some((name, of)) => json!({"id": of, "name": name, "animated": false}),
        None => json!({"id": null, "name": emoji}),
    }
}

/// Empties the content of a message for a bot that may not read it.
pub fn redact(message: &mut Value) {
    message["content"] = json!("");
    for list in ["attachments", "components"] {
        message[list] = json!([]);
    }
}

/// The viewer for whom an object is rendered.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The account of the viewer.
    pub user_id: Id,
    /// Whether the nonce is included: only when a message is created.
    pub with_nonce: bool,
}

impl Machine {
    /// A member of a guild.
    #[must_use]
    pub fn render_member(&self, guild: &Guild, user_id: Id) -> Option<Value> {
        let mut rendered = partial_member(guild.members.get(&user_id)?);
        rendered["user"] = user(self.world.users.get(user_id)?);
        Some(rendered)
    }

    /// A file, with a temporary URL.
    #[must_use]
    pub fn render_attachment(&self, channel_id: Id, file: &Attachment, now: Ms) -> Value {
        let url = self.cdn_url(channel_id, file, now);
        let mut rendered = json!({
            "id": id(file.id),
            "filename": file.filename,
            "size": file.size,
            "url": url,
            "proxy_url": url,
            "content_type": file.content_type,
            "content_scan_version": 0,
        });
        if let Some(description) = &file.description {
            rendered["description"] = json!(description);
        }
        rendered
    }

    fn render_mentions(&self, pings: &Pings) -> Vec<Value> {
        pings.users.iter().filter_map(|id| self.world.users.get(*id)).map(user).collect()
    }

    fn render_author(&self, message: &Message) -> Value {
        if let Some(webhook_id) = message.webhook_id.filter(|hook| *hook == message.author_id) {
            let name = self.world.webhooks.get(webhook_id).map_or("webhook", |hook| hook.name.as_str());
            let name = message.username.as_deref().unwrap_or(name);
            return json!({
                "id": id(webhook_id), "username": name, "avatar": null, "discriminator": "0000",
                "public_flags": 0, "flags": 0, "bot": true, "global_name": null,
            });
        }
        self.world.users.get(message.author_id).map_or(Value::Null, user)
    }

    /// A message.
    #[must_use]
    pub fn render_message(&self, message: &Message, view: View, now: Ms) -> Value {
        let attachments: Vec<Value> = message
            .attachments
            .iter()
            .map(|file| self.render_attachment(message.channel_id, file, now))
            .collect();
        let mut rendered = json!({
            "id": id(message.id),
            "channel_id": id(message.channel_id),
            "author": self.render_author(message),
            "content": message.content,
            "timestamp": time(message.created_ms),
            "edited_timestamp": message.edited_ms.map(time),
            "tts": false,
            "mention_everyone": message.mentions.everyone,
            "mentions": self.render_mentions(&message.mentions),
            "mention_roles": message.mentions.roles.iter().map(|role| id(*role)).collect::<Vec<_>>(),
            "attachments": attachments,
            "embeds": [],
            "components": message.components,
            "pinned": false,
            "type": message.kind,
            "flags": message.flags,
        });
        if let Some(nonce) = message.nonce.as_ref().filter(|_| view.with_nonce) {
            rendered["nonce"] = nonce.clone();
        }
        if let Some(webhook_id) = message.webhook_id {
            rendered["webhook_id"] = id(webhook_id);
        }
        if let Some(application_id) = message.application_id {
            rendered["application_id"] = id(application_id);
        }
        if !message.reactions.is_empty() {
            rendered["reactions"] = self.render_reactions(message, view.user_id);
        }
        self.render_links(message, view, now, &mut rendered);
        rendered
    }

    fn render_reactions(&self, message: &Message, me: Id) -> Value {
        let reaction = |(of, who): (&String, &std::collections::BTreeSet<Id>)| {
            json!({
                "emoji": emoji(of),
                "count": who.len(),
                "count_details": {"burst": 0, "normal": who.len()},
                "me": who.contains(&me),
                "me_burst": false,
                "burst_colors": [],
            })
        };
        message.reactions.iter().map(reaction).collect()
    }

    fn render_links(&self, message: &Message, view: View, now: Ms, rendered: &mut Value) {
        if let Some(refers_to) = message.refers_to {
            self.render_reference(message, refers_to, view, now, rendered);
        }
        if let Some(origin) = &message.origin {
            let who = self.world.users.get(origin.user_id).map_or(Value::Null, user);
            let mut metadata = json!({
                "id": id(origin.interaction_id),
                "type": origin.kind,
                "user": who,
                "authorizing_integration_owners": {},
            });
            if let Some(name) = &origin.name {
                metadata["name"] = json!(name);
                rendered["interaction"] = json!({
                    "id": id(origin.interaction_id), "type": origin.kind, "name": name, "user": who,
                });
            }
            rendered["interaction_metadata"] = metadata;
        }
        if let Ok(thread) = self.world.channel(message.id) {
            rendered["thread"] = self.render_channel(thread, view.user_id);
        }
    }

    fn render_reference(&self, message: &Message, to: Id, view: View, now: Ms, rendered: &mut Value) {
        let Some(channel) = self.world.channels.get(message.channel_id) else { return };
        let guild_id = id(channel.guild_id);
        // The notice of a new thread refers to the thread; the first message of a thread refers to a message
        // of the parent.
        let channel_id = match message.kind {
            message_kind::THREAD_CREATED => {
                rendered["message_reference"] =
                    json!({"type": 0, "channel_id": id(to), "guild_id": guild_id});
                return;
            }
            message_kind::THREAD_STARTER => channel.parent_id.unwrap_or(channel.id),
            _ => channel.id,
        };
        rendered["message_reference"] =
            json!({"type": 0, "message_id": id(to), "channel_id": id(channel_id), "guild_id": guild_id});
        let found = self.world.message(channel_id, to).ok().filter(|found| found.refers_to.is_none());
        let view = View { with_nonce: false, ..view };
        rendered["referenced_message"] =
            found.map_or(Value::Null, |found| self.render_message(found, view, now));
    }

    /// A channel or thread, with the thread membership of the viewer `me`, if any.
    #[must_use]
    pub fn render_channel(&self, channel: &Channel, me: Id) -> Value {
        if !channel.recipients.is_empty() {
            let others = channel.recipients.iter().filter(|user| **user != me);
            let others: Vec<Value> = others.filter_map(|id| self.world.users.get(*id)).map(user).collect();
            return json!({
                "id": id(channel.id), "type": channel.kind, "flags": 0, "recipients": others,
                "last_message_id": channel.last_message_id.map(id),
            });
        }
        let mut rendered = json!({
            "id": id(channel.id),
            "guild_id": id(channel.guild_id),
            "type": channel.kind,
            "name": channel.name,
            // Channels are in a category, as in servers created with the client.
            "parent_id": id(channel.parent_id.unwrap_or(channel.guild_id + 1)),
            "last_message_id": channel.last_message_id.map(id),
            "rate_limit_per_user": 0,
            "flags": 0,
        });
        let Some(thread) = &channel.thread else {
            rendered["position"] = json!(channel.position);
            rendered["topic"] = Value::Null;
            rendered["nsfw"] = json!(false);
            rendered["permission_overwrites"] = json!([]);
            return rendered;
        };
        rendered["thread_metadata"] = json!({
            "archived": thread.archived,
            "auto_archive_duration": thread.auto_archive_minutes,
            "archive_timestamp": time(thread.archive_ms),
            "locked": thread.locked,
            "create_timestamp": time((channel.id >> 22) + super::model::DISCORD_EPOCH_MS),
        });
        rendered["owner_id"] = id(thread.owner_id);
        rendered["message_count"] = json!(thread.message_count);
        rendered["total_message_sent"] = json!(thread.total_sent);
        // The count is approximate and stops at 50.
        rendered["member_count"] = json!(thread.members.len().min(50));
        if let Some(joined) = thread.members.get(&me) {
            rendered["member"] = thread_member(channel.id, me, *joined);
        }
        rendered
    }

    /// A guild, as in REST responses.
    #[must_use]
    pub fn render_guild(&self, guild: &Guild) -> Value {
        let everyone = Role { id: guild.id, name: "@everyone".to_owned(), mentionable: false };
        let roles: Vec<Value> = std::iter::once(&everyone)
            .chain(&guild.roles)
            .enumerate()
            .map(|(position, of)| {
                let mut rendered = role(of, position);
                if of.id == guild.id {
                    let bits = permissions::ALL.iter().fold(0_u64, |bits, (_, bit)| bits | (1 << bit));
                    rendered["permissions"] = json!(bits.to_string());
                }
                rendered
            })
            .collect();
        json!({
            "id": id(guild.id), "name": guild.name, "icon": null, "icon_hash": null, "splash": null,
            "discovery_splash": null, "owner_id": id(guild.owner_id), "region": "rotterdam",
            "afk_channel_id": null, "afk_timeout": 300, "widget_enabled": false, "widget_channel_id": null,
            "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
            "roles": roles, "emojis": [], "features": [], "mfa_level": 0, "application_id": null,
            "system_channel_id": null, "system_channel_flags": 0, "rules_channel_id": null,
            "max_presences": null, "max_members": 500_000, "vanity_url_code": null, "description": null,
            "banner": null, "premium_tier": 0, "premium_subscription_count": 0, "preferred_locale": "en-US",
            "public_updates_channel_id": null, "max_video_channel_users": 25,
            "max_stage_video_channel_users": 50, "nsfw_level": 0, "stickers": [],
            "premium_progress_bar_enabled": false, "safety_alerts_channel_id": null, "incidents_data": null,
        })
    }

    /// A guild in full, as in GUILD_CREATE for a bot.
    #[must_use]
    pub fn render_guild_create(&self, guild: &Guild, bot: &Bot) -> Value {
        let mut rendered = self.render_guild(guild);
        let members: Vec<Value> =
            guild.members.keys().filter_map(|user_id| self.render_member(guild, *user_id)).collect();
        let of_guild = |channel: &&Channel| channel.alive && channel.guild_id == guild.id;
        let channels: Vec<Value> = self
            .world
            .channels
            .iter()
            .filter(of_guild)
            .filter(|channel| channel.thread.is_none())
            .map(|channel| self.render_channel(channel, bot.user_id))
            .collect();
        let threads: Vec<Value> = self
            .world
            .active_threads(guild.id)
            .filter(|thread| self.can_see(bot, thread))
            .map(|thread| self.render_channel(thread, bot.user_id))
            .collect();
        let joined = guild.members.get(&bot.user_id).map_or(0, |member| member.joined_ms);
        rendered["joined_at"] = json!(time(joined));
        rendered["large"] = json!(false);
        rendered["unavailable"] = json!(false);
        rendered["member_count"] = json!(guild.members.len());
        rendered["members"] = json!(members);
        rendered["channels"] = json!(channels);
        rendered["threads"] = json!(threads);
        for empty in
            ["voice_states", "presences", "stage_instances", "guild_scheduled_events", "soundboard_sounds"]
        {
            rendered[empty] = json!([]);
        }
        rendered
    }
}

/// A member of a thread.
#[must_use]
pub fn thread_member(thread_id: Id, user_id: Id, joined: Ms) -> Value {
    json!({"id": id(thread_id), "user_id": id(user_id), "join_timestamp": time(joined), "flags": 0})
}

/// Percent-encodes a text for a URL: all bytes except letters, digits and `-_.~`.
#[must_use]
pub fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// The reverse of [`percent_encoded`]; invalid UTF-8 is replaced.
#[must_use]
pub fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
