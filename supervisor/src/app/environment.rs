//! Environment of a supervisor: kernel features, its own process identity, and the containment level of its
//! trees.

use crate::config::{Config, ContainmentSetting};
use crate::core::cgroup::CgroupSubtree;
use crate::core::containment::{
    CgroupSupport, Containment, ContainmentError, ContainmentLevel, KernelFeatures, select_level,
};
use crate::core::lease::{PidScope, ProcessRecord};
use crate::core::limits::{self, Controllers};
use crate::sys::launch_dir::{LaunchDirError, WrapperRoot};
use crate::sys::linux::Linux;
use crate::sys::{Sys, cgroup};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Number of digits of a state directory's short id.
const SHORT_ID_DIGITS: usize = 12;

/// Reason why the supervisor cannot run on this machine.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// The system does not report necessary facts about this process.
    #[error("cannot determine {0}; is /proc mounted?")]
    MissingFact(&'static str),
    /// The configured containment level is not available.
    #[error(transparent)]
    Containment(#[from] ContainmentError),
    /// No wrapper can be started for the probe.
    #[error(transparent)]
    Wrapper(#[from] LaunchDirError),
}

/// Result of the examination at start.
#[derive(Debug)]
pub struct StartupState {
    /// System interface, with the features of the chosen level.
    pub sys: Arc<Linux>,
    /// Probed kernel features.
    pub abilities: KernelFeatures,
    /// Containment of process trees.
    pub containment: Containment,
    /// Record of this process.
    pub me: ProcessRecord,
    /// Scope of this process: boot and namespaces.
    pub scope: PidScope,
    /// Warnings about missing features.
    pub warnings: Vec<String>,
}

/// Returns an id that distinguishes the cgroups of this state directory from those of others. A copy of the
/// directory has another id.
fn short_id(state_dir: &Path) -> String {
    let at = std::fs::metadata(state_dir).map(|m| (m.dev(), m.ino())).unwrap_or_default();
    let hash = format!("{:x}", Sha256::digest(format!("{}:{}", at.0, at.1)));
    hash.get(..SHORT_ID_DIGITS).unwrap_or(&hash).to_owned()
}

/// Returns the location of the cgroups for leases of this state directory.
///
/// # Errors
/// Reason why cgroups cannot be used.
pub fn cgroup_subtree(
    sys: &Linux,
    config: &Config,
    state_dir: &Path,
) -> Result<CgroupSubtree, CgroupSupport> {
    cgroup::choose_subtree(sys.groups(), config.cgroup_root.as_deref(), &short_id(state_dir))
}

/// Returns the configured limits that have no effect, for all leases and for those of tenants, with the
/// reason.
#[must_use]
pub fn limits_without_effect(
    sys: &Linux,
    level: ContainmentLevel,
    subtree: &CgroupSubtree,
    abilities: &KernelFeatures,
    config: &Config,
) -> Vec<String> {
    let controllers = sys.groups().map_or_else(Controllers::default, |tree| tree.controllers(subtree));
    limits::without_effect(level, abilities, &controllers, config)
}

/// Probes kernel features. For cgroups, one is created, filled with a wrapper, killed and removed; levels
/// that need no cgroups skip this.
///
/// # Errors
/// [`LaunchDirError`] if no wrapper can be started.
pub fn probe(
    config: &Config,
    state_dir: &Path,
    wrappers: &WrapperRoot,
) -> Result<(Linux, KernelFeatures, CgroupSubtree), LaunchDirError> {
    let sys = Linux::new();
    let mut abilities = sys.probe();
    let placed = cgroup_subtree(&sys, config, state_dir);
    let (groups, controllers) = match (config.rung, &placed, sys.groups()) {
        (ContainmentSetting::R2 | ContainmentSetting::R3, _, _) => (CgroupSupport::NotTried, HashSet::new()),
        (ContainmentSetting::Auto | ContainmentSetting::R1, Err(groups), _) => (*groups, HashSet::new()),
        (ContainmentSetting::Auto | ContainmentSetting::R1, Ok(_), None) => {
            (CgroupSupport::NotMounted, HashSet::new())
        }
        (ContainmentSetting::Auto | ContainmentSetting::R1, Ok(subtree), Some(tree)) => {
            wrappers.with_inert(|inert| tree.prepare(subtree, inert))?
        }
    };
    abilities.groups = groups;
    abilities.limit_memory = controllers.contains("memory");
    abilities.limit_pids = controllers.contains("pids");
    abilities.limit_cpu = controllers.contains("cpu");
    Ok((sys, abilities, placed.unwrap_or_else(|_| CgroupSubtree::new("/", &short_id(state_dir)))))
}

/// Probes the machine and chooses the containment level. Afterwards this process is the subreaper of orphans
/// of dead wrappers.
///
/// # Errors
/// [`StartupError`] if a necessary fact is unknown, or the configured level is not available.
pub fn probe_and_choose(
    config: &Config,
    state_dir: &Path,
    wrappers: &WrapperRoot,
) -> Result<StartupState, StartupError> {
    let (sys, mut abilities, subtree) = probe(config, state_dir, wrappers)?;
    let rung = select_level(&abilities, config.rung)?;
    let sys = if rung == ContainmentLevel::R3 { Linux::without_pidfds() } else { sys };
    let (me, scope) = identify_self(&sys)?;
    let limits = limits::enforceable_limits(rung, &abilities, config);
    let mut warnings = Vec::new();
    // Without a readable process list, assume existing children.
    let alone = sys.snapshot().is_ok_and(|all| !all.is_empty() && all.iter().all(|p| p.ppid != me.pid));
    if !alone || !sys.children().is_empty() {
        // As subreaper, orphans of unrelated children could not be distinguished from those of the own trees.
        warnings.push(
            "this process has children of another program, or its children are unknown: orphans of dead \
             wrappers are found by their environment only"
                .into(),
        );
    } else {
        abilities.subreaper =
            rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(me.pid)).is_ok();
    }
    if !abilities.pidfs_inode {
        warnings
            .push("this kernel has no pidfs: processes are identified by start time and environment".into());
    }
    if rung == ContainmentLevel::R4 {
        warnings.push("no agent can start: this machine cannot contain a process tree (level R4)".into());
    }
    tracing::info!(containment = rung.as_str(), cgroups = abilities.groups.why(), "containment level chosen");
    let containment = Containment { rung, subtree, limits };
    Ok(StartupState { sys: Arc::new(sys), abilities, containment, me, scope, warnings })
}

/// Recreates the environment after an upgrade. Subreaper and cgroups persist across `execve`: nothing is
/// probed, created or removed, and warnings were reported before.
///
/// # Errors
/// [`StartupError::MissingFact`].
pub(crate) fn resume_after_exec(
    abilities: KernelFeatures,
    containment: Containment,
) -> Result<StartupState, StartupError> {
    let sys = if containment.rung == ContainmentLevel::R3 { Linux::without_pidfds() } else { Linux::new() };
    let (me, scope) = identify_self(&sys)?;
    Ok(StartupState { sys: Arc::new(sys), abilities, containment, me, scope, warnings: Vec::new() })
}

fn identify_self(sys: &Linux) -> Result<(ProcessRecord, PidScope), StartupError> {
    let scope = sys.current_scope().ok_or(StartupError::MissingFact("the boot id and the pid namespace"))?;
    let me = sys.own_record().ok_or(StartupError::MissingFact("the start time of this process"))?;
    Ok((me, scope))
}
