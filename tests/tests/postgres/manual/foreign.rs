//! Follows `docs/manual/more-machines.md`: its files are written and its commands are run, each machine being a directory of
//! this one.

use crate::plane::{Cable, address_of};
use acp_testkit::postgres::Postgres;
use acp_tests::cli::run;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{World, bin, repository};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: &str = "docs/manual/more-machines.md";
const HOSTS: [&str; 3] = ["host1", "host2", "host3"];
const GATEWAYS: [&str; 2] = ["gw1", "gw2"];
/// Time that the page promises for a take-over.
const TAKE_OVER_MAX: Duration = Duration::from_secs(15);

/// Code block of the page.
struct Block {
    /// Word after the language: the machine of commands, or the name of a file.
    about: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let page = std::fs::read_to_string(repository().join(PAGE)).unwrap();
    let mut parts = page.split("```").skip(1).step_by(2);
    let block = |part: &str| {
        let (head, text) = part.split_once('\n')?;
        let about = head.split_once(' ')?.1.to_owned();
        Some(Block { about, text: text.to_owned() })
    };
    let all: Vec<Block> = parts.by_ref().filter_map(block).collect();
    let names: Vec<&str> = all.iter().map(|block| block.about.as_str()).collect();
    let want =
        ["ca", "host", "host", "address", "gateway", "gateways", "serving", "gw1", "gw2", "cut", "serving"];
    assert_eq!(names, want, "the order of the page");
    all
}

/// The machines of the page.
struct Installation {
    world: World,
    gateways: [Option<Service>; 2],
    hosts: Vec<Service>,
    cables: Vec<Cable>,
}

impl Installation {
    fn etc(&self, machine: &str) -> PathBuf {
        self.world.dir(&format!("etc-{machine}"))
    }

    /// Writes a file of the page for a machine.
    fn write(&self, machine: &str, name: &str, text: &str, replaced: &[(&str, &str)]) -> PathBuf {
        let etc = self.etc(machine).display().to_string();
        let text = text.replace("/etc/acp-host", &etc);
        let text = replaced.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "{from} is not in {name} of the page");
            text.replace(from, to)
        });
        let path = self.etc(machine).join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn copy(&self, machine: &str, names: &[&str]) {
        for name in names {
            std::fs::copy(self.etc("ca").join(name), self.etc(machine).join(name)).unwrap();
        }
    }

    fn start_host(&mut self, name: &str, file: &str) {
        let is_root = rustix::process::geteuid().is_root();
        let user = if is_root { "run_as_user = 0\nallow_root = true" } else { "" };
        let own = |text: &str| text.replace("host1", name);
        let replaced = [("0.0.0.0:7420", "127.0.0.1:0"), ("run_as_user = \"agents\"", user)];
        let config = self.write(name, "supervisor.toml", &own(file), &replaced);
        let (dir, config) = (self.world.path(name), config.display().to_string());
        let mut doctor = self.world.command("acp-supervisor");
        doctor.args(["doctor", "--json", "--config", &config, "--state-dir"]).arg(&dir);
        let checks = run(&mut doctor, LONG);
        assert!(!format!("{checks:?}").contains("tls_"), "{checks:?}");
        let dir = dir.display().to_string();
        let host = self
            .world
            .start_service("acp-supervisor", &["serve", "--state-dir", &dir, "--config", &config, "--json"]);
        self.cables.push(Cable::to(address_of(&host)));
        self.hosts.push(host);
    }

    fn start_gateway(&mut self, at: usize) {
        let none = self.world.path("no-supervisor.sock");
        self.gateways[at] = Some(self.world.standby(GATEWAYS[at], &none));
    }

    /// Runs the commands of a block on a gateway, and returns the output of each.
    fn run(&mut self, at: usize, block: &Block) -> Vec<Vec<Value>> {
        let mut outputs = Vec::new();
        for line in block.text.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            match (words.next(), words.collect::<Vec<_>>().as_slice()) {
                (Some("systemctl"), ["start", "acp-gateway"]) => self.start_gateway(at),
                (Some("systemctl"), ["kill", "--signal=KILL", "acp-gateway"]) => {
                    self.gateways[at].take().unwrap().kill9();
                }
                (Some("acp-gateway"), args) => {
                    let output = self.world.cli(GATEWAYS[at], args);
                    assert_eq!(output.code, Some(0), "{line}: {output:?}");
                    outputs.push(output.lines());
                }
                other => panic!("{other:?} is no command that this test knows"),
            }
        }
        outputs
    }

    fn serves(&self, at: usize) -> bool {
        self.world.cli(GATEWAYS[at], &["sessions", "list"]).code == Some(0)
    }

    /// True for each host that is connected.
    fn connected(&self, at: usize) -> Vec<bool> {
        let list = self.world.cli(GATEWAYS[at], &["hosts", "list"]).ok().json();
        list.as_array().unwrap().iter().map(|host| host["connected"] == true).collect()
    }
}

fn last_type(events: &[Value]) -> &str {
    events.last().and_then(|event| event["type"].as_str()).unwrap_or_default()
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn page_about_more_machines_is_followed() {
    let Some(server) = Postgres::start() else { return };
    let has_openssl =
        Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success());
    if !has_openssl {
        assert!(std::env::var_os("CI").is_none(), "no openssl");
        println!("SKIPPED: openssl is not installed");
        return;
    }
    let blocks = blocks();
    let [ca, host, start_host, address, gateway, start, first, kill, taken, cut, moved] = blocks.as_slice()
    else {
        panic!("the page has other blocks")
    };
    let world = World::new();
    let mut all = Installation { world, gateways: [None, None], hosts: Vec::new(), cables: Vec::new() };

    let made = Command::new("sh").args(["-eu", "-c", &ca.text]).current_dir(all.etc("ca")).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    assert!(start_host.text.contains("acp-supervisor doctor --config /etc/acp-host/supervisor.toml"));
    for name in HOSTS {
        all.copy(name, &["ca.crt", &format!("{name}.crt"), &format!("{name}.key")]);
        all.start_host(name, &host.text);
    }

    let database = server.create_database("machines");
    let programs = bin("acp-gateway").parent().unwrap().display().to_string();
    let work = all.world.dir("work/project").display().to_string();
    for name in GATEWAYS {
        all.copy(name, &["ca.crt", "cell.crt", "cell.key"]);
        let _ = all.write(name, "address", &address.text, &[("postgres://acp@db.example/acp", &database)]);
        let addresses: Vec<String> = all.cables.iter().map(|cable| cable.address.to_string()).collect();
        let replaced = [
            ("host1.example:7420", addresses[0].as_str()),
            ("host2.example:7420", &addresses[1]),
            ("host3.example:7420", &addresses[2]),
            ("/usr/local/bin:", &format!("{programs}:")),
            ("/srv/work", &work),
            // A test's server has no standby.
            ("cell = \"main\"", "cell = \"main\"\nallow_loss = true"),
        ];
        let config = all.write(name, "gateway.toml", &gateway.text, &replaced);
        let (variable, id) = all.world.env_mark();
        let state = all.world.dir("agent-state").display().to_string();
        let agent =
            format!("\n[agents.demo]\nenv = {{ {variable} = \"{id}\", XDG_STATE_HOME = \"{state}\" }}\n");
        let text = std::fs::read_to_string(config).unwrap() + &agent;
        let _ = all.world.write(&format!("{name}.toml"), &text);
    }
    for at in 0..GATEWAYS.len() {
        let _ = all.run(at, start);
        until(LONG, "the first one serves", || all.serves(0));
    }
    assert!(!all.serves(1), "the second one stands by");
    until(SOON, "all hosts are connected", || all.connected(0) == [true; 3]);

    let outputs = all.run(0, first);
    assert_eq!(last_type(&outputs[2]), "done", "{:?}", outputs[2]);
    assert_eq!(outputs[3][0]["host"], "host1");

    let _ = all.run(0, kill);
    let killed = Instant::now();
    until(LONG, "the second one serves", || all.serves(1));
    until(LONG, "its hosts are connected", || all.connected(1) == [true; 3]);
    let outputs = all.run(1, taken);
    println!("from the kill of a gateway to the next answer: {:?}", killed.elapsed());
    assert!(killed.elapsed() < TAKE_OVER_MAX, "{:?}", killed.elapsed());
    assert_eq!(last_type(&outputs[1]), "done", "{:?}", outputs[1]);
    all.start_gateway(0);

    all.cables[0].cut();
    until(SOON, "the host is away", || all.connected(1) == [false, true, true]);
    let outputs = all.run(1, cut);
    assert!(outputs[0][0][0]["detail"].as_str().unwrap().contains("does not answer"), "{:?}", outputs[0]);
    all.cables[0].mend();
    until(LONG, "the prompt is answered", || {
        let shown = all.world.cli(GATEWAYS[1], &["sessions", "show", "trial"]).ok().json();
        shown["state"] == "idle" && shown["queued_runs"] == 0
    });

    let outputs = all.run(1, moved);
    assert_eq!(last_type(&outputs[1]), "done", "{:?}", outputs[1]);
    let shown = all.world.cli(GATEWAYS[1], &["sessions", "show", "trial"]).ok().json();
    assert_eq!(shown["host"], "host2", "{shown}");
    let done = all.world.cli(GATEWAYS[1], &["sessions", "history", "trial"]).ok().lines();
    let ends = done.iter().filter(|event| event["type"] == "done").count();
    assert_eq!(ends, 4, "each prompt of the page is answered once");

    for gateway in all.gateways.iter_mut().filter_map(Option::take) {
        assert_eq!(gateway.terminate(LONG), Some(0));
    }
    for host in all.hosts.drain(..) {
        assert_eq!(host.terminate(LONG), Some(0));
    }
    assert_eq!(all.world.processes(), [], "no process is left");
}
