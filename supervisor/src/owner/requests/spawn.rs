//! Spawn: idempotent by lease id, one agent for each session, within the limits.

use crate::core::admission::{ClientUser, Installation};
use crate::core::backoff::AgentKey;
use crate::core::containment::ContainmentLevel;
use crate::core::lease::Lease;
use crate::core::tenant::tenant_of;
use crate::lease::spawn::SpawnRequest;
use crate::lease::task;
use crate::owner::lease_entry::LeaseEntry;
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{Graces, LeaseKind, LeaseState, Refusal, RefusalCode, Reply, Spawn};
use acp_shared::wire;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::sync::mpsc;

const ARGUMENTS_MAX: usize = 4_096;
pub(crate) const COMMANDS_QUEUED_MAX: usize = 8;
const QUOTA_RETRY_MS: u64 = 5_000;
pub(crate) const SESSION_RETRY_MS: u64 = 500;

pub(super) fn handle(owner: &mut Owner, who: ClientKind, user: ClientUser, spec: Spawn, to: Responder) {
    match reserve(owner, who, &user, spec) {
        Ok(Reservation::Run(lease, spec)) => run(owner, *lease, SpawnRequest { spec: *spec, user }, to),
        Ok(Reservation::InProgress(entry)) => entry.waiting.push(to),
        Ok(Reservation::Completed(entry)) => to.answer(Ok(Reply::Spawned(entry.info()))),
        Err(refusal) => to.answer(Err(refusal)),
    }
}

enum Reservation<'a> {
    /// New lease.
    Run(Box<Lease>, Box<Spawn>),
    /// Repeated request for a spawn in progress.
    InProgress(&'a mut LeaseEntry),
    /// Repeated request for a completed spawn.
    Completed(&'a mut LeaseEntry),
}

fn run(owner: &mut Owner, lease: Lease, asked: SpawnRequest, to: Responder) {
    let (commands, queue) = mpsc::channel(COMMANDS_QUEUED_MAX);
    let entry = LeaseEntry { commands: Some(commands), waiting: vec![to], ..LeaseEntry::of(lease.clone()) };
    owner.leases.insert(lease.lease_id, entry);
    tokio::spawn(task::run(Arc::clone(&owner.context), lease, asked, queue));
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn reserve<'a>(
    owner: &'a mut Owner,
    who: ClientKind,
    user: &ClientUser,
    spec: Spawn,
) -> Result<Reservation<'a>, Refusal> {
    let ClientKind::Gateway(gateway) = who else {
        return Err(Refusal::new(RefusalCode::NotAuthorised, "only a gateway may spawn"));
    };
    let encoded = wire::encode(&spec, acp_shared::protocol::FRAME_BYTES_MAX)
        .map_err(|e| Refusal::new(RefusalCode::BadRequest, e.to_string()))?;
    let spec_hash = hex(encoded);
    if owner.leases.contains_key(&spec.lease_id) {
        let entry = owner.visible_lease(who, spec.lease_id).map_err(|_| conflict(&spec))?;
        if entry.lease.spec_hash != spec_hash {
            return Err(conflict(&spec));
        }
        return match (&entry.relay, &entry.commands) {
            (None, _) if entry.lease.state.is_ended() => Ok(Reservation::Completed(entry)),
            (None, Some(_)) => Ok(Reservation::InProgress(entry)),
            // No task works on this lease, so an answer would never be sent.
            (None, None) => Err(entry.left_over_refusal()),
            (Some(_), _) => Ok(Reservation::Completed(entry)),
        };
    }
    if owner.stopping {
        return Err(Refusal::new(RefusalCode::ShuttingDown, "the supervisor is shutting down"));
    }
    if owner.context.containment.rung == ContainmentLevel::R4 {
        return Err(no_containment());
    }
    if let Some(refusal) = owner.spawn_refusal() {
        return Err(refusal);
    }
    check_spec(&spec, owner.context.config.grace_max_ms)?;
    check_caps(owner, gateway, user, &spec.kind)?;
    check_session(owner, gateway, &spec)?;
    let argv = wire::encode(&spec.argv, acp_shared::protocol::FRAME_BYTES_MAX)
        .map_err(|e| Refusal::new(RefusalCode::BadRequest, e.to_string()))?;
    let lease = new_lease(owner, gateway, user.uid, &spec, hex(argv), spec_hash);
    check_crashes(owner, &lease, &spec)?;
    Ok(Reservation::Run(Box::new(lease), Box::new(spec)))
}

fn new_lease(
    owner: &Owner,
    gateway: GatewayInstanceId,
    uid: u32,
    spec: &Spawn,
    command_hash: String,
    spec_hash: String,
) -> Lease {
    let context = &owner.context;
    Lease {
        lease_id: spec.lease_id,
        gateway,
        owner_uid: uid,
        session_key: spec.session_key.clone(),
        kind: spec.kind.clone(),
        graces: graces(spec),
        wrapper_root: context.wrapper_root.path().to_string_lossy().into_owned(),
        wrapper_path: String::new(),
        supervisor: context.me,
        scope: context.scope.clone(),
        bound: None,
        command_hash,
        spec_hash,
        cgroup_path: context.containment.leaf(spec.lease_id).map(|leaf| leaf.path().to_owned()),
        rung: context.containment.rung.as_str().to_owned(),
        started_at_ms: crate::context::wall_ms(),
        ended_at_ms: None,
        state: LeaseState::Reserved,
        state_reason: String::new(),
        last_evidence_json: None,
        exit: None,
        stdout_base: 0,
        stdout_end: 0,
        stdin_written: 0,
        released: false,
    }
}

/// Returns the grace periods of a lease. Standard input of a terminal is /dev/null, so there is no end of
/// file to wait for.
fn graces(spec: &Spawn) -> Graces {
    match spec.kind {
        LeaseKind::Agent => spec.graces,
        LeaseKind::Terminal { .. } => Graces { eof_ms: 0, ..spec.graces },
    }
}

/// Returns the refusal for a machine without containment: a tree that could not be found again is not
/// started.
pub(super) fn no_containment() -> Refusal {
    let why = "this machine cannot contain a process tree (level R4), so no agent can start; \
               `acp-supervisor doctor` shows what is missing";
    Refusal::new(RefusalCode::RungUnavailable, why)
}

fn conflict(spec: &Spawn) -> Refusal {
    Refusal::new(RefusalCode::LeaseConflict, format!("lease id {} is taken by another spawn", spec.lease_id))
}

fn check_spec(spec: &Spawn, grace_max_ms: u64) -> Result<(), Refusal> {
    let bad = |why: &str| Err(Refusal::new(RefusalCode::BadRequest, why));
    if spec.argv.first().is_none_or(String::is_empty) {
        return bad("argv names no program");
    }
    if spec.argv.len() > ARGUMENTS_MAX || spec.env.len() > ARGUMENTS_MAX {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("more than {ARGUMENTS_MAX} arguments or variables"),
        ));
    }
    if !spec.cwd.starts_with('/') {
        return bad("the working directory is not absolute");
    }
    let nul = |text: &String| text.contains('\0');
    if spec.argv.iter().any(nul) || nul(&spec.cwd) || spec.env.iter().any(|(k, v)| nul(k) || nul(v)) {
        return bad("a NUL byte in an argument, a variable or the working directory");
    }
    if spec.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        return bad("an environment variable without a name, or with '=' in it");
    }
    let graces = [spec.graces.eof_ms, spec.graces.term_ms, spec.graces.kill_ms];
    if graces.into_iter().any(|ms| ms > grace_max_ms) {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("a grace period is longer than {grace_max_ms} ms"),
        ));
    }
    Ok(())
}

/// Limit on living leases: maximum, scope as text, configuration key, and predicate for the counted leases.
type LeaseCap<'a> = (u64, &'a str, &'a str, &'a dyn Fn(&Lease) -> bool);

/// Returns the part of a limit that terminals may use: a quarter of it is reserved for agents.
const fn terminal_share(max: u64) -> u64 {
    max - max / 4
}

fn check_caps(
    owner: &Owner,
    gateway: GatewayInstanceId,
    user: &ClientUser,
    kind: &LeaseKind,
) -> Result<(), Refusal> {
    let (config, tenants) = (&owner.context.config, &owner.context.tenants);
    let tenant = tenant_of(tenants, user, gateway);
    let of_tenant = |l: &Lease| {
        let cell = owner.installations.get(&l.gateway).and_then(Installation::cell);
        tenant.is_some_and(|t| t.covers(l.owner_uid, cell, l.gateway))
    };
    let caps: [LeaseCap<'_>; 4] = [
        (config.leases_max, "of this supervisor", "leases_max", &|_| true),
        (config.leases_per_gateway_max, "of this gateway", "leases_per_gateway_max", &|l| {
            l.gateway == gateway
        }),
        (config.leases_per_user_max, "of this user", "leases_per_user_max", &|l| l.owner_uid == user.uid),
        (
            tenant.and_then(|t| t.leases_max).unwrap_or(u64::MAX),
            "of this tenant",
            "leases_max of its [[tenant]]",
            &of_tenant,
        ),
    ];
    let living = || owner.leases.values().map(|e| &e.lease).filter(|l| !l.state.is_ended());
    let is_terminal = |l: &Lease| l.parent().is_some();
    for (max, whose, key, of) in caps {
        let all = living().filter(|l| of(l)).count() as u64;
        let terminals = || living().filter(|l| of(l) && is_terminal(l)).count() as u64;
        let what = if all >= max {
            format!("the limit of {max} living leases {whose} is reached ({key}); close unused sessions")
        } else if *kind != LeaseKind::Agent && terminals() >= terminal_share(max) {
            let part = terminal_share(max);
            format!(
                "the limit of {part} terminals {whose} is reached, the rest of {key} is reserved for agents; \
                 end some terminals"
            )
        } else {
            continue;
        };
        let what = format!("{what}, or raise it in the supervisor's configuration");
        return Err(Refusal::new(RefusalCode::QuotaExceeded, what).retry_after(QUOTA_RETRY_MS));
    }
    Ok(())
}

/// Refuses a terminal beyond the limit of one agent.
fn check_terminals(owner: &Owner, parent: LeaseId) -> Result<(), Refusal> {
    let max = owner.context.config.terminals_per_agent_max;
    if (owner.terminals(parent).count() as u64) < max {
        return Ok(());
    }
    let why = format!(
        "the limit of {max} running terminals of this agent is reached (terminals_per_agent_max of the \
         supervisor); end or release one first"
    );
    Err(Refusal::new(RefusalCode::QuotaExceeded, why))
}

fn check_crashes(owner: &Owner, lease: &Lease, spec: &Spawn) -> Result<(), Refusal> {
    let Some(agent) = AgentKey::of(lease) else { return Ok(()) };
    owner.backoff.may_start(owner.context.now_ms(), &agent).map_err(|held| {
        let program = spec.argv.first().map_or("the agent", String::as_str);
        let why = format!("{program} {}", held.describe());
        Refusal::new(RefusalCode::CrashLoop, why).retry_after(held.retry_after_ms)
    })
}

fn check_session(owner: &Owner, gateway: GatewayInstanceId, spec: &Spawn) -> Result<(), Refusal> {
    match &spec.kind {
        LeaseKind::Agent => {
            let same = |e: &&LeaseEntry| {
                e.lease.gateway == gateway
                    && e.lease.kind == LeaseKind::Agent
                    && e.lease.session_key == spec.session_key
                    && !e.lease.state.is_ended()
            };
            owner.leases.values().find(same).map_or(Ok(()), |e| {
                let why = format!(
                    "session {} still has lease {} ({})",
                    spec.session_key, e.lease.lease_id, e.lease.state
                );
                Err(Refusal::new(RefusalCode::SessionBusy, why).retry_after(SESSION_RETRY_MS))
            })
        }
        LeaseKind::Terminal { parent_lease_id, output_bytes_max } => {
            if *output_bytes_max > owner.context.config.terminal_bytes_max {
                let max = owner.context.config.terminal_bytes_max;
                return Err(Refusal::new(
                    RefusalCode::TooLarge,
                    format!("a terminal may keep at most {max} bytes of output"),
                ));
            }
            let parent = owner.leases.get(parent_lease_id).filter(|e| e.lease.gateway == gateway);
            match parent {
                None => Err(Refusal::new(RefusalCode::LeaseUnknown, "this gateway has no such parent lease")),
                Some(e) if e.lease.kind != LeaseKind::Agent => {
                    Err(Refusal::new(RefusalCode::BadRequest, "the parent lease belongs to a terminal"))
                }
                Some(e) if e.is_ending() => {
                    Err(Refusal::new(RefusalCode::LeaseEnded, "the parent lease is ending"))
                }
                Some(_) => check_terminals(owner, *parent_lease_id),
            }
        }
    }
}
