//! Conversion between rows and values. All SQL of this package is here and in the migrations.

use super::StoreError;
use crate::core::admission::Installation;
use crate::core::lease::{BoundProcesses, Lease, NsInit, PidScope, ProcessRecord};
use crate::core::marks::Progress;
use acp_shared::ids::{GatewayInstanceId, LeaseId, SessionKey, StartId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, Home, LeaseKind, LeaseState};
use rusqlite::types::Type;
use rusqlite::{Connection, Row, named_params};

const SAVE_LEASE: &str = "
INSERT OR REPLACE INTO leases (
    lease_id, gateway_instance_id, owner_uid, session_key, kind, parent_lease_id, output_bytes_max,
    eof_ms, term_ms, kill_ms, wrapper_root, wrapper_path,
    supervisor_pid, supervisor_start, supervisor_inode, boot_id, pidns, timens, init_start, init_inode,
    wrapper_pid, wrapper_start, wrapper_inode, adapter_pid, adapter_start, adapter_inode, pgid, sid,
    command_hash, spec_hash, cgroup_path, rung, started_at_ms, ended_at_ms, state, state_reason,
    last_evidence_json, exit_kind, exit_value, stdout_base, stdout_end, stdin_written, released
) VALUES (
    :lease_id, :gateway, :owner_uid, :session_key, :kind, :parent, :output_bytes_max,
    :eof_ms, :term_ms, :kill_ms, :wrapper_root, :wrapper_path,
    :supervisor_pid, :supervisor_start, :supervisor_inode, :boot_id, :pidns, :timens, :init_start, :init_inode,
    :wrapper_pid, :wrapper_start, :wrapper_inode, :adapter_pid, :adapter_start, :adapter_inode, :pgid, :sid,
    :command_hash, :spec_hash, :cgroup_path, :rung, :started_at_ms, :ended_at_ms, :state, :state_reason,
    :last_evidence_json, :exit_kind, :exit_value, :stdout_base, :stdout_end, :stdin_written, :released
)";

/// Casts to SQLite's signed integers; inodes and offsets keep their bits.
const fn sql(value: u64) -> i64 {
    value.cast_signed()
}

const fn exit_columns(exit: Option<ExitStatus>) -> (Option<&'static str>, Option<i32>) {
    match exit {
        None => (None, None),
        Some(ExitStatus::Exited(code)) => (Some("exited"), Some(code)),
        Some(ExitStatus::Signaled(signal)) => (Some("signaled"), Some(signal)),
        Some(ExitStatus::Unknown) => (Some("unknown"), None),
    }
}

pub(super) fn save_lease(connection: &Connection, lease: &Lease) -> Result<(), StoreError> {
    let (kind, parent, bytes_max) = match &lease.kind {
        LeaseKind::Agent => ("agent", None, None),
        LeaseKind::Terminal { parent_lease_id, output_bytes_max } => {
            ("terminal", Some(parent_lease_id.to_string()), Some(sql(*output_bytes_max)))
        }
    };
    let (exit_kind, exit_value) = exit_columns(lease.exit);
    let wrapper = lease.bound.map(|b| b.wrapper);
    let adapter = lease.bound.map(|b| b.adapter);
    connection.prepare_cached(SAVE_LEASE)?.execute(named_params! {
        ":lease_id": lease.lease_id.to_string(),
        ":gateway": lease.gateway.to_string(),
        ":owner_uid": lease.owner_uid,
        ":session_key": lease.session_key.as_str(),
        ":kind": kind,
        ":parent": parent,
        ":output_bytes_max": bytes_max,
        ":eof_ms": sql(lease.graces.eof_ms),
        ":term_ms": sql(lease.graces.term_ms),
        ":kill_ms": sql(lease.graces.kill_ms),
        ":wrapper_root": lease.wrapper_root,
        ":wrapper_path": lease.wrapper_path,
        ":supervisor_pid": lease.supervisor.pid,
        ":supervisor_start": sql(lease.supervisor.start_ticks),
        ":supervisor_inode": lease.supervisor.inode.map(sql),
        ":boot_id": lease.scope.boot_id,
        ":pidns": sql(lease.scope.pidns),
        ":timens": lease.scope.timens.map(sql),
        ":init_start": lease.scope.init.start_ticks.map(sql),
        ":init_inode": lease.scope.init.inode.map(sql),
        ":wrapper_pid": wrapper.map(|p| p.pid),
        ":wrapper_start": wrapper.map(|p| sql(p.start_ticks)),
        ":wrapper_inode": wrapper.and_then(|p| p.inode).map(sql),
        ":adapter_pid": adapter.map(|p| p.pid),
        ":adapter_start": adapter.map(|p| sql(p.start_ticks)),
        ":adapter_inode": adapter.and_then(|p| p.inode).map(sql),
        ":pgid": lease.bound.map(|b| b.pgid),
        ":sid": lease.bound.map(|b| b.sid),
        ":command_hash": lease.command_hash,
        ":spec_hash": lease.spec_hash,
        ":cgroup_path": lease.cgroup_path,
        ":rung": lease.rung,
        ":started_at_ms": sql(lease.started_at_ms),
        ":ended_at_ms": lease.ended_at_ms.map(sql),
        ":state": lease.state.as_str(),
        ":state_reason": lease.state_reason,
        ":last_evidence_json": lease.last_evidence_json,
        ":exit_kind": exit_kind,
        ":exit_value": exit_value,
        ":stdout_base": sql(lease.stdout_base),
        ":stdout_end": sql(lease.stdout_end),
        ":stdin_written": sql(lease.stdin_written),
        ":released": lease.released,
    })?;
    Ok(())
}

pub(super) fn delete_leases(connection: &Connection, ids: &[LeaseId]) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached("DELETE FROM leases WHERE lease_id = ?1")?;
    for id in ids {
        statement.execute([id.to_string()])?;
    }
    Ok(())
}

/// Copies the database into an empty file, as one consistent version.
pub(super) fn copy_into(connection: &Connection, path: &std::path::Path) -> Result<(), StoreError> {
    connection.execute("VACUUM INTO ?1", [path.to_string_lossy()])?;
    Ok(())
}

/// Moves the WAL into the database file.
pub(super) fn into_one_file(connection: &Connection) -> Result<(), StoreError> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

pub(super) fn save_installation(connection: &Connection, known: &Installation) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO homes (gateway_instance_id, uid, machine_id, dev, ino, epoch_max,
                                           start_id, event_id, loss_accepted_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute((
            known.gateway.to_string(),
            known.uid,
            &known.home.machine_id,
            sql(known.home.dev),
            sql(known.home.ino),
            sql(known.epoch_max),
            known.progress.start_id.map(|id| id.to_string()),
            sql(known.progress.event_id),
            known.progress.loss_accepted_ms.map(sql),
        ))?;
    Ok(())
}

pub(super) fn delete_installation(
    connection: &Connection,
    gateway: GatewayInstanceId,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM homes WHERE gateway_instance_id = ?1";
    connection.prepare_cached(sql)?.execute([gateway.to_string()])?;
    Ok(())
}

fn bad(what: &str, text: &str) -> StoreError {
    StoreError::Row(format!("{what} {text:?}"))
}

fn number(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

fn maybe_number(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

fn process(row: &Row<'_>, prefix: &str) -> rusqlite::Result<Option<ProcessRecord>> {
    let pid: Option<i32> = row.get(format!("{prefix}_pid").as_str())?;
    let start = maybe_number(row, &format!("{prefix}_start"))?;
    let inode = maybe_number(row, &format!("{prefix}_inode"))?;
    Ok(pid.zip(start).map(|(pid, start_ticks)| ProcessRecord { pid, start_ticks, inode }))
}

fn kind(row: &Row<'_>) -> Result<LeaseKind, StoreError> {
    let parent: Option<String> = row.get("parent_lease_id")?;
    match parent {
        None => Ok(LeaseKind::Agent),
        Some(parent) => Ok(LeaseKind::Terminal {
            parent_lease_id: LeaseId::parse(&parent).map_err(|_| bad("parent", &parent))?,
            output_bytes_max: number(row, "output_bytes_max")?,
        }),
    }
}

fn exit(row: &Row<'_>) -> Result<Option<ExitStatus>, StoreError> {
    let kind: Option<String> = row.get("exit_kind")?;
    let value: Option<i32> = row.get("exit_value")?;
    match (kind.as_deref(), value) {
        (None, _) => Ok(None),
        (Some("exited"), Some(code)) => Ok(Some(ExitStatus::Exited(code))),
        (Some("signaled"), Some(signal)) => Ok(Some(ExitStatus::Signaled(signal))),
        (Some("unknown"), _) => Ok(Some(ExitStatus::Unknown)),
        (Some(other), _) => Err(bad("exit", other)),
    }
}

fn lease(row: &Row<'_>) -> Result<Lease, StoreError> {
    let text = |column: &str| row.get::<_, String>(column);
    let (id, gateway, key, state) =
        (text("lease_id")?, text("gateway_instance_id")?, text("session_key")?, text("state")?);
    let (wrapper, adapter) = (process(row, "wrapper")?, process(row, "adapter")?);
    let (pgid, sid): (Option<i32>, Option<i32>) = (row.get("pgid")?, row.get("sid")?);
    let bound = wrapper.zip(adapter).zip(pgid.zip(sid));
    if bound.is_none() && (wrapper.is_some() || adapter.is_some() || pgid.is_some() || sid.is_some()) {
        return Err(bad("incomplete process tree of", &id));
    }
    Ok(Lease {
        lease_id: LeaseId::parse(&id).map_err(|_| bad("lease id", &id))?,
        gateway: GatewayInstanceId::parse(&gateway).map_err(|_| bad("gateway", &gateway))?,
        owner_uid: row.get("owner_uid")?,
        session_key: SessionKey::parse(&key).map_err(|_| bad("session key", &key))?,
        kind: kind(row)?,
        graces: Graces {
            eof_ms: number(row, "eof_ms")?,
            term_ms: number(row, "term_ms")?,
            kill_ms: number(row, "kill_ms")?,
        },
        wrapper_root: text("wrapper_root")?,
        wrapper_path: text("wrapper_path")?,
        supervisor: process(row, "supervisor")?.ok_or_else(|| bad("supervisor of", &id))?,
        scope: PidScope {
            boot_id: text("boot_id")?,
            pidns: number(row, "pidns")?,
            timens: maybe_number(row, "timens")?,
            init: NsInit {
                start_ticks: maybe_number(row, "init_start")?,
                inode: maybe_number(row, "init_inode")?,
            },
        },
        bound: bound.map(|((wrapper, adapter), (pgid, sid))| BoundProcesses { wrapper, adapter, pgid, sid }),
        command_hash: text("command_hash")?,
        spec_hash: text("spec_hash")?,
        cgroup_path: row.get("cgroup_path")?,
        rung: text("rung")?,
        started_at_ms: number(row, "started_at_ms")?,
        ended_at_ms: maybe_number(row, "ended_at_ms")?,
        state: LeaseState::ALL
            .into_iter()
            .find(|s| s.as_str() == state)
            .ok_or_else(|| bad("state", &state))?,
        state_reason: text("state_reason")?,
        last_evidence_json: row.get("last_evidence_json")?,
        exit: exit(row)?,
        stdout_base: number(row, "stdout_base")?,
        stdout_end: number(row, "stdout_end")?,
        stdin_written: number(row, "stdin_written")?,
        released: row.get("released")?,
    })
}

/// Recovers the readable part of a damaged row. The lease gets no pids, so that no process is signalled for
/// it.
fn salvage(row: &Row<'_>, why: &StoreError) -> Option<Lease> {
    let text = |column: &str| row.get::<_, String>(column).unwrap_or_default();
    let count = |column: &str| number(row, column).unwrap_or_default();
    let mut lease = Lease {
        lease_id: LeaseId::parse(&text("lease_id")).ok()?,
        gateway: GatewayInstanceId::parse(&text("gateway_instance_id")).ok()?,
        owner_uid: row.get("owner_uid").ok()?,
        session_key: SessionKey::parse(&text("session_key"))
            .or_else(|_| SessionKey::parse("unreadable"))
            .ok()?,
        kind: kind(row).unwrap_or(LeaseKind::Agent),
        graces: Graces::default(),
        wrapper_root: text("wrapper_root"),
        wrapper_path: text("wrapper_path"),
        supervisor: ProcessRecord { pid: 0, start_ticks: 0, inode: None },
        scope: PidScope {
            boot_id: text("boot_id"),
            pidns: count("pidns"),
            timens: None,
            init: NsInit::default(),
        },
        bound: None,
        command_hash: text("command_hash"),
        spec_hash: text("spec_hash"),
        cgroup_path: None,
        rung: text("rung"),
        started_at_ms: count("started_at_ms"),
        ended_at_ms: None,
        state: LeaseState::Lost,
        state_reason: String::new(),
        last_evidence_json: row.get("last_evidence_json").unwrap_or_default(),
        exit: None,
        stdout_base: 0,
        stdout_end: 0,
        stdin_written: 0,
        released: false,
    };
    lease.quarantine(&format!("{why} (state {:?})", text("state")), lease.started_at_ms);
    Some(lease)
}

/// Returns all leases, oldest first, and a warning for each unreadable row.
pub(super) fn leases(connection: &Connection) -> Result<(Vec<Lease>, Vec<String>), StoreError> {
    let mut statement = connection.prepare("SELECT * FROM leases ORDER BY started_at_ms, lease_id")?;
    let mut rows = statement.query([])?;
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        match lease(row).or_else(|why| salvage(row, &why).ok_or(why)) {
            Ok(lease) => all.push(lease),
            Err(why) => warnings.push(format!("a lease cannot be read at all and is left alone: {why}")),
        }
    }
    Ok((all, warnings))
}

fn start_id(row: &Row<'_>) -> rusqlite::Result<Option<StartId>> {
    let text: Option<String> = row.get("start_id")?;
    text.map(|text| StartId::parse(&text))
        .transpose()
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}

fn installation(row: &Row<'_>, gateway: GatewayInstanceId) -> rusqlite::Result<Installation> {
    Ok(Installation {
        gateway,
        uid: row.get("uid")?,
        home: Home { machine_id: row.get("machine_id")?, dev: number(row, "dev")?, ino: number(row, "ino")? },
        epoch_max: number(row, "epoch_max")?,
        progress: Progress {
            start_id: start_id(row)?,
            event_id: number(row, "event_id")?,
            loss_accepted_ms: maybe_number(row, "loss_accepted_ms")?,
        },
        damaged: None,
    })
}

/// Creates a placeholder for an unreadable row: the id stays known, and the gateway is not admitted.
fn damaged(gateway: GatewayInstanceId, why: &str) -> Installation {
    let home = Home { machine_id: String::new(), dev: 0, ino: 0 };
    let (progress, damaged) = (Progress::default(), Some(why.to_owned()));
    Installation { gateway, uid: NOBODY, home, epoch_max: 0, progress, damaged }
}

/// Invalid user id: the kernel uses this value for "no id".
const NOBODY: u32 = u32::MAX;

/// Returns all gateway installations, and a warning for each unreadable row.
pub(super) fn installations(connection: &Connection) -> Result<(Vec<Installation>, Vec<String>), StoreError> {
    let mut statement = connection.prepare("SELECT * FROM homes")?;
    let mut rows = statement.query([])?;
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let id: String = row.get("gateway_instance_id").unwrap_or_default();
        let Ok(gateway) = GatewayInstanceId::parse(&id) else {
            warnings
                .push(format!("the record of a gateway cannot be read and is left alone: its id is {id:?}"));
            continue;
        };
        all.push(installation(row, gateway).unwrap_or_else(|error| {
            let known = damaged(gateway, &error.to_string());
            warnings.extend(known.damage_message());
            known
        }));
    }
    Ok((all, warnings))
}
