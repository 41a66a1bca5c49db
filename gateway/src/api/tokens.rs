//! Tokens of the API: the valid ones in memory, and `/v1/tokens`. A change is committed first; then it holds for the next
//! request, and a revoked token's running requests end. Sign-ins of the console are in memory only.

use crate::api::extract::{ApiError, Caller, IdempotencyKeyHeader, Json, JsonBody};
use crate::api::sign_ins::SignIns;
use crate::api::{Api, no_such_method};
use crate::util::random;
use acp_core::api::{TokenBody, TokenCreatedView, TokenView};
use acp_core::bearer::{BearerToken, SECRET_BYTES, TokenDigest};
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, TokenId};
use acp_store::tokens::{self, AddedToken, TokenRow};
use acp_store::{Store, StoreError};
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Maximum length of a token's name, in characters.
const NAME_CHARS_MAX: usize = 100;
/// Maximum number of patterns of a token.
const PATTERNS_MAX: usize = 64;
/// Maximum time until a token expires, in seconds: ten years.
const EXPIRES_S_MAX: u64 = 10 * 365 * 86_400;

/// A valid token.
struct LiveToken {
    row: TokenRow,
    /// Cancelled by the revocation.
    revoked: CancellationToken,
}

/// All valid tokens, by digest. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TokenRegistry {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    clock: Clock,
    live: RwLock<HashMap<TokenDigest, LiveToken>>,
    sign_ins: SignIns,
    /// Keeps the order of changes in memory that of their commits.
    change: Mutex<()>,
}

/// Validity of the token of a request.
#[derive(Debug, Clone)]
pub(super) struct TokenLease {
    /// The token.
    pub(super) token: TokenDigest,
    /// Cancelled when the token is revoked.
    pub(super) revoked: CancellationToken,
    /// Remaining validity; `None` without an end.
    pub(super) expires_in: Option<Duration>,
}

impl TokenLease {
    /// Waits until the token is revoked or expires.
    pub(super) async fn ended(self) {
        let expired = async {
            match self.expires_in {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.revoked.cancelled() => {}
            () = expired => {}
        }
    }
}

impl TokenRegistry {
    /// Reads the tokens of a store.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn open(store: Store) -> Result<Self, StoreError> {
        let rows = store.tokens().await?.into_iter().filter(|row| row.revoked_at_ms.is_none());
        let live =
            rows.map(|row| (row.digest, LiveToken { row, revoked: CancellationToken::new() })).collect();
        let clock = store.clock();
        let (live, sign_ins, change) = (RwLock::new(live), SignIns::default(), Mutex::default());
        Ok(Self { inner: Arc::new(Inner { store, clock, live, sign_ins, change }) })
    }

    /// Sign-ins of the console.
    pub(super) fn sign_ins(&self) -> &SignIns {
        &self.inner.sign_ins
    }

    /// Time, in milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        self.inner.clock.wall_ms()
    }

    /// Creates a random token.
    ///
    /// # Errors
    /// `RUNTIME` without random bytes.
    pub(super) fn random(&self) -> Result<BearerToken, ApiError> {
        random::secret::<SECRET_BYTES>().map(BearerToken::new).map_err(|error| {
            ApiError::of(Code::Runtime, format!("reading random bytes from /dev/urandom failed: {error}"))
        })
    }

    /// Exchanges a code of the console for a token. `None` if the code is not valid.
    ///
    /// # Errors
    /// As [`TokenRegistry::random`].
    pub(super) fn log_in(
        &self,
        code: &str,
    ) -> Result<Option<(BearerToken, Principal, TokenLease)>, ApiError> {
        let Some(code) = BearerToken::parse(code) else { return Ok(None) };
        let token = self.random()?;
        if !self.inner.sign_ins.log_in(&code, &token, self.now_ms()) {
            return Ok(None);
        }
        Ok(self.find(&token, true).map(|(principal, lease)| (token, principal, lease)))
    }

    /// Returns the principal of a valid token.
    pub(super) fn find(&self, token: &BearerToken, is_local: bool) -> Option<(Principal, TokenLease)> {
        let token = token.digest();
        if let Some(found) = self.inner.sign_ins.find(token, self.now_ms(), is_local) {
            return Some(found);
        }
        let live = self.inner.live.read();
        let LiveToken { row, revoked } = live.get(&token)?;
        let left_ms = match row.expires_at_ms {
            Some(at_ms) => Some(at_ms.checked_sub(self.inner.clock.wall_ms()).filter(|left| *left > 0)?),
            None => None,
        };
        let principal = Principal {
            id: format!("token:{}", row.token_id),
            name: row.name.clone(),
            scope: row.scope,
            local: is_local,
            agents: row.agents.clone(),
            acts_for: None,
        };
        let expires_in = left_ms.map(Duration::from_millis);
        let lease = TokenLease { token, revoked: revoked.clone(), expires_in };
        Some((principal, lease))
    }

    async fn add(&self, body: TokenBody, key: IdempotencyKey) -> Result<TokenCreatedView, ApiError> {
        check(&body)?;
        let token = self.random()?;
        let now_ms = self.inner.clock.wall_ms();
        let new = TokenRow {
            token_id: TokenId::mint(),
            name: body.name,
            digest: token.digest(),
            scope: body.scope,
            agents: body.agents,
            created_at_ms: now_ms,
            expires_at_ms: body.expires_s.map(|seconds| now_ms + seconds * 1_000),
            revoked_at_ms: None,
        };
        let name = new.name.clone();
        let _order = self.inner.change.lock().await;
        let added = self.inner.store.write("token_add", move |tx| tokens::add(tx, &new, &key)).await;
        let AddedToken::Added(row) = added.map_err(Failure::from)? else {
            let text = format!("a valid token is named {name:?}: choose another name, or revoke it first");
            return Err(ApiError::of(Code::Usage, text));
        };
        let view = self.view(&row);
        let mut live = self.inner.live.write();
        live.retain(|_, known| known.row.token_id != row.token_id);
        live.insert(row.digest, LiveToken { row, revoked: CancellationToken::new() });
        Ok(TokenCreatedView { token: token.show(), view })
    }

    async fn revoke(&self, which: String) -> Result<TokenView, ApiError> {
        if let Some(view) = self.inner.sign_ins.revoke(&which, self.now_ms()) {
            tracing::info!(token_id = which, name = view.name, "console sign-in revoked");
            return Ok(view);
        }
        let _order = self.inner.change.lock().await;
        let name = which.clone();
        let revoked = self.inner.store.write("token_revoke", move |tx| tokens::revoke(tx, &which)).await;
        let Some(row) = revoked.map_err(Failure::from)? else {
            let text = format!("no valid token is named {name:?}: `acp-gateway token list` shows them");
            return Err(ApiError::usage(text).status(StatusCode::NOT_FOUND));
        };
        if let Some(known) = self.inner.live.write().remove(&row.digest) {
            known.revoked.cancel();
        }
        tracing::info!(token_id = %row.token_id, name = row.name, "token revoked");
        Ok(self.view(&row))
    }

    fn view(&self, row: &TokenRow) -> TokenView {
        let is_expired = row.expires_at_ms.is_some_and(|at_ms| at_ms <= self.inner.clock.wall_ms());
        let state = match row.revoked_at_ms {
            Some(_) => "revoked",
            None if is_expired => "expired",
            None => "valid",
        };
        TokenView {
            token_id: row.token_id,
            name: row.name.clone(),
            scope: row.scope,
            agents: row.agents.clone(),
            state: state.to_owned(),
            created_at_ms: row.created_at_ms,
            expires_at_ms: row.expires_at_ms,
            revoked_at_ms: row.revoked_at_ms,
            console: false,
        }
    }
}

fn check(body: &TokenBody) -> Result<(), ApiError> {
    let is_line = |text: &str| {
        !text.trim().is_empty()
            && text.chars().count() <= NAME_CHARS_MAX
            && !text.chars().any(char::is_control)
    };
    if !is_line(&body.name) {
        let text = format!("the name of a token must have 1 to {NAME_CHARS_MAX} characters on one line");
        return Err(ApiError::usage(text));
    }
    if body.agents.len() > PATTERNS_MAX || !body.agents.iter().all(|pattern| is_line(pattern)) {
        let text = format!("agents must be at most {PATTERNS_MAX} names or patterns such as qwen*");
        return Err(ApiError::usage(text));
    }
    if body.expires_s.is_some_and(|seconds| !(1..=EXPIRES_S_MAX).contains(&seconds)) {
        return Err(ApiError::usage("expires_s must be at least 1 and at most ten years"));
    }
    Ok(())
}

/// Router of `/v1/tokens`, for local users only.
pub(crate) fn router(api: Api, tokens: TokenRegistry) -> Router {
    Router::new()
        .route("/v1/tokens", get(list).post(add))
        .route("/v1/tokens/{token}", delete(revoke))
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(Extension(tokens))
        .with_state(api)
}

/// Tokens are managed on this machine: a token that leaked must not create others that outlive it.
pub(super) fn require_local_user(caller: &Principal) -> Result<(), ApiError> {
    if caller.is_local_user() { Ok(()) } else { Err(local_only()) }
}

/// A console that a local user opened shows and revokes tokens, and creates none.
fn require_local_user_or_console(caller: &Principal) -> Result<(), ApiError> {
    if caller.is_local_user() || caller.is_console() { Ok(()) } else { Err(local_only()) }
}

fn local_only() -> ApiError {
    let text =
        "tokens are managed on the gateway's machine: run `acp-gateway token` or `acp-gateway console` there";
    ApiError::from(Failure::new(Code::PermissionDenied, text).detail("LOCAL_ONLY").origin("gateway"))
}

async fn list(
    Extension(tokens): Extension<TokenRegistry>,
    Caller(caller): Caller,
) -> Result<Json<Vec<TokenView>>, ApiError> {
    require_local_user_or_console(&caller)?;
    let rows = tokens.inner.store.tokens().await.map_err(Failure::from)?;
    let mut views = tokens.inner.sign_ins.views(tokens.now_ms());
    views.extend(rows.iter().map(|row| tokens.view(row)));
    Ok(Json(views))
}

async fn add(
    Extension(tokens): Extension<TokenRegistry>,
    Caller(caller): Caller,
    IdempotencyKeyHeader(key): IdempotencyKeyHeader,
    JsonBody(body): JsonBody<TokenBody>,
) -> Result<Json<TokenCreatedView>, ApiError> {
    require_local_user(&caller)?;
    Ok(Json(tokens.add(body, key).await?))
}

async fn revoke(
    Extension(tokens): Extension<TokenRegistry>,
    Caller(caller): Caller,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<TokenView>, ApiError> {
    require_local_user_or_console(&caller)?;
    let Path(which) = path.map_err(|error| ApiError::usage(error.body_text()))?;
    Ok(Json(tokens.revoke(which).await?))
}
