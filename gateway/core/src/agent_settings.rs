//! Modes, models and config options of an agent's session, as last reported by the agent.

use crate::sanitize::line;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Default id of the config option that sets the model.
pub const MODEL_OPTION: &str = "model";
/// Values shown in one line.
const SHOWN_MAX: usize = 12;
/// Characters shown of one value.
const SHOWN_CHARS_MAX: usize = 200;

/// Change of a session option, see [`crate::backend::BackendMachine::set_option`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OptionChange {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_config_option`.
    Config {
        /// Id of the option.
        id: String,
        /// New value.
        value: String,
    },
}

impl std::fmt::Display for OptionChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "mode \"{mode}\""),
            Self::Config { id, value } => write!(f, "option \"{id}\" = \"{value}\""),
        }
    }
}

/// Modes, models and config options. Kept in the session's row, so that they are shown while no agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AgentSettings {
    /// Session modes of the agent, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Choices>,
    /// Models of the agent, if reported separately from the config options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Choices>,
    /// Config options of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<ConfigOption>,
    /// Commands of the agent, which are sent as the text of a prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<AgentCommand>,
}

/// Command of an agent, from `available_commands_update`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AgentCommand {
    /// Name, without the slash.
    pub name: String,
    /// Description for people; truncated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Hint for the text after the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Current and possible values of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Choices {
    /// Current value, if reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Possible values; long lists are truncated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// One config option.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ConfigOption {
    /// Id in `session/set_config_option`.
    pub id: String,
    /// ACP's category: `mode`, `model`, `thought_level` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// True for a boolean option; its values are `true` and `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_boolean: bool,
    /// Current and possible values.
    #[serde(flatten)]
    pub choices: Choices,
}

/// A report of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsReport {
    /// All settings, reported when a session is opened.
    All(AgentSettings),
    /// Complete list of config options.
    Options(Vec<ConfigOption>),
    /// Complete list of commands.
    Commands(Vec<AgentCommand>),
    /// Current mode.
    Mode(String),
    /// Value of one config option, from an agent that answers a change without the list.
    Value {
        /// Id of the option.
        id: String,
        /// New value.
        value: String,
    },
}

impl AgentSettings {
    /// Applies a report.
    pub fn apply(&mut self, report: SettingsReport) {
        match report {
            // The commands are reported separately.
            SettingsReport::All(settings) => {
                let commands = std::mem::take(&mut self.commands);
                *self = Self { commands, ..settings };
            }
            SettingsReport::Commands(commands) => self.commands = commands,
            SettingsReport::Options(options) => self.options = options,
            SettingsReport::Mode(mode) => match self.mode_mut() {
                Some(choices) => choices.current = Some(mode),
                None => self.modes = Some(Choices { current: Some(mode), values: Vec::new() }),
            },
            SettingsReport::Value { id, value } => {
                if let Some(option) = self.options.iter_mut().find(|option| option.id == id) {
                    option.choices.current = Some(value);
                } else if id == MODEL_OPTION
                    && let Some(models) = &mut self.models
                {
                    models.current = Some(value);
                }
            }
        }
    }

    /// Returns the agent's modes: session modes, or the config option of the category `mode`.
    pub fn mode(&self) -> Option<&Choices> {
        self.modes.as_ref().or_else(|| self.of_category("mode").map(|option| &option.choices))
    }

    fn mode_mut(&mut self) -> Option<&mut Choices> {
        let by_option = self.options.iter_mut().find(|option| option.category.as_deref() == Some("mode"));
        self.modes.as_mut().or_else(|| by_option.map(|option| &mut option.choices))
    }

    /// Returns the agent's models: a config option, or the separate list.
    pub fn model(&self) -> Option<&Choices> {
        self.model_option().map(|option| &option.choices).or(self.models.as_ref())
    }

    /// Returns the config option for the model.
    pub fn model_option(&self) -> Option<&ConfigOption> {
        self.of_id(MODEL_OPTION).or_else(|| self.of_category("model"))
    }

    fn of_id(&self, id: &str) -> Option<&ConfigOption> {
        self.options.iter().find(|option| option.id == id)
    }

    fn of_category(&self, category: &str) -> Option<&ConfigOption> {
        self.options.iter().find(|option| option.category.as_deref() == Some(category))
    }

    /// Returns the error message for a change that the reports rule out: an unlisted mode, or an invalid
    /// value of a boolean. All other changes are decided by the agent.
    pub fn refusal(&self, option: &OptionChange) -> Option<String> {
        match option {
            OptionChange::Mode(mode) => {
                let values = &self.mode()?.values;
                (!values.is_empty() && !values.contains(mode))
                    .then(|| format!("The agent has no mode \"{mode}\"; it has: {}.", listed(values)))
            }
            OptionChange::Config { id, value } => {
                let is_wrong = self.of_id(id)?.is_boolean && boolean(value).is_none();
                is_wrong.then(|| format!("The option \"{id}\" is true or false, not \"{value}\"."))
            }
        }
    }

    /// Returns one line for each setting: name and values, with the current value first.
    pub fn lines(&self) -> Vec<(String, String)> {
        let is_shown = |option: &&ConfigOption| {
            option.category.as_deref() != Some("mode")
                && self.model_option().is_none_or(|model| model.id != option.id)
        };
        let options = self.options.iter().filter(is_shown);
        let rows = [("mode", self.mode()), ("model", self.model())]
            .into_iter()
            .filter_map(|(name, choices)| Some((name.to_owned(), choices?)))
            .chain(options.map(|option| (line(&option.id, SHOWN_CHARS_MAX), &option.choices)));
        rows.map(|(name, choices)| (name, choices.text())).collect()
    }
}

impl Choices {
    /// Formats the current value and the possible values.
    fn text(&self) -> String {
        let current = self.current.as_deref();
        let current = current.map_or_else(|| "not reported".to_owned(), |value| line(value, SHOWN_CHARS_MAX));
        if self.values.is_empty() { current } else { format!("{current} (of {})", listed(&self.values)) }
    }
}

/// Formats values as one line, truncated after the first `SHOWN_MAX`.
fn listed(values: &[String]) -> String {
    let shown: Vec<String> =
        values.iter().take(SHOWN_MAX).map(|value| line(value, SHOWN_CHARS_MAX)).collect();
    let more = values.len().saturating_sub(SHOWN_MAX);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// Parses `true`, `on`, `false` and `off`.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "true" | "on" => Some(true),
        "false" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(current: &str, values: &[&str]) -> Choices {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        Choices { current: Some(current.to_owned()), values }
    }

    fn option(id: &str, category: Option<&str>, choices: Choices) -> ConfigOption {
        ConfigOption { id: id.to_owned(), category: category.map(str::to_owned), is_boolean: false, choices }
    }

    fn reported() -> AgentSettings {
        AgentSettings {
            modes: Some(choices("ask", &["ask", "plan"])),
            models: None,
            options: vec![
                option("llm", Some("model"), choices("big", &["big", "small"])),
                ConfigOption { is_boolean: true, ..option("web", None, choices("true", &["true", "false"])) },
            ],
            commands: Vec::new(),
        }
    }

    fn config(id: &str, value: &str) -> OptionChange {
        OptionChange::Config { id: id.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn commands_of_the_agent_are_kept_with_its_settings() {
        let commands = vec![AgentCommand { name: "test".to_owned(), ..AgentCommand::default() }];
        let mut now = AgentSettings::default();
        now.apply(SettingsReport::Commands(commands.clone()));
        now.apply(SettingsReport::All(reported()));
        assert_eq!(now, AgentSettings { commands, ..reported() });
        let json = serde_json::to_value(&now).unwrap();
        assert_eq!(json["commands"], serde_json::json!([{ "name": "test" }]));
    }

    #[test]
    fn report_changes_only_its_setting() {
        let mut now = AgentSettings::default();
        now.apply(SettingsReport::Mode("plan".to_owned()));
        assert_eq!(now.lines(), [("mode".to_owned(), "plan".to_owned())]);
        now.apply(SettingsReport::All(reported()));
        now.apply(SettingsReport::Mode("plan".to_owned()));
        now.apply(SettingsReport::Value { id: "web".to_owned(), value: "false".to_owned() });
        let row = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let mut want = vec![
            row("mode", "plan (of ask, plan)"),
            row("model", "big (of big, small)"),
            row("web", "false (of true, false)"),
        ];
        assert_eq!(now.lines(), want);
        now.apply(SettingsReport::Options(Vec::new()));
        want.truncate(1);
        assert_eq!(now.lines(), want, "an option list does not change the modes");
        now.models = Some(choices("m1", &[]));
        now.apply(SettingsReport::Value { id: MODEL_OPTION.to_owned(), value: "m2".to_owned() });
        assert_eq!(now.lines().last(), Some(&row("model", "m2")));
    }

    #[test]
    fn mode_as_option_is_listed_once() {
        let mut now = AgentSettings::default();
        now.apply(SettingsReport::Options(vec![option("p", Some("mode"), choices("ask", &["ask", "auto"]))]));
        now.apply(SettingsReport::Mode("auto".to_owned()));
        assert_eq!(now.lines(), [("mode".to_owned(), "auto (of ask, auto)".to_owned())]);
        assert_eq!(now.modes, None);
    }

    #[test]
    fn only_values_excluded_by_reports_are_refused() {
        for (change, is_refused) in [
            (OptionChange::Mode("plan".to_owned()), false),
            (OptionChange::Mode("yolo".to_owned()), true),
            (config("web", "on"), false),
            (config("web", "false"), false),
            (config("web", "perhaps"), true),
            (config("llm", "other"), false),
            (config("unknown", "x"), false),
        ] {
            assert_eq!(reported().refusal(&change).is_some(), is_refused, "{change:?}");
            assert_eq!(AgentSettings::default().refusal(&change), None, "{change:?}");
        }
        let text = reported().refusal(&OptionChange::Mode("yolo".to_owned()));
        assert_eq!(text.as_deref(), Some("The agent has no mode \"yolo\"; it has: ask, plan."));
    }

    #[test]
    fn long_lists_are_truncated_on_one_line() {
        let values: Vec<String> = (0..15).map(|number| format!("m\n{number}")).collect();
        let text = Choices { current: None, values }.text();
        assert!(text.starts_with("not reported (of m 0, m 1, ") && text.ends_with(" and 3 more)"), "{text}");
    }
}
