//! Decides which configured limits are effective and why others are not. Each limit needs a controller of the
//! lease's control group, and therefore containment level R1.

use crate::config::Config;
use crate::core::containment::{CgroupLimits, ContainmentLevel, KernelFeatures};

/// File in a cgroup v2 directory with the list of available controllers.
pub const CONTROLLERS_FILE: &str = "cgroup.controllers";

/// Controllers found on this machine, for diagnostics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Directory of the parent group of lease groups; empty if there is none.
    dir: String,
    /// Controllers that the parent group offers to groups below.
    offered: Vec<String>,
    /// Mount points and options of cgroup v1 hierarchies. A controller bound to one is unavailable in v2
    /// groups.
    older: Vec<(String, Vec<String>)>,
}

impl Controllers {
    /// Parses [`CONTROLLERS_FILE`] of the parent group's directory and `/proc/self/mountinfo`.
    #[must_use]
    pub fn found(dir: &str, controllers: &str, mountinfo: &str) -> Self {
        let older = mountinfo.lines().filter_map(|line| {
            let (fields, filesystem) = line.split_once(" - ")?;
            let mut filesystem = filesystem.split(' ');
            let v1 = filesystem.next()? == "cgroup";
            let options = filesystem.nth(1)?.split(',').map(str::to_owned).collect();
            v1.then_some((fields.split(' ').nth(4)?.to_owned(), options))
        });
        Self {
            dir: dir.to_owned(),
            offered: controllers.split_ascii_whitespace().map(str::to_owned).collect(),
            older: older.collect(),
        }
    }

    /// Returns why a controller cannot be used for leases, and how to fix it.
    fn why_not(&self, controller: &str) -> String {
        let dir = &self.dir;
        if self.offered.iter().any(|name| name == controller) {
            return format!(
                "the {controller} controller is offered in {dir}, but cannot be enabled for groups below it; \
                 start the supervisor alone in its group"
            );
        }
        let offered = if self.offered.is_empty() { "none".to_owned() } else { self.offered.join(" ") };
        let at = self.older.iter().find(|(_, options)| options.iter().any(|option| option == controller));
        let next = match at {
            Some((at, _)) => format!(
                "it is bound to the older hierarchy at {at}; boot with cgroup v2 alone \
                 (systemd.unified_cgroup_hierarchy=1)"
            ),
            None => {
                format!("delegate it (Delegate={controller}), or name a group that offers it as cgroup_root")
            }
        };
        format!("the {controller} controller is not offered in {dir} (offered there: {offered}); {next}")
    }
}

/// Returns each limit as configuration key, controller, value, and whether this machine has the controller.
fn named_limits(
    limits: &CgroupLimits,
    abilities: &KernelFeatures,
) -> [(&'static str, &'static str, Option<u64>, bool); 3] {
    [
        ("memory_max_bytes", "memory", limits.memory_bytes_max, abilities.limit_memory),
        ("pids_max", "pids", limits.pids_max, abilities.limit_pids),
        ("cpu_weight", "cpu", limits.cpu_weight, abilities.limit_cpu),
    ]
}

/// Returns the limits configured for all leases; 0 in the configuration means no limit.
fn configured_limits(config: &Config) -> CgroupLimits {
    let limit = |value: u64| (value > 0).then_some(value);
    CgroupLimits {
        memory_bytes_max: limit(config.memory_max_bytes),
        pids_max: limit(config.pids_max),
        cpu_weight: limit(config.cpu_weight),
    }
}

/// Returns the configured limits that can be enforced for every lease.
#[must_use]
pub fn enforceable_limits(
    rung: ContainmentLevel,
    abilities: &KernelFeatures,
    config: &Config,
) -> CgroupLimits {
    let limits = configured_limits(config);
    let [memory_bytes_max, pids_max, cpu_weight] = named_limits(&limits, abilities)
        .map(|(_, _, value, has)| value.filter(|_| has && rung == ContainmentLevel::R1));
    CgroupLimits { memory_bytes_max, pids_max, cpu_weight }
}

/// Returns a warning for each limit, global or of a tenant, that is configured and cannot be enforced.
#[must_use]
pub fn without_effect(
    rung: ContainmentLevel,
    abilities: &KernelFeatures,
    controllers: &Controllers,
    config: &Config,
) -> Vec<String> {
    let tenants = config.tenant.iter().enumerate().map(|(at, tenant)| {
        let limits = CgroupLimits {
            memory_bytes_max: tenant.memory_max_bytes,
            pids_max: tenant.pids_max,
            cpu_weight: tenant.cpu_weight,
        };
        (format!(" of [[tenant]] number {}", at + 1), limits)
    });
    let mut warnings = Vec::new();
    for (whose, limits) in std::iter::once((String::new(), configured_limits(config))).chain(tenants) {
        for (key, controller, value, has) in named_limits(&limits, abilities) {
            if value.is_none() || (rung == ContainmentLevel::R1 && has) {
                continue;
            }
            let why = if rung == ContainmentLevel::R1 {
                controllers.why_not(controller)
            } else {
                format!(
                    "limits need containment level R1, but {} is in use; `acp-supervisor doctor` explains why",
                    rung.as_str()
                )
            };
            warnings.push(format!("{key}{whose} has no effect: {why}"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::containment::CgroupSupport;

    const ALL: KernelFeatures = KernelFeatures {
        groups: CgroupSupport::Work,
        limit_memory: true,
        limit_pids: true,
        limit_cpu: true,
        ..KernelFeatures::NONE
    };
    const NO_PIDS: KernelFeatures = KernelFeatures { limit_pids: false, ..ALL };
    const MOUNTS: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                          39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:3 - cgroup cgroup rw,pids\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const BOUND: &str = "the pids controller is not offered in /g (offered there: none); it is bound to the older \
                         hierarchy at /sys/fs/cgroup/pids; boot with cgroup v2 alone \
                         (systemd.unified_cgroup_hierarchy=1)";
    const KEPT: &str = "the pids controller is not offered in /g (offered there: cpu memory); delegate it \
                        (Delegate=pids), or name a group that offers it as cgroup_root";
    const BUSY: &str = "the pids controller is offered in /g, but cannot be enabled for groups below it; \
                        start the supervisor alone in its group";

    #[test]
    fn enforceable_limits_are_applied() {
        let config = Config::parse("memory_max_bytes = 1073741824\npids_max = 64").unwrap();
        let weight = Config::parse("cpu_weight = 50").unwrap();
        for (rung, abilities, config, want) in [
            (ContainmentLevel::R1, ALL, &config, vec![("memory.max", 1 << 30), ("pids.max", 64)]),
            (ContainmentLevel::R1, NO_PIDS, &config, vec![("memory.max", 1 << 30)]),
            (ContainmentLevel::R2, ALL, &config, vec![]),
            (ContainmentLevel::R1, ALL, &weight, vec![("cpu.weight", 50)]),
            (ContainmentLevel::R1, ALL, &Config::default(), vec![]),
        ] {
            assert_eq!(enforceable_limits(rung, &abilities, config).files(), want, "{rung:?}");
        }
    }

    #[test]
    fn ineffective_limit_is_reported_with_controller_location() {
        let (all, tenant) = ("pids_max = 64", "[[tenant]]\nuid = 6\n[[tenant]]\nuid = 5\npids_max = 1");
        let on_r2 =
            "limits need containment level R1, but R2 is in use; `acp-supervisor doctor` explains why";
        for (text, rung, abilities, (offered, mounts), want) in [
            (all, ContainmentLevel::R1, ALL, ("cpu pids", UNIFIED), None),
            (all, ContainmentLevel::R1, NO_PIDS, ("", MOUNTS), Some(("", BOUND))),
            (all, ContainmentLevel::R1, NO_PIDS, ("cpu memory\n", UNIFIED), Some(("", KEPT))),
            (all, ContainmentLevel::R1, NO_PIDS, ("cpu pids\n", UNIFIED), Some(("", BUSY))),
            (all, ContainmentLevel::R2, ALL, ("", MOUNTS), Some(("", on_r2))),
            (tenant, ContainmentLevel::R1, ALL, ("pids", UNIFIED), None),
            (tenant, ContainmentLevel::R1, NO_PIDS, ("", MOUNTS), Some((" of [[tenant]] number 2", BOUND))),
            (tenant, ContainmentLevel::R2, ALL, ("", MOUNTS), Some((" of [[tenant]] number 2", on_r2))),
            ("memory_max_bytes = 1", ContainmentLevel::R1, NO_PIDS, ("", MOUNTS), None),
        ] {
            let controllers = Controllers::found("/g", offered, mounts);
            let want = want.map(|(whose, why)| format!("pids_max{whose} has no effect: {why}"));
            let got = without_effect(rung, &abilities, &controllers, &Config::parse(text).unwrap());
            assert_eq!(got, want.into_iter().collect::<Vec<_>>(), "{text} {rung:?} {offered:?}");
        }
    }
}
