//! Tags that distinguish a message of the gateway from another one with the same text (H12).
//!
//! If it is unknown whether a part was sent, the conversation is searched for its text. So no two parts of a
//! conversation may have the same text: a part that would repeat an earlier one gets a few letters of its
//! nonce as a tag. The decision is made before the first attempt to send, and stored with the part.

use sha2::{Digest as _, Sha256};

/// Tag lengths that are tried in turn, in letters of the nonce.
const LETTERS: [usize; 4] = [6, 10, 16, 24];
/// Length of a text's fingerprint, in hexadecimal digits of its hash.
const PRINT_DIGITS: usize = 32;

/// Appends the tag to a text, in small print in Markdown.
pub fn with_tag(text: &str, tag: Option<&str>) -> String {
    tag.map_or_else(|| text.to_owned(), |tag| format!("{}\n-# {tag}", text.trim_end()))
}

/// Fingerprint of a text for comparisons. Ignores white space and control characters, because services trim
/// texts and change line ends.
fn fingerprint(text: &str) -> String {
    let mut hash = Sha256::new();
    let mut buffer = [0; 4];
    for c in text.chars().filter(|c| !c.is_whitespace() && !c.is_control()) {
        hash.update(c.encode_utf8(&mut buffer).as_bytes());
    }
    format!("{:.PRINT_DIGITS$x}", hash.finalize())
}

/// Chooses the tag of a part, `None` if the text is unique, and returns it with the fingerprint of the tagged
/// text. `is_known` tells if another part of the conversation has this fingerprint.
///
/// # Errors
/// An error of `is_known`.
pub fn choose_tag<E>(
    text: &str,
    nonce: &str,
    mut is_known: impl FnMut(&str) -> Result<bool, E>,
) -> Result<(Option<String>, String), E> {
    let alone = fingerprint(text);
    if !is_known(&alone)? {
        return Ok((None, alone));
    }
    let mut last = (None, alone);
    for letters in LETTERS {
        let tag = nonce.get(..letters).unwrap_or(nonce);
        let print = fingerprint(&with_tag(text, Some(tag)));
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
    use crate::nonce::nonce_of;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    /// Alters a text in one of the known ways of services.
    fn altered(text: &str, how: usize) -> String {
        match how % 4 {
            0 => text.to_owned(),
            1 => text.trim().to_owned(),
            2 => text.replace('\n', "\r\n"),
            _ => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    #[test]
    fn only_repeated_text_is_tagged() {
        let known = BTreeSet::from([fingerprint("OK")]);
        let of = |text: &str| {
            let Ok(found) =
                choose_tag::<Infallible>(text, "abcdefghijklmnopqrstuvwx", |print| Ok(known.contains(print)));
            found.0
        };
        assert_eq!(of("Well"), None);
        assert_eq!(of("OK"), Some("abcdef".to_owned()));
        assert_eq!(of(" O\r\nK\n"), Some("abcdef".to_owned()), "a service may show it so");
        assert_eq!(with_tag("OK\n", Some("abcdef")), "OK\n-# abcdef");
        assert_eq!(with_tag("OK\n", None), "OK\n");
    }

    proptest! {
        /// Texts repeated in any order, also ones that look like a tag: no two parts are confused, however
        /// the service alters the stored text.
        #[test]
        fn tagged_parts_are_distinct(
            texts in prop::collection::vec(prop_oneof![
                4 => "(OK|Done\\.|OK |O K|)",
                1 => (0usize..8).prop_map(|n| {
                    let nonce = nonce_of(&["part", &n.to_string()]);
                    with_tag("OK", nonce.get(..6))
                }),
                1 => "\\PC{0,6}",
            ], 1..12),
            how in 0usize..4,
        ) {
            let mut known = BTreeSet::new();
            let mut shown = Vec::new();
            for (n, text) in texts.iter().enumerate() {
                let nonce = nonce_of(&["part", &n.to_string()]);
                let Ok((tag, print)) = choose_tag::<Infallible>(text, &nonce, |print| Ok(known.contains(print)));
                known.insert(print);
                shown.push(with_tag(text, tag.as_deref()));
            }
            for (n, one) in shown.iter().enumerate() {
                for other in shown.iter().skip(n + 1) {
                    prop_assert_ne!(fingerprint(&altered(one, how)), fingerprint(other));
                    prop_assert_ne!(altered(one, how), altered(other, how));
                }
            }
        }
    }
}
