//! Bash: its script, the split of a command line into words, and replies in the form that readline inserts. Bash splits words
//! at `:` and `=` and replaces only what follows, so the line is split here.

use clap::Command;
use clap_complete::engine::{CompletionCandidate, complete as candidates_of};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

/// The script. Readline replaces `$2`; a directory is not followed by a blank.
pub(super) const SCRIPT: &str = r#"_acp_gateway() {
    local reply
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("$reply")
    done < <(ACP_COMPLETE=bash acp-gateway -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace
    fi
    return 0
}
complete -o nosort -o bashdefault -o default -F _acp_gateway acp-gateway 2>/dev/null ||
    complete -o bashdefault -o default -F _acp_gateway acp-gateway
"#;

/// Words of a line, with the state at its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct SplitLine {
    /// Words without quotes; the last one, which may be empty, is completed.
    words: Vec<String>,
    /// Last word as typed.
    typed: String,
    /// Quote that is open at the end.
    quote: Option<char>,
}

/// Returns the replies for the last word of a line, one a line. `replaced` is the part of it that readline replaces.
pub(super) fn complete(
    command: &mut Command,
    line: &str,
    replaced: &str,
    here: Option<&Path>,
) -> io::Result<Vec<u8>> {
    let split = split(line);
    super::remember(split.words.iter().cloned());
    let words: Vec<OsString> = split.words.iter().map(OsString::from).collect();
    let Some(index) = words.len().checked_sub(1) else { return Ok(Vec::new()) };
    let candidates = candidates_of(command, words, index, here)?;
    let is_flag = |value: &OsStr| value.as_encoded_bytes().starts_with(b"-");
    let has_values = candidates.iter().any(|candidate| !is_flag(candidate.get_value()));
    // Flags are offered before a first character only if there is nothing else.
    let hides_flags = has_values && split.typed.is_empty();
    let values = candidates.iter().map(CompletionCandidate::get_value);
    let values = values.filter(|value| !(hides_flags && is_flag(value))).map(|value| value.to_string_lossy());
    let replies = values.filter_map(|value| reply(&split, replaced, &value));
    Ok(replies.map(|reply| reply + "\n").collect::<String>().into_bytes())
}

/// Splits a line up to the cursor as a shell does, except that nothing is expanded and a quote may be open.
fn split(line: &str) -> SplitLine {
    let mut split = SplitLine::default();
    let (mut word, mut is_open) = (String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if split.quote.is_none() && c.is_whitespace() {
            if is_open {
                split.words.push(std::mem::take(&mut word));
                split.typed.clear();
            }
            is_open = false;
            continue;
        }
        is_open = true;
        split.typed.push(c);
        match (split.quote, c) {
            (None, '"' | '\'') => split.quote = Some(c),
            (Some(quote), _) if c == quote => split.quote = None,
            (None | Some('"'), '\\') => {
                let escaped =
                    rest.next_if(|next| split.quote.is_none() || matches!(next, '"' | '\\' | '$' | '`'));
                split.typed.extend(escaped);
                word.push(escaped.unwrap_or(c));
            }
            _ => word.push(c),
        }
    }
    split.words.push(word);
    split
}

/// Returns what readline inserts instead of `replaced`, so that the word becomes `value`.
fn reply(line: &SplitLine, replaced: &str, value: &str) -> Option<String> {
    let kept = line.typed.strip_suffix(replaced).unwrap_or_default();
    let kept = self::split(kept).words.pop().unwrap_or_default();
    let rest = value.strip_prefix(kept.as_str())?;
    match line.quote {
        Some('\'') => (!rest.contains('\'')).then(|| rest.to_owned()),
        Some(_) => Some(escaped(rest, |c| matches!(c, '"' | '\\' | '$' | '`'))),
        None => Some(escaped(rest, |c| !c.is_alphanumeric() && !"_-./:=@%+,".contains(c))),
    }
}

fn escaped(text: &str, needs_escape: impl Fn(char) -> bool) -> String {
    let escape = |c: char| needs_escape(c).then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use clap::{Arg, builder::PossibleValuesParser};

    #[test]
    fn lines_are_split_like_in_a_shell() {
        for (line, words, typed, quote) in [
            ("a prompt ag", &["a", "prompt", "ag"][..], "ag", None),
            ("a  prompt ", &["a", "prompt", ""], "", None),
            ("a agent:demo:acp:01", &["a", "agent:demo:acp:01"], "agent:demo:acp:01", None),
            ("a 'x y' --cwd=~/s", &["a", "x y", "--cwd=~/s"], "--cwd=~/s", None),
            ("a \"fix th", &["a", "fix th"], "\"fix th", Some('"')),
            ("a fix\\ th", &["a", "fix th"], "fix\\ th", None),
            ("a \"q\\\"\\n", &["a", "q\"\\n"], "\"q\\\"\\n", Some('"')),
            ("a '' x\\", &["a", "", "x\\"], "x\\", None),
        ] {
            let want = SplitLine {
                words: words.iter().map(|&word| word.to_owned()).collect(),
                typed: typed.to_owned(),
                quote,
            };
            assert_eq!(split(line), want, "{line}");
        }
    }

    #[test]
    fn replies_replace_the_part_that_readline_replaces() {
        let values = ["agent:demo:acp:01", "fix the build", "it's", "--plain"];
        for (line, replaced, want) in [
            ("x agent:de", "de", "demo:acp:01"),
            ("x agent:", "", "demo:acp:01"),
            ("x \"agent:de", "agent:de", "agent:demo:acp:01"),
            ("x fi", "fi", "fix\\ the\\ build"),
            ("x fix\\ th", "fix\\ th", "fix\\ the\\ build"),
            ("x \"fix t", "fix t", "fix the build"),
            ("x 'i", "i", ""),
            ("x i", "i", "it\\'s"),
            ("x nothing", "nothing", ""),
        ] {
            let value = Arg::new("value").value_parser(PossibleValuesParser::new(values));
            let mut command = Command::new("x").arg(value);
            let printed = complete(&mut command, line, replaced, None).unwrap();
            assert_eq!(String::from_utf8(printed).unwrap().trim_end(), want, "{line}");
        }
    }
}
