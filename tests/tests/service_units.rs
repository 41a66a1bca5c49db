//! `service install | check | remove` with a strict `systemctl` in place of systemd's: it knows the calls that these
//! verbs make, starts the command lines of the units that they wrote, and fails on anything else.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::{Output, run};
use acp_tests::wait::LONG;
use acp_tests::world::World;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// First argument: directory of its state. The rest is the command line of `systemctl`.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
dir=$1
shift
echo "$*" >>"$dir/calls"
if [ "${1:-}" != --user ]; then
    echo "System has not been booted with systemd as init system (PID 1). Can't operate." >&2
    exit 1
fi
shift
command_of() { sed -n "s/^$2=//p" "$XDG_CONFIG_HOME/systemd/user/$1"; }
start() {
    setsid $(command_of "$1" ExecStart) >>"$dir/log-$1" 2>&1 </dev/null &
    echo $! >"$dir/pid-$1"
}
stop() {
    kill "$(cat "$dir/pid-$1")"
    while kill -0 "$(cat "$dir/pid-$1")" 2>/dev/null; do sleep 0.05; done
    rm "$dir/pid-$1"
}
case "$*" in
    "show --property=Version") echo Version=252 ;;
    daemon-reload) ;;
    "enable acp-supervisor.service" | "enable acp-gateway.service") : >"$dir/enabled-$2" ;;
    "is-enabled "*) if [ -e "$dir/enabled-$2" ]; then echo enabled; else echo disabled; exit 1; fi ;;
    "is-active "*) if [ -e "$dir/pid-$2" ]; then echo active; else echo inactive; exit 3; fi ;;
    "start "*) start "$2" ;;
    "reload acp-supervisor.service") $(command_of "$2" ExecReload) >>"$dir/log-$2" 2>&1 ;;
    "restart acp-gateway.service") stop "$2" && start "$2" ;;
    "disable --now "*) rm "$dir/enabled-$3" && stop "$3" ;;
    *) echo "unknown call: $*" >&2; exit 99 ;;
esac
"#;

struct Machine {
    world: World,
}

impl Machine {
    fn new() -> Self {
        let world = World::new();
        let (dir, bin) = (world.dir("systemd"), world.dir("bin"));
        let script = world.write("systemctl.sh", SYSTEMCTL);
        let text = format!("#!/bin/sh\nexec sh {} {} \"$@\"\n", script.display(), dir.display());
        fs::write(bin.join("systemctl"), text).unwrap();
        fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { world }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.world.command(program);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.world.path("bin").display()));
        command.env("XDG_CONFIG_HOME", self.world.path("config")).args(args).arg("--json");
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        run(&mut self.command(program, args), LONG)
    }

    fn unit(&self, name: &str) -> PathBuf {
        self.world.path("config/systemd/user").join(name)
    }

    /// Returns the calls of `systemctl` since the last look, without `--user`.
    fn calls(&self) -> Vec<String> {
        let path = self.world.path("systemd/calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, "").unwrap();
        text.lines().map(|line| line.strip_prefix("--user ").unwrap_or(line).to_owned()).collect()
    }

    fn pid(&self, name: &str) -> String {
        fs::read_to_string(self.world.path("systemd").join(format!("pid-{name}"))).unwrap()
    }
}

/// Returns name and verdict of the checks in a report.
fn verdicts(output: &Output) -> Vec<(String, String)> {
    let report = output.json();
    let text = |check: &serde_json::Value, name: &str| check[name].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    checks.map(|check| (text(check, "name"), text(check, "verdict"))).filter(|(n, _)| n != "logout").collect()
}

fn all_ok(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), "ok".to_owned())).collect()
}

#[test]
fn user_services_are_installed_updated_and_removed() {
    let machine = Machine::new();
    let (supervisor, gateway) = ("acp-supervisor.service", "acp-gateway.service");
    let install = |change: &str, unit: &str| {
        [
            "show --property=Version",
            "daemon-reload",
            "enable U",
            "is-active U",
            change,
            "is-enabled U",
            "is-active U",
        ]
        .map(|call| call.replace(" U", &format!(" {unit}")))
    };
    let checks = ["unit", "enabled", "active", "supervisor"];
    let gateway_checks = ["unit", "enabled", "active", "gateway", "supervisor"];

    let output = machine.run("acp-supervisor", &["service", "install", "--user"]).ok();
    assert_eq!((output.json()["action"].as_str(), verdicts(&output)), (Some("started"), all_ok(&checks)));
    assert_eq!(machine.calls(), install("start U", supervisor));
    let output = machine.run("acp-gateway", &["service", "install", "--user"]).ok();
    assert_eq!(
        (output.json()["action"].as_str(), verdicts(&output)),
        (Some("started"), all_ok(&gateway_checks))
    );
    assert_eq!(machine.calls(), install("start U", gateway));
    let text = fs::read_to_string(machine.unit(gateway)).unwrap();
    let path = format!("Environment=\"PATH={}:", machine.world.path("bin").display());
    assert!(text.contains(&path), "agents are found on the PATH of the user: {text}");

    // Both work, and the state is where `up` has it.
    let spawned = machine.run("acp-gateway", &["sessions", "spawn", "--agent", "demo"]).ok();
    let key = spawned.json()["session_key"].as_str().unwrap().to_owned();
    let _ = machine.run("acp-gateway", &["prompt", &key, "help"]).ok();
    assert!(machine.world.path("home/.local/state/acp-host/gateway.db").is_file());

    // A second installation keeps the supervisor's process.
    let (before, gateway_before) = (machine.pid(supervisor), machine.pid(gateway));
    let output = machine.run("acp-supervisor", &["service", "install", "--user"]).ok();
    assert_eq!(output.json()["action"], "reloaded");
    assert_eq!(machine.calls(), install("reload U", supervisor));
    let output = machine.run("acp-gateway", &["service", "install", "--user"]).ok();
    assert_eq!(output.json()["action"], "restarted");
    assert_eq!(machine.calls(), install("restart U", gateway));
    assert_eq!(machine.pid(supervisor), before);
    assert_ne!(machine.pid(gateway), gateway_before);
    let _ = machine.run("acp-gateway", &["prompt", &key, "help"]).ok();

    for (program, unit) in [("acp-gateway", gateway), ("acp-supervisor", supervisor)] {
        let _ = machine.run(program, &["service", "check", "--user"]).ok();
        let _ = machine.calls();
        let output = machine.run(program, &["service", "remove", "--user"]).ok();
        assert_eq!(output.json()["action"], "removed");
        let expected = ["show --property=Version", &format!("disable --now {unit}"), "daemon-reload"];
        assert_eq!(machine.calls(), expected);
        assert!(!machine.unit(unit).exists(), "{unit}");
        let output = machine.run(program, &["service", "check", "--user"]);
        assert_eq!(output.code, Some(1), "{output:?}");
        let unit_check = ("unit".to_owned(), "failed".to_owned());
        assert!(verdicts(&output).contains(&unit_check), "{output:?}");
        let output = machine.run(program, &["service", "remove", "--user"]);
        assert!(output.code == Some(1) && output.stdout.contains("is not installed"), "{output:?}");
    }
    assert!(machine.world.path("home/.local/state/acp-host/gateway.db").is_file(), "the state stays");
}

#[test]
fn unit_of_another_author_is_neither_replaced_nor_removed() {
    let machine = Machine::new();
    let unit =
        machine.world.write("config/systemd/user/acp-gateway.service", "[Service]\nExecStart=/bin/mine\n");
    let output = machine.run("acp-gateway", &["service", "install", "--user"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stdout.contains("was not written by `service install`"), "{output:?}");
    assert_eq!(machine.calls(), ["show --property=Version"], "nothing was started");
    assert_eq!(fs::read_to_string(unit).unwrap(), "[Service]\nExecStart=/bin/mine\n");
}

#[test]
fn missing_systemd_and_bad_arguments_are_refused_with_next_step() {
    let machine = Machine::new();
    let me = run(Command::new("id").arg("-un"), LONG).ok().stdout.trim().to_owned();
    let is_root = rustix::process::geteuid().is_root();
    for (program, args) in
        [("acp-supervisor", vec!["service", "install"]), ("acp-gateway", vec!["service", "install", &me])]
    {
        let output = machine.run(program, &args);
        assert_eq!(output.code, Some(1), "{output:?}");
        let expected = if is_root { "systemd does not run here" } else { "only root" };
        assert!(output.stdout.contains(expected), "{output:?}");
    }
    let other = ["service", "install", "no-such-user-here"];
    let output = machine.run("acp-gateway", &other);
    assert!(output.code == Some(2) && output.stdout.contains("there is no user"), "{output:?}");
    let output = machine.run("acp-gateway", &["service", "install"]);
    assert!(output.code == Some(2) && output.stdout.contains("NAME"), "{output:?}");
    assert!(!machine.world.path("config/systemd").exists(), "no unit was written");
}
