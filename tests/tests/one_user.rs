//! All services under one user, as with `acp-gateway up`: as the current user and, if that is root, as an unprivileged
//! user without home directory.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{Output, output_text, run, stop_reason};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{World, bin};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// `nobody`, on most machines.
const NOBODY: u32 = 65_534;
const PROGRAMS: [&str; 3] = ["acp-gateway", "acp-supervisor", "acp-wrapper"];

/// World owned by a user, with copies of the programs: the build directory may be inaccessible to that user.
struct Home {
    world: World,
    uid: u32,
}

impl Home {
    fn new(uid: u32) -> Self {
        let world = World::new();
        for program in PROGRAMS {
            std::fs::copy(bin(program), world.dir("bin").join(program)).unwrap();
        }
        let _ = world.dir("work/project");
        let home = Self { world, uid };
        if home.is_other() {
            give(&home.world.path(""), uid);
        }
        home
    }

    fn is_other(&self) -> bool {
        self.uid != rustix::process::geteuid().as_raw()
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let like = self.world.command(program);
        let mut command = Command::new(self.world.path("bin").join(program));
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(args).arg("--json").current_dir(self.world.path("work"));
        if self.is_other() {
            command.uid(self.uid).gid(self.uid);
        }
        command
    }

    fn gateway(&self, args: &[&str]) -> Output {
        let state = self.world.path("home/state");
        run(self.command("acp-gateway", args).arg("--state-dir").arg(state), LONG).ok()
    }
}

/// Changes the owner of a directory tree.
fn give(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).unwrap();
    if path.is_dir() {
        std::fs::read_dir(path).unwrap().flatten().for_each(|entry| give(&entry.path(), uid));
    }
}

fn a_turn_as(uid: u32) {
    let home = Home::new(uid);
    let state = home.world.path("home/state");
    let mut up = home.command("acp-gateway", &["up"]);
    up.arg("--state-dir").arg(&state);
    let up = home.world.start_command(up);
    let cwd = home.world.path("work/project").to_string_lossy().into_owned();
    let spawned = home.gateway(&["sessions", "spawn", "--agent", "demo", "--cwd", &cwd]).json();
    let key = spawned["session_key"].as_str().unwrap();
    let events = home.gateway(&["prompt", key, "say hello there"]).lines();
    assert_eq!(stop_reason(&events).as_deref(), Some("end_turn"), "{events:#?}");
    assert!(output_text(&events).contains("hello there"), "{events:#?}");
    let socket = state.join("supervisor/supervisor.sock").to_string_lossy().into_owned();
    let list = ["--socket", socket.as_str(), "leases", "list", "--state", "open"];
    let leases = run(&mut home.command("acp-supervisor", &list), SOON).ok().json();
    let leases = leases.as_array().unwrap();
    assert_eq!(leases.len(), 1, "{leases:#?}");
    for name in ["wrapper_pid", "adapter_pid"] {
        let pid = leases[0][name].as_i64().unwrap();
        assert_eq!(std::fs::metadata(format!("/proc/{pid}")).unwrap().uid(), uid, "{name}");
    }
    assert_eq!(leases[0]["owner_uid"], uid);
    assert_eq!(up.terminate(LONG), Some(0));
    until(SOON, "no process left", || home.world.processes().is_empty());
}

#[test]
fn turn_works_as_current_user() {
    a_turn_as(rustix::process::geteuid().as_raw());
}

#[test]
fn turn_works_as_unprivileged_user() {
    if rustix::process::geteuid().is_root() {
        a_turn_as(NOBODY);
    } else {
        println!("probe: this user is not root and cannot become another one: the other test is that test");
    }
}

/// A tenant of another user's supervisor is not its admin, and `doctor` accepts that.
#[test]
fn doctor_reports_no_failure_for_tenant() {
    if !rustix::process::geteuid().is_root() {
        println!("probe: this user is not root and cannot become another one: nothing is tested here");
        return;
    }
    let home = Home::new(NOBODY);
    let text = |path: &str| home.world.path(path).to_string_lossy().into_owned();
    home.world.write("supervisor.toml", &format!("socket_mode = \"0666\"\nallowed_uids = [{NOBODY}]\n"));
    let socket = text("run.sock");
    let (dir, config) = (text("supervisor"), text("supervisor.toml"));
    let serve = ["serve", "--state-dir", &dir, "--config", &config, "--socket", &socket, "--json"];
    let supervisor = home.world.start_service("acp-supervisor", &serve);
    let mut gateway = home.command("acp-gateway", &["serve", "--supervisor-socket", &socket]);
    gateway.arg("--state-dir").arg(home.world.path("home/state"));
    let gateway = home.world.start_command(gateway);
    let checks = home.gateway(&["doctor"]).json();
    let of = |name: &str| {
        let found = checks.as_array().into_iter().flatten().find(|check| check["name"] == name);
        found.cloned().unwrap_or_else(|| panic!("no {name}: {checks:#}"))
    };
    for name in ["supervisor", "backend"] {
        assert_eq!(of(name)["verdict"], "ok", "{name}");
    }
    assert!(of("supervisor")["detail"].to_string().contains("its admin group"), "{checks:#}");
    assert_eq!(gateway.terminate(LONG), Some(0));
    assert_eq!(supervisor.terminate(LONG), Some(0));
}
