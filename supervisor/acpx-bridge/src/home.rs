//! Private home directory of acpx: one per session, so that no queue owner started outside of a lease serves it. acpx
//! keeps its state below `$HOME/.acpx` and its sockets in `/tmp/acpx-HASH`, where HASH depends on `$HOME`.

use acp_shared::launch::ENV_GATEWAY_INSTANCE_ID;
use acp_shared::private_home;
use rustix::process::Pid;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Private home directory of one session.
#[derive(Debug)]
pub(crate) struct PrivateHome {
    /// Home directory of the agent.
    pub(crate) real: String,
    /// The private directory.
    pub(crate) dir: PathBuf,
    sockets: PathBuf,
}

impl PrivateHome {
    /// Creates the directory of a session, and removes the queues of its earlier leases, which have ended.
    ///
    /// # Errors
    /// The directory cannot be used, with the next step.
    pub(crate) fn open(key: &str) -> Result<Self, String> {
        let real = std::env::var("HOME").ok().filter(|home| home.starts_with('/'));
        let real =
            real.ok_or("HOME of the agents' user is not an absolute path: acpx has no place for its state")?;
        let instance = std::env::var(ENV_GATEWAY_INSTANCE_ID).unwrap_or_default();
        let dir = Path::new(&real).join(private_home::below_home(&instance, key));
        private_dir(&dir).map_err(|error| {
            format!(
                "the directory {} of acpx cannot be used: {error}; let the agents' user write there",
                dir.display()
            )
        })?;
        let sockets = PathBuf::from(format!("/tmp/acpx-{}", &hash(&dir.to_string_lossy())[..10]));
        let home = Self { real, dir, sockets };
        home.remove_queues();
        Ok(home)
    }

    /// Writes a file into the private directory, readable by its owner only.
    ///
    /// # Errors
    /// The name has a slash, or the file cannot be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> io::Result<()> {
        if name.is_empty() || name.contains('/') {
            return Err(io::Error::other("the name of a file has no slash"));
        }
        let new = self.dir.join(format!("{name}.new"));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, self.dir.join(name))
    }

    /// Returns the process of the queue owner from its lock.
    pub(crate) fn queue_owner(&self) -> Option<Pid> {
        let locks = fs::read_dir(self.dir.join(".acpx/queues")).ok()?.flatten();
        let mut locks = locks.filter(|entry| entry.path().extension().is_some_and(|it| it == "lock"));
        let lock = fs::read_to_string(locks.next()?.path()).ok()?;
        let lock: serde_json::Value = serde_json::from_str(&lock).ok()?;
        Pid::from_raw(i32::try_from(lock.get("pid")?.as_i64()?).ok()?)
    }

    /// Removes locks and sockets of queue owners. acpx never removes the directory of its sockets.
    pub(crate) fn remove_queues(&self) {
        let _ = fs::remove_dir_all(self.dir.join(".acpx/queues"));
        let is_own = fs::symlink_metadata(&self.sockets)
            .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
        if is_own {
            let _ = fs::remove_dir_all(&self.sockets);
        }
    }

    /// Removes the private directory with the conversation's journal.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn hash(text: &str) -> String {
    format!("{:x}", Sha256::digest(text.as_bytes()))
}

/// Creates a directory that only its owner can enter.
fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not a directory of this user"));
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}
