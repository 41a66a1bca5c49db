//! State directory of the gateway: a small tmpfs for the time of the test if the machine permits mounts, otherwise an
//! ordinary directory that never runs full.

use acp_tests::fake_channel::ENV_SOCKET;
use acp_tests::house::GATEWAY;
use acp_tests::wait::{SOON, until};
use acp_tests::world::{GATEWAY_DB, World, open_read_only};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Size of the disk in MiB: database of a long run, its log and its copy.
// The write-ahead log alone may have 64 MiB before it is emptied: a smaller disk is full without being filled.
const DISK_MIB: u64 = 256;

/// The state directory and access to its mount namespace.
pub(crate) struct Place {
    dir: PathBuf,
    /// Process that keeps the mount namespace alive.
    keeper: Option<Child>,
}

/// Whether this machine lets a test mount a small file system in a namespace of its own.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        println!("not possible here, so the disk does not run full: mounting a tmpfs: {tried:?}");
    }
    can
}

/// A command with the environment of another, in a directory.
fn like(model: &Command, program: &str, work: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(model.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(work);
    command
}

impl Place {
    pub(crate) fn new(world: &World) -> Self {
        let dir = world.dir(GATEWAY);
        if !can_mount() {
            return Self { dir, keeper: None };
        }
        let up = world.path("mounted");
        let line = "mount -t tmpfs -o size=\"$1\",mode=700 none \"$2\"; : > \"$3\"; exec sleep 100000";
        let mut keep = like(&world.command("acp-gateway"), "unshare", &world.path("work"));
        keep.args(["-m", "sh", "-ec", line, "sh", &format!("{DISK_MIB}m")]).arg(&dir).arg(&up);
        let keeper = keep.stdin(Stdio::null()).spawn().unwrap();
        until(SOON, "disk mounted", || up.exists());
        Self { dir, keeper: Some(keeper) }
    }

    /// Wraps a command so that it runs in the mount namespace.
    fn inside(&self, command: Command, work: &Path) -> Command {
        let Some(keeper) = &self.keeper else { return command };
        let mut inside = like(&command, "nsenter", work);
        inside.arg(format!("--mount=/proc/{}/ns/mnt", keeper.id()));
        inside.args(["sh", "-ec", "cd \"$1\"; shift; exec \"$@\"", "sh"]).arg(work);
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Command of the gateway with the fake channel.
    pub(crate) fn gateway(&self, world: &World) -> Command {
        let mut command = world.command("fake-channel-gateway");
        command.env(ENV_SOCKET, world.path("chat.sock"));
        command.args(["serve", "--json", "--state-dir"]).arg(&self.dir);
        command.arg("--supervisor-socket").arg(world.path("supervisor/supervisor.sock"));
        command.arg("--config").arg(world.path("gateway.toml"));
        let mut command = self.inside(command, &world.path("work"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Command of a gateway verb on the state directory.
    pub(crate) fn verb(&self, world: &World, args: &[&str]) -> Command {
        let mut command = world.command("acp-gateway");
        command.arg("--state-dir").arg(&self.dir).args(args).arg("--json");
        self.inside(command, &world.path("work"))
    }

    /// A path of the state directory, as the test sees it.
    fn path(&self, name: &str) -> PathBuf {
        let root = self.keeper.as_ref().map(|keeper| PathBuf::from(format!("/proc/{}/root", keeper.id())));
        match root {
            Some(root) => root.join(self.dir.strip_prefix("/").unwrap()).join(name),
            None => self.dir.join(name),
        }
    }

    /// Opens a copy of the journal, because SQLite cannot open files of the namespace. The copy is consistent if no
    /// gateway writes.
    pub(crate) fn journal(&self, world: &World) -> rusqlite::Connection {
        let copy = world.dir("copy");
        for name in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
            let _ = std::fs::remove_file(copy.join(name));
        }
        for name in ["gateway.db", "gateway.db-wal"] {
            let _ = std::fs::copy(self.path(name), copy.join(name));
        }
        open_read_only(&copy.join(GATEWAY_DB))
    }

    /// Fills the disk and returns the filler file; `None` without a separate disk.
    pub(crate) fn fill(&self) -> Option<PathBuf> {
        self.keeper.as_ref()?;
        let path = self.path("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for piece in [1 << 20, 65_536, 4_096, 512, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        Some(path)
    }

    /// Ends the process that keeps the mount.
    pub(crate) fn end(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end();
    }
}
