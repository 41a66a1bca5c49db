//! What to do about the leases that an earlier supervisor left behind. Planned from leases alone, never from
//! processes that look like agents.

use crate::core::lease::{Lease, LeaseEvent, Place, Scope};
use crate::core::verify::Holder;

/// What the evidence says about one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Where this supervisor runs; `None` when that cannot be read.
    pub here: Option<Scope>,
    /// Whether the supervisor that spawned the lease lives.
    pub holder: Holder,
    /// Verified processes of the tree, to be signalled, children first.
    pub owned: Vec<i32>,
    /// Why something of it cannot be told, if that is so.
    pub unknown: Option<&'static str>,
}

/// How far the end of an orphan has come, in order. What each stage does is on record before the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its processes are opened and verified.
    Examine,
    /// The lease is closing, durably, before anything is signalled.
    Record,
    /// SIGTERM and SIGCONT to each verified process.
    Term,
    /// SIGKILL to each that is left after the grace.
    Kill,
    /// Nothing is left: the end of the lease is made durable.
    Settle,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 5] = [Self::Examine, Self::Record, Self::Term, Self::Kill, Self::Settle];
}

/// What to do about one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// End these verified processes.
    Signal(Vec<i32>),
    /// Nothing is left of it: record this.
    Mark(LeaseEvent, &'static str),
    /// Leave it as it is.
    Leave(&'static str),
}

impl Plan {
    /// The name in reports.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Signal(_) => "signal",
            Self::Mark(LeaseEvent::Gone, _) => "mark_closed",
            Self::Mark(_, _) => "mark_lost",
            Self::Leave(_) => "leave",
        }
    }

    /// Why, in words.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::Signal(_) => "its supervisor is dead and these processes are verified to be its tree",
            Self::Mark(_, why) | Self::Leave(why) => why,
        }
    }
}

/// Decides about one lease that has not ended.
#[must_use]
pub fn plan(lease: &Lease, found: &Findings) -> Plan {
    use acp_shared::protocol::LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
    let Some(here) = &found.here else { return Plan::Leave("boot id or pid namespace cannot be read") };
    match lease.state {
        Closed | Lost => return Plan::Leave("it has ended"),
        Reserved | Bound | Open | Closing => {}
    }
    match lease.scope.seen_from(here) {
        Place::Here => {}
        Place::EarlierBoot => return Plan::Mark(LeaseEvent::Lose, "the machine was started anew since"),
        Place::Elsewhere(why) => return Plan::Mark(LeaseEvent::Lose, why),
    }
    match found.holder {
        Holder::Alive => return Plan::Leave("the supervisor that spawned it lives"),
        Holder::Unknown => {
            return Plan::Leave("it cannot be told whether the supervisor that spawned it lives");
        }
        Holder::Dead => {}
    }
    if !found.owned.is_empty() {
        return Plan::Signal(found.owned.clone());
    }
    if let Some(why) = found.unknown {
        return Plan::Leave(why);
    }
    match lease.state {
        Closing => Plan::Mark(LeaseEvent::Gone, "its tree is gone"),
        Reserved | Bound | Open | Closed | Lost => {
            Plan::Mark(LeaseEvent::Lose, "its supervisor died and nothing is left of its tree")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::{NsInit, fixture};
    use acp_shared::protocol::LeaseState;

    #[test]
    fn plans() {
        let scope = Scope { boot_id: "boot".into(), pidns: 7, init: NsInit::default() };
        let base = Findings { here: Some(scope.clone()), holder: Holder::Dead, owned: vec![], unknown: None };
        let other_boot = Some(Scope { boot_id: "other".into(), ..scope.clone() });
        let other_ns = Some(Scope { pidns: 8, ..scope.clone() });
        let f = |change: &dyn Fn(&mut Findings)| {
            let mut found = base.clone();
            change(&mut found);
            found
        };
        for (name, state, found, want) in [
            ("37: a tree is left", LeaseState::Open, f(&|f| f.owned = vec![9, 8]), "signal"),
            ("65: closing, a tree is left", LeaseState::Closing, f(&|f| f.owned = vec![9]), "signal"),
            ("63: nothing is left", LeaseState::Open, f(&|_| {}), "mark_lost"),
            ("reserved, nothing is left", LeaseState::Reserved, f(&|_| {}), "mark_lost"),
            ("closing, nothing is left", LeaseState::Closing, f(&|_| {}), "mark_closed"),
            (
                "10: other boot",
                LeaseState::Open,
                f(&|f| {
                    f.here = other_boot.clone();
                    f.owned = vec![9];
                }),
                "mark_lost",
            ),
            (
                "11: other namespace",
                LeaseState::Open,
                f(&|f| {
                    f.here = other_ns.clone();
                    f.owned = vec![9];
                }),
                "mark_lost",
            ),
            (
                "17: the supervisor lives",
                LeaseState::Open,
                f(&|f| {
                    f.holder = Holder::Alive;
                    f.owned = vec![9];
                }),
                "leave",
            ),
            (
                "it cannot be told",
                LeaseState::Open,
                f(&|f| {
                    f.holder = Holder::Unknown;
                    f.owned = vec![9];
                }),
                "leave",
            ),
            ("19: a process cannot be read", LeaseState::Open, f(&|f| f.unknown = Some("?")), "leave"),
            ("the scope cannot be read", LeaseState::Open, f(&|f| f.here = None), "leave"),
            ("ended", LeaseState::Closed, f(&|f| f.owned = vec![9]), "leave"),
        ] {
            let mut lease = fixture::lease();
            lease.state = state;
            assert_eq!(plan(&lease, &found).action(), want, "{name}");
        }
    }
}
