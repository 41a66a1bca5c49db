//! Checks of files: configuration, state directory, lock, database, disk, wrapper.

use super::Check;
use crate::app::LOCK_FILE;
use crate::cli::text;
use crate::config::{Config, ConfigError};
use crate::store::{STORE_FILE, inspect};
use acp_shared::report::with_causes;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1024 * 1024;
/// Free space below which a spool of one agent may not fit, in bytes.
const DISK_WARN: u64 = 1024 * MIB;
/// Free space below which the lease store itself may not fit, in bytes.
const DISK_FAIL: u64 = 64 * MIB;

pub(super) fn configuration(file: Option<&Path>, config: &Result<Config, ConfigError>) -> Check {
    let shown = file.map_or_else(|| "defaults (no --config)".to_owned(), |file| file.display().to_string());
    match config {
        Ok(_) => Check::ok("configuration", shown, "every key is known and within its bounds"),
        Err(error) => Check::fail(
            "configuration",
            with_causes(error),
            "the supervisor does not start with it",
            "correct it; packaging/supervisor.example.toml names every key with its default",
        ),
    }
}

/// Checks the state directory and its files.
pub(super) fn files(dir: &Path, running: bool) -> Vec<Check> {
    let (name, shown) = ("state directory", dir.display());
    let meta = match std::fs::metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound && !running => {
            let found = format!("{shown} does not exist yet");
            let next = "`acp-supervisor serve` creates it";
            return vec![Check::warn(name, found, "no supervisor has used it", next)];
        }
        Err(error) if running => {
            let means = "the running supervisor uses another state directory, or this user may not access it";
            return vec![Check::warn(name, format!("{shown}: {error}"), means, "name it with --state-dir")];
        }
        Err(error) => {
            let next = "run this as root or as the supervisor's user";
            return vec![Check::fail(name, format!("{shown}: {error}"), "it cannot be read", next)];
        }
    };
    let mode = meta.mode() & 0o7777;
    let me = rustix::process::geteuid().as_raw();
    let found = format!("{shown} (mode {mode:03o}, uid {})", meta.uid());
    let first = if mode & 0o077 != 0 {
        let means = "other users can reach the leases, launch files and sockets in it";
        Check::fail(name, found, means, format!("chmod 700 {shown}"))
    } else if meta.uid() != me && me != 0 {
        let next = "run this as root or as that user";
        let means = "it belongs to another user: its contents cannot be read";
        return vec![Check::fail(name, found, means, next)];
    } else {
        Check::ok(name, found, "only its owner can enter")
    };
    vec![first, lock(dir, running), database(dir, running), disk(dir)]
}

/// Returns the pid of the lock holder according to the kernel. Trying the lock could block a supervisor that
/// is just starting.
fn holder(dir: &Path) -> Option<String> {
    let meta = std::fs::metadata(dir.join(LOCK_FILE)).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    held_by(&locks, meta.ino())
}

/// Returns the pid of the flock on this inode in `/proc/locks`.
fn held_by(locks: &str, inode: u64) -> Option<String> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().filter(|field| *field != "->").collect();
        let [_, "FLOCK", _, _, pid, place, ..] = fields.as_slice() else { return None };
        let found: u64 = place.rsplit(':').next()?.parse().ok()?;
        (found == inode).then(|| (*pid).to_owned())
    };
    locks.lines().find_map(of)
}

fn lock(dir: &Path, running: bool) -> Check {
    let name = "lock";
    match (holder(dir), running) {
        (Some(pid), true) => {
            Check::ok(name, format!("held by pid {pid}"), "no second supervisor can use this directory")
        }
        (None, false) => Check::ok(name, "free", "no supervisor uses this directory"),
        (Some(pid), false) => Check::fail(
            name,
            format!("held by pid {pid}, and no supervisor answers"),
            "a supervisor is starting or hangs, or it listens at another socket",
            "check that process and its log, or name its socket with --socket",
        ),
        (None, true) => Check::warn(
            name,
            "not found",
            "the running supervisor uses another state directory, or its lock is not visible here",
            "name the directory with --state-dir",
        ),
    }
}

fn database(dir: &Path, running: bool) -> Check {
    let (name, path) = ("database", dir.join(STORE_FILE));
    let shown = path.display().to_string();
    if !path.exists() {
        let found = format!("{shown} does not exist yet");
        return Check::ok(name, found, "the supervisor creates it at its first start");
    }
    match inspect(&path) {
        Ok(seen) if seen.version > seen.newest => Check::fail(
            name,
            format!("{shown}: schema {}, this program knows {}", seen.version, seen.newest),
            "it was written by a newer version; this version does not open it",
            "use that version, or move the file away",
        ),
        Ok(seen) => Check::ok(
            name,
            format!(
                "{shown}: schema {} of {}, {}",
                seen.version,
                seen.newest,
                text::count(seen.leases, "lease")
            ),
            "it can be read",
        ),
        Err(error) if running && error.to_string().contains("locked") => {
            Check::ok(name, format!("{shown}: in use"), "the running supervisor holds it")
        }
        Err(error) => Check::fail(
            name,
            format!("{shown}: {error}"),
            "leases cannot be recorded, so nothing is spawned",
            "check the disk; restore the file, or move it away when no supervisor runs",
        ),
    }
}

fn disk(dir: &Path) -> Check {
    let name = "disk";
    let stat = match rustix::fs::statvfs(dir) {
        Ok(stat) => stat,
        Err(error) => return Check::warn(name, error.to_string(), "free space is unknown", "check with df"),
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{} and {} inodes free", text::size(free), stat.f_favail);
    let next = "free space: spools of unread output and the lease store are stored here";
    // File systems without an inode count report 0 of 0.
    let no_inodes = stat.f_files > 0 && stat.f_favail < 100;
    if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        let means = "mounted read-only: no lease can be recorded, so nothing is spawned";
        return Check::fail(name, found, means, "mount it writable");
    }
    if free < DISK_FAIL || no_inodes {
        Check::fail(name, found, "a commit of the lease store may fail; then nothing is spawned", next)
    } else if free < DISK_WARN {
        Check::warn(name, found, "less than 1 GiB: unread output may not fit", next)
    } else {
        Check::ok(name, found, "enough for the lease store and for spools")
    }
}

/// Checks the wrapper and the mount of its directory.
pub(super) fn wrapper(wrapper: &Path, config: &Config, state_dir: &Path) -> Vec<Check> {
    let root = config.wrapper_root.clone().unwrap_or_else(|| state_dir.join("wrappers"));
    vec![program(wrapper), mount(&root), hardlinks()]
}

fn program(wrapper: &Path) -> Check {
    let (name, shown) = ("wrapper", wrapper.display());
    let means = "no agent can be started";
    let said = Command::new(wrapper)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let said = match said {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => {
            let found = format!("{shown} --version ended with {}", output.status);
            return Check::fail(name, found, means, "install acp-wrapper of this version");
        }
        Err(error) => {
            let next = "install acp-wrapper in the directory of acp-supervisor, or name it with --wrapper";
            return Check::fail(name, format!("{shown}: {error}"), means, next);
        }
    };
    let version = said.rsplit(' ').next().unwrap_or_default();
    if version == env!("CARGO_PKG_VERSION") {
        Check::ok(name, format!("{shown} ({said})"), "it runs and has this version")
    } else {
        let means =
            format!("this supervisor is version {}; the two may be incompatible", env!("CARGO_PKG_VERSION"));
        Check::fail(name, format!("{shown} ({said})"), means, "install the same version of both")
    }
}

fn mount(root: &Path) -> Check {
    let name = "wrapper root";
    let there = root.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let shown = root.display();
    match rustix::fs::statvfs(there) {
        Ok(stat) if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) => Check::fail(
            name,
            format!("{shown} is on a mount with noexec"),
            "no wrapper can be started from it",
            "choose another wrapper_root",
        ),
        Ok(_) => Check::ok(name, shown.to_string(), "programs can be started from this mount"),
        Err(error) => Check::warn(
            name,
            format!("{shown}: {error}"),
            "its mount options are unknown",
            "check with findmnt",
        ),
    }
}

fn hardlinks() -> Check {
    let path = "/proc/sys/fs/protected_hardlinks";
    let value = std::fs::read_to_string(path).unwrap_or_default();
    let means =
        "each lease links the supervisor's own copy of the wrapper, which is allowed with either value";
    Check::ok("hard links", format!("protected_hardlinks = {}", value.trim()), means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock() {
        let locks = "1: POSIX  ADVISORY  READ 5 08:01:128 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 00:31:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 00:31:77 0 EOF\n";
        assert_eq!(held_by(locks, 77), Some("1234".to_owned()));
        assert_eq!(held_by(locks, 128), None);
        assert_eq!(held_by("garbage\n", 77), None);
    }
}
