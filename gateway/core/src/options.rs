//! Settings of one session that a person can change, and their limits. Stored in the session's row and
//! applied at each start of the agent. Source: openclaw.md §1.2 "Runtime option limits".

use crate::agent_settings::MODEL_OPTION;
use crate::agent_settings::OptionChange;
use crate::config::remote::LOCAL;
use crate::failure::Failure;
use crate::host::Grants;
use crate::permission::Voting;
use crate::rows::{NonInteractive, PermissionMode, SessionOptions};
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};

/// Maximum length of a mode's name, in characters.
const MODE_CHARS_MAX: usize = 64;
/// Maximum length of a model's name, in characters.
const MODEL_CHARS_MAX: usize = 200;
/// Maximum length of a working directory, in bytes.
const CWD_BYTES_MAX: usize = 4_096;
/// Maximum timeout of a turn, in seconds: one day.
const TIMEOUT_S_MAX: u64 = 86_400;
/// Maximum length of a config option's id, in characters.
const KEY_CHARS_MAX: usize = 64;
/// Maximum length of a config option's value, in characters.
const VALUE_CHARS_MAX: usize = 512;
/// Maximum number of config options of one session.
const CONFIG_MAX: usize = 32;
/// Maximum length of a session's label, in characters.
const LABEL_CHARS_MAX: usize = 100;

/// Change of one setting of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// Session mode of the agent.
    Mode(String),
    /// Model of the agent, set through config option `model`.
    Model(String),
    /// Absolute working directory. The agent is restarted there with the same conversation.
    Cwd(String),
    /// Permission mode, for later permission requests.
    Permission(PermissionMode),
    /// Policy for later permission requests if no person can be asked.
    NonInteractive(NonInteractive),
    /// Rule about who may answer later questions.
    Voting(Voting),
    /// The session's own time limit of a turn in seconds, also for a running turn; with 0 only the gateway's holds.
    TimeoutS(u64),
    /// Config option of the agent.
    Config {
        /// Id of the option.
        id: String,
        /// New value.
        value: String,
    },
    /// Reset of all settings to the configuration. The agent is restarted.
    Defaults,
    /// Host that runs the agent from its next start on; the gateway's machine is [`LOCAL`]. Only without a process.
    Host(String),
}

/// Checks text given by a person: not empty, not too long, no control characters.
fn check_text(what: &str, value: &str, chars_max: usize) -> Result<(), Failure> {
    if value.trim().is_empty() {
        return Err(invalid(format!("The {what} is empty.")));
    }
    if value.chars().count() > chars_max {
        return Err(invalid(format!("The {what} may have {chars_max} characters at most.")));
    }
    if value.chars().any(char::is_control) {
        return Err(invalid(format!("The {what} must not hold control characters.")));
    }
    Ok(())
}

/// True if the key matches `^[a-z0-9][a-z0-9._:-]*$`, ignoring case.
fn is_key(key: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    key.starts_with(|c: char| c.is_ascii_alphanumeric()) && key.chars().all(inner)
}

fn invalid(text: String) -> Failure {
    Failure::new(Code::Usage, text).detail("INVALID_RUNTIME_OPTION").origin("client")
}

/// Checks the label of a session.
///
/// # Errors
/// `USAGE`, with a message for people.
pub fn check_label(label: &str) -> Result<(), Failure> {
    check_text("label", label, LABEL_CHARS_MAX)
}

/// Checks the name of a model.
///
/// # Errors
/// `USAGE`, with a message for people.
pub fn check_model(model: &str) -> Result<(), Failure> {
    check_text("model", model, MODEL_CHARS_MAX)
}

impl Setting {
    /// Checks the limits of a setting. The agent may still refuse the change; the journal shows the answer.
    ///
    /// # Errors
    /// `USAGE` with the detail `INVALID_RUNTIME_OPTION` and a message for people.
    pub fn check(&self, options: &SessionOptions) -> Result<(), Failure> {
        match self {
            Self::Mode(mode) => check_text("mode", mode, MODE_CHARS_MAX),
            Self::Model(model) => check_model(model),
            Self::Cwd(cwd) => {
                check_text("working directory", cwd, CWD_BYTES_MAX)?;
                if cwd.len() > CWD_BYTES_MAX {
                    return Err(invalid(format!(
                        "The working directory may have {CWD_BYTES_MAX} bytes at most."
                    )));
                }
                if cwd.starts_with('/') {
                    Ok(())
                } else {
                    Err(invalid("The working directory must be an absolute path.".to_owned()))
                }
            }
            Self::TimeoutS(seconds) if *seconds > TIMEOUT_S_MAX => Err(invalid(format!(
                "A session's time limit of turns is 1 to {TIMEOUT_S_MAX} seconds, or 0 for none of its own."
            ))),
            Self::Config { id, value } => {
                if id.chars().count() > KEY_CHARS_MAX || !is_key(id) {
                    let text = format!(
                        "An option's id has 1 to {KEY_CHARS_MAX} letters, digits and . _ : - and begins with a letter \
                         or digit."
                    );
                    return Err(invalid(text));
                }
                check_text("option's value", value, VALUE_CHARS_MAX)?;
                let is_new = !options.config.iter().any(|(have, _)| have == id);
                if is_new && options.config.len() >= CONFIG_MAX {
                    return Err(invalid(format!("A session may have {CONFIG_MAX} options at most.")));
                }
                Ok(())
            }
            Self::TimeoutS(_)
            | Self::Permission(_)
            | Self::NonInteractive(_)
            | Self::Voting(_)
            | Self::Defaults
            | Self::Host(_) => Ok(()),
        }
    }

    /// Returns the setting for a change of an agent's option.
    fn from_option_change(option: &OptionChange) -> Self {
        match option.clone() {
            OptionChange::Mode(mode) => Self::Mode(mode),
            OptionChange::Config { id, value } if id == MODEL_OPTION => Self::Model(value),
            OptionChange::Config { id, value } => Self::Config { id, value },
        }
    }

    /// Returns the change to send to a running agent; `None` if the agent needs no message.
    pub fn option_change(&self) -> Option<OptionChange> {
        match self {
            Self::Mode(mode) => Some(OptionChange::Mode(mode.clone())),
            Self::Model(model) => {
                Some(OptionChange::Config { id: MODEL_OPTION.to_owned(), value: model.clone() })
            }
            Self::Config { id, value } => Some(OptionChange::Config { id: id.clone(), value: value.clone() }),
            Self::Cwd(_)
            | Self::Permission(_)
            | Self::NonInteractive(_)
            | Self::Voting(_)
            | Self::TimeoutS(_)
            | Self::Defaults
            | Self::Host(_) => None,
        }
    }

    /// True if the agent must be restarted.
    pub const fn requires_restart(&self) -> bool {
        matches!(self, Self::Cwd(_) | Self::Defaults)
    }
}

/// Permission settings of a session without settings of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermissionDefaults {
    /// Permission mode.
    pub permission: PermissionMode,
    /// Outcome if no person can be asked.
    pub non_interactive: NonInteractive,
}

impl SessionOptions {
    /// True if this host runs the agent; the gateway's machine is [`LOCAL`].
    pub fn is_on(&self, host: &str) -> bool {
        self.host_name() == host
    }

    /// Returns the host that runs the agent; the gateway's machine is [`LOCAL`].
    pub fn host_name(&self) -> &str {
        self.host.as_deref().unwrap_or(LOCAL)
    }

    /// Applies a setting, except for the working directory, which has a column of its own.
    pub fn apply(&mut self, setting: &Setting, defaults: PermissionDefaults) {
        match setting {
            Setting::Mode(mode) => {
                self.mode_id = Some(mode.clone());
                self.grants = Grants::default();
            }
            Setting::Model(model) => self.model = Some(model.clone()),
            Setting::Cwd(_) => {}
            Setting::Permission(mode) => {
                self.permission = *mode;
                self.grants = Grants::default();
            }
            Setting::NonInteractive(policy) => self.non_interactive = *policy,
            Setting::Host(name) => self.host = (name != LOCAL).then(|| name.clone()),
            Setting::Voting(voting) => self.voting = *voting,
            Setting::TimeoutS(seconds) => self.timeout_s = (*seconds > 0).then_some(*seconds),
            Setting::Config { id, value } => match self.config.iter_mut().find(|(have, _)| have == id) {
                Some((_, old)) => old.clone_from(value),
                None => self.config.push((id.clone(), value.clone())),
            },
            // Servers and directories belong to the spawn, like the working directory. A rule of voting is only
            // changed by name.
            Setting::Defaults => {
                *self = Self {
                    voting: self.voting,
                    agent: std::mem::take(&mut self.agent),
                    mcp_servers: std::mem::take(&mut self.mcp_servers),
                    additional_directories: std::mem::take(&mut self.additional_directories),
                    host: self.host.take(),
                    ..Self::new(defaults.permission, defaults.non_interactive)
                };
            }
        }
    }

    /// Stores a change that the agent accepted.
    pub fn store_accepted(&mut self, option: &OptionChange) {
        let defaults =
            PermissionDefaults { permission: self.permission, non_interactive: self.non_interactive };
        self.apply(&Setting::from_option_change(option), defaults);
    }

    /// Removes a change that the agent refused.
    pub fn remove_refused(&mut self, option: &OptionChange) {
        match Setting::from_option_change(option) {
            Setting::Mode(mode) if self.mode_id.as_ref() == Some(&mode) => self.mode_id = None,
            Setting::Model(model) if self.model.as_ref() == Some(&model) => self.model = None,
            Setting::Config { id, value } => self.config.retain(|pair| *pair != (id.clone(), value.clone())),
            _ => {}
        }
    }

    /// Returns the config options to set, in order: those of `preset` without an override, the model, then
    /// the others. The mode is set before all of them.
    pub fn config_over(&self, preset: &[(String, String)]) -> Vec<(String, String)> {
        let model = self.model.iter().map(|model| (MODEL_OPTION.to_owned(), model.clone()));
        let own: Vec<(String, String)> = model.chain(self.config.iter().cloned()).collect();
        let mut all: Vec<(String, String)> =
            preset.iter().filter(|(id, _)| !own.iter().any(|(have, _)| have == id)).cloned().collect();
        all.extend(own);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> SessionOptions {
        SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny)
    }

    fn config(id: &str, value: &str) -> Setting {
        Setting::Config { id: id.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn option_values_are_bounded() {
        let long = |count: usize| "x".repeat(count);
        let table = [
            (Setting::Mode(long(64)), true),
            (Setting::Mode(long(65)), false),
            (Setting::Mode(" ".to_owned()), false),
            (Setting::Mode("a\nb".to_owned()), false),
            (Setting::Model(long(200)), true),
            (Setting::Model(long(201)), false),
            (Setting::Cwd("/w".to_owned()), true),
            (Setting::Cwd("w".to_owned()), false),
            (Setting::Cwd(format!("/{}", long(4_095))), true),
            (Setting::Cwd(format!("/{}", long(4_096))), false),
            (Setting::Cwd(format!("/{}", "ü".repeat(2_048))), false),
            (Setting::TimeoutS(0), true),
            (Setting::TimeoutS(86_400), true),
            (Setting::TimeoutS(86_401), false),
            (config("a", "v"), true),
            (config("Reasoning.effort:x_y-1", "v"), true),
            (config(&long(64), "v"), true),
            (config(&long(65), "v"), false),
            (config("", "v"), false),
            (config(".a", "v"), false),
            (config("a b", "v"), false),
            (config("ä", "v"), false),
            (config("a", &long(512)), true),
            (config("a", &long(513)), false),
            (config("a", "\u{7}"), false),
            (Setting::Permission(PermissionMode::DenyAll), true),
            (Setting::Defaults, true),
        ];
        for (setting, fits) in table {
            let checked = setting.check(&options());
            assert_eq!(checked.is_ok(), fits, "{setting:?}");
            if let Err(failure) = checked {
                assert_eq!(failure.detail_code.as_deref(), Some("INVALID_RUNTIME_OPTION"));
            }
        }
    }

    #[test]
    fn number_of_options_is_bounded() {
        let mut full = options();
        let defaults =
            PermissionDefaults { permission: PermissionMode::Ask, non_interactive: NonInteractive::Deny };
        for number in 0..CONFIG_MAX {
            let setting = config(&format!("k{number}"), "v");
            setting.check(&full).unwrap();
            full.apply(&setting, defaults);
        }
        assert!(config("one-more", "v").check(&full).is_err());
        config("k0", "another").check(&full).unwrap();
    }

    #[test]
    fn settings_are_applied_and_reset() {
        let defaults = PermissionDefaults {
            permission: PermissionMode::ApproveReads,
            non_interactive: NonInteractive::Fail,
        };
        let mut now = options();
        for setting in [
            Setting::Mode("plan".to_owned()),
            Setting::Model("big".to_owned()),
            Setting::TimeoutS(60),
            Setting::Permission(PermissionMode::ApproveAll),
            config("effort", "low"),
            config("effort", "high"),
        ] {
            now.apply(&setting, defaults);
        }
        let want = SessionOptions {
            permission: PermissionMode::ApproveAll,
            non_interactive: NonInteractive::Deny,
            mode_id: Some("plan".to_owned()),
            model: Some("big".to_owned()),
            timeout_s: Some(60),
            config: vec![("effort".to_owned(), "high".to_owned())],
            ..options()
        };
        assert_eq!(now, want);
        now.additional_directories = vec!["/more".to_owned()];
        now.apply(&Setting::Voting(Voting::Local), defaults);
        now.apply(&Setting::TimeoutS(0), defaults);
        assert_eq!(now.timeout_s, None);
        now.apply(&Setting::Defaults, defaults);
        let defaults_only = SessionOptions::new(defaults.permission, defaults.non_interactive);
        let kept = SessionOptions {
            voting: Voting::Local,
            additional_directories: vec!["/more".to_owned()],
            ..defaults_only
        };
        assert_eq!(now, kept);
    }

    #[test]
    fn accepted_changes_are_stored_and_refused_ones_removed() {
        let effort = |value: &str| OptionChange::Config { id: "effort".to_owned(), value: value.to_owned() };
        let model = OptionChange::Config { id: "model".to_owned(), value: "big".to_owned() };
        let mode = OptionChange::Mode("plan".to_owned());
        let mut now = options();
        for change in [&mode, &model, &effort("low")] {
            now.store_accepted(change);
        }
        let stored = (now.mode_id.as_deref(), now.model.as_deref(), now.config.len());
        assert_eq!(stored, (Some("plan"), Some("big"), 1));
        now.remove_refused(&effort("high"));
        now.remove_refused(&OptionChange::Mode("ask".to_owned()));
        assert_eq!((now.mode_id.is_some(), now.config.len()), (true, 1), "another value was refused");
        for change in [mode, model, effort("low")] {
            now.remove_refused(&change);
        }
        assert_eq!(now, options());
    }

    #[test]
    fn session_options_override_preset() {
        let pair = |id: &str, value: &str| (id.to_owned(), value.to_owned());
        let mut now = options();
        now.model = Some("big".to_owned());
        now.config = vec![pair("effort", "high")];
        let preset = [pair("model", "small"), pair("effort", "low"), pair("web", "off")];
        let want = [pair("web", "off"), pair("model", "big"), pair("effort", "high")];
        assert_eq!(now.config_over(&preset), want);
    }

    #[test]
    fn labels_are_short_single_lines() {
        check_label("my work").unwrap();
        for bad in ["", "  ", "a\tb", &"x".repeat(101)] {
            assert!(check_label(bad).is_err(), "{bad:?}");
        }
    }
}
