//! The gateway as its packaged unit runs it: it may write nothing of a project, and the agent's files are written all
//! the same, by the user that the agent runs as.

use acp_tests::house::{AGENT, GATEWAY, scripted};
use acp_tests::story::{check_turn, chunks};
use acp_tests::world::{World, bin};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A user of this test alone.
const RUNS: u32 = 65_010;

/// Imitates `ProtectSystem=strict`, `PrivateTmp=yes` and `StateDirectory=`: the project (the second argument) is
/// read-only, /tmp is empty but for what lies elsewhere on a real machine (the other ones), and only the state directory
/// (the first) can be written. Then it becomes the rest of the command line, after `--`.
const UNIT: &str = r#"
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
state=$1; project=$2
show() {
    case $1 in /tmp/*) at=/mnt/${1#/tmp/} ;; *) at=$1 ;; esac
    if [ -d "$1" ]; then mkdir -p "$at"; else mkdir -p "$(dirname "$at")"; [ -e "$at" ] || : > "$at"; fi
    mount --bind "$1" "$at"
    [ "$1" = "$state" ] || mount -o remount,bind,ro "$at"
}
while [ "$1" != -- ]; do show "$1"; shift; done
shift
mount --rbind /mnt /tmp
touch "$state/probe"
if touch "$project/probe" 2>/dev/null; then echo "the project can be written" >&2; exit 9; fi
exec "$@"
"#;

/// True if this machine lets the test mount file systems and become another user.
fn can_imitate() -> bool {
    let tried = Command::new("unshare").args(["-m", "sh", "-ec", "mount -t tmpfs tmpfs /mnt"]).output();
    let can =
        rustix::process::geteuid().is_root() && tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !can {
        eprintln!("probe: no mount namespace or not root: left out: {tried:?}");
    }
    can
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn give(path: &Path) {
    chown(path, Some(RUNS), Some(RUNS)).unwrap();
}

#[test]
fn an_agent_writes_files_under_the_packaged_unit_and_owns_them() {
    if !can_imitate() {
        return;
    }
    let world = World::new();
    open_to_all(&world.path(""));
    for program in ["acp-supervisor", "acp-wrapper", "fake-agent"] {
        fs::copy(bin(program), world.dir("bin").join(program)).unwrap();
    }
    let project = world.dir("work/project");
    let logs = world.dir("agent");
    for dir in [&project, &logs] {
        give(dir);
    }
    fs::write(project.join("old.txt"), "old").unwrap();
    give(&project.join("old.txt"));
    let mut agent = scripted(&world, &[], "approve-all");
    agent.command = ["fake-agent", "--log", "log", "--state", "state"].map(str::to_owned).to_vec();
    for (at, dir) in [(0, "bin"), (2, "agent"), (4, "agent")] {
        agent.command[at] = world.path(dir).join(&agent.command[at]).to_string_lossy().into_owned();
    }
    let config = world.configure(GATEWAY, "", &BTreeMap::from([(AGENT, agent)]));
    world.write(
        "supervisor.toml",
        &format!("[[tenant]]\nuid = 0\nrun_as_user = {RUNS}\nrun_as_group = {RUNS}\numask = 0o022\n"),
    );
    let envs = |command: &mut Command, like: &Command| {
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir("/");
    };
    let mut supervisor = Command::new(world.path("bin/acp-supervisor"));
    envs(&mut supervisor, &world.command("acp-supervisor"));
    supervisor.args(["serve", "--json", "--state-dir"]).arg(world.path("supervisor"));
    supervisor.arg("--config").arg(world.path("supervisor.toml"));
    let supervisor = world.service_of(supervisor);

    let (state, socket) = (world.dir(GATEWAY), supervisor.socket());
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let mut gateway = Command::new("unshare");
    envs(&mut gateway, &world.command("acp-gateway"));
    gateway.args(["-m", "sh", "-ec", UNIT, "sh"]).arg(&state).arg(&project);
    gateway.arg(socket.parent().unwrap()).arg(&config).arg(world.path("bin"));
    gateway.arg(bin("acp-gateway").parent().unwrap()).arg("--").arg(bin("acp-gateway"));
    gateway.args(["serve", "--json", "--state-dir"]).arg(&state).arg("--supervisor-socket").arg(&socket);
    let gateway = world.service_of({
        gateway.arg("--config").arg(&config);
        gateway
    });

    let key = world.spawn(GATEWAY, AGENT, "work/project");
    let events =
        world.prompt(GATEWAY, &key, "fs_write sub/new.txt made\nfs_write old.txt new\nfs_read old.txt");
    check_turn(&events, "end_turn");
    assert_eq!(chunks(&events), ["fs_write: ok", "fs_write: ok", "fs_read: new"]);
    for (name, content) in [("sub/new.txt", "made"), ("old.txt", "new")] {
        let path = project.join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{name}");
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (RUNS, RUNS), "{name} belongs to the agent's user");
    }
    assert_eq!(fs::metadata(project.join("sub")).unwrap().uid(), RUNS);
    drop((gateway, supervisor));
}
