//! `leases watch`: a live view in a terminal, else one line for each change. Polls the supervisor, and
//! reconnects if the connection is lost.

mod changes;
mod screen;
mod view;

use super::leases::select::{Filter, SortKey};
use super::{Address, CliError, Output, client, leases, text};
use acp_shared::conn::Client;
use acp_shared::protocol::LeaseInfo;
use clap::Args;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    filter: Filter,
    /// Initial sort order of the view
    #[arg(long, value_enum, value_name = "KEY", default_value_t = SortKey::Age)]
    sort: SortKey,
    /// Poll interval
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "1s")]
    interval: u64,
}

impl WatchArgs {
    /// Returns the poll interval, with a minimum that limits the load on the supervisor.
    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval.max(100))
    }
}

pub(super) async fn run(address: Address, args: &WatchArgs, out: &mut Output) -> Result<(), CliError> {
    let client = Some(client(&address).await?);
    let mut feed = LeaseFeed { address, client };
    let signals = WatchSignals::new()?;
    if out.is_terminal() && std::io::stdin().is_terminal() && !out.is_json() {
        screen::run(&mut feed, args, signals, out.look().colour).await
    } else {
        changes::run(&mut feed, args, signals, out).await
    }
}

/// Source of leases: polls the supervisor.
struct LeaseFeed {
    address: Address,
    client: Option<Client>,
}

impl LeaseFeed {
    /// Requests all leases. After a failure the next call reconnects.
    async fn next(&mut self, detail: bool) -> Result<Vec<LeaseInfo>, CliError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => client(&self.address).await?,
        };
        let leases = leases::list_all(&mut client, detail).await?;
        self.client = Some(client);
        Ok(leases)
    }
}

/// Signals that end a watch.
struct WatchSignals {
    int: Signal,
    term: Signal,
    hangup: Signal,
}

impl WatchSignals {
    fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(CliError::Runtime);
        Ok(Self {
            int: on(SignalKind::interrupt())?,
            term: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal and returns the exit code for it.
    async fn exit(&mut self) -> u8 {
        tokio::select! {
            _ = self.int.recv() => 130,
            _ = self.term.recv() => 143,
            _ = self.hangup.recv() => 129,
        }
    }
}
