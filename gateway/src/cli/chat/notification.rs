//! Notifications of `chat` at a terminal: the bell, or an escape sequence that terminals show on the desktop. Pure.

use acp_core::sanitize::is_hidden;
use clap::ValueEnum;

/// Maximum length of a notification, in characters.
const TEXT_CHARS_MAX: usize = 120;
const BELL: &str = "\u{7}";

/// Kind of notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum NotificationKind {
    /// None
    #[default]
    Off,
    /// The terminal's bell
    Bell,
    /// A message on the desktop, in terminals that support OSC 9 or OSC 777; the bell inside of tmux and screen
    Desktop,
}

/// Returns the sequence of a notification for a terminal of this type (`TERM`). The text may be an agent's.
pub(crate) fn sequence(kind: NotificationKind, terminal: &str, text: &str) -> String {
    let is_type = |types: &[&str]| types.iter().any(|start| terminal.starts_with(start));
    match kind {
        NotificationKind::Off => String::new(),
        NotificationKind::Bell => BELL.to_owned(),
        // Both keep such sequences from the terminal outside.
        NotificationKind::Desktop if is_type(&["tmux", "screen", "dumb", "linux"]) => BELL.to_owned(),
        NotificationKind::Desktop => {
            // Neither the end of the sequence nor another member can be in the text.
            let shown: String = text.chars().filter(|c| !is_hidden(*c) && *c != ';' && *c != '\n').collect();
            let shown: String = shown.chars().take(TEXT_CHARS_MAX).collect();
            if is_type(&["foot", "rxvt"]) {
                format!("\u{1b}]777;notify;acp-gateway;{shown}\u{1b}\\")
            } else {
                // The name comes first: a number would be another command of this sequence.
                format!("\u{1b}]9;acp-gateway: {shown}\u{1b}\\")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_suits_the_terminal_and_holds_no_control_characters() {
        use NotificationKind::{Bell, Desktop, Off};
        for (kind, terminal, text, want) in [
            (Off, "xterm", "a", ""),
            (Bell, "xterm", "a", "\u{7}"),
            (Desktop, "tmux-256color", "a", "\u{7}"),
            (Desktop, "xterm-256color", "demo asks: a", "\u{1b}]9;acp-gateway: demo asks: a\u{1b}\\"),
            (Desktop, "foot", "demo asks: a", "\u{1b}]777;notify;acp-gateway;demo asks: a\u{1b}\\"),
            (Desktop, "xterm", "a\u{1b}\\b\u{7};c\u{9c}\nd", "\u{1b}]9;acp-gateway: a\\bcd\u{1b}\\"),
        ] {
            assert_eq!(sequence(kind, terminal, text), want, "{kind:?} {terminal} {text:?}");
        }
        assert!(sequence(Desktop, "xterm", &"x".repeat(1_000)).len() < 200);
    }
}
