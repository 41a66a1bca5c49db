//! Selection and order of the listed leases. Pure functions.

use crate::cli::text;
use acp_shared::protocol::{LeaseInfo, LeaseKind, LeaseState};
use clap::{Args, ValueEnum};
use std::cmp::Reverse;

/// Values of `--state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum StateArg {
    Reserved,
    Bound,
    Open,
    Closing,
    Closed,
    Lost,
    /// Any of the first four
    Living,
    /// closed or lost
    Ended,
}

impl StateArg {
    fn fits(self, state: LeaseState) -> bool {
        match self {
            Self::Reserved => state == LeaseState::Reserved,
            Self::Bound => state == LeaseState::Bound,
            Self::Open => state == LeaseState::Open,
            Self::Closing => state == LeaseState::Closing,
            Self::Closed => state == LeaseState::Closed,
            Self::Lost => state == LeaseState::Lost,
            Self::Living => !state.is_ended(),
            Self::Ended => state.is_ended(),
        }
    }
}

/// Values of `--kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum KindArg {
    Agent,
    Terminal,
}

/// Values of `--sort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SortKey {
    /// Oldest first
    Age,
    Id,
    State,
    Kind,
    Session,
    Gateway,
    /// Largest first, like the following keys
    Memory,
    Tree,
    Buffered,
}

impl SortKey {
    /// Returns the next key, cyclically.
    pub(in crate::cli) fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|key| *key == self).map_or(0, |at| at + 1);
        all.get(at).or(all.first()).copied().unwrap_or(Self::Age)
    }

    /// Returns the name of the key on the command line.
    pub(in crate::cli) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Filter for leases.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct Filter {
    /// Only leases of this gateway: its instance id, or the beginning of it
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) gateway: Option<String>,
    /// Only leases of this session: its key, or a pattern with `*` and `?`
    #[arg(long, value_name = "KEY")]
    pub(in crate::cli) session: Option<String>,
    /// Only leases in this state; may be repeated
    #[arg(long, value_enum, value_name = "STATE")]
    pub(in crate::cli) state: Vec<StateArg>,
    /// Only agents, or only terminals
    #[arg(long, value_enum, value_name = "KIND")]
    pub(in crate::cli) kind: Option<KindArg>,
    /// Only leases started longer ago than this (90s, 15m, 1h30m, 7d)
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration)]
    pub(in crate::cli) older_than: Option<u64>,
    /// Only leases started more recently than this
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration)]
    pub(in crate::cli) newer_than: Option<u64>,
}

impl Filter {
    /// True if the lease passes the filter.
    pub(in crate::cli) fn fits(&self, lease: &LeaseInfo, now_ms: u64) -> bool {
        let age = now_ms.saturating_sub(lease.started_at_ms);
        let gateway =
            |id: &String| lease.gateway_instance_id.to_string().starts_with(&id.to_ascii_lowercase());
        let kind = |kind: KindArg| match lease.kind {
            LeaseKind::Agent => kind == KindArg::Agent,
            LeaseKind::Terminal { .. } => kind == KindArg::Terminal,
        };
        self.gateway.as_ref().is_none_or(gateway)
            && self.session.as_ref().is_none_or(|pattern| text::matches(pattern, lease.session_key.as_str()))
            && (self.state.is_empty() || self.state.iter().any(|state| state.fits(lease.state)))
            && self.kind.is_none_or(kind)
            && self.older_than.is_none_or(|ms| age > ms)
            && self.newer_than.is_none_or(|ms| age < ms)
    }
}

/// Sorts leases. Equal ones stay oldest first.
pub(in crate::cli) fn sort(leases: &mut [LeaseInfo], key: SortKey, reverse: bool) {
    leases.sort_by_key(|l| (l.started_at_ms, l.lease_id));
    match key {
        SortKey::Age => {}
        SortKey::Id => leases.sort_by_key(|l| l.lease_id),
        SortKey::State => leases.sort_by_key(|l| l.state),
        SortKey::Kind => leases.sort_by_key(|l| matches!(l.kind, LeaseKind::Terminal { .. })),
        SortKey::Session => leases.sort_by(|a, b| a.session_key.cmp(&b.session_key)),
        SortKey::Gateway => leases.sort_by_key(|l| l.gateway_instance_id),
        SortKey::Memory => leases.sort_by_key(|l| Reverse(l.memory_bytes)),
        SortKey::Tree => leases.sort_by_key(|l| Reverse(l.tree_size)),
        SortKey::Buffered => leases.sort_by_key(|l| Reverse(l.buffered_bytes)),
    }
    if reverse {
        leases.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::leases::fixture::{NOW_MS, three};

    #[test]
    fn lease_filters_match_fields() {
        let kept = |filter: Filter| -> Vec<usize> {
            let leases = three();
            (0..leases.len()).filter(|at| filter.fits(&leases[*at], NOW_MS)).collect()
        };
        let text = |text: &str| Some(text.to_owned());
        let none = Filter::default;
        for (filter, want) in [
            (none(), &[0, 1, 2][..]),
            (Filter { gateway: text("01"), ..none() }, &[0, 1]),
            (Filter { gateway: text("0"), ..none() }, &[0, 1, 2]),
            (Filter { session: text("agent:codex:acp:0190b5f2"), ..none() }, &[2]),
            (Filter { session: text("agent:codex"), ..none() }, &[]),
            (Filter { session: text("*:claude:*"), ..none() }, &[0, 1]),
            (Filter { state: vec![StateArg::Living], ..none() }, &[0, 1]),
            (Filter { state: vec![StateArg::Ended, StateArg::Open], ..none() }, &[0, 2]),
            (Filter { kind: Some(KindArg::Terminal), ..none() }, &[1]),
            (Filter { older_than: Some(3_600_000), ..none() }, &[0, 2]),
            (Filter { newer_than: Some(3_600_000), ..none() }, &[1]),
            (
                Filter {
                    older_than: Some(3_600_000),
                    kind: Some(KindArg::Agent),
                    state: vec![StateArg::Lost],
                    ..none()
                },
                &[2],
            ),
        ] {
            assert_eq!(kept(filter.clone()), want, "{filter:?}");
        }
    }

    #[test]
    fn lease_order_follows_sort_key() {
        for (key, reverse, want) in [
            (SortKey::Age, false, "312"),
            (SortKey::Age, true, "213"),
            (SortKey::Id, false, "123"),
            (SortKey::State, false, "123"),
            (SortKey::Kind, false, "312"),
            (SortKey::Session, false, "123"),
            (SortKey::Gateway, false, "123"),
            (SortKey::Memory, false, "123"),
            (SortKey::Tree, true, "321"),
            (SortKey::Buffered, false, "132"),
        ] {
            let mut leases = three();
            sort(&mut leases, key, reverse);
            let ids: String = leases.iter().filter_map(|l| l.lease_id.to_string().chars().last()).collect();
            assert_eq!(ids, want, "{key:?} {reverse}");
        }
        let mut key = SortKey::Age;
        for _ in SortKey::value_variants() {
            key = key.next();
        }
        assert_eq!(key, SortKey::Age);
    }
}
