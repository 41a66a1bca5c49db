//! Gate of listeners that web pages and other machines can reach: `Host`, `Origin`, and a token or the header of a
//! trusted proxy. Unknown hosts, pages and tokens are refused for every method.

use crate::api::access;
use crate::api::extract::ApiError;
use crate::api::http::{Admission, Gate};
use crate::api::tokens::{TokenLease, TokenRegistry};
use crate::config::LiveConfig;
use crate::metrics::Metrics;
use acp_core::bearer::{self, BearerToken};
use acp_core::config::NorthboundConfig;
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_core::web_request::{OriginVerdict, is_allowed_host, judge_origin};
use acp_shared::codes::Code;
use acp_shared::log_limit::RefusalLog;
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;

/// Headers that pages of allowed origins may send.
const PAGE_HEADERS: &str = "authorization, content-type, accept, idempotency-key, last-event-id, acp-connection-id, \
                            acp-session-id, acp-protocol-version";
/// Methods that these pages may use.
const PAGE_METHODS: &str = "GET, POST, PATCH, DELETE";
/// Response headers that these pages may read.
const EXPOSED_HEADERS: &str = "acp-connection-id, acp-session-id, next-cursor";
/// Time for which a browser remembers this, in seconds.
const PREFLIGHT_S: &str = "600";
/// Maximum length of the name that a proxy gives, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// How a listener identifies senders.
#[derive(Clone)]
pub(super) enum Identification {
    /// By their tokens; true for a peer on this machine.
    Token(TokenRegistry, bool),
    /// By a header of the trusted proxy at the other end.
    Proxy,
    /// Not at all: the gateway stands by, and tells every sender the same.
    Nobody,
}

/// Gate of one connection.
pub(super) struct WebGate {
    /// Source of allowed hosts and origins.
    pub(super) live: LiveConfig,
    /// How senders are identified.
    pub(super) identification: Identification,
    /// Address at which the connection arrived.
    pub(super) bound: Option<SocketAddr>,
    /// Name of the listener in metrics and logs.
    pub(super) listener: &'static str,
    /// Peer, for logs.
    pub(super) peer: String,
    /// Counts refusals.
    pub(super) metrics: Metrics,
    /// Limits the lines about refusals.
    pub(super) log: RefusalLog,
}

/// Reason why a request has no valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenFault {
    /// The request has none.
    Missing,
    /// The token is malformed, unknown, expired or revoked.
    Invalid,
    /// The token was revoked, or expired, while the request was handled.
    Revoked,
    /// The proxy names no person.
    Nameless,
    /// The one-time code is unknown, used or too old.
    Code,
}

impl TokenFault {
    const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "no_token",
            Self::Invalid => "bad_token",
            Self::Revoked => "revoked_token",
            Self::Nameless => "no_name",
            Self::Code => "bad_code",
        }
    }
}

impl Gate for WebGate {
    fn admit(&self, request: &mut Request) -> Admission {
        let loaded = self.live.now();
        let config = &loaded.config.northbound;
        let Some(host) =
            host_of(request).filter(|host| is_allowed_host(host, self.bound, &config.allowed_hosts))
        else {
            return self.refuse("foreign_host", None, forbidden("HOST_NOT_ALLOWED", FOREIGN_HOST));
        };
        let origin = request.headers().get(header::ORIGIN).cloned();
        let origin = match self.judge(origin, &host, config) {
            Ok(origin) => origin,
            Err(()) => {
                return self.refuse("foreign_origin", None, forbidden("ORIGIN_NOT_ALLOWED", FOREIGN_ORIGIN));
            }
        };
        if origin.is_some() && is_preflight(request) {
            return Admission { outcome: Err(Box::new(preflight())), origin };
        }
        let identified = match &self.identification {
            Identification::Token(tokens, is_local) => identify(request.headers_mut(), tokens, *is_local),
            Identification::Proxy => named(request.headers_mut(), config),
            Identification::Nobody => return Admission { outcome: Ok(None), origin },
        };
        match identified {
            Ok((principal, lease)) => {
                request.extensions_mut().insert(principal);
                Admission { outcome: Ok(lease), origin }
            }
            Err(_) if access::is_open(request) => Admission { outcome: Ok(None), origin },
            Err(fault) => self.refuse(fault.reason(), origin, unauthorized(fault)),
        }
    }
}

const FOREIGN_HOST: &str = "the request names a host that is not allowed; use the address of the gateway, or add the host to \
                            northbound.allowed_hosts";
const FOREIGN_ORIGIN: &str =
    "pages of this origin may not use the gateway; add it to northbound.allowed_origins";

impl WebGate {
    /// Returns the origin if its page may read the response.
    fn judge(
        &self,
        origin: Option<HeaderValue>,
        host: &str,
        config: &NorthboundConfig,
    ) -> Result<Option<HeaderValue>, ()> {
        // A header that is not text is foreign.
        let text = origin.as_ref().map(|origin| origin.to_str().unwrap_or_default());
        match judge_origin(text, host, &config.allowed_origins) {
            OriginVerdict::Own => Ok(None),
            OriginVerdict::Allowed => Ok(origin),
            OriginVerdict::Foreign => Err(()),
        }
    }

    fn refuse(&self, reason: &'static str, origin: Option<HeaderValue>, response: Response) -> Admission {
        self.metrics.api_refused(self.listener, reason);
        if self.log.may_log(rustix::process::geteuid().as_raw(), reason) {
            tracing::warn!(listener = self.listener, peer = self.peer, reason, "request refused");
        }
        Admission { outcome: Err(Box::new(response)), origin }
    }
}

/// Returns the only host that the request names: the authority of HTTP/2 or of an absolute address, and the header.
fn host_of(request: &Request) -> Option<String> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let mut headers = request.headers().get_all(header::HOST).iter();
    let named = match headers.next() {
        Some(value) => Some(value.to_str().ok()?.to_owned()),
        None => None,
    };
    if headers.next().is_some() {
        return None;
    }
    match (authority, named) {
        (Some(authority), Some(named)) if !authority.eq_ignore_ascii_case(&named) => None,
        (authority, named) => authority.or(named),
    }
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, PAGE_METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, PAGE_HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_S),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Tells a browser that a page of this origin may read the response.
pub(super) fn allow_reading(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

type Identified = Result<(Principal, Option<TokenLease>), TokenFault>;

/// Finds the principal of the request's token, and removes the token from the headers.
fn identify(headers: &mut HeaderMap, tokens: &TokenRegistry, is_local: bool) -> Identified {
    let token = take_token(headers)?;
    let (principal, lease) = tokens.find(&token, is_local).ok_or(TokenFault::Invalid)?;
    Ok((principal, Some(lease)))
}

/// Removes the token from the headers: of `Authorization`, else of the subprotocols that a WebSocket client offers.
fn take_token(headers: &mut HeaderMap) -> Result<BearerToken, TokenFault> {
    let only = |headers: &HeaderMap, name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().cloned();
        (first, values.next().is_some())
    };
    let (authorization, is_repeated) = only(headers, header::AUTHORIZATION);
    if let Some(value) = authorization {
        headers.remove(header::AUTHORIZATION);
        let token = value.to_str().ok().and_then(bearer::of_authorization);
        return token.filter(|_| !is_repeated).ok_or(TokenFault::Invalid);
    }
    let is_websocket =
        headers.get(header::UPGRADE).is_some_and(|kind| kind.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !is_websocket && !headers.contains_key(header::SEC_WEBSOCKET_KEY) {
        return Err(TokenFault::Missing);
    }
    let offered =
        headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.collect::<Vec<_>>().join(", ");
    let Some((rest, token)) = bearer::of_subprotocols(&offered) else { return Err(TokenFault::Missing) };
    // The rest consists of parts of a valid header.
    if let Ok(rest) = HeaderValue::from_str(&rest) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    }
    Ok(token)
}

/// Finds the person whom the proxy names.
fn named(headers: &mut HeaderMap, config: &NorthboundConfig) -> Identified {
    let mut values = headers.get_all(config.proxy.header.as_str()).iter();
    let name =
        values.next().and_then(|value| value.to_str().ok()).map(str::trim).unwrap_or_default().to_owned();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || values.next().is_some() {
        return Err(TokenFault::Nameless);
    }
    headers.remove(config.proxy.header.as_str());
    Ok((Principal::of_proxy_user(name, config.proxy.scope), None))
}

/// Response to a request whose sender is not identified.
pub(super) fn unauthorized(fault: TokenFault) -> Response {
    let (challenge, detail, text) = match fault {
        TokenFault::Missing => (
            "Bearer realm=\"acp-gateway\"",
            "TOKEN_REQUIRED",
            "a token is required: `acp-gateway token add NAME --scope SCOPE` prints one; send it as `Authorization: \
             Bearer TOKEN`",
        ),
        TokenFault::Invalid | TokenFault::Revoked => (
            "Bearer realm=\"acp-gateway\", error=\"invalid_token\"",
            "TOKEN_INVALID",
            "the token is unknown, expired or revoked: `acp-gateway token list` shows the valid ones",
        ),
        TokenFault::Nameless => (
            "Bearer realm=\"acp-gateway\"",
            "NAME_REQUIRED",
            "the proxy names no person: it must set the header northbound.proxy.header once",
        ),
        TokenFault::Code => (
            "Bearer realm=\"acp-gateway\"",
            "CODE_INVALID",
            "the code of this link is unknown, used or older than 5 minutes: `acp-gateway console` prints a new link",
        ),
    };
    let failure = Failure::new(Code::PermissionDenied, text).detail(detail).origin("gateway");
    let error = ApiError::from(failure).status(StatusCode::UNAUTHORIZED);
    ([(header::WWW_AUTHENTICATE, challenge)], error).into_response()
}

fn forbidden(detail: &str, text: &str) -> Response {
    ApiError::from(Failure::new(Code::PermissionDenied, text).detail(detail).origin("gateway"))
        .into_response()
}
