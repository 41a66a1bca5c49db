//! Parser of server-sent events: bytes in, events out. Bounded, and without I/O.
#![deny(clippy::indexing_slicing)]

/// Maximum size of buffered bytes and of one event's data, in bytes: an agent's line of 32 MiB and its
/// envelope.
pub(crate) const EVENT_BYTES_MAX: usize = 80 * 1024 * 1024;

/// Server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Id, if the event has one.
    pub(crate) id: Option<String>,
    /// Name; empty for the default type.
    pub(crate) name: String,
    /// Data lines, joined by newlines.
    pub(crate) data: String,
}

/// Error of a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SseError {
    /// More than [`EVENT_BYTES_MAX`] in one event.
    #[error("an event is larger than {EVENT_BYTES_MAX} bytes")]
    TooLarge,
    /// The data is not UTF-8.
    #[error("an event is not UTF-8")]
    NotText,
}

/// Incremental parser; the stream may be split at any byte.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    buffer: Vec<u8>,
    /// Start of the next line in the buffer.
    start: usize,
    /// Position up to which the buffer was searched for a line end.
    searched: usize,
    event: SseEvent,
    has_data: bool,
}

impl SseParser {
    /// Adds bytes.
    ///
    /// # Errors
    /// [`SseError::TooLarge`]; the stream cannot be read any further.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        if self.buffer.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(SseError::TooLarge);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next complete event. Lines that start with a colon (comments) are skipped.
    ///
    /// # Errors
    /// [`SseError`]; the stream cannot be read any further.
    pub(crate) fn next(&mut self) -> Result<Option<SseEvent>, SseError> {
        while let Some(length) = self.buffer.iter().skip(self.searched).position(|&b| b == b'\n') {
            let end = self.searched + length;
            let start = std::mem::replace(&mut self.start, end + 1);
            self.searched = end + 1;
            let line = self.buffer.get(start..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(event));
                }
                continue;
            }
            let line = std::str::from_utf8(line).map_err(|_| SseError::NotText)?;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    if std::mem::replace(&mut self.has_data, true) {
                        self.event.data.push('\n');
                    }
                    if self.event.data.len() + value.len() > EVENT_BYTES_MAX {
                        return Err(SseError::TooLarge);
                    }
                    self.event.data.push_str(value);
                }
                "id" => self.event.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.event.name),
                // A comment (empty name), `retry`, or a field of a later version.
                _ => {}
            }
        }
        self.searched = self.buffer.len();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use proptest::prelude::*;

    fn parse_all(pieces: &[&[u8]]) -> Vec<SseEvent> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece).unwrap();
            while let Some(event) = parser.next().unwrap() {
                events.push(event);
            }
        }
        events
    }

    fn event(id: Option<&str>, name: &str, data: &str) -> SseEvent {
        SseEvent { id: id.map(str::to_owned), name: name.to_owned(), data: data.to_owned() }
    }

    const STREAM: &[u8] = b":\n\nid: 1\ndata: {\"a\":1}\n\nretry: 5\n\ndata:x\r\ndata: y\r\n\r\nevent: end\ndata: {}\n\nid: 9\ndata: unfinished\n";

    fn expected_events() -> Vec<SseEvent> {
        vec![event(Some("1"), "", "{\"a\":1}"), event(None, "", "x\ny"), event(None, "end", "{}")]
    }

    #[test]
    fn whole_streams_are_taken_apart() {
        assert_eq!(parse_all(&[STREAM]), expected_events());
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(parse_all(&single), expected_events());
    }

    #[test]
    fn invalid_or_oversized_event_is_rejected() {
        let mut parser = SseParser::default();
        parser.push(b"data: \xff\n\n").unwrap();
        assert_eq!(parser.next(), Err(SseError::NotText));
        let mut parser = SseParser::default();
        let block = vec![b'x'; EVENT_BYTES_MAX / 4];
        let pushed: Vec<bool> = (0..5).map(|_| parser.push(&block).is_ok()).collect();
        assert_eq!(pushed, [true, true, true, true, false]);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(cut in 0..STREAM.len(), other in 0..STREAM.len()) {
            let (low, high) = (cut.min(other), cut.max(other));
            prop_assert_eq!(parse_all(&[&STREAM[..low], &STREAM[low..high], &STREAM[high..]]), expected_events());
        }

        #[test]
        fn parser_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = SseParser::default();
            parser.push(&bytes).unwrap();
            while let Ok(Some(_)) = parser.next() {}
        }
    }
}
