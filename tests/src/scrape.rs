//! A gateway's metrics, as a collector reads them.

use crate::wait::SOON;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// One response of `GET /metrics`.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// The text.
    pub text: String,
    /// Each series with its value.
    pub series: BTreeMap<String, f64>,
    /// The names of the metrics in `# TYPE` lines.
    pub names: BTreeSet<String>,
}

impl Scrape {
    /// Reads the exposition format.
    ///
    /// # Panics
    /// When a line cannot be parsed, or the end marker is missing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self { text: text.to_owned(), series: BTreeMap::new(), names: BTreeSet::new() };
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let name = declared.split(' ').next().unwrap_or_default();
                found.names.insert(name.to_owned());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line:?}"));
                let value = value.parse().unwrap_or_else(|e| panic!("{e}: {line:?}"));
                found.series.insert(name.to_owned(), value);
            }
        }
        assert!(text.ends_with("# EOF\n"), "incomplete: {text}");
        found
    }

    /// Scrapes a gateway at its socket.
    ///
    /// # Panics
    /// When the response is not 200 with OpenMetrics text.
    #[must_use]
    pub fn fetch(socket: &Path) -> Self {
        let (head, body) = http(socket, "GET", "/metrics", "");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text"), "{head}");
        Self::parse(&body)
    }

    /// The value of a series; 0 if it does not exist yet.
    #[must_use]
    pub fn value(&self, series: &str) -> f64 {
        self.series.get(series).copied().unwrap_or(0.0)
    }
}

/// Returns the JSON response of the local API to a `GET` request.
///
/// # Panics
/// When the response is not JSON.
#[must_use]
pub fn get(socket: &Path, path: &str) -> Value {
    let (head, answer) = http(socket, "GET", path, "");
    serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {head}\n{answer}"))
}

/// Sends a JSON body to the local API and returns the JSON response.
///
/// # Panics
/// When the response is not JSON.
#[must_use]
pub fn post(socket: &Path, path: &str, body: &Value) -> Value {
    let (head, answer) = http(socket, "POST", path, &body.to_string());
    serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {head}\n{answer}"))
}

/// Posts a person's message in a conversation of the console, and returns the JSON response.
///
/// # Panics
/// When the response is not JSON.
#[must_use]
pub fn say(socket: &Path, conversation: &str, id: &str, text: &str) -> Value {
    let path = format!("/v1/console/conversations/{conversation}/messages");
    post(socket, &path, &json!({"text": text, "message_id": id}))
}

fn http(socket: &Path, method: &str, path: &str, body: &str) -> (String, String) {
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut answer = String::new();
    let asked = stream
        .set_read_timeout(Some(SOON))
        .and_then(|()| stream.write_all(request.as_bytes()))
        .and_then(|()| stream.read_to_string(&mut answer));
    asked.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
    let (head, body) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP response: {answer:?}"));
    (head.to_owned(), body.to_owned())
}
