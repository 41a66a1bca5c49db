//! The stdio bridge between an editor and a gateway: passes messages, and hides the loss of the gateway from the editor.
//! After a reconnect it loads the sessions behind the last row that the editor has, and sends unanswered requests again;
//! prompts carry an idempotency key, so that they run once.

use super::PERMISSION_ID_PREFIX;
use super::message::{
    INVALID_REQUEST, ReplyError, error_frame, notification_frame, parse, result_frame, session_of,
};
use crate::jsonrpc::{ObjectMembers, RpcMessage, put, quoted, string};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;

/// Maximum size of a message to the gateway, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Prefix of the ids of the bridge's own requests.
const OWN_ID: &str = "acp-bridge:";
/// Maximum number of remembered answers to permission requests.
const ANSWERS_MAX: usize = 64;

/// Settings of a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeOptions {
    /// Session that `session/new` opens instead of a new one.
    pub session: Option<String>,
    /// Working directory of new sessions, instead of the editor's.
    pub cwd: Option<String>,
    /// Beginning of the idempotency keys, unique for each bridge.
    pub key: String,
}

/// Message to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BridgeOutput {
    /// One line for the editor.
    Editor(String),
    /// One message for the gateway.
    Gateway(String),
}

/// Session that the editor has opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OpenSession {
    /// Last row that the editor has.
    seq: u64,
    epoch: Option<String>,
}

/// Unanswered request of the editor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unanswered {
    /// Raw id.
    id: String,
    method: String,
    session: Option<String>,
    /// The request as sent to the gateway.
    text: String,
    /// True for a prompt that the editor has cancelled.
    is_cancelled: bool,
}

/// Request of the bridge itself.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnCall {
    Initialize,
    Restore { session: String, is_load: bool },
}

/// Answer of the editor to a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    /// Id of the request.
    id: String,
    /// The response, as the editor sent it.
    text: String,
    /// True if the gateway was lost after it was sent, and with it perhaps the answer.
    is_doubtful: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Bridge {
    options: BridgeOptions,
    /// Request `initialize` of the editor, params as text; `None` before it.
    initialize: Option<String>,
    sessions: BTreeMap<String, OpenSession>,
    unanswered: VecDeque<Unanswered>,
    own: HashMap<String, OwnCall>,
    last_own: u64,
    last_key: u64,
    /// Questions that the editor shows, with their session.
    questions: HashMap<String, Option<String>>,
    /// Answers of the editor whose effect was not seen.
    answers: VecDeque<Answer>,
    /// Own prompts that a load repeats, as session and text.
    echoes: Vec<(String, String)>,
    is_restoring: bool,
}

impl Bridge {
    /// Creates a bridge.
    pub fn new(options: BridgeOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// True if the editor's messages can be passed: the gateway is connected and knows the sessions.
    pub const fn is_ready(&self) -> bool {
        !self.is_restoring
    }

    /// Takes a line of the editor.
    pub fn from_editor(&mut self, line: &str) -> Vec<BridgeOutput> {
        let message = match parse(line.as_bytes()) {
            Ok(message) => message,
            Err(error) => return vec![BridgeOutput::Editor(error_frame("null", &error))],
        };
        if line.len() > MESSAGE_BYTES_MAX {
            let error = ReplyError::new(
                INVALID_REQUEST,
                format!("a message may have {MESSAGE_BYTES_MAX} bytes at most"),
            );
            let RpcMessage::Request { id, .. } = message else { return Vec::new() };
            return vec![BridgeOutput::Editor(error_frame(id, &error))];
        }
        match message {
            RpcMessage::Request { id, method, params } => self.request(id, &method, params),
            RpcMessage::Response { id, .. } => {
                let permission = id.and_then(string).filter(|id| id.starts_with(PERMISSION_ID_PREFIX));
                if let Some(id) = permission {
                    self.questions.remove(id.as_ref());
                    self.answers.retain(|answer| answer.id != id);
                    self.answers.push_back(Answer {
                        id: id.into_owned(),
                        text: line.to_owned(),
                        is_doubtful: false,
                    });
                    if self.answers.len() > ANSWERS_MAX {
                        self.answers.pop_front();
                    }
                }
                vec![BridgeOutput::Gateway(line.to_owned())]
            }
            RpcMessage::Notification { method, params } => {
                self.note_cancel(&method, params);
                vec![BridgeOutput::Gateway(line.to_owned())]
            }
        }
    }

    /// Notes which prompts a notification cancels: it may be lost with the gateway.
    fn note_cancel(&mut self, method: &str, params: Option<&str>) {
        let params = params.unwrap_or("{}");
        let session = session_of(Some(params));
        let members = ObjectMembers::parse(params).unwrap_or_default();
        for request in self.unanswered.iter_mut().filter(|request| request.method == "session/prompt") {
            request.is_cancelled |= match method {
                "session/cancel" => request.session == session,
                "$/cancel_request" => members.get("requestId") == Some(request.id.as_str()),
                _ => false,
            };
        }
    }

    fn request(&mut self, id: &str, method: &str, params: Option<&str>) -> Vec<BridgeOutput> {
        let params = params.unwrap_or("{}");
        let session = session_of(Some(params));
        let text = match (method, &self.options.session) {
            ("initialize", _) => {
                self.initialize = Some(params.to_owned());
                request(id, method, params)
            }
            ("session/new", Some(session)) => {
                let changes = [("sessionId", quoted(session))];
                request(id, "session/resume", &self.with_cwd(&with_members(params, &changes)))
            }
            ("session/new", None) => {
                let params = self.with_cwd(params);
                request(id, method, &self.with_key(&params))
            }
            ("session/prompt" | "_acphost/session/steer", _) => request(id, method, &self.with_key(params)),
            _ => request(id, method, params),
        };
        self.unanswered.push_back(Unanswered {
            id: id.to_owned(),
            method: method.to_owned(),
            session,
            text: text.clone(),
            is_cancelled: false,
        });
        vec![BridgeOutput::Gateway(text)]
    }

    fn with_cwd(&self, params: &str) -> String {
        match &self.options.cwd {
            Some(cwd) => with_members(params, &[("cwd", quoted(cwd))]),
            None => params.to_owned(),
        }
    }

    /// Adds an idempotency key, unless the editor gave one.
    fn with_key(&mut self, params: &str) -> String {
        self.last_key += 1;
        let key = format!("{}:{}", self.options.key, self.last_key);
        with_ours(params, |ours| {
            if ours.get("idempotencyKey").is_none_or(Value::is_null) {
                put(ours, "idempotencyKey", json!(key));
            }
        })
    }

    /// Takes a message of the gateway.
    pub fn from_gateway(&mut self, text: &str) -> Vec<BridgeOutput> {
        match parse(text.as_bytes()) {
            Ok(RpcMessage::Response { id: Some(id), outcome }) => self.response(id, outcome, text),
            Ok(RpcMessage::Request { id, params, .. }) => self.question(id, params, text),
            Ok(RpcMessage::Notification { method, params }) => self.notification(&method, params, text),
            Ok(RpcMessage::Response { id: None, .. }) | Err(_) => vec![BridgeOutput::Editor(text.to_owned())],
        }
    }

    fn response(&mut self, id: &str, outcome: Result<&str, &str>, text: &str) -> Vec<BridgeOutput> {
        if let Some(own) = string(id).and_then(|id| self.own.remove(id.as_ref())) {
            return self.own_response(own, outcome);
        }
        let found = self.unanswered.iter().position(|request| request.id == id);
        let Some(request) = found.and_then(|at| self.unanswered.remove(at)) else {
            return vec![BridgeOutput::Editor(text.to_owned())];
        };
        let Ok(result) = outcome else { return vec![BridgeOutput::Editor(text.to_owned())] };
        let value: Value = serde_json::from_str(result).unwrap_or_default();
        let ours = value.pointer("/_meta/acphost").cloned().unwrap_or_default();
        let epoch = ours.get("epoch").and_then(Value::as_str).map(str::to_owned);
        match (request.method.as_str(), request.session) {
            ("session/new", _) => {
                let given = self.options.session.clone();
                let named = value.get("sessionId").and_then(Value::as_str).map(str::to_owned);
                let Some(session) = given.clone().or(named) else {
                    return vec![BridgeOutput::Editor(text.to_owned())];
                };
                let seq = given.as_ref().and_then(|_| ours.get("lastSeq")?.as_u64()).unwrap_or(0);
                self.sessions.insert(session.clone(), OpenSession { seq, epoch });
                if given.is_some() {
                    let result = with_members(result, &[("sessionId", quoted(&session))]);
                    return vec![BridgeOutput::Editor(result_frame(id, &result))];
                }
            }
            ("session/load" | "session/resume", Some(session)) => {
                let last = ours.get("lastSeq").and_then(Value::as_u64).unwrap_or(0);
                let open = self.sessions.entry(session).or_default();
                open.seq = open.seq.max(last);
                open.epoch = epoch;
            }
            ("session/close" | "session/delete", Some(session)) => {
                self.sessions.remove(&session);
            }
            _ => {}
        }
        vec![BridgeOutput::Editor(text.to_owned())]
    }

    fn question(&mut self, id: &str, params: Option<&str>, text: &str) -> Vec<BridgeOutput> {
        let Some(id) = string(id) else { return vec![BridgeOutput::Editor(text.to_owned())] };
        // An answer that was not valid is asked for again; one that was lost is sent again.
        let lost = self.answers.iter_mut().find(|answer| answer.id == id && answer.is_doubtful);
        if let Some(answer) = lost {
            answer.is_doubtful = false;
            return vec![BridgeOutput::Gateway(answer.text.clone())];
        }
        // The editor shows a question until it answers it.
        let is_new = self.questions.insert(id.into_owned(), session_of(params)).is_none();
        if is_new { vec![BridgeOutput::Editor(text.to_owned())] } else { Vec::new() }
    }

    fn notification(&mut self, method: &str, params: Option<&str>, text: &str) -> Vec<BridgeOutput> {
        let value: Value = params.and_then(|params| serde_json::from_str(params).ok()).unwrap_or_default();
        let session = value.get("sessionId").and_then(Value::as_str).unwrap_or_default();
        if let Some(seq) = value.pointer("/_meta/acphost/seq").and_then(Value::as_u64)
            && let Some(open) = self.sessions.get_mut(session)
        {
            open.seq = open.seq.max(seq);
        } else if method == "session/update"
            && let Some(seq) = value.pointer("/_meta/acphost/seq").and_then(Value::as_u64)
        {
            // A session that is being loaded for the first time.
            self.sessions.insert(session.to_owned(), OpenSession { seq, epoch: None });
        }
        if method == "_acphost/permission/settled"
            && let Some(id) = value.get("permissionId").and_then(Value::as_str)
        {
            let id = format!("{PERMISSION_ID_PREFIX}{id}");
            self.questions.remove(&id);
            self.answers.retain(|answer| answer.id != id);
        }
        let update = value.get("update");
        if update.and_then(|update| update.get("sessionUpdate")) == Some(&json!("user_message_chunk")) {
            let said = update.and_then(|update| update.pointer("/content/text")).and_then(Value::as_str);
            let echo = self.echoes.iter().position(|(of, text)| of == session && Some(text.as_str()) == said);
            if let Some(at) = echo {
                self.echoes.remove(at);
                return Vec::new();
            }
        }
        vec![BridgeOutput::Editor(text.to_owned())]
    }

    /// Begins with a new connection. Returns the first messages for the gateway.
    pub fn connected(&mut self) -> Vec<BridgeOutput> {
        let Some(params) = self.initialize.clone() else { return Vec::new() };
        if self.unanswered.iter().any(|request| request.method == "initialize") {
            // The editor waits for the answer itself, and has sent nothing else.
            let texts = self.unanswered.iter().map(|request| BridgeOutput::Gateway(request.text.clone()));
            return texts.collect();
        }
        self.is_restoring = true;
        self.own.clear();
        vec![self.own_call(OwnCall::Initialize, "initialize", &params)]
    }

    /// Notes the loss of the gateway: nothing of the editor is passed until the next connection is restored.
    pub fn disconnected(&mut self) {
        self.is_restoring = true;
        self.answers.iter_mut().for_each(|answer| answer.is_doubtful = true);
    }

    fn own_call(&mut self, call: OwnCall, method: &str, params: &str) -> BridgeOutput {
        self.last_own += 1;
        let id = format!("{OWN_ID}{}", self.last_own);
        self.own.insert(id.clone(), call);
        BridgeOutput::Gateway(request(&quoted(&id), method, params))
    }

    fn own_response(&mut self, call: OwnCall, outcome: Result<&str, &str>) -> Vec<BridgeOutput> {
        let mut out = Vec::new();
        match call {
            OwnCall::Initialize => {
                self.echoes = self.own_prompts();
                let sessions: Vec<_> =
                    self.sessions.iter().map(|(key, open)| (key.clone(), open.clone())).collect();
                for (session, open) in sessions {
                    let params = json!({ "sessionId": session, "cwd": "/", "mcpServers": [],
                        "_meta": { "acphost": { "after": open.seq, "epoch": open.epoch } } });
                    let call = OwnCall::Restore { session, is_load: true };
                    out.push(self.own_call(call, "session/load", &params.to_string()));
                }
            }
            OwnCall::Restore { session, is_load } => match outcome {
                Ok(result) => out.extend(self.restored(&session, result)),
                // The row numbers are of another journal: continue with what comes.
                Err(_) if is_load => {
                    let params = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
                    let call = OwnCall::Restore { session, is_load: false };
                    out.push(self.own_call(call, "session/resume", &params.to_string()));
                }
                Err(_) => {
                    self.sessions.remove(&session);
                }
            },
        }
        if self.own.is_empty() {
            self.is_restoring = false;
            self.echoes.clear();
            out.extend(self.repeat_requests());
        }
        out
    }

    /// Notes what a session is now, and withdraws questions that were settled meanwhile.
    fn restored(&mut self, session: &str, result: &str) -> Vec<BridgeOutput> {
        let value: Value = serde_json::from_str(result).unwrap_or_default();
        let ours = value.pointer("/_meta/acphost").cloned().unwrap_or_default();
        if let Some(open) = self.sessions.get_mut(session) {
            open.epoch = ours.get("epoch").and_then(Value::as_str).map(str::to_owned);
            open.seq = ours.get("lastSeq").and_then(Value::as_u64).unwrap_or(open.seq);
        }
        let pending = ours.get("pendingPermissions").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_pending = |id: &str| {
            pending
                .iter()
                .any(|it| it.as_str().is_some_and(|it| id.strip_prefix(PERMISSION_ID_PREFIX) == Some(it)))
        };
        let shown = self.questions.iter().filter(|(_, of)| of.as_deref() == Some(session));
        let gone: Vec<String> = shown.map(|(id, _)| id).filter(|id| !is_pending(id)).cloned().collect();
        let withdraw = |id: String| {
            self.questions.remove(&id);
            let params = json!({ "requestId": id });
            BridgeOutput::Editor(notification_frame("$/cancel_request", &params.to_string()))
        };
        gone.into_iter().map(withdraw).collect()
    }

    /// Returns the unanswered prompts: session and first text.
    fn own_prompts(&self) -> Vec<(String, String)> {
        let prompts = self.unanswered.iter().filter(|request| request.method == "session/prompt");
        let text = |request: &Unanswered| {
            let value: Value = serde_json::from_str(&request.text).ok()?;
            let text = value.pointer("/params/prompt/0/text").and_then(Value::as_str).unwrap_or_default();
            Some((request.session.clone()?, text.to_owned()))
        };
        prompts.filter_map(text).collect()
    }

    /// Returns the unanswered requests, to be sent again, each with its cancellation.
    fn repeat_requests(&self) -> Vec<BridgeOutput> {
        let text = |request: &Unanswered| {
            let seen = request.session.as_ref().and_then(|session| self.sessions.get(session));
            match (request.method.as_str(), seen) {
                ("session/load", Some(open)) => change_params(&request.text, |params| {
                    with_ours(params, |ours| put(ours, "after", json!(open.seq)))
                }),
                _ => request.text.clone(),
            }
        };
        let repeat = |request: &Unanswered| {
            let params = || format!(r#"{{"requestId":{}}}"#, request.id);
            let cancel = request.is_cancelled.then(|| notification_frame("$/cancel_request", &params()));
            std::iter::once(text(request)).chain(cancel)
        };
        self.unanswered.iter().flat_map(repeat).map(BridgeOutput::Gateway).collect()
    }
}

fn request(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{},"params":{params}}}"#, quoted(method))
}

/// Replaces members of an object, JSON text.
fn with_members(object: &str, changes: &[(&str, String)]) -> String {
    let members = ObjectMembers::parse(object).unwrap_or_default();
    let mut out = "{".to_owned();
    for (name, raw) in members.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name)) {
        // Writing into a String cannot fail.
        let _ = write!(out, "{}:{raw},", quoted(name));
    }
    for (name, raw) in changes {
        let _ = write!(out, "{}:{raw},", quoted(name));
    }
    format!("{}}}", out.trim_end_matches(','))
}

/// Changes `_meta.acphost` of params, JSON text.
fn with_ours(params: &str, change: impl FnOnce(&mut Value)) -> String {
    let members = ObjectMembers::parse(params).unwrap_or_default();
    let mut meta: Value =
        members.get("_meta").and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
    if !meta.is_object() {
        meta = json!({});
    }
    if !meta.get("acphost").is_some_and(Value::is_object) {
        put(&mut meta, "acphost", json!({}));
    }
    if let Some(ours) = meta.get_mut("acphost") {
        change(ours);
    }
    with_members(params, &[("_meta", meta.to_string())])
}

/// Changes the params of a message.
fn change_params(message: &str, change: impl FnOnce(&str) -> String) -> String {
    let members = ObjectMembers::parse(message).unwrap_or_default();
    let params = change(members.get("params").unwrap_or("{}"));
    with_members(message, &[("params", params)])
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
