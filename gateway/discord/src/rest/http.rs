//! One HTTP request and its response. Reports what is known of the outcome, and makes no decisions.

use super::settings::RestSettings;
use crate::core::endpoint::{HttpMethod, Route};
use crate::core::headers::{self, ResponseMeta};
use crate::core::message::{FileUpload, RequestPayload};
use acp_shared::redact::Secret;
use bytes::Bytes;
use parking_lot::RwLock;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::multipart::{Form, Part};
use reqwest::{Client, Method, RequestBuilder, Response};
use std::time::Duration;

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why the client cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientSetupError {
    /// The token cannot stand in a header.
    #[error(
        "the bot's token is empty or contains invalid characters: get a new one from the developer portal"
    )]
    Token,
    /// The HTTP client could not be created, for this reason.
    #[error("cannot create the HTTP client: {0}")]
    Client(String),
}

/// Outcome of an HTTP exchange.
#[derive(Debug)]
pub(super) enum HttpOutcome {
    /// Discord responded.
    Response { meta: ResponseMeta, body: Bytes },
    /// The request certainly did not reach Discord.
    NotSent { why: String },
    /// The outcome is unknown: the request may have reached Discord.
    Lost { why: String },
}

/// HTTP connection to Discord.
pub(super) struct HttpClient {
    client: Client,
    api: String,
    token: RwLock<HeaderValue>,
    max_response_bytes: usize,
}

fn authorization(token: &Secret) -> Result<HeaderValue, ClientSetupError> {
    let text = token.expose().trim();
    let fits = |byte: u8| byte.is_ascii_graphic();
    if text.is_empty() || !text.bytes().all(fits) {
        return Err(ClientSetupError::Token);
    }
    let mut value = HeaderValue::try_from(format!("Bot {text}")).map_err(|_| ClientSetupError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

impl HttpClient {
    pub(super) fn new(settings: &RestSettings) -> Result<Self, ClientSetupError> {
        let token = authorization(&settings.token)?;
        // No proxy from the environment: the base URL is the only destination. No hidden retries or
        // redirects, since each request must be counted.
        let client = Client::builder()
            .user_agent(crate::USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(settings.request_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .build()
            .map_err(|error| ClientSetupError::Client(cause(error)))?;
        let api = settings.base.join("/api/v10");
        Ok(Self { client, api, token: RwLock::new(token), max_response_bytes: settings.max_response_bytes })
    }

    pub(super) fn set_token(&self, token: &Secret) -> Result<(), ClientSetupError> {
        let value = authorization(token)?;
        *self.token.write() = value;
        Ok(())
    }

    fn request(&self, route: &Route, payload: Option<&RequestPayload>) -> Result<RequestBuilder, String> {
        let method = match route.method {
            HttpMethod::Get => Method::GET,
            HttpMethod::Post => Method::POST,
            HttpMethod::Put => Method::PUT,
            HttpMethod::Patch => Method::PATCH,
            HttpMethod::Delete => Method::DELETE,
        };
        let mut request = self.client.request(method, format!("{}{}", self.api, route.path));
        if route.is_bot() {
            let token = self.token.read().clone();
            request = request.header(AUTHORIZATION, token);
        }
        Ok(match payload {
            // Discord requires a Content-Length for methods that may have a body.
            None if route.method == HttpMethod::Get || route.method == HttpMethod::Delete => request,
            None => request.body(Bytes::new()),
            Some(payload) if payload.files.is_empty() => request.json(&payload.json),
            Some(payload) => request.multipart(form(payload)?),
        })
    }

    /// Sends a request and waits for its response, at most this long.
    pub(super) async fn send(
        &self,
        route: &Route,
        payload: Option<&RequestPayload>,
        timeout: Duration,
    ) -> HttpOutcome {
        let request = match self.request(route, payload) {
            Ok(request) => request.timeout(timeout),
            Err(why) => return HttpOutcome::NotSent { why },
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() || error.is_builder() => {
                return HttpOutcome::NotSent { why: cause(error) };
            }
            Err(error) => return HttpOutcome::Lost { why: cause(error) },
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        match self.body(response).await {
            Ok(body) => HttpOutcome::Response { meta: read_meta(status, &headers, &body), body },
            // A 4xx response is a refusal even without its body. Others are unclear without it.
            Err(_) if (400..500).contains(&status) => {
                HttpOutcome::Response { meta: read_meta(status, &headers, b""), body: Bytes::new() }
            }
            Err(why) => HttpOutcome::Lost { why: format!("status {status}, and then {why}") },
        }
    }

    async fn body(&self, mut response: Response) -> Result<Bytes, String> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > self.max_response_bytes => {
                    return Err(format!("the response has more than {} bytes", self.max_response_bytes));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body.into()),
                Err(error) => return Err(cause(error)),
            }
        }
    }
}

fn read_meta(status: u16, headers: &HeaderMap, body: &[u8]) -> ResponseMeta {
    headers::read_meta(status, |name| headers.get(name).and_then(|value| value.to_str().ok()), body)
}

fn form(payload: &RequestPayload) -> Result<Form, String> {
    let json = Part::text(payload.json.to_string()).mime_str("application/json").map_err(cause)?;
    let part = |file: &FileUpload| {
        let length = u64::try_from(file.bytes.len()).unwrap_or(u64::MAX);
        let part = Part::stream_with_length(file.bytes.clone(), length).file_name(file.name.clone());
        part.mime_str(&file.content_type).map_err(cause)
    };
    let mut form = Form::new().part("payload_json", json);
    for (id, file) in payload.files.iter().enumerate() {
        form = form.part(format!("files[{id}]"), part(file)?);
    }
    Ok(form)
}

/// Text of an error and its innermost cause, without the address, which may hold a token.
fn cause(error: reqwest::Error) -> String {
    let timed_out = error.is_timeout();
    let error = error.without_url();
    let mut last: &dyn std::error::Error = &error;
    while let Some(source) = last.source() {
        last = source;
    }
    if timed_out { format!("timed out ({last})") } else { last.to_string() }
}
