//! Choice of the host for a new session.

use crate::config::remote::LOCAL;
use crate::failure::Failure;
use acp_shared::codes::Code;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Reserve beyond the end of agents that a host reports.
const RESERVE: Duration = Duration::from_secs(60);
/// Maximum of the reported end. A reported time is not trusted to be small.
const END_MAX: Duration = Duration::from_secs(60 * 24 * 3_600);

/// A host at the time of a spawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCandidate {
    /// Name of the host; [`LOCAL`] for the gateway's machine.
    pub name: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// Reason of an outage; `None` if agents can be started now.
    pub outage: Option<String>,
    /// Number of living agents of all gateways on the host.
    pub agents: u64,
    /// Memory of the machine, in bytes; 0 if it is unknown.
    pub memory_bytes: u64,
}

impl HostCandidate {
    fn has(&self, labels: &[String]) -> bool {
        labels.iter().all(|label| self.labels.contains(label))
    }

    /// Memory for each agent after one more has started, in bytes.
    const fn room(&self) -> u64 {
        self.memory_bytes / self.agents.saturating_add(1)
    }
}

/// Returns the name of the host for a new session: the requested one; else the gateway's machine, if it is one of
/// `hosts` and the agent has no labels; else the connected host with all labels of the agent that has the most memory for
/// each agent.
///
/// # Errors
/// `USAGE` for an unknown host, or one without the labels; `ACP_BACKEND_UNAVAILABLE` if no such host is connected.
pub fn place<'a>(
    hosts: &'a [HostCandidate],
    requested: Option<&str>,
    labels: &[String],
) -> Result<&'a HostCandidate, Failure> {
    if let Some(name) = requested {
        let Some(host) = hosts.iter().find(|host| host.name == name) else {
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            let text = format!("There is no host {name:?}. Hosts: {}.", names.join(", "));
            return Err(Failure::new(Code::Usage, text).detail("UNKNOWN_HOST").origin("client"));
        };
        if !host.has(labels) {
            let text = format!(
                "The host {name} does not have all labels of the agent (agents.NAME.host_labels): {}.",
                labels.join(", ")
            );
            return Err(Failure::new(Code::Usage, text).detail("HOST_LABELS").origin("client"));
        }
        return Ok(host);
    }
    if let Some(local) = hosts.iter().find(|host| host.name == LOCAL && labels.is_empty()) {
        return Ok(local);
    }
    let fitting = || hosts.iter().filter(|host| host.has(labels));
    with_most_room(fitting()).ok_or_else(|| {
        let outages = fitting().filter_map(|host| Some(format!("{} ({})", host.name, host.outage.as_ref()?)));
        let text = format!("No host can start the agent now: {}.", outages.collect::<Vec<_>>().join("; "));
        let failure = Failure::new(Code::BackendUnavailable, text).detail("NO_HOST");
        failure.for_conversations("No host can start the agent now.").origin("gateway").retryable()
    })
}

/// Returns the connected host with the most memory for each agent; the first one in the order of names, if several have it.
fn with_most_room<'a>(
    hosts: impl DoubleEndedIterator<Item = &'a HostCandidate>,
) -> Option<&'a HostCandidate> {
    hosts.filter(|host| host.outage.is_none()).rev().max_by_key(|host| host.room())
}

/// Returns the host at which a session with shared directories continues without its host `lost`: a connected one with all labels
/// of the agent. The gateway's own machine is never chosen: it need not have the directories.
#[must_use]
pub fn place_elsewhere<'a>(
    hosts: &'a [HostCandidate],
    lost: &str,
    labels: &[String],
) -> Option<&'a HostCandidate> {
    let is_other = |host: &&HostCandidate| host.name != lost && host.name != LOCAL && host.has(labels);
    with_most_room(hosts.iter().filter(is_other))
}

/// True for a directory that is one of the roots or lies below one.
#[must_use]
pub fn is_shared(directory: &Path, roots: &[PathBuf]) -> bool {
    let is_plain = directory.components().all(|part| part != Component::ParentDir);
    is_plain && roots.iter().any(|root| directory.starts_with(root))
}

/// Returns the time until all agents of a gateway on a disconnected host have ended; zero once they have. `reported` is the
/// time without a connection after which the host has ended them, `away` the time since the connection was lost. A tenth and
/// a minute more cover clocks that differ, and an agent that started after the report with up to 22 s of graces; longer `graces`
/// count twice, for the agent and for its terminals.
#[must_use]
pub fn agents_end_in(reported: Duration, graces: Duration, away: Duration) -> Duration {
    let (reported, graces) = (reported.min(END_MAX), graces.min(END_MAX));
    (reported + reported / 10 + RESERVE.max(2 * graces + RESERVE / 4)).saturating_sub(away)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, labels: &[&str], agents: u64, gigabytes: u64) -> HostCandidate {
        HostCandidate {
            name: name.to_owned(),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            outage: None,
            agents,
            memory_bytes: gigabytes << 30,
        }
    }

    #[test]
    fn agents_of_a_disconnected_host_end_after_its_report_and_a_reserve() {
        let seconds = Duration::from_secs;
        for (reported, graces, away, want) in [
            (seconds(900), 0, seconds(0), seconds(1_050)),
            (seconds(900), 0, seconds(1_049), seconds(1)),
            (seconds(900), 0, seconds(1_050), Duration::ZERO),
            (seconds(900), 0, seconds(5_000), Duration::ZERO),
            (Duration::ZERO, 0, seconds(59), seconds(1)),
            (seconds(900), 22, seconds(1_049), seconds(1)),
            // An agent that may take ten minutes, and its terminals as long again.
            (seconds(120), 600, Duration::ZERO, seconds(120 + 12 + 1_200 + 15)),
            (Duration::MAX, 0, Duration::ZERO, END_MAX + END_MAX / 10 + RESERVE),
        ] {
            let found = agents_end_in(reported, seconds(graces), away);
            assert_eq!(found, want, "{reported:?} {graces} {away:?}");
        }
        assert!(agents_end_in(Duration::MAX, Duration::MAX, Duration::ZERO) > 3 * END_MAX);
    }

    #[test]
    fn directories_below_a_shared_root_are_shared() {
        let roots = ["/srv/shared", "/data"].map(PathBuf::from);
        for (directory, want) in [
            ("/srv/shared", true),
            ("/srv/shared/team/project", true),
            ("/data/x", true),
            ("/srv/sharedX", false),
            ("/srv", false),
            ("/srv/shared/../private", false),
            ("srv/shared", false),
            ("/", false),
        ] {
            assert_eq!(is_shared(Path::new(directory), &roots), want, "{directory}");
        }
        assert!(!is_shared(Path::new("/srv/shared"), &[]));
    }

    #[test]
    fn shared_session_goes_on_at_another_connected_host_with_its_labels() {
        let away = HostCandidate { outage: Some("cut off".to_owned()), ..host("away", &["gpu"], 0, 512) };
        let lost = HostCandidate { outage: Some("cut off".to_owned()), ..host("lost", &["gpu"], 0, 512) };
        let all = [
            away,
            host("big", &["gpu"], 3, 64),
            host(LOCAL, &["gpu"], 0, 512),
            lost,
            host("small", &[], 0, 8),
        ];
        for (name, hosts, labels, want) in [
            ("most memory for an agent", &all[..], &[][..], Some("big")),
            ("labels", &all[..], &["gpu"], Some("big")),
            ("no other host has the labels", &all[..], &["ssd"], None),
            ("the others are away", &all[..1], &[], None),
            ("never the gateway's machine", &all[2..4], &[], None),
        ] {
            let labels: Vec<String> = labels.iter().map(|&label: &&str| label.to_owned()).collect();
            let found = place_elsewhere(hosts, "lost", &labels).map(|host| host.name.as_str());
            assert_eq!(found, want, "{name}");
        }
        // Even if it is connected again: the move was decided while it was away.
        let back = [host("lost", &[], 0, 8)];
        assert_eq!(place_elsewhere(&back, "lost", &[]), None);
    }

    #[test]
    fn session_is_placed_by_request_labels_and_room() {
        let away = HostCandidate { outage: Some("cut off".to_owned()), ..host("away", &["gpu"], 0, 512) };
        let all = [
            away.clone(),
            host("big", &["gpu", "ssd"], 9, 64),
            host("even", &["ssd"], 0, 8),
            host("small", &["ssd"], 0, 8),
            host(LOCAL, &[], 99, 4),
        ];
        let without_local = &all[..4];
        let unknown = [HostCandidate { memory_bytes: 0, ..host("a", &[], 3, 0) }, host("b", &[], 3, 0)];
        for (name, hosts, requested, labels, want) in [
            ("default", &all[..], None, &[][..], Ok(LOCAL)),
            ("requested", &all[..], Some("big"), &[], Ok("big")),
            ("requested although it is away", &all[..], Some("away"), &[], Ok("away")),
            (
                "unknown",
                &all[..],
                Some("bigg"),
                &[],
                Err("There is no host \"bigg\". Hosts: away, big, even, small, local."),
            ),
            (
                "requested without the labels",
                &all[..],
                Some("small"),
                &["gpu"],
                Err("does not have all labels"),
            ),
            ("local without the labels", &all[..], Some(LOCAL), &["gpu"], Err("does not have all labels")),
            ("most memory for an agent, the first by name", &all[..], None, &["ssd"], Ok("even")),
            ("connected hosts only", &all[..], None, &["gpu"], Ok("big")),
            ("any host without local", without_local, None, &[], Ok("even")),
            ("all away", &[away][..], None, &[], Err("away (cut off)")),
            ("unknown memory", &unknown[..], None, &[], Ok("a")),
        ] {
            let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
            match (place(hosts, requested, &labels), want) {
                (Ok(host), Ok(want)) => assert_eq!(host.name, want, "{name}"),
                (Err(failure), Err(want)) => assert!(failure.message.contains(want), "{name}: {failure:?}"),
                (found, want) => panic!("{name}: {found:?}, not {want:?}"),
            }
        }
    }
}
