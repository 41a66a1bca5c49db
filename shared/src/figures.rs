//! Figures of the supervisor for metrics: names, explanations and the exposition format. A gateway adds them to its
//! own metrics; `acp-supervisor metrics` prints them.
//!
//! A figure carries its name, so that a supervisor of another version may send other figures: a reader ignores the
//! names that it does not know.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Name in [`crate::protocol::Welcome`] of a supervisor that answers [`crate::protocol::Request::Figures`].
pub const FEATURE: &str = "figures";

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Name without the prefix `acp_`: one of [`FIGURES`].
    pub name: String,
    /// Value of the label `state`; empty for a figure without labels.
    pub state: String,
    /// The value.
    pub value: u64,
}

impl Figure {
    /// Creates a figure without labels.
    #[must_use]
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), state: String::new(), value }
    }
}

/// Leases, with the label `state`.
pub const LEASES: &str = "supervisor_leases";
/// Lost leases whose processes are not proved gone.
pub const LOST: &str = "supervisor_leases_unproved";
/// Leases with processes that survived SIGKILL.
pub const SURVIVORS: &str = "supervisor_survivors";
/// Agents in a crash loop.
pub const CRASH_LOOPS: &str = "supervisor_crash_loops";
/// Agents whose start is delayed after crashes.
pub const DELAYED: &str = "supervisor_delayed_agents";
/// Connected gateways.
pub const GATEWAYS: &str = "supervisor_gateways";
/// Size of the buffered output.
pub const BUFFERED: &str = "supervisor_buffered_bytes";
/// 1 if the lease store is read-only.
pub const READ_ONLY: &str = "supervisor_read_only";
/// Uptime in seconds.
pub const UPTIME: &str = "supervisor_uptime_seconds";
/// Free space on the disk of the state directory.
pub const DISK_FREE: &str = "supervisor_disk_free_bytes";
/// Size of the disk of the state directory.
pub const DISK_SIZE: &str = "supervisor_disk_size_bytes";

/// Time after which all agents of a gateway have ended that this host hears of no more, from the last message: the promise of
/// this host. A gateway gets the figure of its own agents.
pub const DETACHED_GRACE: &str = "supervisor_detached_grace_seconds";
/// Memory of the machine.
pub const MEMORY: &str = "supervisor_memory_bytes";
/// Living leases of all gateways, also for a gateway.
pub const LIVING: &str = "supervisor_living_leases";

/// All figures, each with its explanation. All are gauges.
pub const FIGURES: [(&str, &str); 14] = [
    (LEASES, "Leases, by state"),
    (LOST, "Lost leases whose processes are not proved gone"),
    (SURVIVORS, "Leases with processes that survived SIGKILL"),
    (CRASH_LOOPS, "Agents that are not started because of a crash loop"),
    (DELAYED, "Agents whose next start is delayed after crashes"),
    (GATEWAYS, "Connected gateways"),
    (BUFFERED, "Output of agents in memory and in spools"),
    (READ_ONLY, "1 if the lease store is read-only"),
    (UPTIME, "Time since the start of the supervisor"),
    (DISK_FREE, "Free space on the disk of the supervisor's state directory"),
    (DISK_SIZE, "Size of the disk of the supervisor's state directory"),
    (DETACHED_GRACE, "Time after which the agents of a gateway that is gone have ended"),
    (MEMORY, "Memory of the machine"),
    (LIVING, "Living leases of all gateways"),
];

/// Formats figures as OpenMetrics text.
#[must_use]
pub fn render(figures: &[Figure]) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    for (name, help) in FIGURES {
        let _ = writeln!(text, "# HELP acp_{name} {help}.\n# TYPE acp_{name} gauge");
        for figure in figures.iter().filter(|figure| figure.name == name) {
            let _ = match figure.state.as_str() {
                "" => writeln!(text, "acp_{name} {}", figure.value),
                state => writeln!(text, "acp_{name}{{state=\"{state}\"}} {}", figure.value),
            };
        }
    }
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_openmetrics_text() {
        let open = Figure { state: "open".to_owned(), ..Figure::new(LEASES, 3) };
        let text = render(&[Figure::new(GATEWAYS, 1), open, Figure::new("unknown", 9)]);
        assert!(text.starts_with(
            "# HELP acp_supervisor_leases Leases, by state.\n# TYPE acp_supervisor_leases gauge\n\
             acp_supervisor_leases{state=\"open\"} 3\n"
        ));
        assert!(text.contains("\nacp_supervisor_gateways 1\n") && !text.contains("unknown"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
