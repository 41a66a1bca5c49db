//! Changes of a session's settings. The agent's own settings (mode, model, config options) are requested from
//! a running agent, answered after its answer, and stored only if the agent took them; without an agent they
//! are stored for its next start and dropped there if refused.

use super::input::{CommandReply, IdempotencyRecord, Ticket};
use super::{Actor, StepOutput};
use crate::agent_settings::OptionChange;
use crate::backend::AskGuarantee;
use crate::failure::Failure;
use crate::options::{PermissionDefaults, Setting};
use crate::request::{SessionStatus, SettingResult};
use crate::rows::PermissionMode;
use crate::session::SessionState;
use crate::timeouts::format_duration;
use acp_shared::codes::Code;
use serde_json::json;

/// Time limit for an agent's answer to a change, in milliseconds.
pub(super) const ANSWER_MS: u64 = 10_000;

/// Requested change that the agent has not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingOption {
    ticket: Ticket,
    keyed: Option<IdempotencyRecord>,
    option: OptionChange,
    /// Deadline of the answer, milliseconds since the Unix epoch.
    pub(super) until_ms: u64,
}

impl Actor {
    pub(super) fn on_setting(
        &mut self,
        ticket: Ticket,
        setting: &Setting,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) {
        if let Err(refusal) = self.check_setting(setting) {
            out.reply(ticket, Err(refusal));
            return;
        }
        let is_there = self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none());
        match setting.option_change() {
            Some(option) if is_there => {
                let until_ms = out.now_ms.saturating_add(ANSWER_MS);
                let pending = PendingOption { ticket, keyed, option: option.clone(), until_ms };
                self.pending_options.push_back(pending);
                let steps = self.backend.set_option(&option);
                self.mark_backend_dirty();
                self.on_backend_steps(steps, out);
            }
            Some(option) => {
                self.session.options.store_accepted(&option);
                let text = format!(
                    "No agent is running. The {option} will be requested at the next start, and dropped if \
                     the agent refuses it."
                );
                self.answer_setting(ticket, keyed, Some(SettingResult { is_applied: false, text }), out);
            }
            None => {
                self.apply_own_setting(setting, out);
                self.answer_setting(ticket, keyed, None, out);
            }
        }
    }

    /// Sets the label of the session. The commit refuses a label that another open session has.
    ///
    /// # Errors
    /// `ACP_SESSION_CLOSED`.
    pub(super) fn on_label(
        &mut self,
        label: Option<String>,
        keyed: Option<IdempotencyRecord>,
        out: &mut StepOutput,
    ) -> Result<CommandReply, Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        self.session.label = label;
        let now = self.status();
        out.remember(keyed, &now);
        Ok(CommandReply::Session(now))
    }

    fn check_setting(&self, setting: &Setting) -> Result<(), Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        let options = &self.session.options;
        setting.check(options)?;
        if let Some(text) = setting.option_change().and_then(|option| options.agent.refusal(&option)) {
            return Err(refused(text));
        }
        if matches!(setting, Setting::Host(name) if !options.is_on(name)) && self.session.lease_id.is_some() {
            let text = "The agent's process has not ended: release the session first, then move it.";
            return Err(Failure::new(Code::Usage, text).detail("AGENT_RUNS").origin("gateway").retryable());
        }
        if self.restarts_agent(setting) { self.may_restart() } else { Ok(()) }
    }

    /// True if a setting takes effect with another process of the agent only.
    fn restarts_agent(&self, setting: &Setting) -> bool {
        let is_permission = matches!(setting, Setting::Permission(_) | Setting::NonInteractive(_));
        setting.requires_restart()
            || (is_permission
                && self.lease.is_some()
                && self.backend.own_permission_mode(self.session.options.permission).is_some())
    }

    /// Changes a setting of the gateway itself.
    fn apply_own_setting(&mut self, setting: &Setting, out: &mut StepOutput) {
        let defaults = PermissionDefaults {
            permission: self.profile.permission,
            non_interactive: self.profile.non_interactive,
        };
        self.session.options.apply(setting, defaults);
        if let Setting::Cwd(cwd) = setting {
            self.session.cwd.clone_from(cwd);
        }
        if matches!(setting, Setting::TimeoutS(_) | Setting::Defaults) {
            // A running turn gets the new time limit, counted from its start, as after a restart.
            self.arm_turn_timer();
        }
        if self.restarts_agent(setting) {
            self.close_lease("restart with changed settings", out);
        }
        if matches!(setting, Setting::Permission(_)) {
            self.report_ask_guarantee(out);
        }
        if matches!(setting, Setting::Permission(_) | Setting::Defaults) {
            if self.session.options.permission != PermissionMode::ApproveAll {
                self.recall_effects(None, out);
            }
            self.redecide_permissions(out);
        }
    }

    fn answer_setting(
        &self,
        ticket: Ticket,
        keyed: Option<IdempotencyRecord>,
        setting: Option<SettingResult>,
        out: &mut StepOutput,
    ) {
        let now = SessionStatus { setting, ..self.status() };
        out.remember(keyed, &now);
        out.reply(ticket, Ok(CommandReply::Session(now)));
    }

    /// Applies the agent's answer to a change, and replies to the first caller that waits for it.
    pub(super) fn on_option_answered(
        &mut self,
        option: &OptionChange,
        is_own: bool,
        is_taken: bool,
        text: String,
        out: &mut StepOutput,
    ) {
        if !is_taken {
            let model = self.session.options.model.clone().map(Setting::Model);
            let is_required = model.and_then(|model| model.option_change()).as_ref() == Some(option)
                && std::mem::take(&mut self.session.options.is_model_required);
            self.session.options.remove_refused(option);
            if is_required {
                self.fail_queue(&refused(text.clone()), out);
            }
        } else if is_own {
            self.session.options.store_accepted(option);
        }
        let asked = self.pending_options.iter().position(|pending| pending.option == *option);
        let Some(pending) = asked.and_then(|at| self.pending_options.remove(at)) else { return };
        if is_taken {
            let setting = Some(SettingResult { is_applied: true, text });
            self.answer_setting(pending.ticket, pending.keyed, setting, out);
        } else {
            out.reply(pending.ticket, Err(refused(text)));
        }
    }

    /// Replies to callers whose deadline has passed.
    pub(super) fn expire_options(&mut self, out: &mut StepOutput) {
        while let Some(pending) = self.pending_options.pop_front_if(|it| it.until_ms <= out.now_ms) {
            let text = format!(
                "The agent did not answer the request for the {} within {}. If it accepts it later, the \
                 session keeps it.",
                pending.option,
                format_duration(ANSWER_MS)
            );
            let failure = Failure::new(Code::Timeout, text).detail("OPTION_UNANSWERED").origin("agent");
            out.reply(pending.ticket, Err(failure));
        }
    }

    /// Replies to callers whose agent has ended.
    pub(super) fn fail_options(&mut self, out: &mut StepOutput) {
        for pending in std::mem::take(&mut self.pending_options) {
            let text = format!("The agent exited before it answered the request for the {}.", pending.option);
            let failure = Failure::new(Code::SessionInitFailed, text).detail("AGENT_EXITED").origin("agent");
            out.reply(pending.ticket, Err(failure.retryable()));
        }
    }

    /// Records whether the agent asks before acting, and reports the loss of that certainty.
    pub(super) fn on_ask_guarantee(&mut self, asking: AskGuarantee, out: &mut StepOutput) {
        let before = self.session.options.asking.replace(asking);
        // The backend reports a mode that approves without questions.
        if asking == AskGuarantee::Unknown && before != Some(asking) {
            self.report_ask_guarantee(out);
        }
    }

    /// Reports a permission mode that promises questions which the agent may not ask.
    fn report_ask_guarantee(&mut self, out: &mut StepOutput) {
        let promises =
            matches!(self.session.options.permission, PermissionMode::Ask | PermissionMode::ApproveReads);
        let text = match self.session.options.asking {
            Some(AskGuarantee::Unknown) if promises => {
                "This agent may act without asking: no mode in which it asks is known, or none could be set. \
                 The gateway still asks about files and commands that the agent requests from it."
            }
            Some(AskGuarantee::Never) if promises => {
                "This agent is set to approve its own actions; it may act without asking."
            }
            _ => return,
        };
        self.report(json!({ "status": "asking_not_ensured", "text": text }), out);
    }

    /// Checks that the agent can be ended and started again without loss.
    fn may_restart(&self) -> Result<(), Failure> {
        if self.current().is_some() {
            let text = "A turn is running. Cancel it or wait for its end, then change this setting.";
            return Err(Failure::new(Code::Usage, text).detail("TURN_RUNS").retryable());
        }
        if self.session.agent_session_id.is_some() && !self.session.resumable {
            let text = "This change restarts the agent, which cannot resume its conversation. \
                        Start a new conversation first (/acp new), or spawn a session with this setting.";
            return Err(Failure::new(Code::ResumeUnavailable, text).origin("gateway"));
        }
        Ok(())
    }
}

fn refused(text: String) -> Failure {
    Failure::new(Code::Usage, text).detail("OPTION_REFUSED").origin("agent")
}
