//! A minimal HTTP client: one connection per request, and no headers other than the given ones.

use crate::wait::SOON;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// Headers in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// The body as JSON; null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// A header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Sends one request over its own connection.
///
/// # Errors
/// When the connection ends without a complete response.
pub fn http(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let _ = write!(head, "content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer)
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "incomplete HTTP response"))
}

fn parse(answer: &[u8]) -> Option<HttpAnswer> {
    const BLANK: &[u8] = b"\r\n\r\n";
    let end = answer.windows(BLANK.len()).position(|window| window == BLANK)?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(HttpAnswer { status, headers, body: answer[end + BLANK.len()..].to_vec() })
}
