//! The signs that the bot puts on messages, as shapes, so that the picture needs no font of signs.

/// The shape of a sign, in a square of 16; `None` where a font has to do.
pub(super) fn shape(emoji: &str) -> Option<&'static str> {
    // Without the selector that asks for colours.
    Some(match emoji.trim_end_matches('\u{fe0f}') {
        "👀" => {
            r##"<ellipse cx="4.2" cy="8" rx="3.7" ry="5.6" fill="#fff" stroke="#8a9199"/><ellipse cx="11.8" cy="8" rx="3.7" ry="5.6" fill="#fff" stroke="#8a9199"/><ellipse cx="3.2" cy="8.4" rx="1.7" ry="2.6" fill="#33261d"/><ellipse cx="10.8" cy="8.4" rx="1.7" ry="2.6" fill="#33261d"/>"##
        }
        "✅" => {
            r##"<rect x="1" y="1" width="14" height="14" rx="3" fill="#3f9e4d"/><path d="M4 8.4 7 11.4 12.2 4.8" fill="none" stroke="#fff" stroke-width="2.2"/>"##
        }
        "❌" => {
            r##"<path d="M2.6 2.6 13.4 13.4M13.4 2.6 2.6 13.4" fill="none" stroke="#da373c" stroke-width="3"/>"##
        }
        "⏳" => {
            r##"<path d="M3.6 2H12.4M3.6 14H12.4" fill="none" stroke="#9a6b3c" stroke-width="2.2"/><path d="M4.8 3.2H11.2C11.2 6 9 6.8 9 8S11.2 10 11.2 12.8H4.8C4.8 10 7 9.2 7 8S4.8 6 4.8 3.2Z" fill="#cfe3f2" stroke="#8a9199"/><path d="M5.6 12.6C6 11 7.4 10.6 8 10.6S10 11 10.4 12.6Z" fill="#e0a33a"/><path d="M6 5.6H10C9.4 6.8 8.4 7.2 8 8 7.6 7.2 6.6 6.8 6 5.6Z" fill="#e0a33a"/>"##
        }
        _ => return None,
    })
}
