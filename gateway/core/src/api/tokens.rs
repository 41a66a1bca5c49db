//! Bodies of `/v1/tokens`, and of the sign-in at the console.

use crate::principal::Scope;
use acp_shared::ids::TokenId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    /// Name of the token: author of its prompts and answers.
    pub name: String,
    /// What its holder may do.
    pub scope: Scope,
    /// Patterns of the agents that it may use; empty or absent: all agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Seconds until it is refused; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Id of the token.
    #[schema(value_type = String)]
    pub token_id: TokenId,
    /// Name of the token.
    pub name: String,
    /// What its holder may do.
    pub scope: Scope,
    /// Patterns of the permitted agents; empty: all agents.
    pub agents: Vec<String>,
    /// `valid`, `expired` or `revoked`.
    pub state: String,
    /// Time of creation, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time from which the token is refused; null for never.
    pub expires_at_ms: Option<u64>,
    /// Time of the revocation; null if the token was not revoked.
    pub revoked_at_ms: Option<u64>,
    /// True for a sign-in of the console, which ends with `acp-gateway console`; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub console: bool,
}

/// Response to [`TokenBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreatedView {
    /// The token. It is shown this once and stored nowhere.
    pub token: String,
    /// Description of the token.
    #[serde(flatten)]
    pub view: TokenView,
}

/// `POST /v1/login`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// One-time code of `acp-gateway console`.
    pub code: String,
}

/// Response to [`LoginBody`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginView {
    /// Token of the sign-in, for `Authorization: Bearer`.
    pub token: String,
    /// Its holder.
    #[serde(flatten)]
    pub identity: IdentityView,
}

/// `GET /v1/whoami`: who sends the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdentityView {
    /// Name: author of prompts and answers.
    pub name: String,
    /// Scopes of the sender.
    pub scopes: Vec<Scope>,
    /// Patterns of the permitted agents; empty: all agents.
    pub agents: Vec<String>,
    /// Time from which its token is refused; null for never.
    pub expires_at_ms: Option<u64>,
    /// True for a sign-in of `acp-gateway console`, which may list and revoke tokens.
    pub console: bool,
}

/// `POST /v1/console/open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleBody {
    /// Loopback address and port of the listener; absent takes one of the configuration, or a free port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Scope of the console.
    pub scope: Scope,
}

/// First event of the response to [`ConsoleBody`].
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct ConsoleOpenedView {
    /// Address of the console.
    pub url: String,
    /// One-time code, for the fragment of the address.
    pub code: String,
    /// Time from which the code is refused, milliseconds since the Unix epoch.
    pub code_expires_at_ms: u64,
}
