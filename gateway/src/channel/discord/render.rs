//! From what the gateway says to what Discord is asked for, and from what became of it back.

use crate::channel::{Action, ActionStyle, EditOutcome, Outgoing, OutgoingFile, PartKind, SendOutcome};
use acp_discord::core::component::{Button, Press, Row, Style};
use acp_discord::core::custom_id;
use acp_discord::core::errors::Meaning;
use acp_discord::core::message::{Body, File};
use acp_discord::core::schedule::Priority;
use acp_discord::rest::{Fault, Posted};

/// Buttons of one row, and rows of one message.
const ROW: usize = 5;

/// A message with its files.
pub(super) fn whole(message: &Outgoing) -> Body {
    Body { files: message.files.iter().map(file).collect(), ..body(&message.tagged(), &message.actions) }
}

fn file(file: &OutgoingFile) -> File {
    File {
        name: file.name.clone(),
        content_type: file.content_type.clone(),
        description: file.description.clone(),
        bytes: file.bytes.clone(),
    }
}

/// A message as Discord shows it. A button that does not fit is left out: what it says can be typed.
pub(super) fn body(text: &str, actions: &[Action]) -> Body {
    let buttons: Vec<Button> = actions.iter().filter_map(button).take(ROW * ROW).collect();
    let rows = buttons.chunks(ROW).map(|row| Row::Buttons(row.to_vec())).collect();
    Body { rows, ..Body::text(text) }
}

fn button(action: &Action) -> Option<Button> {
    let style = match action.style {
        ActionStyle::Primary => Style::Primary,
        ActionStyle::Secondary => Style::Secondary,
        ActionStyle::Success => Style::Success,
        ActionStyle::Danger => Style::Danger,
    };
    let press = Press::CustomId(custom_id::encode(&action.command).ok()?);
    Some(Button { label: action.label.clone(), style, press, disabled: false })
}

/// What a message is for.
pub(super) const fn priority(message: &Outgoing) -> Priority {
    match message.kind {
        PartKind::Permission => Priority::Permission,
        PartKind::Final => Priority::Final,
        PartKind::Notice | PartKind::Error => Priority::Notice,
        PartKind::Card => Priority::Card,
    }
}

/// What became of a message that was sent, with files or without.
pub(super) fn sent(result: Result<Posted, Fault>, nonce: &str, has_files: bool) -> SendOutcome {
    match result {
        Ok(posted) => SendOutcome::Sent { message_id: posted.id.to_string() },
        Err(Fault::Limited { retry_after }) => SendOutcome::Limited { retry_after_ms: millis(retry_after) },
        Err(Fault::Uncertain { why }) => SendOutcome::Uncertain { why },
        // H12: it was there, and somebody took it away.
        Err(fault) if fault.meaning() == Some(Meaning::SentAndDeleted) => {
            SendOutcome::Sent { message_id: format!("deleted-{nonce}") }
        }
        // The permission Attach Files may be what is missing, and the text alone may be taken.
        Err(fault) if has_files && fault.meaning().is_some_and(is_about_files) => {
            SendOutcome::FilesRefused { why: fault.to_string() }
        }
        Err(fault) => {
            let again = match &fault {
                Fault::Rejected(rejection) => rejection.again(),
                _ => true,
            };
            SendOutcome::Rejected { why: fault.to_string(), again }
        }
    }
}

/// Whether a refusal may be due to the files of a message.
const fn is_about_files(meaning: Meaning) -> bool {
    matches!(meaning, Meaning::TooLarge | Meaning::Invalid | Meaning::Forbidden | Meaning::Filtered)
}

/// What became of a change of a message.
pub(super) fn edited(result: Result<(), Fault>) -> EditOutcome {
    match result {
        // A newer one took its place, and shows more.
        Ok(()) | Err(Fault::Superseded) => EditOutcome::Edited,
        Err(Fault::Limited { retry_after }) => EditOutcome::Limited { retry_after_ms: millis(retry_after) },
        Err(Fault::Uncertain { why }) => EditOutcome::Failed { why },
        Err(Fault::Rejected(rejection)) if rejection.again() => {
            EditOutcome::Failed { why: rejection.to_string() }
        }
        Err(Fault::Rejected(rejection)) => EditOutcome::Gone { why: rejection.to_string() },
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a thread that begins with this text: its first words, 90 characters at most.
pub(super) fn thread_name(starter: &str) -> String {
    let line = starter.lines().next().unwrap_or_default();
    let head = line.split(" works here").next().unwrap_or(line);
    let name: String = head.chars().filter(|c| !c.is_control()).take(90).collect();
    let name = name.trim();
    if name.is_empty() { "A session".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_discord::core::errors::What;
    use acp_discord::core::ids::Snowflake;
    use acp_discord::rest::{Proof, Rejection};
    use std::time::Duration;

    fn refused(meaning: Meaning) -> Fault {
        Fault::Rejected(Rejection {
            route: "r",
            status: Some(403),
            code: None,
            meaning,
            why: "no".to_owned(),
        })
    }

    #[test]
    fn every_outcome_says_what_is_known() {
        let posted = Posted { id: Snowflake(7), proof: Proof::Answer };
        let rejected = |again: bool, meaning| {
            (Err(refused(meaning)), SendOutcome::Rejected { why: refused(meaning).to_string(), again })
        };
        let limited = Fault::Limited { retry_after: Duration::from_millis(1_500) };
        for (result, want) in [
            (Ok(posted), SendOutcome::Sent { message_id: "7".to_owned() }),
            (Err(limited), SendOutcome::Limited { retry_after_ms: 1_500 }),
            (Err(Fault::Uncertain { why: "lost".into() }), SendOutcome::Uncertain { why: "lost".into() }),
            (Err(refused(Meaning::SentAndDeleted)), SendOutcome::Sent { message_id: "deleted-n".to_owned() }),
            // D3: a permission that is missing may be given again; a channel that is gone does not come back.
            rejected(true, Meaning::LostAccess),
            rejected(true, Meaning::Forbidden),
            rejected(true, Meaning::Locked),
            rejected(false, Meaning::Gone(What::Channel)),
            rejected(false, Meaning::Invalid),
            rejected(false, Meaning::TooLarge),
        ] {
            assert_eq!(sent(result, "n", false), want);
        }
        let without = |meaning| SendOutcome::FilesRefused { why: refused(meaning).to_string() };
        for (meaning, want) in [
            (Meaning::TooLarge, without(Meaning::TooLarge)),
            (Meaning::Invalid, without(Meaning::Invalid)),
            (Meaning::Forbidden, without(Meaning::Forbidden)),
            (Meaning::Filtered, without(Meaning::Filtered)),
            (Meaning::SentAndDeleted, SendOutcome::Sent { message_id: "deleted-n".to_owned() }),
            (
                Meaning::LostAccess,
                SendOutcome::Rejected { why: refused(Meaning::LostAccess).to_string(), again: true },
            ),
        ] {
            assert_eq!(sent(Err(refused(meaning)), "n", true), want);
        }
    }

    #[test]
    fn an_edit_that_a_newer_one_replaced_is_none_to_repeat() {
        assert_eq!(edited(Ok(())), EditOutcome::Edited);
        assert_eq!(edited(Err(Fault::Superseded)), EditOutcome::Edited);
        let gone = refused(Meaning::Gone(What::Message));
        assert_eq!(edited(Err(gone.clone())), EditOutcome::Gone { why: gone.to_string() });
        let old = refused(Meaning::OldEdits);
        assert_eq!(edited(Err(old.clone())), EditOutcome::Failed { why: old.to_string() });
    }

    /// A click is the command that stands in the button.
    #[test]
    fn buttons_carry_their_commands() {
        let action = |number: usize| Action {
            command: format!("/acp answer p:1 {number}"),
            label: format!("Option {number}"),
            style: ActionStyle::Success,
        };
        let actions: Vec<Action> = (1..=7).map(action).collect();
        let body = body("text", &actions);
        let sizes: Vec<usize> = body
            .rows
            .iter()
            .map(|row| if let Row::Buttons(buttons) = row { buttons.len() } else { 0 })
            .collect();
        assert_eq!((body.content.as_str(), sizes), ("text", vec![5, 2]));
        let Some(Row::Buttons(first)) = body.rows.first() else { panic!() };
        let Press::CustomId(id) = &first[0].press else { panic!() };
        assert_eq!(custom_id::decode(id), custom_id::Carried::Text("/acp answer p:1 1"));
    }

    #[test]
    fn a_thread_is_called_after_who_works_in_it() {
        assert_eq!(thread_name("my own works here now, in /x: session agent:1."), "my own");
        assert_eq!(thread_name(""), "A session");
        assert_eq!(thread_name(&"x".repeat(200)).len(), 90);
    }
}
