//! Reaping of processes that an earlier supervisor left behind, based on leases. Each process is verified. At
//! start this happens before the first connection is accepted.

use crate::context::{Context, wall_ms};
use crate::core::cgroup::CgroupSubtree;
use crate::core::lease::{Lease, LeaseEvent, ProcessRecord, ScopeRelation, UNENDED};
use crate::core::reap_plan::{Findings, ReapPlan, ReapStage, plan};
use crate::core::retention::LostFinding;
use crate::core::tree::Proc;
use crate::core::verify::{SignalGuard, SpawnerState, spawner_state};
use crate::lease::tree_kill::{self, TreeQuery, TreeScan};
use crate::sys::blocking_io;
use crate::sys::child::wait_for_ends;
use crate::sys::{Signal, Sys};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, ReapLine};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest interval between two checks of signalled processes.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// Lease with the processes found and the resulting plan.
#[derive(Debug)]
pub struct ExaminedLease<H> {
    /// Processes found.
    pub found: TreeScan<H>,
    /// Resulting plan.
    pub plan: ReapPlan,
    /// True if the tree was searched. Trees of another supervisor are not.
    was_searched: bool,
    /// Processes that must not be signalled for this lease.
    guard: SignalGuard,
}

/// Data that is read once for many leases.
struct ReapSnapshot<'a> {
    subtree: &'a CgroupSubtree,
    snapshot: Vec<Proc>,
    markers: HashMap<String, Vec<i32>>,
    /// Root pids recorded in the leases.
    roots: Vec<(LeaseId, i32)>,
}

impl<'a> ReapSnapshot<'a> {
    fn read<S: Sys>(sys: &S, leases: &[Lease], subtree: &'a CgroupSubtree) -> io::Result<Self> {
        let here = sys.current_scope();
        // Quarantined records are not used for a search.
        let lies_here = |l: &&Lease| {
            here.as_ref().is_some_and(|here| l.scope.relation_to(here) == ScopeRelation::Here)
                && !l.is_quarantined()
        };
        let since = |l| TreeQuery::of(l, subtree).since_ticks(sys).unwrap_or(0);
        let oldest = leases.iter().filter(lies_here).map(since).min();
        let Some(oldest) = oldest else {
            return Ok(Self { subtree, snapshot: Vec::new(), markers: HashMap::new(), roots: Vec::new() });
        };
        let snapshot = sys.snapshot()?;
        let markers = tree_kill::markers(sys, &snapshot, oldest);
        let living = leases.iter().filter(lies_here).filter(|l| !l.state.is_ended());
        let roots = living.filter_map(|l| Some((l.lease_id, l.bound?.wrapper.pid))).collect();
        Ok(Self { subtree, snapshot, markers, roots })
    }

    /// Returns the processes that must not be signalled for this lease, including the roots of all other
    /// leases.
    fn guard(&self, lease: &Lease, guard: &SignalGuard) -> SignalGuard {
        let mut guard = guard.clone();
        let own = lease.bound.map(|b| b.wrapper.pid);
        let others = self.roots.iter().filter(|(id, pid)| *id != lease.lease_id && Some(*pid) != own);
        guard.other_roots.extend(others.map(|(_, pid)| *pid));
        guard
    }
}

/// Determines if a supervisor manages the lease. A lease that this supervisor itself has declared lost is not
/// managed.
fn judge_spawner<S: Sys>(sys: &S, lease: &Lease, watch: &ReaperContext) -> SpawnerState {
    let given_up = lease.state == LeaseState::Lost || watch.being_ended.contains(&lease.lease_id);
    if given_up && lease.supervisor == watch.me {
        return SpawnerState::Dead;
    }
    let (_, supervisor) = tree_kill::read_evidence(sys, lease.supervisor.pid);
    spawner_state(lease.supervisor, &lease.scope, &supervisor)
}

fn examine<S: Sys>(
    sys: &S,
    lease: &Lease,
    watch: &ReaperContext,
    scene: &ReapSnapshot<'_>,
) -> ExaminedLease<S::Handle> {
    let holder = judge_spawner(sys, lease, watch);
    let was_searched = holder == SpawnerState::Dead && !lease.is_quarantined();
    let (target, guard) = (TreeQuery::of(lease, scene.subtree), scene.guard(lease, &watch.guard));
    let found = if was_searched {
        let marked = scene.markers.get(&lease.lease_id.to_string()).map(Vec::as_slice).unwrap_or_default();
        tree_kill::find(sys, &target, &guard, &scene.snapshot, marked)
    } else {
        TreeScan::default()
    };
    let findings = Findings {
        here: sys.current_scope(),
        holder,
        owned: found.pids(),
        unknown: found.unknown,
        doubt: found.doubt,
    };
    ExaminedLease { plan: plan(lease, &findings), found, was_searched, guard }
}

/// Identity of this supervisor, and the processes protected from its signals.
#[derive(Debug, Clone)]
pub struct ReaperContext {
    /// Process record of this supervisor, as stored in leases.
    pub me: ProcessRecord,
    /// Processes that must not be signalled.
    pub guard: SignalGuard,
    /// Cgroups of leases.
    pub subtree: CgroupSubtree,
    /// Leases whose processes are being ended by the current reap.
    being_ended: HashSet<LeaseId>,
}

impl ReaperContext {
    /// Creates the context of a supervisor.
    #[must_use]
    pub fn of<S: Sys>(context: &Context<S>) -> Self {
        Self {
            me: context.me,
            guard: context.guard(None),
            subtree: context.containment.subtree.clone(),
            being_ended: HashSet::new(),
        }
    }
}

/// Returns the planned action for each lease.
///
/// # Errors
/// The process list cannot be read.
pub fn dry_run<S: Sys>(sys: &S, leases: &[Lease], watch: &ReaperContext) -> io::Result<Vec<ReapLine>> {
    let scene = ReapSnapshot::read(sys, leases, &watch.subtree)?;
    Ok(leases.iter().map(|lease| line(lease, &examine(sys, lease, watch, &scene).plan)).collect())
}

fn line(lease: &Lease, plan: &ReapPlan) -> ReapLine {
    let pids = match plan {
        ReapPlan::Signal(pids) => pids.clone(),
        ReapPlan::Mark(..) | ReapPlan::StayLost(_) | ReapPlan::Leave(_) => Vec::new(),
    };
    ReapLine {
        lease_id: lease.lease_id,
        state: lease.state,
        action: plan.action().to_owned(),
        pids,
        why: plan.why().to_owned(),
    }
}

/// Result of a reap.
#[derive(Debug, Default)]
pub struct ReapResult {
    /// First decision about each lease.
    pub lines: Vec<ReapLine>,
    /// Current evidence about lost leases.
    pub lost_findings: Vec<(LeaseId, LostFinding)>,
}

impl ReapResult {
    fn of(leases: &[Lease], lines: Option<Vec<ReapLine>>, plans: &[ReapPlan]) -> Self {
        let rest = |(lease, plan): (&Lease, &ReapPlan)| match plan {
            ReapPlan::StayLost(rest) => Some((lease.lease_id, *rest)),
            ReapPlan::Signal(_) | ReapPlan::Mark(..) | ReapPlan::Leave(_) => None,
        };
        let lost_findings = leases.iter().zip(plans).filter_map(rest).collect();
        Self { lines: lines.unwrap_or_default(), lost_findings }
    }
}

/// Ends the orphans among `leases` and records the results. If the store is read-only, nothing is signalled
/// and the result is empty.
///
/// # Errors
/// The process list cannot be read; results recorded before that remain.
pub async fn reap<S: Sys>(context: &Arc<Context<S>>, leases: &mut [Lease]) -> io::Result<ReapResult> {
    if context.store.read_only().is_some() {
        return Ok(ReapResult::default());
    }
    let mut lines: Option<Vec<ReapLine>> = None;
    let began = context.now_ms();
    let term_until = began.saturating_add(context.config.reap_term_ms);
    let kill_until = term_until.saturating_add(context.config.reap_kill_ms);
    let mut ending = ReapState::default();
    loop {
        let kill = context.now_ms() >= term_until;
        let RoundResult { plans, survivors, targets, terminated } =
            reap_round(context, leases, kill, &mut ending).await?;
        lines.get_or_insert_with(|| {
            leases.iter().zip(&plans).map(|(lease, plan)| line(lease, plan)).collect()
        });
        record_ends(context, leases, &plans).await;
        if targets == 0 {
            return Ok(ReapResult::of(leases, lines, &plans));
        }
        if context.now_ms() >= kill_until {
            name_survivors(context, leases, &plans, &survivors);
            return Ok(ReapResult::of(leases, lines, &plans));
        }
        wait_for_ends(&terminated, ROUND_PAUSE).await;
    }
}

/// State of a reap over its rounds.
#[derive(Default)]
struct ReapState {
    /// Processes that got SIGTERM.
    sigterm_sent: HashSet<i32>,
    /// Leases with a signalled process.
    leases: HashSet<LeaseId>,
}

/// Result of one round.
struct RoundResult<H> {
    /// Decision about each lease.
    plans: Vec<ReapPlan>,
    /// Description of the processes found for each lease.
    survivors: Vec<String>,
    /// Number of leases that are not finished.
    targets: usize,
    /// Processes of the trees to which SIGTERM was sent in this round.
    terminated: Vec<Arc<H>>,
}

/// Checks every lease and signals verified processes: SIGTERM once to each process, SIGKILL after the grace.
async fn reap_round<S: Sys>(
    context: &Arc<Context<S>>,
    leases: &mut [Lease],
    kill: bool,
    ending: &mut ReapState,
) -> io::Result<RoundResult<S::Handle>> {
    let being_ended = ending.leases.clone();
    let (rows, watch) = (leases.to_vec(), ReaperContext { being_ended, ..ReaperContext::of(context) });
    let examined = context
        .blocking(move |sys| {
            let scene = ReapSnapshot::read(sys, &rows, &watch.subtree)?;
            Ok(rows.iter().map(|lease| examine(sys, lease, &watch, &scene)).collect::<Vec<_>>())
        })
        .await?;
    let mut targets = 0;
    for (lease, one) in leases.iter().zip(&examined) {
        if matches!(one.plan, ReapPlan::Signal(_)) {
            targets += 1;
            ending.leases.insert(lease.lease_id);
        } else {
            // A process that is being ended and cannot be read may be exiting.
            targets += usize::from(one.found.unknown.is_some() && ending.leases.contains(&lease.lease_id));
        }
    }
    record_closing(context, leases, &examined).await;
    let mut terminated = Vec::new();
    for (lease, one) in leases.iter().zip(&examined) {
        let ReapPlan::Signal(pids) = &one.plan else { continue };
        if kill {
            tracing::warn!(
                lease_id = %lease.lease_id,
                stage = ?ReapStage::Kill,
                ?pids,
                "sending SIGKILL to orphans"
            );
            let target = TreeQuery::of(lease, &context.containment.subtree);
            tree_kill::kill_group(context.sys.as_ref(), &target, &one.guard, Duration::ZERO);
            drop(tree_kill::signal_all(context.sys.as_ref(), &one.found, Signal::Kill));
        } else if pids.iter().any(|pid| !ending.sigterm_sent.contains(pid)) {
            tracing::info!(
                lease_id = %lease.lease_id,
                stage = ?ReapStage::Term,
                ?pids,
                "sending SIGTERM to orphans"
            );
            ending.sigterm_sent.extend(pids);
            drop(tree_kill::signal_all(context.sys.as_ref(), &one.found, Signal::Term));
            drop(tree_kill::signal_all(context.sys.as_ref(), &one.found, Signal::Cont));
            terminated.extend(one.found.handles());
        }
    }
    let survivors = examined.iter().map(|one| one.found.survivors()).collect();
    let plans = examined.into_iter().map(|one| one.plan).collect();
    Ok(RoundResult { plans, survivors, targets, terminated })
}

/// Records the closing before the first signal, for all leases in as few commits as possible.
async fn record_closing<S: Sys, H>(
    context: &Arc<Context<S>>,
    leases: &mut [Lease],
    examined: &[ExaminedLease<H>],
) {
    let mut begun = HashSet::new();
    for (lease, one) in leases.iter_mut().zip(examined) {
        let was_lost = lease.state == LeaseState::Lost;
        if matches!(one.plan, ReapPlan::Signal(_)) && lease.state != LeaseState::Closing {
            let why = if was_lost {
                tracing::warn!(lease_id = %lease.lease_id, "process tree of lost lease found");
                "it was lost, and its tree was found again"
            } else {
                "an orphan of an earlier supervisor"
            };
            match lease.apply(LeaseEvent::Close, why) {
                Ok(()) => drop(begun.insert(lease.lease_id)),
                Err(error) => tracing::error!(%error, lease_id = %lease.lease_id, "lease cannot be reaped"),
            }
        }
        if one.was_searched && !lease.state.is_ended() {
            lease.last_evidence_json = Some(one.found.json(wall_ms()));
        }
    }
    let begun: Vec<&Lease> = leases.iter().filter(|l| begun.contains(&l.lease_id)).collect();
    context.store.record_all(&begun, "reaping").await;
}

async fn record_ends<S: Sys>(context: &Arc<Context<S>>, leases: &mut [Lease], plans: &[ReapPlan]) {
    let mut ended = HashSet::new();
    for (lease, plan) in leases.iter_mut().zip(plans) {
        let ReapPlan::Mark(event, why) = plan else { continue };
        let from = lease.state;
        if let Err(error) = lease.apply(*event, why) {
            tracing::error!(%error, lease_id = %lease.lease_id, "invalid lease transition");
            continue;
        }
        tracing::info!(
            lease_id = %lease.lease_id,
            stage = ?ReapStage::Settle,
            %from,
            to = %lease.state,
            why,
            "lease state changed"
        );
        lease.ended_at_ms = Some(wall_ms());
        ended.insert(lease.lease_id);
    }
    let ended: Vec<&Lease> = leases.iter().filter(|l| ended.contains(&l.lease_id)).collect();
    context.store.record_all(&ended, "end").await;
    let removed: Vec<_> = ended.into_iter().map(|lease| context.spawn_cleanup(lease)).collect();
    if !removed.is_empty() {
        blocking_io::wait_for_jobs(removed).await;
    }
}

fn name_survivors<S: Sys>(
    context: &Context<S>,
    leases: &mut [Lease],
    plans: &[ReapPlan],
    survivors: &[String],
) {
    for ((lease, plan), survivors) in leases.iter_mut().zip(plans).zip(survivors) {
        let ReapPlan::Signal(_) = plan else { continue };
        tracing::error!(lease_id = %lease.lease_id, survivors, "orphans survived SIGKILL");
        lease.explain(&format!("an orphan of an earlier supervisor; {UNENDED}: {survivors}"));
        context.store.post_lease(lease);
    }
}
