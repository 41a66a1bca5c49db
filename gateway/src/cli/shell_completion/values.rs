//! Values of completion that the gateway knows. It is asked once, for a short time; without an answer there are no values, and
//! nothing is started.

use super::words;
use crate::cli::session_arg::session_of_words;
use crate::cli::{GlobalArgs, command};
use acp_core::agent_settings::{AgentSettings, Choices};
use acp_core::api::{AgentView, SessionView, TokenView};
use acp_core::sanitize::is_hidden;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum wait for the gateway.
const ANSWER: Duration = Duration::from_millis(300);
/// Maximum number of candidates.
const CANDIDATES_MAX: usize = 200;

/// Completes the names of the agents that can be started.
pub(crate) fn agents() -> ArgValueCompleter {
    completer(|_| {
        let views: Vec<AgentView> = fetch("/v1/agents").unwrap_or_default();
        let usable = views.into_iter().filter(|view| view.allowed && view.path.is_some());
        usable.map(|view| (view.name.to_string(), view.title)).collect()
    })
}

/// Completes keys, ids and labels of the open sessions; without a first character, one name of each.
pub(crate) fn sessions() -> ArgValueCompleter {
    completer(|current| {
        let views: Vec<SessionView> = fetch("/v1/sessions?all=false").unwrap_or_default();
        views.iter().flat_map(|view| session_names(view, &views, current.is_empty())).collect()
    })
}

/// Completes the agent's modes in a session.
pub(crate) fn session_modes() -> ArgValueCompleter {
    completer(|_| setting("mode", |settings| settings.modes.as_ref()))
}

/// Completes the agent's models in a session.
pub(crate) fn session_models() -> ArgValueCompleter {
    completer(|_| setting("model", |settings| settings.models.as_ref()))
}

/// Completes `ID=VALUE` of the agent's options in a session.
pub(crate) fn session_options() -> ArgValueCompleter {
    completer(|_| {
        let settings = settings().unwrap_or_default();
        let pairs = settings.options.iter().flat_map(|option| {
            let booleans = ["true", "false"].map(str::to_owned);
            let values = if option.is_boolean { booleans.to_vec() } else { option.choices.values.clone() };
            values.into_iter().map(|value| (format!("{}={value}", option.id), String::new()))
        });
        pairs.collect()
    })
}

/// Completes the ids of the pending permission requests.
pub(crate) fn permissions() -> ArgValueCompleter {
    completer(|_| {
        let views: Vec<serde_json::Value> = fetch("/v1/permissions").unwrap_or_default();
        let text =
            |view: &serde_json::Value, member: &str| view[member].as_str().unwrap_or_default().to_owned();
        views.iter().map(|view| (text(view, "permission_id"), text(view, "title"))).collect()
    })
}

/// Completes the names of the tokens.
pub(crate) fn tokens() -> ArgValueCompleter {
    completer(|_| {
        let views: Vec<TokenView> = fetch("/v1/tokens").unwrap_or_default();
        views.into_iter().map(|view| (view.name, view.scope.to_string())).collect()
    })
}

/// Makes a completer of a list of values with descriptions.
fn completer(list: impl Fn(&str) -> Vec<(String, String)> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let Some(current) = current.to_str() else { return Vec::new() };
        // A name with control characters is shown by no shell as it is, and one like a flag cannot be given.
        let is_usable =
            |value: &str| !value.is_empty() && !value.starts_with('-') && !value.contains(is_hidden);
        let fits = |(value, _): &(String, String)| value.starts_with(current) && is_usable(value);
        let candidate = |(value, note): (String, String)| {
            let note: String = note.chars().filter(|c| !is_hidden(*c)).collect();
            CompletionCandidate::new(value).help((!note.is_empty()).then(|| note.into()))
        };
        list(current).into_iter().filter(fits).take(CANDIDATES_MAX).map(candidate).collect()
    })
}

/// Names of a session: its label if no other session has it, its id, its key; or only the first of these.
fn session_names(view: &SessionView, views: &[SessionView], is_one_enough: bool) -> Vec<(String, String)> {
    let key = view.session_key.as_str();
    let is_unique =
        |label: &&String| views.iter().filter(|it| it.label.as_ref() == Some(*label)).count() == 1;
    let label = view.label.as_ref().filter(is_unique).filter(|label| !label.contains(is_hidden));
    let id = key.rsplit(':').next().unwrap_or(key);
    let names = label.into_iter().map(String::as_str).chain([id, key]);
    let note = format!("{} in {}", view.agent, view.cwd);
    names.take(if is_one_enough { 1 } else { 3 }).map(|name| (name.to_owned(), note.clone())).collect()
}

/// Values of a setting: those that an agent reports for it, else those of the option of this category.
fn setting(category: &str, own: impl Fn(&AgentSettings) -> Option<&Choices>) -> Vec<(String, String)> {
    let Some(settings) = settings() else { return Vec::new() };
    let option = settings.options.iter().find(|option| option.category.as_deref() == Some(category));
    let choices = own(&settings).or_else(|| option.map(|option| &option.choices));
    let values = choices.map(|choices| choices.values.clone()).unwrap_or_default();
    values.into_iter().map(|value| (value, String::new())).collect()
}

/// Settings of the agent of the session that the command line names.
fn settings() -> Option<AgentSettings> {
    let views: Vec<SessionView> = fetch("/v1/sessions?all=false")?;
    let key = session_of_words(words(), &views)?;
    views.into_iter().find(|view| view.session_key == key).map(|view| view.agent_settings)
}

/// Asks the gateway of the command line.
fn fetch<T: DeserializeOwned>(path: &str) -> Option<T> {
    let global = GlobalArgs { state_dir: state_dir(words()), ..GlobalArgs::default() };
    let client = global.client().ok()?.until(Some(Instant::now() + ANSWER));
    let runtime = command().ok()?;
    let answer = runtime.block_on(client.get(path)).ok();
    // A task that waits for a busy gateway does not delay the shell.
    runtime.shutdown_background();
    answer
}

/// State directory of a command line: its flag, or the variable.
fn state_dir(words: &[String]) -> Option<PathBuf> {
    let flag = words.iter().enumerate().find_map(|(at, word)| {
        let is_next = word == "--state-dir";
        word.strip_prefix("--state-dir=")
            .or_else(|| words.get(at + 1).map(String::as_str).filter(|_| is_next))
    });
    let Some(flag) = flag else {
        return std::env::var_os("ACP_GATEWAY_STATE_DIR").map(PathBuf::from);
    };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let below_home = flag.strip_prefix("~/").zip(home).map(|(rest, home)| home.join(rest));
    Some(below_home.unwrap_or_else(|| PathBuf::from(flag)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::session_row;
    use acp_shared::ids::SessionKey;

    #[test]
    fn session_is_named_by_label_id_and_key() {
        let view = |id: &str, label: Option<&str>| {
            let mut row = session_row(&SessionKey::parse(&format!("agent:demo:acp:{id}")).unwrap());
            row.label = label.map(str::to_owned);
            SessionView::from(row)
        };
        let views = [
            view("01", Some("twin")),
            view("02", Some("twin")),
            view("03", Some("fix it")),
            view("04", None),
        ];
        let names = |at: usize, is_one_enough| {
            let names = session_names(&views[at], &views, is_one_enough);
            names.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(0, false), ["01", "agent:demo:acp:01"]);
        assert_eq!(names(2, false), ["fix it", "03", "agent:demo:acp:03"]);
        assert_eq!(names(2, true), ["fix it"]);
        assert_eq!(names(3, true), ["04"]);
    }

    #[test]
    fn state_directory_is_that_of_the_flag() {
        let dir = |line: &str| state_dir(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(dir("x --state-dir /a prompt"), Some(PathBuf::from("/a")));
        assert_eq!(dir("x prompt --state-dir=/b "), Some(PathBuf::from("/b")));
        assert!(dir("x --state-dir ~/c").unwrap().is_absolute());
    }
}
