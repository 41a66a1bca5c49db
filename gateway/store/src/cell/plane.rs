//! Plane: tables shared by all cells of one database. For each Discord application they hold the shard range of each cell, the
//! next IDENTIFY time of each bucket and the remaining daily sessions.
//!
//! Each transaction holds one lock, so that cells see each other's rows. All times are of the server's clock.

use super::ownership::{self, OwnerId};
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::postgres::{PgAddress, PgConnection};
use acp_core::shards::{SLOT_INTERVAL_MS, SessionBudget, ShardRange, SlotDecision, decide_slot};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum duration of a request, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Settings of the session: a process that stands still does not keep the lock from others.
const SETTINGS: &str = "SET synchronous_commit = local; SET statement_timeout = 3000; SET idle_in_transaction_session_timeout = 3000";
/// Tables of the plane.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS plane.discord_identify_slots (application TEXT, bucket BIGINT, next TIMESTAMPTZ NOT NULL, \
      PRIMARY KEY (application, bucket)); \
    CREATE TABLE IF NOT EXISTS plane.discord_limits (application TEXT PRIMARY KEY, remaining BIGINT NOT NULL, \
      resets TIMESTAMPTZ NOT NULL); \
    CREATE TABLE IF NOT EXISTS plane.discord_ranges (application TEXT, cell TEXT, shard_from BIGINT NOT NULL, \
      shard_to BIGINT NOT NULL, shard_of BIGINT NOT NULL, server_pid BIGINT NOT NULL, PRIMARY KEY (application, cell))";

/// Request for permission to identify a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentifySlotRequest {
    /// Id of the Discord application.
    pub application: String,
    /// Shards that the cell serves.
    pub range: ShardRange,
    /// Bucket of the session's shard.
    pub bucket: u64,
    /// Number of sessions that may still be identified, as Discord reported it.
    pub remaining: u64,
    /// Time until Discord resets that number.
    pub reset_after_ms: u64,
}

/// Answer to an [`IdentifySlotRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifySlotAnswer {
    /// The session may be identified now.
    Taken {
        /// Time on this machine directly before the slot was set, on which the validity of the slot depends.
        at: Instant,
        /// Number of sessions that may be identified after this one.
        remaining: u64,
    },
    /// Another session of the bucket was identified just now.
    Later {
        /// Time until the next slot.
        wait_ms: u64,
    },
    /// All sessions of the day are identified.
    Spent {
        /// Time until Discord resets the number.
        wait_ms: u64,
    },
    /// Another account of this process serves the application.
    SecondAccount {
        /// Name of that account.
        account: String,
    },
    /// A cell that is served has some of the shards.
    Overlaps {
        /// Name of that cell.
        cell: String,
        /// Its shards.
        range: ShardRange,
    },
}

/// Connection of an account of this process to Discord, until it is dropped.
#[derive(Debug)]
pub struct DiscordConnection {
    account: String,
    /// Number of connections before this one.
    number: u64,
}

/// Plane of a cell that this process owns. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Plane {
    address: PgAddress,
    owner: OwnerId,
    connections: Arc<Mutex<Connections>>,
}

#[derive(Debug, Default)]
struct Connections {
    begun: u64,
    /// Latest connection of each application that requested an identify slot.
    latest: BTreeMap<String, Weak<DiscordConnection>>,
}

impl Plane {
    pub(crate) fn new(address: PgAddress, owner: OwnerId) -> Self {
        Self { address, owner, connections: Arc::default() }
    }

    /// Begins a connection, which replaces earlier ones of the account.
    pub fn connect(&self, account: &str) -> Arc<DiscordConnection> {
        let mut connections = self.connections.lock();
        connections.begun += 1;
        Arc::new(DiscordConnection { account: account.to_owned(), number: connections.begun })
    }

    /// Takes an identify slot, and the cell's shards. A slot that was taken counts, whether or not it is used.
    /// Blocks; not for an async context.
    ///
    /// # Errors
    /// [`StoreError::Server`]; [`StoreError::Refused`] if this process no longer owns the cell, or if the connection was replaced;
    /// errors of the server.
    pub fn take_slot(
        &self,
        connection: &Arc<DiscordConnection>,
        request: &IdentifySlotRequest,
    ) -> Result<IdentifySlotAnswer, StoreError> {
        let name = format!("acp-host {} identify slot", self.address.cell());
        let db = Db::of_postgres(PgConnection::open(
            &self.address,
            &name,
            Some(Instant::now() + REQUEST_TIMEOUT),
        )?);
        db.run_all(SETTINGS)?;
        db.transaction(|| {
            ownership::lock_for_transaction(&db, "plane")?;
            if !ownership::is_held(&db, &self.owner)? {
                return Err(StoreError::Refused("this process does not own the cell any longer"));
            }
            if let Some(account) = self.connections.lock().admit(&request.application, connection)? {
                return Ok(IdentifySlotAnswer::SecondAccount { account });
            }
            create_tables(&db)?;
            take(&db, self.address.cell(), self.owner.server_pid(), request)
        })
    }
}

impl Connections {
    /// Admits the latest connection of an application. Returns the name of another account that serves it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a connection that was replaced: its range must not follow that of the later one.
    fn admit(
        &mut self,
        application: &str,
        connection: &Arc<DiscordConnection>,
    ) -> Result<Option<String>, StoreError> {
        match self.latest.get(application).and_then(Weak::upgrade) {
            Some(latest) if latest.account != connection.account => Ok(Some(latest.account.clone())),
            Some(latest) if latest.number > connection.number => {
                Err(StoreError::Refused("a later connection of the account has begun"))
            }
            _ => {
                self.latest.insert(application.to_owned(), Arc::downgrade(connection));
                Ok(None)
            }
        }
    }
}

/// Creates the schema and its tables, unless they exist: a role that may not create schemas can use the one that another made.
fn create_tables(db: &Db) -> Result<(), StoreError> {
    let exists = |sql: &str| db.first(sql, &[], |row| row.only::<bool>()).map(|found| found == Some(true));
    if exists("SELECT to_regclass('plane.discord_identify_slots') IS NOT NULL")? {
        return Ok(());
    }
    if !exists("SELECT to_regnamespace('plane') IS NOT NULL")? {
        db.run_all("CREATE SCHEMA plane")?;
    }
    db.run_all(TABLES)
}

fn take(
    db: &Db,
    cell: &str,
    server_pid: u32,
    request: &IdentifySlotRequest,
) -> Result<IdentifySlotAnswer, StoreError> {
    const LIMIT: &str = "SELECT remaining, CAST(greatest(0, ceil(extract(epoch FROM resets - clock_timestamp()) * 1000)) AS BIGINT) AS left_ms \
        FROM plane.discord_limits WHERE application = ?1";
    const SLOT: &str = "SELECT CAST(greatest(0, ceil(extract(epoch FROM next - clock_timestamp()) * 1000)) AS BIGINT) \
        FROM plane.discord_identify_slots WHERE application = ?1 AND bucket = ?2";
    const NEXT: &str = "INSERT INTO plane.discord_identify_slots (application, bucket, next) \
        VALUES (?1, ?2, clock_timestamp() + CAST(?3 AS BIGINT) * interval '1 millisecond') \
        ON CONFLICT (application, bucket) DO UPDATE SET next = excluded.next";
    let IdentifySlotRequest { application, bucket, remaining, reset_after_ms, .. } = request;
    if let Some(overlap) = claim(db, cell, server_pid, request)? {
        return Ok(overlap);
    }
    let counted = db.first(LIMIT, params![application], |row| {
        Ok(SessionBudget { remaining: row.get("remaining")?, reset_ms: row.get("left_ms")? })
    })?;
    let reported = SessionBudget { remaining: *remaining, reset_ms: *reset_after_ms };
    let next_ms: Option<u64> = db.first(SLOT, params![application, bucket], |row| row.only())?;
    let set_next = || db.run(NEXT, params![application, bucket, SLOT_INTERVAL_MS]);
    match decide_slot(counted, reported, next_ms) {
        SlotDecision::Spent { wait_ms } => Ok(IdentifySlotAnswer::Spent { wait_ms }),
        SlotDecision::Later { wait_ms, is_impossible } => {
            if is_impossible {
                set_next()?;
            }
            Ok(IdentifySlotAnswer::Later { wait_ms })
        }
        SlotDecision::Taken { left } => {
            db.run(
                "INSERT INTO plane.discord_limits (application, remaining, resets) \
                 VALUES (?1, ?2, clock_timestamp() + CAST(?3 AS BIGINT) * interval '1 millisecond') \
                 ON CONFLICT (application) DO UPDATE SET remaining = excluded.remaining, resets = excluded.resets",
                params![application, left.remaining, left.reset_ms],
            )?;
            let at = Instant::now();
            set_next()?;
            Ok(IdentifySlotAnswer::Taken { at, remaining: left.remaining })
        }
    }
}

/// Records the shards of the cell. Returns the overlap with those of another cell that is served; then the cell has none.
fn claim(
    db: &Db,
    cell: &str,
    server_pid: u32,
    request: &IdentifySlotRequest,
) -> Result<Option<IdentifySlotAnswer>, StoreError> {
    const ALL: &str = "SELECT cell, shard_from, shard_to, shard_of, server_pid FROM plane.discord_ranges WHERE application = ?1";
    let IdentifySlotRequest { application, range, .. } = request;
    let rows = db.all(ALL, params![application], |row| {
        let range =
            ShardRange { from: row.get("shard_from")?, to: row.get("shard_to")?, of: row.get("shard_of")? };
        Ok((row.get::<String>("cell")?, range, row.get::<u32>("server_pid")?))
    })?;
    if rows.iter().any(|row| (row.0.as_str(), row.1, row.2) == (cell, *range, server_pid)) {
        return Ok(None);
    }
    for (other, its, pid) in rows {
        if other != cell && its.overlaps(range) && ownership::is_served_by(db, &other, pid)? {
            db.run(
                "DELETE FROM plane.discord_ranges WHERE application = ?1 AND cell = ?2",
                params![application, cell],
            )?;
            return Ok(Some(IdentifySlotAnswer::Overlaps { cell: other, range: its }));
        }
    }
    db.run(
        "INSERT INTO plane.discord_ranges (application, cell, shard_from, shard_to, shard_of, server_pid) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (application, cell) DO UPDATE SET shard_from = excluded.shard_from, \
         shard_to = excluded.shard_to, shard_of = excluded.shard_of, server_pid = excluded.server_pid",
        params![application, cell, range.from, range.to, range.of, server_pid],
    )?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// A connection of an application is replaced by a later one of its account, and by one of another account after its end.
    #[test]
    fn latest_connection_of_one_account_is_admitted() {
        let mut connections = Connections::default();
        let [first, second, other] = [("a", 1), ("a", 2), ("b", 3)]
            .map(|(account, number)| Arc::new(DiscordConnection { account: account.to_owned(), number }));
        assert_eq!(connections.admit("100", &first).unwrap(), None);
        assert_eq!(connections.admit("100", &second).unwrap(), None);
        assert!(matches!(connections.admit("100", &first), Err(StoreError::Refused(_))));
        assert_eq!(connections.admit("100", &other).unwrap().as_deref(), Some("a"));
        assert_eq!(connections.admit("200", &other).unwrap(), None);
        drop(second);
        assert_eq!(connections.admit("100", &other).unwrap(), None);
        assert_eq!(connections.admit("100", &first).unwrap().as_deref(), Some("b"));
    }
}
