//! Completion of commands, agents, sessions and options in the input of `chat`. Pure.

use acp_core::agent_settings::AgentSettings;
use acp_core::command::table::{COMMANDS, CommandSpec};

/// Values that can be completed besides the words of the commands.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompletionData {
    /// Names of the agents that can be started.
    pub(crate) agents: Vec<String>,
    /// Ids and labels of the open sessions.
    pub(crate) sessions: Vec<String>,
    /// Modes, models, options and commands of the session's agent.
    pub(crate) settings: AgentSettings,
    /// Short ids of the pending permission requests.
    pub(crate) permissions: Vec<String>,
}

/// Candidate for the word at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Word to insert.
    pub(crate) word: String,
    /// Description for the list of candidates; may be empty.
    pub(crate) note: String,
}

/// Candidates for the text between `start` and the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Byte position of the first character that a candidate replaces.
    pub(crate) start: usize,
    /// Candidates, in the order in which they are offered; at least one.
    pub(crate) candidates: Vec<Candidate>,
}

/// Returns the candidates for the word that ends at the cursor: `text` is the input up to there. `None` if the text is no
/// command, or nothing fits.
pub(crate) fn complete(text: &str, data: &CompletionData) -> Option<Completion> {
    if !text.starts_with('/') {
        return None;
    }
    let start = text
        .rfind(char::is_whitespace)
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let (before, word) = text.split_at(start);
    let words: Vec<&str> = before.split_whitespace().collect();
    let folded = word.to_lowercase();
    let fits = |candidate: &Candidate| candidate.word.trim_matches('"').to_lowercase().starts_with(&folded);
    let mut candidates: Vec<Candidate> = offered(&words, word, data).into_iter().filter(fits).collect();
    candidates.dedup_by(|a, b| a.word == b.word);
    (!candidates.is_empty()).then_some(Completion { start, candidates })
}

/// Returns what may follow these words.
fn offered(words: &[&str], word: &str, data: &CompletionData) -> Vec<Candidate> {
    let Some((head, rest)) = words.split_first() else {
        let own =
            COMMANDS.iter().map(|spec| (spec.head, if spec.verb.is_empty() { spec.summary } else { "" }));
        let own = own.map(|(word, note)| candidate(word, note));
        let local = [candidate("/exit", "leave the chat; the session stays open")];
        let theirs =
            data.settings.commands.iter().map(|it| candidate(&format!("/{}", it.name), &it.description));
        return own.chain(local).chain(theirs).collect();
    };
    let specs: Vec<&CommandSpec> = COMMANDS.iter().filter(|spec| spec.head == *head).collect();
    let (spec, args) = match (specs.as_slice(), rest) {
        ([only], args) if only.verb.is_empty() => (*only, args),
        (_, []) => return specs.iter().map(|spec| candidate(spec.verb, spec.summary)).collect(),
        (several, [verb, args @ ..]) => {
            let is_it = |spec: &&&CommandSpec| spec.verb == *verb || spec.aliases.contains(verb);
            match several.iter().find(is_it) {
                Some(spec) => (*spec, args),
                None => return Vec::new(),
            }
        }
    };
    if word.starts_with('-') {
        let flags = spec.args.split([' ', '[', ']', '|']).filter(|word| word.starts_with("--"));
        return flags.map(|flag| candidate(flag, "")).collect();
    }
    values(spec, args, data)
}

/// Returns the values that may follow the arguments of a command.
fn values(spec: &CommandSpec, args: &[&str], data: &CompletionData) -> Vec<Candidate> {
    let list = |words: &[String]| words.iter().map(|word| candidate(word, "")).collect::<Vec<_>>();
    let choices = |choices: Option<&acp_core::agent_settings::Choices>| {
        choices.map(|it| list(&it.values)).unwrap_or_default()
    };
    match args.last().copied() {
        Some("--session") => return list(&data.sessions),
        Some("--permission") => return alternatives("ask|approve-reads|approve-all|deny-all"),
        Some(flag) if flag.starts_with("--") => {
            let after = spec.args.split_once(flag).map(|(_, rest)| rest.trim_start());
            let value = after.and_then(|rest| rest.split([' ', ']']).next()).unwrap_or_default();
            return alternatives(value);
        }
        Some(_) | None => {}
    }
    let option = |id: &str| data.settings.options.iter().find(|option| option.id == id);
    match (spec.verb, args) {
        ("spawn" | "login", []) => list(&data.agents),
        ("set-mode", []) => choices(data.settings.modes.as_ref()),
        ("model", []) => choices(data.settings.models.as_ref()),
        ("set", []) => data.settings.options.iter().map(|option| candidate(&option.id, "")).collect(),
        ("set", [id]) => match option(id) {
            Some(option) if option.is_boolean => alternatives("true|false"),
            Some(option) => list(&option.choices.values),
            None => Vec::new(),
        },
        ("allow" | "deny" | "answer", []) => list(&data.permissions),
        ("permissions" | "verbosity" | "idle" | "max-age", []) => {
            alternatives(spec.args.trim_start_matches('[').split([']', ' ']).next().unwrap_or_default())
        }
        _ if spec.args.contains("SESSION") && spec.verb != "spawn" && spec.verb != "steer" => {
            list(&data.sessions)
        }
        _ => Vec::new(),
    }
}

/// Returns the words of a list `a|b|c`; one word alone is the name of a value.
fn alternatives(text: &str) -> Vec<Candidate> {
    if !text.contains('|') {
        return Vec::new();
    }
    let is_word = |word: &&str| !word.chars().any(char::is_uppercase);
    text.split('|').filter(is_word).map(|word| candidate(word, "")).collect()
}

fn candidate(word: &str, note: &str) -> Candidate {
    let word = if word.contains(char::is_whitespace) { super::quote_word(word) } else { word.to_owned() };
    Candidate { word, note: note.replace('`', "") }
}

/// Returns the longest start that all candidates share.
pub(crate) fn common_start(candidates: &[Candidate]) -> String {
    let mut candidates = candidates.iter().map(|candidate| candidate.word.as_str());
    let first = candidates.next().unwrap_or_default();
    let shared = candidates.fold(first.len(), |length, word| {
        let both = first.char_indices().zip(word.chars());
        let same = both.take_while(|((_, a), b)| a == b).last().map_or(0, |((at, a), _)| at + a.len_utf8());
        length.min(same)
    });
    first.get(..shared).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_core::agent_settings::{AgentCommand, Choices, ConfigOption};

    fn data() -> CompletionData {
        let choices = |values: &[&str]| Choices {
            current: None,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        CompletionData {
            agents: vec!["demo".to_owned(), "devin".to_owned()],
            sessions: vec!["01a2b3".to_owned(), "fix the build".to_owned()],
            settings: AgentSettings {
                modes: Some(choices(&["ask", "plan"])),
                models: Some(choices(&["big"])),
                options: vec![ConfigOption {
                    id: "effort".to_owned(),
                    choices: choices(&["low", "high"]),
                    ..ConfigOption::default()
                }],
                commands: vec![AgentCommand { name: "review".to_owned(), ..AgentCommand::default() }],
            },
            permissions: vec!["abcd".to_owned()],
        }
    }

    #[test]
    fn words_of_commands_are_completed() {
        for (text, want) in [
            ("hello", &[][..]),
            ("/ag", &["/agents"]),
            ("/fo", &["/focus"]),
            ("/rev", &["/review"]),
            ("/acp sp", &["spawn"]),
            ("/acp re", &["reset", "reset-options"]),
            ("/acp spawn d", &["demo", "devin"]),
            ("/acp spawn demo --p", &["--permission"]),
            ("/acp spawn demo --permission d", &["deny-all"]),
            ("/acp spawn demo --mode ", &["persistent", "oneshot"]),
            ("/acp set-mode ", &["ask", "plan"]),
            ("/acp mode p", &["plan"]),
            ("/acp model ", &["big"]),
            ("/acp set e", &["effort"]),
            ("/acp set effort h", &["high"]),
            ("/acp permissions a", &["ask", "approve-reads", "approve-all"]),
            ("/acp verbosity ", &["full", "compact", "none", "default"]),
            ("/acp answer ", &["abcd"]),
            ("/focus f", &["\"fix the build\""]),
            ("/acp close 01", &["01a2b3"]),
            ("/session ", &["idle", "max-age"]),
            ("/session idle ", &["off"]),
            ("/acp nothing ", &[]),
        ] {
            let found = complete(text, &data()).map(|found| found.candidates).unwrap_or_default();
            let words: Vec<&str> = found.iter().map(|candidate| candidate.word.as_str()).collect();
            assert_eq!(words, want, "{text:?}");
        }
    }

    #[test]
    fn common_start_is_the_shared_prefix() {
        let of = |words: &[&str]| words.iter().map(|word| candidate(word, "")).collect::<Vec<_>>();
        assert_eq!(common_start(&of(&["reset", "reset-options"])), "reset");
        assert_eq!(common_start(&of(&["demo", "devin"])), "de");
        assert_eq!(common_start(&of(&["a", "b"])), "");
        assert_eq!(common_start(&of(&["é1", "é2"])), "é");
    }
}
