//! Extracts the fields that the client needs from JSON. Missing fields and fields of another type count as
//! absent: no message is refused for unknown content.

use super::state::{AgentCapabilities, Modes};
use crate::agent_settings::{AgentCommand, AgentSettings, Choices, ConfigOption};
use crate::backend::{AgentRequestKind, PermissionOption};
use crate::failure::SignInMethod;
use crate::files::AcceptedContent;
use crate::jsonrpc::{ObjectMembers, string};
use crate::sanitize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum length of sign-in instructions, in characters.
const SIGN_IN_CHARS_MAX: usize = 4_000;
/// Maximum length of a permission's title, in characters.
const TITLE_CHARS_MAX: usize = 300;
/// Maximum length of an error's text, in characters.
const ERROR_CHARS_MAX: usize = 500;
/// Maximum nesting of the text in an error's data.
const ERROR_DEPTH_MAX: usize = 2;
/// Maximum number of string members shown of an error's data.
const ERROR_MEMBERS_MAX: usize = 3;
/// Maximum size of an error that is stored as received, in bytes.
const ERROR_BYTES_MAX: usize = 16 * 1024;
/// Maximum length of a kept id or value, in characters.
pub(in crate::runtime) const ID_CHARS_MAX: usize = 200;
/// Maximum size of a kept list of modes, models or options, in characters.
const SETTINGS_CHARS_MAX: usize = 16 * 1024;
/// Maximum number of modes or options read from one list.
const LIST_MAX: usize = 200;
/// Maximum length of the path of a file request, in bytes: PATH_MAX of Linux.
const PATH_BYTES_MAX: usize = 4_096;
/// Maximum size of a command with arguments, environment and directory, in bytes of JSON. They are stored
/// several times, quoted: in the request, in its event and in the lease.
const COMMAND_BYTES_MAX: usize = 64 * 1024;

/// Parses raw JSON; returns `Null` if it is too deeply nested.
pub(in crate::runtime) fn value(raw: &str) -> Value {
    serde_json::from_str(raw).unwrap_or(Value::Null)
}

/// Returns the first `max` characters of a text.
pub(in crate::runtime) fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Reads a JSON-RPC error for people: the code (0 when absent), and message and data on one line.
pub(in crate::runtime) fn error(raw: &str) -> (i64, String) {
    let error = value(raw);
    let code = error.get("code");
    let code = code.and_then(|code| code.as_i64().or_else(|| code.as_str()?.parse().ok())).unwrap_or(0);
    let message = non_blank_text(error.get("message")).unwrap_or_default().trim();
    let details = error.get("data").map(|data| details(data, 0)).unwrap_or_default();
    let text = match details.trim() {
        "" => message.to_owned(),
        details if details.contains(message) => details.to_owned(),
        details if message.contains(details) => message.to_owned(),
        details => format!("{}: {details}", message.trim_end_matches(['.', ':'])),
    };
    (code, sanitize::line(&text, ERROR_CHARS_MAX))
}

/// Returns the text in an error's data: a string, a member with a known name, or else the first string members.
fn details(data: &Value, depth: usize) -> String {
    let of = |value: &Value| if depth < ERROR_DEPTH_MAX { details(value, depth + 1) } else { String::new() };
    let is_said = |text: &String| !text.trim().is_empty();
    match data {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.first().map(of).unwrap_or_default(),
        Value::Object(members) => {
            let named =
                ["message", "details", "detail", "error"].into_iter().filter_map(|name| members.get(name));
            named.map(of).find(is_said).unwrap_or_else(|| {
                let texts =
                    members.iter().filter_map(|(name, value)| Some(format!("{name}: {}", value.as_str()?)));
                texts.take(ERROR_MEMBERS_MAX).collect::<Vec<_>>().join(", ")
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Returns a JSON-RPC error as received, for programs. Errors above [`ERROR_BYTES_MAX`] are stored without data.
pub(in crate::runtime) fn raw_error(raw: &str) -> Box<Value> {
    let mut error = value(raw);
    if raw.len() > ERROR_BYTES_MAX {
        let (code, message) = self::error(raw);
        error = serde_json::json!({ "code": code, "message": message });
    }
    Box::new(error)
}

/// True for an enabled capability: `true`, or an object as marker.
fn is_enabled(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true) | Value::Object(_)))
}

/// Reads the capabilities from the result of `initialize`.
pub(in crate::runtime) fn abilities(result: &Value) -> AgentCapabilities {
    let agent = result.get("agentCapabilities");
    let session = agent.and_then(|agent| agent.get("sessionCapabilities"));
    let of = |name: &str| is_enabled(session.and_then(|session| session.get(name)));
    let prompt = agent.and_then(|agent| agent.get("promptCapabilities"));
    let takes = |name: &str| prompt.and_then(|prompt| prompt.get(name)) == Some(&Value::Bool(true));
    let mcp = |name: &str| {
        let mcp = agent.and_then(|agent| agent.get("mcpCapabilities"));
        mcp.and_then(|mcp| mcp.get(name)) == Some(&Value::Bool(true))
    };
    let steering = |holder: Option<&Value>| {
        holder.and_then(|holder| holder.pointer("/_meta/steering/supported")) == Some(&Value::Bool(true))
    };
    AgentCapabilities {
        load: agent.and_then(|agent| agent.get("loadSession")) == Some(&Value::Bool(true)),
        resume: of("resume"),
        close: of("close"),
        list: of("list"),
        delete: of("delete"),
        steer: steering(Some(result)) || steering(agent),
        mcp_http: mcp("http"),
        mcp_sse: mcp("sse"),
        additional_directories: of("additionalDirectories"),
        takes: AcceptedContent {
            image: takes("image"),
            audio: takes("audio"),
            embedded: takes("embeddedContext"),
        },
    }
}

/// Returns the ids of the sign-in methods in the result of `initialize`.
pub(super) fn auth_method_ids(result: &Value) -> Vec<String> {
    let methods = list(result.get("authMethods")).iter().take(LIST_MAX);
    methods.filter_map(|method| method.get("id").and_then(Value::as_str).map(str::to_owned)).collect()
}

/// Returns the sign-in methods in an [`agent_info`] that `authenticate` alone can use.
pub(super) fn sign_in_methods(agent_info: &str) -> Vec<SignInMethod> {
    let info = value(agent_info);
    let methods = list(info.get("authMethods")).iter().take(LIST_MAX);
    let is_usable = |method: &&Value| {
        let kind = method.get("type").and_then(Value::as_str).unwrap_or_default();
        !matches!(kind, "terminal" | "env_var") && method.pointer("/_meta/terminal-auth").is_none()
    };
    let named = methods.filter(is_usable).filter_map(|method| {
        let id = method.get("id").and_then(Value::as_str)?;
        let name = method.get("name").and_then(Value::as_str).unwrap_or(id);
        Some(SignInMethod { id: id.to_owned(), name: sanitize::line(name.trim(), SIGN_IN_CHARS_MAX) })
    });
    named.collect()
}

/// Formats the sign-in instructions from `authMethods`: names, ids, descriptions, and what to do: the command to
/// run, the variables to set in the configuration of `agent`, or the command that signs in.
pub(super) fn sign_in(result: &Value, agent: &str) -> String {
    let mut out = String::new();
    for method in list(result.get("authMethods")).iter().take(LIST_MAX) {
        let text = |name: &str| {
            let text = method.get(name).and_then(Value::as_str).unwrap_or_default();
            sanitize::line(text.trim(), SIGN_IN_CHARS_MAX)
        };
        let name = if text("name").is_empty() { text("id") } else { text("name") };
        out.push_str("- ");
        out.push_str(&name);
        if !text("description").is_empty() {
            out.push_str(": ");
            out.push_str(&text("description"));
        }
        let command = method.pointer("/_meta/terminal-auth").map(command_line).unwrap_or_default();
        if !command.is_empty() {
            out.push_str(&format!(" (run: {command})"));
        } else if text("type") == "terminal" {
            let args = sanitize::line(&words(method.get("args")), SIGN_IN_CHARS_MAX);
            out.push_str(&format!(" (run the agent's program in a terminal with: {args})"));
        } else if text("type") == "env_var" {
            out.push_str(&variables(method, agent));
        } else if is_plain_id(&text("id")) && !agent.is_empty() {
            let id = text("id");
            let here = format!("in a conversation: /acp login {agent} {id}");
            out.push_str(&format!(" (run: acp-gateway agents login {agent} --method {id}; {here})"));
        }
        out.push('\n');
    }
    truncate(out.trim_end(), SIGN_IN_CHARS_MAX)
}

/// True for an id that a shell takes as one word.
fn is_plain_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.:/@".contains(&it))
}

/// Formats the lines of `gateway.toml` that set the variables of a method; names that are no variable names are left
/// out.
fn variables(method: &Value, agent: &str) -> String {
    let is_name =
        |name: &&str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
    let vars = list(method.get("vars")).iter().take(LIST_MAX);
    let old = method.get("varName").and_then(Value::as_str);
    let names = vars.filter_map(|var| var.get("name").and_then(Value::as_str)).chain(old).filter(is_name);
    let lines: String = names.map(|name| format!("\n    {name} = \"…\"")).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(" (add to gateway.toml and reload)\n    [agents.{agent}.env]{lines}")
}

fn command_line(terminal: &Value) -> String {
    let program = terminal.get("command").and_then(Value::as_str).unwrap_or_default();
    sanitize::line(format!("{program} {}", words(terminal.get("args"))).trim(), SIGN_IN_CHARS_MAX)
}

fn words(words: Option<&Value>) -> String {
    list(words).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the entries of a list; none for any other value.
fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the members of the `initialize` result that are shown to people, as received.
pub(super) fn agent_info(result: &str) -> String {
    const BYTES_MAX: usize = 64 * 1024;
    let Ok(members) = ObjectMembers::parse(result) else { return "{}".to_owned() };
    let pick = |names: &[&str]| {
        let picked: Vec<String> = names
            .iter()
            .filter_map(|name| members.get(name).map(|raw| format!("{}:{raw}", super::jsonrpc::quoted(name))))
            .collect();
        format!("{{{}}}", picked.join(","))
    };
    let all = pick(&["protocolVersion", "agentInfo", "agentCapabilities", "authMethods"]);
    if all.len() <= BYTES_MAX {
        return all;
    }
    let short = pick(&["protocolVersion", "agentInfo"]);
    if short.len() <= BYTES_MAX { short } else { "{}".to_owned() }
}

/// Returns the agent's own name; empty if it sends none.
pub(super) fn agent_name(result: &Value) -> String {
    truncate(result.pointer("/agentInfo/name").and_then(Value::as_str).unwrap_or_default(), 100)
}

/// Reads the modes from the result of `session/new`, `session/load` or `session/resume`: the agent's modes,
/// or the config option of category `mode`.
pub(super) fn modes(result: &Value) -> Modes {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(modes) = result.get("modes").filter(|modes| modes.is_object()) {
        let known = list(modes.get("availableModes"))
            .iter()
            .take(LIST_MAX)
            .filter_map(|mode| text(mode.get("id")))
            .collect();
        return Modes {
            current: text(modes.get("currentModeId")).map(|mode| truncate(&mode, 200)),
            known,
            option_id: None,
        };
    }
    let of_mode = |option: &&Value| option.get("category").and_then(Value::as_str) == Some("mode");
    let option = list(result.get("configOptions")).iter().take(LIST_MAX).find(of_mode);
    let Some(option) = option else { return Modes::default() };
    let mut known = Vec::new();
    select_values(option.get("options"), &mut known);
    Modes {
        current: text(option.get("currentValue")).map(|mode| truncate(&mode, 200)),
        known,
        option_id: text(option.get("id")),
    }
}

/// Reads modes, models and config options from the result of `session/new`, `session/load` or
/// `session/resume`.
pub(super) fn settings(result: &Value) -> AgentSettings {
    let mut room = SETTINGS_CHARS_MAX;
    let mut choices = |holder: &str, (current, known, id): (&str, &str, &str)| {
        let holder = result.get(holder).filter(|holder| holder.is_object())?;
        let values = list(holder.get(known)).iter().take(LIST_MAX).filter_map(|item| item.get(id)?.as_str());
        Some(Choices {
            current: holder.get(current).and_then(Value::as_str).map(|id| truncate(id, ID_CHARS_MAX)),
            values: values_that_fit(values, &mut room),
        })
    };
    AgentSettings {
        modes: choices("modes", ("currentModeId", "availableModes", "id")),
        models: choices("models", ("currentModelId", "availableModels", "modelId")),
        options: options(result).unwrap_or_default(),
        commands: Vec::new(),
    }
}

/// Reads the list of config options in a result or an update.
pub(in crate::runtime) fn options(holder: &Value) -> Option<Vec<ConfigOption>> {
    let list = holder.get("configOptions")?.as_array()?;
    let mut room = SETTINGS_CHARS_MAX;
    Some(list.iter().take(LIST_MAX).filter_map(|option| config_option(option, &mut room)).collect())
}

/// Reads the list of commands in an update.
pub(in crate::runtime) fn commands(update: &Value) -> Option<Vec<AgentCommand>> {
    let list = update.get("availableCommands")?.as_array()?;
    let mut room = SETTINGS_CHARS_MAX;
    let command = |command: &Value| {
        let text =
            |value: Option<&Value>| value.and_then(Value::as_str).map(|text| truncate(text, ID_CHARS_MAX));
        let name =
            command.get("name")?.as_str().filter(|name| name.chars().count() <= ID_CHARS_MAX)?.to_owned();
        let description = text(command.get("description")).unwrap_or_default();
        let hint = text(command.pointer("/input/hint"));
        let chars = [Some(&name), Some(&description), hint.as_ref()].into_iter().flatten();
        room = room.checked_sub(chars.map(|text| text.chars().count()).sum())?;
        Some(AgentCommand { name, description, hint })
    };
    Some(list.iter().take(LIST_MAX).filter_map(command).collect())
}

fn config_option(option: &Value, room: &mut usize) -> Option<ConfigOption> {
    let text = |name: &str| option.get(name).and_then(Value::as_str);
    let id = text("id").filter(|id| id.chars().count() <= ID_CHARS_MAX)?;
    *room = room.checked_sub(id.chars().count())?;
    let current = option.get("currentValue");
    let is_boolean = text("type") == Some("boolean") || current.is_some_and(Value::is_boolean);
    let mut values = Vec::new();
    select_values(option.get("options"), &mut values);
    let choices = if is_boolean {
        let values = ["true", "false"].map(str::to_owned).to_vec();
        Choices { current: current.and_then(Value::as_bool).map(|on| on.to_string()), values }
    } else {
        let values = values_that_fit(values.iter().map(String::as_str), room);
        Choices {
            current: current.and_then(Value::as_str).map(|value| truncate(value, ID_CHARS_MAX)),
            values,
        }
    };
    let category = text("category").map(|category| truncate(category, ID_CHARS_MAX));
    Some(ConfigOption { id: id.to_owned(), category, is_boolean, choices })
}

/// Returns the values that are short enough, until `room` characters are used up.
fn values_that_fit<'a>(values: impl Iterator<Item = &'a str>, room: &mut usize) -> Vec<String> {
    let fits = |value: &&str| value.chars().count() <= ID_CHARS_MAX;
    let mut kept = Vec::new();
    for value in values.filter(fits) {
        let Some(left) = room.checked_sub(value.chars().count()) else { break };
        *room = left;
        kept.push(value.to_owned());
    }
    kept
}

/// Collects the values of a select: a list of choices, or of groups of choices.
fn select_values(choices: Option<&Value>, out: &mut Vec<String>) {
    for choice in list(choices).iter().take(LIST_MAX) {
        if let Some(value) = choice.get("value").and_then(Value::as_str) {
            out.push(value.to_owned());
        } else if let Some(inner) = choice.get("options").and_then(Value::as_array) {
            out.extend(
                inner.iter().take(LIST_MAX).filter_map(|c| c.get("value")?.as_str().map(str::to_owned)),
            );
        }
    }
}

/// Returns the current mode from a list of config options, if one of them represents the mode.
pub(super) fn mode_in_options(holder: &Value) -> Option<String> {
    let modes = modes(&serde_json::json!({ "configOptions": holder.get("configOptions")? }));
    modes.current
}

/// Removes the options of a permission request that cannot be answered, so that the row and all interfaces
/// number the same list: kept are those with an id; names and kinds that are not text are dropped. Returns
/// true if anything was changed; the error is the name of the param if an id occurs twice.
pub(super) fn normalise_options(params: &mut Value) -> Result<bool, &'static str> {
    let Some(Value::Array(options)) = params.get_mut("options") else { return Ok(false) };
    let before = options.clone();
    options.retain(|option| non_blank_text(option.get("optionId")).is_some());
    options.truncate(LIST_MAX);
    let mut ids = BTreeSet::new();
    for option in options.iter_mut().filter_map(Value::as_object_mut) {
        option.retain(|name, value| !matches!(name.as_str(), "name" | "kind") || value.is_string());
        let id = option.get("optionId").and_then(Value::as_str).unwrap_or_default();
        if !ids.insert(id.to_owned()) {
            return Err("options");
        }
    }
    Ok(*options != before)
}

/// Reads a permission request. The tool call may be missing, or have neither title nor kind.
pub(super) fn permission(params: &Value) -> AgentRequestKind {
    let call = params.get("toolCall");
    let title = non_blank_text(call.and_then(|call| call.get("title")))
        .or_else(|| non_blank_text(params.get("title")))
        .or_else(|| non_blank_text(params.get("description")))
        .or_else(|| call.and_then(content_text))
        .or_else(|| non_blank_text(call.and_then(|call| call.pointer("/rawInput/command"))))
        .or_else(|| non_blank_text(call.and_then(|call| call.get("name"))))
        .or_else(|| non_blank_text(call.and_then(|call| call.get("toolCallId"))))
        .unwrap_or("a tool call");
    AgentRequestKind::Permission {
        title: sanitize::line(title.trim(), TITLE_CHARS_MAX),
        tool_kind: non_blank_text(call.and_then(|call| call.get("kind"))).map(str::to_owned),
        options: list(params.get("options")).iter().take(LIST_MAX).filter_map(permission_option).collect(),
    }
}

/// Returns a text that is not blank.
fn non_blank_text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str).filter(|text| !text.trim().is_empty())
}

fn content_text(call: &Value) -> Option<&str> {
    let list = call.get("content")?.as_array()?;
    list.iter().find_map(|item| {
        let text = item.pointer("/content/text").or_else(|| item.get("text")).or_else(|| item.get("path"))?;
        text.as_str().filter(|text| !text.trim().is_empty())
    })
}

fn permission_option(option: &Value) -> Option<PermissionOption> {
    let text = |name: &str| option.get(name).and_then(Value::as_str);
    let id = text("optionId")?;
    Some(PermissionOption {
        id: id.to_owned(),
        name: sanitize::line(text("name").unwrap_or(id), TITLE_CHARS_MAX),
        kind: text("kind").unwrap_or_default().to_owned(),
    })
}

/// Reads a request for the file system or a terminal; the error is the name of the missing or oversized
/// param.
pub(super) fn host_request(
    method: &str,
    params: &ObjectMembers<'_>,
) -> Result<AgentRequestKind, &'static str> {
    let text = |name: &'static str| params.string(name).map(String::from).ok_or(name);
    let number = |name: &str| params.get(name).and_then(|raw| raw.parse::<u64>().ok());
    let path = || text("path").and_then(|path| fits(path, PATH_BYTES_MAX, "path (4,096 bytes at most)"));
    Ok(match method {
        "fs/read_text_file" => {
            AgentRequestKind::FsRead { path: path()?, line: number("line"), limit: number("limit") }
        }
        "fs/write_text_file" => {
            let content = params.string("content").map(Arc::from).ok_or("content")?;
            AgentRequestKind::FsWrite { path: path()?, content }
        }
        "terminal/create" => {
            // Decoding only shortens the raw members, so the sum of their lengths is the limit.
            let sent = ["command", "args", "env", "cwd"].map(|name| params.get(name).map_or(0, str::len));
            if sent.iter().sum::<usize>() > COMMAND_BYTES_MAX {
                return Err("command (64 KiB at most, with args, env and cwd)");
            }
            AgentRequestKind::TerminalCreate {
                command: text("command")?,
                args: strings(params.get("args")),
                env: environment(params.get("env")),
                cwd: params.get("cwd").and_then(string).map(String::from),
                output_bytes_max: number("outputByteLimit"),
            }
        }
        "terminal/output" => AgentRequestKind::TerminalOutput { terminal_id: text("terminalId")? },
        "terminal/wait_for_exit" => AgentRequestKind::TerminalWait { terminal_id: text("terminalId")? },
        "terminal/kill" => AgentRequestKind::TerminalKill { terminal_id: text("terminalId")? },
        "terminal/release" => AgentRequestKind::TerminalRelease { terminal_id: text("terminalId")? },
        _ => return Err("method"),
    })
}

fn fits(text: String, bytes_max: usize, what: &'static str) -> Result<String, &'static str> {
    if text.len() <= bytes_max { Ok(text) } else { Err(what) }
}

fn strings(raw: Option<&str>) -> Vec<String> {
    list(raw.map(value).as_ref()).iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Reads `[{"name","value"}]`, or an object, which some agents send.
fn environment(raw: Option<&str>) -> Vec<(String, String)> {
    match raw.map(value) {
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|pair| {
                Some((pair.get("name")?.as_str()?.into(), pair.get("value")?.as_str()?.into()))
            })
            .collect(),
        Some(Value::Object(map)) => {
            map.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
        }
        _ => Vec::new(),
    }
}
