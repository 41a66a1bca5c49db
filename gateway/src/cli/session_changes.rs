//! `sessions label | rename | release | close | archive | delete | reset`.

use crate::api::client::{GatewayClient, encode};
use crate::cli::IdempotencyArgs;
use crate::cli::output::{CliResult, Out, name};
use crate::cli::session_arg::SessionArg;
use acp_core::api::{CloseBody, ReleaseBody, SessionPatch};
use acp_core::request::SessionStatus;
use acp_shared::ids::SessionKey;
use clap::Args;

/// `sessions close | archive | delete | reset`
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Reason to record and to show in the conversation
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Ask the agent to delete the conversation as well, if it supports that
    #[arg(long)]
    pub(crate) discard: bool,
    #[command(flatten)]
    pub(crate) once: IdempotencyArgs,
}

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

/// `sessions close | archive | delete | reset`
pub(crate) async fn end(client: &GatewayClient, verb: &str, args: EndArgs, out: &mut Out) -> CliResult {
    let session = args.session.resolve(client).await?;
    let path = format!("/v1/sessions/{}{verb}", encode(session.as_str()));
    let body = CloseBody { reason: args.reason, discard: args.discard, ..CloseBody::default() };
    let now: SessionStatus = client.post(&path, &body, &args.once.key()).await?;
    out.show(&now, |now| {
        let forgets = match now.discarded {
            Some(true) => " The agent was asked to delete the conversation.",
            Some(false) => {
                " The agent keeps its copy of the conversation: it is not running, or cannot delete it."
            }
            None => "",
        };
        format!("{} is {}.{forgets}", now.session_key, now.state.as_str())
    })
}
