//! Answers to `session/request_permission`: a pure table over the permission mode, the non-interactive policy
//! and the agent's options.
//!
//! Options are selected by kind and never by name or id, which differ between agents. A request without a
//! matching rule is rejected or asked, never allowed. A lasting option ("always") without a person's answer
//! is selected only in the modes `ApproveAll` and `DenyAll`.
#![deny(clippy::indexing_slicing)]

use crate::backend::PermissionOption;
use crate::nonce::nonce_of;
use crate::rows::{NonInteractive, PermissionMode};
use crate::sanitize;
use acp_shared::ids::LeaseId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Detail code for an answer to a permission request that is not pending.
pub const NOT_PENDING: &str = "PERMISSION_NOT_PENDING";
/// Detail code for an option that the request does not have.
pub const UNKNOWN_OPTION: &str = "PERMISSION_OPTION_UNKNOWN";
/// Detail code for an answer of someone whom the session's rule of voting excludes.
pub const NOT_A_VOTER: &str = "PERMISSION_NOT_A_VOTER";
/// Length of a permission's short id, in characters.
const SHORT_ID_CHARS: usize = 4;

acp_shared::named! {
    /// Rule of a session about who may answer its questions, among those who may answer any.
    #[derive(Default, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Voting {
        /// Everyone; the first valid answer counts.
        #[default]
        First = "first",
        /// Peers on this machine.
        Local = "local",
        /// The sender of the running prompt.
        Owner = "owner",
    }
}

impl Voting {
    /// Returns who may answer a question of a run that this identity asked for.
    pub fn voters(self, asked_by: &str) -> Voters {
        match self {
            Self::First => Voters::Anyone,
            Self::Local => Voters::Local,
            Self::Owner => Voters::Owner(asked_by.to_owned()),
        }
    }
}

/// Who may answer one question, as of the time at which it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Voters {
    /// Everyone who may answer questions.
    #[default]
    Anyone,
    /// Peers on this machine.
    Local,
    /// The sender of the prompt, by identity; nobody if it is empty.
    Owner(String),
}

/// Who answers a question.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Voter {
    /// Name for people.
    pub name: String,
    /// Identity, see [`crate::principal::Principal::id`]; empty if unknown.
    pub id: String,
    /// True if the kernel reports a peer on this machine for this answer.
    pub is_local: bool,
}

impl Voters {
    /// True if everyone may answer.
    pub fn is_anyone(&self) -> bool {
        *self == Self::Anyone
    }

    /// True if this voter may answer.
    pub fn admit(&self, voter: &Voter) -> bool {
        match self {
            Self::Anyone => true,
            Self::Local => voter.is_local,
            Self::Owner(id) => !id.is_empty() && *id == voter.id,
        }
    }

    /// Returns the sentence for one who may not answer.
    pub const fn refusal(&self) -> &'static str {
        match self {
            Self::Anyone => "",
            Self::Local => {
                "Questions of this session are answered from the gateway's own machine only (voting: local)."
            }
            Self::Owner(_) => {
                "Questions of this session are answered by the sender of the running prompt only (voting: owner)."
            }
        }
    }
}

/// Decision about a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionDecision {
    /// Answer with this option, which allows the request.
    Allow(String),
    /// Answer with this option, which rejects the request.
    Reject(String),
    /// Answer `cancelled_result`: rejected, but the agent offers no suitable option.
    Cancel,
    /// Ask a person.
    Ask,
    /// End the run with `PERMISSION_PROMPT_UNAVAILABLE`.
    FailRun,
}

/// Parses the full id of a permission into lease and offset; `None` for any other text, e.g. a prefix.
pub fn parse_permission_id(permission_id: &str) -> Option<(LeaseId, u64)> {
    let (lease_id, at) = permission_id.split_once(':')?;
    let lease_id = LeaseId::parse(lease_id).ok()?;
    let is_plain = !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit());
    Some((lease_id, at.parse().ok().filter(|_| is_plain)?))
}

/// Returns the short id of a permission for people: a hash of the full id. Prefix and suffix of full ids can
/// be equal for requests of one agent, or of the same agent after a restart (H4).
pub fn short_id(permission_id: &str) -> String {
    let mut id = nonce_of(&["permission", permission_id]);
    id.truncate(SHORT_ID_CHARS);
    id
}

/// Decides about a request. `interactive`: a person can be asked. `tool_kind`: ACP's tool kind, if given.
pub fn decide_permission(
    mode: PermissionMode,
    non_interactive: NonInteractive,
    interactive: bool,
    options: &[PermissionOption],
    tool_kind: Option<&str>,
) -> PermissionDecision {
    let of = |kind: &str| options.iter().find(|option| option.kind == kind).map(|option| option.id.clone());
    let reads = matches!(tool_kind, Some("read" | "search"));
    let allowed = match mode {
        PermissionMode::ApproveAll => of("allow_once").or_else(|| of("allow_always")),
        PermissionMode::ApproveReads if reads => of("allow_once"),
        PermissionMode::ApproveReads | PermissionMode::Ask | PermissionMode::DenyAll => None,
    };
    if let Some(id) = allowed {
        return PermissionDecision::Allow(id);
    }
    let reject = |id: Option<String>| id.map_or(PermissionDecision::Cancel, PermissionDecision::Reject);
    match mode {
        PermissionMode::DenyAll => reject(of("reject_once").or_else(|| of("reject_always"))),
        // No option allows the request, so a question would be useless.
        PermissionMode::ApproveAll => reject(of("reject_once")),
        PermissionMode::ApproveReads | PermissionMode::Ask => match (interactive, non_interactive) {
            (true, _) if options.is_empty() => PermissionDecision::Cancel,
            (true, _) => PermissionDecision::Ask,
            (false, NonInteractive::Deny) => reject(of("reject_once")),
            (false, NonInteractive::Fail) => PermissionDecision::FailRun,
        },
    }
}

/// Returns words for an option's kind; `None` for a kind outside of ACP.
pub fn kind_words(kind: &str) -> Option<&'static str> {
    match kind {
        "allow_once" => Some("allow once"),
        "allow_always" => Some("allow always"),
        "reject_once" => Some("reject once"),
        "reject_always" => Some("reject always"),
        _ => None,
    }
}

/// Returns a suffix for an option's name with the words for its kind. Empty if the name begins with the same
/// verb and states the same duration.
pub fn kind_note(name: &str, kind: &str) -> String {
    let Some(words) = kind_words(kind) else { return String::new() };
    let name = sanitize::line(name.trim(), usize::MAX).to_ascii_lowercase();
    let verb = words.split(' ').next().unwrap_or_default();
    let is_lasting = name.contains("always") || name.contains("from now on");
    let is_said = (name.starts_with(verb) || name == format!("always {verb}"))
        && is_lasting == words.ends_with("always");
    if is_said { String::new() } else { format!(" ({words})") }
}

/// Returns the id of the option `reject_once`, if offered.
pub fn reject_once_option(options: &[PermissionOption]) -> Option<String> {
    options.iter().find(|option| option.kind == "reject_once").map(|option| option.id.clone())
}

/// Returns the result that selects an option, JSON text.
pub fn selected_result(option_id: &str) -> String {
    serde_json::json!({ "outcome": { "outcome": "selected", "optionId": option_id } }).to_string()
}

/// Returns the result that selects no option, JSON text.
pub fn cancelled_result() -> String {
    serde_json::json!({ "outcome": { "outcome": "cancelled" } }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use PermissionMode::{ApproveAll, ApproveReads, Ask, DenyAll};

    const KINDS: [&str; 5] = ["allow_once", "allow_always", "reject_once", "reject_always", "maybe"];
    const TOOLS: [Option<&str>; 6] =
        [None, Some("read"), Some("search"), Some("edit"), Some("execute"), Some("READ")];
    const MODES: [PermissionMode; 4] = [ApproveAll, ApproveReads, DenyAll, Ask];

    /// Every subset of the kinds, in both orders, with misleading names.
    fn option_lists() -> Vec<Vec<PermissionOption>> {
        let mut lists = Vec::new();
        for set in 0..1_u32 << KINDS.len() {
            let list: Vec<_> = KINDS
                .iter()
                .enumerate()
                .filter(|(bit, _)| set & (1 << bit) != 0)
                .map(|(_, kind)| PermissionOption {
                    id: format!("id-{kind}"),
                    name: if kind.starts_with("allow") { "No" } else { "Allow everything" }.to_owned(),
                    kind: (*kind).to_owned(),
                })
                .collect();
            lists.push(list.iter().rev().cloned().collect());
            lists.push(list);
        }
        lists
    }

    #[test]
    fn decisions_follow_the_rules_for_every_input() {
        let mut seen = 0;
        for options in option_lists() {
            let has = |kind: &str| options.iter().any(|option| option.kind == kind);
            for mode in MODES {
                for non_interactive in [NonInteractive::Deny, NonInteractive::Fail] {
                    for interactive in [true, false] {
                        for tool in TOOLS {
                            seen += 1;
                            let got = decide_permission(mode, non_interactive, interactive, &options, tool);
                            let at =
                                format!("{mode:?} {non_interactive:?} {interactive} {tool:?} {options:?}");
                            let reads = tool == Some("read") || tool == Some("search");
                            match &got {
                                PermissionDecision::Allow(id) => {
                                    assert!(id.starts_with("id-allow"), "{at}");
                                    let is_read = mode == ApproveReads && reads && id == "id-allow_once";
                                    assert!(mode == ApproveAll || is_read, "{at}");
                                    assert!(id == "id-allow_once" || !has("allow_once"), "{at}");
                                }
                                PermissionDecision::Reject(id) => {
                                    assert!(id.starts_with("id-reject"), "{at}");
                                    assert!(id == "id-reject_once" || mode == DenyAll, "{at}");
                                }
                                PermissionDecision::Ask => {
                                    assert!(interactive && !options.is_empty(), "{at}");
                                    assert!(matches!(mode, Ask | ApproveReads), "{at}");
                                }
                                PermissionDecision::FailRun => {
                                    assert!(!interactive && non_interactive == NonInteractive::Fail, "{at}");
                                    assert!(matches!(mode, Ask | ApproveReads), "{at}");
                                }
                                PermissionDecision::Cancel => {
                                    assert!(!has("reject_once") || options.is_empty(), "{at}")
                                }
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(seen, 64 * 4 * 2 * 2 * 6);
    }

    #[test]
    fn common_cases_are_decided_as_documented() {
        let all: Vec<_> = KINDS
            .iter()
            .map(|kind| PermissionOption {
                id: format!("id-{kind}"),
                name: String::new(),
                kind: (*kind).to_owned(),
            })
            .collect();
        let allow = || PermissionDecision::Allow("id-allow_once".to_owned());
        let reject = || PermissionDecision::Reject("id-reject_once".to_owned());
        let (deny, fail) = (NonInteractive::Deny, NonInteractive::Fail);
        for (mode, non_interactive, interactive, tool, want) in [
            (ApproveAll, deny, false, Some("execute"), allow()),
            (ApproveReads, fail, false, Some("read"), allow()),
            (ApproveReads, fail, false, Some("execute"), PermissionDecision::FailRun),
            (ApproveReads, deny, false, None, reject()),
            (ApproveReads, deny, true, None, PermissionDecision::Ask),
            (DenyAll, fail, true, Some("read"), reject()),
            (Ask, deny, true, Some("read"), PermissionDecision::Ask),
            (Ask, deny, false, Some("read"), reject()),
            (Ask, fail, false, Some("read"), PermissionDecision::FailRun),
        ] {
            let got = decide_permission(mode, non_interactive, interactive, &all, tool);
            assert_eq!(got, want, "{mode:?} {tool:?}");
        }
    }

    #[test]
    fn option_note_reveals_misleading_names() {
        for (name, kind, want) in [
            ("Allow once", "allow_once", ""),
            ("Allow", "allow_once", ""),
            ("Allow from now on", "allow_always", ""),
            ("Always allow", "allow_always", ""),
            ("Allow", "allow_always", " (allow always)"),
            ("Allow always", "allow_once", " (allow once)"),
            ("Yes", "allow_once", " (allow once)"),
            ("Reject", "allow_always", " (allow always)"),
            ("reject", "reject_once", ""),
            ("Reject once", "reject_once", ""),
            ("No", "reject_once", " (reject once)"),
            ("No", "reject_always", " (reject always)"),
            ("Maybe", "maybe", ""),
        ] {
            assert_eq!(kind_note(name, kind), want, "{name} {kind}");
        }
    }

    #[test]
    fn rule_of_voting_decides_who_answers() {
        let voter = |id: &str, is_local| Voter { name: "ann".to_owned(), id: id.to_owned(), is_local };
        let (remote, here) = (voter("token:1", false), voter("user:ann", true));
        let (other, unknown) = (voter("token:2", true), voter("", true));
        let admitted = |voters: &Voters| [&remote, &here, &other, &unknown].map(|one| voters.admit(one));
        assert_eq!(admitted(&Voting::First.voters("token:1")), [true; 4]);
        assert_eq!(admitted(&Voting::Local.voters("token:1")), [false, true, true, true]);
        assert_eq!(admitted(&Voting::Owner.voters("token:1")), [true, false, false, false]);
        assert_eq!(admitted(&Voting::Owner.voters("")), [false; 4], "the sender is unknown");
    }

    #[test]
    fn results_match_protocol() {
        assert_eq!(selected_result("a\"b"), r#"{"outcome":{"optionId":"a\"b","outcome":"selected"}}"#);
        assert_eq!(cancelled_result(), r#"{"outcome":{"outcome":"cancelled"}}"#);
    }
}
