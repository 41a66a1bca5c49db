//! The session that a verb is about: named, the one used last, or the one of the current directory. One resolver for all
//! verbs.

use crate::api::client::GatewayClient;
use crate::cli::given::current_dir;
use crate::cli::output::{age, name};
use crate::cli::shell_completion;
use acp_core::api::SessionView;
use acp_core::command::session_ref::{SessionCandidate, find_session};
use acp_core::failure::Failure;
use acp_core::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use clap::Args;
use std::path::Path;

/// Maximum number of candidates in an error.
const CANDIDATES_MAX: usize = 8;
/// Start of every session key.
const KEY_START: &str = "agent:";

/// Session of a verb.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SessionArg {
    /// Key, id or its first characters, or label [default: the open session of the current directory]
    #[arg(value_name = "SESSION", add = shell_completion::sessions())]
    session: Option<String>,
    /// Use the open session that was active last
    #[arg(long, conflicts_with = "session")]
    last: bool,
}

/// Agent for which a verb asks.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ActsForArgs {
    /// See and use only what this session's agent may, or an agent without a session
    #[arg(long = "as", value_name = "SESSION|AGENT", add = shell_completion::sessions())]
    acts_for: Option<String>,
}

impl ActsForArgs {
    /// Returns a client that asks for the session or agent.
    ///
    /// # Errors
    /// As [`resolve_name`], if several sessions fit.
    pub(crate) async fn client(&self, client: GatewayClient) -> Result<GatewayClient, Failure> {
        let Some(name) = &self.acts_for else { return Ok(client) };
        let name = match resolve_name(name, &client).await {
            Ok(key) => key.to_string(),
            // Not a session: the gateway knows the agents.
            Err(failure) if failure.code == Code::NoSession && failure.detail_code.is_none() => name.clone(),
            Err(failure) => return Err(failure),
        };
        Ok(client.acting_for(Some(name)))
    }
}

/// True for a whole session key.
pub(crate) fn is_session_key(text: &str) -> bool {
    text.starts_with(KEY_START) && SessionKey::parse(text).is_ok()
}

impl SessionArg {
    /// True if a name or `--last` is given.
    pub(crate) const fn is_given(&self) -> bool {
        self.session.is_some() || self.last
    }

    /// Returns the key of the session.
    ///
    /// # Errors
    /// `NO_SESSION`, with the candidates if several sessions fit; failures of the gateway.
    pub(crate) async fn resolve(&self, client: &GatewayClient) -> Result<SessionKey, Failure> {
        if let Some(name) = &self.session {
            return resolve_name(name, client).await;
        }
        let views: Vec<SessionView> = client.get("/v1/sessions?all=false").await?;
        if self.last { last_session(&views) } else { session_of_directory(&views, &current_dir()?) }
    }
}

/// Returns the key of the session with this name. A whole key needs no list of the sessions.
///
/// # Errors
/// `NO_SESSION`, with the candidates if several sessions fit; failures of the gateway.
pub(crate) async fn resolve_name(name: &str, client: &GatewayClient) -> Result<SessionKey, Failure> {
    if name.starts_with(KEY_START)
        && let Ok(key) = SessionKey::parse(name)
    {
        return Ok(key);
    }
    let views: Vec<SessionView> = client.get("/v1/sessions?all=true").await?;
    find_named(name, &views)
}

/// Finds the session that a command line is about: the first word that names one, or that of the current directory.
pub(super) fn session_of_words(words: &[String], views: &[SessionView]) -> Option<SessionKey> {
    let named = words.iter().skip(1).find_map(|word| find_named(word, views).ok());
    let is_last = words.iter().any(|word| word == "--last");
    let unnamed = || if is_last { last_session(views) } else { session_of_directory(views, &current_dir()?) };
    named.or_else(|| unnamed().ok())
}

/// Finds a session by name: open sessions first, so that a label can be used again after its session was closed.
fn find_named(name: &str, views: &[SessionView]) -> Result<SessionKey, Failure> {
    let candidate = |view: &SessionView| SessionCandidate {
        session_key: view.session_key.clone(),
        agent_session_id: view.agent_session_id.clone(),
        label: view.label.clone(),
    };
    let open: Vec<SessionCandidate> = views.iter().filter(|view| is_open(view)).map(candidate).collect();
    let failure = match find_session(name, &open) {
        Ok(key) => return Ok(key),
        Err(failure) if failure.detail_code.is_some() => failure,
        Err(_) => match find_session(name, &views.iter().map(candidate).collect::<Vec<_>>()) {
            Ok(key) => return Ok(key),
            Err(failure) => failure,
        },
    };
    let next = "`acp-gateway sessions list --all` shows all sessions.";
    Err(Failure { message: format!("{} {next}", failure.message), ..failure })
}

fn is_open(view: &SessionView) -> bool {
    view.state != SessionState::Closed
}

fn last_session(views: &[SessionView]) -> Result<SessionKey, Failure> {
    let open = views.iter().filter(|view| is_open(view));
    let last = open.max_by_key(|view| view.last_activity_at_ms);
    last.map(|view| view.session_key.clone()).ok_or_else(|| {
        missing("No session is open. Start one: acp-gateway sessions spawn --agent demo".to_owned())
    })
}

fn session_of_directory(views: &[SessionView], here: &Path) -> Result<SessionKey, Failure> {
    let found: Vec<&SessionView> =
        views.iter().filter(|view| is_open(view) && Path::new(&view.cwd) == here).collect();
    match found.as_slice() {
        [only] => Ok(only.session_key.clone()),
        [] => Err(missing(format!(
            "No open session works in {}. Name one by key, id or label, or use --last; `acp-gateway sessions list` \
             shows them. `acp-gateway sessions spawn --agent NAME` starts one here.",
            here.display()
        ))),
        several => {
            let line = |view: &&SessionView| {
                let label =
                    view.label.as_deref().map(|label| format!(" {}", name(label))).unwrap_or_default();
                format!("\n  {}{label} (active {} ago)", view.session_key, age(view.last_activity_at_ms))
            };
            let lines: String = several.iter().take(CANDIDATES_MAX).map(line).collect();
            let text =
                format!("{} open sessions work in {}; name one:{lines}", several.len(), here.display());
            Err(missing(text).detail("SESSION_AMBIGUOUS"))
        }
    }
}

fn missing(text: String) -> Failure {
    Failure::new(Code::NoSession, text).origin("client")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::session_row;

    fn view(id: &str, label: Option<&str>, cwd: &str, state: SessionState, active: u64) -> SessionView {
        let mut row = session_row(&SessionKey::parse(&format!("agent:demo:acp:{id}")).unwrap());
        row.label = label.map(str::to_owned);
        cwd.clone_into(&mut row.cwd);
        (row.state, row.last_activity_at_ms) = (state, active);
        SessionView::from(row)
    }

    fn views() -> Vec<SessionView> {
        use SessionState::{Closed, Idle, Running};
        vec![
            view("01aaaa1", Some("fix the build"), "/a", Idle, 5),
            view("01aaaa2", None, "/b", Running, 9),
            view("01bbbb3", Some("fix the build"), "/a", Closed, 99),
            view("01bbbb4", None, "/b", Idle, 7),
        ]
    }

    fn id(found: Result<SessionKey, Failure>) -> Result<String, Option<String>> {
        found
            .map(|key| key.as_str().rsplit(':').next().unwrap().to_owned())
            .map_err(|failure| failure.detail_code.map(|code| code.to_string()))
    }

    #[test]
    fn session_is_found_by_id_prefix_or_label_open_ones_first() {
        for (name, want) in [
            ("fix the build", Ok("01aaaa1")),
            ("01aaaa2", Ok("01aaaa2")),
            ("01bbbb3", Ok("01bbbb3")),
            ("01bb", Ok("01bbbb4")),
            ("01aaaa", Err(Some("SESSION_AMBIGUOUS"))),
            ("nothing", Err(None)),
        ] {
            let want = want.map(str::to_owned).map_err(|code| code.map(str::to_owned));
            assert_eq!(id(find_named(name, &views())), want, "{name}");
        }
    }

    #[test]
    fn unnamed_session_is_the_last_or_that_of_the_directory() {
        assert_eq!(id(last_session(&views())), Ok("01aaaa2".to_owned()));
        assert_eq!(id(last_session(&[])), Err(None));
        assert_eq!(id(session_of_directory(&views(), Path::new("/a"))), Ok("01aaaa1".to_owned()));
        assert_eq!(id(session_of_directory(&views(), Path::new("/c"))), Err(None));
        let failure = session_of_directory(&views(), Path::new("/b")).unwrap_err();
        assert_eq!(failure.detail_code.as_deref(), Some("SESSION_AMBIGUOUS"));
        assert!(
            failure.message.starts_with("2 open sessions work in /b; name one:\n  agent:demo:acp:01aaaa2 ")
        );
    }
}
