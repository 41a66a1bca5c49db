//! Position in the journal of a session, as an opaque text.

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

/// Cursor of `sessions watch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchCursor {
    /// Session key.
    pub session: String,
    /// Number of the last journal row with all lines printed.
    pub seq: u64,
    /// Number of printed lines of the next row.
    pub part: usize,
}

impl WatchCursor {
    /// Returns the text.
    pub fn encode(&self) -> String {
        let position = match self.part {
            0 => json!([self.session, self.seq]),
            part => json!([self.session, self.seq, part]),
        };
        BASE64URL_NOPAD.encode(position.to_string().as_bytes())
    }

    /// Parses a text of [`WatchCursor::encode`].
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let position: Vec<Value> = serde_json::from_slice(&bytes).ok()?;
        let (session, seq, part) = match position.as_slice() {
            [session, seq] => (session, seq, 0),
            [session, seq, part] => (session, seq, part.as_u64()?),
            _ => return None,
        };
        let part = usize::try_from(part).ok()?;
        Some(Self { session: session.as_str()?.to_owned(), seq: seq.as_u64()?, part })
    }
}
