//! Results of the gateway's own methods.

use super::session_view::ClientTraits;
use crate::agent_settings::{AgentSettings, Choices, ConfigOption, MODEL_OPTION};
use crate::jsonrpc::put;
use crate::rows::{SessionOptions, SessionRow};
use acp_shared::ids::RunId;
use serde_json::{Value, json};

/// Methods that the gateway adds to the protocol.
pub const OWN_METHODS: [&str; 12] = [
    "_acphost/session/show",
    "_acphost/session/history",
    "_acphost/session/steer",
    "_acphost/session/update",
    "_acphost/session/diff",
    "_acphost/fs/stat",
    "_acphost/fs/read",
    "_acphost/permissions/list",
    "_acphost/permissions/answer",
    "_acphost/agents/list",
    "_acphost/host/status",
    "_acphost/ping",
];

/// Limits that a client should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownLimits {
    /// Maximum size of a message, in bytes.
    pub message_bytes_max: usize,
    /// Time after which a connection without streams ends, in milliseconds.
    pub detach_grace_ms: u64,
}

/// Returns the result of `initialize`.
pub fn initialize(version: &str, limits: ShownLimits) -> Value {
    json!({
        "protocolVersion": super::PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": true,
            // What an agent does not take is replaced by a text that names it.
            "promptCapabilities": { "image": true, "audio": true, "embeddedContext": true },
            "mcpCapabilities": { "http": true, "sse": true },
            "sessionCapabilities": {
                "list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {},
            },
        },
        "authMethods": [],
        "agentInfo": { "name": "acp-host", "title": "acp-host", "version": version },
        "_meta": { "acphost": {
            "version": version,
            "methods": OWN_METHODS,
            "limits": {
                "messageBytesMax": limits.message_bytes_max,
                "detachGraceMs": limits.detach_grace_ms,
            },
        } },
    })
}

/// True if the params of `initialize` name a protocol version, of any number.
pub fn has_version(params: Option<&str>) -> bool {
    let params: Option<Value> = params.and_then(|params| serde_json::from_str(params).ok());
    params.is_some_and(|params| params.get("protocolVersion").is_some_and(Value::is_number))
}

/// Returns what the client declared in the params of `initialize`.
pub fn declared(params: Option<&str>) -> ClientTraits {
    let params: Value = params.and_then(|params| serde_json::from_str(params).ok()).unwrap_or_default();
    let has = |path: &str| {
        params.pointer(path).is_some_and(|value| value.is_object() || *value == Value::Bool(true))
    };
    ClientTraits {
        has_notices: has("/clientCapabilities/session/notices"),
        has_forms: has("/clientCapabilities/elicitation/form"),
        has_pages: has("/clientCapabilities/elicitation/url"),
    }
}

/// Facts about a session for a client that opens it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// Number of the last row before the answer: the rows after it follow.
    pub last_seq: u64,
    /// Epoch of the row numbers.
    pub epoch: String,
    /// Running turn.
    pub active_run: Option<RunId>,
    /// Number of queued prompts.
    pub queued: u64,
    /// Pending permission requests.
    pub pending_permissions: Vec<String>,
}

/// Returns the result of `session/new`, `session/load` and `session/resume`; only the first has a session id.
pub fn opened_session(row: &SessionRow, facts: &SessionFacts, is_new: bool) -> Value {
    let mut result = settings(&row.options);
    if is_new {
        put(&mut result, "sessionId", json!(row.session_key));
    }
    let mut ours = json!({
        "lastSeq": facts.last_seq,
        "epoch": facts.epoch,
        "activeRunId": facts.active_run,
        "queued": facts.queued,
        "pendingPermissions": facts.pending_permissions,
    });
    if row.pruned_seq > 0 {
        put(&mut ours, "prunedSeq", json!(row.pruned_seq));
    }
    put(&mut result, "_meta", json!({ "acphost": ours }));
    result
}

/// Returns modes and config options of a session, as members of a result.
pub fn settings(options: &SessionOptions) -> Value {
    let mut out = json!({});
    if let Some(modes) = modes(options) {
        put(&mut out, "modes", modes);
    }
    let list = config_options(options);
    if !list.is_empty() {
        put(&mut out, "configOptions", Value::Array(list));
    }
    out
}

fn modes(options: &SessionOptions) -> Option<Value> {
    let modes = options.agent.mode()?;
    let current = options.mode_id.as_ref().or(modes.current.as_ref())?;
    let mut values: Vec<Value> = modes.values.iter().map(|id| json!({ "id": id, "name": id })).collect();
    if !modes.values.contains(current) {
        values.insert(0, json!({ "id": current, "name": current }));
    }
    Some(json!({ "currentModeId": current, "availableModes": values }))
}

/// Returns the complete list of config options, with changes that the agent gets at its next start.
pub fn config_options(options: &SessionOptions) -> Vec<Value> {
    let AgentSettings { models, options: list, .. } = &options.agent;
    let separate = models.as_ref().filter(|_| options.agent.model_option().is_none());
    let separate = separate.map(|choices| ConfigOption {
        id: MODEL_OPTION.to_owned(),
        category: Some("model".to_owned()),
        is_boolean: false,
        choices: choices.clone(),
    });
    let model_id = options.agent.model_option().map_or(MODEL_OPTION, |option| option.id.as_str());
    let stored = |id: &str| {
        let model = options.model.as_ref().filter(|_| id == model_id);
        let own = options.config.iter().find(|(have, _)| have == id).map(|(_, value)| value);
        model.or(own)
    };
    list.iter().chain(&separate).map(|option| config_option(option, stored(&option.id))).collect()
}

fn config_option(option: &ConfigOption, stored: Option<&String>) -> Value {
    let ConfigOption { id, category, is_boolean, choices } = option;
    let Choices { current, values } = choices;
    let current = stored.or(current.as_ref());
    let mut out = json!({ "id": id, "name": id });
    if let Some(category) = category {
        put(&mut out, "category", json!(category));
    }
    if *is_boolean {
        put(&mut out, "type", json!("boolean"));
        put(
            &mut out,
            "currentValue",
            json!(current.is_some_and(|value| matches!(value.as_str(), "true" | "on"))),
        );
        return out;
    }
    let current = current.or(values.first()).cloned().unwrap_or_default();
    let mut list: Vec<Value> = values.iter().map(|value| json!({ "value": value, "name": value })).collect();
    if !values.contains(&current) {
        list.insert(0, json!({ "value": current, "name": current }));
    }
    put(&mut out, "type", json!("select"));
    put(&mut out, "currentValue", json!(current));
    put(&mut out, "options", Value::Array(list));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{NonInteractive, PermissionMode};

    fn choices(current: Option<&str>, values: &[&str]) -> Choices {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        Choices { current: current.map(str::to_owned), values }
    }

    fn options() -> SessionOptions {
        let mut options = SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny);
        options.agent.modes = Some(choices(Some("ask"), &["ask", "auto"]));
        options.agent.models = Some(choices(Some("small"), &["small", "big"]));
        options.agent.options = vec![ConfigOption {
            id: "web".to_owned(),
            category: None,
            is_boolean: true,
            choices: choices(Some("true"), &[]),
        }];
        options
    }

    #[test]
    fn settings_list_everything_that_the_agent_reported() {
        let big = json!([{"value": "small", "name": "small"}, {"value": "big", "name": "big"}]);
        let want = |mode: &str, model: &str, web: bool| {
            json!({
                "modes": {"currentModeId": mode,
                    "availableModes": [{"id": "ask", "name": "ask"}, {"id": "auto", "name": "auto"}]},
                "configOptions": [
                    {"id": "web", "name": "web", "type": "boolean", "currentValue": web},
                    {"id": "model", "name": "model", "category": "model", "type": "select", "currentValue": model,
                        "options": big},
                ],
            })
        };
        let mut options = options();
        assert_eq!(settings(&options), want("ask", "small", true));
        options.mode_id = Some("auto".to_owned());
        options.model = Some("big".to_owned());
        options.config = vec![("web".to_owned(), "false".to_owned())];
        assert_eq!(settings(&options), want("auto", "big", false), "changes for the next start");
        assert_eq!(settings(&SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny)), json!({}));
        // Clients that know no config options get the modes of such an option.
        options.mode_id = None;
        options.agent.modes = None;
        options.agent.options = vec![ConfigOption {
            id: "agent".to_owned(),
            category: Some("mode".to_owned()),
            is_boolean: false,
            choices: choices(Some("ask"), &["ask", "auto"]),
        }];
        assert_eq!(settings(&options)["modes"], want("ask", "small", true)["modes"]);
    }

    #[test]
    fn any_number_is_a_protocol_version() {
        for (params, is_version) in [
            (r#"{"protocolVersion":1}"#, true),
            (r#"{"protocolVersion":0}"#, true),
            (r#"{"protocolVersion":-1}"#, true),
            (r#"{"protocolVersion":1e99}"#, true),
            (r#"{"protocolVersion":"1"}"#, false),
            (r#"{"protocolVersion":null}"#, false),
            ("{}", false),
            ("[]", false),
        ] {
            assert_eq!(has_version(Some(params)), is_version, "{params}");
        }
        assert!(!has_version(None));
    }

    #[test]
    fn declared_capabilities_are_read_from_initialize() {
        let all = r#"{"clientCapabilities":{"session":{"notices":{}},"elicitation":{"form":{},"url":{}}}}"#;
        let want = ClientTraits { has_notices: true, has_forms: true, has_pages: true };
        assert_eq!(declared(Some(all)), want);
        let form = r#"{"clientCapabilities":{"elicitation":{"form":{},"url":null}}}"#;
        assert_eq!(declared(Some(form)), ClientTraits { has_forms: true, ..ClientTraits::default() });
        for none in ["{}", "[]", r#"{"clientCapabilities":{"elicitation":{}}}"#] {
            assert_eq!(declared(Some(none)), ClientTraits::default(), "{none}");
        }
    }

    #[test]
    fn own_methods_are_advertised_once_and_parse() {
        let limits = ShownLimits { message_bytes_max: 1, detach_grace_ms: 2 };
        let result = initialize("0.1.0", limits);
        assert_eq!(result.to_string().matches("acphost/ping").count(), 1);
        for method in OWN_METHODS {
            let error = crate::northbound::params::parse_call(method, Some("{}")).err();
            assert!(error.is_none_or(|error| error.code != crate::jsonrpc::METHOD_NOT_FOUND), "{method}");
        }
    }
}
