//! Bodies of `/v1/tokens`.

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
    /// Patterns of the agents that it may use; empty: all agents.
    pub agents: Vec<String>,
    /// `valid`, `expired` or `revoked`.
    pub state: String,
    /// Time of creation, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time from which the token is refused; null for never.
    pub expires_at_ms: Option<u64>,
    /// Time of the revocation; null if the token was not revoked.
    pub revoked_at_ms: Option<u64>,
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
