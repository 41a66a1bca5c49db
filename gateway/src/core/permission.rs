//! What is answered to `session/request_permission`: a pure table over the two settings and the agent's options.
//!
//! Options are chosen by their kind and never by their name or id, which differ from agent to agent. What fits
//! no rule is refused or asked, never allowed. Nothing lasting ("always") is chosen for a person who was not
//! asked, except by the two modes that say so.
#![deny(clippy::indexing_slicing)]

use crate::core::link::PermissionOption;
use crate::core::project::nonce_of;
use crate::core::rows::{NonInteractive, PermissionMode};
use crate::core::sanitize;
use acp_shared::ids::LeaseId;

/// The detail of a refusal of an answer: no question waits for it.
pub(crate) const NOT_PENDING: &str = "PERMISSION_NOT_PENDING";
/// How many letters and digits a permission's short name has.
const SHORT_ID_CHARS: usize = 4;

/// What to do about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Answer with this option, which allows.
    Allow(String),
    /// Answer with this option, which refuses.
    Reject(String),
    /// Answer `cancelled`: refused, and the agent offers no option that says so.
    Cancel,
    /// Ask a person.
    Ask,
    /// End the run with `PERMISSION_PROMPT_UNAVAILABLE`.
    FailRun,
}

/// The lease and the offset that a permission's whole name stands for; `None` for anything else, such as the start of
/// one.
pub(crate) fn named(permission_id: &str) -> Option<(LeaseId, u64)> {
    let (lease_id, at) = permission_id.split_once(':')?;
    let lease_id = LeaseId::parse(lease_id).ok()?;
    let is_plain = !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit());
    Some((lease_id, at.parse().ok().filter(|_| is_plain)?))
}

/// What people call a permission of this whole name: a few letters. Not its beginning or its end, which the questions of
/// one agent, or of the same agent started again, may share (H4).
pub(crate) fn short_id(permission_id: &str) -> String {
    let mut id = nonce_of(&["permission", permission_id]);
    id.truncate(SHORT_ID_CHARS);
    id
}

/// Decides. `interactive` says whether somebody can be asked; `tool_kind` is ACP's, when given.
pub(crate) fn decide(
    mode: PermissionMode,
    non_interactive: NonInteractive,
    interactive: bool,
    options: &[PermissionOption],
    tool_kind: Option<&str>,
) -> Decision {
    let of = |kind: &str| options.iter().find(|option| option.kind == kind).map(|option| option.id.clone());
    let reads = matches!(tool_kind, Some("read" | "search"));
    let allowed = match mode {
        PermissionMode::ApproveAll => of("allow_once").or_else(|| of("allow_always")),
        PermissionMode::ApproveReads if reads => of("allow_once"),
        PermissionMode::ApproveReads | PermissionMode::Ask | PermissionMode::DenyAll => None,
    };
    if let Some(id) = allowed {
        return Decision::Allow(id);
    }
    match mode {
        PermissionMode::DenyAll => {
            of("reject_once").or_else(|| of("reject_always")).map_or(Decision::Cancel, Decision::Reject)
        }
        // It offers nothing that allows: there is nothing to ask about either.
        PermissionMode::ApproveAll => of("reject_once").map_or(Decision::Cancel, Decision::Reject),
        PermissionMode::ApproveReads | PermissionMode::Ask => match (interactive, non_interactive) {
            (true, _) if options.is_empty() => Decision::Cancel,
            (true, _) => Decision::Ask,
            (false, NonInteractive::Deny) => of("reject_once").map_or(Decision::Cancel, Decision::Reject),
            (false, NonInteractive::Fail) => Decision::FailRun,
        },
    }
}

/// Words for an option's kind; `None` for a kind that is not ACP's.
pub(crate) fn kind_words(kind: &str) -> Option<&'static str> {
    match kind {
        "allow_once" => Some("allow once"),
        "allow_always" => Some("allow always"),
        "reject_once" => Some("reject once"),
        "reject_always" => Some("reject always"),
        _ => None,
    }
}

/// Note behind an option's name with the words for its kind. Empty for a name that begins with the same verb and gives
/// the same duration.
pub(crate) fn kind_note(name: &str, kind: &str) -> String {
    let Some(words) = kind_words(kind) else { return String::new() };
    let name = sanitize::line(name.trim(), usize::MAX).to_ascii_lowercase();
    let verb = words.split(' ').next().unwrap_or_default();
    let is_lasting = name.contains("always") || name.contains("from now on");
    let is_said = (name.starts_with(verb) || name == format!("always {verb}"))
        && is_lasting == words.ends_with("always");
    if is_said { String::new() } else { format!(" ({words})") }
}

/// The option that refuses, if the agent offers one.
pub(crate) fn rejection(options: &[PermissionOption]) -> Option<String> {
    options.iter().find(|option| option.kind == "reject_once").map(|option| option.id.clone())
}

/// The result that chooses an option, JSON text.
pub(crate) fn selected(option_id: &str) -> String {
    serde_json::json!({ "outcome": { "outcome": "selected", "optionId": option_id } }).to_string()
}

/// The result that chooses none, JSON text.
pub(crate) fn cancelled() -> String {
    serde_json::json!({ "outcome": { "outcome": "cancelled" } }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 5] = ["allow_once", "allow_always", "reject_once", "reject_always", "maybe"];
    const TOOLS: [Option<&str>; 6] =
        [None, Some("read"), Some("search"), Some("edit"), Some("execute"), Some("READ")];
    const MODES: [PermissionMode; 4] = [
        PermissionMode::ApproveAll,
        PermissionMode::ApproveReads,
        PermissionMode::DenyAll,
        PermissionMode::Ask,
    ];

    /// Every subset of the kinds, in both orders. The names lie on purpose.
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
    fn the_whole_space_keeps_the_rules() {
        let mut seen = 0;
        for options in option_lists() {
            let has = |kind: &str| options.iter().any(|option| option.kind == kind);
            for mode in MODES {
                for non_interactive in [NonInteractive::Deny, NonInteractive::Fail] {
                    for interactive in [true, false] {
                        for tool in TOOLS {
                            seen += 1;
                            let got = decide(mode, non_interactive, interactive, &options, tool);
                            let at =
                                format!("{mode:?} {non_interactive:?} {interactive} {tool:?} {options:?}");
                            let reads = tool == Some("read") || tool == Some("search");
                            match &got {
                                Decision::Allow(id) => {
                                    assert!(id.starts_with("id-allow"), "{at}");
                                    let may = mode == PermissionMode::ApproveAll
                                        || (mode == PermissionMode::ApproveReads
                                            && reads
                                            && id == "id-allow_once");
                                    assert!(may, "{at}");
                                    assert!(id == "id-allow_once" || !has("allow_once"), "{at}");
                                }
                                Decision::Reject(id) => {
                                    assert!(id.starts_with("id-reject"), "{at}");
                                    assert!(
                                        id == "id-reject_once" || mode == PermissionMode::DenyAll,
                                        "{at}"
                                    );
                                }
                                Decision::Ask => {
                                    assert!(interactive && !options.is_empty(), "{at}");
                                    assert!(
                                        matches!(mode, PermissionMode::Ask | PermissionMode::ApproveReads),
                                        "{at}"
                                    );
                                }
                                Decision::FailRun => {
                                    assert!(!interactive && non_interactive == NonInteractive::Fail, "{at}");
                                    assert!(
                                        matches!(mode, PermissionMode::Ask | PermissionMode::ApproveReads),
                                        "{at}"
                                    );
                                }
                                Decision::Cancel => {
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
    fn the_usual_cases() {
        let all: Vec<_> = KINDS
            .iter()
            .map(|kind| PermissionOption {
                id: format!("id-{kind}"),
                name: String::new(),
                kind: (*kind).to_owned(),
            })
            .collect();
        let allow = || Decision::Allow("id-allow_once".to_owned());
        let reject = || Decision::Reject("id-reject_once".to_owned());
        let (deny, fail) = (NonInteractive::Deny, NonInteractive::Fail);
        for (mode, non_interactive, interactive, tool, want) in [
            (PermissionMode::ApproveAll, deny, false, Some("execute"), allow()),
            (PermissionMode::ApproveReads, fail, false, Some("read"), allow()),
            (PermissionMode::ApproveReads, fail, false, Some("execute"), Decision::FailRun),
            (PermissionMode::ApproveReads, deny, false, None, reject()),
            (PermissionMode::ApproveReads, deny, true, None, Decision::Ask),
            (PermissionMode::DenyAll, fail, true, Some("read"), reject()),
            (PermissionMode::Ask, deny, true, Some("read"), Decision::Ask),
            (PermissionMode::Ask, deny, false, Some("read"), reject()),
            (PermissionMode::Ask, fail, false, Some("read"), Decision::FailRun),
        ] {
            assert_eq!(decide(mode, non_interactive, interactive, &all, tool), want, "{mode:?} {tool:?}");
        }
    }

    #[test]
    fn an_option_says_what_it_does_whatever_it_is_called() {
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
    fn results_are_what_acp_wants() {
        assert_eq!(selected("a\"b"), r#"{"outcome":{"optionId":"a\"b","outcome":"selected"}}"#);
        assert_eq!(cancelled(), r#"{"outcome":{"outcome":"cancelled"}}"#);
    }
}
