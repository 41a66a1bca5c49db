//! What a person changes of a session: kept, told to a running agent, and applied again to the next one.

use super::input::{Answered, Keyed};
use super::{Actor, Batch};
use crate::core::options::Setting;
use crate::core::session::SessionState;
use crate::error::Failure;
use acp_shared::codes::Code;

impl Actor {
    pub(super) fn on_setting(
        &mut self,
        setting: &Setting,
        keyed: Option<Keyed>,
        out: &mut Batch,
    ) -> Result<Answered, Failure> {
        if self.session.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        setting.check(&self.session.options)?;
        if setting.restarts() {
            self.may_restart()?;
        }
        self.session.options.take(setting, (self.profile.permission, self.profile.non_interactive));
        if let Setting::Cwd(cwd) = setting {
            self.session.cwd.clone_from(cwd);
        }
        if matches!(setting, Setting::TimeoutS(_) | Setting::Defaults) {
            // A turn that runs is given the new time, counted from its start, as a restart would.
            self.watch_turn();
        }
        if setting.restarts() {
            self.close_lease("started again with other settings", out);
        } else if let Some(option) = setting.for_agent()
            // An agent that is being started takes it with what it is to be opened with.
            && self.lease.as_ref().is_some_and(|lease| !lease.closing && lease.ended.is_none())
        {
            let steps = self.link.set_option(&option);
            self.mark_link();
            self.on_steps(steps, out);
        }
        let now = self.now();
        out.remember(keyed, &now);
        Ok(Answered::Now(now))
    }

    /// Whether the agent can be ended and started again without a loss.
    fn may_restart(&self) -> Result<(), Failure> {
        if self.current().is_some() {
            let text = "A turn runs. Cancel it or wait for its end, then change this.";
            return Err(Failure::new(Code::Usage, text).detail("TURN_RUNS").retryable());
        }
        if self.session.agent_session_id.is_some() && !self.session.resumable {
            let text = "The agent would be started again for this, and it cannot resume its conversation. \
                        Start a new conversation first (/acp new), or spawn a session with this setting.";
            return Err(Failure::new(Code::ResumeUnavailable, text).origin("gateway"));
        }
        Ok(())
    }
}
