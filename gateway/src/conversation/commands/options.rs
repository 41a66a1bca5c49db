//! Commands that change settings of a session.

use super::{CommandContext, Commands};
use crate::conversation::inbound::message_idempotency_key;
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::permission::NOT_A_VOTER;
use acp_core::principal::Scope;
use acp_core::render::escape_name;
use acp_core::request::SettingResult;
use acp_core::rows::{NonInteractive, PermissionMode, SessionRow};
use acp_core::timeouts::format_duration;
use acp_core::widening::scope_of_setting;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;

impl Commands {
    /// `/acp set-mode`, `set`, `cwd`, `permissions`, `timeout`, `model`, `reset-options`
    pub(super) async fn set(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
        setting: Setting,
    ) -> Result<String, Failure> {
        let done = setting_text(&setting);
        let before = self.service.session(session).await?;
        // As for clients: not everyone who may widen a setting may answer the questions that it would answer.
        if scope_of_setting(&setting, &before.options) == Scope::Admin {
            let text = "This setting would answer questions that not everyone may answer (voting). Change it on the \
                        gateway's machine: acp-gateway sessions set.";
            return Err(Failure::new(Code::PermissionDenied, text).detail(NOT_A_VOTER).origin("gateway"));
        }
        let now = self.service.set(session, setting, message_idempotency_key(context.inbound)?).await?;
        let done = now.setting.map_or(done, |result| confirmation(&result));
        let row = self.service.session(session).await?;
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        Ok(format!("{done}\nSettings of {session}: {}.", settings_text(&row, is_markdown)))
    }
}

/// Reports the agent's answer to a change of its own settings.
fn confirmation(result: &SettingResult) -> String {
    let kept = if result.is_applied { " It is also requested at later starts of the agent." } else { "" };
    format!("{}{kept}", result.text)
}

/// Builds the confirmation of a change.
fn setting_text(setting: &Setting) -> String {
    const KEPT: &str = "also after a restart of the agent";
    match setting {
        Setting::Mode(mode) => format!("The mode is {mode}, {KEPT}."),
        Setting::Model(model) => format!("The model is {model}, {KEPT}."),
        Setting::Cwd(_) => "The agent uses the new directory from the next message on.".to_owned(),
        Setting::Permission(mode) => format!("From now on: {}.", mode_text(*mode)),
        Setting::NonInteractive(policy) => format!("From now on: {}.", unattended_text(*policy)),
        Setting::Voting(voting) => format!("Questions are answered by: {voting}."),
        Setting::TimeoutS(0) => {
            "From now on, only the gateway's own limit applies (limits.turn_ms), also to a running turn."
                .to_owned()
        }
        Setting::TimeoutS(seconds) => {
            let limit = format_duration(seconds.saturating_mul(1_000));
            format!("A turn may take {limit} from now on, a running one included.")
        }
        Setting::Config { id, value } => format!("{id} is {value}, {KEPT}."),
        Setting::Defaults => "All settings are as configured.".to_owned(),
        Setting::Host(name) => format!("The agent runs on {name} from the next message on."),
    }
}

const fn mode_text(mode: PermissionMode) -> &'static str {
    match mode {
        PermissionMode::ApproveAll => "the agent may do everything (approve-all)",
        PermissionMode::ApproveReads => "the agent may read, and asks for the rest (approve-reads)",
        PermissionMode::DenyAll => "every permission request is denied (deny-all)",
        PermissionMode::Ask => "the agent asks (ask)",
    }
}

const fn unattended_text(policy: NonInteractive) -> &'static str {
    match policy {
        NonInteractive::Deny => "unattended permission requests are denied",
        NonInteractive::Fail => "unattended permission requests end the run",
    }
}

/// Formats the effective settings of a session.
pub(super) fn settings_text(row: &SessionRow, is_markdown: bool) -> String {
    let options = &row.options;
    let escape = |text: &str| escape_name(text, is_markdown);
    let mut out = vec![format!("directory {}", row.cwd)];
    out.extend(options.mode_id.iter().map(|mode| format!("mode {}", escape(mode))));
    out.extend(options.model.iter().map(|model| format!("model {}", escape(model))));
    out.push(mode_text(options.permission).to_owned());
    out.push(unattended_text(options.non_interactive).to_owned());
    out.extend(
        options.timeout_s.map(|s| format!("a turn may take {}", format_duration(s.saturating_mul(1_000)))),
    );
    out.extend(options.config.iter().map(|(id, value)| format!("{} = {}", escape(id), escape(value))));
    out.join("; ")
}
