//! Reader of gateway events into [`Event`]s, asking for no more fields than are used.
//!
//! Serenity's models require every documented field, and fail if one is missing. This reader requires only
//! the fields in use, so that a field that Discord removes does no harm. Messages in responses are read by
//! the same code, so a message read by a backfill is equal to the same message from an event.
#![deny(clippy::indexing_slicing)]

use super::event::{
    Attachment, Click, Event, GivenOption, Interaction, Member, Message, MessageEdit, ReadyEvent, ShardId,
    SlashCommand, Submission, Thread, User, Value,
};
use super::ids::Snowflake;
use acp_shared::redact::Secret;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

mod wire;

/// Reason why an event could not be parsed: the field and the error. Never contains message content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub String);

/// Result of reading an event.
#[derive(Debug, Clone, PartialEq)]
pub enum DecodedEvent {
    /// Events to pass on.
    Events(Vec<Event>),
    /// Known but unused kind, for example presence, typing or reactions.
    Ignored,
    /// Unknown kind.
    Unknown,
}

/// Known but unused kinds. A kind that is neither read nor in this list is counted and reported.
const IGNORED: [&str; 56] = [
    "APPLICATION_COMMAND_PERMISSIONS_UPDATE",
    "AUTO_MODERATION_ACTION_EXECUTION",
    "AUTO_MODERATION_RULE_CREATE",
    "AUTO_MODERATION_RULE_DELETE",
    "AUTO_MODERATION_RULE_UPDATE",
    "CHANNEL_CREATE",
    "CHANNEL_INFO",
    "CHANNEL_PINS_UPDATE",
    "ENTITLEMENT_CREATE",
    "ENTITLEMENT_DELETE",
    "ENTITLEMENT_UPDATE",
    "GUILD_AUDIT_LOG_ENTRY_CREATE",
    "GUILD_BAN_ADD",
    "GUILD_BAN_REMOVE",
    "GUILD_EMOJIS_UPDATE",
    "GUILD_INTEGRATIONS_UPDATE",
    "GUILD_MEMBERS_CHUNK",
    "GUILD_MEMBER_ADD",
    "GUILD_MEMBER_REMOVE",
    "GUILD_MEMBER_UPDATE",
    "GUILD_ROLE_CREATE",
    "GUILD_SCHEDULED_EVENT_CREATE",
    "GUILD_SCHEDULED_EVENT_DELETE",
    "GUILD_SCHEDULED_EVENT_UPDATE",
    "GUILD_SCHEDULED_EVENT_USER_ADD",
    "GUILD_SCHEDULED_EVENT_USER_REMOVE",
    "GUILD_SOUNDBOARD_SOUNDS_UPDATE",
    "GUILD_SOUNDBOARD_SOUND_CREATE",
    "GUILD_SOUNDBOARD_SOUND_DELETE",
    "GUILD_SOUNDBOARD_SOUND_UPDATE",
    "GUILD_STICKERS_UPDATE",
    "GUILD_UPDATE",
    "INTEGRATION_CREATE",
    "INTEGRATION_DELETE",
    "INTEGRATION_UPDATE",
    "INVITE_CREATE",
    "INVITE_DELETE",
    "MESSAGE_POLL_VOTE_ADD",
    "MESSAGE_POLL_VOTE_REMOVE",
    "MESSAGE_REACTION_ADD",
    "MESSAGE_REACTION_REMOVE",
    "MESSAGE_REACTION_REMOVE_ALL",
    "MESSAGE_REACTION_REMOVE_EMOJI",
    "PRESENCE_UPDATE",
    "PRESENCES_REPLACE",
    "SOUNDBOARD_SOUNDS",
    "STAGE_INSTANCE_CREATE",
    "STAGE_INSTANCE_DELETE",
    "STAGE_INSTANCE_UPDATE",
    "THREAD_MEMBERS_UPDATE",
    "THREAD_MEMBER_UPDATE",
    "TYPING_START",
    "USER_UPDATE",
    "VOICE_SERVER_UPDATE",
    "VOICE_STATE_UPDATE",
    "WEBHOOKS_UPDATE",
];

/// Reads an event by its name and its data.
///
/// # Errors
/// [`DecodeError`] if the data of a used kind is not as documented.
pub fn event(kind: &str, data: &Json) -> Result<DecodedEvent, DecodeError> {
    let one = |event| Ok(DecodedEvent::Events(vec![event]));
    match kind {
        "READY" => one(Event::Ready(wire::parse::<wire::RawReady>(data)?.into())),
        "RESUMED" => one(Event::Resumed),
        "MESSAGE_CREATE" => one(Event::Message(Box::new(message(data)?))),
        "MESSAGE_UPDATE" => one(Event::MessageEdited(wire::parse::<wire::RawMessageEdit>(data)?.into())),
        "MESSAGE_DELETE" => {
            let wire::RawDeletedMessage { id, channel_id } = wire::parse(data)?;
            one(Event::MessagesDeleted { channel: channel_id, ids: vec![id] })
        }
        "MESSAGE_DELETE_BULK" => {
            let wire::RawBulkDelete { ids, channel_id } = wire::parse(data)?;
            one(Event::MessagesDeleted { channel: channel_id, ids })
        }
        "INTERACTION_CREATE" => interaction(data)
            .map(|event| event.map_or(DecodedEvent::Ignored, |e| DecodedEvent::Events(vec![e]))),
        "THREAD_CREATE" => one(Event::ThreadCreated(thread(data)?)),
        "THREAD_UPDATE" => one(Event::ThreadChanged(thread(data)?)),
        "THREAD_DELETE" => one(Event::ThreadDeleted(wire::parse::<wire::RawId>(data)?.id)),
        "THREAD_LIST_SYNC" => {
            let threads = wire::parse::<wire::RawThreadList>(data)?.threads;
            Ok(DecodedEvent::Events(
                threads.into_iter().map(|thread| Event::ThreadChanged(thread.into())).collect(),
            ))
        }
        "CHANNEL_UPDATE" => one(Event::ChannelChanged(wire::parse::<wire::RawId>(data)?.id)),
        "CHANNEL_DELETE" => one(Event::ChannelDeleted(wire::parse::<wire::RawId>(data)?.id)),
        "GUILD_CREATE" => {
            let wire::RawGuild { id, unavailable } = wire::parse(data)?;
            one(if unavailable { Event::GuildGone { id, outage: true } } else { Event::GuildBack(id) })
        }
        "GUILD_DELETE" => {
            let wire::RawGuild { id, unavailable } = wire::parse(data)?;
            one(Event::GuildGone { id, outage: unavailable })
        }
        "GUILD_ROLE_DELETE" | "GUILD_ROLE_UPDATE" => {
            one(Event::RightsChanged(wire::parse::<wire::RawGuildEvent>(data)?.guild_id))
        }
        known if IGNORED.contains(&known) => Ok(DecodedEvent::Ignored),
        _ => Ok(DecodedEvent::Unknown),
    }
}

/// Parses a message from an event or a response.
///
/// # Errors
/// [`DecodeError`] if the message is not as documented.
pub fn message(data: &Json) -> Result<Message, DecodeError> {
    wire::parse::<wire::RawMessage>(data).map(Into::into)
}

/// Parses a thread from an event or a response.
///
/// # Errors
/// [`DecodeError`] if the thread is not as documented.
pub fn thread(data: &Json) -> Result<Thread, DecodeError> {
    wire::parse::<wire::RawThread>(data).map(Into::into)
}

/// Parses an interaction. Returns `None` for an unused kind.
fn interaction(data: &Json) -> Result<Option<Event>, DecodeError> {
    let wire::RawInteraction { kind, interaction, data, message } = wire::parse(data)?;
    let missing = |what: &str| DecodeError(format!("an interaction without {what}"));
    let interaction = interaction.into_interaction()?;
    let data = data.unwrap_or_default();
    Ok(Some(match kind {
        wire::COMMAND | wire::AUTOCOMPLETE => {
            let name = data.name.clone().ok_or_else(|| missing("a name"))?;
            let options = data.given_options()?;
            let command = Box::new(SlashCommand { interaction, name, options });
            if kind == wire::COMMAND { Event::Command(command) } else { Event::Autocomplete(command) }
        }
        wire::COMPONENT => Event::Click(Box::new(Click {
            interaction,
            custom_id: data.custom_id.ok_or_else(|| missing("custom_id"))?,
            message: message.ok_or_else(|| missing("a message"))?.id,
        })),
        wire::MODAL_SUBMIT => Event::Submit(Box::new(Submission {
            interaction,
            values: data.values(),
            custom_id: data.custom_id.ok_or_else(|| missing("custom_id"))?,
        })),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests;
