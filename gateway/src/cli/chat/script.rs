//! `chat` of a script: one message for each line of standard input; the output is the session's journal, live.

use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::api::console::{ConsoleMessageBody, ConsoleMessageResponse};
use crate::cli::chat::input::{InputEvent, InputReader};
use crate::cli::chat::screen::{ChatScreen, numbered_options};
use crate::cli::chat::{ChatArgs, ChatOpening, plan_opening};
use crate::cli::output::{CliError, CliResult, Out};
use crate::cli::{inside, usage};
use acp_core::api::{PermissionView, SessionView};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use acp_store::inbox::Outcome as Came;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// `chat` without a terminal, or with `--json`.
pub(super) async fn run(
    client: GatewayClient,
    conversation: String,
    args: &ChatArgs,
    is_terminal: bool,
    out: &mut Out,
) -> CliResult {
    let mut input = InputReader::start();
    let mut chat = Chat {
        client,
        conversation,
        screen: ChatScreen::new(out),
        session: None,
        open_runs: BTreeSet::new(),
        questions: VecDeque::new(),
        cancelling: false,
        is_terminal,
        exit_code: 0,
    };
    chat.open(args).await?;
    chat.run_loop(&mut input).await
}

/// Session whose events are shown.
struct FollowedSession {
    key: SessionKey,
    events: EventStream,
}

struct Chat<'a> {
    client: GatewayClient,
    conversation: String,
    screen: ChatScreen<'a>,
    session: Option<FollowedSession>,
    /// Turns requested here that have not ended.
    open_runs: BTreeSet<RunId>,
    /// Pending permission requests and questions: id and number of options that a number chooses.
    questions: VecDeque<(String, usize)>,
    cancelling: bool,
    is_terminal: bool,
    /// Highest exit code of all failures, for scripts.
    exit_code: u8,
}

enum ChatEvent {
    Event(Option<String>),
    Typed(InputEvent),
    Interrupted,
}

impl Chat<'_> {
    /// Binds the conversation to a session.
    async fn open(&mut self, args: &ChatArgs) -> CliResult {
        match plan_opening(&self.client, &self.conversation, args).await? {
            ChatOpening::Follow(session) => self.follow(Some(session), None).await?,
            ChatOpening::Commands(commands) => {
                for command in commands {
                    self.send_message(&command).await?;
                }
            }
        }
        match &self.session {
            Some(_) => Ok(()),
            None => Err(CliError::Code(self.exit_code.max(1))),
        }
    }

    async fn run_loop(&mut self, input: &mut InputReader) -> CliResult {
        let mut interrupts =
            signal(SignalKind::interrupt()).map_err(|error| inside("cannot wait for Ctrl-C", &error))?;
        let (mut is_over, mut unusable) = (false, None::<Failure>);
        loop {
            while let Some(ready) = self.session.as_mut().and_then(|session| session.events.ready()) {
                self.show(ready?)?;
            }
            if is_over && self.open_runs.is_empty() {
                return match unusable {
                    Some(failure) => Err(failure.into()),
                    None if self.exit_code == 0 => Ok(()),
                    None => Err(CliError::Code(self.exit_code)),
                };
            }
            if !is_over && (self.is_terminal || self.open_runs.is_empty() || !self.questions.is_empty()) {
                input.want();
            }
            match wait(self.session.as_mut(), input, &mut interrupts).await? {
                ChatEvent::Event(line) => self.show(line)?,
                ChatEvent::Typed(InputEvent::Line(line)) => self.on_line(&line).await?,
                ChatEvent::Typed(typed @ (InputEvent::End | InputEvent::Unusable(_))) => {
                    is_over = true;
                    if let InputEvent::Unusable(reason) = typed {
                        unusable =
                            Some(usage(format!("{reason}: this line and all later ones were not sent")));
                    }
                    if self.is_terminal || !self.questions.is_empty() {
                        self.cancel_turn().await?;
                    }
                }
                ChatEvent::Interrupted => {
                    if self.open_runs.is_empty() || std::mem::replace(&mut self.cancelling, true) {
                        return Ok(());
                    }
                    self.cancel_turn().await?;
                }
            }
        }
    }

    async fn cancel_turn(&mut self) -> CliResult {
        if self.open_runs.is_empty() { Ok(()) } else { self.send_message("/acp cancel").await }
    }

    /// Handles an input line: the number of an option answers the pending permission request, any other text
    /// is a message.
    async fn on_line(&mut self, line: &str) -> CliResult {
        let line = line.trim();
        if line.is_empty() {
            return Ok(());
        }
        let choice = line.parse::<usize>().ok();
        if let (Some((id, options)), Some(number)) = (self.questions.front(), choice)
            && (1..=*options).contains(&number)
        {
            let command = format!("/acp answer {id} {number}");
            return self.send_message(&command).await;
        }
        if let (Some((_, options @ 1..)), Some(_), true) = (self.questions.front(), choice, self.is_terminal)
        {
            return self
                .screen
                .line(&format!("[The permission request needs a number from 1 to {options}.]"));
        }
        self.send_message(line).await
    }

    /// Sends a message to the conversation; retried under the same id until a response arrives.
    async fn send_message(&mut self, text: &str) -> CliResult {
        let key = IdempotencyKey::mint();
        let body = ConsoleMessageBody {
            text: text.to_owned(),
            message_id: Some(key.as_str().to_owned()),
            author: None,
        };
        let path = format!("/v1/console/conversations/{}/messages", encode(&self.conversation));
        let said: ConsoleMessageResponse = match self.client.post(&path, &body, &key).await {
            Ok(said) => said,
            // A request refused by a running gateway does not end the chat.
            Err(failure) if self.is_terminal && failure.code != Code::GatewayUnavailable => {
                return self.screen.line(&format!("[{failure}]"));
            }
            Err(failure) => return Err(failure.into()),
        };
        if self.screen.is_json() {
            let mut line = serde_json::to_value(&said).unwrap_or_default();
            line["type"] = Value::from("said");
            self.screen.line(&line.to_string())?;
        } else if !said.outcome.text().is_empty() {
            self.screen.line(&format!("[{}]", said.outcome.text()))?;
        }
        self.on_outcome(said.outcome).await
    }

    async fn on_outcome(&mut self, outcome: Came) -> CliResult {
        match outcome {
            Came::Prompted { session_key, run_id, after_seq, .. } => {
                self.open_runs.insert(run_id);
                self.cancelling = false;
                self.follow(Some(session_key), Some(after_seq)).await
            }
            Came::Command { session_key: Some(session_key), .. } => {
                self.follow(Some(session_key), None).await
            }
            Came::Refused { failure, .. } => {
                self.exit_code = self.exit_code.max(failure.code.exit());
                Ok(())
            }
            Came::Command { session_key: None, .. } | Came::Ignored { .. } => Ok(()),
        }
    }

    /// Follows a session from `after` or from now on, unless it is followed already. Shows the permission
    /// requests that are pending: none is answered that was not shown.
    async fn follow(&mut self, key: Option<SessionKey>, after: Option<u64>) -> CliResult {
        let Some(key) = key.filter(|key| self.session.as_ref().is_none_or(|followed| followed.key != *key))
        else {
            return Ok(());
        };
        let view: SessionView = self.client.get(&format!("/v1/sessions/{}", encode(key.as_str()))).await?;
        self.questions.clear();
        let pending = view.permissions.unwrap_or_default();
        let after = after.unwrap_or(view.last_session_seq);
        if self.screen.is_json() {
            for line in self.rows_of(&key, &pending, after).await? {
                self.show(Some(line))?;
            }
        } else {
            for waiting in pending {
                // Named as in event lines, which have more members.
                let mut event = serde_json::to_value(&waiting).unwrap_or_default();
                event["type"] = Value::from("permission");
                self.screen.event(&event.to_string(), &event, self.questions.is_empty())?;
                self.questions.push_back((waiting.permission_id, numbered_options(&event)));
            }
        }
        let wanted = EventSelection { session: key.clone(), after, run: None, replay: false, follow: true };
        self.session = Some(FollowedSession { key, events: self.client.events(wanted) });
        Ok(())
    }

    /// Reads the journal rows of pending permission requests up to the row `after`. The stream has the later ones.
    async fn rows_of(
        &self,
        key: &SessionKey,
        pending: &[PermissionView],
        after: u64,
    ) -> Result<Vec<String>, Failure> {
        let all = EventSelection { session: key.clone(), after: 0, run: None, replay: false, follow: false };
        let mut rows = Vec::new();
        let mut events = self.client.events(all);
        while rows.len() < pending.len()
            && let Some(line) = events.next().await?
        {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["session_seq"].as_u64().is_some_and(|seq| seq > after) {
                break;
            }
            if event["type"] == "permission"
                && pending.iter().any(|waiting| event["permission_id"] == waiting.permission_id)
            {
                rows.push(line);
            }
        }
        Ok(rows)
    }

    /// Shows an event and updates the open runs and pending permission requests.
    fn show(&mut self, line: Option<String>) -> CliResult {
        let Some(line) = line else {
            // The session is closed; the conversation stays open without one.
            self.session = None;
            self.open_runs.clear();
            self.questions.clear();
            return Ok(());
        };
        let event: Value = match serde_json::from_str(&line) {
            Ok(event) => event,
            Err(error) => return self.screen.line(&format!("[an event cannot be shown: {error}]")),
        };
        let permission = event["permission_id"].as_str().unwrap_or_default();
        // The stream may begin before a request that was pending at its start.
        if event["type"] == "permission" && self.questions.iter().any(|(id, _)| id == permission) {
            return Ok(());
        }
        self.screen.event(&line, &event, self.questions.is_empty())?;
        let run = event["run_id"].as_str().and_then(|run| RunId::parse(run).ok());
        match event["type"].as_str() {
            Some("done" | "error") => {
                let is_own = run.is_some_and(|run| self.open_runs.remove(&run));
                if is_own && event["type"] == "error" {
                    let code = event["code"].as_str().and_then(Code::parse);
                    self.exit_code = self.exit_code.max(code.map_or(1, Code::exit));
                }
            }
            Some("permission") if !permission.is_empty() => {
                self.questions.push_back((permission.to_owned(), numbered_options(&event)));
            }
            Some("permission_settled") => self.questions.retain(|(id, _)| id != permission),
            _ => {}
        }
        Ok(())
    }
}

async fn wait(
    session: Option<&mut FollowedSession>,
    input: &mut InputReader,
    interrupts: &mut Signal,
) -> Result<ChatEvent, Failure> {
    let event = async {
        match session {
            Some(followed) => followed.events.next().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        event = event => event.map(ChatEvent::Event),
        typed = input.next(), if input.is_reading() => Ok(ChatEvent::Typed(typed)),
        _ = interrupts.recv() => Ok(ChatEvent::Interrupted),
    }
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
