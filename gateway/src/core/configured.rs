//! Bindings of the configuration (`[[bindings]]`), decided: which entry speaks for a conversation, which session works
//! there, and when another one takes its place.
//!
//! The entry that names the conversation itself goes before one that names the conversation around it, and an account
//! by name before `*`. A thread joins the session of the channel that it inherits from. What a person binds goes before
//! what is configured, as long as it leads somewhere. An entry that changed takes hold with the next message, once the
//! session has nothing to do: no turn is lost to a reload. Source: `openclaw.md` §1.1, §1.5 and D15.

use crate::config::bindings::{ANY_ACCOUNT, Binding};
use crate::core::binding::Stale;
use crate::core::route::Target;
use crate::core::rows::{BindingRow, ConversationRef, SessionMode};
use crate::core::session::SessionState;
use acp_shared::ids::{AgentName, IdError, SessionKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Under which a binding's row says what it was made from.
const METADATA: &str = "configured";
/// Under which it says which message had it made; the store reads it when it writes the row.
const SINCE: &str = "since";
/// As much of a name as a session's key shows.
const SHOWN_CHARS: usize = 32;
/// As many bytes of the conversation's hash as a session's key shows.
const HASH_BYTES: usize = 8;

/// What of an entry makes a session another one. A label and permissions count for new sessions only, and what a person
/// changes of a session is theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// The conversation that the entry names: the session's home, also for the threads below it.
    pub(crate) home: String,
    /// The agent.
    pub(crate) agent: AgentName,
    /// The session's mode.
    pub(crate) mode: SessionMode,
    /// The backend that the entry names.
    pub(crate) backend: Option<String>,
    /// The directory that the entry names.
    pub(crate) cwd: Option<String>,
}

impl Made {
    /// What an entry makes; `None` for one without an agent, which is no valid one.
    pub(crate) fn of(entry: &Binding) -> Option<Self> {
        Some(Self {
            home: entry.conversation.clone(),
            agent: entry.agent.clone()?,
            mode: entry.mode,
            backend: entry.backend.clone(),
            cwd: entry.cwd.as_ref().map(|cwd| cwd.display().to_string()),
        })
    }

    /// What a binding's row was made from, if that was the configuration.
    pub(crate) fn read(metadata: &str) -> Option<Self> {
        let mut metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
        serde_json::from_value(metadata.get_mut(METADATA)?.take()).ok()
    }

    /// For a binding's row. With the message that had it made, where it has an id that grows: what was said after that
    /// one and before the row was written is read too.
    pub(crate) fn metadata(&self, since: Option<&str>) -> String {
        serde_json::json!({ METADATA: self, SINCE: since }).to_string()
    }

    /// What is different, in the names of the keys.
    fn differs(&self, from: &Self) -> Vec<&'static str> {
        let keys = [
            ("conversation", self.home != from.home),
            ("agent", self.agent != from.agent),
            ("mode", self.mode != from.mode),
            ("backend", self.backend != from.backend),
            ("cwd", self.cwd != from.cwd),
        ];
        keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

/// The entry that speaks for a conversation, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    /// Its place in the table, from 0.
    pub(crate) number: usize,
    /// Itself.
    pub(crate) entry: &'a Binding,
}

/// The entry that speaks for a conversation: direct before inherited, and an account by name before `*`.
pub(crate) fn find<'a>(table: &'a [Binding], at: &ConversationRef) -> Option<Found<'a>> {
    let entry = |conversation: &str, account: &str| {
        let fits = |it: &Binding| {
            it.channel == at.channel && it.account == account && it.conversation == conversation
        };
        let number = table.iter().position(fits)?;
        Some(Found { number, entry: &table[number] })
    };
    let in_conversation = |id: &str| entry(id, &at.account_id).or_else(|| entry(id, ANY_ACCOUNT));
    in_conversation(&at.conversation_id)
        .or_else(|| at.parent_conversation_id.as_deref().and_then(in_conversation))
}

/// The key of the first session of a conversation's entry; later ones have it with a number.
///
/// # Errors
/// None is known: every character of it is one of a key's.
pub(crate) fn first_key(
    agent: &AgentName,
    (channel, account_id, home): (&str, &str, &str),
) -> Result<SessionKey, IdError> {
    let shown = |name: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        name.chars().take(SHOWN_CHARS).map(plain).collect::<String>()
    };
    let hash = Sha256::digest(format!("{channel}:{account_id}:{home}").as_bytes());
    let hash: String = hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let agent: String = agent.as_str().chars().take(2 * SHOWN_CHARS).collect();
    SessionKey::parse(&format!("agent:{agent}:acp:binding:{}:{}:{hash}", shown(channel), shown(account_id)))
}

/// The key of the session after `before` others under the first one's: the first, then `…:2`, `…:3` and so on.
///
/// # Errors
/// None is known.
pub(crate) fn next_key(first: &SessionKey, before: u64) -> Result<SessionKey, IdError> {
    match before {
        0 => Ok(first.clone()),
        before => SessionKey::parse(&format!("{first}:{}", before.saturating_add(1))),
    }
}

/// A session that the configuration made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Under {
    /// Which one.
    pub(crate) session_key: SessionKey,
    /// Where it is.
    pub(crate) state: SessionState,
    /// What its bindings say it was made from.
    pub(crate) made: Option<Made>,
    /// Whether it has runs that have not ended.
    pub(crate) busy: bool,
}

/// What is known when a message comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen<'a> {
    /// The conversation's binding that has not ended, and what is known of its session.
    pub(crate) binding: Option<(&'a BindingRow, Target)>,
    /// Whether that session has runs that have not ended.
    pub(crate) busy: bool,
    /// The newest session under the key of the entry that speaks for the conversation.
    pub(crate) under: Option<&'a Under>,
}

/// A session that the configuration is done with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Which one.
    pub(crate) session_key: SessionKey,
    /// The keys whose values are other ones; none when the entry is gone.
    pub(crate) changed: Vec<String>,
}

impl Done {
    fn new(session_key: &SessionKey, changed: &[&str]) -> Self {
        let changed = changed.iter().map(|&key| key.to_owned()).collect();
        Self { session_key: session_key.clone(), changed }
    }

    /// Why it is closed, for the record and for the conversation.
    pub(crate) fn reason(&self) -> String {
        if self.changed.is_empty() {
            return "the configuration binds this conversation no more".to_owned();
        }
        format!("the configuration of this conversation has another {}", self.changed.join(" and another "))
    }
}

/// What is done before a message is routed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing: it is bound as configured, by a person, or not at all.
    Leave,
    /// A session is closed, and nothing takes its place.
    Withdraw(Done),
    /// The conversation is bound to a session that is there, or else to a new one, once what is done with is closed.
    Bind(Bind),
}

/// See [`Act::Bind`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bind {
    /// What the session is made from.
    pub(crate) made: Made,
    /// The session that is there; `None` makes a new one.
    pub(crate) to: Option<SessionKey>,
    /// The one that is closed before.
    pub(crate) after: Option<Done>,
}

impl Bind {
    /// A session that is gone does not take the place of itself.
    fn after(self, done: Done) -> Act {
        let to = self.to.filter(|to| *to != done.session_key);
        Act::Bind(Self { to, after: Some(done), ..self })
    }
}

/// Decides it.
pub(crate) fn decide(table: &[Binding], at: &ConversationRef, seen: Seen<'_>) -> Act {
    let want = find(table, at).and_then(|found| Made::of(found.entry));
    let bound = seen.binding.filter(|(_, target)| Stale::of(*target).is_none());
    match (bound.map(|(row, _)| (row, Made::read(&row.metadata))), want) {
        (Some((_, None)), _) | (None, None) => Act::Leave,
        (Some((row, Some(made))), want) => kept_or_not(table, at, (row, made, seen.busy), want, seen.under),
        (None, Some(want)) => Act::Bind(taken_up(want, seen.under)),
    }
}

/// A conversation that is bound as it was configured once.
fn kept_or_not(
    table: &[Binding],
    at: &ConversationRef,
    (row, made, busy): (&BindingRow, Made, bool),
    want: Option<Made>,
    under: Option<&Under>,
) -> Act {
    let home =
        ConversationRef { conversation_id: made.home.clone(), parent_conversation_id: None, ..at.clone() };
    let at_home = find(table, &home).and_then(|found| Made::of(found.entry));
    // Whether its session is still the one that works at its home, whatever this conversation is bound to now.
    let stands = at_home.as_ref() == Some(&made);
    match want {
        Some(want) if want == made => Act::Leave,
        // A channel that does not name the conversation around this one every time.
        None if stands => Act::Leave,
        Some(want) if stands => Act::Bind(taken_up(want, under)),
        _ if busy => Act::Leave,
        None => Act::Withdraw(Done::new(&row.session_key, &[])),
        Some(want) => {
            let done = Done::new(&row.session_key, &want.differs(&made));
            taken_up(want, under).after(done)
        }
    }
}

/// A conversation that is bound to nothing yet, or to another session than the configured one.
fn taken_up(want: Made, under: Option<&Under>) -> Bind {
    let Some(under) = under.filter(|under| under.state != SessionState::Closed) else {
        return Bind { made: want, to: None, after: None };
    };
    match &under.made {
        Some(made) if *made != want && !under.busy => {
            let done = Done::new(&under.session_key, &want.differs(made));
            Bind { made: want, to: None, after: Some(done) }
        }
        // What it was made from stands in its row, so that a change that waited is seen with the next message.
        made => Bind { made: made.clone().unwrap_or(want), to: Some(under.session_key.clone()), after: None },
    }
}

#[cfg(test)]
#[path = "configured_tests.rs"]
mod tests;
