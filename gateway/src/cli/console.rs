//! `console`: opens the web console in a browser, at a listener and with a sign-in that last as long as the command.

use crate::api::client::HeldStream;
use crate::cli::GlobalArgs;
use crate::cli::agents::exe;
use crate::cli::output::{CliResult, Out};
use crate::cli::stop_signals::StopSignals;
use crate::cli::token::scopes;
use acp_core::api::{ConsoleBody, ConsoleOpenedView};
use acp_core::failure::Failure;
use acp_core::principal::Scope;
use acp_shared::codes::Code;
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use serde::Serialize;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

const EXAMPLES: &str = "\
Examples:
  acp-gateway console                              open the console in a browser on this machine
  acp-gateway console --no-open                    print its link only, for a browser of your choice
  acp-gateway console --listen 127.0.0.1:7434      with a fixed port, for `ssh -L 7434:127.0.0.1:7434 HOST`
  acp-gateway console --scope read                 a console that can look at everything and change nothing

The gateway must run. The link works once and within 5 minutes; who opens it a second time ends the sign-in of the first.
Without --listen, a loopback address of northbound.listen is used, or else a free port while this command runs.
For a phone or another machine, set northbound.listen with TLS and sign in with a token of `acp-gateway token add`.";

/// `console`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConsoleArgs {
    /// Print the link without opening a browser
    #[arg(long)]
    no_open: bool,
    /// Loopback address and port of the console
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Scope of the console: read, prompt, approve or admin
    #[arg(long, default_value_t = Scope::Admin, add = ArgValueCandidates::new(scopes))]
    scope: Scope,
}

/// An open console, for `--json`.
#[derive(Serialize)]
struct ConsoleOutput {
    event: &'static str,
    /// Link with the one-time code.
    link: String,
    code_expires_at_ms: u64,
}

/// `console`
pub(crate) async fn run(global: &GlobalArgs, args: &ConsoleArgs, out: &mut Out) -> CliResult {
    let mut stop = StopSignals::listen()?;
    let body = ConsoleBody { listen: args.listen.map(|at| at.to_string()), scope: args.scope };
    let mut held = global.client()?.hold("/v1/console/open", &body).await?;
    let opened = opened(&mut held).await.ok_or_else(ended)?;
    let link = format!("{}#code={}", opened.url, opened.code);
    let output = ConsoleOutput { event: "open", link, code_expires_at_ms: opened.code_expires_at_ms };
    let is_opened = !args.no_open && has_display() && open_browser(&output.link);
    out.show(&output, |output| output.link.clone())?;
    out.note(match is_opened {
        true => "A browser opens this link, which works once. Ctrl-C closes the console and signs the browser out.",
        false => {
            "Open this link in a browser within 5 minutes; it works once. Ctrl-C closes the console and signs the \
             browser out."
        }
    })?;
    out.flush()?;
    tokio::select! {
        () = stop.recv() => Ok(()),
        () = async { while held.next().await.is_some() {} } => Err(ended().into()),
    }
}

async fn opened(held: &mut HeldStream) -> Option<ConsoleOpenedView> {
    serde_json::from_str(&held.next().await?.data).ok()
}

/// Failure after the end of the gateway, whose memory had the code and the sign-in.
fn ended() -> Failure {
    let text = "The gateway has ended, and with it this console and its sign-in. Sessions and agents are not affected. Once \
                the gateway runs again, `acp-gateway console` prints a new link.";
    Failure::new(Code::GatewayUnavailable, text).origin("client")
}

fn has_display() -> bool {
    ["WAYLAND_DISPLAY", "DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Starts the browser of the desktop, outside of this terminal's session: Ctrl-C must not end it.
fn open_browser(link: &str) -> bool {
    let mut command = Command::new(exe());
    command.args(["detached", "xdg-open", link]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
