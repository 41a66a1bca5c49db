//! A supervisor without privileges, and a grandchild that became root: only the group can end it.

use crate::common::{Host, eventually, kill, runs, script, wrapper};
use crate::ground::under;
use crate::rig_groups::probe;
use acp_shared::protocol::LeaseState;
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use acp_testkit::processes::status_field;
use rustix::process::Signal;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that nobody runs as.
const UID: u32 = 64_123;

/// Runs a program as that user.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let id = UID.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
    command
}

fn uid_of(pid: i32) -> Option<u32> {
    status_field(pid, "Uid")?.split_whitespace().next()?.parse().ok()
}

/// What the test stands on: a state directory and a group that belong to the user, and a program that makes root of
/// who runs it.
struct Ground {
    host: Host,
    become_root: PathBuf,
}

impl Ground {
    /// `None`, with what was tried printed.
    fn new(rung: &str) -> Option<Self> {
        let ran = as_user(&wrapper().canonicalize().unwrap()).arg("--version").output();
        if !ran.as_ref().is_ok_and(|output| output.status.success()) {
            probe(&format!("setpriv --reuid {UID} acp-wrapper --version"), &ran);
            return None;
        }
        let host = Host::idle(&format!("reap_term_ms = 300\nrung = \"{rung}\""));
        let group = host.group.as_ref()?.dir().to_owned();
        chown(host.dir.path(), Some(UID), Some(UID)).unwrap();
        for name in ["", "cgroup.procs", "cgroup.subtree_control"] {
            chown(group.join(name), Some(UID), Some(UID)).unwrap();
        }
        let setpriv = std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|dir| dir.join("setpriv"))
            .find(|p| p.exists())?;
        let become_root = host.dir.path().join("become-root");
        std::fs::copy(setpriv, &become_root).unwrap();
        std::fs::set_permissions(&become_root, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let ran = as_user(&become_root).args(["--reuid", "0", "true"]).output();
        if !ran.as_ref().is_ok_and(|output| output.status.success()) {
            probe("a set-user-id program that becomes root", &ran);
            return None;
        }
        Some(Self { host, become_root })
    }

    /// Starts the supervisor as the user, inside of the user's group, as a service manager would.
    fn start(&mut self) {
        let command = self.command();
        self.host.start_as(command);
    }

    /// The same, where `/proc` shows nothing of other users.
    fn start_blind(&mut self) {
        let prefix =
            ["unshare", "-m", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$0\" \"$@\""];
        let command = under(&prefix, &self.command());
        self.host.start_as(command);
    }

    fn command(&self) -> Command {
        let inner = self.host.command();
        let group = self.host.group.as_ref().unwrap().dir().join("service");
        std::fs::create_dir(&group).unwrap();
        for name in ["", "cgroup.procs"] {
            chown(group.join(name), Some(UID), Some(UID)).unwrap();
        }
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.display());
        let id = UID.to_string();
        let user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"];
        under(&[&["/bin/sh", "-c", &enter, "sh"][..], &user].concat(), &inner)
    }
}

#[tokio::test]
async fn a_grandchild_that_became_root_is_ended_by_its_group_alone() {
    for rung in ["R1", "R2"] {
        let Some(mut ground) = Ground::new(rung) else { return };
        ground.start();
        on_c24_r(&ground, rung).await;
    }
}

/// Nor is one forgotten that `/proc` hides.
#[tokio::test]
async fn a_hidden_grandchild_that_became_root_is_named() {
    possible!(Ability::Root, Ability::HiddenProc);
    let Some(mut ground) = Ground::new("R2") else { return };
    ground.start_blind();
    on_c24_r(&ground, "R2").await;
}

async fn on_c24_r(ground: &Ground, rung: &str) {
    let host = &ground.host;
    let mut gateway = host.gateway().connect().await;
    let file = host.dir.path().join("pid");
    let spec = script(&format!(
        "{} --reuid 0 sh -c 'echo $$ > {file}.tmp; mv {file}.tmp {file}; exec sleep 300' & cat",
        ground.become_root.display(),
        file = file.display(),
    ));
    gateway.spawn(&spec).await;
    eventually("a grandchild is root", || file.exists());
    let root: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert_eq!((uid_of(root), uid_of(host.pid())), (Some(0), Some(UID)));
    gateway.close(spec.lease_id).await;
    if rung == "R2" {
        // It is named, and the lease does not pretend.
        eventually("the survivor is named", || {
            let lease = &host.json(&["leases", "list"])[0];
            lease["state"] == "closing"
                && lease["state_reason"].to_string().contains(&format!("did not end: {root} "))
        });
        assert!(runs(root));
        kill(root, Signal::KILL);
    }
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(!runs(root), "{rung}");
}
