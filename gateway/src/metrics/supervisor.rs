//! Metrics of the supervisor, which it reports to this gateway for its own leases.

use super::{GaugeFamily, Metrics, add, labels};
use acp_shared::figures::{self, FIGURES, Figure};
use acp_shared::protocol::LeaseState;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// Figures that the supervisor reported last; 0 before, so that a rule has data from the start.
#[derive(Debug)]
pub(super) struct SupervisorFamilies {
    leases: GaugeFamily,
    /// By name, without the prefix.
    others: BTreeMap<&'static str, Gauge>,
}

impl SupervisorFamilies {
    pub(super) fn register(all: &mut Registry) -> Self {
        let mut others = BTreeMap::new();
        let mut leases = GaugeFamily::default();
        for (name, help) in FIGURES {
            if name == figures::LEASES {
                leases = add(all, name, help);
            } else {
                others.insert(name, add(all, name, help));
            }
        }
        for state in LeaseState::ALL {
            drop(leases.get_or_create_owned(&labels([("state", state.as_str())])));
        }
        Self { leases, others }
    }
}

impl Metrics {
    /// Sets figures that the supervisor reported. Names of a newer supervisor are ignored.
    pub(crate) fn supervisor(&self, figures: &[Figure]) {
        let SupervisorFamilies { leases, others } = &self.inner.supervisor;
        for figure in figures {
            let value = i64::try_from(figure.value).unwrap_or(i64::MAX);
            if figure.name == figures::LEASES {
                leases.get_or_create_owned(&labels([("state", figure.state.as_str())])).set(value);
            } else if let Some(gauge) = others.get(figure.name.as_str()) {
                gauge.set(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_supervisor_replace_zeros() {
        let metrics = Metrics::default();
        assert!(metrics.render().contains("\nacp_supervisor_leases{state=\"lost\"} 0\n"));
        let lost = Figure { state: "lost".to_owned(), ..Figure::new(figures::LEASES, 2) };
        metrics.supervisor(&[lost, Figure::new(figures::SURVIVORS, 1), Figure::new("of_tomorrow", 1)]);
        let text = metrics.render();
        assert!(text.contains("\nacp_supervisor_leases{state=\"lost\"} 2\n"), "{text}");
        assert!(text.contains("\nacp_supervisor_survivors 1\n") && !text.contains("of_tomorrow"), "{text}");
    }
}
