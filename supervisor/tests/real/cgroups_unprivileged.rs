//! An unprivileged supervisor and a grandchild running as root: only the cgroup can end it.

use crate::common::{Host, eventually, is_alive, kill, script, wrapper};
use crate::fixtures::with_prefix;
use crate::test_cgroup::report_probe;
use acp_shared::protocol::LeaseState;
use acp_testkit::ability::Ability;
use acp_testkit::processes::status_field;
use acp_testkit::skip_unless;
use rustix::process::Signal;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unused uid.
const UID: u32 = 64_123;

/// Command that runs a program as this user.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let id = UID.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
    command
}

fn uid_of(pid: i32) -> Option<u32> {
    status_field(pid, "Uid")?.split_whitespace().next()?.parse().ok()
}

/// State directory and cgroup owned by the user, and a set-user-id program that becomes root.
struct UserHost {
    host: Host,
    become_root: PathBuf,
}

impl UserHost {
    /// Returns `None` and prints the failed probe if the machine does not allow it.
    fn new(level: &str) -> Option<Self> {
        let ran = as_user(&wrapper().canonicalize().unwrap()).arg("--version").output();
        if !ran.as_ref().is_ok_and(|output| output.status.success()) {
            report_probe(&format!("setpriv --reuid {UID} acp-wrapper --version"), &ran);
            return None;
        }
        let host = Host::prepare(&format!("reap_term_ms = 300\nrung = \"{level}\""));
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
            report_probe("a set-user-id program that becomes root", &ran);
            return None;
        }
        Some(Self { host, become_root })
    }

    /// Starts the supervisor as the user in the user's cgroup, as a service manager does.
    fn start(&mut self) {
        let command = self.command();
        self.host.start_as(command);
    }

    /// Starts the supervisor with a `/proc` that hides other users' processes.
    fn start_with_hidden_proc(&mut self) {
        let prefix =
            ["unshare", "-m", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$0\" \"$@\""];
        let command = with_prefix(&prefix, &self.command());
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
        with_prefix(&[&["/bin/sh", "-c", &enter, "sh"][..], &user].concat(), &inner)
    }
}

#[tokio::test]
async fn grandchild_running_as_root_is_ended_by_cgroup_only() {
    for level in ["R1", "R2"] {
        let Some(mut user_host) = UserHost::new(level) else { return };
        user_host.start();
        check_root_grandchild(&user_host, level).await;
    }
}

#[tokio::test]
async fn hidden_grandchild_running_as_root_is_named() {
    skip_unless!(Ability::Root, Ability::HiddenProc);
    let Some(mut user_host) = UserHost::new("R2") else { return };
    user_host.start_with_hidden_proc();
    check_root_grandchild(&user_host, "R2").await;
}

async fn check_root_grandchild(user_host: &UserHost, level: &str) {
    let host = &user_host.host;
    let mut gateway = host.gateway().connect().await;
    let file = host.dir.path().join("pid");
    let spec = script(&format!(
        "{} --reuid 0 sh -c 'echo $$ > {file}.tmp; mv {file}.tmp {file}; exec sleep 300' & cat",
        user_host.become_root.display(),
        file = file.display(),
    ));
    gateway.spawn(&spec).await;
    eventually("a grandchild is root", || file.exists());
    let root: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert_eq!((uid_of(root), uid_of(host.pid())), (Some(0), Some(UID)));
    gateway.close(spec.lease_id).await;
    if level == "R2" {
        // The survivor is reported, and the lease stays closing.
        eventually("the survivor is named", || {
            let lease = &host.json(&["leases", "list"])[0];
            lease["state"] == "closing"
                && lease["state_reason"].to_string().contains(&format!("did not end: {root} "))
        });
        assert!(is_alive(root));
        kill(root, Signal::KILL);
    }
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(!is_alive(root), "{level}");
}
