//! Rules for static bindings (`[[bindings]]` in the configuration): the entry for a conversation, the session
//! of that entry, and the replacement of the session after a change.
//!
//! An entry for the conversation itself takes precedence over one for the parent conversation, and a named
//! account over `*`. A thread joins the session of the channel from which it inherits the entry. A person's
//! binding takes precedence over a static one unless stale. A changed entry takes effect with the next
//! message, once the session is idle: a reload interrupts no turn. Source: `openclaw.md` §1.1, §1.5 and D15.

use crate::binding::BoundSession;
use crate::binding::StaleReason;
use crate::config::bindings::{ANY_ACCOUNT, Binding};
use crate::rows::{BindingRow, ConversationRef, SessionMode};
use crate::session::SessionState;
use acp_shared::ids::{AgentName, IdError, SessionKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Key in a binding's metadata for the properties of the entry (`StaticSessionSpec`).
const METADATA: &str = "configured";
/// Key in a binding's metadata for the id of the message that caused the binding. The store starts the
/// backfill there.
const SINCE: &str = "since";
/// Maximum length of a name in a session key, in characters.
const SHOWN_CHARS: usize = 32;
/// Length of the conversation's hash in a session key, in hexadecimal digits.
const HASH_DIGITS: usize = 16;

/// Properties of an entry whose change requires a new session. Label and permissions apply to new sessions
/// only, and changes by a person are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticSessionSpec {
    /// Conversation of the entry. Threads below the conversation use the same session.
    pub home: String,
    /// Agent of the session.
    pub agent: AgentName,
    /// Mode of the session.
    pub mode: SessionMode,
    /// Backend, if set in the entry.
    pub backend: Option<String>,
    /// Working directory, if set in the entry.
    pub cwd: Option<String>,
}

impl StaticSessionSpec {
    /// Returns the properties of an entry; `None` for an invalid entry without an agent.
    pub fn of(entry: &Binding) -> Option<Self> {
        Some(Self {
            home: entry.conversation.clone(),
            agent: entry.agent.clone()?,
            mode: entry.mode,
            backend: entry.backend.clone(),
            cwd: entry.cwd.as_ref().map(|cwd| cwd.display().to_string()),
        })
    }

    /// Reads the properties from a binding's metadata; `None` if the binding is not a static one.
    pub fn from_metadata(metadata: &str) -> Option<Self> {
        let mut metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
        serde_json::from_value(metadata.get_mut(METADATA)?.take()).ok()
    }

    /// Returns the metadata for a static binding. `since` is the id of the message that caused the binding,
    /// in a channel with increasing ids; messages after that id and before the commit are backfilled.
    pub fn metadata(&self, since: Option<&str>) -> String {
        serde_json::json!({ METADATA: self, SINCE: since }).to_string()
    }

    /// Returns the configuration keys with different values.
    fn changed_keys(&self, from: &Self) -> Vec<&'static str> {
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

/// Entry for a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchedEntry<'a> {
    /// Index in the table, from 0.
    pub number: usize,
    /// The entry.
    pub entry: &'a Binding,
}

/// Returns the entry for a conversation: direct before inherited, a named account before `*`.
pub fn find_entry<'a>(table: &'a [Binding], at: &ConversationRef) -> Option<MatchedEntry<'a>> {
    let entry = |conversation: &str, account: &str| {
        let fits = |it: &Binding| {
            it.channel == at.channel && it.account == account && it.conversation == conversation
        };
        let number = table.iter().position(fits)?;
        Some(MatchedEntry { number, entry: &table[number] })
    };
    let in_conversation = |id: &str| entry(id, &at.account_id).or_else(|| entry(id, ANY_ACCOUNT));
    in_conversation(&at.conversation_id)
        .or_else(|| at.parent_conversation_id.as_deref().and_then(in_conversation))
}

/// Returns the key of an entry's first session. The keys of later sessions append a number.
///
/// # Errors
/// None expected: the key contains only valid characters.
pub fn first_key(
    agent: &AgentName,
    channel: &str,
    account_id: &str,
    home: &str,
) -> Result<SessionKey, IdError> {
    let shown = |name: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        name.chars().take(SHOWN_CHARS).map(plain).collect::<String>()
    };
    let hash = Sha256::digest(format!("{channel}:{account_id}:{home}").as_bytes());
    let agent: String = agent.as_str().chars().take(2 * SHOWN_CHARS).collect();
    SessionKey::parse(&format!(
        "agent:{agent}:acp:binding:{}:{}:{hash:.HASH_DIGITS$x}",
        shown(channel),
        shown(account_id)
    ))
}

/// Returns the key of the session after `before` others of the same entry: `first`, then `…:2`, `…:3`.
///
/// # Errors
/// None expected.
pub fn next_key(first: &SessionKey, before: u64) -> Result<SessionKey, IdError> {
    match before {
        0 => Ok(first.clone()),
        before => SessionKey::parse(&format!("{first}:{}", before.saturating_add(1))),
    }
}

/// Session created for a static binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSession {
    /// Key of the session.
    pub session_key: SessionKey,
    /// State of the session.
    pub state: SessionState,
    /// Properties of the entry, as recorded in the session's bindings.
    pub made: Option<StaticSessionSpec>,
    /// True if the session has unfinished runs.
    pub busy: bool,
}

/// State of a conversation when a message arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationState<'a> {
    /// Binding of the conversation that has not ended, with the state of the bound session.
    pub binding: Option<(&'a BindingRow, BoundSession)>,
    /// True if the bound session has unfinished runs.
    pub busy: bool,
    /// Newest session of the entry for the conversation.
    pub under: Option<&'a StaticSession>,
}

/// Session to close after a change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredSession {
    /// Key of the session.
    pub session_key: SessionKey,
    /// Changed configuration keys; empty if the entry was removed.
    pub changed: Vec<String>,
}

impl RetiredSession {
    fn new(session_key: &SessionKey, changed: &[&str]) -> Self {
        let changed = changed.iter().map(|&key| key.to_owned()).collect();
        Self { session_key: session_key.clone(), changed }
    }

    /// Returns the reason of the close, for the journal and the conversation.
    pub fn reason(&self) -> String {
        if self.changed.is_empty() {
            return "the configuration no longer binds this conversation".to_owned();
        }
        format!("the configuration of this conversation changed: {}", self.changed.join(", "))
    }
}

/// Action before a message is routed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StaticBindingAction {
    /// Nothing: unbound, bound by a person, up to date, or busy.
    Leave,
    /// Close the session without a replacement.
    Withdraw(RetiredSession),
    /// Close the replaced session, if any, and bind the conversation to an existing or a new one.
    Bind(BindParams),
}

/// Parameters of [`StaticBindingAction::Bind`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindParams {
    /// Properties of the session.
    pub made: StaticSessionSpec,
    /// Existing session; `None` creates a new one.
    pub to: Option<SessionKey>,
    /// Session to close first.
    pub after: Option<RetiredSession>,
}

impl BindParams {
    /// Adds the session to close first. A closed session is never reused as the target.
    fn replacing(self, done: RetiredSession) -> StaticBindingAction {
        let to = self.to.filter(|to| *to != done.session_key);
        StaticBindingAction::Bind(Self { to, after: Some(done), ..self })
    }
}

/// Returns the action for a message in the conversation `at`.
pub fn static_binding_action(
    table: &[Binding],
    at: &ConversationRef,
    seen: ConversationState<'_>,
) -> StaticBindingAction {
    let want = find_entry(table, at).and_then(|found| StaticSessionSpec::of(found.entry));
    let bound = seen.binding.filter(|(_, target)| StaleReason::of(*target).is_none());
    match (bound.map(|(row, _)| (row, StaticSessionSpec::from_metadata(&row.metadata))), want) {
        (Some((_, None)), _) | (None, None) => StaticBindingAction::Leave,
        (Some((row, Some(made))), want) => decide_bound(table, at, row, made, want, seen),
        (None, Some(want)) => StaticBindingAction::Bind(bind_params(want, seen.under)),
    }
}

/// Returns the action for a conversation with a static binding.
fn decide_bound(
    table: &[Binding],
    at: &ConversationRef,
    row: &BindingRow,
    made: StaticSessionSpec,
    want: Option<StaticSessionSpec>,
    seen: ConversationState<'_>,
) -> StaticBindingAction {
    let home =
        ConversationRef { conversation_id: made.home.clone(), parent_conversation_id: None, ..at.clone() };
    let at_home = find_entry(table, &home).and_then(|found| StaticSessionSpec::of(found.entry));
    // True if the session is still the configured one for its home conversation.
    let stands = at_home.as_ref() == Some(&made);
    match want {
        Some(want) if want == made => StaticBindingAction::Leave,
        // Not a removal: some channels omit the parent conversation in some messages.
        None if stands => StaticBindingAction::Leave,
        Some(want) if stands => StaticBindingAction::Bind(bind_params(want, seen.under)),
        _ if seen.busy => StaticBindingAction::Leave,
        None => StaticBindingAction::Withdraw(RetiredSession::new(&row.session_key, &[])),
        Some(want) => {
            let done = RetiredSession::new(&row.session_key, &want.changed_keys(&made));
            bind_params(want, seen.under).replacing(done)
        }
    }
}

/// Returns the binding for a conversation without one, or bound to a session other than the configured one.
fn bind_params(want: StaticSessionSpec, under: Option<&StaticSession>) -> BindParams {
    let Some(under) = under.filter(|under| under.state != SessionState::Closed) else {
        return BindParams { made: want, to: None, after: None };
    };
    match &under.made {
        Some(made) if *made != want && !under.busy => {
            let done = RetiredSession::new(&under.session_key, &want.changed_keys(made));
            BindParams { made: want, to: None, after: Some(done) }
        }
        // Reuses the recorded properties, so that the next message detects a postponed change.
        made => BindParams {
            made: made.clone().unwrap_or(want),
            to: Some(under.session_key.clone()),
            after: None,
        },
    }
}

#[cfg(test)]
#[path = "static_binding_tests.rs"]
mod tests;
