//! Requests made from the OpenAPI document, valid and invalid ones: no answer is an internal error, none has a status that
//! the document does not name, and each body has its schema.

use crate::document::document;
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::schema::{resolve, validate};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Texts that are often mistaken.
const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "0",
    "-1",
    "null",
    "true",
    "{}",
    "[]",
    "../..",
    "/",
    "/etc/passwd",
    "%00",
    "%",
    "\u{0}",
    "\u{202e}",
    "\u{1f980}",
    "'; --",
    "\"",
    "\\",
    "18446744073709551616",
    "9223372036854775808",
    "1e9",
    "NaN",
    "a b",
    "a\nb",
];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "255",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "1.5",
];

/// Generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True once in `of` times.
    fn once_in(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of)
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        let index = usize::try_from(self.next() % of.len() as u64).unwrap();
        of[index].clone()
    }
}

struct Fuzzer<'a> {
    document: Value,
    random: Random,
    socket: &'a Path,
    /// Values that exist, by the name of a parameter or member.
    known: BTreeMap<&'static str, Vec<String>>,
    /// Number of answers by operation and status.
    seen: BTreeMap<(String, u16), u64>,
}

struct Answer {
    status: u16,
    kind: String,
    body: String,
}

impl Fuzzer<'_> {
    fn text(&mut self, name: &str) -> String {
        let known = self.known.get(name).cloned().unwrap_or_default();
        if !known.is_empty() && !self.random.once_in(4) {
            return self.random.pick(&known);
        }
        match self.random.next() % 8 {
            0 => "x".repeat(usize::try_from(self.random.next() % 3_000).unwrap()),
            _ => self.random.pick(TEXTS).to_owned(),
        }
    }

    /// Makes a value for a schema, which sometimes breaks it.
    fn value(&mut self, schema: &Value, name: &str, depth: u32) -> Value {
        let document = self.document.clone();
        let schema = resolve(&document, schema);
        if self.random.once_in(12) {
            let odd =
                [json!(null), json!(-1), json!([]), json!({}), json!(1.5), json!(true), json!(u64::MAX)];
            return self.random.pick(&odd);
        }
        for several in ["oneOf", "anyOf", "allOf"] {
            if let Some(list) = schema[several].as_array() {
                let one = self.random.pick(list);
                return self.value(&one, name, depth);
            }
        }
        if let Some(list) = schema["enum"].as_array() {
            return self.random.pick(list);
        }
        let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
        match self.random.pick(&kinds).as_str() {
            Some("string") => self.text(name).into(),
            // A wait would only cost time.
            Some("integer" | "number") if name == "wait_s" => 0.into(),
            Some("integer" | "number") => serde_json::from_str(self.random.pick(NUMBERS)).unwrap(),
            Some("boolean") => self.random.once_in(2).into(),
            Some("array") if depth < 4 => {
                (0..self.random.next() % 3).map(|_| self.value(&schema["items"], name, depth + 1)).collect()
            }
            Some("object") => self.object(schema, depth),
            _ => Value::Null,
        }
    }

    fn object(&mut self, schema: &Value, depth: u32) -> Value {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut out = serde_json::Map::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.iter().any(|it| it == name.as_str());
            if depth < 4 && (self.random.once_in(3) || (is_required && !self.random.once_in(10))) {
                out.insert(name.clone(), self.value(schema, name, depth + 1));
            }
        }
        if self.random.once_in(10) {
            out.insert("unknown_member".to_owned(), json!(1));
        }
        out.into()
    }

    /// Makes and sends one request of an operation, and checks its answer.
    fn request(&mut self, method: &str, path: &str, operation: &Value) {
        let (mut target, mut query, mut headers) = (path.to_owned(), Vec::new(), String::new());
        for parameter in operation["parameters"].as_array().cloned().unwrap_or_default() {
            let name = parameter["name"].as_str().unwrap();
            let value = match self.value(&parameter["schema"], name, 0) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match parameter["in"].as_str().unwrap() {
                "path" => target = target.replace(&format!("{{{name}}}"), &encode(&value)),
                "query" if !self.random.once_in(2) || parameter["required"] == true => {
                    query.push(format!("{}={}", encode(name), encode(&value)));
                }
                "header" if self.random.once_in(2) => {
                    let value: String = value.chars().filter(|c| !c.is_control()).collect();
                    // Writing into a String cannot fail.
                    let _ = write!(headers, "{name}: {value}\r\n");
                }
                _ => {}
            }
        }
        if self.random.once_in(20) {
            query.push("unknown=1".to_owned());
        }
        if !query.is_empty() {
            target = format!("{target}?{}", query.join("&"));
        }
        let body = match operation["requestBody"]["content"]["application/json"].get("schema") {
            Some(_) if self.random.once_in(20) => "{broken".to_owned(),
            Some(schema) => self.value(&schema.clone(), "", 0).to_string(),
            None => String::new(),
        };
        if self.random.once_in(3) {
            headers.push_str("accept: text/event-stream\r\n");
        }
        let kind = if self.random.once_in(20) { "text/plain" } else { "application/json" };
        let request = format!(
            "{} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\n{headers}content-length: {}\r\n\r\n{body}",
            method.to_uppercase(),
            body.len()
        );
        let Some(answer) = send(self.socket, &request) else { panic!("no answer to {request}") };
        self.check(operation, &request, &answer);
    }

    fn has_succeeded(&self, id: &str) -> bool {
        self.seen.contains_key(&(id.to_owned(), 200))
    }

    /// True as long as a required operation has not succeeded.
    fn has_missing(&self) -> bool {
        REQUIRED.iter().any(|id| !self.has_succeeded(id))
    }

    fn check(&mut self, operation: &Value, request: &str, answer: &Answer) {
        let Answer { status, kind, body } = answer;
        let id = operation["operationId"].as_str().unwrap().to_owned();
        *self.seen.entry((id, *status)).or_default() += 1;
        assert_ne!(*status, 500, "{request}\n{body}");
        // A path with an empty part is another path.
        if *status == 404 && body.contains("there is no such path") {
            return;
        }
        let response = &operation["responses"][status.to_string()];
        assert!(!response.is_null(), "status {status} is not documented: {request}\n{body}");
        let response = resolve(&self.document, response);
        let content = response["content"].as_object().unwrap();
        let plain = kind.split(';').next().unwrap().trim();
        let media =
            content.get(plain).unwrap_or_else(|| panic!("{kind} is not documented: {request}\n{body}"));
        if plain == "application/json" {
            let value: Value =
                serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {request}\n{body}"));
            let found = validate(&self.document, &media["schema"], &value, "");
            found.unwrap_or_else(|why| panic!("{why}\n{request}\n{body}"));
        }
    }
}

fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Sends a request and reads the answer; of a stream of events only the beginning.
fn send(socket: &Path, request: &str) -> Option<Answer> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let (mut bytes, mut block) = (Vec::new(), [0; 64 * 1024]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        // The OpenAPI document names the type too.
        let is_stream =
            text.split_once("\r\n\r\n").is_some_and(|(head, _)| head.contains("text/event-stream"));
        match if is_stream { 0 } else { stream.read(&mut block).ok()? } {
            0 => break,
            count => bytes.extend_from_slice(&block[..count]),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        kind: header("content-type").unwrap_or_default(),
        body: body.to_owned(),
    })
}

/// Operations of which at least one request must succeed.
const REQUIRED: [&str; 5] = ["listSessions", "show", "capabilities", "openapi", "listPermissions"];
/// On a busy machine few rounds fit into the time: more follow until the required operations have succeeded.
const ROUNDS_MAX: u32 = 200;

/// `ACP_OPENAPI_SECONDS` tells how long, 10 by default; `ACP_TEST_SEED` which requests.
#[test]
fn every_answer_to_a_generated_request_is_documented() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (seconds, seed) = (number("ACP_OPENAPI_SECONDS").unwrap_or(10), number("ACP_TEST_SEED").unwrap_or(1));
    println!("ACP_TEST_SEED={seed} ACP_OPENAPI_SECONDS={seconds}");
    let (house, key) = House::with_approve_all(&[]).with_session();
    let cwd = house.cwd().display().to_string();
    let run = house.prompt(&key, "say hi")[0]["run_id"].as_str().unwrap().to_owned();
    let socket = house.world.path(GATEWAY).join("gateway.sock");
    let text = |text: &str| text.to_owned();
    let known = BTreeMap::from([
        ("Acp-As", vec![key.clone(), text(AGENT)]),
        ("key", vec![key]),
        ("run", vec![run.clone()]),
        ("run_id", vec![run]),
        ("agent", vec![text(AGENT)]),
        ("cwd", vec![cwd.clone()]),
        ("path", vec![format!("{cwd}/none"), cwd]),
        ("state", vec![text("idle"), text("closed")]),
        ("format", vec![text("md"), text("jsonl")]),
        ("kind", vec![text("done"), text("done,permission")]),
        ("text", vec![text("say hi")]),
        ("cursor", vec![text(""), text("czE6NQ")]),
        ("id", vec![text("room")]),
    ]);
    let document = document();
    let paths = document["paths"].as_object().unwrap().clone();
    let mut fuzzer = Fuzzer { document, random: Random(seed), socket: &socket, known, seen: BTreeMap::new() };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < end || (rounds < ROUNDS_MAX && fuzzer.has_missing()) {
        rounds += 1;
        for (path, methods) in &paths {
            for (method, operation) in methods.as_object().unwrap() {
                fuzzer.request(method, path, operation);
            }
        }
        // A closed session tells little: the next rounds get another one.
        let spawned = house.cli(&["sessions", "list"]).ok().json();
        let open = spawned.as_array().unwrap().iter().find(|view| view["state"] == "idle");
        let key = open.map_or_else(|| house.spawn(), |view| view["session_key"].as_str().unwrap().to_owned());
        fuzzer.known.insert("key", vec![key]);
    }
    let requests: u64 = fuzzer.seen.values().sum();
    println!("{requests} requests in {rounds} rounds: {:?}", fuzzer.seen);
    for id in REQUIRED {
        assert!(fuzzer.has_succeeded(id), "{id} never succeeded");
    }
}
