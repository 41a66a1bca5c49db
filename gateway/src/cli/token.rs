//! `token add | list | revoke`.

use crate::api::client::encode;
use crate::cli::output::{CliResult, Out, age, now_ms, table};
use crate::cli::{GlobalArgs, IdempotencyArgs, shell_completion, usage};
use acp_core::api::{TokenBody, TokenCreatedView, TokenView};
use acp_core::command::duration;
use acp_core::failure::Failure;
use acp_core::principal::Scope;
use acp_core::timeouts::format_duration;
use clap::Subcommand;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

const ADD_EXAMPLES: &str = "\
Examples:
  acp-gateway token add phone --scope approve --expires 30d
  acp-gateway token add ci --scope prompt --agents 'qwen*,demo'

The token is printed once and stored nowhere. Clients send it as `Authorization: Bearer TOKEN` to an address of
northbound.listen. Scopes, each with what the ones before it allow:
  read      list and read sessions
  prompt    start sessions, send prompts, stop them
  approve   answer permission requests, change what an agent may do unasked
  admin     start MCP servers of one's own choice on this machine; write in console conversations
NAME is the author of the prompts and answers in the history.";

/// `token …`
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it once
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Name of the token: a person, a device or a program
        name: String,
        /// What its holder may do: read, prompt, approve or admin
        #[arg(long, add = ArgValueCandidates::new(scopes))]
        scope: Scope,
        /// Agents that it may use, with * as wildcard [default: all agents]
        #[arg(long, value_name = "AGENTS", value_delimiter = ',')]
        agents: Vec<String>,
        /// Time until it is refused, such as 12h or 30d [default: never]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        #[command(flatten)]
        once: IdempotencyArgs,
    },
    /// List the tokens, without their secrets
    List {
        /// Include revoked and expired tokens
        #[arg(long)]
        all: bool,
    },
    /// Revoke a token; its requests and streams end at once
    Revoke {
        /// Name or id of the token
        #[arg(add = shell_completion::tokens())]
        token: String,
    },
}

/// Scopes for completion.
pub(crate) fn scopes() -> Vec<CompletionCandidate> {
    ["read", "prompt", "approve", "admin"].map(CompletionCandidate::new).into()
}

/// `token …`
pub(crate) async fn run(global: &GlobalArgs, verb: TokenCommand, out: &mut Out) -> CliResult {
    let client = global.client()?;
    match verb {
        TokenCommand::Add { name, scope, agents, expires, once } => {
            let expires_s = expires.as_deref().map(seconds).transpose()?;
            let body = TokenBody { name, scope, agents, expires_s };
            let created: TokenCreatedView = client.post("/v1/tokens", &body, &once.key()).await?;
            if !out.json {
                out.note(&format!(
                    "Token {} with scope {}; it is shown only now:",
                    created.view.name, created.view.scope
                ))?;
            }
            out.show(&created, |created| created.token.clone())
        }
        TokenCommand::List { all } => {
            let mut views: Vec<TokenView> = client.get("/v1/tokens").await?;
            views.retain(|view| all || view.state == "valid");
            out.show(&views, |views| list(views))
        }
        TokenCommand::Revoke { token } => {
            let view: TokenView = client.delete(&format!("/v1/tokens/{}", encode(&token))).await?;
            out.show(&view, |view| format!("Revoked {}; its requests and streams have ended.", view.name))
        }
    }
}

fn seconds(text: &str) -> Result<u64, Failure> {
    match duration::parse(text) {
        Ok(Some(ms)) if ms >= 1_000 => Ok(ms / 1_000),
        Ok(_) => Err(usage(format!("--expires {text}: must be at least one second; leave it out for never"))),
        Err(why) => Err(usage(format!("--expires: {why}"))),
    }
}

fn list(views: &[TokenView]) -> String {
    if views.is_empty() {
        return "No valid tokens. Create one with `acp-gateway token add NAME --scope SCOPE`.".to_owned();
    }
    let rows = views.iter().map(|view| {
        let agents = if view.agents.is_empty() { "all".to_owned() } else { view.agents.join(", ") };
        let left = view.expires_at_ms.map(|at| at.saturating_sub(now_ms()));
        let expires = left.map_or_else(
            || "never".to_owned(),
            |left| format!("in {}", format_duration(left / 60_000 * 60_000)),
        );
        let expires = if view.state == "valid" { expires } else { String::new() };
        let scope = view.scope.to_string();
        let name = if view.console { format!("{} (console)", view.name) } else { view.name.clone() };
        vec![name, scope, agents, view.state.clone(), age(view.created_at_ms), expires]
    });
    table(&["TOKEN", "SCOPE", "AGENTS", "STATE", "AGE", "EXPIRES"], rows)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn expiry_is_a_duration_of_at_least_a_second() {
        for (text, want) in
            [("30d", Some(30 * 86_400)), ("90m", Some(5_400)), ("off", None), ("1ms", None), ("x", None)]
        {
            assert_eq!(seconds(text).ok(), want, "{text}");
        }
        assert!(seconds("x").unwrap_err().message.contains("is not a duration"));
    }
}
