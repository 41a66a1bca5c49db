//! Recorded progress of gateways. Each Hello is compared to the record: an epoch, event id or offset behind
//! the record means that the database of the gateway went back in time.

use crate::core::admission::Installation;
use acp_shared::ids::{LeaseId, StartId};
use acp_shared::protocol::{Marks, Refusal, RefusalCode};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Recorded progress of a gateway of protocol 2, in addition to its highest epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Start id of the highest epoch; `None` if a gateway of protocol 1 showed that epoch.
    pub start_id: Option<StartId>,
    /// Highest acknowledged event id.
    pub event_id: u64,
    /// Time of the last accepted loss, milliseconds since the Unix epoch. Offsets of leases started before
    /// are not compared.
    pub loss_accepted_ms: Option<u64>,
}

/// Acknowledged output of a running lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckedOutput {
    /// Lease id.
    pub lease_id: LeaseId,
    /// First unacknowledged byte.
    pub offset: u64,
    /// Start time of the lease, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// True if the agent runs, is not ending, and has received input from the gateway.
    pub is_in_use: bool,
}

/// Compares the marks of a gateway with its record and returns the new record.
///
/// # Errors
/// [`RefusalCode::RolledBack`], with the difference and the next steps.
pub fn advance(
    known: &Installation,
    epoch: u64,
    marks: &Marks,
    acked: &[AckedOutput],
    now_ms: u64,
) -> Result<Progress, Refusal> {
    let progress = &known.progress;
    let is_same_start =
        epoch == known.epoch_max && progress.start_id.is_none_or(|start_id| start_id == marks.start_id);
    let next = Progress { start_id: Some(marks.start_id), ..progress.clone() };
    if marks.accepts_loss && epoch > known.epoch_max {
        return Ok(Progress { event_id: marks.event_id, loss_accepted_ms: Some(now_ms), ..next });
    }
    let behind = if epoch < known.epoch_max {
        Some(format!("its epoch is {epoch}, and {} is on record", known.epoch_max))
    } else if epoch == known.epoch_max && !is_same_start {
        Some(format!("its epoch {epoch} was used by another start"))
    } else if is_same_start && progress.start_id.is_some() {
        // Reconnection of the same process: its database cannot have gone back in time.
        None
    } else if marks.event_id < progress.event_id {
        let (last, known) = (marks.event_id, progress.event_id);
        Some(format!(
            "its last event is {last}, and event {known} was acknowledged ({} are missing)",
            known - last
        ))
    } else {
        behind_offset(progress, marks, acked)
    };
    match behind {
        None => Ok(Progress { event_id: progress.event_id.max(marks.event_id), ..next }),
        Some(behind) => Err(Refusal::new(RefusalCode::RolledBack, rolled_back(known, &behind))),
    }
}

fn behind_offset(progress: &Progress, marks: &Marks, acked: &[AckedOutput]) -> Option<String> {
    let shown: HashMap<LeaseId, u64> = marks.offsets.iter().copied().collect();
    let is_compared =
        |acked: &&AckedOutput| progress.loss_accepted_ms.is_none_or(|at| acked.started_at_ms > at);
    acked.iter().filter(is_compared).find_map(|acked| {
        let (lease_id, known) = (acked.lease_id, acked.offset);
        match shown.get(&lease_id) {
            Some(offset) if *offset < known => Some(format!(
                "output of lease {lease_id} was acknowledged up to byte {known}, the database is at {offset}"
            )),
            // Gateways commit each lease before its start, and report the newest ended leases as well.
            None if acked.is_in_use => Some(format!(
                "the agent of lease {lease_id} runs and has input, the database does not have the lease"
            )),
            Some(_) | None => None,
        }
    })
}

fn rolled_back(known: &Installation, behind: &str) -> String {
    format!(
        "the database of gateway {} was rolled back: {behind}. Stop the gateway, then put the newest \
         database back, restore a backup (acp-gateway store restore FILE) or accept the loss (acp-gateway \
         store accept-loss)",
        known.gateway
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::ids::GatewayInstanceId;
    use acp_shared::protocol::Home;

    struct Case {
        known: Installation,
        marks: Marks,
        acked: Vec<AckedOutput>,
    }

    /// Gateway at epoch 5 with 100 events and one agent, acknowledged up to byte 40.
    fn case() -> Case {
        let (start_id, lease_id) = (StartId::mint(), LeaseId::mint());
        let known = Installation {
            gateway: GatewayInstanceId::mint(),
            uid: 5,
            home: Home { machine_id: "m".into(), dev: 1, ino: 2 },
            epoch_max: 5,
            progress: Progress { start_id: Some(start_id), event_id: 100, loss_accepted_ms: None },
            damaged: None,
        };
        let marks = Marks { start_id, event_id: 100, offsets: vec![(lease_id, 40)], accepts_loss: false };
        let acked = AckedOutput { lease_id, offset: 40, started_at_ms: 1_000, is_in_use: true };
        Case { known, marks, acked: vec![acked] }
    }

    #[test]
    fn database_behind_the_record_is_refused() {
        let other = |marks: &mut Marks| marks.start_id = StartId::mint();
        type Change = fn(&mut Case);
        let table: [(&str, u64, bool, Change, Option<&str>); 17] = [
            ("reconnection", 5, false, |_| {}, None),
            (
                "reconnection while rows are behind the newest acknowledgement",
                5,
                false,
                |c| c.marks.event_id = 99,
                None,
            ),
            ("next start", 6, true, |_| {}, None),
            ("next start with more events", 6, true, |c| c.marks.event_id = 101, None),
            ("epoch behind", 4, true, |_| {}, Some("epoch is 4, and 5 is on record")),
            ("epoch of another start", 5, true, |_| {}, Some("epoch 5 was used by another start")),
            ("event behind", 6, true, |c| c.marks.event_id = 98, Some("last event is 98, and event 100")),
            (
                "offset behind",
                6,
                true,
                |c| c.marks.offsets[0].1 = 39,
                Some("up to byte 40, the database is at 39"),
            ),
            (
                "lease unknown to the supervisor",
                6,
                true,
                |c| {
                    c.acked.clear();
                    c.marks.offsets[0].1 = 0;
                },
                None,
            ),
            (
                "agent in use without a lease",
                6,
                true,
                |c| c.marks.offsets.clear(),
                Some("does not have the lease"),
            ),
            (
                "agent that ends, without a lease",
                6,
                true,
                |c| {
                    c.marks.offsets.clear();
                    c.acked[0].is_in_use = false;
                },
                None,
            ),
            ("reconnection without a new lease", 5, false, |c| c.marks.offsets.clear(), None),
            (
                "agent from before an accepted loss, without a lease",
                6,
                true,
                |c| {
                    c.marks.offsets.clear();
                    c.known.progress.loss_accepted_ms = Some(1_000);
                },
                None,
            ),
            ("epoch used with protocol 1", 5, true, |c| c.known.progress.start_id = None, None),
            ("accepted, epoch not above", 5, true, |c| c.marks.accepts_loss = true, Some("another start")),
            (
                "accepted, epoch above",
                6,
                true,
                |c| {
                    c.marks.accepts_loss = true;
                    c.marks.event_id = 3;
                    c.marks.offsets[0].1 = 0;
                },
                None,
            ),
            (
                "offset of a lease from before an accepted loss",
                6,
                true,
                |c| {
                    c.known.progress.loss_accepted_ms = Some(1_000);
                    c.marks.offsets[0].1 = 0;
                },
                None,
            ),
        ];
        for (name, epoch, is_other_start, change, want) in table {
            let mut case = case();
            if is_other_start {
                other(&mut case.marks);
            }
            change(&mut case);
            let got = advance(&case.known, epoch, &case.marks, &case.acked, 7_000);
            match (got, want) {
                (Ok(progress), None) => assert_eq!(progress.start_id, Some(case.marks.start_id), "{name}"),
                (Err(refusal), Some(part)) => {
                    assert_eq!(refusal.code, RefusalCode::RolledBack, "{name}");
                    for part in [part, "accept-loss", "store restore"] {
                        assert!(refusal.message.contains(part), "{name}: {}", refusal.message);
                    }
                }
                (got, want) => panic!("{name}: {got:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn only_accepted_loss_lowers_event_mark() {
        let case = case();
        let next = |event_id, accepts_loss| {
            let marks = Marks { start_id: StartId::mint(), event_id, offsets: Vec::new(), accepts_loss };
            advance(&case.known, 6, &marks, &[], 7_000).unwrap()
        };
        assert_eq!((next(130, false).event_id, next(130, false).loss_accepted_ms), (130, None));
        assert_eq!((next(20, true).event_id, next(20, true).loss_accepted_ms), (20, Some(7_000)));
    }
}
