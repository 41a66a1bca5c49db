//! Last report of each host: the time without messages after which it ends all agents of this gateway. A restarted gateway uses it
//! for hosts that it cannot reach.

use crate::db::{Db, params};
use crate::{Store, StoreError, meta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Beginning of the keys in `acp_meta`; the name of the host follows.
const KEY: &str = "host_report";

/// Report of a host on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct HostReport {
    /// Start of the gateway.
    epoch: u64,
    /// Number of the connection of this start.
    connection: u64,
    /// Reported time, in seconds; none before the first report of the connection.
    agents_end_s: Option<u64>,
}

fn key(host: &str) -> String {
    format!("{KEY}:{host}")
}

fn report(db: &Db, host: &str) -> Result<Option<HostReport>, StoreError> {
    let Some(text) = meta::get(db, &key(host))? else { return Ok(None) };
    // A value that does not parse counts as no report.
    Ok(serde_json::from_str(&text).ok())
}

/// Removes all reports, so that no session leaves an unreachable host.
pub(crate) fn clear(db: &Db) -> Result<(), StoreError> {
    db.run("DELETE FROM acp_meta WHERE key LIKE ?1", params![format!("{KEY}:%")]).map(drop)
}

fn set(db: &Db, host: &str, report: HostReport) -> Result<(), StoreError> {
    meta::set(db, &key(host), &serde_json::to_string(&report)?)
}

impl Store {
    /// Removes all reports.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn clear_host_reports(&self) -> Result<(), StoreError> {
        self.write("clear_host_reports", |tx| clear(tx)).await
    }

    /// Discards the reports of earlier connections to a host. Must be called before the first request of a connection.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn begin_host_reports(&self, host: &str, connection: u64) -> Result<(), StoreError> {
        let (host, epoch) = (host.to_owned(), self.identity().epoch);
        self.write("begin_host_reports", move |tx| {
            set(tx, &host, HostReport { epoch, connection, agents_end_s: None })
        })
        .await
    }

    /// Records a report, unless another connection has begun since.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn record_host_report(
        &self,
        host: &str,
        connection: u64,
        agents_end: Duration,
    ) -> Result<(), StoreError> {
        let (host, epoch) = (host.to_owned(), self.identity().epoch);
        self.write("record_host_report", move |tx| match report(tx, &host)? {
            Some(now) if (now.epoch, now.connection) == (epoch, connection) => {
                set(tx, &host, HostReport { agents_end_s: Some(agents_end.as_secs()), ..now })
            }
            _ => Ok(()),
        })
        .await
    }

    /// Returns the last reports of these hosts.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn host_reports(&self, hosts: Vec<String>) -> Result<BTreeMap<String, Duration>, StoreError> {
        self.read("host_reports", move |db| {
            let mut found = BTreeMap::new();
            for host in hosts {
                if let Some(HostReport { agents_end_s: Some(seconds), .. }) = report(db, &host)? {
                    found.insert(host, Duration::from_secs(seconds));
                }
            }
            Ok(found)
        })
        .await
    }
}
