//! The demo agent's output: JSON-RPC lines, gathered in a buffer and handed over before any wait.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::{self, BufWriter, StdoutLock, Write};

/// A line of the client.
#[derive(Debug, Deserialize)]
pub(crate) struct Incoming<'a> {
    /// Of a request or an answer; as it came.
    #[serde(borrow, default)]
    pub(crate) id: Option<&'a RawValue>,
    /// Of a request or a notification.
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    /// Of a request or a notification.
    #[serde(borrow, default)]
    pub(crate) params: Option<&'a RawValue>,
    /// Of an answer that is no error.
    #[serde(borrow, default)]
    pub(crate) result: Option<&'a RawValue>,
}

/// Where lines go.
pub(crate) struct Wire {
    out: BufWriter<StdoutLock<'static>>,
}

impl Wire {
    /// Takes standard output.
    pub(crate) fn new() -> Self {
        Self { out: BufWriter::with_capacity(128 * 1024, io::stdout().lock()) }
    }

    /// Hands over what is in the buffer.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Answers a request; `id` is JSON.
    pub(crate) fn result(&mut self, id: &str, result: &Value) -> io::Result<()> {
        write!(self.out, r#"{{"jsonrpc":"2.0","id":{id},"result":"#)?;
        serde_json::to_writer(&mut self.out, result)?;
        self.out.write_all(b"}\n")
    }

    /// Refuses a request; `id` is JSON.
    pub(crate) fn error(&mut self, id: &str, code: i64, message: &str) -> io::Result<()> {
        write!(self.out, r#"{{"jsonrpc":"2.0","id":{id},"error":"#)?;
        serde_json::to_writer(&mut self.out, &json!({"code": code, "message": message}))?;
        self.out.write_all(b"}\n")
    }

    /// Asks the client; `id` is a number.
    pub(crate) fn request(&mut self, id: u64, method: &str, params: &Value) -> io::Result<()> {
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// `session/update`.
    pub(crate) fn update(&mut self, session: &str, update: &Value) -> io::Result<()> {
        let params = json!({"sessionId": session, "update": update});
        self.line(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    /// `session/update` with a piece of text.
    pub(crate) fn chunk(&mut self, session: &str, kind: &str, text: &str) -> io::Result<()> {
        let content = json!({"type": "text", "text": text});
        self.update(session, &json!({"sessionUpdate": kind, "content": content}))
    }

    /// The same for an answer whose text needs no escapes, with a newline at its end: the fast path.
    pub(crate) fn plain_chunk(&mut self, session: &str, text: &[u8]) -> io::Result<()> {
        self.out.write_all(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":""#)?;
        self.out.write_all(session.as_bytes())?;
        self.out.write_all(
            br#"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#,
        )?;
        self.out.write_all(text)?;
        self.out.write_all(b"\\n\"}}}}\n")
    }
}
