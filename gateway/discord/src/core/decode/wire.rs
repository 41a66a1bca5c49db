//! JSON models of gateway events, reduced to the fields in use. A field that may be absent may also be null.

use super::*;

pub(super) const COMMAND: u64 = 2;
pub(super) const COMPONENT: u64 = 3;
pub(super) const AUTOCOMPLETE: u64 = 4;
pub(super) const MODAL_SUBMIT: u64 = 5;

/// Parses a part of an event. The error names the problem, never the value.
pub(super) fn parse<'de, T: Deserialize<'de>>(data: &'de Json) -> Result<T, DecodeError> {
    T::deserialize(data).map_err(|error| DecodeError(without_values(&error.to_string())))
}

/// Removes the quoted value from a serde error: it may be message content or a token.
fn without_values(error: &str) -> String {
    match error.split_once(", expected") {
        Some((head, tail)) => {
            let kind = head.split(['`', '"']).next().unwrap_or_default().trim_end();
            format!("{kind}, expected{tail}")
        }
        None => error.to_owned(),
    }
}

/// Deserializes null as the default value.
fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
pub(super) struct RawId {
    pub(super) id: Snowflake,
}

#[derive(Deserialize)]
pub(super) struct RawDeletedMessage {
    pub(super) id: Snowflake,
    pub(super) channel_id: Snowflake,
}

#[derive(Deserialize)]
pub(super) struct RawGuildEvent {
    pub(super) guild_id: Snowflake,
}

#[derive(Deserialize)]
pub(super) struct RawBulkDelete {
    pub(super) ids: Vec<Snowflake>,
    pub(super) channel_id: Snowflake,
}

#[derive(Deserialize)]
pub(super) struct RawGuild {
    pub(super) id: Snowflake,
    #[serde(default, deserialize_with = "or_null")]
    pub(super) unavailable: bool,
}

#[derive(Deserialize)]
pub(super) struct RawReady {
    user: RawUser,
    application: RawId,
    session_id: String,
    shard: Option<(u64, u64)>,
    #[serde(default, deserialize_with = "or_null")]
    guilds: Vec<RawId>,
}

impl From<RawReady> for super::ReadyEvent {
    fn from(ready: RawReady) -> Self {
        Self {
            me: ready.user.into_user(None),
            application: ready.application.id,
            session: ready.session_id,
            shard: ready.shard.map_or(ShardId::ONLY, |(number, count)| ShardId { number, count }),
            guilds: ready.guilds.into_iter().map(|guild| guild.id).collect(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct RawUser {
    id: Snowflake,
    #[serde(default, deserialize_with = "or_null")]
    username: String,
    global_name: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    bot: bool,
}

impl RawUser {
    fn into_user(self, nick: Option<String>) -> User {
        User { id: self.id, name: self.username, display_name: nick.or(self.global_name), bot: self.bot }
    }
}

#[derive(Deserialize, Default)]
struct RawMember {
    user: Option<RawUser>,
    nick: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    roles: Vec<Snowflake>,
}

impl RawMember {
    fn into_member(self, user: RawUser) -> Member {
        Member { user: user.into_user(self.nick), roles: self.roles }
    }
}

#[derive(Deserialize)]
struct RawAttachment {
    #[serde(default, deserialize_with = "or_null")]
    filename: String,
    url: String,
    #[serde(default, deserialize_with = "or_null")]
    size: u64,
    content_type: Option<String>,
}

impl From<RawAttachment> for Attachment {
    fn from(file: RawAttachment) -> Self {
        Self { name: file.filename, url: file.url, size: file.size, mime: file.content_type }
    }
}

fn files(files: Vec<RawAttachment>) -> Vec<Attachment> {
    files.into_iter().map(Into::into).collect()
}

#[derive(Deserialize)]
pub(super) struct RawMessage {
    id: Snowflake,
    channel_id: Snowflake,
    guild_id: Option<Snowflake>,
    author: RawUser,
    #[serde(default, deserialize_with = "or_null")]
    member: RawMember,
    webhook_id: Option<Snowflake>,
    application_id: Option<Snowflake>,
    #[serde(rename = "type", default, deserialize_with = "or_null")]
    kind: u64,
    #[serde(default, deserialize_with = "or_null")]
    content: String,
    #[serde(default, deserialize_with = "or_null")]
    attachments: Vec<RawAttachment>,
    #[serde(default, deserialize_with = "or_null")]
    mentions: Vec<RawId>,
    nonce: Option<Json>,
    #[serde(default)]
    components: Json,
}

impl From<RawMessage> for super::Message {
    fn from(message: RawMessage) -> Self {
        Self {
            id: message.id,
            channel: message.channel_id,
            guild: message.guild_id,
            author: message.member.into_member(message.author),
            webhook: message.webhook_id,
            application: message.application_id,
            kind: message.kind,
            text: message.content,
            attachments: files(message.attachments),
            mentions: message.mentions.into_iter().map(|user| user.id).collect(),
            nonce: message.nonce.and_then(|nonce| match nonce {
                Json::String(text) => Some(text),
                Json::Number(number) => Some(number.to_string()),
                _ => None,
            }),
            buttons: buttons(&message.components),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct RawMessageEdit {
    id: Snowflake,
    channel_id: Snowflake,
    author: Option<RawUser>,
    webhook_id: Option<Snowflake>,
    content: Option<String>,
    attachments: Option<Vec<RawAttachment>>,
    edited_timestamp: Option<String>,
}

impl From<RawMessageEdit> for super::MessageEdit {
    fn from(edit: RawMessageEdit) -> Self {
        Self {
            id: edit.id,
            channel: edit.channel_id,
            author: edit.author.map(|author| author.into_user(None)),
            webhook: edit.webhook_id,
            text: edit.content,
            attachments: edit.attachments.map(files),
            by_author: edit.edited_timestamp.is_some(),
        }
    }
}

/// Collects the custom ids of all rows. Components of another type or shape are skipped.
fn buttons(components: &Json) -> Vec<String> {
    let rows = components.as_array().into_iter().flatten();
    let buttons = rows.filter_map(|row| row["components"].as_array()).flatten();
    buttons.filter_map(|button| button["custom_id"].as_str().map(str::to_owned)).collect()
}

#[derive(Deserialize, Default)]
struct RawThreadMetadata {
    #[serde(default, deserialize_with = "or_null")]
    archived: bool,
    #[serde(default, deserialize_with = "or_null")]
    auto_archive_duration: u64,
    archive_timestamp: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RawThread {
    id: Snowflake,
    guild_id: Option<Snowflake>,
    parent_id: Option<Snowflake>,
    /// Mandatory: the state of the thread's binding depends on `archived`.
    thread_metadata: RawThreadMetadata,
}

impl From<RawThread> for super::Thread {
    fn from(thread: RawThread) -> Self {
        let metadata = thread.thread_metadata;
        Self {
            id: thread.id,
            guild: thread.guild_id,
            parent: thread.parent_id,
            archived: metadata.archived,
            auto_archive_minutes: metadata.auto_archive_duration,
            archived_at: metadata.archive_timestamp,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct RawThreadList {
    pub(super) threads: Vec<RawThread>,
}

#[derive(Deserialize)]
pub(super) struct RawInteraction {
    #[serde(rename = "type")]
    pub(super) kind: u64,
    #[serde(flatten)]
    pub(super) interaction: RawInteractionContext,
    pub(super) data: Option<RawInteractionData>,
    pub(super) message: Option<RawId>,
}

/// Channel with its type: only a thread's parent is a channel, any other parent is a category.
#[derive(Deserialize)]
struct RawChannel {
    id: Snowflake,
    #[serde(rename = "type")]
    kind: Option<u64>,
    parent_id: Option<Snowflake>,
}

impl RawChannel {
    fn is_thread(&self) -> Option<bool> {
        self.kind.map(|kind| (10..=12).contains(&kind))
    }
}

#[derive(Deserialize)]
pub(super) struct RawInteractionContext {
    id: Snowflake,
    application_id: Snowflake,
    token: String,
    guild_id: Option<Snowflake>,
    channel_id: Option<Snowflake>,
    channel: Option<RawChannel>,
    member: Option<RawMember>,
    user: Option<RawUser>,
}

impl RawInteractionContext {
    pub(super) fn into_interaction(self) -> Result<super::Interaction, DecodeError> {
        let missing = |what: &str| DecodeError(format!("an interaction without {what}"));
        let mut member = self.member.unwrap_or_default();
        let user = member.user.take().or(self.user).ok_or_else(|| missing("a user"))?;
        let place = self.channel.as_ref();
        let channel = self.channel_id.or_else(|| place.map(|channel| channel.id));
        Ok(super::Interaction {
            id: self.id,
            application: self.application_id,
            token: Secret::new(self.token),
            guild: self.guild_id,
            channel: channel.ok_or_else(|| missing("a channel"))?,
            parent: place.filter(|it| it.is_thread() == Some(true)).and_then(|channel| channel.parent_id),
            is_thread: place.and_then(RawChannel::is_thread),
            member: member.into_member(user),
        })
    }
}

#[derive(Deserialize, Default)]
pub(super) struct RawInteractionData {
    pub(super) name: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    options: Vec<RawOption>,
    pub(super) custom_id: Option<String>,
    #[serde(default)]
    components: Json,
}

impl RawInteractionData {
    /// Values of the text inputs of a modal, which stand in rows or labels. Other components are skipped.
    pub(super) fn values(&self) -> Vec<(String, String)> {
        let rows = self.components.as_array().into_iter().flatten();
        let of_row = |row: &Json| {
            row["components"].as_array().cloned().unwrap_or_else(|| vec![row["component"].clone()])
        };
        let value = |input: Json| {
            let text = |name: &str| input.get(name).and_then(Json::as_str).map(str::to_owned);
            Some((text("custom_id")?, text("value")?))
        };
        rows.flat_map(of_row).filter_map(value).collect()
    }

    /// Options of a command.
    pub(super) fn given_options(&self) -> Result<Vec<GivenOption>, DecodeError> {
        self.options.iter().map(RawOption::to_given_option).collect()
    }
}

#[derive(Deserialize)]
struct RawOption {
    name: String,
    #[serde(rename = "type")]
    kind: u64,
    #[serde(default)]
    value: Json,
    #[serde(default, deserialize_with = "or_null")]
    options: Vec<RawOption>,
    #[serde(default, deserialize_with = "or_null")]
    focused: bool,
}

impl RawOption {
    /// Reads a value by its option type (documentation, "Application Command Option Type"). An option that is
    /// still being typed is a text, regardless of type.
    fn to_given_option(&self) -> Result<GivenOption, DecodeError> {
        let wrong = || DecodeError(format!("an option of type {} with a value of another type", self.kind));
        let value = match (self.kind, &self.value) {
            (1 | 2, _) => {
                Value::Sub(self.options.iter().map(Self::to_given_option).collect::<Result<_, _>>()?)
            }
            (_, Json::String(text)) if self.focused || self.kind == 3 => Value::Text(text.clone()),
            (_, Json::Number(number)) if self.focused => Value::Text(number.to_string()),
            (4, value) => Value::Integer(value.as_i64().ok_or_else(wrong)?),
            (5, value) => Value::Bool(value.as_bool().ok_or_else(wrong)?),
            (3, _) => return Err(wrong()),
            _ => Value::Other,
        };
        Ok(GivenOption { name: self.name.clone(), value, focused: self.focused })
    }
}
