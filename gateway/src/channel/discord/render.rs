//! Conversion of outgoing messages to Discord requests, and of their results to outcomes of the channel port.

use crate::channel::{
    ButtonStyle, EditOutcome, MessageButton, Outgoing, OutgoingFile, PartKind, SendOutcome, Suggestion,
};
use acp_core::sanitize;
use acp_discord::core::component::{Button, ComponentStyle};
use acp_discord::core::custom_id;
use acp_discord::core::errors::RejectionKind;
use acp_discord::core::message::{FileUpload, MessageBody};
use acp_discord::core::payload_limits::PayloadLimit;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{Rejection, RestError, SentMessage};
use unicode_segmentation::UnicodeSegmentation as _;

/// Retry interval while Discord refuses the token or cannot be queried, in milliseconds. A retry with a
/// refused token makes no request.
pub(super) const RETRY_AFTER_MS: u64 = 5_000;
/// Maximum number of buttons per row, and of rows per message.
const ROW: usize = 5;
/// Maximum number of buttons per message.
pub(super) const BUTTONS_MAX: usize = ROW * ROW;
/// Maximum length of a thread name, in UTF-16 units; Discord's limit is 100.
const NAME_UNITS_MAX: usize = 90;

/// Converts a message with files.
pub(super) fn message_body(message: &Outgoing) -> MessageBody {
    MessageBody {
        files: message.files.iter().map(file).collect(),
        ..body(&message.tagged(), &message.actions)
    }
}

fn file(file: &OutgoingFile) -> FileUpload {
    FileUpload {
        name: file.name.clone(),
        content_type: file.content_type.clone(),
        description: file.description.clone(),
        bytes: file.bytes.clone(),
    }
}

/// Converts a text with buttons. A button that does not fit is left out: the command can be typed.
pub(super) fn body(text: &str, actions: &[MessageButton]) -> MessageBody {
    let buttons: Vec<Button> = actions.iter().filter_map(button).take(BUTTONS_MAX).collect();
    let rows = buttons.chunks(ROW).map(<[Button]>::to_vec).collect();
    MessageBody { rows, ..MessageBody::text(text) }
}

fn button(action: &MessageButton) -> Option<Button> {
    let style = match action.style {
        ButtonStyle::Primary => ComponentStyle::Primary,
        ButtonStyle::Secondary => ComponentStyle::Secondary,
        ButtonStyle::Success => ComponentStyle::Success,
        ButtonStyle::Danger => ComponentStyle::Danger,
    };
    let custom_id = custom_id::encode(&action.command).ok()?;
    let label = fit(&action.label, PayloadLimit::ButtonLabel.bounds().1);
    (!label.is_empty()).then_some(Button { label, style, custom_id })
}

/// Returns the custom id of the first button of a status card. No other message has this id, so a card is
/// recognised by the button even after edits.
pub(super) fn card_button_id(message: &Outgoing) -> Option<String> {
    let of_card = message.actions.first().filter(|_| message.kind == PartKind::Card)?;
    custom_id::encode(&of_card.command).ok()
}

/// Returns the beginning of a text that fits into `units` UTF-16 units. Grapheme clusters stay whole, unless
/// the first one alone is too long.
pub(super) fn fit(text: &str, units: usize) -> String {
    let text = text.trim();
    let whole = take_fitting(text.graphemes(true), units);
    let fits =
        if whole.is_empty() { take_fitting(text.split_inclusive(|_: char| true), units) } else { whole };
    fits.trim_end().to_owned()
}

/// Returns the first pieces that fit into `units` UTF-16 units.
fn take_fitting<'a>(pieces: impl Iterator<Item = &'a str>, units: usize) -> String {
    let mut left = units;
    let fits = |piece: &&str| {
        let rest = left.checked_sub(piece.encode_utf16().count());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    pieces.take_while(fits).collect()
}

/// Converts suggestions to pairs of label and value. Entries that Discord would refuse are left out: one
/// invalid entry makes Discord refuse all.
pub(super) fn choices(found: Vec<Suggestion>) -> Vec<(String, String)> {
    let choice = |it: Suggestion| {
        let name = fit(&sanitize::line(&it.label, usize::MAX), PayloadLimit::ChoiceName.bounds().1);
        let is_taken =
            PayloadLimit::ChoiceName.text(&name).is_ok() && PayloadLimit::ChoiceValue.text(&it.value).is_ok();
        is_taken.then_some((name, it.value))
    };
    found.into_iter().filter_map(choice).take(PayloadLimit::Choices.bounds().1).collect()
}

/// Returns the request priority of a message.
pub(super) const fn priority(message: &Outgoing) -> Priority {
    match message.kind {
        PartKind::Permission => Priority::Permission,
        PartKind::Final => Priority::Final,
        PartKind::Notice | PartKind::Error => Priority::Notice,
        PartKind::Card => Priority::Card,
    }
}

/// Attachments of a sent message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachmentState {
    /// No files.
    None,
    /// At least one file.
    Some {
        /// True if the bot may write in the conversation; `None` if not determined.
        may_write: Option<bool>,
    },
}

/// Discord's error code for an unspecified missing permission.
const MISSING_PERMISSION: u32 = 50_013;

/// True if a refusal is for an unspecified missing permission: to attach files, or to write at all.
pub(super) fn is_missing_permission(fault: &RestError) -> bool {
    matches!(fault, RestError::Rejected(rejection) if rejection.code == Some(MISSING_PERMISSION))
}

/// Converts the result of a send.
pub(super) fn send_outcome(
    result: Result<SentMessage, RestError>,
    nonce: &str,
    files: AttachmentState,
) -> SendOutcome {
    match result {
        Ok(posted) => SendOutcome::Sent { message_id: posted.id.to_string() },
        Err(RestError::Limited { retry_after }) => {
            SendOutcome::Limited { retry_after_ms: millis(retry_after) }
        }
        Err(RestError::Uncertain { why }) => SendOutcome::Uncertain { why },
        // H12: the message was sent, and a person deleted the message.
        Err(fault) if fault.rejection_kind() == Some(RejectionKind::SentAndDeleted) => {
            SendOutcome::Sent { message_id: format!("deleted-{nonce}") }
        }
        // D7: the message waits for a new token, and for nothing else.
        Err(fault) if fault.rejection_kind() == Some(RejectionKind::Unauthorized) => {
            SendOutcome::Limited { retry_after_ms: RETRY_AFTER_MS }
        }
        Err(RestError::Rejected(rejection)) => {
            let why = rejection.to_string();
            match files_refused(&rejection, files) {
                Some(again) => SendOutcome::FilesRefused { why, again },
                None => SendOutcome::Rejected { why, again: rejection.is_retryable() },
            }
        }
        Err(fault @ RestError::Superseded) => SendOutcome::Rejected { why: fault.to_string(), again: true },
    }
}

/// Returns `None` if a refusal is unrelated to the files of a message. Otherwise the text alone may be
/// accepted, and the result is true if the refusal may be temporary.
fn files_refused(rejection: &Rejection, files: AttachmentState) -> Option<bool> {
    let AttachmentState::Some { may_write } = files else { return None };
    // A refusal without a Discord error code comes from an intermediary and may be temporary.
    let is_of_discord = rejection.status.is_none() || rejection.code.is_some_and(|code| code != 0);
    match rejection.kind {
        RejectionKind::TooLarge | RejectionKind::Invalid | RejectionKind::Filtered => Some(!is_of_discord),
        RejectionKind::Forbidden if rejection.code == Some(MISSING_PERMISSION) => match may_write {
            Some(true) => Some(false),
            Some(false) => None,
            None => Some(true),
        },
        RejectionKind::Forbidden if !is_of_discord => Some(true),
        _ => None,
    }
}

/// Converts the result of an edit.
pub(super) fn edit_outcome(result: Result<(), RestError>) -> EditOutcome {
    match result {
        // A newer edit replaced this one and shows more.
        Ok(()) | Err(RestError::Superseded) => EditOutcome::Edited,
        Err(RestError::Limited { retry_after }) => {
            EditOutcome::Limited { retry_after_ms: millis(retry_after) }
        }
        Err(RestError::Uncertain { why }) => EditOutcome::Failed { why },
        Err(RestError::Rejected(rejection)) if rejection.is_retryable() => {
            EditOutcome::Failed { why: rejection.to_string() }
        }
        Err(RestError::Rejected(rejection)) if matches!(rejection.kind, RejectionKind::Gone(_)) => {
            EditOutcome::Gone { why: rejection.to_string() }
        }
        Err(RestError::Rejected(rejection)) => EditOutcome::Refused { why: rejection.to_string() },
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the name of a thread that begins with this text: the first words.
pub(super) fn thread_name(starter: &str) -> String {
    let line = starter.lines().next().unwrap_or_default();
    let head = line.split(" is bound here").next().unwrap_or(line);
    let name = fit(&sanitize::line(head, usize::MAX), NAME_UNITS_MAX);
    if name.is_empty() { "A session".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::discord::retry::rejected as refused;
    use acp_discord::core::errors::{RequestKind, ResourceKind};
    use acp_discord::core::ids::Snowflake;
    use acp_discord::core::message::Callback;
    use acp_discord::rest::Proof;
    use std::time::Duration;

    #[test]
    fn rest_results_map_to_send_outcomes() {
        let posted = SentMessage { id: Snowflake(7), proof: Proof::Response };
        let rejected = |again: bool, kind| {
            (Err(refused(kind)), SendOutcome::Rejected { why: refused(kind).to_string(), again })
        };
        let limited = RestError::Limited { retry_after: Duration::from_millis(1_500) };
        for (result, want) in [
            (Ok(posted), SendOutcome::Sent { message_id: "7".to_owned() }),
            (Err(limited), SendOutcome::Limited { retry_after_ms: 1_500 }),
            (Err(RestError::Uncertain { why: "lost".into() }), SendOutcome::Uncertain { why: "lost".into() }),
            (
                Err(refused(RejectionKind::SentAndDeleted)),
                SendOutcome::Sent { message_id: "deleted-n".to_owned() },
            ),
            // D3: a missing permission may be granted later; a deleted channel does not come back.
            rejected(true, RejectionKind::LostAccess),
            rejected(true, RejectionKind::Forbidden),
            rejected(true, RejectionKind::Locked),
            rejected(false, RejectionKind::Gone(ResourceKind::Channel)),
            // D7: the next token may be accepted.
            (
                Err(refused(RejectionKind::Unauthorized)),
                SendOutcome::Limited { retry_after_ms: RETRY_AFTER_MS },
            ),
            rejected(false, RejectionKind::Invalid),
            rejected(false, RejectionKind::TooLarge),
        ] {
            assert_eq!(send_outcome(result, "n", AttachmentState::None), want);
        }
    }

    /// A message is sent without files only if Discord refuses the files: a missing permission to write may
    /// be granted later, and a refusal by an intermediary may be temporary.
    #[test]
    fn files_are_dropped_only_if_discord_refuses_files() {
        let fault = |status: Option<u16>, code: Option<u32>, kind| {
            RestError::Rejected(Rejection { route: "r", status, code, kind, why: "no".to_owned() })
        };
        for (status, code, may_write, about_files, again) in [
            (403, Some(50_013), Some(true), true, false),
            (403, Some(50_013), Some(false), false, true),
            (403, Some(50_013), None, true, true),
            // View Channel, and permissions unrelated to files.
            (403, Some(50_001), None, false, true),
            (403, Some(50_007), None, false, true),
            (403, Some(40_002), None, false, true),
            (403, None, None, true, true),
            (403, Some(0), None, true, true),
            (413, Some(40_005), None, true, false),
            (400, Some(50_045), None, true, false),
            (413, None, None, true, true),
            (400, Some(50_035), None, true, false),
            (400, None, None, true, true),
            (400, Some(20_009), None, true, false),
            (502, None, None, false, true),
            (404, None, None, false, true),
            (404, Some(10_003), None, false, false),
            (400, Some(160_005), None, false, true),
        ] {
            let kind =
                acp_discord::core::errors::classify_rejection(RequestKind::CreateWithNonce, status, code);
            let fault = fault(Some(status), code, kind);
            let why = fault.to_string();
            let want = match about_files {
                true => SendOutcome::FilesRefused { why, again },
                false => SendOutcome::Rejected { why, again },
            };
            assert_eq!(
                send_outcome(Err(fault.clone()), "n", AttachmentState::Some { may_write }),
                want,
                "{status} {code:?}"
            );
            let plain = send_outcome(Err(fault), "n", AttachmentState::None);
            assert!(matches!(plain, SendOutcome::Rejected { .. }), "{status} {code:?}");
        }
        // A request that we refuse to send ourselves is not retried.
        let own = fault(None, None, RejectionKind::TooLarge);
        let want = SendOutcome::FilesRefused { why: own.to_string(), again: false };
        assert_eq!(send_outcome(Err(own), "n", AttachmentState::Some { may_write: None }), want);
        let gone = send_outcome(
            Err(refused(RejectionKind::SentAndDeleted)),
            "n",
            AttachmentState::Some { may_write: None },
        );
        assert_eq!(gone, SendOutcome::Sent { message_id: "deleted-n".to_owned() });
    }

    #[test]
    fn superseded_edit_counts_as_done() {
        assert_eq!(edit_outcome(Ok(())), EditOutcome::Edited);
        assert_eq!(edit_outcome(Err(RestError::Superseded)), EditOutcome::Edited);
        let gone = refused(RejectionKind::Gone(ResourceKind::Message));
        assert_eq!(edit_outcome(Err(gone.clone())), EditOutcome::Gone { why: gone.to_string() });
        let never = refused(RejectionKind::Filtered);
        assert_eq!(edit_outcome(Err(never.clone())), EditOutcome::Refused { why: never.to_string() });
        let old = refused(RejectionKind::OldEdits);
        assert_eq!(edit_outcome(Err(old.clone())), EditOutcome::Failed { why: old.to_string() });
    }

    #[test]
    fn buttons_carry_their_commands() {
        let action = |number: usize| MessageButton {
            command: format!("/acp answer p:1 {number}"),
            label: format!("Option {number}"),
            style: ButtonStyle::Success,
        };
        let actions: Vec<MessageButton> = (1..=7).map(action).collect();
        let body = body("text", &actions);
        let sizes: Vec<usize> = body.rows.iter().map(Vec::len).collect();
        assert_eq!((body.content.as_str(), sizes), ("text", vec![5, 2]));
        assert_eq!(
            custom_id::decode(&body.rows[0][0].custom_id),
            custom_id::DecodedCustomId::Text("/acp answer p:1 1")
        );
    }

    #[test]
    fn thread_is_named_after_its_session() {
        assert_eq!(thread_name("my own is bound here, in /x: session agent:1."), "my own");
        assert_eq!(thread_name(""), "A session");
        assert_eq!(thread_name(&"x".repeat(200)).len(), 90);
        assert_eq!(thread_name(&"🚀".repeat(60)), "🚀".repeat(45));
    }

    /// Names, labels and suggestions of any content fit within Discord's limits, in Discord's way of
    /// counting.
    #[test]
    fn names_labels_and_suggestions_fit_discord_limits() {
        for text in ["x", "😀", "👩‍💻", "ä ", "\u{301}"] {
            let long = text.repeat(200);
            let name = thread_name(&format!("{long} is bound here"));
            assert_eq!(PayloadLimit::ThreadName.text(&name), Ok(()), "{name}");
            let action = MessageButton {
                command: "/acp help".to_owned(),
                label: long.clone(),
                style: ButtonStyle::Primary,
            };
            let body = body("text", &[action]);
            assert_eq!(body.rows.len(), 1, "{text}");
            assert_eq!(body.edit().map(drop), Ok(()), "{text}");
        }
        let choice =
            |label: &str, value: &str| Suggestion { label: label.to_owned(), value: value.to_owned() };
        let (long, good) = ("😀".repeat(99), ("good".to_owned(), "value".to_owned()));
        let found = vec![
            choice("good", "value"),
            choice(&long, "b"),
            choice("c", &long),
            choice(" ", "d"),
            choice("e", ""),
        ];
        let shown = choices(found);
        assert_eq!(shown, [good, ("😀".repeat(50), "b".to_owned())]);
        let many = choices((0..40).map(|n| choice("x", &n.to_string())).collect());
        for choices in [shown, many] {
            assert_eq!(Callback::Choices(choices).payload().map(drop), Ok(()));
        }
    }

    /// A status card continues in another message before Discord limits edits of the old one (30046).
    #[test]
    fn edit_window_ends_before_discord_limits_edits() {
        use acp_discord::core::rate_limiter::OLD_EDIT_AGE_MS;
        let until = super::super::EDIT_WINDOW_MS;
        assert!(until + 5 * 60_000 <= OLD_EDIT_AGE_MS, "{until}");
    }
}
