//! Requests of a webhook, with the headers and the signature of Standard Webhooks.

use crate::util::private_file::read_private;
use acp_core::api::WebhookBody;
use acp_core::config::NotifyTarget;
use acp_core::event::EventRow;
use acp_core::event_json::{event_line, wire_type};
use acp_shared::clock::Clock;
use acp_shared::ids::GatewayInstanceId;
use data_encoding::BASE64;
use reqwest::redirect::Policy;
use ring::hmac;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of a secret in the notation of Standard Webhooks; base64 follows.
const SECRET_PREFIX: &str = "whsec_";
/// Bounds of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 4_096;

/// Reason why an event was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebhookError {
    /// The secret cannot be used.
    #[error("secret file {path}: {why}", path = path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The event cannot be written as JSON, or its time as text.
    #[error("event cannot be written: {0}")]
    Event(String),
    /// No answer.
    #[error("no answer: {0}")]
    Transport(String),
    /// The target answered with another status than 2xx.
    #[error("answered with status {0}")]
    Status(u16),
}

/// WebhookSender of requests to one target.
pub(super) struct WebhookSender {
    client: reqwest::Client,
    url: String,
    secret_file: PathBuf,
    instance: GatewayInstanceId,
    clock: Clock,
}

impl WebhookSender {
    /// Creates a sender; reads the secret with each request.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub(super) fn new(
        target: &NotifyTarget,
        instance: GatewayInstanceId,
        clock: Clock,
    ) -> Result<Self, WebhookError> {
        let timeout = Duration::from_millis(target.timeout_ms);
        let builder = reqwest::Client::builder()
            .redirect(Policy::none())
            .connect_timeout(timeout)
            .timeout(timeout)
            .user_agent(concat!("acp-gateway/", env!("CARGO_PKG_VERSION")));
        // A request to this machine must not leave it.
        let builder = if target.is_loopback() { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| transport(&error))?;
        let (url, secret_file) = (target.url.clone(), target.secret_file.clone());
        Ok(Self { client, url, secret_file, instance, clock })
    }

    /// Sends an event once.
    ///
    /// # Errors
    /// The target may not have the event.
    pub(super) async fn send(&self, event_id: u64, event: &EventRow) -> Result<(), WebhookError> {
        let path = self.secret_file.clone();
        let secret = tokio::task::spawn_blocking(move || read_secret(&path)).await;
        let secret = secret.map_err(|error| WebhookError::Event(error.to_string()))??;
        let id = message_id(self.instance, event_id, event);
        let timestamp = (self.clock.now_ms() / 1_000).to_string();
        let body = body(event_id, event)?;
        let signature = sign(&secret, &id, &timestamp, &body);
        let request = self.client.post(&self.url).header("content-type", "application/json");
        let request = request.header("webhook-id", id).header("webhook-timestamp", timestamp);
        let answer = request.header("webhook-signature", signature).body(body).send().await;
        let status = answer.map_err(|error| transport(&error))?.status();
        if status.is_success() { Ok(()) } else { Err(WebhookError::Status(status.as_u16())) }
    }
}

/// Describes an error of the client without the address, which may hold a token.
fn transport(error: &reqwest::Error) -> WebhookError {
    let kind = if error.is_timeout() {
        "timeout"
    } else if error.is_connect() {
        "connection failed"
    } else {
        "request failed"
    };
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    // The error itself names the address; its sources do not.
    let why =
        if std::error::Error::source(error).is_some() { format!("{kind}: {inner}") } else { kind.to_owned() };
    WebhookError::Transport(why)
}

/// Returns the id of a message: the same for each attempt, another one for each event, also after the restore of a backup,
/// which uses the numbers of lost events again.
pub(super) fn message_id(instance: GatewayInstanceId, event_id: u64, event: &EventRow) -> String {
    format!("msg_{instance}_{event_id}_{}", event.created_at_ms)
}

fn body(event_id: u64, event: &EventRow) -> Result<String, WebhookError> {
    let wrong = |error: &dyn std::fmt::Display| WebhookError::Event(error.to_string());
    let at_ms = i64::try_from(event.created_at_ms).map_err(|error| wrong(&error))?;
    let timestamp = jiff::Timestamp::from_millisecond(at_ms).map_err(|error| wrong(&error))?.to_string();
    let data = RawValue::from_string(event_line(event)).map_err(|error| wrong(&error))?;
    let kind = wire_type(event.kind).to_owned();
    serde_json::to_string(&WebhookBody { kind, timestamp, event_id, data }).map_err(|error| wrong(&error))
}

/// Returns the value of the header `webhook-signature`.
pub(super) fn sign(secret: &[u8], id: &str, timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag.as_ref()))
}

/// Reads the secret of a target. Blocks.
pub(super) fn read_secret(path: &Path) -> Result<Vec<u8>, WebhookError> {
    let wrong = |why: String| WebhookError::Secret { path: path.to_owned(), why };
    let text = read_private(path, SECRET_BYTES_MAX as u64 * 2).map_err(&wrong)?;
    let text = text.trim();
    let secret = match text.strip_prefix(SECRET_PREFIX) {
        Some(encoded) => BASE64
            .decode(encoded.as_bytes())
            .map_err(|_| wrong(format!("{SECRET_PREFIX} needs base64 after it")))?,
        None => text.as_bytes().to_vec(),
    };
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Err(wrong(format!("the secret must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")));
    }
    Ok(secret)
}
