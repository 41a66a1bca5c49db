//! Change output of `watch`: one line for each change, as text or JSON.

use super::{LeaseFeed, WatchArgs, WatchSignals};
use crate::cli::leases::rows;
use crate::cli::{CliError, Output, json, text};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, LeaseState};
use std::collections::BTreeMap;
use tokio::time::MissedTickBehavior;

/// Change between two polls.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WatchChange {
    /// A new lease.
    New(LeaseInfo),
    /// A lease whose state, pids or reason changed: its previous state, and the lease as it is now.
    Changed(LeaseState, LeaseInfo),
    /// A lease that retention removed.
    Forgotten(LeaseId),
    /// The connection to the supervisor was lost.
    Disconnected(String),
    /// The connection is restored.
    Connected,
}

fn is_other(a: &LeaseInfo, b: &LeaseInfo) -> bool {
    a.state != b.state
        || a.state_reason != b.state_reason
        || (a.wrapper_pid, a.adapter_pid, a.exit) != (b.wrapper_pid, b.adapter_pid, b.exit)
}

/// Returns the differences: new and changed leases, oldest first, then removed ones.
fn changes(before: &BTreeMap<LeaseId, LeaseInfo>, now: &[LeaseInfo]) -> Vec<WatchChange> {
    let seen = now.iter().filter_map(|lease| match before.get(&lease.lease_id) {
        None => Some(WatchChange::New(lease.clone())),
        Some(old) if is_other(old, lease) => Some(WatchChange::Changed(old.state, lease.clone())),
        Some(_) => None,
    });
    let gone = before.keys().filter(|id| now.iter().all(|lease| lease.lease_id != **id));
    seen.chain(gone.map(|id| WatchChange::Forgotten(*id))).collect()
}

pub(super) async fn run(
    feed: &mut LeaseFeed,
    args: &WatchArgs,
    mut signals: WatchSignals,
    out: &mut Output,
) -> Result<(), CliError> {
    let mut known: BTreeMap<LeaseId, LeaseInfo> = BTreeMap::new();
    let mut ticks = tokio::time::interval(args.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connected = true;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            code = signals.exit() => return Err(CliError::Ended(code)),
        }
        let now_ms = crate::context::wall_ms();
        let looked = tokio::select! {
            looked = feed.next(false) => looked,
            code = signals.exit() => return Err(CliError::Ended(code)),
        };
        let found = match looked {
            Ok(leases) => {
                let shown: Vec<LeaseInfo> = leases
                    .into_iter()
                    // A lease shown once is shown until its end, even if the filter no longer matches.
                    .filter(|l| known.contains_key(&l.lease_id) || args.filter.fits(l, now_ms))
                    .collect();
                let back = (!connected).then_some(WatchChange::Connected);
                connected = true;
                let found = back.into_iter().chain(changes(&known, &shown)).collect();
                known = shown.into_iter().map(|lease| (lease.lease_id, lease)).collect();
                found
            }
            Err(_) if !connected => Vec::new(),
            Err(error) => {
                connected = false;
                vec![WatchChange::Disconnected(error.message())]
            }
        };
        for change in found {
            print(&change, now_ms, out)?;
        }
    }
}

fn print(change: &WatchChange, now_ms: u64, out: &mut Output) -> Result<(), CliError> {
    if out.is_json() {
        return Ok(out.data("change", &value(change, now_ms))?);
    }
    Ok(out.line(&words(change, now_ms))?)
}

fn value(change: &WatchChange, now_ms: u64) -> serde_json::Value {
    let (what, from, lease_id, lease, why) = match change {
        WatchChange::New(lease) => ("new", None, Some(lease.lease_id), Some(lease), None),
        WatchChange::Changed(from, lease) => {
            ("changed", Some(*from), Some(lease.lease_id), Some(lease), None)
        }
        WatchChange::Forgotten(id) => ("forgotten", None, Some(*id), None, None),
        WatchChange::Disconnected(why) => ("disconnected", None, None, None, Some(why)),
        WatchChange::Connected => ("connected", None, None, None, None),
    };
    serde_json::json!({
        "at_ms": now_ms,
        "what": what,
        "lease_id": lease_id.map(|id| id.to_string()),
        "from": from.map(LeaseState::as_str),
        "why": why,
        "lease": lease.map(json::lease),
    })
}

fn words(change: &WatchChange, now_ms: u64) -> String {
    let at = text::time(now_ms);
    let of = |lease: &LeaseInfo| {
        let reason = text::plain(&lease.state_reason);
        let reason = if reason.is_empty() { reason } else { format!("  ({reason})") };
        format!("{}  {}{reason}", rows::kind(lease), lease.session_key)
    };
    match change {
        WatchChange::New(lease) => format!("{at}  {}  {}  {}", lease.lease_id, lease.state, of(lease)),
        WatchChange::Changed(from, lease) if *from != lease.state => {
            format!("{at}  {}  {from} -> {}  {}", lease.lease_id, lease.state, of(lease))
        }
        WatchChange::Changed(_, lease) => format!("{at}  {}  {}  {}", lease.lease_id, lease.state, of(lease)),
        WatchChange::Forgotten(id) => format!("{at}  {id}  removed"),
        WatchChange::Disconnected(why) => {
            format!("{at}  connection to the supervisor lost: {}", text::plain(why))
        }
        WatchChange::Connected => format!("{at}  connected to the supervisor again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::leases::fixture::{NOW_MS, three};

    #[test]
    fn changes_list_only_differences() {
        let before = three();
        let known: BTreeMap<LeaseId, LeaseInfo> = before.iter().map(|l| (l.lease_id, l.clone())).collect();
        assert_eq!(changes(&known, &before), []);
        let mut now = three();
        let gone = now.remove(2);
        // A change of buffered bytes is no change of the lease.
        now[0].buffered_bytes = 77;
        now[1].state = LeaseState::Closed;
        assert_eq!(
            changes(&known, &now),
            [
                WatchChange::Changed(LeaseState::Closing, now[1].clone()),
                WatchChange::Forgotten(gone.lease_id)
            ]
        );
        assert_eq!(
            changes(&BTreeMap::new(), &now),
            [WatchChange::New(now[0].clone()), WatchChange::New(now[1].clone())]
        );
    }

    #[test]
    fn changes_are_formatted_as_text() {
        let leases = three();
        let at = "2027-01-15T08:00:00Z";
        let agent = "agent  agent:claude:acp:0190b5f000007000";
        for (change, want) in [
            (
                WatchChange::New(leases[0].clone()),
                format!("{at}  0190b5f0-0000-7000-8000-000000000001  open  {agent}"),
            ),
            (
                WatchChange::Changed(LeaseState::Open, leases[1].clone()),
                format!(
                    "{at}  0190b5f0-1000-7000-8000-000000000002  open -> closing  term  \
                     agent:claude:acp:0190b5f000007000  (its agent is \\u{{1b}}[2Jending)"
                ),
            ),
            (
                WatchChange::Forgotten(leases[2].lease_id),
                format!("{at}  0190b5f0-2000-7000-8000-000000000003  removed"),
            ),
            (WatchChange::Connected, format!("{at}  connected to the supervisor again")),
        ] {
            assert_eq!(words(&change, NOW_MS), want);
        }
    }
}
