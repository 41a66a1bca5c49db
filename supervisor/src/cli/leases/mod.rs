//! Commands `leases list | show | verify | reap | close | watch`.

mod close;
mod list;
mod reap;
pub(super) mod rows;
pub(super) mod select;
pub(super) mod show;
mod verify;

use super::text::IdAbbreviation;
use super::{CliError, Output};
use acp_shared::conn::Client;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, Reply, Request};
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum LeasesCommand {
    /// List leases, oldest first
    List(list::ListArgs),
    /// Show everything about one lease
    Show {
        /// Lease id, or the beginning or end of one
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Compare the recorded evidence of leases with their processes; fails on a mismatch
    Verify(verify::VerifyArgs),
    /// End verified orphans of earlier supervisors
    Reap(reap::ReapArgs),
    /// End leases with grace periods: end of file, SIGTERM, SIGKILL
    Close(close::CloseArgs),
    /// Watch leases: a live view in a terminal, else one line for each change
    Watch(super::watch::WatchArgs),
}

pub(super) async fn run(client: &mut Client, verb: LeasesCommand, out: &mut Output) -> Result<(), CliError> {
    match verb {
        LeasesCommand::List(args) => list::run(client, &args, out).await,
        LeasesCommand::Show { id } => show::run(client, &id, out).await,
        LeasesCommand::Verify(args) => verify::run(client, &args, out).await,
        LeasesCommand::Reap(args) => reap::run(client, &args, out).await,
        LeasesCommand::Close(args) => close::run(client, &args, out).await,
        // Handled before: it opens its own connections.
        LeasesCommand::Watch(_) => Ok(()),
    }
}

/// Requests all leases, oldest first. `detail` adds memory and process counts.
pub(super) async fn list_all(client: &mut Client, detail: bool) -> Result<Vec<LeaseInfo>, CliError> {
    match client.call(Request::ListLeases { detail }).await? {
        Reply::Leases(leases) => Ok(leases),
        _ => Err(CliError::OutOfTurn),
    }
}

/// Returns the lease with this id, or the only lease whose id begins or ends with it.
pub(super) fn resolve(leases: &[LeaseInfo], id: &str) -> Result<LeaseId, CliError> {
    if let Ok(whole) = LeaseId::parse(id) {
        let known = leases.iter().any(|lease| lease.lease_id == whole);
        return if known { Ok(whole) } else { Err(CliError::NoLease(id.to_owned())) };
    }
    let like_an_id = id.len() < 36 && !id.is_empty() && id.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    if !like_an_id {
        return Err(CliError::usage(format!("{id:?} is neither a lease id nor the beginning or end of one")));
    }
    let part = id.to_ascii_lowercase();
    let fits = |lease: &LeaseId| {
        let whole = lease.to_string();
        whole.starts_with(&part) || whole.ends_with(&part)
    };
    let mut found = leases.iter().map(|l| l.lease_id).filter(fits);
    match (found.next(), found.next()) {
        (None, _) => Err(CliError::NoLease(id.to_owned())),
        (Some(one), None) => Ok(one),
        (Some(one), Some(two)) => {
            let more = found.count();
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            Err(CliError::usage(format!(
                "{id} is ambiguous: it matches {one}, {two}{more}; give more characters"
            )))
        }
    }
}

/// Abbreviations of the ids in a list of leases.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseIdAbbreviations {
    /// Abbreviation of lease ids.
    lease: IdAbbreviation,
    /// Abbreviation of gateway ids.
    gateway: IdAbbreviation,
}

/// Returns the abbreviations that keep the ids of these leases distinct.
pub(super) fn id_abbreviations(leases: &[LeaseInfo]) -> LeaseIdAbbreviations {
    LeaseIdAbbreviations {
        lease: IdAbbreviation::of(leases.iter().map(|l| l.lease_id.to_string())),
        gateway: IdAbbreviation::of(leases.iter().map(|l| l.gateway_instance_id.to_string())),
    }
}

#[cfg(test)]
pub(super) mod fixture {
    //! Leases for tables.
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::ids::{GatewayInstanceId, SessionKey};
    use acp_shared::protocol::{LeaseKind, LeaseState};
    /// Open lease of an agent, `age_s` seconds old.
    pub(in crate::cli) const NOW_MS: u64 = 1_800_000_000_000;

    /// An open agent's lease, `age_s` seconds old.
    pub(in crate::cli) fn lease(id: &str, gateway: u8, session: &str, age_s: u64) -> LeaseInfo {
        let gateway = format!("0{gateway}000000-0000-7000-8000-000000000000");
        LeaseInfo {
            lease_id: LeaseId::parse(id).unwrap(),
            gateway_instance_id: GatewayInstanceId::parse(&gateway).unwrap(),
            owner_uid: 1000,
            session_key: SessionKey::parse(session).unwrap(),
            kind: LeaseKind::Agent,
            state: LeaseState::Open,
            state_reason: String::new(),
            wrapper_pid: Some(812),
            adapter_pid: Some(815),
            pgid: Some(815),
            sid: Some(812),
            wrapper_path: "/w/acp-wrapper".into(),
            command_hash: "aa".into(),
            rung: "R2".into(),
            started_at_ms: NOW_MS - age_s * 1_000,
            exit: None,
            stdout_end: 2_000,
            stdout_acked: 500,
            stdin_written: 3,
            memory_bytes: Some(90 << 20),
            cgroup_path: None,
            tree_size: Some(4),
            buffered_bytes: 1_500,
        }
    }

    /// An open agent, a closing terminal and a lost agent.
    pub(in crate::cli) fn three() -> Vec<LeaseInfo> {
        let open =
            lease("0190b5f0-0000-7000-8000-000000000001", 1, "agent:claude:acp:0190b5f000007000", 3_700);
        let parent_lease_id = open.lease_id;
        let closing = LeaseInfo {
            kind: LeaseKind::Terminal { parent_lease_id, output_bytes_max: 4_096 },
            state: LeaseState::Closing,
            state_reason: "its agent is \u{1b}[2Jending".into(),
            memory_bytes: Some(2 << 20),
            tree_size: Some(1),
            buffered_bytes: 0,
            ..lease("0190b5f0-1000-7000-8000-000000000002", 1, "agent:claude:acp:0190b5f000007000", 61)
        };
        let lost = LeaseInfo {
            state: LeaseState::Lost,
            state_reason: "the wrapper's pid belongs to another process now".into(),
            memory_bytes: None,
            tree_size: None,
            buffered_bytes: 0,
            ..lease("0190b5f0-2000-7000-8000-000000000003", 2, "agent:codex:acp:0190b5f2", 900_000)
        };
        vec![open, closing, lost]
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::three;
    use super::*;

    #[test]
    fn lease_id_prefix_or_suffix_is_resolved() {
        let leases = three();
        let resolved =
            |id: &str| resolve(&leases, id).map(|id| id.to_string()).map_err(|e| (e.exit(), e.to_string()));
        let first = "0190b5f0-0000-7000-8000-000000000001";
        assert_eq!(resolved(first), Ok(first.to_owned()));
        assert_eq!(resolved("0190b5f0-0"), Ok(first.to_owned()));
        assert_eq!(resolved("0190B5F0-0"), Ok(first.to_owned()));
        assert_eq!(resolved("00000001"), Ok(first.to_owned()));
        let none = |id: &str| {
            (1, format!("unknown lease {id}; list the known ones with `acp-supervisor leases list`"))
        };
        assert_eq!(resolved("ff"), Err(none("ff")));
        let unknown = "0190b5f0-0000-7000-8000-00000000000f";
        assert_eq!(resolved(unknown), Err(none(unknown)));
        let two = "0190b5f0 is ambiguous: it matches 0190b5f0-0000-7000-8000-000000000001, \
                   0190b5f0-1000-7000-8000-000000000002 and 1 more; give more characters";
        assert_eq!(resolved("0190b5f0"), Err((2, two.to_owned())));
        for wrong in ["", "x", "agent:demo"] {
            assert_eq!(resolved(wrong).map_err(|(exit, _)| exit), Err(2), "{wrong}");
        }
    }
}
