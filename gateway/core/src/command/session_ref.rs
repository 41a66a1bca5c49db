//! Resolution of a command's session: the one named by the person, otherwise the one bound to this
//! conversation, otherwise the requesting session. An ambiguous or unknown name is an error; there is no
//! guessing. Source: openclaw.md §2 "Target resolution".

use crate::command::tokenizer::quote_word;
use crate::failure::Failure;
use crate::route::Route;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;

/// Minimum length of an id prefix, in characters.
const PREFIX_CHARS_MIN: usize = 4;
/// Maximum number of sessions listed in the error for an ambiguous name.
const NAMED_MAX: usize = 5;

/// Session that a name may refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCandidate {
    /// Key of the session.
    pub session_key: SessionKey,
    /// The agent's own id of the conversation, once it has one.
    pub agent_session_id: Option<String>,
    /// Label given by a person.
    pub label: Option<String>,
}

impl SessionCandidate {
    /// Last part of the key, unique within this gateway.
    fn id(&self) -> &str {
        let key = self.session_key.as_str();
        key.rsplit_once(':').map_or(key, |(_, id)| id)
    }
}

/// Ways to match a name, in order of precedence: the first one that matches any session decides.
const MATCHERS: [fn(&SessionCandidate, &str) -> bool; 5] = [
    |it, name| it.session_key.as_str() == name,
    |it, name| it.session_key.as_str().eq_ignore_ascii_case(name),
    |it, name| it.id().eq_ignore_ascii_case(name) || it.agent_session_id.as_deref() == Some(name),
    |it, name| it.label.as_deref() == Some(name),
    |it, name| {
        name.chars().count() >= PREFIX_CHARS_MIN
            && it.id().get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    },
];

/// Finds a session by key, id, the agent's conversation id, label, or prefix of the id.
///
/// # Errors
/// `NO_SESSION`; with the detail `SESSION_AMBIGUOUS` if several match.
pub fn find_session(name: &str, candidates: &[SessionCandidate]) -> Result<SessionKey, Failure> {
    for fits in MATCHERS {
        let mut found: Vec<&SessionKey> =
            candidates.iter().filter(|it| fits(it, name)).map(|it| &it.session_key).collect();
        found.sort_by_key(|key| key.as_str());
        found.dedup();
        match found.as_slice() {
            [] => {}
            [only] => return Ok((*only).clone()),
            several => {
                let keys: Vec<&str> = several.iter().take(NAMED_MAX).map(|key| key.as_str()).collect();
                let more = if several.len() > NAMED_MAX { ", …" } else { "" };
                let text = format!(
                    "{} matches several sessions: {}{more}. Use the key.",
                    quote_word(name),
                    keys.join(", ")
                );
                return Err(Failure::new(Code::NoSession, text).detail("SESSION_AMBIGUOUS").origin("client"));
            }
        }
    }
    let text = format!("No session has the key, id or label {}.", quote_word(name));
    Err(Failure::new(Code::NoSession, text).origin("client"))
}

/// Returns the session of an unnamed command: the bound one, otherwise the requesting one.
///
/// # Errors
/// `ACP_NOT_BOUND`; the reason why a binding is refused, without falling back to the requesting session.
pub fn default_session(here: Route, requester: Option<&SessionKey>) -> Result<SessionKey, Failure> {
    match (here, requester) {
        (Route::Bound { session_key, .. }, _) => Ok(session_key),
        (Route::Refused { failure, .. }, _) => Err(failure),
        (Route::Unbound { .. }, Some(own)) => Ok(own.clone()),
        (Route::Unbound { .. }, None) => Err(Failure::of(Code::NotBound)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::UnboundDestination;
    use acp_shared::ids::BindingId;

    fn key(text: &str) -> SessionKey {
        SessionKey::parse(text).unwrap()
    }

    fn candidate(key: &str, agent_session_id: &str, label: &str) -> SessionCandidate {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        SessionCandidate {
            session_key: self::key(key),
            agent_session_id: some(agent_session_id),
            label: some(label),
        }
    }

    #[test]
    fn name_matches_key_then_id_then_label_then_id_prefix() {
        let all = [
            candidate("agent:a:acp:01a1-one", "their-1", "one"),
            candidate("agent:a:acp:01a1-two", "their-2", "twin"),
            candidate("agent:b:acp:01b2-tri", "their-2", "twin"),
            // Labels equal to an id, to a prefix of an id, and to a key.
            candidate("agent:c:acp:four", "", "01a1-one"),
            candidate("agent:c:acp:five", "", "01b2"),
            candidate("agent:c:acp:six", "", "agent:a:acp:01a1-two"),
        ];
        for (name, want) in [
            ("agent:a:acp:01a1-one", Ok("agent:a:acp:01a1-one")),
            ("Agent:A:acp:01A1-ONE", Ok("agent:a:acp:01a1-one")),
            ("agent:a:acp:01a1-two", Ok("agent:a:acp:01a1-two")),
            ("01a1-one", Ok("agent:a:acp:01a1-one")),
            ("their-1", Ok("agent:a:acp:01a1-one")),
            ("one", Ok("agent:a:acp:01a1-one")),
            ("01b2", Ok("agent:c:acp:five")),
            ("01b2-", Ok("agent:b:acp:01b2-tri")),
            ("01A1-T", Ok("agent:a:acp:01a1-two")),
            ("01a1", Err(Some("SESSION_AMBIGUOUS"))),
            ("their-2", Err(Some("SESSION_AMBIGUOUS"))),
            ("twin", Err(Some("SESSION_AMBIGUOUS"))),
            ("01b", Err(None)),
            ("fiv", Err(None)),
            ("One", Err(None)),
            ("none", Err(None)),
            ("", Err(None)),
        ] {
            let found = find_session(name, &all);
            let found = found.as_ref().map(SessionKey::as_str).map_err(|failure| {
                assert_eq!(failure.code, Code::NoSession);
                failure.detail_code.as_deref()
            });
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn ambiguous_name_lists_candidates() {
        let all: Vec<SessionCandidate> =
            (0..9).map(|n| candidate(&format!("agent:a:acp:{n}"), "", "twin")).collect();
        let failure = find_session("twin", &all).unwrap_err();
        let keys: Vec<String> = (0..5).map(|n| format!("agent:a:acp:{n}")).collect();
        let want = format!("\"twin\" matches several sessions: {}, …. Use the key.", keys.join(", "));
        assert_eq!(failure.message, want);
        // A repeated candidate is not ambiguous.
        assert_eq!(find_session("twin", &[all[0].clone(), all[0].clone()]), Ok(key("agent:a:acp:0")));
    }

    #[test]
    fn default_session_is_binding_then_requester() {
        let (own, bound) = (key("agent:own:acp:1"), key("agent:bound:acp:1"));
        let is_bound = Route::Bound {
            binding_id: BindingId::mint(),
            session_key: bound.clone(),
            reason: "active-binding",
        };
        let unbound = Route::Unbound { destination: UnboundDestination::Hint, reason: "no-binding" };
        let stale = Route::Refused { failure: Failure::of(Code::StaleBinding), reason: "session-missing" };
        for (here, requester, want) in [
            (is_bound.clone(), None, Ok(&bound)),
            (is_bound, Some(&own), Ok(&bound)),
            (unbound.clone(), Some(&own), Ok(&own)),
            (unbound, None, Err(Code::NotBound)),
            (stale.clone(), None, Err(Code::StaleBinding)),
            (stale, Some(&own), Err(Code::StaleBinding)),
        ] {
            let found = default_session(here.clone(), requester);
            assert_eq!(found.as_ref().map_err(|failure| failure.code), want, "{here:?} {requester:?}");
        }
    }
}
