//! Ending what an earlier supervisor left behind: from leases alone, each process verified, before the first
//! connection is taken.

use crate::context::{Context, wall_ms};
use crate::core::cgroup::Subtree;
use crate::core::lease::{Lease, LeaseEvent, Place, REASON_BYTES_MAX};
use crate::core::reap::{Findings, Plan, Stage, plan};
use crate::core::tail::head;
use crate::core::tree::Proc;
use crate::core::verify::{Guard, Holder, holder};
use crate::sweep::{self, Found, Target};
use crate::sys::{Signal, Sys};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, ReapLine};
use std::collections::{HashMap, HashSet};
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
    /// Whether its tree was looked for: what another supervisor holds is none of our business.
    looked: bool,
    /// Who is not touched by it.
    guard: Guard,
}

/// Everything that is read once for many leases.
struct Scene<'a> {
    subtree: &'a Subtree,
    snapshot: Vec<Proc>,
    markers: HashMap<String, Vec<i32>>,
    /// The roots that the leases name.
    roots: Vec<(LeaseId, i32)>,
}

impl<'a> Scene<'a> {
    fn read<S: Sys>(sys: &S, leases: &[Lease], subtree: &'a Subtree) -> io::Result<Self> {
        let here = sys.here();
        let lies_here = |l: &&Lease| here.as_ref().is_some_and(|here| l.scope.seen_from(here) == Place::Here);
        let oldest = leases.iter().filter(lies_here).map(|l| Target::of(l, subtree).not_before_ticks).min();
        let Some(oldest) = oldest else {
            return Ok(Self { subtree, snapshot: Vec::new(), markers: HashMap::new(), roots: Vec::new() });
        };
        let snapshot = sys.snapshot()?;
        let markers = sweep::markers(sys, &snapshot, oldest);
        let living = leases.iter().filter(lies_here).filter(|l| !l.state.is_ended());
        let roots = living.filter_map(|l| Some((l.lease_id, l.bound?.wrapper.pid))).collect();
        Ok(Self { subtree, snapshot, markers, roots })
    }

    /// Who is never signalled for the sake of this lease: the roots of the others are theirs, whoever holds them.
    fn guard(&self, lease: &Lease, guard: &Guard) -> Guard {
        let mut guard = guard.clone();
        let own = lease.bound.map(|b| b.wrapper.pid);
        let others = self.roots.iter().filter(|(id, pid)| *id != lease.lease_id && Some(*pid) != own);
        guard.other_roots.extend(others.map(|(_, pid)| *pid));
        guard
    }
}

fn examine<S: Sys>(sys: &S, lease: &Lease, guard: &Guard, scene: &Scene<'_>) -> Examined<S::Handle> {
    let (_, supervisor) = sweep::look(sys, lease.supervisor.pid);
    let holder = holder(lease.supervisor, &lease.scope, &supervisor);
    let (target, guard) = (Target::of(lease, scene.subtree), &scene.guard(lease, guard));
    let found = if holder == Holder::Dead {
        let marked = scene.markers.get(&lease.lease_id.to_string()).map(Vec::as_slice).unwrap_or_default();
        sweep::find(sys, &target, guard, &scene.snapshot, marked)
    } else {
        Found::default()
    };
    let findings = Findings { here: sys.here(), holder, owned: found.pids(), unknown: found.unknown };
    Examined { plan: plan(lease, &findings), found, looked: holder == Holder::Dead, guard: guard.clone() }
}

/// What would be done about each lease.
///
/// # Errors
/// The process list cannot be read.
pub fn dry_run<S: Sys>(
    sys: &S,
    leases: &[Lease],
    subtree: &Subtree,
    guard: &Guard,
) -> io::Result<Vec<ReapLine>> {
    let scene = Scene::read(sys, leases, subtree)?;
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
    let mut ending = Ending::default();
    loop {
        let kill = context.now_ms() >= term_until;
        let Round { plans, survivors, targets } = round(context, leases, kill, &mut ending).await?;
        lines.get_or_insert_with(|| {
            leases.iter().zip(&plans).map(|(lease, plan)| line(lease, plan)).collect()
        });
        record(context, leases, &plans).await;
        if targets == 0 {
            return Ok(lines.unwrap_or_default());
        }
        if context.now_ms() >= kill_until {
            name_survivors(context, leases, &plans, &survivors);
            return Ok(lines.unwrap_or_default());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What one reaping has done so far.
#[derive(Default)]
struct Ending {
    /// Processes that got their SIGTERM.
    told: HashSet<i32>,
    /// Leases of which something was signalled.
    leases: HashSet<LeaseId>,
}

/// What one round came to.
struct Round {
    /// What was decided about each lease.
    plans: Vec<Plan>,
    /// What of each was there when it was looked at, for people.
    survivors: Vec<String>,
    /// How many leases are not done with.
    targets: usize,
}

/// Looks at every lease and signals what is verified: SIGTERM once to each process, SIGKILL after the grace.
async fn round<S: Sys>(
    context: &Arc<Context<S>>,
    leases: &mut [Lease],
    kill: bool,
    ending: &mut Ending,
) -> io::Result<Round> {
    // Closing is on record before the first signal.
    let (rows, guard, subtree) = (leases.to_vec(), context.guard(None), context.holding.subtree.clone());
    let examined = context
        .blocking(move |sys| {
            let scene = Scene::read(sys, &rows, &subtree)?;
            Ok(rows.iter().map(|lease| examine(sys, lease, &guard, &scene)).collect::<Vec<_>>())
        })
        .await?;
    let mut targets = 0;
    for (lease, one) in leases.iter_mut().zip(&examined) {
        if one.looked && !lease.state.is_ended() {
            lease.last_evidence_json = Some(one.found.json(wall_ms()));
        }
        let Plan::Signal(pids) = &one.plan else {
            // What is being ended here and cannot be told just now may be on its way out.
            targets += usize::from(one.found.unknown.is_some() && ending.leases.contains(&lease.lease_id));
            continue;
        };
        targets += 1;
        ending.leases.insert(lease.lease_id);
        if lease.state != LeaseState::Closing {
            if let Err(error) = lease.apply(LeaseEvent::Close, "an orphan of an earlier supervisor") {
                tracing::error!(%error, lease_id = %lease.lease_id, "cannot be reaped");
                continue;
            }
            context.store.record(lease, "the reaping of a lease").await;
        }
        if kill {
            tracing::warn!(lease_id = %lease.lease_id, stage = ?Stage::Kill, ?pids, "orphans get SIGKILL");
            let target = Target::of(lease, &context.holding.subtree);
            sweep::kill_group(context.sys.as_ref(), &target, &one.guard, Duration::ZERO);
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Kill));
        } else if pids.iter().any(|pid| !ending.told.contains(pid)) {
            tracing::info!(lease_id = %lease.lease_id, stage = ?Stage::Term, ?pids, "orphans get SIGTERM");
            ending.told.extend(pids);
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Term));
            drop(sweep::signal_all(context.sys.as_ref(), &one.found, Signal::Cont));
        }
    }
    let survivors = examined.iter().map(|one| one.found.survivors()).collect();
    Ok(Round { plans: examined.into_iter().map(|one| one.plan).collect(), survivors, targets })
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
        context.leave_nothing(lease);
    }
}

fn name_survivors<S: Sys>(context: &Context<S>, leases: &mut [Lease], plans: &[Plan], survivors: &[String]) {
    for ((lease, plan), survivors) in leases.iter_mut().zip(plans).zip(survivors) {
        let Plan::Signal(_) = plan else { continue };
        tracing::error!(lease_id = %lease.lease_id, survivors, "SIGKILL did not end these");
        let reason = format!("an orphan of an earlier supervisor; SIGKILL did not end: {survivors}");
        lease.state_reason = head(&reason, REASON_BYTES_MAX).to_owned();
        context.store.post_lease(lease);
    }
}
