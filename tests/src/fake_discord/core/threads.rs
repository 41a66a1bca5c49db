//! Channels and threads: creating, changing, archiving and deleting.
//!
//! From the documentation's page on threads: posting unarchives a thread unless it is locked; other changes
//! of an archived thread are refused; a thread created from a message has that message's id.

use super::Machine;
use super::check;
use super::error::{ApiError, FormErrors};
use super::gateway::{Audience, Event};
use super::model::{Channel, Id, Message, Ms, Thread, channel_kind, message_flag, message_kind};
use super::permissions as may;
use super::render;
use super::rest::{Ctx, Reply};
use super::settings::Rule;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NAME_MAX: usize = 100;
/// Allowed auto-archive durations, in minutes.
const AUTO_ARCHIVE: [u64; 4] = [60, 1440, 4320, 10080];
const AUTO_ARCHIVE_DEFAULT: u64 = 1440;
const MINUTE_MS: Ms = 60_000;

/// The thread members of a form.
#[derive(Debug, Default)]
struct ThreadForm {
    name: Option<String>,
    auto_archive_minutes: Option<u64>,
    archived: Option<bool>,
    locked: Option<bool>,
}

impl Machine {
    fn thread_form(&self, object: &Value, name_required: bool) -> Result<ThreadForm, ApiError> {
        let mut errors = FormErrors::default();
        let name = check::text(object, "name", "name", &mut errors).map(str::to_owned);
        if self.holds(Rule::ThreadName) {
            match &name {
                None if name_required => errors.required("name"),
                Some(name) if !(1..=NAME_MAX).contains(&check::chars(name.trim())) => {
                    errors.length("name", 1, NAME_MAX);
                }
                _ => {}
            }
        }
        let minutes = object.get("auto_archive_duration").filter(|minutes| !minutes.is_null());
        let auto_archive_minutes = minutes.and_then(Value::as_u64);
        let fits = auto_archive_minutes.is_some_and(|minutes| AUTO_ARCHIVE.contains(&minutes));
        if minutes.is_some() && !fits && self.holds(Rule::AutoArchive) {
            errors.choice("auto_archive_duration", "(60, 1440, 4320, 10080)");
        }
        for member in ["topic", "rate_limit_per_user", "invitable"] {
            if object.get(member).is_some_and(|found| !found.is_null()) {
                errors.add(member, "NOT_MODELLED", "The fake does not know this member");
            }
        }
        errors.finish()?;
        let flag = |key: &str| object.get(key).and_then(Value::as_bool);
        Ok(ThreadForm {
            name: name.map(|name| name.trim().to_owned()),
            auto_archive_minutes,
            archived: flag("archived"),
            locked: flag("locked"),
        })
    }

    /// `GET /channels/{}`.
    pub(super) fn get_channel(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        Ok(Reply::Ok(self.render_channel(&channel, bot.user_id)))
    }

    fn change_thread(&mut self, now: Ms, id: Id, form: &ThreadForm) -> Result<(), ApiError> {
        if form.archived == Some(false) {
            let guild_id = self.world.channel(id)?.guild_id;
            let archived = self.world.channel(id)?.thread.as_ref().is_some_and(|thread| thread.archived);
            if archived {
                self.demand_thread_capacity(guild_id)?;
            }
        }
        let Some(channel) = self.world.channels.edit(id) else { return Ok(()) };
        if let Some(name) = &form.name {
            channel.name.clone_from(name);
        }
        let Some(thread) = channel.thread.as_mut() else { return Ok(()) };
        if let Some(minutes) = form.auto_archive_minutes {
            thread.auto_archive_minutes = minutes;
            thread.archive_ms = now;
            thread.active_ms = now;
        }
        thread.locked = form.locked.unwrap_or(thread.locked);
        let woken = thread.archived && form.archived == Some(false);
        if form.archived.is_some_and(|archived| archived != thread.archived) {
            thread.archived = !thread.archived;
            thread.archive_ms = now;
            thread.active_ms = now;
        }
        self.emit_thread_update(now, id, woken);
        Ok(())
    }

    /// Sends THREAD_UPDATE and, after unarchiving, THREAD_MEMBER_UPDATE to each bot in the thread.
    fn emit_thread_update(&mut self, now: Ms, id: Id, woken: bool) {
        self.emit(now, &Event::plain("THREAD_UPDATE", Audience::Channel(id), Value::Null));
        let Some(channel) = self.world.channels.get(id).filter(|_| woken) else { return };
        let guild_id = channel.guild_id;
        let members: Vec<(Id, Ms)> = channel
            .thread
            .iter()
            .flat_map(|thread| &thread.members)
            .filter(|(user_id, _)| self.world.bots.get(**user_id).is_some())
            .map(|(user_id, joined)| (*user_id, *joined))
            .collect();
        for (bot_id, joined) in members {
            let mut data = render::thread_member(id, bot_id, joined);
            data["guild_id"] = render::id(guild_id);
            self.emit(now, &Event::plain("THREAD_MEMBER_UPDATE", Audience::Bot { bot_id, guild_id }, data));
        }
    }

    /// Changes a thread for a person or a test, without a permission check.
    ///
    /// # Errors
    /// 10003, 50024, 50035, 160006.
    pub fn change_thread_by_force(&mut self, now: Ms, id: Id, form: &Value) -> Result<(), ApiError> {
        let form = self.thread_form(form, false)?;
        let channel = self.world.channel(id)?;
        if channel.thread.is_none() {
            return Err(ApiError::wrong_channel_type());
        }
        let renamed = form.name.as_ref().is_some_and(|name| *name != channel.name);
        let owner_id = self.world.guild(channel.guild_id)?.owner_id;
        self.change_thread(now, id, &form)?;
        if renamed {
            self.post_rename_notice(now, id, owner_id);
        }
        Ok(())
    }

    /// Posts the notice of a rename in the thread.
    fn post_rename_notice(&mut self, now: Ms, id: Id, by: Id) {
        let name = self.world.channels.get(id).map(|channel| channel.name.clone()).unwrap_or_default();
        self.notice(now, id, by, message_kind::CHANNEL_NAME_CHANGE, name, None);
    }

    /// Posts a message of the service itself, with a user as its author.
    pub(super) fn notice(
        &mut self,
        now: Ms,
        at: Id,
        author_id: Id,
        kind: u8,
        content: String,
        refers: Option<Id>,
    ) {
        let message = Message {
            id: self.world.mint(now),
            channel_id: at,
            author_id,
            content,
            kind,
            refers_to: refers,
            created_ms: now,
            ..Message::default()
        };
        self.world.add_message(message.clone());
        self.emit_message(now, "MESSAGE_CREATE", &message);
    }

    /// Deletes a channel with its threads, or a thread, and sends the event.
    pub fn delete_by_force(&mut self, now: Ms, id: Id) {
        let Some(channel) = self.world.channels.get(id).filter(|channel| channel.alive).cloned() else {
            return;
        };
        let inside: Vec<Id> = self
            .world
            .channels
            .iter()
            .filter(|thread| thread.alive && thread.thread.is_some() && thread.parent_id == Some(id))
            .map(|thread| thread.id)
            .collect();
        let (name, data) = if channel.thread.is_some() {
            let data = json!({
                "id": render::id(id), "guild_id": render::id(channel.guild_id),
                "parent_id": channel.parent_id.map(render::id), "type": channel.kind,
            });
            ("THREAD_DELETE", data)
        } else {
            ("CHANNEL_DELETE", self.render_channel(&channel, 0))
        };
        self.emit(now, &Event::plain(name, Audience::Channel(id), data));
        if let Some(channel) = self.world.channels.edit(id) {
            channel.alive = false;
        }
        // The threads of a channel are deleted with it, without an event for each.
        for thread in inside {
            if let Some(thread) = self.world.channels.edit(thread) {
                thread.alive = false;
            }
        }
    }

    /// `POST /channels/{}/messages/{}/threads`.
    pub(super) fn post_message_thread(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let parent = self.seen_channel(bot, ctx.id(0)?)?;
        if parent.kind != channel_kind::TEXT {
            return Err(ApiError::wrong_channel_type());
        }
        let message = self.world.message(parent.id, ctx.id(1)?)?.id;
        self.demand(bot, &parent, may::CREATE_PUBLIC_THREADS)?;
        let form = self.thread_form(&ctx.object()?, true)?;
        if self.world.channels.get(message).is_some() && self.holds(Rule::OneThreadPerMessage) {
            return Err(ApiError::thread_exists());
        }
        let channel = self.make_thread(ctx.now, &parent, bot.user_id, &form, Some(message))?;
        Ok(Reply::Created(self.render_channel(&channel, bot.user_id)))
    }

    fn demand_thread_capacity(&self, guild_id: Id) -> Result<(), ApiError> {
        let full = self.world.active_threads(guild_id).count() >= self.settings.active_threads_max;
        if full && self.holds(Rule::ActiveThreads) { Err(ApiError::max_active_threads()) } else { Ok(()) }
    }

    /// Creates a thread for a person.
    ///
    /// # Errors
    /// 10003, 50035, 160004, 160006.
    pub fn make_thread_by_force(
        &mut self,
        now: Ms,
        parent_id: Id,
        owner_id: Id,
        name: &str,
        message: Option<Id>,
    ) -> Result<Channel, ApiError> {
        let parent = self.world.channel(parent_id)?.clone();
        let form = self.thread_form(&json!({"name": name}), true)?;
        if message.is_some_and(|id| self.world.channels.get(id).is_some()) {
            return Err(ApiError::thread_exists());
        }
        self.make_thread(now, &parent, owner_id, &form, message)
    }

    fn make_thread(
        &mut self,
        now: Ms,
        parent: &Channel,
        owner_id: Id,
        form: &ThreadForm,
        message: Option<Id>,
    ) -> Result<Channel, ApiError> {
        self.demand_thread_capacity(parent.guild_id)?;
        let id = match message {
            Some(id) => id,
            None => self.world.mint(now),
        };
        let thread = Thread {
            owner_id,
            archived: false,
            locked: false,
            auto_archive_minutes: form.auto_archive_minutes.unwrap_or(AUTO_ARCHIVE_DEFAULT),
            archive_ms: now,
            active_ms: now,
            total_sent: 0,
            message_count: 0,
            members: BTreeMap::from([(owner_id, now)]),
        };
        let channel = Channel {
            id,
            guild_id: parent.guild_id,
            kind: channel_kind::PUBLIC_THREAD,
            name: form.name.clone().unwrap_or_default(),
            parent_id: Some(parent.id),
            position: 0,
            last_message_id: None,
            thread: Some(thread),
            recipients: Vec::new(),
            alive: true,
        };
        self.world.channels.put(id, channel.clone());
        self.emit(now, &Event::plain("THREAD_CREATE", Audience::Channel(id), json!({"newly_created": true})));
        self.emit_member_added(now, id, owner_id);
        self.announce(now, &channel, parent, owner_id, message);
        Ok(self.world.channel(id)?.clone())
    }

    /// Posts the notice of a new thread in the parent, or flags the message and posts the thread's first
    /// message. The documentation has the notice for threads from old messages only; in practice threads
    /// without a message have it.
    fn announce(&mut self, now: Ms, channel: &Channel, parent: &Channel, owner_id: Id, message: Option<Id>) {
        let (at, kind, content, refers) = match message {
            Some(id) => {
                if let Some(message) = self.world.messages.edit(id) {
                    message.flags |= message_flag::HAS_THREAD;
                    let message: Message = message.clone();
                    self.emit_message(now, "MESSAGE_UPDATE", &message);
                }
                (channel.id, message_kind::THREAD_STARTER, String::new(), id)
            }
            None => (parent.id, message_kind::THREAD_CREATED, channel.name.clone(), channel.id),
        };
        self.notice(now, at, owner_id, kind, content, Some(refers));
        if let Some(thread) = self.world.channels.edit(at).and_then(|channel| channel.thread.as_mut()) {
            // The first message of a thread does not count.
            thread.total_sent = 0;
            thread.message_count = 0;
        }
    }

    /// Refuses operations that are not possible in an archived thread.
    ///
    /// # Errors
    /// 50083.
    pub fn demand_unarchived(&self, channel: &Channel) -> Result<(), ApiError> {
        let archived = channel.thread.as_ref().is_some_and(|thread| thread.archived);
        if archived && self.holds(Rule::ArchivedThread) { Err(ApiError::archived()) } else { Ok(()) }
    }

    /// Refuses posts and edits in a locked thread, except by moderators.
    ///
    /// # Errors
    /// 160005.
    pub fn demand_unlocked(&self, channel: &Channel, author_id: Id) -> Result<(), ApiError> {
        let locked = channel.thread.as_ref().is_some_and(|thread| thread.locked);
        let bot = self.world.bots.get(author_id);
        let moderator = bot.is_some_and(|bot| self.has_permission(bot, channel, may::MANAGE_THREADS));
        if locked && !moderator && self.holds(Rule::LockedThread) { Err(ApiError::locked()) } else { Ok(()) }
    }

    /// Unarchives a thread for a post. A locked thread stays archived, even for moderators: the stricter
    /// reading of the documentation's two sentences on moderators.
    pub(super) fn unarchive_for_post(
        &mut self,
        now: Ms,
        channel: &Channel,
        author_id: Id,
    ) -> Result<(), ApiError> {
        let Some(thread) = &channel.thread else { return Ok(()) };
        self.demand_unlocked(channel, author_id)?;
        if thread.archived {
            if thread.locked && self.holds(Rule::LockedThread) {
                return Err(ApiError::locked());
            }
            if !self.holds(Rule::PostUnarchives) {
                return Err(ApiError::archived());
            }
            self.change_thread(
                now,
                channel.id,
                &ThreadForm { archived: Some(false), ..ThreadForm::default() },
            )?;
        }
        if let Some(thread) = self.world.channels.edit(channel.id).and_then(|channel| channel.thread.as_mut())
        {
            thread.active_ms = now;
        }
        Ok(())
    }

    /// Archives threads that were idle for their auto-archive duration.
    pub fn archive_idle_threads(&mut self, now: Ms) {
        if !self.holds(Rule::AutoArchiving) {
            return;
        }
        let idle: Vec<Id> = self
            .world
            .channels
            .iter()
            .filter(|channel| channel.alive)
            .filter_map(|channel| Some((channel.id, channel.thread.as_ref()?)))
            .filter(|(_, thread)| !thread.archived)
            .filter(|(_, thread)| {
                now.saturating_sub(thread.active_ms) >= thread.auto_archive_minutes * MINUTE_MS
            })
            .map(|(id, _)| id)
            .collect();
        for id in idle {
            let form = ThreadForm { archived: Some(true), ..ThreadForm::default() };
            // Archiving is not limited: it cannot fail.
            let _ = self.change_thread(now, id, &form);
        }
    }
}
