//! Reads the few things that the client must understand. What is missing or of another shape is simply not
//! there: a message is never refused because this lens did not know it.

use super::state::{Abilities, Modes};
use crate::core::files::Takes;
use crate::core::jsonrpc::{Members, string};
use crate::core::link::{PermissionOption, Wanted};
use serde_json::Value;

/// The longest instruction for signing in that is shown, in characters.
const SIGN_IN_CHARS_MAX: usize = 4_000;
/// The longest title of a permission, in characters.
const TITLE_CHARS_MAX: usize = 300;
/// How many modes or options of one list are read.
const LIST_MAX: usize = 200;

/// Raw JSON as a value; `Null` for what is too deep.
pub(super) fn value(raw: &str) -> Value {
    serde_json::from_str(raw).unwrap_or(Value::Null)
}

/// The first `max` characters of a text.
pub(super) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A JSON-RPC error: its number (0 when it has none) and its message.
pub(super) fn error(raw: &str) -> (i64, String) {
    let error = value(raw);
    let code = error.get("code");
    let code = code.and_then(|code| code.as_i64().or_else(|| code.as_str()?.parse().ok())).unwrap_or(0);
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
    (code, cut(message, 2_000))
}

/// Whether something is switched on: `true`, or an object as capability marker.
fn on(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true) | Value::Object(_)))
}

/// Abilities from the result of `initialize`.
pub(super) fn abilities(result: &Value) -> Abilities {
    let agent = result.get("agentCapabilities");
    let session = agent.and_then(|agent| agent.get("sessionCapabilities"));
    let of = |name: &str| on(session.and_then(|session| session.get(name)));
    let prompt = agent.and_then(|agent| agent.get("promptCapabilities"));
    let takes = |name: &str| prompt.and_then(|prompt| prompt.get(name)) == Some(&Value::Bool(true));
    let steering = |holder: Option<&Value>| {
        holder.and_then(|holder| holder.pointer("/_meta/steering/supported")) == Some(&Value::Bool(true))
    };
    Abilities {
        load: agent.and_then(|agent| agent.get("loadSession")) == Some(&Value::Bool(true)),
        resume: of("resume"),
        close: of("close"),
        delete: of("delete"),
        steer: steering(Some(result)) || steering(agent),
        takes: Takes { image: takes("image"), audio: takes("audio"), embedded: takes("embeddedContext") },
    }
}

/// How to sign in, from `authMethods`: names, descriptions, and the command where the method is one.
pub(super) fn sign_in(result: &Value) -> String {
    let methods = result.get("authMethods").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut out = String::new();
    for method in methods.iter().take(LIST_MAX) {
        let text = |name: &str| method.get(name).and_then(Value::as_str).unwrap_or_default();
        let name = if text("name").is_empty() { text("id") } else { text("name") };
        out.push_str("- ");
        out.push_str(name);
        if !text("description").is_empty() {
            out.push_str(": ");
            out.push_str(text("description"));
        }
        let command = method.pointer("/_meta/terminal-auth").map(command_line).unwrap_or_default();
        if !command.is_empty() {
            out.push_str(&format!(" (run: {command})"));
        } else if text("type") == "terminal" {
            let args = words(method.get("args"));
            out.push_str(&format!(" (run the agent's program in a terminal with: {args})"));
        }
        out.push('\n');
    }
    cut(out.trim_end(), SIGN_IN_CHARS_MAX)
}

fn command_line(terminal: &Value) -> String {
    let program = terminal.get("command").and_then(Value::as_str).unwrap_or_default();
    format!("{program} {}", words(terminal.get("args"))).trim().to_owned()
}

fn words(list: Option<&Value>) -> String {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

/// What `initialize` said, for people: the members as received.
pub(super) fn agent_info(result: &str) -> String {
    const BYTES_MAX: usize = 64 * 1024;
    let Ok(members) = Members::parse(result) else { return "{}".to_owned() };
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

/// What the agent calls itself; empty when it does not say.
pub(super) fn agent_name(result: &Value) -> String {
    cut(result.pointer("/agentInfo/name").and_then(Value::as_str).unwrap_or_default(), 100)
}

/// Modes from the result of `session/new`, `session/load` or `session/resume`: the agent's modes, or the config
/// option of category `mode`.
pub(super) fn modes(result: &Value) -> Modes {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(modes) = result.get("modes").filter(|modes| modes.is_object()) {
        let known =
            modes.get("availableModes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let known = known.iter().take(LIST_MAX).filter_map(|mode| text(mode.get("id"))).collect();
        return Modes {
            current: text(modes.get("currentModeId")).map(|mode| cut(&mode, 200)),
            known,
            option_id: None,
        };
    }
    let options =
        result.get("configOptions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of_mode = |option: &&Value| option.get("category").and_then(Value::as_str) == Some("mode");
    let Some(option) = options.iter().take(LIST_MAX).find(of_mode) else { return Modes::default() };
    let mut known = Vec::new();
    select_values(option.get("options"), &mut known);
    Modes {
        current: text(option.get("currentValue")).map(|mode| cut(&mode, 200)),
        known,
        option_id: text(option.get("id")),
    }
}

/// Values of a select: a list of choices, or of groups of choices.
fn select_values(list: Option<&Value>, out: &mut Vec<String>) {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for choice in list.iter().take(LIST_MAX) {
        if let Some(value) = choice.get("value").and_then(Value::as_str) {
            out.push(value.to_owned());
        } else if let Some(inner) = choice.get("options").and_then(Value::as_array) {
            out.extend(
                inner.iter().take(LIST_MAX).filter_map(|c| c.get("value")?.as_str().map(str::to_owned)),
            );
        }
    }
}

/// The mode in use according to a list of config options, where one of them stands for the mode.
pub(super) fn mode_in_options(holder: &Value) -> Option<String> {
    let modes = modes(&serde_json::json!({ "configOptions": holder.get("configOptions")? }));
    modes.current
}

/// What a permission request is about. The tool call may be missing, or have neither title nor kind.
pub(super) fn permission(params: &Value) -> Wanted {
    let call = params.get("toolCall");
    let title = words_of(call.and_then(|call| call.get("title")))
        .or_else(|| words_of(params.get("title")))
        .or_else(|| words_of(params.get("description")))
        .or_else(|| call.and_then(content_text))
        .or_else(|| words_of(call.and_then(|call| call.pointer("/rawInput/command"))))
        .or_else(|| words_of(call.and_then(|call| call.get("name"))))
        .or_else(|| words_of(call.and_then(|call| call.get("toolCallId"))))
        .unwrap_or("a tool call");
    let options = params.get("options").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Wanted::Permission {
        title: cut(title, TITLE_CHARS_MAX),
        tool_kind: words_of(call.and_then(|call| call.get("kind"))).map(str::to_owned),
        options: options.iter().take(LIST_MAX).filter_map(permission_option).collect(),
    }
}

/// A text with something in it.
fn words_of(value: Option<&Value>) -> Option<&str> {
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
        name: text("name").unwrap_or(id).to_owned(),
        kind: text("kind").unwrap_or_default().to_owned(),
    })
}

/// What a request to the file system or a terminal wants; the name of the missing param otherwise.
pub(super) fn wanted(method: &str, params: &Members<'_>) -> Result<Wanted, &'static str> {
    let text = |name: &'static str| params.string(name).map(String::from).ok_or(name);
    let number = |name: &str| params.get(name).and_then(|raw| raw.parse::<u64>().ok());
    Ok(match method {
        "fs/read_text_file" => {
            Wanted::FsRead { path: text("path")?, line: number("line"), limit: number("limit") }
        }
        "fs/write_text_file" => Wanted::FsWrite { path: text("path")?, content: text("content")? },
        "terminal/create" => Wanted::TerminalCreate {
            command: text("command")?,
            args: strings(params.get("args")),
            env: environment(params.get("env")),
            cwd: params.get("cwd").and_then(string).map(String::from),
            output_bytes_max: number("outputByteLimit"),
        },
        "terminal/output" => Wanted::TerminalOutput { terminal_id: text("terminalId")? },
        "terminal/wait_for_exit" => Wanted::TerminalWait { terminal_id: text("terminalId")? },
        "terminal/kill" => Wanted::TerminalKill { terminal_id: text("terminalId")? },
        "terminal/release" => Wanted::TerminalRelease { terminal_id: text("terminalId")? },
        _ => return Err("method"),
    })
}

fn strings(raw: Option<&str>) -> Vec<String> {
    let list = raw.map(value);
    let list = list.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// `[{"name","value"}]`, or an object, as some agents send it.
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
