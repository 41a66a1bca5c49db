//! What tells a message of ours from another one that says the same (H12).
//!
//! When nobody knows whether a part was sent, it is looked for among what a conversation shows, by what it says. So no
//! two parts of a conversation may say the same: one that would repeat what was said there carries a few letters of
//! its nonce. That is decided once, before it is first sent, and kept with it.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// How many letters of the nonce are tried, one after the other.
const LETTERS: [usize; 4] = [6, 10, 16, 24];
/// How many bytes of a hash stand for a text.
const PRINT_BYTES: usize = 16;

/// A text with its tag, as it is shown: below it, in small letters where Markdown is read.
pub(crate) fn tagged(text: &str, tag: Option<&str>) -> String {
    tag.map_or_else(|| text.to_owned(), |tag| format!("{}\n-# {tag}", text.trim_end()))
}

/// What stands for a text where texts are compared. White space and control characters do not count: services trim, and
/// bend line ends, each in its own way.
fn print(text: &str) -> String {
    let mut hash = Sha256::new();
    let mut buffer = [0; 4];
    for c in text.chars().filter(|c| !c.is_whitespace() && !c.is_control()) {
        hash.update(c.encode_utf8(&mut buffer).as_bytes());
    }
    let mut out = String::with_capacity(2 * PRINT_BYTES);
    for byte in hash.finalize().iter().take(PRINT_BYTES) {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// The tag of a part, none where it needs none, and what stands for it then; `is_known` says whether another part of the
/// conversation has that.
///
/// # Errors
/// What `is_known` says.
pub(crate) fn choose<E>(
    text: &str,
    nonce: &str,
    mut is_known: impl FnMut(&str) -> Result<bool, E>,
) -> Result<(Option<String>, String), E> {
    let alone = print(text);
    if !is_known(&alone)? {
        return Ok((None, alone));
    }
    let mut last = (None, alone);
    for letters in LETTERS {
        let tag = nonce.get(..letters).unwrap_or(nonce);
        let print = print(&tagged(text, Some(tag)));
        let is_free = !is_known(&print)?;
        last = (Some(tag.to_owned()), print);
        if is_free {
            break;
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::project::nonce_of;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    /// What a service makes of a text, of the kinds that are known.
    fn bent(text: &str, how: usize) -> String {
        match how % 4 {
            0 => text.to_owned(),
            1 => text.trim().to_owned(),
            2 => text.replace('\n', "\r\n"),
            _ => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    #[test]
    fn only_what_was_said_before_is_tagged() {
        let known = BTreeSet::from([print("OK")]);
        let of = |text: &str| {
            let Ok(found) =
                choose::<Infallible>(text, "abcdefghijklmnopqrstuvwx", |print| Ok(known.contains(print)));
            found.0
        };
        assert_eq!(of("Well"), None);
        assert_eq!(of("OK"), Some("abcdef".to_owned()));
        assert_eq!(of(" O\r\nK\n"), Some("abcdef".to_owned()), "a service may show it so");
        assert_eq!(tagged("OK\n", Some("abcdef")), "OK\n-# abcdef");
        assert_eq!(tagged("OK\n", None), "OK\n");
    }

    proptest! {
        /// Whatever is said how often, also what looks like a tag: no part is taken for another one, however the service
        /// bends what it keeps.
        #[test]
        fn two_parts_are_never_taken_for_each_other(
            said in prop::collection::vec(prop_oneof![
                4 => "(OK|Done\\.|OK |O K|)",
                1 => (0usize..8).prop_map(|n| {
                    let nonce = nonce_of(&["part", &n.to_string()]);
                    tagged("OK", nonce.get(..6))
                }),
                1 => "\\PC{0,6}",
            ], 1..12),
            how in 0usize..4,
        ) {
            let mut known = BTreeSet::new();
            let mut shown = Vec::new();
            for (n, text) in said.iter().enumerate() {
                let nonce = nonce_of(&["part", &n.to_string()]);
                let Ok((tag, print)) = choose::<Infallible>(text, &nonce, |print| Ok(known.contains(print)));
                known.insert(print);
                shown.push(tagged(text, tag.as_deref()));
            }
            for (n, one) in shown.iter().enumerate() {
                for other in shown.iter().skip(n + 1) {
                    prop_assert_ne!(print(&bent(one, how)), print(other));
                    prop_assert_ne!(bent(one, how), bent(other, how));
                }
            }
        }
    }
}
