//! Gateway and supervisor under the restrictions of their packaged units: the gateway cannot write project files; the
//! user that the agent runs as writes them.

use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use acp_tests::house::{AGENT, GATEWAY, scripted};
use acp_tests::story::{check_turn, chunks};
use acp_tests::world::{World, bin, repository};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A user of this test alone.
const RUNS: u32 = 65_010;

/// Imitates the packaged unit: `ProtectSystem=strict`, `PrivateTmp=yes`, `StateDirectory=`, `CapabilityBoundingSet=` and
/// `NoNewPrivileges=yes`. Every file system is read-only but for the state directory (the first argument); /tmp is a new
/// one that holds what lies elsewhere on a real machine (the other arguments up to `--`). The project and the agent's
/// program lie in /tmp and are not there. The rest of the command line is run.
const UNIT: &str = r#"
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
chmod 1777 /mnt
state=$1
show() {
    case $1 in /tmp/*) at=/mnt/${1#/tmp/} ;; *) at=$1 ;; esac
    if [ -d "$1" ]; then mkdir -p "$at"; else mkdir -p "$(dirname "$at")"; [ -e "$at" ] || : > "$at"; fi
    mount --bind "$1" "$at"
}
while [ "$1" != -- ]; do show "$1"; shift; done
shift
mount --rbind /mnt /tmp
mount -t tmpfs tmpfs /var/tmp
for at in $(awk '{ print $5 }' /proc/self/mountinfo); do
    case $at in
        "$state" | /tmp | /var/tmp | /mnt | /mnt/* | /dev* | /proc* | /sys*) ;;
        *) mount -o remount,bind,ro "$at" ;;
    esac
done
touch "$state/probe" /tmp/probe
for at in "$hidden_project" "$hidden_home"; do
    if [ -e "$at" ]; then echo "$at can be seen" >&2; exit 9; fi
done
for at in /usr/probe /etc/probe /probe; do
    if touch "$at" 2>/dev/null; then echo "$at can be written" >&2; exit 9; fi
done
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"#;

/// Imitates the supervisor's packaged unit: `ProtectSystem=full`, `UMask=0077` and its `CapabilityBoundingSet=`, which is
/// the first argument. The rest of the command line is run.
const SUPERVISOR_UNIT: &str = r#"
mount --make-rprivate /
for at in /usr /boot /efi /etc; do
    if [ -d "$at" ]; then mount --rbind "$at" "$at" && mount -o remount,bind,ro "$at"; fi
done
for at in /usr/probe /etc/probe; do
    if touch "$at" 2>/dev/null; then echo "$at can be written" >&2; exit 9; fi
done
umask 0077
capabilities=$1
shift
exec setpriv --bounding-set="$capabilities" --inh-caps=-all "$@"
"#;

/// The capabilities that the supervisor's packaged unit leaves, as `setpriv` takes them.
fn supervisor_capabilities() -> String {
    let unit = fs::read_to_string(repository().join("packaging/systemd/acp-supervisor.service")).unwrap();
    for line in ["ProtectSystem=full", "UMask=0077"] {
        assert!(unit.lines().any(|known| known == line), "{line}");
    }
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = set.split_whitespace().map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase());
    names.fold("-all".to_owned(), |all, name| format!("{all},+{name}"))
}

/// True if this machine lets the test mount file systems and become another user.
fn can_imitate() -> bool {
    let tried = Command::new("unshare").args(["-m", "sh", "-ec", "mount -t tmpfs tmpfs /mnt"]).output();
    let can = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !can {
        println!("not possible here: a mount namespace: {tried:?}");
    }
    can
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn give(path: &Path) {
    chown(path, Some(RUNS), Some(RUNS)).unwrap();
}

/// The project lies in /tmp, and the agent's program in the home directory of the user that it runs as: the gateway sees
/// neither.
#[test]
fn an_agent_writes_files_under_the_packaged_units_and_owns_them() {
    skip_unless!(Ability::Root);
    if !can_imitate() {
        return;
    }
    let world = World::new();
    assert!(world.path("").starts_with("/tmp"), "the project lies in /tmp");
    set_mode(&world.path(""), 0o755);
    for program in ["acp-supervisor", "acp-wrapper"] {
        fs::copy(bin(program), world.dir("bin").join(program)).unwrap();
    }
    let (project, logs, home) = (world.dir("work/project"), world.dir("agent"), world.dir("tenant/bin"));
    fs::copy(bin("fake-agent"), home.join("fake-agent")).unwrap();
    let home = world.path("tenant");
    set_mode(&home, 0o700);
    for path in [&project, &logs, &home, &home.join("bin"), &home.join("bin/fake-agent")] {
        give(path);
    }
    fs::write(project.join("old.txt"), "old").unwrap();
    give(&project.join("old.txt"));
    let mut agent = scripted(&world, &[], "approve-all");
    agent.command = ["fake-agent", "--log", "log", "--state", "state"].map(str::to_owned).to_vec();
    for (at, dir) in [(0, "tenant/bin"), (2, "agent"), (4, "agent")] {
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
    let mut supervisor = Command::new("unshare");
    envs(&mut supervisor, &world.command("acp-supervisor"));
    supervisor.args(["-m", "sh", "-ec", SUPERVISOR_UNIT, "sh", &supervisor_capabilities()]);
    supervisor
        .arg(world.path("bin/acp-supervisor"))
        .args(["serve", "--json", "--state-dir"])
        .arg(world.path("supervisor"));
    supervisor.arg("--config").arg(world.path("supervisor.toml"));
    let supervisor = world.start_command(supervisor);

    let (state, socket) = (world.dir(GATEWAY), supervisor.socket());
    set_mode(&state, 0o700);
    let mut gateway = Command::new("unshare");
    envs(&mut gateway, &world.command("acp-gateway"));
    gateway.env("hidden_project", &project).env("hidden_home", &home);
    gateway.args(["-m", "sh", "-ec", UNIT, "sh"]).arg(&state).arg(socket.parent().unwrap()).arg(&config);
    gateway.arg(bin("acp-gateway").parent().unwrap()).arg("--").arg(bin("acp-gateway"));
    gateway.args(["serve", "--json", "--state-dir"]).arg(&state).arg("--supervisor-socket").arg(&socket);
    let gateway = world.start_command({
        gateway.arg("--config").arg(&config);
        gateway
    });

    let agents = world.cli(GATEWAY, &["agents"]).ok().json();
    let scripted = agents.as_array().unwrap().iter().find(|agent| agent["name"] == AGENT).cloned();
    assert_eq!(scripted.unwrap()["installed"], true, "{agents}");
    let missing = world.cli(GATEWAY, &["sessions", "spawn", "--agent", AGENT, "--cwd", "/tmp/probe"]);
    assert_eq!(missing.error_code(), "ACP_CWD_NOT_ALLOWED", "only the gateway's own /tmp has it");
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
