//! `sessions label | release`.

use crate::api::client::{GatewayClient, encode};
use crate::cli::IdempotencyArgs;
use crate::cli::output::{CliResult, Out, name};
use acp_core::api::{ReleaseBody, SessionPatch};
use acp_core::request::SessionStatus;
use acp_shared::ids::SessionKey;

/// `sessions label`
pub(crate) async fn label(
    client: &GatewayClient,
    session: &SessionKey,
    label: Option<String>,
    once: &IdempotencyArgs,
    out: &mut Out,
) -> CliResult {
    let path = format!("/v1/sessions/{}", encode(session.as_str()));
    let body = SessionPatch { label: Some(label) };
    let now: SessionStatus = client.patch(&path, &body, &once.key()).await?;
    out.show(&now, |now| match body.label.flatten() {
        Some(label) => format!("{} has the label {}.", now.session_key, name(&label)),
        None => format!("{} has no label.", now.session_key),
    })
}

/// `sessions release`
pub(crate) async fn release(
    client: &GatewayClient,
    session: &SessionKey,
    once: &IdempotencyArgs,
    out: &mut Out,
) -> CliResult {
    let path = format!("/v1/sessions/{}/release", encode(session.as_str()));
    let now: SessionStatus = client.post(&path, &ReleaseBody {}, &once.key()).await?;
    out.show(&now, |now| format!("The next prompt to {} starts its agent again.", now.session_key))
}
