//! Plans for the leases of earlier supervisors. Plans start from lease records, never from processes that
//! merely look like agents.

use crate::core::lease::{EndedTree, Lease, LeaseEvent, PidScope, ScopeRelation, ending_event};
use crate::core::retention::LostFinding;
use crate::core::verify::SpawnerState;

/// Evidence about one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Scope of this supervisor; `None` if unreadable.
    pub here: Option<PidScope>,
    /// Life state of the lease's supervisor.
    pub holder: SpawnerState,
    /// Verified processes of the tree to signal, children first.
    pub owned: Vec<i32>,
    /// Reason why the verdict on some process of the tree is unknown, if any.
    pub unknown: Option<&'static str>,
    /// Reason why a recorded process is neither proved dead nor proved to belong to the lease, if any.
    pub doubt: Option<&'static str>,
}

/// Stage of ending an orphaned tree, in order. The effects of each stage are recorded before the next one
/// begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReapStage {
    /// Opens and verifies its processes.
    Examine,
    /// Stores the lease as closing, before anything is signalled.
    Record,
    /// Sends SIGTERM and SIGCONT to each verified process.
    Term,
    /// Sends SIGKILL to each process left after the grace.
    Kill,
    /// No process is left: stores the end of the lease.
    Settle,
}

impl ReapStage {
    /// All stages, in order.
    pub const ALL: [Self; 5] = [Self::Examine, Self::Record, Self::Term, Self::Kill, Self::Settle];
}

/// Plan for one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReapPlan {
    /// End these verified processes.
    Signal(Vec<i32>),
    /// No process is left: apply this event.
    Mark(LeaseEvent, &'static str),
    /// The lease is lost and remains so: record the latest finding about its tree (H23).
    StayLost(LostFinding),
    /// Leave the lease unchanged.
    Leave(&'static str),
}

impl ReapPlan {
    /// Returns the name used in reports.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Signal(_) => "signal",
            Self::Mark(LeaseEvent::Gone, _) => "mark_closed",
            Self::Mark(_, _) => "mark_lost",
            Self::StayLost(_) | Self::Leave(_) => "leave",
        }
    }

    /// Returns the reason, as text.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::Signal(_) => "its supervisor is dead and these processes are verified to be its tree",
            Self::Mark(_, why)
            | Self::Leave(why)
            | Self::StayLost(LostFinding::Gone(why) | LostFinding::Unproved(why)) => why,
        }
    }
}

/// Reason why nothing can be proved about a quarantined lease.
const UNTRUSTED: &str = "its record is not trusted";

/// Plans for a lost lease. Only verified processes are signalled, and the end of the tree must be proved.
fn plan_lost(lease: &Lease, found: &Findings) -> ReapPlan {
    let unproved = |why| ReapPlan::StayLost(LostFinding::Unproved(why));
    let Some(here) = &found.here else { return unproved("boot id or pid namespace cannot be read") };
    if let Some(why) = lease.scope.is_over(here) {
        return ReapPlan::StayLost(LostFinding::Gone(why));
    }
    match lease.scope.relation_to(here) {
        ScopeRelation::Here if lease.is_quarantined() => return unproved(UNTRUSTED),
        ScopeRelation::Here => {}
        ScopeRelation::EarlierBoot => return unproved(UNTRUSTED),
        ScopeRelation::Elsewhere(why) => return unproved(why),
    }
    match found.holder {
        SpawnerState::Alive => return unproved("the supervisor that spawned it lives"),
        SpawnerState::Unknown => {
            return unproved("it is unknown whether the supervisor that spawned it lives");
        }
        SpawnerState::Dead => {}
    }
    match (found.owned.is_empty(), found.unknown.or(found.doubt)) {
        (false, _) => ReapPlan::Signal(found.owned.clone()),
        (true, Some(why)) => unproved(why),
        (true, None) => ReapPlan::StayLost(LostFinding::Gone("nothing is left of its tree")),
    }
}

/// Plans for one lease. A closed lease is left unchanged; a lost one is examined again.
#[must_use]
pub fn plan(lease: &Lease, found: &Findings) -> ReapPlan {
    use acp_shared::protocol::LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
    match lease.state {
        Closed => return ReapPlan::Leave("it has ended"),
        Lost => return plan_lost(lease, found),
        Reserved | Bound | Open | Closing => {}
    }
    let Some(here) = &found.here else { return ReapPlan::Leave("boot id or pid namespace cannot be read") };
    match lease.scope.relation_to(here) {
        ScopeRelation::Here => {}
        ScopeRelation::EarlierBoot => {
            return ReapPlan::Mark(LeaseEvent::Lose, "the machine has been rebooted since");
        }
        ScopeRelation::Elsewhere(why) => return ReapPlan::Mark(LeaseEvent::Lose, why),
    }
    match found.holder {
        SpawnerState::Alive => return ReapPlan::Leave("the supervisor that spawned it lives"),
        SpawnerState::Unknown => {
            return ReapPlan::Leave("it is unknown whether the supervisor that spawned it lives");
        }
        SpawnerState::Dead => {}
    }
    if !found.owned.is_empty() {
        return ReapPlan::Signal(found.owned.clone());
    }
    if let Some(why) = found.unknown {
        return ReapPlan::Leave(why);
    }
    let tree = if found.doubt.is_some() { EndedTree::Doubtful } else { EndedTree::Accounted };
    let event = ending_event(lease.state, tree);
    let why = match (event, found.doubt) {
        (LeaseEvent::Gone, _) => "its tree is gone",
        (_, Some(why)) => why,
        (_, None) => "its supervisor died and nothing is left of its tree",
    };
    ReapPlan::Mark(event, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::{NsInit, fixture};
    use acp_shared::protocol::LeaseState;

    /// Scope of the tests' leases, and findings from there without processes.
    fn nothing_found() -> (PidScope, Findings) {
        let scope = PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: NsInit::default() };
        let here = Some(scope.clone());
        let found = Findings { here, holder: SpawnerState::Dead, owned: vec![], unknown: None, doubt: None };
        (scope, found)
    }

    #[test]
    fn reap_plans_follow_findings() {
        use LeaseState::{Closed, Closing, Lost, Open, Reserved};
        let (scope, base) = nothing_found();
        let other_boot = Some(PidScope { boot_id: "other".into(), ..scope.clone() });
        let other_ns = Some(PidScope { pidns: 8, ..scope.clone() });
        let f = |change: &dyn Fn(&mut Findings)| {
            let mut found = base.clone();
            change(&mut found);
            found
        };
        for (name, state, found, want) in [
            ("tree exists", Open, f(&|f| f.owned = vec![9, 8]), "signal"),
            ("closing, tree exists", Closing, f(&|f| f.owned = vec![9]), "signal"),
            ("no process", Open, f(&|_| {}), "mark_lost"),
            ("reserved, no process", Reserved, f(&|_| {}), "mark_lost"),
            ("closing, no process", Closing, f(&|_| {}), "mark_closed"),
            ("other boot", Open, f(&|f| (f.here, f.owned) = (other_boot.clone(), vec![9])), "mark_lost"),
            ("other pidns", Open, f(&|f| (f.here, f.owned) = (other_ns.clone(), vec![9])), "mark_lost"),
            ("supervisor lives", Open, f(&|f| (f.holder, f.owned) = (SpawnerState::Alive, vec![9])), "leave"),
            ("unknown holder", Open, f(&|f| (f.holder, f.owned) = (SpawnerState::Unknown, vec![9])), "leave"),
            ("unreadable process", Open, f(&|f| f.unknown = Some("?")), "leave"),
            ("unreadable scope", Open, f(&|f| f.here = None), "leave"),
            ("ended", Closed, f(&|f| f.owned = vec![9]), "leave"),
            ("closing, in doubt", Closing, f(&|f| f.doubt = Some("?")), "mark_lost"),
            ("lost, tree exists", Lost, f(&|f| f.owned = vec![9]), "signal"),
            ("lost, no process", Lost, f(&|_| {}), "leave"),
        ] {
            let lease = Lease { state, ..fixture::lease() };
            assert_eq!(plan(&lease, &found).action(), want, "{name}");
        }
    }

    #[test]
    fn lost_lease_is_gone_only_by_proof() {
        let (scope, base) = nothing_found();
        let at = |change: &dyn Fn(&mut PidScope)| {
            let mut here = scope.clone();
            change(&mut here);
            Some(here)
        };
        let gone = |why| ReapPlan::StayLost(LostFinding::Gone(why));
        let unproved = |why| ReapPlan::StayLost(LostFinding::Unproved(why));
        let other_boot = at(&|here| here.boot_id = "other".into());
        for (name, found, sound, quarantined) in [
            ("no process", base.clone(), gone("nothing is left of its tree"), unproved(UNTRUSTED)),
            (
                "tree exists",
                Findings { owned: vec![9], ..base.clone() },
                ReapPlan::Signal(vec![9]),
                unproved(UNTRUSTED),
            ),
            ("in doubt", Findings { doubt: Some("?"), ..base.clone() }, unproved("?"), unproved(UNTRUSTED)),
            ("unknown", Findings { unknown: Some("!"), ..base.clone() }, unproved("!"), unproved(UNTRUSTED)),
            (
                "another boot",
                Findings { here: other_boot, owned: vec![9], ..base.clone() },
                gone("the machine has been rebooted since"),
                gone("the machine has been rebooted since"),
            ),
            (
                "another namespace",
                Findings { here: at(&|here| here.pidns = 8), owned: vec![9], ..base.clone() },
                unproved("it was recorded in another pid namespace"),
                unproved("it was recorded in another pid namespace"),
            ),
            (
                "living supervisor",
                Findings { holder: SpawnerState::Alive, owned: vec![9], ..base.clone() },
                unproved("the supervisor that spawned it lives"),
                unproved(UNTRUSTED),
            ),
            (
                "unreadable scope",
                Findings { here: None, owned: vec![9], ..base.clone() },
                unproved("boot id or pid namespace cannot be read"),
                unproved("boot id or pid namespace cannot be read"),
            ),
        ] {
            let mut lease = Lease { state: LeaseState::Lost, ..fixture::lease() };
            assert_eq!(plan(&lease, &found), sound, "{name}");
            lease.quarantine("invalid", 1);
            assert_eq!(plan(&lease, &found), quarantined, "{name}, quarantined");
            lease.scope.boot_id.clear();
            assert!(
                matches!(plan(&lease, &found), ReapPlan::StayLost(LostFinding::Unproved(_))),
                "{name}, no boot id"
            );
        }
    }
}
