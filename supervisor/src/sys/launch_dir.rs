//! Launch directories of wrappers: `<root>/<gateway>/<lease>/` with the wrapper's binary and `launch.json`.
//! `/proc/PID/exe` of a wrapper therefore names its lease.
//!
//! The binary is copied once per version into the root and hard-linked from there, so a hard link never
//! crosses a file system or refers to a file of another user. If the hard link fails anyway, the lease gets
//! its own copy (H22).

use crate::sys::blocking_io::Disk;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{Confine, LAUNCH_FILE, LAUNCH_VERSION, Launch, WRAPPER_FILE};
use nix::libc;
use sha2::{Digest, Sha256};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Directory of the wrapper's copies inside of the root.
const VERSIONS: &str = "versions";
/// Directory for the launch directories of file helpers, inside of the root.
const HELPERS: &str = "helpers";

/// Reason why no wrapper can be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchDirError {
    /// The wrapper does not exist.
    #[error(
        "there is no wrapper at {path}; build or install acp-wrapper in the directory of acp-supervisor, or name it with --wrapper"
    )]
    NoWrapper {
        /// Path of the wrapper.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// A file or directory cannot be created.
    #[error("cannot create {path}")]
    Prepare {
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The file can be executed, but is not a wrapper.
    #[error("{path} is not an acp-wrapper: --version ended with {status}; name the right one with --wrapper")]
    NotOne {
        /// Path of the file.
        path: PathBuf,
        /// Exit status of its `--version`.
        status: ExitStatus,
    },
    /// The wrapper's copy cannot be executed in the root.
    #[error("{path} does not run (is the file system mounted noexec?); choose another wrapper_root")]
    NoExec {
        /// Path of the copy.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
}

/// Root of the launch directories, with the wrapper's copy.
#[derive(Debug, Clone)]
pub struct WrapperRoot {
    root: PathBuf,
    copy: PathBuf,
    disk: Disk,
}

/// Complete launch directory of a lease.
#[derive(Debug, Clone)]
pub struct LaunchDir {
    /// Path of the directory.
    pub dir: PathBuf,
    /// Path of the wrapper in it.
    pub wrapper: PathBuf,
}

fn prepare<T>(path: &Path, result: io::Result<T>) -> Result<T, LaunchDirError> {
    result.map_err(|source| LaunchDirError::Prepare { path: path.to_owned(), source })
}

/// Creates a directory that only its owner can enter, or changes the mode of an existing one accordingly.
///
/// # Errors
/// The directory cannot be created, or belongs to another user. That user could put files into it even if
/// root made it private.
pub fn private_dir(path: &Path) -> io::Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(io::Error::other("it exists and is not a directory; choose another"));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Root may change the mode of any user's directory, but its owner could still put other files there.
    let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
    let (owner, own) = (dir.metadata()?.uid(), rustix::process::geteuid().as_raw());
    if owner != own {
        let why = format!(
            "it belongs to user {owner}, but this program runs as user {own}; chown it, or choose another"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    dir.set_permissions(std::fs::Permissions::from_mode(0o700))
}

impl WrapperRoot {
    /// Copies the wrapper into `root`, unless this version is already there, and checks that it can be
    /// executed.
    ///
    /// # Errors
    /// [`LaunchDirError`].
    pub fn prepare(root: &Path, wrapper: &Path) -> Result<Self, LaunchDirError> {
        let no_wrapper = |source| LaunchDirError::NoWrapper { path: wrapper.to_owned(), source };
        let bytes = std::fs::read(wrapper).map_err(no_wrapper)?;
        let hash = format!("{:x}", Sha256::digest(&bytes));
        let dir = root.join(VERSIONS).join(hash.get(..16).unwrap_or(&hash));
        prepare(root, private_dir(root))?;
        prepare(&dir, private_dir(&dir))?;
        let copy = dir.join(WRAPPER_FILE);
        if std::fs::read(&copy).ok().as_deref() != Some(bytes.as_slice()) {
            prepare(&copy, write_atomically(&copy, &bytes, 0o700))?;
        }
        let probe = Command::new(&copy)
            .arg("--version")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match probe {
            Ok(status) if status.success() => Ok(Self { root: root.to_owned(), copy, disk: Disk::default() }),
            Ok(status) => Err(LaunchDirError::NotOne { path: wrapper.to_owned(), status }),
            Err(source) => Err(LaunchDirError::NoExec { path: copy, source }),
        }
    }

    /// Returns the path of the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Returns the root for launch directories of file helpers, which belong to no lease.
    #[must_use]
    pub fn helpers(&self) -> Self {
        Self { root: self.root.join(HELPERS), copy: self.copy.clone(), disk: self.disk.clone() }
    }

    /// Removes the launch directories of an earlier supervisor's file helpers.
    pub fn remove_helpers(&self) {
        remove_dir(&self.root.join(HELPERS));
    }

    /// Calls `work` with a wrapper that can be started for a probe: it belongs to no lease and never releases
    /// an adapter.
    ///
    /// # Errors
    /// [`LaunchDirError::Prepare`].
    pub fn with_inert<T>(&self, work: impl FnOnce(&Path) -> T) -> Result<T, LaunchDirError> {
        let launch = Launch {
            version: LAUNCH_VERSION,
            lease_id: LeaseId::mint(),
            gateway_instance_id: GatewayInstanceId::mint(),
            argv: vec!["/".into()],
            env: Vec::new(),
            cwd: "/".into(),
            term_grace_ms: 0,
            sweep_ms: 0,
            confine: Confine::default(),
        };
        let made = self.make(&launch)?;
        let result = work(&made.wrapper);
        self.remove(launch.gateway_instance_id, launch.lease_id);
        drop(std::fs::remove_dir(self.root.join(launch.gateway_instance_id.to_string())));
        Ok(result)
    }

    /// Returns the handle to the disk of the root.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns the path of a lease's directory.
    #[must_use]
    pub fn dir(&self, gateway: GatewayInstanceId, lease_id: LeaseId) -> PathBuf {
        self.root.join(gateway.to_string()).join(lease_id.to_string())
    }

    /// Returns the leases that have a directory.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> {
        let names = |dir: PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
        };
        names(self.root.clone())
            .filter(|(_, name)| GatewayInstanceId::parse(name).is_ok())
            .flat_map(|(path, _)| names(path))
            .filter_map(|(_, name)| LeaseId::parse(&name).ok())
            .collect()
    }

    /// Creates a lease's directory. Blocking. Replaces a directory that a crash left behind.
    ///
    /// # Errors
    /// [`LaunchDirError::Prepare`].
    pub fn make(&self, launch: &Launch) -> Result<LaunchDir, LaunchDirError> {
        let dir = self.dir(launch.gateway_instance_id, launch.lease_id);
        if dir.exists() {
            prepare(&dir, std::fs::remove_dir_all(&dir))?;
        }
        prepare(&dir, private_dir(&dir))?;
        let wrapper = dir.join(WRAPPER_FILE);
        if std::fs::hard_link(&self.copy, &wrapper).is_err() {
            let bytes = prepare(&self.copy, std::fs::read(&self.copy))?;
            prepare(&wrapper, write_atomically(&wrapper, &bytes, 0o700))?;
        }
        let file = dir.join(LAUNCH_FILE);
        let json = prepare(&file, serde_json::to_vec(launch).map_err(io::Error::other))?;
        prepare(
            &file,
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)
                .and_then(|mut f| f.write_all(&json)),
        )?;
        Ok(LaunchDir { dir, wrapper })
    }

    /// Removes the directories of gateways without leases. Must not run while a wrapper is being started.
    pub fn remove_empty(&self) {
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| GatewayInstanceId::parse(name).is_ok()) {
                // Fails for a directory that is not empty.
                drop(std::fs::remove_dir(entry.path()));
            }
        }
    }

    /// Removes a lease's directory. Blocking.
    pub fn remove(&self, gateway: GatewayInstanceId, lease_id: LeaseId) {
        remove_dir(&self.dir(gateway, lease_id));
    }
}

fn remove_dir(dir: &Path) {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, dir = %dir.display(), "cannot remove a launch directory");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Writes a file atomically: under a temporary name that is renamed when the file is complete.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let part = path.with_extension("part");
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn launch() -> Launch {
        Launch {
            version: acp_shared::launch::LAUNCH_VERSION,
            lease_id: LeaseId::mint(),
            gateway_instance_id: GatewayInstanceId::mint(),
            argv: vec!["x".into()],
            env: vec![("SECRET".into(), "s".into())],
            cwd: "/".into(),
            term_grace_ms: 1,
            sweep_ms: 1,
            confine: acp_shared::launch::Confine::default(),
        }
    }

    #[test]
    fn foreign_directory_is_not_made_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine");
        private_dir(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        // The owner could change the content, even if root made the directory private.
        let foreign = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            path
        } else {
            "/".into()
        };
        let error = private_dir(&foreign).unwrap_err().to_string();
        assert!(error.starts_with("it belongs to user "), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(private_dir(&file).unwrap_err().to_string().contains("is not a directory"));
    }

    #[test]
    fn launch_directory_has_linked_wrapper_and_private_description() {
        let dir = tempfile::tempdir().unwrap();
        // Any program that accepts --version.
        let root = WrapperRoot::prepare(&dir.path().join("root"), Path::new("/bin/true")).unwrap();
        let launch = launch();
        let launch_dir = root.make(&launch).unwrap();
        assert!(
            launch_dir
                .wrapper
                .ends_with(format!("{}/{}/{WRAPPER_FILE}", launch.gateway_instance_id, launch.lease_id))
        );
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&launch_dir.dir), mode(&launch_dir.dir.join(LAUNCH_FILE))), (0o700, 0o600));
        let read: Launch =
            serde_json::from_slice(&std::fs::read(launch_dir.dir.join(LAUNCH_FILE)).unwrap()).unwrap();
        assert_eq!(read, launch);
        // A directory left by a crash is replaced.
        root.make(&launch).unwrap();
        assert_eq!(root.leases(), [launch.lease_id]);
        root.remove(launch.gateway_instance_id, launch.lease_id);
        assert!(!launch_dir.dir.exists());
        WrapperRoot::prepare(&dir.path().join("root"), Path::new("/bin/true")).unwrap();
    }

    #[test]
    fn foreign_launch_root_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(4242), None).unwrap();
        assert_eq!(private_dir(dir.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(WrapperRoot::prepare(dir.path(), Path::new("/bin/true")).is_err());
    }

    #[test]
    fn unusable_wrapper_is_refused_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let missing = WrapperRoot::prepare(dir.path(), Path::new("/nonexistent/wrapper"));
        assert!(matches!(missing, Err(LaunchDirError::NoWrapper { .. })));
        let text = dir.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        assert!(matches!(WrapperRoot::prepare(dir.path(), &text), Err(LaunchDirError::NoExec { .. })));
    }
}
