//! Verify: compares each recorded fact with its current value, and returns the verdict.

use crate::context::Context;
use crate::core::lease::{BoundProcesses, Lease, ProcessRecord};
use crate::core::verify::{Evidence, Marker, ProcessState, SignalGuard, verify};
use crate::lease::tree_kill::{self, TreeQuery};
use crate::owner::{ClientKind, Owner};
use crate::relay::connection::Responder;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{EvidenceFact, EvidenceReport, LeaseInfo, Refusal, RefusalCode, Reply};
use std::io;
use std::sync::Arc;

pub(super) fn handle(owner: &mut Owner, who: ClientKind, lease_id: LeaseId, to: Responder) {
    let (lease, info) = match owner.visible_lease(who, lease_id) {
        Ok(entry) => (entry.lease.clone(), entry.info()),
        Err(refusal) => return to.answer(Err(refusal)),
    };
    let (context, guard) = (Arc::clone(&owner.context), owner.guard(&lease));
    tokio::spawn(async move {
        let report = report(&context, lease, info, guard).await;
        to.answer(
            report.map_err(|e| Refusal::new(RefusalCode::Internal, e.to_string())).map(Reply::Evidence),
        );
    });
}

async fn report(
    context: &Arc<Context>,
    lease: Lease,
    mut info: LeaseInfo,
    guard: SignalGuard,
) -> io::Result<EvidenceReport> {
    let target = TreeQuery::of(&lease, &context.containment.subtree);
    context
        .blocking_limited(move |sys| {
            let found = tree_kill::find_now(sys, &target, &guard)?;
            let tree: Vec<(i32, String)> = found.members.iter().map(|m| (m.pid, m.name.clone())).collect();
            info.memory_bytes = crate::sys::users::memory_bytes(&found.pids());
            let mut facts = Vec::new();
            let (verdict, why) = match lease.bound {
                None => (if found.is_gone() { "gone" } else { "unknown" }, "no pid was recorded"),
                Some(BoundProcesses { wrapper, adapter, pgid, sid }) => {
                    let (_, now) = tree_kill::read_evidence(sys, wrapper.pid);
                    let (_, of_adapter) = tree_kill::read_evidence(sys, adapter.pid);
                    facts.extend(all_facts("wrapper", &lease, wrapper, wrapper.pid, sid, &now));
                    facts.extend(all_facts("adapter", &lease, adapter, pgid, sid, &of_adapter));
                    let verdict = verify(&target.claim(wrapper), &now, &guard);
                    (verdict.as_str(), verdict.why())
                }
            };
            let (verdict, why) = (verdict.to_owned(), why.to_owned());
            Ok(EvidenceReport { lease: info, facts, verdict, why, tree })
        })
        .await
}

fn fact(subject: &str, name: &str, recorded: Option<String>, live: Option<String>) -> EvidenceFact {
    let agrees = recorded.as_ref().zip(live.as_ref()).map(|(a, b)| a == b);
    EvidenceFact {
        subject: subject.to_owned(),
        name: name.to_owned(),
        recorded: recorded.unwrap_or_default(),
        live: live.unwrap_or_default(),
        agrees,
    }
}

/// Returns all facts about one process.
fn all_facts(
    subject: &str,
    lease: &Lease,
    process: ProcessRecord,
    pgid: i32,
    sid: i32,
    now: &Evidence,
) -> Vec<EvidenceFact> {
    let text = |value: Option<u64>| value.map(|v| v.to_string());
    let number = |value: Option<i32>| value.map(|v| v.to_string());
    let life = match now.life {
        ProcessState::Running => Some("running"),
        ProcessState::Zombie => Some("zombie"),
        ProcessState::Gone => Some("gone"),
        ProcessState::Unreadable => None,
    };
    let (of_lease, of_gateway) = match &now.marker {
        Marker::Pair { lease, gateway } => (Some(lease.clone()), Some(gateway.clone())),
        Marker::Missing | Marker::Ambiguous | Marker::Unreadable => (None, None),
    };
    let exe = (subject == "wrapper").then(|| lease.wrapper_path.clone());
    let scope = now.scope.as_ref();
    let living_pid = Some(now.pid).filter(|_| now.life != ProcessState::Gone);
    let fact = |name, recorded, live| fact(subject, name, recorded, live);
    vec![
        fact("state", Some("running".into()), life.map(str::to_owned)),
        fact("boot_id", Some(lease.scope.boot_id.clone()), scope.map(|s| s.boot_id.clone())),
        fact("pid_namespace", text(Some(lease.scope.pidns)), scope.map(|s| s.pidns.to_string())),
        fact("time_namespace", text(lease.scope.timens), text(scope.and_then(|s| s.timens))),
        fact("pid", number(Some(process.pid)), number(living_pid)),
        fact("start_ticks", text(Some(process.start_ticks)), text(now.start_ticks)),
        fact("pidfs_inode", text(process.inode), text(now.inode)),
        fact("pgid", number(Some(pgid)), number(now.pgid)),
        fact("sid", number(Some(sid)), number(now.sid)),
        fact("env_lease_id", Some(lease.lease_id.to_string()), of_lease),
        fact("env_gateway_instance_id", Some(lease.gateway.to_string()), of_gateway),
        fact("exe", exe, now.exe.clone()),
        fact("cgroup", lease.cgroup_path.clone(), now.cgroup.clone()),
    ]
}
