//! Simulated agent that speaks ACP: it opens conversations, answers prompts with unique words, requests
//! permissions and terminals, and may fail, hang or fall silent, all by chance.

use crate::sim::gateway::LINE_BYTES_MAX;
use crate::sim::rng::SeededRng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Filler after a word of a long message, and its number of repetitions.
const SPEECH: &str = "and so on ";
const SPEECH_TIMES: usize = 50;

/// State shared by the agents of all processes; it outlives each of them.
#[derive(Debug, Default)]
pub(super) struct AgentMemory {
    /// Conversations, with the session of each.
    conversations: BTreeMap<String, String>,
    /// How often each run's prompt or steer was read.
    pub(super) heard: BTreeMap<String, usize>,
    next: usize,
}

/// One action of an agent in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentAction {
    Word,
    /// A word with much filler: more than a few messages hold.
    Speech,
    Thought,
    Tool,
    /// A tool call that changes a file.
    Change,
    Noise,
    /// A line that exceeds the limit.
    Flood,
    Ask,
    Terminal,
    TerminalUse(&'static str),
    End,
    Refuse,
    Hang,
}

#[derive(Debug)]
struct SimTurn {
    id: Value,
    deeds: VecDeque<AgentAction>,
    /// Number of our request that the turn waits for.
    asked: Option<usize>,
    cancelled: bool,
}

/// One process. Its output waits in `unsaid` until the scheduler releases it.
#[derive(Debug, Default)]
pub(super) struct SimAgent {
    no: usize,
    session: String,
    conversation: String,
    resumes: bool,
    loads: bool,
    steers: bool,
    deletes: bool,
    opens: OpenBehavior,
    /// True for an agent that ignores cancels.
    stubborn: bool,
    turn: Option<SimTurn>,
    /// True for a turn that does not continue without outside input.
    pub(super) hangs: bool,
    terminal: Option<String>,
    requests: usize,
    pub(super) unsaid: VecDeque<u8>,
    /// Total number of bytes ever put into `unsaid`.
    queued: u64,
    /// The agent's words, each with the offset of the end of its line.
    pub(super) words: Vec<(u64, String)>,
    words_made: usize,
    calls_made: usize,
    /// True once the agent has broken a limit: its further output is not read.
    pub(super) broke: bool,
    /// True once faults are switched off, so that nothing hangs.
    pub(super) calm: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum OpenBehavior {
    #[default]
    Well,
    Refuses,
    Never,
}

impl SimAgent {
    pub(super) fn new(no: usize, session: &str, chance: &mut SeededRng, calm: bool) -> Self {
        let opens = match chance.below(14) {
            0 if !calm => OpenBehavior::Refuses,
            1 if !calm => OpenBehavior::Never,
            _ => OpenBehavior::Well,
        };
        Self {
            no,
            session: session.to_owned(),
            resumes: chance.one_in(2),
            loads: !chance.one_in(6),
            steers: chance.one_in(2),
            deletes: chance.one_in(2),
            opens,
            stubborn: !calm && chance.one_in(8),
            calm,
            ..Self::default()
        }
    }

    /// Switches faults off: hanging turns continue.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        self.hangs = false;
        self.stubborn = false;
        if let Some(turn) = &mut self.turn {
            turn.deeds.retain(|deed| *deed != AgentAction::Hang);
            if !matches!(turn.deeds.back(), Some(AgentAction::End | AgentAction::Refuse)) {
                turn.deeds.push_back(AgentAction::End);
            }
        }
    }

    fn say(&mut self, message: &Value) {
        self.say_line(&message.to_string());
    }

    fn say_line(&mut self, line: &str) {
        self.queued += line.len() as u64 + 1;
        self.unsaid.extend(line.bytes().chain([b'\n']));
    }

    /// Says a part of a message or of a thought.
    fn chunk(&mut self, kind: &str, text: &str) {
        self.update(&json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } }));
    }

    /// Reports a completed tool call under a unique title, with what it adds to the report.
    fn call(&mut self, kind: &str, what: &str, content: impl FnOnce(&str) -> Value) {
        self.calls_made += 1;
        let title = format!("{what}-{}.{}", self.no, self.calls_made);
        self.update(
            &json!({ "sessionUpdate": "tool_call", "toolCallId": format!("call-{}", self.calls_made),
            "title": title, "kind": kind, "status": "completed", "content": content(&title) }),
        );
    }

    fn update(&mut self, update: &Value) {
        let params = json!({ "sessionId": self.conversation, "update": update });
        self.say(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
    }

    fn result(&mut self, id: &Value, result: &Value) {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn error(&mut self, id: &Value, code: i64, message: &str) {
        let error = json!({ "code": code, "message": message });
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn ask(&mut self, method: &str, params: &Value) {
        self.requests += 1;
        let id = self.requests;
        if let Some(turn) = &mut self.turn {
            turn.asked = Some(id);
        }
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
    }

    /// Handles a line on standard input.
    pub(super) fn hear(&mut self, line: &[u8], minds: &mut AgentMemory, chance: &mut SeededRng) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { return };
        let id = &message["id"];
        match message["method"].as_str() {
            None => self.answered(&message),
            Some("initialize") => self.initialize(id),
            Some("session/new") => {
                minds.next += 1;
                self.conversation = format!("conversation-{}", minds.next);
                minds.conversations.insert(self.conversation.clone(), self.session.clone());
                self.result(id, &json!({ "sessionId": self.conversation }));
            }
            Some("session/resume" | "session/load") => self.reopen(&message, minds),
            Some("session/prompt") => {
                let run = id.as_str().and_then(|id| id.strip_prefix("prompt:")).unwrap_or_default();
                *minds.heard.entry(run.to_owned()).or_default() += 1;
                let deeds = self.deeds(chance);
                self.turn = Some(SimTurn { id: id.clone(), deeds, asked: None, cancelled: false });
            }
            Some("_session/steering") => {
                let run = id.as_str().and_then(|id| id.strip_prefix("steer:")).unwrap_or_default();
                let taken = self.turn.is_some() && !chance.one_in(4);
                if taken {
                    *minds.heard.entry(run.to_owned()).or_default() += 1;
                }
                let outcome = if taken { "injected" } else { "promptRequired" };
                self.result(id, &json!({ "outcome": outcome }));
            }
            Some("session/cancel") => self.cancel(),
            Some("_acp_host/ping") => self.error(id, -32601, "Method not found"),
            Some("session/set_mode" | "session/set_config_option") if chance.one_in(4) => {
                self.error(id, -32602, "no such thing");
            }
            Some(_) if !id.is_null() => self.result(id, &json!({})),
            Some(_) => {}
        }
    }

    fn initialize(&mut self, id: &Value) {
        match self.opens {
            OpenBehavior::Well => {}
            OpenBehavior::Refuses => return self.error(id, -32603, "not today"),
            OpenBehavior::Never => {
                self.hangs = true;
                return;
            }
        }
        let mut session = serde_json::Map::new();
        for (has, name) in [(self.resumes, "resume"), (self.deletes, "delete"), (true, "close")] {
            if has {
                session.insert(name.to_owned(), json!({}));
            }
        }
        let abilities = json!({
            "loadSession": self.loads,
            "sessionCapabilities": session,
            "_meta": { "steering": { "supported": self.steers } },
        });
        let info = json!({ "name": "sim", "version": "1" });
        self.result(id, &json!({ "protocolVersion": 1, "agentInfo": info, "agentCapabilities": abilities }));
    }

    /// Reopens an old conversation; `load` replays its messages (H10).
    fn reopen(&mut self, message: &Value, minds: &AgentMemory) {
        let id = &message["id"];
        let wanted = message["params"]["sessionId"].as_str().unwrap_or_default();
        if minds.conversations.get(wanted) != Some(&self.session) {
            return self.error(id, -32002, "unknown session");
        }
        wanted.clone_into(&mut self.conversation);
        if message["method"] == "session/load" {
            for word in ["again", "and again"] {
                self.chunk("agent_message_chunk", &format!("replayed {word}"));
            }
        }
        self.result(id, &json!({}));
    }

    fn deeds(&mut self, chance: &mut SeededRng) -> VecDeque<AgentAction> {
        let kinds = [
            (12, AgentAction::Word),
            (2, AgentAction::Thought),
            (2, AgentAction::Tool),
            (6, AgentAction::Change),
            (3, AgentAction::Speech),
            (1, AgentAction::Noise),
            (usize::from(!self.calm && chance.one_in(6)), AgentAction::Flood),
            (2, AgentAction::Ask),
            (1, AgentAction::Terminal),
            (2, AgentAction::TerminalUse("terminal/output")),
            (1, AgentAction::TerminalUse("terminal/wait_for_exit")),
            (1, AgentAction::TerminalUse("terminal/kill")),
            (1, AgentAction::TerminalUse("terminal/release")),
        ];
        let count = 1 + chance.below(6);
        let picked = (0..count).filter_map(|_| chance.weighted(&kinds));
        // The output of a created terminal is read.
        let look =
            |deed| (deed == AgentAction::Terminal).then_some(AgentAction::TerminalUse("terminal/output"));
        let mut deeds: VecDeque<AgentAction> =
            picked.flat_map(|deed| std::iter::once(deed).chain(look(deed))).collect();
        deeds.push_back(match chance.below(12) {
            0 => AgentAction::Refuse,
            1 if !self.calm => AgentAction::Hang,
            _ => AgentAction::End,
        });
        deeds
    }

    fn cancel(&mut self) {
        if self.stubborn {
            return;
        }
        let Some(turn) = &mut self.turn else { return };
        turn.cancelled = true;
        turn.asked = None;
        turn.deeds = VecDeque::from([AgentAction::End]);
        self.hangs = false;
    }

    fn answered(&mut self, message: &Value) {
        let id = message["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(terminal) = message["result"]["terminalId"].as_str() {
            self.terminal = Some(terminal.to_owned());
        }
        if let Some(turn) = &mut self.turn
            && turn.asked == id
        {
            turn.asked = None;
        }
    }

    /// Describes the current turn, to debug a failed seed.
    pub(super) fn turn_now(&self) -> Option<String> {
        self.turn.as_ref().map(|turn| format!("{turn:?} {} said {:?}", self.hangs, self.requests))
    }

    /// True if the agent has an action to run.
    pub(super) fn is_eager(&self) -> bool {
        let may_act = |turn: &SimTurn| turn.asked.is_none() && !turn.deeds.is_empty();
        !self.hangs && self.unsaid.is_empty() && self.turn.as_ref().is_some_and(may_act)
    }

    /// Says a unique word with some text behind it.
    fn word(&mut self, more: &str) {
        self.words_made += 1;
        let word = format!("w{}.{} ", self.no, self.words_made);
        self.chunk("agent_message_chunk", &format!("{word}{more}"));
        self.words.push((self.queued, word));
    }

    /// Runs the next action of the turn.
    pub(super) fn act(&mut self) {
        let Some(deed) = self.turn.as_mut().and_then(|turn| turn.deeds.pop_front()) else { return };
        match deed {
            AgentAction::Word => self.word(""),
            AgentAction::Speech => self.word(&SPEECH.repeat(SPEECH_TIMES)),
            AgentAction::Thought => self.chunk("agent_thought_chunk", "hm"),
            AgentAction::Tool => self.call("read", "looks", |_| json!([])),
            AgentAction::Change => self.call(
                "edit",
                "changes",
                |title| json!([{ "type": "diff", "path": title, "oldText": null, "newText": "new\n" }]),
            ),
            AgentAction::Noise => self.say_line("this is not ACP"),
            AgentAction::Flood => {
                self.broke = true;
                self.say_line(&"x".repeat(LINE_BYTES_MAX + 1));
            }
            AgentAction::Ask => {
                let option = |id: &str, kind: &str| json!({ "optionId": id, "name": id, "kind": kind });
                let options = json!([option("yes", "allow_once"), option("no", "reject_once")]);
                let call = json!({ "toolCallId": "call", "title": "may I?", "kind": "edit" });
                let params = json!({ "sessionId": self.conversation, "toolCall": call, "options": options });
                self.ask("session/request_permission", &params);
            }
            AgentAction::Terminal => {
                let params = json!({ "sessionId": self.conversation, "command": "true" });
                self.ask("terminal/create", &params);
            }
            AgentAction::TerminalUse(method) => {
                let terminal = self.terminal.clone().unwrap_or_else(|| "none".to_owned());
                let params = json!({ "sessionId": self.conversation, "terminalId": terminal });
                self.ask(method, &params);
            }
            AgentAction::End => self.end(None),
            AgentAction::Refuse => self.end(Some("it did not work")),
            AgentAction::Hang => self.hangs = true,
        }
    }

    fn end(&mut self, error: Option<&str>) {
        let Some(turn) = self.turn.take() else { return };
        match error {
            Some(message) => self.error(&turn.id, -32603, message),
            None => {
                let reason = if turn.cancelled { "cancelled" } else { "end_turn" };
                self.result(&turn.id, &json!({ "stopReason": reason }));
            }
        }
    }
}
