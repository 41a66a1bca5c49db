//! Checks of the machine: `/proc`, limits, systemd, and isolation that no containment level provides.

use super::Check;
use crate::config::Config;
use rustix::process::{Resource, getrlimit};

/// Approximate number of descriptors for each lease.
const DESCRIPTORS_OF_A_LEASE: u64 = 8;

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the `hidepid` option of the last mount of `/proc`.
fn hidepid(mountinfo: &str) -> Option<String> {
    let proc = mountinfo.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"))?;
    let options = proc.split([' ', ',']);
    options.filter_map(|option| option.strip_prefix("hidepid=")).next_back().map(str::to_owned)
}

/// Checks kernel settings that affect the visibility of processes.
pub(super) fn kernel() -> Vec<Check> {
    let hidden = read("/proc/self/mountinfo").and_then(|text| hidepid(&text));
    let root = rustix::process::geteuid().is_root();
    let hidden = match hidden.as_deref() {
        None | Some("0" | "off") => Check::ok("hidepid", "off", "every process can be seen"),
        Some(value) if root => Check::ok("hidepid", value, "root sees every process anyway"),
        Some(value) => Check::warn(
            "hidepid",
            value,
            "processes of other users cannot be seen: agent processes that run as another user are not found",
            "run the supervisor as root, or in the group of the mount's gid= option",
        ),
    };
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    let ptrace = match scope.as_deref() {
        Some("1" | "2" | "3") => Check::ok(
            "ptrace scope",
            scope.clone().unwrap_or_default(),
            "an agent cannot attach to processes that it did not start",
        ),
        _ => Check::warn(
            "ptrace scope",
            scope.clone().unwrap_or_else(|| "no Yama".to_owned()),
            "an agent can attach to other processes of its user, and read their memory",
            "sysctl kernel.yama.ptrace_scope=1, or give agents a user of their own",
        ),
    };
    let pid_max: u64 = read("/proc/sys/kernel/pid_max").and_then(|text| text.parse().ok()).unwrap_or(0);
    let means = "how soon a pid is reused; processes are not identified by pid alone";
    let pids = if pid_max > 32_768 {
        Check::ok("pid_max", pid_max.to_string(), means)
    } else {
        Check::warn("pid_max", pid_max.to_string(), means, "sysctl kernel.pid_max=4194304 makes reuse rare")
    };
    vec![hidden, ptrace, pids]
}

/// Checks the limits of this user, which a supervisor started from here would inherit.
pub(super) fn limits(config: &Config) -> Vec<Check> {
    let say = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let files = getrlimit(Resource::Nofile).maximum;
    let wanted = config.leases_max.saturating_mul(DESCRIPTORS_OF_A_LEASE);
    let found = format!("nofile {} (hard), {wanted} for leases_max = {}", say(files), config.leases_max);
    let files = if files.is_none_or(|limit| limit >= wanted) {
        Check::ok("open files", found, "enough for every lease")
    } else {
        let next = "raise the hard limit (LimitNOFILE=), or lower leases_max";
        Check::warn("open files", found, "spawns fail before leases_max is reached", next)
    };
    let processes = getrlimit(Resource::Nproc).maximum;
    let found = format!("nproc {} (hard)", say(processes));
    let processes = if rustix::process::geteuid().is_root() || processes.is_none_or(|limit| limit >= 4_096) {
        Check::ok("processes", found, "enough for agents and their processes")
    } else {
        let means = "agents share this limit: forks fail when it is reached";
        Check::warn("processes", found, means, "raise it (LimitNPROC=)")
    };
    vec![files, processes]
}

/// Returns path and name of the systemd unit of a process, from its cgroup file.
fn unit(cgroup: &str) -> Option<(&str, &str)> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let unit = path.split('/').rfind(|part| part.ends_with(".service"))?;
    let end = path.find(unit)? + unit.len();
    Some((path.get(..end)?, unit))
}

/// Checks if the supervisor is a systemd unit that may create cgroups.
pub(super) fn systemd(pid: Option<i32>) -> Check {
    let name = "systemd";
    let of = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let cgroup = read(&format!("/proc/{of}/cgroup")).unwrap_or_default();
    let managed = std::path::Path::new("/run/systemd/system").is_dir();
    match unit(&cgroup) {
        Some((path, unit)) if managed && pid.is_some() && !unit.starts_with("user@") => {
            let mut value = [0; 8];
            let dir = format!("/sys/fs/cgroup{path}");
            let told =
                |name: &str, value: &mut [u8; 8]| rustix::fs::getxattr(dir.as_str(), name, value).is_ok();
            if told("user.delegate", &mut value) || told("trusted.delegate", &mut value) {
                let found = format!("{unit}, Delegate is on");
                return Check::ok(name, found, "it can create a control group for each lease");
            }
            let means = "without Delegate=yes it cannot create control groups and uses containment level R2";
            let next = "use the packaged unit, or set Delegate=yes";
            Check::warn(name, format!("{unit}, Delegate is off"), means, next)
        }
        _ if managed => {
            Check::ok(name, "not a unit", "systemd runs here but does not manage this supervisor")
        }
        _ => Check::ok(
            name,
            "systemd does not run here",
            "another service manager must restart the supervisor",
        ),
    }
}

/// Describes the missing isolation between processes of one user (H9).
pub(super) fn isolation() -> Check {
    Check::warn(
        "isolation",
        "agents run as the supervisor's user or as the configured user",
        "processes of the same user are not isolated from each other: an agent that runs as the supervisor's \
         user can signal other processes of that user, read their files, and end the supervisor. The sockets \
         refuse connections from supervised process trees; this guards against accidents, not against an \
         attacker",
        "run hostile agents as another user (supervisor as root, with run_as_user), in a container or in a \
         virtual machine",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidepid_and_unit_are_parsed() {
        let mount = |options: &str| {
            format!("22 1 0:21 / /proc rw,nosuid - proc proc {options}\n23 1 0:2 / /sys rw - sysfs sysfs rw")
        };
        assert_eq!(hidepid(&mount("rw")), None);
        assert_eq!(hidepid(&mount("rw,hidepid=invisible")), Some("invisible".to_owned()));
        assert_eq!(hidepid(&format!("{}\n{}", mount("rw,hidepid=2"), mount("rw"))), None);
        let path = "0::/system.slice/acp-supervisor.service/supervisor\n";
        assert_eq!(unit(path), Some(("/system.slice/acp-supervisor.service", "acp-supervisor.service")));
        assert_eq!(unit("0::/user.slice\n"), None);
        assert_eq!(unit("4:cpu:/a.service\n"), None);
    }
}
