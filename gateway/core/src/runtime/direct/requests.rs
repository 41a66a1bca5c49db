//! Requests of the agent. A method that was offered to it becomes an [`AgentRequest`]; everything else is
//! answered at once, so that the agent never waits for a response that will not come.

use super::state::{
    ASK_ID_BYTES_MAX, ASK_SMALL_BYTES, ASKS_BYTES_MAX, ASKS_MAX, PAGES_MAX, PendingAgentRequest,
};
use super::{DirectMachine, lens};
use crate::backend::{AgentRequest, AgentRequestKind, BackendStep, InputKind, RequestReply};
use crate::elicitation::{self, Elicitation, ElicitationAnswer};
use crate::jsonrpc::{
    self, CANCELLED, INTERNAL_ERROR, INVALID_PARAMS, LIMIT_REACHED, METHOD_NOT_FOUND, ObjectMembers, string,
};
use crate::permission::{self, Voters};
use std::borrow::Cow;

impl DirectMachine {
    pub(super) fn on_agent_request(
        &mut self,
        at: u64,
        id: &str,
        method: &str,
        params: Option<&str>,
    ) -> Vec<BackendStep> {
        let offered = match method {
            "session/request_permission" | elicitation::METHOD => true,
            "fs/read_text_file" => self.state.client_fs.reads(),
            "fs/write_text_file" => self.state.client_fs.writes(),
            "terminal/create"
            | "terminal/output"
            | "terminal/wait_for_exit"
            | "terminal/kill"
            | "terminal/release" => self.state.offer_terminal,
            _ => {
                let no = refuse(
                    at,
                    id,
                    METHOD_NOT_FOUND,
                    &format!("Method not found: {}", lens::truncate(method, 100)),
                );
                return vec![self.extension(method, params), no];
            }
        };
        if !offered {
            let note = BackendStep::Log(format!("the agent asked for {method}, which was not offered to it"));
            return vec![note, refuse(at, id, METHOD_NOT_FOUND, &format!("Method not offered: {method}"))];
        }
        if self.state.asks.len() >= ASKS_MAX || id.len() > ASK_ID_BYTES_MAX {
            let note =
                BackendStep::Log(format!("{method} refused: too many open requests, or too long an id"));
            return vec![note, refuse(at, id, INTERNAL_ERROR, "Too many open requests")];
        }
        let given = params.unwrap_or("{}");
        let Some(bytes) = self.room_for(given) else {
            let note = BackendStep::Log(format!("{method} refused: the open requests exceed the size limit"));
            return vec![note, refuse(at, id, LIMIT_REACHED, "The open requests exceed the size limit")];
        };
        let (what, params) = match self.read_request(method, given) {
            Ok(read) => read,
            Err(missing) => {
                let note = BackendStep::Log(format!("{method} without a valid \"{missing}\""));
                return vec![note, refuse(at, id, INVALID_PARAMS, &format!("Missing or invalid: {missing}"))];
            }
        };
        let permission = what.is_question();
        let page = what.elicitation().and_then(Elicitation::page_id).map(str::to_owned);
        let elicitation = what.elicitation().is_some();
        // The offset identifies the request: two with the same id are two requests.
        let ask = PendingAgentRequest { id: id.to_owned(), permission, elicitation, page, bytes };
        self.state.asks.insert(at, ask);
        let run_id = self.state.run_id();
        let (method, is_recalled, voters) = (method.to_owned(), false, Voters::Anyone);
        vec![BackendStep::Request(AgentRequest { at, run_id, method, params, what, is_recalled, voters })]
    }

    /// Reads the parameters of an offered method, and returns them as they are kept; the error is the name of the param
    /// that is missing or invalid.
    fn read_request(
        &self,
        method: &str,
        given: &str,
    ) -> Result<(AgentRequestKind, String), Cow<'static, str>> {
        let members = ObjectMembers::parse(given).map_err(|_| "params")?;
        match method {
            "session/request_permission" => {
                let mut value = lens::value(given);
                let is_completed = self.state.calls.complete(&mut value);
                let is_changed = lens::normalise_options(&mut value)?;
                let params = if is_completed || is_changed { value.to_string() } else { given.to_owned() };
                Ok((lens::permission(&value), params))
            }
            elicitation::METHOD => {
                let form = elicitation::parse(given)?;
                Ok((AgentRequestKind::of_elicitation(form), given.to_owned()))
            }
            "fs/write_text_file" => Ok((lens::host_request(method, &members)?, "{}".to_owned())),
            _ => Ok((lens::host_request(method, &members)?, given.to_owned())),
        }
    }

    /// Returns the number of bytes of parameters to count for a new request; `None` if the limit is exceeded.
    fn room_for(&self, params: &str) -> Option<usize> {
        if params.len() <= ASK_SMALL_BYTES {
            return Some(0);
        }
        let open: usize = self.state.asks.values().map(|ask| ask.bytes).sum();
        (open + params.len() <= ASKS_BYTES_MAX).then_some(params.len())
    }

    pub(super) fn send_answer(&mut self, answer: &RequestReply) -> Vec<BackendStep> {
        let Some(ask) = self.state.asks.remove(&answer.at) else {
            return vec![BackendStep::Log(format!("no open request at {} for this answer", answer.at))];
        };
        if answer.is_rejection
            && let Some(turn) = &mut self.state.turn
        {
            turn.rejected = true;
        }
        if let Some(page) = ask.page.filter(|_| !answer.is_rejection) {
            self.state.pages.push_back(page);
            self.state.pages.drain(..self.state.pages.len().saturating_sub(PAGES_MAX));
        }
        let bytes = jsonrpc::reply(&ask.id, &answer.outcome);
        vec![BackendStep::Send { bytes, kind: InputKind::Answer { at: answer.at } }]
    }

    /// Handles `$/cancel_request`: the agent cancels its own request.
    pub(super) fn on_cancel_request(&mut self, params: Option<&str>) -> Vec<BackendStep> {
        let members = params.and_then(|params| ObjectMembers::parse(params).ok());
        let Some(id) = members.as_ref().and_then(|members| members.get("requestId")) else {
            return vec![BackendStep::Log("$/cancel_request without a requestId".to_owned())];
        };
        let same = |open: &str| open == id || string(open).is_some_and(|open| string(id) == Some(open));
        let found: Vec<u64> =
            self.state.asks.iter().filter(|(_, ask)| same(&ask.id)).map(|(at, _)| *at).collect();
        let mut steps = Vec::new();
        for at in found {
            let Some(ask) = self.state.asks.remove(&at) else { continue };
            steps.push(BackendStep::RequestWithdrawn { at });
            steps.push(refuse(at, &ask.id, CANCELLED, "Request cancelled"));
        }
        steps
    }

    /// Handles `elicitation/complete`: journals the end of an accepted page. Unknown ids are ignored.
    pub(super) fn on_page_complete(&mut self, params: Option<&str>) -> Vec<BackendStep> {
        let members = params.and_then(|params| ObjectMembers::parse(params).ok());
        let id = members.as_ref().and_then(|members| members.string("elicitationId"));
        let known = self.state.pages.iter().position(|page| Some(page.as_str()) == id.as_deref());
        let Some(page) = known.and_then(|at| self.state.pages.remove(at)) else {
            return vec![BackendStep::Log("elicitation/complete for an unknown or completed id".to_owned())];
        };
        let text = "The agent reports that the interaction on the page is complete.";
        vec![self.status(elicitation::PAGE_COMPLETE, text, &[("elicitation_id", page.into())])]
    }

    /// Withdraws permission requests and elicitations at the end of their turn. The agent still gets a response: some agents
    /// hold back every later request behind an unanswered one.
    pub(super) fn withdraw_permissions(&mut self) -> Vec<BackendStep> {
        let found: Vec<u64> =
            self.state.asks.iter().filter(|(_, ask)| ask.permission).map(|(at, _)| *at).collect();
        let mut steps = Vec::new();
        for at in found {
            let Some(ask) = self.state.asks.remove(&at) else { continue };
            steps.push(BackendStep::RequestWithdrawn { at });
            let cancelled = if ask.elicitation {
                elicitation::result(&ElicitationAnswer::Cancel)
            } else {
                permission::cancelled_result()
            };
            let bytes = jsonrpc::reply(&ask.id, &Ok(cancelled));
            steps.push(BackendStep::Send { bytes, kind: InputKind::Answer { at } });
        }
        steps
    }
}

fn refuse(at: u64, id: &str, code: i64, message: &str) -> BackendStep {
    BackendStep::Send { bytes: jsonrpc::reply_error(id, code, message), kind: InputKind::Answer { at } }
}
