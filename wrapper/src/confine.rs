//! User and restrictions of the adapter: validated and prepared before the fork, so the child only has to
//! apply them. A restriction that cannot be enforced is refused here; nothing runs with less confinement than
//! requested.

use crate::error::{StepContext, StepError};
use acp_shared::launch::{
    Confine, Landlock, PrivateDirectory, Resource, ResourceLimit, RunAs, STAGE_OPEN_ROOT,
};
use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};
use nix::libc;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

/// Valid bits of a umask.
const UMASK_BITS: u32 = 0o777;
/// Invalid user or group id: the kernel interprets it as "no change".
const NO_ID: u32 = u32::MAX;
/// Maximum number of supplementary groups, `NGROUPS_MAX` of linux/limits.h.
const GROUPS_MAX: usize = 65_536;
/// Oldest Landlock ABI that confines writes: before it (Linux 6.2), any file could be truncated.
const ABI_MIN: ABI = ABI::V3;
/// Landlock ABI whose additional write rights (ioctl of devices) are denied too if the kernel supports them.
const ABI_WANTED: ABI = ABI::V5;
/// Devices that every program may write to, besides the given roots. Missing ones are left out.
const DEVICES: [&str; 8] = [
    "/dev/full",
    "/dev/null",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// Restrictions applied in the child after the fork.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// User of the adapter; `None` for the wrapper's user.
    pub(crate) identity: Option<RunAs>,
    /// Resource limits.
    pub(crate) limits: Vec<(libc::c_uint, libc::rlimit64)>,
    /// Content to write to `/proc/self/oom_score_adj`.
    pub(crate) oom_score_adj: Option<Vec<u8>>,
    /// File mode creation mask.
    pub(crate) umask: Option<libc::mode_t>,
    /// True if `PR_SET_NO_NEW_PRIVS` is set: executed programs gain no privileges.
    pub(crate) no_new_privs: bool,
    /// Landlock ruleset to enforce.
    pub(crate) ruleset: Option<OwnedFd>,
    /// Writable directories that the child creates as its user.
    pub(crate) private: Vec<PrivatePath>,
    /// True if a working directory whose path contains links is refused.
    pub(crate) cwd_without_links: bool,
}

/// Writable directory that the child creates.
#[derive(Debug)]
pub(crate) struct PrivatePath {
    /// Home directory of the user; its path may have links.
    pub(crate) home: CString,
    /// Names of the directories below it, the private one last.
    pub(crate) names: Vec<CString>,
}

/// Rights in a private directory: those that every supported kernel restricts.
pub(crate) fn private_rights() -> u64 {
    AccessFs::from_write(ABI_MIN).bits()
}

/// Validates a confinement and prepares the child's part of it.
pub(crate) fn prepare(confine: Confine) -> Result<Confinement, StepError> {
    Ok(Confinement {
        identity: confine.run_as.map(identity).transpose()?,
        limits: confine.limits.iter().map(limit).collect::<Result<_, _>>()?,
        oom_score_adj: confine.oom_score_adj.map(score).transpose()?,
        umask: confine.umask.map(umask).transpose()?,
        // An unprivileged process may enforce a ruleset only with `no_new_privs`.
        no_new_privs: confine.no_new_privs || confine.landlock.is_some(),
        ruleset: confine.landlock.as_ref().map(ruleset).transpose()?,
        private: confine
            .landlock
            .iter()
            .flat_map(|all| &all.private)
            .map(private)
            .collect::<Result<_, _>>()?,
        cwd_without_links: confine.cwd_without_links,
    })
}

fn identity(user: RunAs) -> Result<RunAs, StepError> {
    if user.groups.iter().chain([&user.uid, &user.gid]).any(|id| *id == NO_ID)
        || user.groups.len() > GROUPS_MAX
    {
        return Err(StepError::new("run as another user: an id is out of range", libc::EINVAL));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(StepError::new("run as another user: the wrapper is not root", libc::EPERM));
    }
    Ok(user)
}

fn limit(limit: &ResourceLimit) -> Result<(libc::c_uint, libc::rlimit64), StepError> {
    if limit.soft > limit.hard {
        return Err(StepError::new("limit resources: a soft limit is above its hard one", libc::EINVAL));
    }
    let resource = match limit.resource {
        Resource::AddressSpace => libc::RLIMIT_AS,
        Resource::Core => libc::RLIMIT_CORE,
        Resource::Cpu => libc::RLIMIT_CPU,
        Resource::Data => libc::RLIMIT_DATA,
        Resource::FileSize => libc::RLIMIT_FSIZE,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::Processes => libc::RLIMIT_NPROC,
    };
    // The C libraries differ in the signedness of the resource constants.
    Ok((resource as libc::c_uint, libc::rlimit64 { rlim_cur: limit.soft, rlim_max: limit.hard }))
}

fn score(score: i32) -> Result<Vec<u8>, StepError> {
    match score {
        -1000..=1000 => Ok(score.to_string().into_bytes()),
        _ => Err(StepError::new("set oom_score_adj: it is out of range", libc::EINVAL)),
    }
}

fn umask(bits: u32) -> Result<libc::mode_t, StepError> {
    if bits & !UMASK_BITS == 0 {
        Ok(bits)
    } else {
        Err(StepError::new("set the umask: it is out of range", libc::EINVAL))
    }
}

fn private(directory: &PrivateDirectory) -> Result<PrivatePath, StepError> {
    let wrong = || StepError::new("confine writes: a private directory is not usable", libc::EINVAL);
    let names = Path::new(&directory.below).components().map(|part| match part {
        Component::Normal(name) => CString::new(name.as_bytes()).map_err(|_| wrong()),
        _ => Err(wrong()),
    });
    let names: Vec<CString> = names.collect::<Result<_, _>>()?;
    if names.is_empty() || !directory.home.starts_with('/') {
        return Err(wrong());
    }
    Ok(PrivatePath { home: CString::new(directory.home.as_str()).map_err(|_| wrong())?, names })
}

fn ruleset(wanted: &Landlock) -> Result<OwnedFd, StepError> {
    const STAGE: &str = "confine writes: this kernel's Landlock is too old (Linux 6.2 or later needed)";
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI_MIN))
        .and_then(|ruleset| {
            ruleset
                .set_compatibility(CompatLevel::BestEffort)
                .handle_access(AccessFs::from_write(ABI_WANTED) & !AccessFs::from_write(ABI_MIN))
        });
    if wanted.scope {
        ruleset = ruleset.and_then(|ruleset| ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket));
    }
    let mut ruleset = ruleset.and_then(Ruleset::create).map_err(|e| fault(STAGE, &e))?;
    for root in &wanted.write {
        if !root.starts_with('/') {
            return Err(StepError::new("confine writes: a root is not absolute", libc::EINVAL));
        }
        match open_root(root) {
            // Nothing can be written there. A missing working directory is an error of the child's `chdir`.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            root => ruleset = allow(ruleset, root.during(STAGE_OPEN_ROOT)?)?,
        }
    }
    for device in DEVICES {
        match open(device) {
            Err(Errno::NOENT | Errno::NXIO) => {}
            device => ruleset = allow(ruleset, device.during("confine writes: open a device")?)?,
        }
    }
    // `None` if the kernel has no Landlock, which the hard requirement has already refused.
    Option::from(ruleset).ok_or(StepError::new(STAGE, libc::ENOSYS))
}

/// Opens a writable root. The gateway already resolved the links of roots. A link found now was created
/// later, perhaps to redirect the write permission, and is refused.
fn open_root(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Allows all write rights beneath a directory, or those that apply to a file.
fn allow(ruleset: RulesetCreated, root: OwnedFd) -> Result<RulesetCreated, StepError> {
    const STAGE: &str = "confine writes: add a rule";
    let stat = rustix::fs::fstat(&root).during(STAGE)?;
    let all = AccessFs::from_write(ABI_WANTED);
    let access: BitFlags<AccessFs> = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => all,
        _ => all & AccessFs::from_file(ABI_WANTED),
    };
    ruleset.add_rule(PathBeneath::new(root, access)).map_err(|e| fault(STAGE, &e))
}

/// Converts a ruleset error: to its errno, or to `EOPNOTSUPP` if the error has none.
fn fault(stage: &'static str, error: &RulesetError) -> StepError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(errno) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return StepError::new(stage, errno);
        }
        cause = error.source();
    }
    StepError::new(stage, libc::EOPNOTSUPP)
}
