//! Messages: creating, reading, editing and deleting.

use super::Machine;
use super::check::mentions;
use super::check::message::MessageForm;
use super::error::{ApiError, form_error};
use super::gateway::{Audience, Event, Redact};
use super::model::{Bot, Channel, Id, Message, Ms, Origin, Pings, message_flag, message_kind};
use super::permissions as may;
use super::render::{self, View};
use super::rest::{Ctx, Reply};
use super::settings::Rule;
use serde_json::{Value, json};

/// Maximum and default number of messages per page.
const PAGE_MAX: u64 = 100;
const PAGE: u64 = 50;

/// A message to be created.
#[derive(Debug)]
pub struct Draft {
    /// Its author.
    pub author_id: Id,
    /// Its channel.
    pub channel_id: Id,
    /// Its content.
    pub form: MessageForm,
    /// Its mentions without `allowed_mentions`.
    pub default: mentions::Default,
    /// The webhook.
    pub webhook_id: Option<Id>,
    /// The display name of the webhook's message.
    pub username: Option<String>,
    /// The application behind it.
    pub application_id: Option<Id>,
    /// The interaction that it responds to.
    pub origin: Option<Origin>,
    /// Its type.
    pub kind: u8,
    /// Flags in addition to those of the form.
    pub flags: u64,
}

impl Draft {
    /// A plain message.
    #[must_use]
    pub fn plain(author_id: Id, channel_id: Id, form: MessageForm) -> Self {
        Self {
            author_id,
            channel_id,
            form,
            default: mentions::Default::Everything,
            webhook_id: None,
            username: None,
            application_id: None,
            origin: None,
            kind: message_kind::DEFAULT,
            flags: 0,
        }
    }
}

impl Machine {
    /// `POST /channels/{}/messages`.
    pub(super) fn post_message(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        let sends = if channel.thread.is_some() { may::SEND_MESSAGES_IN_THREADS } else { may::SEND_MESSAGES };
        self.demand(bot, &channel, sends)?;
        let mut form = MessageForm::read(&ctx.object()?, &ctx.call.body, &self.settings)?;
        if !form.uploads.is_empty() {
            self.demand(bot, &channel, may::ATTACH_FILES)?;
        }
        if form.is_empty() && self.holds(Rule::NotEmpty) {
            return Err(ApiError::empty_message());
        }
        // Only interaction responses can be ephemeral.
        form.flags = form.flags.map(|flags| flags & !message_flag::EPHEMERAL);
        let view = View { user_id: bot.user_id, with_nonce: true };
        if let Some(first) = self.find_deduplicated(ctx.now, bot.user_id, &form)? {
            self.tally.deduplicated += 1;
            return Ok(Reply::Ok(self.render_message(&first, view, ctx.now)));
        }
        let message = self.create(ctx.now, Draft::plain(bot.user_id, channel.id, form))?;
        Ok(Reply::Ok(self.render_message(&message, view, ctx.now)))
    }

    /// The earlier message with this nonce.
    fn find_deduplicated(
        &self,
        now: Ms,
        author_id: Id,
        form: &MessageForm,
    ) -> Result<Option<Message>, ApiError> {
        let Some(nonce) = form.nonce.as_ref().filter(|_| form.enforce_nonce && self.holds(Rule::NonceDedupe))
        else {
            return Ok(None);
        };
        let recent = |first: &&Message| now.saturating_sub(first.created_ms) < self.settings.nonce_window_ms;
        let Some(first) = self.world.by_nonce(author_id, nonce).filter(recent) else { return Ok(None) };
        if first.deleted_ms.is_some() {
            return if self.holds(Rule::NonceOfDeleted) {
                Err(ApiError::unknown_message())
            } else {
                Ok(None)
            };
        }
        Ok(Some(first.clone()))
    }

    /// Creates a message and sends its event.
    ///
    /// # Errors
    /// 10003, 160005.
    pub fn create(&mut self, now: Ms, draft: Draft) -> Result<Message, ApiError> {
        let Draft { author_id, channel_id, mut form, .. } = draft;
        let channel = self.world.channel(channel_id)?.clone();
        let ephemeral = (draft.flags | form.flags.unwrap_or(0)) & message_flag::EPHEMERAL != 0;
        if !ephemeral {
            self.unarchive_for_post(now, &channel, author_id)?;
        }
        let files = form.take_uploads(|| self.world.mint(now));
        let pings = self.pings(&channel, author_id, &form, draft.default);
        let text = form.text();
        let pinged = if ephemeral { Pings::default() } else { pings.clone() };
        let message = Message {
            id: self.world.mint(now),
            channel_id,
            author_id,
            webhook_id: draft.webhook_id,
            application_id: draft.application_id,
            username: draft.username,
            kind: draft.kind,
            content: text,
            nonce: form.nonce.clone(),
            enforce_nonce: form.enforce_nonce,
            components: form.components.unwrap_or_default(),
            attachments: files.iter().map(|(file, _)| file.clone()).collect(),
            flags: draft.flags | form.flags.unwrap_or(0),
            mentions: pings,
            pinged,
            origin: draft.origin,
            created_ms: now,
            ..Message::default()
        };
        for (file, bytes) in files {
            self.world.add_file(file.id, bytes);
        }
        self.count_pings(&message.pinged);
        self.world.add_message(message.clone());
        if !ephemeral {
            self.join_by_post(now, channel_id, author_id);
            self.emit_message(now, "MESSAGE_CREATE", &message);
        }
        Ok(message)
    }

    fn count_pings(&mut self, pings: &Pings) {
        self.tally.pings += u64::from(!pings.is_empty());
    }

    /// The notified users and roles: those that the form allows and the author has permission for.
    fn pings(
        &self,
        channel: &Channel,
        author_id: Id,
        form: &MessageForm,
        default: mentions::Default,
    ) -> Pings {
        let allowed = form.allowed_mentions.as_ref();
        let silent = json!({"parse": []});
        let allowed =
            if allowed.is_none() && !self.holds(Rule::DefaultMentions) { Some(&silent) } else { allowed };
        let mut pings = mentions::allowed(&form.text(), allowed, default);
        let bot = self.world.bots.get(author_id);
        let everyone = bot.is_none_or(|bot| self.has_permission(bot, channel, may::MENTION_EVERYONE));
        let guild = self.world.guilds.get(channel.guild_id);
        pings.everyone &= everyone;
        pings.users.retain(|id| self.world.users.get(*id).is_some());
        pings.roles.retain(|id| {
            let role = guild.and_then(|guild| guild.roles.iter().find(|role| role.id == *id));
            role.is_some_and(|role| role.mentionable || everyone)
        });
        pings
    }

    /// Sends MESSAGE_CREATE or MESSAGE_UPDATE for a message.
    pub(super) fn emit_message(&mut self, now: Ms, name: &'static str, message: &Message) {
        let Some(channel) = self.world.channels.get(message.channel_id) else { return };
        let guild_id = channel.guild_id;
        let view = View { user_id: 0, with_nonce: name == "MESSAGE_CREATE" };
        let mut data = self.render_message(message, view, now);
        if guild_id != 0 {
            data["guild_id"] = render::id(guild_id);
        }
        data["channel_type"] = json!(channel.kind);
        let member = self.world.guilds.get(guild_id).and_then(|guild| guild.members.get(&message.author_id));
        if let Some(member) = member.filter(|_| message.webhook_id.is_none()) {
            data["member"] = render::partial_member(member);
        }
        let redact = Redact {
            author_id: message.author_id,
            mentioned: message.mentions.users.clone(),
            application_id: message.application_id,
        };
        let audience = Audience::Channel(message.channel_id);
        self.emit(now, &Event { name, audience, data, redact: Some(redact) });
    }

    /// `GET /channels/{}/messages`.
    pub(super) fn get_messages(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        let limit = match ctx.call.query.get("limit") {
            None => PAGE,
            Some(text) => text.parse().unwrap_or(0),
        };
        if !(1..=PAGE_MAX).contains(&limit) {
            let message = "int value should be between 1 and 100.";
            return Err(form_error("limit", "NUMBER_TYPE_MAX", message));
        }
        // Without this permission the list is empty; that is not an error.
        if !self.has_permission(bot, &channel, may::READ_MESSAGE_HISTORY) {
            return Ok(Reply::Ok(json!([])));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = self.page(ctx, channel.id, limit)?;
        let rendered = found.iter().map(|message| self.seen_message(bot, message, ctx.now)).collect();
        Ok(Reply::Ok(rendered))
    }

    /// Messages of a page, newest first. Of the documentation's anchors only `after` is modelled; others are refused.
    fn page(&self, ctx: &Ctx<'_>, channel_id: Id, limit: usize) -> Result<Vec<Message>, ApiError> {
        let shown =
            |message: &&Message| message.deleted_ms.is_none() && message.flags & message_flag::EPHEMERAL == 0;
        let all = || self.world.messages_of(channel_id).filter(shown);
        if let Some(anchor) = ["before", "around"].into_iter().find(|key| ctx.call.query.contains_key(*key)) {
            return Err(form_error(anchor, "NOT_MODELLED", "The fake does not know this anchor"));
        }
        let after = ctx.query_id("after")?;
        if let Some(after) = after {
            let mut found: Vec<Message> =
                all().filter(|message| message.id > after).take(limit).cloned().collect();
            found.reverse();
            return Ok(found);
        }
        Ok(all().rev().take(limit).cloned().collect())
    }

    /// A message as a bot may read it over REST: without the privileged intent, other authors' content is
    /// empty.
    fn seen_message(&self, bot: &Bot, message: &Message, now: Ms) -> Value {
        let view = View { user_id: bot.user_id, with_nonce: false };
        let mut rendered = self.render_message(message, view, now);
        let own = message.author_id == bot.user_id
            || message.mentions.users.contains(&bot.user_id)
            || message.application_id == Some(bot.application_id);
        let privileged = bot.privileged_intents & super::gateway::intent::MESSAGE_CONTENT != 0;
        if !own && !privileged && self.holds(Rule::MessageContentIntent) {
            render::redact(&mut rendered);
        }
        rendered
    }

    /// `GET /channels/{}/messages/{}`.
    pub(super) fn get_message(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        self.demand(bot, &channel, may::READ_MESSAGE_HISTORY)?;
        let message = self.world.message(channel.id, ctx.id(1)?)?;
        if message.flags & message_flag::EPHEMERAL != 0 {
            return Err(ApiError::unknown_message());
        }
        Ok(Reply::Ok(self.seen_message(bot, message, ctx.now)))
    }

    /// `PATCH /channels/{}/messages/{}`.
    pub(super) fn patch_message(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        let message = self.world.message(channel.id, ctx.id(1)?)?.clone();
        if message.flags & message_flag::EPHEMERAL != 0 {
            return Err(ApiError::unknown_message());
        }
        if message.author_id != bot.user_id && self.holds(Rule::OnlyAuthorEdits) {
            return Err(ApiError::not_author());
        }
        self.demand_unarchived(&channel)?;
        self.demand_unlocked(&channel, bot.user_id)?;
        self.limit_old_edit(ctx.now, bot.user_id, &message)?;
        let form = MessageForm::read(&ctx.object()?, &ctx.call.body, &self.settings)?;
        let edited = self.edit(ctx.now, &channel, message, form, mentions::Default::Everything)?;
        let view = View { user_id: bot.user_id, with_nonce: false };
        Ok(Reply::Ok(self.render_message(&edited, view, ctx.now)))
    }

    fn limit_old_edit(&mut self, now: Ms, bot_id: Id, message: &Message) -> Result<(), ApiError> {
        let old = now.saturating_sub(message.created_ms) > self.settings.old_edit_age_ms;
        if !old || !self.holds(Rule::OldEdits) {
            return Ok(());
        }
        let standing = self.limits.old_edit(bot_id, message.channel_id, self.settings.old_edits, now);
        if !standing.exhausted {
            return Ok(());
        }
        let message = "Maximum number of edits to messages older than 1 hour reached. Try again later";
        Err(ApiError::too_often(30046, message, standing.reset_after_ms))
    }

    /// Edits a message and sends its event. The caller checks permissions.
    ///
    /// # Errors
    /// 50006.
    pub fn edit(
        &mut self,
        now: Ms,
        channel: &Channel,
        mut message: Message,
        mut form: MessageForm,
        default: mentions::Default,
    ) -> Result<Message, ApiError> {
        if let Some(listed) = &form.listed {
            message.attachments.retain(|file| listed.contains_key(&file.id));
        }
        let files = form.take_uploads(|| self.world.mint(now));
        message.attachments.extend(files.iter().map(|(file, _)| file.clone()));
        if let Some(content) = &form.content {
            message.content = content.clone().unwrap_or_default();
            message.mentions = self.pings(channel, message.author_id, &form, default);
        }
        if let Some(components) = form.components {
            message.components = components;
        }
        let empty =
            message.content.is_empty() && message.components.is_empty() && message.attachments.is_empty();
        if empty && self.holds(Rule::NotEmpty) {
            return Err(ApiError::empty_message());
        }
        message.flags &= !message_flag::LOADING;
        message.edited_ms = Some(now);
        message.edits += 1;
        let fresh = Pings {
            everyone: message.mentions.everyone && !message.pinged.everyone,
            users: message.mentions.users.difference(&message.pinged.users).copied().collect(),
            roles: message.mentions.roles.difference(&message.pinged.roles).copied().collect(),
        };
        if message.flags & message_flag::EPHEMERAL == 0 {
            self.count_pings(&fresh);
            message.pinged.everyone |= fresh.everyone;
            message.pinged.users.extend(fresh.users);
            message.pinged.roles.extend(fresh.roles);
        }
        for (file, bytes) in files {
            self.world.add_file(file.id, bytes);
        }
        self.world.messages.put(message.id, message.clone());
        if message.flags & message_flag::EPHEMERAL == 0 {
            self.emit_message(now, "MESSAGE_UPDATE", &message);
        }
        Ok(message)
    }

    /// Deletes a message and sends its event. A thread that was created from it remains.
    pub fn remove(&mut self, now: Ms, id: Id) {
        let Some(message) = self.world.messages.edit(id) else { return };
        message.deleted_ms = Some(now);
        let (channel_id, ephemeral) = (message.channel_id, message.flags & message_flag::EPHEMERAL != 0);
        let Some(channel) = self.world.channels.edit(channel_id) else { return };
        if let Some(thread) = channel.thread.as_mut() {
            thread.message_count = thread.message_count.saturating_sub(1);
        }
        let guild_id = channel.guild_id;
        if !ephemeral {
            let data = json!({
                "id": render::id(id), "channel_id": render::id(channel_id), "guild_id": render::id(guild_id),
            });
            self.emit(now, &Event::plain("MESSAGE_DELETE", Audience::Channel(channel_id), data));
        }
    }
}
