//! Handles the client's messages and checks them against ACP.

use super::agent::{Agent, Exit, Prompt};
use super::messages::{self, AUTH_METHOD};
use super::outlet;
use super::requests::Answer;
use super::session::{HistoryEntry, MODELS, MODES, Session};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Number of sessions on a page of `session/list`.
const LIST_PAGE: usize = 2;

const PARSE: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const UNKNOWN_METHOD: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
const AUTH_REQUIRED: i64 = -32000;
const NOT_FOUND: i64 = -32002;

/// A refused request.
struct Refused {
    code: i64,
    what: String,
    /// True if the client violated ACP.
    violation: bool,
}

impl Refused {
    fn plain(code: i64, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), violation: false }
    }

    fn violation(code: i64, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), violation: true }
    }
}

impl From<std::io::Error> for Refused {
    fn from(e: std::io::Error) -> Self {
        Self::plain(INTERNAL, e.to_string())
    }
}

impl Agent {
    /// Handles one line of the client.
    pub(crate) fn handle(&mut self, line: &str) -> Result<(), Exit> {
        let message: Value = match serde_json::from_str(line) {
            Ok(message) => message,
            Err(e) => {
                self.log.event("received", json!({"raw": line}));
                return self.refuse_line(PARSE, &format!("no JSON: {e}"));
            }
        };
        self.log.event("received", json!({"message": message}));
        if !message.is_object() || message["jsonrpc"] != "2.0" {
            return self.refuse_line(INVALID_REQUEST, "no JSON-RPC 2.0 message");
        }
        let params = message.get("params").cloned().unwrap_or_else(|| json!({}));
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => self.request(method, id, &params),
            (Some(method), None) => {
                self.notification(method, &params);
                Ok(())
            }
            (None, Some(id)) => {
                self.reply(id, &message);
                Ok(())
            }
            (None, None) => self.refuse_line(INVALID_REQUEST, "neither method nor id"),
        }
    }

    fn refuse_line(&mut self, code: i64, what: &str) -> Result<(), Exit> {
        self.log.violation(what);
        self.send(&messages::error(&Value::Null, code, what))
    }

    fn reply(&mut self, id: &Value, message: &Value) {
        let answer = match (message.get("result"), message.get("error")) {
            (Some(result), None) => Answer::Result(result.clone()),
            (None, Some(error)) if error["code"].is_i64() && error["message"].is_string() => {
                Answer::Error(error["code"].as_i64().unwrap_or_default())
            }
            _ => {
                self.log.violation(&format!("a reply to {id} with neither a result nor a proper error"));
                return;
            }
        };
        if let Err(what) = self.requests.accept_answer(id, answer) {
            self.log.violation(&what);
        }
    }

    fn notification(&mut self, method: &str, params: &Value) {
        if !self.initialized {
            self.log.violation(&format!("{method} before initialize"));
        }
        if method != "session/cancel" {
            return;
        }
        let session = params["sessionId"].as_str().unwrap_or_default();
        if self.sessions.get(session).is_none() {
            self.log.violation(&format!("session/cancel of the unknown session {session:?}"));
        }
        if let Some((running, cancelled)) = &mut self.turn
            && running == session
        {
            *cancelled = true;
        }
        for prompt in self.queue.iter_mut().filter(|prompt| prompt.session == session) {
            prompt.cancelled = true;
        }
    }

    fn request(&mut self, method: &str, id: &Value, params: &Value) -> Result<(), Exit> {
        if !(id.is_string() || id.is_i64() || id.is_u64()) {
            self.log.violation(&format!("{method} with the id {id}"));
        }
        if !self.client_ids.insert(id.to_string()) {
            self.log.violation(&format!("{method} with the id {id}, which was used before"));
            let what = "the id was used before";
            return self.send(&messages::error(id, INVALID_REQUEST, what));
        }
        let answer = match method {
            "initialize" => self.initialize(params),
            _ if !self.initialized => {
                Err(Refused::violation(INVALID_REQUEST, format!("{method} before initialize")))
            }
            "authenticate" => self.authenticate(params),
            "session/new" => self.new_session(params),
            "session/load" if !self.flags.no_load => return self.load(id, params),
            "session/resume" if !self.flags.no_resume => self.resume(params),
            "session/list" if !self.flags.no_list => self.list(params),
            "session/close" => self.close(params),
            "session/delete" if self.flags.delete => self.delete(params),
            "session/set_mode" if self.flags.modes => return self.set_mode(id, params),
            "session/set_config_option" if self.flags.options => self.set_option(params),
            "_session/steering" if self.flags.steer => self.steer(params),
            "session/prompt" => match self.prompt(id, params) {
                Ok(()) => return Ok(()),
                Err(refused) => Err(refused),
            },
            _ => Err(Refused::plain(UNKNOWN_METHOD, format!("there is no {method}"))),
        };
        self.answer(id, answer)
    }

    fn answer(&mut self, id: &Value, answer: Result<Value, Refused>) -> Result<(), Exit> {
        match answer {
            Ok(result) => self.send(&messages::result(id, result)),
            Err(refused) => {
                if refused.violation {
                    self.log.violation(&refused.what);
                }
                self.send(&messages::error(id, refused.code, &refused.what))
            }
        }
    }

    fn initialize(&mut self, params: &Value) -> Result<Value, Refused> {
        if self.initialized {
            return Err(Refused::violation(INVALID_REQUEST, "initialize a second time"));
        }
        if !params["protocolVersion"].is_u64() {
            return Err(Refused::violation(INVALID_PARAMS, "initialize without a protocolVersion"));
        }
        std::thread::sleep(std::time::Duration::from_millis(self.flags.slow_init_ms));
        self.initialized = true;
        let known = params.pointer("/clientCapabilities/session/configOptions/boolean");
        self.knows_booleans = known.is_some_and(Value::is_object);
        Ok(messages::initialize_result(&self.flags))
    }

    fn authenticate(&mut self, params: &Value) -> Result<Value, Refused> {
        if !self.flags.auth_required || params["methodId"] != AUTH_METHOD {
            return Err(Refused::violation(INVALID_PARAMS, "authenticate by a method that was not offered"));
        }
        self.authenticated = true;
        Ok(json!({}))
    }

    fn demand_authenticated(&self) -> Result<(), Refused> {
        if self.flags.auth_required && !self.authenticated {
            return Err(Refused::plain(AUTH_REQUIRED, "Authentication required"));
        }
        Ok(())
    }

    fn new_session(&mut self, params: &Value) -> Result<Value, Refused> {
        let cwd = cwd("session/new", params)?;
        mcp_servers("session/new", params)?;
        self.demand_authenticated()?;
        let session = self.sessions.create(cwd, self.flags.modes)?.clone();
        self.servers.insert(session.id.clone(), params["mcpServers"].clone());
        Ok(messages::session_result(&self.flags, &session, self.knows_booleans, true))
    }

    fn load(&mut self, id: &Value, params: &Value) -> Result<(), Exit> {
        match mcp_servers("session/load", params).and_then(|()| self.reopen_session("session/load", params)) {
            Err(refused) => self.answer(id, Err(refused)),
            Ok(session) => {
                for said in &session.history {
                    let kind = if said.by_user { "user_message_chunk" } else { "agent_message_chunk" };
                    self.update(&session.id, messages::chunk(kind, &said.text))?;
                }
                for number in 1..=self.flags.load_replays {
                    let text = format!("replay {number}");
                    self.update(&session.id, messages::chunk("agent_message_chunk", &text))?;
                }
                self.answer(
                    id,
                    Ok(messages::session_result(&self.flags, &session, self.knows_booleans, false)),
                )
            }
        }
    }

    fn resume(&mut self, params: &Value) -> Result<Value, Refused> {
        let session = self.reopen_session("session/resume", params)?;
        Ok(messages::session_result(&self.flags, &session, self.knows_booleans, false))
    }

    fn reopen_session(&mut self, method: &str, params: &Value) -> Result<Session, Refused> {
        let cwd = cwd(method, params)?;
        let id = session_id(method, params)?;
        self.demand_authenticated()?;
        if self.turn.as_ref().is_some_and(|(running, _)| running == id) {
            return Err(Refused::violation(INVALID_PARAMS, format!("{method} while a prompt runs")));
        }
        if self.sessions.reopen(id)?.is_none() {
            return Err(Refused::plain(NOT_FOUND, format!("there is no session {id}")));
        }
        self.sessions.change(id, |session| session.cwd = cwd)?;
        self.servers.insert(id.to_owned(), params["mcpServers"].clone());
        self.sessions.get(id).cloned().ok_or_else(|| Refused::plain(INTERNAL, "the session went away"))
    }

    /// One page of the sessions, in the order of their ids; the cursor is the last id of the page before.
    fn list(&self, params: &Value) -> Result<Value, Refused> {
        self.demand_authenticated()?;
        let cwd = match params.get("cwd") {
            None => None,
            Some(_) => Some(cwd("session/list", params)?),
        };
        let after = params["cursor"].as_str().unwrap_or_default();
        let mut found = self.sessions.list()?;
        found.retain(|session| {
            session.id.as_str() > after && cwd.as_ref().is_none_or(|cwd| *cwd == session.cwd)
        });
        let more = found.len() > LIST_PAGE;
        found.truncate(LIST_PAGE);
        let title = |session: &Session| session.history.first().map(|entry| entry.text.clone());
        let entry =
            |session: &Session| json!({"sessionId": session.id, "cwd": session.cwd, "title": title(session)});
        let sessions: Vec<Value> = found.iter().map(entry).collect();
        let next = found.last().filter(|_| more).map(|session| session.id.clone());
        Ok(json!({"sessions": sessions, "nextCursor": next}))
    }

    fn close(&mut self, params: &Value) -> Result<Value, Refused> {
        let id = session_id("session/close", params)?.to_owned();
        if let Some((running, cancelled)) = &mut self.turn
            && *running == id
        {
            *cancelled = true;
        }
        if self.sessions.close(&id) {
            Ok(json!({}))
        } else {
            Err(Refused::violation(NOT_FOUND, format!("session/close of the unknown session {id}")))
        }
    }

    fn delete(&mut self, params: &Value) -> Result<Value, Refused> {
        let id = session_id("session/delete", params)?;
        if self.turn.as_ref().is_some_and(|(running, _)| running == id) {
            return Err(Refused::violation(INVALID_PARAMS, "session/delete while a prompt runs"));
        }
        if self.sessions.delete(id)? {
            Ok(json!({}))
        } else {
            Err(Refused::violation(NOT_FOUND, format!("session/delete of the unknown session {id}")))
        }
    }

    fn set_mode(&mut self, id: &Value, params: &Value) -> Result<(), Exit> {
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let mode = params["modeId"].as_str().filter(|mode| MODES.contains(mode)).map(str::to_owned);
        let set = match mode {
            _ if self.sessions.get(&session).is_none() => {
                Err(Refused::violation(NOT_FOUND, "session/set_mode of an unknown session"))
            }
            None => Err(Refused::plain(INVALID_PARAMS, "session/set_mode to an unknown mode")),
            Some(mode) => self
                .sessions
                .change(&session, |session| session.mode.clone_from(&mode))
                .map_err(Refused::from)
                .map(|()| mode),
        };
        match set {
            Err(refused) => self.answer(id, Err(refused)),
            Ok(mode) => {
                self.answer(id, Ok(json!({})))?;
                self.update(&session, json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}))
            }
        }
    }

    fn set_option(&mut self, params: &Value) -> Result<Value, Refused> {
        let session = session_id("session/set_config_option", params)?.to_owned();
        if self.sessions.get(&session).is_none() {
            return Err(Refused::violation(NOT_FOUND, "session/set_config_option of an unknown session"));
        }
        let (id, value) = (params["configId"].as_str().unwrap_or_default(), &params["value"]);
        match (id, value.as_str(), value.as_bool()) {
            ("model", Some(model), _) if MODELS.contains(&model) => {
                self.sessions.change(&session, |session| model.clone_into(&mut session.model))?;
            }
            ("web", _, Some(web)) if self.knows_booleans && params["type"] == "boolean" => {
                self.sessions.change(&session, |session| session.web = web)?;
            }
            ("web", ..) => {
                return Err(Refused::violation(INVALID_PARAMS, "a boolean option without a boolean"));
            }
            _ => return Err(Refused::plain(INVALID_PARAMS, format!("{id} has no value {value}"))),
        }
        let session = self.sessions.get(&session).cloned();
        let session = session.ok_or_else(|| Refused::plain(INTERNAL, "the session went away"))?;
        Ok(json!({"configOptions": messages::config_options(&session, self.knows_booleans)}))
    }

    /// Injects a text into the running turn; without one, answers `promptRequired`.
    fn steer(&mut self, params: &Value) -> Result<Value, Refused> {
        let session = session_id("_session/steering", params)?;
        let text = prompt_text("_session/steering", params)?;
        if self.turn.as_ref().is_none_or(|(running, cancelled)| running != session || *cancelled) {
            return Ok(json!({"outcome": "promptRequired"}));
        }
        self.log.event("steer", json!({"session": session, "text": text}));
        Ok(json!({"outcome": "injected"}))
    }

    fn prompt(&mut self, id: &Value, params: &Value) -> Result<(), Refused> {
        let session = session_id("session/prompt", params)?;
        let text = prompt_text("session/prompt", params)?;
        self.log.event("prompt", json!({"session": session, "text": text}));
        if self.sessions.get(session).is_none() {
            let what = format!("session/prompt of {session}, which is not open here");
            return Err(Refused::violation(NOT_FOUND, what));
        }
        let runs = self.turn.as_ref().is_some_and(|(running, _)| running == session);
        if runs || self.queue.iter().any(|prompt| prompt.session == session) {
            return Err(Refused::violation(INVALID_PARAMS, "session/prompt while a prompt runs"));
        }
        if self.requests.unanswered_permissions(session) > 0 {
            self.log.violation("session/prompt, and a permission of an earlier turn was never answered");
        }
        self.sessions.change(session, |session| {
            session.history.push(HistoryEntry { by_user: true, text: text.clone() });
        })?;
        let prompt = Prompt { id: id.clone(), session: session.to_owned(), text, cancelled: false };
        self.queue.push_back(prompt);
        Ok(())
    }

    /// Reports a failure that no message caused, in the log and on stderr.
    pub(crate) fn log_trouble(&mut self, what: &str) {
        self.log.event("trouble", json!({"what": what}));
        outlet::stderr_line(&format!("fake-agent: {what}"));
    }
}

fn session_id<'a>(method: &str, params: &'a Value) -> Result<&'a str, Refused> {
    params["sessionId"]
        .as_str()
        .ok_or_else(|| Refused::violation(INVALID_PARAMS, format!("{method} without a sessionId")))
}

fn prompt_text(method: &str, params: &Value) -> Result<String, Refused> {
    let blocks = match params["prompt"].as_array() {
        Some(blocks) if !blocks.is_empty() => blocks,
        _ => return Err(Refused::violation(INVALID_PARAMS, format!("{method} without content"))),
    };
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    Ok(texts.join("\n"))
}

fn cwd(method: &str, params: &Value) -> Result<PathBuf, Refused> {
    match params["cwd"].as_str() {
        Some(cwd) if cwd.starts_with('/') => Ok(cwd.into()),
        _ => Err(Refused::violation(INVALID_PARAMS, format!("{method} without an absolute cwd"))),
    }
}

fn mcp_servers(method: &str, params: &Value) -> Result<(), Refused> {
    if params["mcpServers"].is_array() {
        Ok(())
    } else {
        Err(Refused::violation(INVALID_PARAMS, format!("{method} without mcpServers")))
    }
}
