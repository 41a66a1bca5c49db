//! Output of the demo agent: buffered JSON-RPC lines, flushed before any wait.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Line from the client.
#[derive(Debug, Deserialize)]
pub struct Incoming<'a> {
    /// Id of a request or a response, as raw JSON.
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    /// Method of a request or a notification.
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    /// Parameters of a request or a notification.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    /// Result of a successful response.
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
}

/// Writer of output lines.
pub struct AcpWriter {
    out: BufWriter<StdoutLock<'static>>,
}

impl AcpWriter {
    /// Locks standard output.
    pub fn stdout() -> Self {
        Self { out: BufWriter::with_capacity(128 * 1024, io::stdout().lock()) }
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Sends a response; `id` is JSON.
    pub fn result(&mut self, id: &str, result: &Value) -> io::Result<()> {
        write!(self.out, r#"{{"jsonrpc":"2.0","id":{id},"result":"#)?;
        serde_json::to_writer(&mut self.out, result)?;
        self.out.write_all(b"}\n")
    }

    /// Sends an error response; `id` is JSON.
    pub fn error(&mut self, id: &str, code: i64, message: &str) -> io::Result<()> {
        write!(self.out, r#"{{"jsonrpc":"2.0","id":{id},"error":"#)?;
        serde_json::to_writer(&mut self.out, &json!({"code": code, "message": message}))?;
        self.out.write_all(b"}\n")
    }

    /// Sends a request to the client.
    pub fn request(&mut self, id: u64, method: &str, params: &Value) -> io::Result<()> {
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// Sends `session/update`.
    pub fn update(&mut self, session: &str, update: &Value) -> io::Result<()> {
        let params = json!({"sessionId": session, "update": update});
        self.line(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    /// Sends `session/update` with a piece of text.
    pub fn chunk(&mut self, session: &str, kind: &str, text: &str) -> io::Result<()> {
        let content = json!({"type": "text", "text": text});
        self.update(session, &json!({"sessionUpdate": kind, "content": content}))
    }

    /// Fast path of `chunk` for answer text that needs no escapes; appends a newline.
    pub fn plain_chunk(&mut self, session: &str, text: &[u8]) -> io::Result<()> {
        self.out.write_all(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":""#)?;
        self.out.write_all(session.as_bytes())?;
        self.out.write_all(
            br#"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#,
        )?;
        self.out.write_all(text)?;
        self.out.write_all(b"\\n\"}}}}\n")
    }
}
