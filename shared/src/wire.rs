//! Encoding of messages: bincode inside frames with a big-endian `u32` length. Does no I/O.
//!
//! This is the only module that uses bincode. Every message has a size limit that is checked on the header
//! before anything is allocated, and bytes left over inside a frame are an error. Types that bincode cannot
//! check are not used in messages (see [`crate::protocol`]).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Length of a frame header, in bytes.
pub const HEADER_BYTES: usize = 4;

/// Error of encoding or decoding a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header announces more than the limit.
    #[error("a frame of {claimed} bytes is over the limit of {limit}")]
    TooLarge {
        /// Size according to the header, in bytes.
        claimed: usize,
        /// Maximum size, in bytes.
        limit: usize,
    },
    /// The frame has bytes after its message.
    #[error("{left} bytes remain after the message")]
    Trailing {
        /// Number of bytes left over.
        left: usize,
    },
    /// The frame is not a message of the expected type.
    #[error("the frame is not a message: {what}")]
    Malformed {
        /// Error of the decoder.
        what: String,
    },
    /// The message cannot be encoded.
    #[error("the message cannot be encoded: {what}")]
    Encode {
        /// Error of the encoder.
        what: String,
    },
}

const fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ crate::protocol::FRAME_BYTES_MAX }>()
}

/// Encodes one message without a frame.
///
/// # Errors
/// [`WireError::Encode`] for a message that bincode cannot encode, [`WireError::TooLarge`] for one over
/// `limit`.
#[expect(clippy::disallowed_methods, reason = "the only place that writes bincode")]
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(message, config())
        .map_err(|e| WireError::Encode { what: e.to_string() })?;
    if bytes.len() > limit {
        return Err(WireError::TooLarge { claimed: bytes.len(), limit });
    }
    Ok(bytes)
}

/// Encodes one message without a frame to the front of `buffer`, without allocating.
///
/// # Errors
/// [`WireError::Encode`] for a message that bincode cannot encode, or that does not fit.
#[expect(clippy::disallowed_methods, reason = "the only place that writes bincode")]
pub fn encode_into<'a, T: Serialize>(message: &T, buffer: &'a mut [u8]) -> Result<&'a [u8], WireError> {
    let encoded = bincode::serde::encode_into_slice(message, &mut *buffer, config());
    let length = encoded.map_err(|e| WireError::Encode { what: e.to_string() })?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Decodes one message that fills `bytes` exactly.
///
/// # Errors
/// [`WireError::Malformed`] if the bytes are not such a message, [`WireError::Trailing`] if bytes are left
/// over.
#[expect(clippy::disallowed_methods, reason = "the only place that reads bincode")]
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|e| WireError::Malformed { what: e.to_string() })?;
    match bytes.len() - used {
        0 => Ok(message),
        left => Err(WireError::Trailing { left }),
    }
}

/// Splits a byte stream into frames and decodes their messages. Input goes to `push`, messages come from
/// `pop`.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Creates a decoder that refuses frames of more than `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), start: 0 }
    }

    /// True if no bytes are buffered, neither complete nor partial frames.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.buffer.len() == self.start
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`WireError`] for an oversized frame or one that is not a `T`; the stream cannot be used after that.
    pub fn pop<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let pending = self.buffer.get(self.start..).unwrap_or_default();
        let Some((header, rest)) = pending.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let claimed = u32::from_be_bytes(*header) as usize;
        if claimed > self.limit {
            return Err(WireError::TooLarge { claimed, limit: self.limit });
        }
        let Some(frame) = rest.get(..claimed) else { return Ok(None) };
        let message = decode(frame)?;
        self.start += HEADER_BYTES + claimed;
        Ok(Some(message))
    }
}

/// Encodes one message with its frame.
///
/// # Errors
/// As [`encode`].
pub fn encode_frame<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    let body = encode(message, limit)?;
    let length = u32::try_from(body.len())
        .map_err(|_| WireError::TooLarge { claimed: body.len(), limit: u32::MAX as usize })?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}
