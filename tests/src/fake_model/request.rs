//! The parts of an agent's request on which the answer depends.

use super::script::Step;
use serde_json::{Map, Value, json};

/// Beginning of the name of a tool of the gateway that the agent offers through its tool `tool_call` only.
const DEFERRED: &str = "mcp__acp-host__";

/// One request for a completion.
#[derive(Debug)]
pub struct Request {
    /// The model's name, repeated in the answer.
    pub model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the last event of the stream has the usage.
    pub usage: bool,
    /// Text of the last user message with a script, or of the last user message.
    pub prompt: String,
    /// Number of earlier messages with a script: shows the history that the agent sends.
    pub scripts_before: usize,
    /// Number of tool results since that message.
    pub tool_results: usize,
    /// Texts of these results, oldest first.
    pub results: Vec<String>,
    /// The agent's tools, as in the request.
    pub tools: Vec<Value>,
}

/// The text of a message, whether its content is a string or a list of parts.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

impl Request {
    /// Reads the body of a request.
    #[must_use]
    pub fn parse(body: &Value) -> Self {
        let none = Vec::new();
        let messages = body["messages"].as_array().unwrap_or(&none);
        let is_user = |message: &&Value| message["role"] == "user";
        let users = || messages.iter().enumerate().filter(|(_, message)| is_user(message));
        // Agents add their own messages with the role `user`; the script identifies the person's message.
        let scripted = users().rfind(|(_, message)| text(message).contains("[["));
        let found = scripted.or_else(|| users().next_back());
        let (at, prompt) = found.map_or((0, String::new()), |(at, message)| (at, text(message)));
        Self {
            model: body["model"].as_str().unwrap_or("fake").to_owned(),
            stream: body["stream"].as_bool().unwrap_or(false),
            usage: body["stream_options"]["include_usage"].as_bool().unwrap_or(false),
            prompt,
            scripts_before: users().filter(|(i, m)| *i < at && text(m).contains("[[")).count(),
            tool_results: messages.iter().skip(at).filter(|message| message["role"] == "tool").count(),
            results: messages.iter().skip(at).filter(|message| message["role"] == "tool").map(text).collect(),
            tools: body["tools"].as_array().cloned().unwrap_or_default(),
        }
    }

    /// The script without the text around it.
    #[must_use]
    pub fn script(&self) -> &str {
        let start = self.prompt.find("[[").unwrap_or(0);
        let end = self.prompt.rfind("]]").map_or(self.prompt.len(), |end| end + 2);
        self.prompt.get(start..end).unwrap_or(&self.prompt)
    }

    /// Member of the newest tool result that is an object with this member.
    #[must_use]
    pub fn result_member(&self, name: &str) -> Option<Value> {
        self.results.iter().rev().find_map(|text| {
            let object = text.get(text.find('{')?..=text.rfind('}')?)?;
            serde_json::from_str::<Value>(object).ok()?.get(name).cloned()
        })
    }

    /// The arguments of a step; the value `$NAME` is that member of a tool result.
    fn filled(&self, arguments: &Value) -> Value {
        let mut filled = arguments.clone();
        for value in filled.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let named = value.as_str().and_then(|text| text.strip_prefix('$'));
            if let Some(member) = named.and_then(|name| self.result_member(name)) {
                *value = member;
            }
        }
        filled
    }

    /// Whether this call is not part of the conversation (a title, a summary): such calls have no tools.
    #[must_use]
    pub const fn is_side_call(&self) -> bool {
        self.tools.is_empty()
    }

    /// The names of the offered tools.
    #[must_use]
    pub fn tool_names(&self) -> Vec<&str> {
        self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect()
    }

    /// The id of a tool call: unique within a conversation and reproducible.
    #[must_use]
    pub fn call_id(&self) -> String {
        format!("call_{}", self.tool_results)
    }

    /// Name and arguments of the agent's tool that performs the step.
    #[must_use]
    pub fn call(&self, step: &Step) -> Option<(String, Value)> {
        let (names, wanted): (&[&str], Vec<(&[&str], &str)>) = match step {
            Step::Write { path, content } => (
                &["write_file", "write"],
                vec![(&["file_path", "filePath", "absolute_path", "path"], path), (&["content"], content)],
            ),
            Step::Run { command } => (&["run_shell_command", "bash", "shell"], vec![(&["command"], command)]),
            Step::Tool { name, arguments } => {
                let offered = |name: &str| self.tool_names().into_iter().find(|tool| tool.ends_with(name));
                let arguments = self.filled(arguments);
                return match offered(name) {
                    Some(found) => Some((found.to_owned(), arguments)),
                    None => {
                        let inner = json!({"name": format!("{DEFERRED}{name}"), "arguments": arguments});
                        offered("tool_call").map(|found| (found.to_owned(), inner))
                    }
                };
            }
            Step::Say(_) | Step::Chunks { .. } | Step::Repeat(_) | Step::Error(_) | Step::Hang => {
                return None;
            }
        };
        let named = |name: &&str| self.tools.iter().find(|tool| tool["function"]["name"] == **name);
        let tool = &names.iter().find_map(named)?["function"];
        let properties = tool["parameters"]["properties"].as_object()?;
        let mut arguments = Map::new();
        for (spellings, value) in wanted {
            let spelling = spellings.iter().find(|spelling| properties.contains_key(**spelling))?;
            arguments.insert((*spelling).to_owned(), json!(value));
        }
        // Other required arguments get a harmless value.
        for required in tool["parameters"]["required"].as_array().into_iter().flatten() {
            let Some(name) = required.as_str().filter(|name| !arguments.contains_key(*name)) else {
                continue;
            };
            let value = match properties.get(name).and_then(|p| p["type"].as_str()) {
                Some("boolean") => json!(false),
                Some("number" | "integer") => json!(0),
                _ => json!("step of a script"),
            };
            arguments.insert(name.to_owned(), value);
        }
        Some((tool["name"].as_str()?.to_owned(), Value::Object(arguments)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_found_among_the_agents_own_messages() {
        let body = json!({
            "model": "m", "stream": true,
            "messages": [
                {"role": "system", "content": "[[say no]]"},
                {"role": "user", "content": "[[say old]]"},
                {"role": "tool", "content": "old result"},
                {"role": "user", "content": [{"type": "text", "text": "please [[run x]]"}]},
                {"role": "assistant", "content": null},
                {"role": "tool", "content": "result"},
                {"role": "user", "content": "a reminder of the agent"},
            ],
        });
        let request = Request::parse(&body);
        assert_eq!((request.script(), request.tool_results, request.scripts_before), ("[[run x]]", 1, 1));
        assert!(request.stream && !request.usage && request.is_side_call());
    }

    #[test]
    fn a_tool_is_called_as_its_agent_describes_it() {
        let tool = |name: &str, properties: Value, required: Value| {
            let parameters = json!({"type": "object", "properties": properties, "required": required});
            json!({"type": "function", "function": {"name": name, "parameters": parameters}})
        };
        let string = json!({"type": "string"});
        let write = tool("write", json!({"filePath": string, "content": string}), json!(["content"]));
        let run = tool(
            "run_shell_command",
            json!({"command": string, "is_background": {"type": "boolean"}}),
            json!(["command", "is_background"]),
        );
        let request = Request::parse(&json!({"tools": [write, run]}));
        let step = Step::Write { path: "/f".into(), content: "x".into() };
        assert_eq!(request.call(&step), Some(("write".into(), json!({"filePath": "/f", "content": "x"}))));
        let step = Step::Run { command: "ls".into() };
        let arguments = json!({"command": "ls", "is_background": false});
        assert_eq!(request.call(&step), Some(("run_shell_command".into(), arguments)));
        assert_eq!(request.tool_names(), ["write", "run_shell_command"]);
        let step =
            Step::Tool { name: "write".into(), arguments: json!({"filePath": "$path", "content": "$x"}) };
        let request =
            Request { results: vec![r#"{"path":"/old"}"#.into(), r#"ok: {"path":"/f"}"#.into()], ..request };
        assert_eq!(request.call(&step), Some(("write".into(), json!({"filePath": "/f", "content": "$x"}))));
        assert_eq!(Request::parse(&json!({})).call(&step), None);
    }
}
