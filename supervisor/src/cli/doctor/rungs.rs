//! Checks of the containment levels: which one is or would be in use, its coverage, and why better ones are
//! missing. The texts and the choice come from [`crate::core::containment`].

use super::Check;
use crate::app::environment;
use crate::config::Config;
use crate::core::containment::{ContainmentReport, report_from_status, report_levels, select_level};
use crate::sys::launch_dir::{LaunchDirError, WrapperRoot, private_dir};
use acp_shared::protocol::Status;
use std::path::Path;

/// Containment levels on this machine.
#[derive(Debug)]
pub(super) struct ContainmentLevels {
    /// Reports on the levels, best one first.
    pub(super) reports: Vec<ContainmentReport>,
    /// Kernel features, by name.
    abilities: Vec<(String, bool)>,
    /// True for the levels of a running supervisor; false for those of one that would be started from here.
    in_use: bool,
    /// Reason why the configured level is not available.
    refused: Option<String>,
    /// Configured limits that would have no effect. Empty for a running supervisor, which reports such
    /// warnings itself.
    unlimited: Vec<String>,
}

impl ContainmentLevels {
    /// Creates the report from the status of a running supervisor.
    pub(super) fn from_status(status: &Status) -> Self {
        Self {
            reports: report_from_status(&status.rung, &status.rungs_missing),
            abilities: status.abilities.clone(),
            in_use: true,
            refused: None,
            unlimited: Vec::new(),
        }
    }

    /// Probes the levels for a supervisor that would be started from here. Uses a temporary directory, so
    /// that a running supervisor is not affected.
    pub(super) fn probe(config: &Config, wrapper: &Path) -> Result<Self, LaunchDirError> {
        let dir = std::env::temp_dir().join(format!("acp-doctor-{}", acp_shared::ids::LeaseId::mint()));
        let tried = Self::probe_in(&dir, config, wrapper);
        drop(std::fs::remove_dir_all(&dir));
        tried
    }

    fn probe_in(dir: &Path, config: &Config, wrapper: &Path) -> Result<Self, LaunchDirError> {
        private_dir(dir).map_err(|source| LaunchDirError::Prepare { path: dir.to_owned(), source })?;
        let wrappers = WrapperRoot::prepare(dir, wrapper)?;
        let (sys, abilities, subtree) = environment::probe(config, dir, &wrappers)?;
        if let Some(tree) = sys.groups() {
            tree.remove_subtree(&subtree);
        }
        let chosen = select_level(&abilities, config.rung);
        let unlimited = |level| environment::limits_without_effect(&sys, level, &subtree, &abilities, config);
        let mut named = abilities.named();
        // Becoming a subreaper is not probed here.
        named.retain(|(name, _)| name != "subreaper");
        Ok(Self {
            reports: report_levels(&abilities, config),
            abilities: named,
            in_use: false,
            unlimited: chosen.map(unlimited).unwrap_or_default(),
            refused: chosen.err().map(|refusal| refusal.to_string()),
        })
    }

    /// Returns the checks of the containment levels.
    pub(super) fn checks(&self, config: &Config) -> Vec<Check> {
        let mut checks = vec![self.chosen()];
        checks.extend(self.configured(config));
        let best = self.reports.iter().position(|report| report.chosen).unwrap_or(self.reports.len());
        for report in self.reports.iter().take(best).filter(|_| self.refused.is_none()) {
            if let Some(why) = &report.why_not {
                let means = format!("it would use {}, and find {}", report.holds_by, report.catches);
                checks.push(Check::warn(report.rung, "not available here", means, why.clone()));
            }
        }
        checks.push(self.abilities());
        let unlimited = self.unlimited.iter().map(|limit| {
            let next = "fix the reported cause, or remove the limit";
            Check::warn("limit", limit.clone(), "leases run without this limit", next)
        });
        checks.extend(unlimited);
        checks
    }

    fn chosen(&self) -> Check {
        let name = "rung";
        if let Some(refusal) = &self.refused {
            let next = "fix the reported cause, or set rung = \"auto\"";
            let means = "the supervisor does not start with this setting";
            return Check::fail(name, refusal.clone(), means, next);
        }
        let Some(report) = self.reports.iter().find(|report| report.chosen) else {
            let means = "this program is older than the supervisor and does not know its containment level";
            let next = "use acp-supervisor of that version";
            return Check::warn(name, "an unknown one is in use", means, next);
        };
        let whose = if self.in_use { "is in use" } else { "would be used by a supervisor started from here" };
        let found = format!("{} {whose}: {}", report.rung, report.holds_by);
        let residue = report.residue.join(" ");
        let means = format!("It finds {}. It misses {}. {residue}", report.catches, report.misses);
        match report.rung {
            "R1" | "R2" => Check::ok(name, found, means.trim_end()),
            "R3" => {
                Check::warn(name, found, means.trim_end(), "make R2 or R1 possible, or accept this level")
            }
            _ => Check::fail(name, found, means.trim_end(), "make R3, R2 or R1 possible"),
        }
    }

    /// Warns if the running supervisor was started with another configured level.
    fn configured(&self, config: &Config) -> Option<Check> {
        let asked = config.rung.level()?.as_str();
        let chosen = self.reports.iter().any(|report| report.chosen && report.rung == asked);
        (self.in_use && !chosen).then(|| {
            let found = format!("rung = \"{asked}\" is configured, but another one is in use");
            let means = "the running supervisor was started with another configuration";
            Check::warn("configured rung", found, means, "restart it with this configuration")
        })
    }

    fn abilities(&self) -> Check {
        let missing = self.abilities.iter().filter(|(_, has)| !has);
        // Missing cgroups are reported by the check of R1.
        let missing: Vec<&str> = missing.map(|(n, _)| n.as_str()).filter(|n| *n != "cgroup_kill").collect();
        if missing.is_empty() {
            let means = "processes are identified and signalled through pidfds";
            return Check::ok("abilities", "all available", means);
        }
        let effect = |name: &&str| {
            Some(match *name {
                "pidfd" | "pidfs_inode" => "processes are identified by start time and environment",
                "pidfd_group" => "each process is signalled separately",
                "scm_pidfd" => "clients are identified by uid and pid only",
                "proc_list" => "no process can be found",
                "subreaper" => "orphans of a dead wrapper are found by their environment only",
                "cgroup_memory" => "memory_max_bytes has no effect",
                "cgroup_pids" => "pids_max has no effect",
                "cgroup_cpu" => "cpu_weight has no effect",
                _ => return None,
            })
        };
        let means: Vec<String> =
            missing.iter().filter_map(|n| Some(format!("without {n}, {}", effect(n)?))).collect();
        let next = "use a newer kernel (pidfds 5.3; their inodes and group signals 6.9); for cgroup_* delegate the \
                    controllers (Delegate=memory pids cpu)";
        Check::warn("abilities", format!("missing: {}", missing.join(", ")), means.join("; "), next)
    }
}

/// Reports that the containment levels could not be probed.
pub(super) fn not_tried(error: &LaunchDirError) -> Check {
    let next = "see the check of the wrapper; the directory for temporary files must allow exec";
    let means = "the containment level of a new supervisor is probed with the wrapper";
    Check::warn("rung", error.to_string(), means, next)
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus::{Fail, Ok, Warn};
    use super::*;
    use crate::config::ContainmentSetting;
    use crate::core::containment::{CgroupSupport, ContainmentLevel, KernelFeatures, unavailable_levels};

    fn levels(level: &str, abilities: &KernelFeatures) -> ContainmentLevels {
        ContainmentLevels {
            reports: report_from_status(level, &unavailable_levels(abilities)),
            abilities: abilities.named(),
            in_use: true,
            refused: None,
            unlimited: Vec::new(),
        }
    }

    const SOME: KernelFeatures = KernelFeatures {
        pidfd: true,
        signals: true,
        proc_list: true,
        groups: CgroupSupport::NotDelegated,
        ..KernelFeatures::NONE
    };

    #[test]
    fn containment_level_check_names_gaps_and_residue() {
        let config = Config::default();
        for (level, want) in [("R1", Ok), ("R2", Ok), ("R3", Warn), ("R4", Fail), ("R9", Warn)] {
            let check = levels(level, &SOME).checks(&config).remove(0);
            assert_eq!((check.name, check.verdict), ("rung", want), "{level}");
            for known in ContainmentLevel::ALL.into_iter().filter(|known| known.as_str() == level) {
                assert!(check.means.contains(known.misses()), "{check:?}");
                assert!(known.residue().iter().all(|window| check.means.contains(window)), "{check:?}");
            }
        }
    }

    #[test]
    fn unavailable_better_level_is_shown_with_next_step() {
        let names = |level: &str| -> Vec<&str> {
            levels(level, &SOME).checks(&Config::default()).iter().map(|check| check.name).collect()
        };
        assert_eq!(names("R2"), ["rung", "R1", "abilities"]);
        assert_eq!(names("R1"), ["rung", "abilities"], "worse levels are not reported as missing");
        assert_eq!(levels("R2", &SOME).checks(&Config::default())[1].next, CgroupSupport::NotDelegated.why());
    }

    #[test]
    fn configured_level_is_compared_with_level_in_use() {
        let config = Config { rung: ContainmentSetting::R1, ..Config::default() };
        let check = &levels("R2", &SOME).checks(&config)[1];
        assert_eq!((check.name, check.verdict), ("configured rung", Warn));
        assert!(levels("R1", &SOME).checks(&config).iter().all(|check| check.name != "configured rung"));
        let refused = ContainmentLevels { in_use: false, refused: Some("no".into()), ..levels("", &SOME) };
        let checks = refused.checks(&config);
        assert_eq!((checks[0].verdict, checks[0].found.as_str(), checks.len()), (Fail, "no", 2));
    }
}
