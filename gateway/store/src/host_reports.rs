//! Last reports of hosts: the time after which a host without messages has ended all agents of this gateway. A later process
//! counts it for a host that it cannot reach.

use crate::db::Db;
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
    // Another program wrote it: its report is not known.
    Ok(serde_json::from_str(&text).ok())
}

fn set(db: &Db, host: &str, report: HostReport) -> Result<(), StoreError> {
    meta::set(db, &key(host), &serde_json::to_string(&report)?)
}

impl Store {
    /// Begins the reports of a connection to a host: those of earlier ones no longer hold. Called before a request is sent.
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
