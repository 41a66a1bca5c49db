//! Patterns of names: `*` matches any text, `?` one character, without regard to case.

/// True if the whole text matches the pattern.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (pattern, text) = (lower(pattern), lower(text));
    let (mut at, mut place) = (0, 0);
    // Place of the last `*`, and of the text that it is tried at.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || text.get(place) == Some(wanted) => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((star_at, tried)) = star else { return false };
                star = Some((star_at, tried + 1));
                (at, place) = (star_at + 1, tried + 1);
            }
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names_in_any_case() {
        for (pattern, text, want) in [
            ("demo", "demo", true),
            ("Demo", "dEMO", true),
            ("demo", "demo2", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*", "anything", true),
            ("qwen*", "qwen-code", true),
            ("*code", "qwen-code", true),
            ("*code", "qwen-coder", false),
            ("a*b*c", "a-bb-bc", true),
            ("a*b*c", "a-bb-b", false),
            ("d?mo", "demo", true),
            ("d?mo", "dmo", false),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern:?} {text:?}");
        }
    }
}
