//! Ending what an earlier supervisor left behind: from leases alone, each process verified, before the first
//! connection is taken.

use crate::context::{Context, wall_ms};
use crate::core::lease::{Lease, LeaseEvent, Place};
use crate::core::reap::{Findings, Plan, Stage, plan};
use crate::core::tree::Proc;
use crate::core::verify::{Guard, Holder, holder};
use crate::sweep::{self, Found, Target};
use crate::sys::{Signal, Sys};
use acp_shared::protocol::{LeaseState, ReapLine};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often what was signalled is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// One lease, what was found of it, and what to do.
#[derive(Debug)]
pub struct Examined<H> {
    /// What was found.
    pub found: Found<H>,
    /// What to do.
    pub plan: Plan,
}

/// Everything that is read once for many leases.
struct Scene {
    snapshot: Vec<Proc>,
    markers: HashMap<String, Vec<i32>>,
}

impl Scene {
    fn read<S: Sys>(sys: &S, leases: &[Lease]) -> io::Result<Self> {
        let here = sys.here();
        let lies_here = |l: &&Lease| here.as_ref().is_some_and(|here| l.scope.seen_from(here) == Place::Here);
        let Some(oldest) = leases.iter().filter(lies_here).map(|l| Target::of(l).not_before_ticks).min()
        else {
            return Ok(Self { snapshot: Vec::new(), markers: HashMap::new() });
        };
        let snapshot = sys.snapshot()?;
        let markers = sweep::markers(sys, &snapshot, oldest);
        Ok(Self { snapshot, markers })
    }
}

fn examine<S: Sys>(sys: &S, lease: &Lease, guard: &Guard, scene: &Scene) -> Examined<S::Handle> {
    let (_, supervisor) = sweep::look(sys, lease.supervisor.pid);
    let holder = holder(lease.supervisor, &lease.scope, &supervisor);
    let target = Target::of(lease);
    let found = if holder == Holder::Dead {
        let marked = scene.markers.get(&lease.lease_id.to_string()).map(Vec::as_slice).unwrap_or_default();
        sweep::find(sys, &target, guard, &scene.snapshot, marked)
    } else {
        Found { members: Vec::new(), unknown: None }
    };
    let findings = Findings { here: sys.here(), holder, owned: found.pids(), unknown: found.unknown };
    Examined { plan: plan(lease, &findings), found }
}

/// What would be done about each lease.
///
/// # Errors
/// The process list cannot be read.
pub fn dry_run<S: Sys>(sys: &S, leases: &[Lease], guard: &Guard) -> io::Result<Vec<ReapLine>> {
    let scene = Scene::read(sys, leases)?;
    Ok(leases.iter().map(|lease| line(lease, &examine(sys, lease, guard, &scene).plan)).collect())
}

fn line(lease: &Lease, plan: &Plan) -> ReapLine {
    let pids = match plan {
        Plan::Signal(pids) => pids.clone(),
        Plan::Mark(..) | Plan::Leave(_) => Vec::new(),
    };
    ReapLine {
        lease_id: lease.lease_id,
        state: lease.state,
        action: plan.action().to_owned(),
        pids,
        why: plan.why().to_owned(),
    }
}

/// Ends the orphans among `leases` and records what became of each. Returns what was decided first about each.
pub async fn reap<S: Sys>(context: &Arc<Context<S>>, leases: &mut [Lease]) -> io::Result<Vec<ReapLine>> {
    let mut lines: Option<Vec<ReapLine>> = None;
    let began = context.now_ms();
    let term_until = began.saturating_add(context.config.reap_term_ms);
    let kill_until = term_until.saturating_add(context.config.reap_kill_ms);
    let mut signalled = HashMap::new();
    loop {
        let kill = context.now_ms() >= term_until;
        let (plans, targets) = round(context, leases, kill, &mut signalled).await?;
        lines.get_or_insert_with(|| {
            leases.iter().zip(&plans).map(|(lease, plan)| line(lease, plan)).collect()
        });
        record(context, leases, &plans).await;
        if targets == 0 {
            return Ok(lines.unwrap_or_default());
        }
        if context.now_ms() >= kill_until {
            name_survivors(context, leases, &plans).await;
            return Ok(lines.unwrap_or_default());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Looks at every lease and signals what is verified: SIGTERM once to each process, SIGKILL after the grace.
async fn round<S: Sys>(
    context: &Arc<Context<S>>,
    leases: &mut [Lease],
    kill: bool,
    signalled: &mut HashMap<i32, ()>,
) -> io::Result<(Vec<Plan>, usize)> {
    // Closing is on record before the first signal.
    let (rows, guard) = (leases.to_vec(), context.guard(None));
    let examined = context
        .blocking(move |sys| {
            let scene = Scene::read(sys, &rows)?;
            Ok(rows.iter().map(|lease| examine(sys, lease, &guard, &scene)).collect::<Vec<_>>())
        })
        .await?;
    let mut targets = 0;
    for (lease, one) in leases.iter_mut().zip(&examined) {
        if !lease.state.is_ended() {
            lease.last_evidence_json = Some(one.found.json(wall_ms()));
        }
        let Plan::Signal(pids) = &one.plan else { continue };
        targets += 1;
        if lease.state != LeaseState::Closing {
            if let Err(error) = lease.apply(LeaseEvent::Close, "an orphan of an earlier supervisor") {
                tracing::error!(%error, lease_id = %lease.lease_id, "cannot be reaped");
                continue;
            }
            context.store.record(lease, "the reaping of a lease").await;
        }
        if kill {
            tracing::warn!(lease_id = %lease.lease_id, stage = ?Stage::Kill, ?pids, "orphans get SIGKILL");
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Kill));
        } else if pids.iter().any(|pid| !signalled.contains_key(pid)) {
            tracing::info!(lease_id = %lease.lease_id, stage = ?Stage::Term, ?pids, "orphans get SIGTERM");
            signalled.extend(pids.iter().map(|pid| (*pid, ())));
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Term));
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Cont));
        }
    }
    Ok((examined.into_iter().map(|one| one.plan).collect(), targets))
}

async fn record<S: Sys>(context: &Arc<Context<S>>, leases: &mut [Lease], plans: &[Plan]) {
    for (lease, plan) in leases.iter_mut().zip(plans) {
        let Plan::Mark(event, why) = plan else { continue };
        let from = lease.state;
        if let Err(error) = lease.apply(*event, why) {
            tracing::error!(%error, lease_id = %lease.lease_id, "a lease took an impossible turn");
            continue;
        }
        tracing::info!(lease_id = %lease.lease_id, stage = ?Stage::Settle, %from, to = %lease.state, why, "lease");
        lease.ended_at_ms = Some(wall_ms());
        context.store.record(lease, "the end of a lease").await;
        context.wrapper_root.remove(lease.gateway, lease.lease_id);
    }
}

async fn name_survivors<S: Sys>(context: &Arc<Context<S>>, leases: &mut [Lease], plans: &[Plan]) {
    for (lease, plan) in leases.iter_mut().zip(plans) {
        let Plan::Signal(pids) = plan else { continue };
        tracing::error!(lease_id = %lease.lease_id, ?pids, "SIGKILL did not end these");
        lease.state_reason = format!("an orphan of an earlier supervisor; SIGKILL did not end: {pids:?}");
        context.store.post_lease(lease);
    }
}
