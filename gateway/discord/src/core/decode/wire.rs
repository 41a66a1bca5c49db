//! JSON models of gateway events, reduced to the fields in use. A field that may be absent may also be null.

use super::*;

pub(super) const COMMAND: u64 = 2;
pub(super) const COMPONENT: u64 = 3;
pub(super) const AUTOCOMPLETE: u64 = 4;
pub(super) const MODAL: u64 = 5;
/// Channel type of private threads.
const PRIVATE_THREAD: u64 = 12;

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

/// Deserializes permission bits, which Discord writes as a string.
fn bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Snowflake>::deserialize(deserializer)?.map(|bits| bits.0))
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
pub(super) struct RawDeletedThread {
    pub(super) id: Snowflake,
    #[serde(default)]
    pub(super) parent_id: Option<Snowflake>,
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
    #[serde(default)]
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
            shard: ready.shard.unwrap_or((0, 1)),
            guilds: ready.guilds.into_iter().map(|guild| guild.id).collect(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct RawUser {
    id: Snowflake,
    #[serde(default, deserialize_with = "or_null")]
    username: String,
    #[serde(default)]
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
    #[serde(default)]
    user: Option<RawUser>,
    #[serde(default)]
    nick: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    roles: Vec<Snowflake>,
    #[serde(default, deserialize_with = "bits")]
    permissions: Option<u64>,
}

impl RawMember {
    fn into_member(self, user: RawUser) -> Member {
        Member { user: user.into_user(self.nick), roles: self.roles, permissions: self.permissions }
    }
}

#[derive(Deserialize)]
struct RawAttachment {
    id: Snowflake,
    #[serde(default, deserialize_with = "or_null")]
    filename: String,
    url: String,
    #[serde(default, deserialize_with = "or_null")]
    size: u64,
    #[serde(default)]
    content_type: Option<String>,
}

impl From<RawAttachment> for Attachment {
    fn from(file: RawAttachment) -> Self {
        Self { id: file.id, name: file.filename, url: file.url, size: file.size, mime: file.content_type }
    }
}

fn files(files: Vec<RawAttachment>) -> Vec<Attachment> {
    files.into_iter().map(Into::into).collect()
}

#[derive(Deserialize)]
struct RawReference {
    #[serde(default)]
    message_id: Option<Snowflake>,
}

#[derive(Deserialize)]
pub(super) struct RawMessage {
    id: Snowflake,
    channel_id: Snowflake,
    #[serde(default)]
    guild_id: Option<Snowflake>,
    author: RawUser,
    #[serde(default, deserialize_with = "or_null")]
    member: RawMember,
    #[serde(default)]
    webhook_id: Option<Snowflake>,
    #[serde(default)]
    application_id: Option<Snowflake>,
    #[serde(rename = "type", default, deserialize_with = "or_null")]
    kind: u64,
    #[serde(default, deserialize_with = "or_null")]
    content: String,
    #[serde(default, deserialize_with = "or_null")]
    attachments: Vec<RawAttachment>,
    #[serde(default, deserialize_with = "or_null")]
    mentions: Vec<RawId>,
    #[serde(default, deserialize_with = "or_null")]
    mention_roles: Vec<Snowflake>,
    #[serde(default)]
    message_reference: Option<RawReference>,
    #[serde(default)]
    nonce: Option<Json>,
    #[serde(default)]
    components: Json,
    #[serde(default, deserialize_with = "or_null")]
    flags: u64,
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
            mention_roles: message.mention_roles,
            reference: message.message_reference.and_then(|reference| reference.message_id),
            nonce: message.nonce.and_then(|nonce| match nonce {
                Json::String(text) => Some(text),
                Json::Number(number) => Some(number.to_string()),
                _ => None,
            }),
            buttons: buttons(&message.components),
            flags: message.flags,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct RawMessageEdit {
    id: Snowflake,
    channel_id: Snowflake,
    #[serde(default)]
    author: Option<RawUser>,
    #[serde(default)]
    webhook_id: Option<Snowflake>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    attachments: Option<Vec<RawAttachment>>,
    #[serde(default)]
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
    locked: bool,
    #[serde(default, deserialize_with = "or_null")]
    auto_archive_duration: u64,
    #[serde(default)]
    archive_timestamp: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RawThread {
    id: Snowflake,
    #[serde(default)]
    guild_id: Option<Snowflake>,
    #[serde(default)]
    parent_id: Option<Snowflake>,
    #[serde(default, deserialize_with = "or_null")]
    name: String,
    #[serde(default)]
    owner_id: Option<Snowflake>,
    #[serde(rename = "type", default, deserialize_with = "or_null")]
    kind: u64,
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
            name: thread.name,
            owner: thread.owner_id,
            private: thread.kind == PRIVATE_THREAD,
            archived: metadata.archived,
            locked: metadata.locked,
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
    #[serde(default)]
    pub(super) data: Option<RawInteractionData>,
    #[serde(default)]
    pub(super) message: Option<RawId>,
}

/// Channel with its type: only a thread's parent is a channel, any other parent is a category.
#[derive(Deserialize)]
struct RawChannel {
    id: Snowflake,
    #[serde(default, rename = "type")]
    kind: Option<u64>,
    #[serde(default)]
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
    #[serde(default)]
    guild_id: Option<Snowflake>,
    #[serde(default)]
    channel_id: Option<Snowflake>,
    #[serde(default)]
    channel: Option<RawChannel>,
    #[serde(default)]
    member: Option<RawMember>,
    #[serde(default)]
    user: Option<RawUser>,
    #[serde(default, deserialize_with = "bits")]
    app_permissions: Option<u64>,
    #[serde(default)]
    locale: Option<String>,
    #[serde(default)]
    attachment_size_limit: Option<u64>,
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
            app_permissions: self.app_permissions,
            locale: self.locale,
            attachment_limit: self.attachment_size_limit,
        })
    }
}

#[derive(Deserialize, Default)]
pub(super) struct RawInteractionData {
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    options: Vec<RawOption>,
    #[serde(default, deserialize_with = "or_null")]
    resolved: RawResolved,
    #[serde(default)]
    pub(super) custom_id: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    pub(super) values: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    components: Vec<RawComponent>,
}

impl RawInteractionData {
    /// Options of a command.
    pub(super) fn given_options(&self) -> Result<Vec<GivenOption>, DecodeError> {
        self.options.iter().map(|option| option.to_given_option(&self.resolved)).collect()
    }

    /// Fields of a form: nested in rows (the old format) or in labels (the current one).
    pub(super) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let mut left: Vec<&RawComponent> = self.components.iter().rev().collect();
        while let Some(component) = left.pop() {
            if let (Some(id), Some(value)) = (&component.custom_id, &component.value) {
                fields.push((id.clone(), value.clone()));
            }
            left.extend(component.component.as_deref());
            left.extend(component.components.iter().rev());
        }
        fields
    }
}

#[derive(Deserialize)]
struct RawComponent {
    #[serde(default)]
    custom_id: Option<String>,
    #[serde(default)]
    value: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    components: Vec<RawComponent>,
    #[serde(default)]
    component: Option<Box<RawComponent>>,
}

#[derive(Deserialize, Default)]
struct RawResolved {
    #[serde(default, deserialize_with = "or_null")]
    attachments: BTreeMap<String, Json>,
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
    fn to_given_option(&self, resolved: &RawResolved) -> Result<GivenOption, DecodeError> {
        let wrong = || DecodeError(format!("an option of type {} with a value of another type", self.kind));
        let id = || parse::<Snowflake>(&self.value).map_err(|_| wrong());
        let value = match (self.kind, &self.value) {
            (1 | 2, _) => Value::Sub(
                self.options
                    .iter()
                    .map(|option| option.to_given_option(resolved))
                    .collect::<Result<_, _>>()?,
            ),
            (_, Json::String(text)) if self.focused || self.kind == 3 => Value::Text(text.clone()),
            (_, Json::Number(number)) if self.focused => Value::Text(number.to_string()),
            (4, value) => Value::Integer(value.as_i64().ok_or_else(wrong)?),
            (5, value) => Value::Bool(value.as_bool().ok_or_else(wrong)?),
            (6..=9, _) => Value::Id(id()?),
            (10, value) => Value::Number(value.as_f64().ok_or_else(wrong)?),
            (11, _) => {
                let file = resolved.attachments.get(&id()?.to_string()).ok_or_else(wrong)?;
                Value::File(parse::<RawAttachment>(file)?.into())
            }
            _ => return Err(wrong()),
        };
        Ok(GivenOption { name: self.name.clone(), value, focused: self.focused })
    }
}
