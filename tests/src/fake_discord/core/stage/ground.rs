//! Set-up orders: guilds, channels, accounts, roles, permissions.

use super::{Order, Outcome, id};
use crate::fake_discord::core::Machine;
use crate::fake_discord::core::error::{ApiError, form_error};
use crate::fake_discord::core::gateway::{Audience, Event, ToSocket};
use crate::fake_discord::core::model::{Bot, Channel, Guild, Id, Member, Ms, Role, User, channel_kind};
use crate::fake_discord::core::permissions::{ALL, VIEW_CHANNEL};
use crate::fake_discord::core::render;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    /// Executes a set-up order.
    pub(super) fn set_up(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::AddGuild { name } => return Ok(id(self.add_guild(now, name))),
            Order::AddChannel { guild, name } => return self.add_channel(now, guild, name),
            Order::AddDirect { user, bot } => {
                self.bot_mut(bot)?;
                let channel = Channel {
                    id: self.world.mint(now),
                    guild_id: 0,
                    kind: channel_kind::DIRECT,
                    name: String::new(),
                    parent_id: None,
                    position: 0,
                    last_message_id: None,
                    thread: None,
                    recipients: vec![user, bot],
                    alive: true,
                };
                self.world.channels.put(channel.id, channel.clone());
                return Ok(id(channel.id));
            }
            Order::AddUser { guild, name } => {
                self.world.guild(guild)?;
                let user_id = self.add_account(now, name, false);
                self.add_member(now, guild, user_id);
                return Ok(id(user_id));
            }
            Order::AddRole { guild, name, mentionable, members } => {
                return self.add_role(now, guild, name, mentionable, &members);
            }
            Order::GiveRole { guild, user, role, has } => {
                let mut roles = self.world.guild(guild)?.roles.iter();
                let unknown = || form_error("role", "UNKNOWN_ROLE", &role.to_string());
                roles.find(|known| known.id == role).ok_or_else(unknown)?;
                let member = self.world.guilds.edit(guild).and_then(|guild| guild.members.get_mut(&user));
                let member = member.ok_or_else(ApiError::unknown_member)?;
                if has {
                    member.roles.insert(role)
                } else {
                    member.roles.remove(&role)
                };
            }
            Order::AddBot { name, token, guilds, privileged_intents } => {
                return self.add_bot(now, name, token, &guilds, privileged_intents);
            }
            Order::AddMember { guild, user } => {
                self.world.guild(guild)?;
                self.add_member(now, guild, user);
            }
            Order::RemoveMember { guild, user } => self.remove_member(now, guild, user),
            Order::GuildOutage { guild, begins } => self.outage(now, guild, begins)?,
            Order::SetIntents { bot, privileged_intents } => {
                self.bot_mut(bot)?.privileged_intents = privileged_intents;
            }
            Order::SetToken { bot, token } => {
                self.bot_mut(bot)?.token = token;
                let sockets = self.gateway.sockets_of(Some(bot));
                self.gateway.forget_sessions(Some(bot));
                self.gateway.order(&sockets, &ToSocket::Close(4004, "Authentication failed."));
            }
            Order::Deny { bot, scope, permissions } => {
                self.set_permissions(now, bot, scope, &permissions, false)?;
            }
            Order::Allow { bot, scope, permissions } => {
                self.set_permissions(now, bot, scope, &permissions, true)?;
            }
            // Other orders are executed elsewhere.
            _ => {}
        }
        Ok(Value::Null)
    }

    fn bot_mut(&mut self, bot: Id) -> Result<&mut Bot, ApiError> {
        self.world.bots.edit(bot).ok_or_else(ApiError::unknown_user)
    }

    fn add_account(&mut self, now: Ms, name: String, bot: bool) -> Id {
        let user_id = self.world.mint(now);
        self.world.users.put(user_id, User { id: user_id, name, bot });
        user_id
    }

    fn add_guild(&mut self, now: Ms, name: String) -> Id {
        let owner_id = self.add_account(now, format!("owner of {name}"), false);
        let guild_id = self.world.mint(now);
        let owner = Member { roles: BTreeSet::new(), joined_ms: now };
        let members = BTreeMap::from([(owner_id, owner)]);
        let guild = Guild { id: guild_id, name, owner_id, roles: Vec::new(), members, alive: true };
        self.world.guilds.put(guild_id, guild);
        guild_id
    }

    fn add_channel(&mut self, now: Ms, guild_id: Id, name: String) -> Outcome {
        self.world.guild(guild_id)?;
        let channel_id = self.world.mint(now);
        let channel = Channel {
            id: channel_id,
            guild_id,
            kind: channel_kind::TEXT,
            name,
            parent_id: None,
            position: self.world.channels.iter().filter(|channel| channel.thread.is_none()).count() as u64,
            last_message_id: None,
            thread: None,
            recipients: Vec::new(),
            alive: true,
        };
        let data = self.render_channel(&channel, 0);
        self.world.channels.put(channel_id, channel);
        self.emit(now, &Event::plain("CHANNEL_CREATE", Audience::Guild(guild_id), data));
        Ok(id(channel_id))
    }

    fn add_member(&mut self, now: Ms, guild_id: Id, user_id: Id) {
        if let Some(guild) = self.world.guilds.edit(guild_id) {
            guild.members.insert(user_id, Member { roles: BTreeSet::new(), joined_ms: now });
        }
        self.emit_guild_create(now, guild_id, user_id);
    }

    fn emit_guild_create(&mut self, now: Ms, guild_id: Id, bot_id: Id) {
        let Some(bot) = self.world.bots.get(bot_id) else { return };
        let Some(guild) = self.world.guilds.get(guild_id) else { return };
        let data = self.render_guild_create(guild, bot);
        self.emit(now, &Event::plain("GUILD_CREATE", Audience::Bot { bot_id, guild_id }, data));
    }

    fn remove_member(&mut self, now: Ms, guild_id: Id, user_id: Id) {
        if let Some(guild) = self.world.guilds.edit(guild_id) {
            guild.members.remove(&user_id);
        }
        let audience = Audience::Bot { bot_id: user_id, guild_id };
        self.emit(now, &Event::plain("GUILD_DELETE", audience, json!({"id": render::id(guild_id)})));
    }

    fn outage(&mut self, now: Ms, guild_id: Id, begins: bool) -> Result<(), ApiError> {
        let guild = self.world.guild(guild_id)?;
        let bots: Vec<Id> =
            guild.members.keys().copied().filter(|member| self.world.bots.get(*member).is_some()).collect();
        for bot_id in bots {
            if begins {
                let data = json!({"id": render::id(guild_id), "unavailable": true});
                self.emit(now, &Event::plain("GUILD_DELETE", Audience::Bot { bot_id, guild_id }, data));
            } else {
                self.emit_guild_create(now, guild_id, bot_id);
            }
        }
        Ok(())
    }

    fn add_role(&mut self, now: Ms, guild: Id, name: String, mentionable: bool, members: &[Id]) -> Outcome {
        self.world.guild(guild)?;
        let role_id = self.world.mint(now);
        if let Some(guild) = self.world.guilds.edit(guild) {
            guild.roles.push(Role { id: role_id, name, mentionable });
            for member in members {
                if let Some(member) = guild.members.get_mut(member) {
                    member.roles.insert(role_id);
                }
            }
        }
        let position = self.world.guild(guild)?.roles.len();
        if let Some(role) = self.world.guild(guild)?.roles.last() {
            let data = json!({"guild_id": render::id(guild), "role": render::role(role, position)});
            self.emit(now, &Event::plain("GUILD_ROLE_CREATE", Audience::Guild(guild), data));
        }
        Ok(id(role_id))
    }

    fn add_bot(
        &mut self,
        now: Ms,
        name: String,
        token: String,
        guilds: &[Id],
        privileged_intents: u64,
    ) -> Outcome {
        let user_id = self.add_account(now, name, true);
        let application_id = self.world.mint(now);
        let bot = Bot {
            user_id,
            application_id,
            token,
            privileged_intents,
            denied: BTreeMap::new(),
            identifies: 0,
            identifies_reset_ms: 0,
        };
        self.world.bots.put(user_id, bot);
        for guild in guilds {
            self.world.guild(*guild)?;
            self.add_member(now, *guild, user_id);
        }
        Ok(json!({"user": user_id, "application": application_id}))
    }

    /// Denies or allows permissions. For threads, lost access sends no event; gained access sends
    /// THREAD_LIST_SYNC.
    fn set_permissions(
        &mut self,
        now: Ms,
        bot_id: Id,
        scope: Id,
        names: &[String],
        allow: bool,
    ) -> Result<(), ApiError> {
        if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|(known, _)| known == name)) {
            return Err(form_error("permissions", "UNKNOWN_PERMISSION", unknown));
        }
        let bot = self.bot_mut(bot_id)?;
        let denied = bot.denied.entry(scope).or_default();
        for name in names {
            if allow {
                denied.remove(name);
            } else {
                denied.insert(name.clone());
            }
        }
        let bot = bot.clone();
        if let Some(guild) = self.world.guilds.get(scope) {
            // A change for the whole guild is sent as a change of the role `@everyone`.
            let role = Role { id: scope, name: "@everyone".to_owned(), mentionable: false };
            let data = json!({"guild_id": render::id(guild.id), "role": render::role(&role, 0)});
            let audience = Audience::Bot { bot_id, guild_id: scope };
            self.emit(now, &Event::plain("GUILD_ROLE_UPDATE", audience, data));
        }
        let Some(channel) =
            self.world.channels.get(scope).filter(|channel| channel.thread.is_none()).cloned()
        else {
            return Ok(());
        };
        let (guild_id, audience) = (channel.guild_id, Audience::Bot { bot_id, guild_id: channel.guild_id });
        let data = self.render_channel(&channel, 0);
        self.emit(now, &Event::plain("CHANNEL_UPDATE", audience, data));
        if allow && names.iter().any(|name| name == VIEW_CHANNEL) {
            let of = |thread: &&Channel| thread.parent_id == Some(scope) && self.can_see(&bot, thread);
            let threads: Vec<&Channel> = self.world.active_threads(guild_id).filter(of).collect();
            let members: Vec<Value> = threads
                .iter()
                .filter_map(|thread| {
                    let joined = thread.thread.as_ref()?.members.get(&bot_id)?;
                    Some(render::thread_member(thread.id, bot_id, *joined))
                })
                .collect();
            let threads: Vec<Value> =
                threads.iter().map(|thread| self.render_channel(thread, bot_id)).collect();
            let data = json!({
                "guild_id": render::id(guild_id), "channel_ids": [render::id(scope)],
                "threads": threads, "members": members,
            });
            self.emit(now, &Event::plain("THREAD_LIST_SYNC", audience, data));
        }
        Ok(())
    }
}
