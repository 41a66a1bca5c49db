//! Conversion of `launch.json` to the arguments of `execve`. All of it is allocated before the fork: after
//! it, the child must not allocate.

use crate::error::{StepContext, StepError};
use crate::escalation::EscalationTimes;
use acp_shared::launch::{
    Confine, ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, LAUNCH_FILE, LAUNCH_VERSION, Launch,
};
use nix::libc;
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::CString;
use std::io::Read;
use std::path::Path;

/// Maximum size of `launch.json`: twice the default Linux limit for arguments and environment of one exec.
const LAUNCH_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Search path for programs if the adapter's environment has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Parameters for the child after the fork.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaunchPlan {
    /// Candidate paths of the program, in the order in which they are tried.
    pub(crate) programs: Vec<CString>,
    /// Argument vector.
    pub(crate) argv: Vec<CString>,
    /// Complete environment.
    pub(crate) env: Vec<CString>,
    /// Working directory.
    pub(crate) cwd: CString,
    /// Grace periods of the shutdown.
    pub(crate) graces: EscalationTimes,
    /// User and restrictions.
    pub(crate) confine: Confine,
}

/// Reads `launch.json` from the directory of the running binary.
pub(crate) fn read_launch_file() -> Result<LaunchPlan, StepError> {
    let binary = std::fs::read_link("/proc/self/exe").during("find the wrapper's own file")?;
    read(&binary.with_file_name(LAUNCH_FILE))
}

fn read(path: &Path) -> Result<LaunchPlan, StepError> {
    const STAGE: &str = "read launch.json";
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).during(STAGE)?;
    let stat = rustix::fs::fstat(&file).during(STAGE)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(StepError::new("read launch.json: it is not a regular file", libc::EINVAL));
    }
    if stat.st_mode & 0o077 != 0 || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(StepError::new("read launch.json: others can read or write it", libc::EPERM));
    }
    if stat.st_size.cast_unsigned() > LAUNCH_BYTES_MAX {
        return Err(StepError::new("read launch.json: it is too large", libc::EFBIG));
    }
    // With one spare byte of capacity, `read_to_end` detects the end of the file without growing the buffer.
    let mut bytes = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or(0).saturating_add(1));
    std::fs::File::from(file).take(LAUNCH_BYTES_MAX).read_to_end(&mut bytes).during(STAGE)?;
    parse(&bytes)
}

/// Parses a launch description into a plan.
pub(crate) fn parse(bytes: &[u8]) -> Result<LaunchPlan, StepError> {
    let launch: Launch = serde_json::from_slice(bytes)
        .map_err(|_| StepError::new("read launch.json: it is not a launch description", libc::EINVAL))?;
    plan(launch)
}

fn plan(launch: Launch) -> Result<LaunchPlan, StepError> {
    if launch.version != LAUNCH_VERSION {
        return Err(StepError::new("read launch.json: its version is not supported", libc::EPROTONOSUPPORT));
    }
    let program = match launch.argv.first() {
        Some(program) if !program.is_empty() => program,
        _ => return Err(StepError::new("read launch.json: it contains no program", libc::EINVAL)),
    };
    if !launch.cwd.starts_with('/') {
        return Err(StepError::new("read launch.json: cwd is not absolute", libc::EINVAL));
    }
    let search = launch.env.iter().find(|(name, _)| name == "PATH").map_or(PATH_DEFAULT, |(_, dirs)| dirs);
    let programs = candidates(program, search).into_iter().map(text).collect::<Result<_, _>>()?;
    let env = environment(&launch)?;
    Ok(LaunchPlan {
        programs,
        argv: launch.argv.into_iter().map(text).collect::<Result<_, _>>()?,
        env,
        cwd: text(launch.cwd)?,
        graces: EscalationTimes { term_ms: launch.term_grace_ms, sweep_ms: launch.sweep_ms },
        confine: launch.confine,
    })
}

/// Returns the candidate paths of a program. Empty entries of the search path, which would mean the working
/// directory, are skipped.
fn candidates(program: &str, search: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    search.split(':').filter(|dir| !dir.is_empty()).map(|dir| format!("{dir}/{program}")).collect()
}

/// Returns the given environment. The two lease variables are always set to this lease's values.
fn environment(launch: &Launch) -> Result<Vec<CString>, StepError> {
    let marks = [
        (ENV_LEASE_ID, launch.lease_id.to_string()),
        (ENV_GATEWAY_INSTANCE_ID, launch.gateway_instance_id.to_string()),
    ];
    let mut env = Vec::with_capacity(launch.env.len() + marks.len());
    for (name, value) in &launch.env {
        if name.is_empty() || name.contains('=') {
            return Err(StepError::new("read launch.json: a variable has an invalid name", libc::EINVAL));
        }
        if marks.iter().all(|(mark, _)| name != mark) {
            env.push(text(format!("{name}={value}"))?);
        }
    }
    for (mark, value) in marks {
        env.push(text(format!("{mark}={value}"))?);
    }
    Ok(env)
}

fn text(text: String) -> Result<CString, StepError> {
    CString::new(text)
        .map_err(|_| StepError::new("read launch.json: a text contains a NUL byte", libc::EINVAL))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::ids::{GatewayInstanceId, LeaseId};

    fn launch() -> Launch {
        Launch {
            version: LAUNCH_VERSION,
            lease_id: LeaseId::mint(),
            gateway_instance_id: GatewayInstanceId::mint(),
            argv: vec!["agent".into(), "a b".into()],
            env: vec![("PATH".into(), "/x::/y".into()), ("E".into(), "=".into())],
            cwd: "/tmp".into(),
            term_grace_ms: 1,
            sweep_ms: 2,
            confine: Confine::default(),
        }
    }

    fn cstring(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    #[test]
    fn launch_is_converted_to_plan() {
        let launch = launch();
        let want = LaunchPlan {
            programs: vec![cstring("/x/agent"), cstring("/y/agent")],
            argv: vec![cstring("agent"), cstring("a b")],
            env: vec![
                cstring("PATH=/x::/y"),
                cstring("E=="),
                cstring(&format!("{ENV_LEASE_ID}={}", launch.lease_id)),
                cstring(&format!("{ENV_GATEWAY_INSTANCE_ID}={}", launch.gateway_instance_id)),
            ],
            cwd: cstring("/tmp"),
            graces: EscalationTimes { term_ms: 1, sweep_ms: 2 },
            confine: Confine::default(),
        };
        assert_eq!(plan(launch).unwrap(), want);
    }

    #[test]
    fn environment_cannot_override_markers() {
        let mut launch = launch();
        launch.env = vec![(ENV_LEASE_ID.into(), "another".into())];
        let id = launch.lease_id;
        let env = plan(launch).unwrap().env;
        assert_eq!(env.len(), 2);
        assert_eq!(env.first().unwrap(), &cstring(&format!("{ENV_LEASE_ID}={id}")));
    }

    #[test]
    fn program_candidates_follow_search_path() {
        for (program, search, want) in [
            ("/bin/sh", "/x", vec!["/bin/sh"]),
            ("./sh", "/x", vec!["./sh"]),
            ("sh", "/x:rel:/y", vec!["/x/sh", "rel/sh", "/y/sh"]),
            ("sh", "", vec![]),
            ("sh", PATH_DEFAULT, vec!["/usr/local/bin/sh", "/usr/bin/sh", "/bin/sh"]),
        ] {
            assert_eq!(candidates(program, search), want, "{program} {search}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_hints() {
        type Change = fn(&mut Launch);
        let table: [(&str, Change, i32); 9] = [
            ("version", |l| l.version += 1, libc::EPROTONOSUPPORT),
            ("no argv", |l| l.argv.clear(), libc::EINVAL),
            ("empty program", |l| l.argv = vec![String::new()], libc::EINVAL),
            ("relative cwd", |l| l.cwd = "tmp".into(), libc::EINVAL),
            ("NUL in argv", |l| l.argv.push("\0".into()), libc::EINVAL),
            ("NUL in env", |l| l.env.push(("A".into(), "\0".into())), libc::EINVAL),
            ("NUL in cwd", |l| l.cwd = "/\0".into(), libc::EINVAL),
            ("nameless variable", |l| l.env.push((String::new(), "x".into())), libc::EINVAL),
            ("= in a name", |l| l.env.push(("A=B".into(), "x".into())), libc::EINVAL),
        ];
        for (name, change, errno) in table {
            let mut launch = launch();
            change(&mut launch);
            assert_eq!(plan(launch).unwrap_err().errno, errno, "{name}");
        }
    }
}
