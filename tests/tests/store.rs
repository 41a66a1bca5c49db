//! Database operations: backups under load, restores, damage, full disks.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::run;
use acp_tests::house::{AGENT, GATEWAY, House, scripted};
use acp_tests::invariants;
use acp_tests::runbook::{Operator, Section};
use acp_tests::scrape::{Scrape, say};
use acp_tests::story::check_answer;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World, open_read_only};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn last(house: &House, key: &str) -> u64 {
    house.verb(&["sessions", "show", key])["last_session_seq"].as_u64().unwrap()
}

/// Backs the database up into a file, which is returned.
fn backup(house: &House) -> PathBuf {
    let file = house.world.path("backup.db");
    let _ = house.verb(&["store", "backup", text(&file)]);
    file
}

#[test]
fn backup_under_load_is_consistent_and_can_be_adopted() {
    let (house, key) = House::new(&[]).with_session();
    let mut busy = house.follow(&["prompt", &key, "chunks 400 pace_ms=2"]);
    until(SOON, "agent output journaled", || last(&house, &key) > 50);
    let file = house.world.path("backup.db");
    let made = house.verb(&["store", "backup", text(&file)]);
    assert_eq!(made["file"], text(&file));
    assert_eq!(made["broken"].as_array().map(Vec::len), Some(0));
    let there = std::fs::metadata(&file).unwrap();
    assert_eq!((there.permissions().mode() & 0o777, Some(there.len())), (0o600, made["bytes"].as_u64()));
    assert_eq!(house.cli(&["store", "backup", text(&file)]).error_code(), "USAGE");
    invariants::check(&open_read_only(&file));
    let output =
        run(&mut house.world.gateway_verb("elsewhere", &["store", "restore", text(&file)]), LONG).ok();
    let restored = output.json();
    assert!(restored["adopt"].as_str().is_some_and(|adopt| adopt.contains("adopt")), "{restored}");
    let start = ["serve", "--supervisor-socket", text(house.socket())];
    let refused = run(&mut house.world.gateway_verb("elsewhere", &start), LONG);
    assert_eq!(refused.error()["detail_code"], "STORE_CLONED", "{refused:#?}");
    let _ = run(&mut house.world.gateway_verb("elsewhere", &["adopt"]), LONG).ok();
    std::fs::copy(house.world.path("gateway.toml"), house.world.path("elsewhere.toml")).unwrap();
    let twin = house.world.gateway("elsewhere", house.socket());
    until(SOON, "interrupted turn failed", || {
        let show = house.world.cli("elsewhere", &["sessions", "show", &key]).ok().json();
        show["runs"][0]["state"] == "failed"
    });
    let report = house.world.cli("elsewhere", &["store", "check"]).ok().json();
    assert_eq!(report["ok"], true, "beside a running gateway: {report}");
    invariants::check(&house.world.journal("elsewhere"));
    assert_eq!(twin.terminate(LONG), Some(0));
    while busy.line(LONG).is_some() {}
    drop(busy);
    house.end();
}

#[test]
fn restored_database_ends_living_agent_and_journals_gap() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say before");
    let file = backup(&house);
    let lease = house.lease(&key);
    let _ = house.prompt(&key, "say after");
    assert_eq!(house.cli(&["store", "restore", text(&file)]).error()["detail_code"], "STORE_LOCKED");
    house.kill_gateway();
    let restored = house.verb(&["store", "restore", text(&file)]);
    let kept = PathBuf::from(restored["kept"].as_str().unwrap());
    let chunks = "SELECT count(*) FROM acp_events WHERE payload_json LIKE '%after%'";
    let count = |path: &Path| open_read_only(path).query_row(chunks, [], |row| row.get::<_, i64>(0)).unwrap();
    assert!(count(&kept) > 0 && count(&file) == 0);
    house.start_gateway();
    until(SOON, "gap journaled", || house.history(&key).iter().any(|line| line["type"] == "gap"));
    house.wait_for_lease_end(&lease);
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    house.end();
}

#[test]
fn agent_newer_than_backup_is_ended_and_session_continues() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say before");
    let old = house.lease(&key);
    let _ = house.cli(&["prompt", &key, "crash"]);
    house.wait_for_lease_end(&old);
    let file = backup(&house);
    let _ = house.prompt(&key, "say after");
    let young = house.lease(&key);
    assert_ne!(young.id(), old.id());
    house.kill_gateway();
    let _ = house.verb(&["store", "restore", text(&file)]);
    house.start_gateway();
    house.wait_for_lease_end(&young);
    check_answer(&house.prompt(&key, "say again"), ["again"]);
    house.end();
}

#[test]
fn damaged_database_is_refused_inspected_and_restored() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say a");
    let file = backup(&house);
    let db = house.world.path(GATEWAY).join(GATEWAY_DB);
    let said = b"echo-me-now";
    let _ = house.prompt(&key, "say echo-me-now");
    until(SOON, "the log is copied into the database", || {
        std::fs::read(&db).unwrap().windows(said.len()).any(|window| window == said)
    });
    house.kill_gateway();
    let mut bytes = std::fs::read(&db).unwrap();
    bytes.iter_mut().skip(4096).step_by(7).for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&db, &bytes).unwrap();
    let _ = std::fs::remove_file(house.world.path("gateway/gateway.db-wal"));
    let start = ["serve", "--supervisor-socket", text(house.socket())];
    let refused = house.cli(&start);
    assert_eq!(refused.error()["detail_code"], "STORE_DAMAGED", "{refused:#?}");
    for way_out in ["store check", "store sessions", "store restore FILE"] {
        assert!(refused.error()["message"].as_str().unwrap().contains(way_out), "{refused:#?}");
    }
    assert_eq!(std::fs::read(&db).unwrap(), bytes, "nothing was changed");
    let looked = house.cli(&["store", "check"]);
    assert_eq!((looked.code, looked.lines()[0]["ok"].as_bool()), (Some(1), Some(false)), "{looked:#?}");
    // Every page is damaged: no session is listed, and unread tables are reported.
    let listed = house.cli(&["store", "sessions"]);
    assert_eq!(listed.error()["detail_code"], "STORE_DAMAGED", "{listed:#?}");
    assert!(listed.lines()[0]["unread"].as_array().is_some_and(|unread| !unread.is_empty()), "{listed:#?}");
    let doctor = house.cli(&["doctor"]);
    assert!(doctor.stdout.contains("store check"), "{doctor:#?}");
    assert_eq!(std::fs::read(&db).unwrap(), bytes, "nothing was changed");
    let _ = house.verb(&["store", "restore", text(&file)]);
    let listed = house.verb(&["store", "sessions"]);
    assert_eq!(listed["sessions"][0]["session_key"], key.as_str(), "without a gateway: {listed}");
    house.start_gateway();
    let _ = house.prompt(&key, "say b");
    house.end();
}

#[test]
fn missing_database_is_not_recreated() {
    let (mut house, key) = House::new(&[]).with_session();
    house.kill_gateway();
    for name in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        let path = house.world.path(GATEWAY).join(name);
        std::fs::rename(&path, house.world.path(name)).unwrap();
    }
    let start = ["serve", "--supervisor-socket", text(house.socket())];
    assert_eq!(house.cli(&start).error()["detail_code"], "STORE_MISSING");
    for name in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        std::fs::rename(house.world.path(name), house.world.path(GATEWAY).join(name)).unwrap();
    }
    house.start_gateway();
    let _ = house.prompt(&key, "say a");
    house.end();
}

#[test]
fn doctor_reports_running_gateway_as_healthy() {
    let house = House::new(&[]);
    let doctor = house.cli(&["doctor"]).ok().json();
    let verdict = |name: &str| {
        let found = doctor.as_array().unwrap().iter().find(|check| check["name"] == name);
        found.map(|check| check["verdict"].as_str().unwrap().to_owned())
    };
    for name in ["configuration", "gateway", "backend", "store", "bindings", "database", "supervisor"] {
        assert_eq!(verdict(name).as_deref(), Some("ok"), "{name}: {doctor}");
    }
    house.end();
}

/// True if the machine permits a test to mount a tmpfs in its own namespace.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        println!("not possible here: mounting a tmpfs: {tried:?}");
    }
    can
}

/// Gateway with a small tmpfs as its state directory.
struct Small {
    world: World,
    supervisor: acp_tests::service::Service,
    gateway: acp_tests::service::Service,
}

impl Small {
    fn new() -> Self {
        Self::on(World::new(), "")
    }

    /// Starts on a full disk; space is freed once the file `room` exists.
    fn on_a_full_disk(world: World, room: &Path) -> Self {
        let wait = format!("while [ ! -e '{}' ]; do sleep 0.1; done", room.display());
        let fill = "dd if=/dev/zero of=\"$1/filler\" bs=512 || :";
        Self::on(world, &format!("{fill}; ({wait}; rm \"$1/filler\") & "))
    }

    fn on(world: World, before: &str) -> Self {
        world.configure(GATEWAY, "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
        let supervisor = world.supervisor();
        let dir = world.dir(GATEWAY);
        let mut command = world.command("acp-gateway");
        let program = command.get_program().to_owned();
        let mut inside = Command::new("unshare");
        inside.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside.current_dir(world.path("work"));
        // Room for the long message in the database and in its WAL.
        let line = format!("mount -t tmpfs -o size=16m,mode=700 none \"$1\"; {before}shift; exec \"$@\"");
        inside.args(["-m", "sh", "-ec", &line, "sh", text(&dir)]).arg(program);
        command.args(["serve", "--json", "--state-dir", text(&dir), "--supervisor-socket"]);
        command.arg(supervisor.socket()).arg("--config").arg(world.path("gateway.toml"));
        inside.args(command.get_args());
        let gateway = world.start_command(inside);
        Self { world, supervisor, gateway }
    }

    /// A path of the state directory, as the gateway sees it.
    fn inside(&self, name: &str) -> PathBuf {
        let dir = self.world.path(GATEWAY);
        let root = PathBuf::from(format!("/proc/{}/root", self.gateway.pid()));
        root.join(dir.strip_prefix("/").unwrap()).join(name)
    }

    fn fill(&self) -> PathBuf {
        let path = self.inside("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for piece in [65_536, 4_096, 512, 1] {
            while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
        }
        path
    }

    /// Opens a copy of the journal, because SQLite cannot open files of the namespace.
    fn journal(&self) -> rusqlite::Connection {
        let copy = self.world.dir("copy");
        for name in ["gateway.db", "gateway.db-wal"] {
            std::fs::copy(self.inside(name), copy.join(name)).unwrap();
        }
        let _ = std::fs::remove_file(copy.join("gateway.db-shm"));
        open_read_only(&copy.join(GATEWAY_DB))
    }

    /// Starts a session from the conversation.
    fn spawn(&self) {
        let cwd = self.world.dir("work/project");
        let spawned = self.say("1", &format!("/acp spawn {AGENT} --cwd {}", cwd.display()));
        assert_eq!(spawned["outcome"], "command", "{spawned}");
    }

    /// Ends both services in order.
    fn end(self) {
        assert_eq!(self.gateway.terminate(LONG), Some(0));
        assert_eq!(self.supervisor.terminate(LONG), Some(0));
    }

    fn say(&self, id: &str, words: &str) -> serde_json::Value {
        say(&self.inside("gateway.sock"), "room", id, words)
    }
}

#[test]
fn full_disk_refuses_messages_until_there_is_room() {
    if !can_mount() {
        return;
    }
    let small = Small::new();
    small.spawn();
    let filler = small.fill();
    let long = format!("say {}", "x".repeat(200_000));
    let refused = small.say("2", &long);
    assert_eq!(refused["detail_code"], "DISK_FULL", "{refused}");
    let scrape = || Scrape::fetch(&small.inside("gateway.sock"));
    assert_eq!(scrape().value("acp_store_writable"), 0.0);
    let rows = |sql: &str| small.journal().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(rows("SELECT count(*) FROM acp_inbox WHERE message_id = '2'"), 0, "refused is not kept");
    std::fs::remove_file(filler).unwrap();
    // Without any traffic.
    until(SOON, "store writable", || scrape().value("acp_store_writable") == 1.0);
    let taken = small.say("2", &long);
    assert_eq!(taken["outcome"], "prompted", "the same message again: {taken}");
    until(SOON, "answer delivered", || {
        rows("SELECT count(*) FROM acp_delivery_part WHERE kind = 'final' AND state = 'sent'") > 0
    });
    invariants::check(&small.journal());
    small.end();
}

#[test]
fn full_disk_is_handled_by_the_runbook() {
    if !can_mount() {
        return;
    }
    let small = Small::new();
    small.spawn();
    let filler = small.fill();
    let dir = small.inside("");
    let operator = Operator::at(&small.world, &dir, &small.supervisor.socket());
    let mut page = Section::read("The disk is full");
    let words = [("DIR", text(&dir))];
    // The database itself cannot be opened from outside of the namespace, so that `doctor` fails in any case.
    let store = |line: &str| {
        let output = operator.run(line, &words);
        output.stdout.lines().find(|line| line.contains(" store ")).unwrap_or_default().to_owned()
    };
    let (doctor, long) = (page.take("G doctor"), format!("say {}", "x".repeat(200_000)));
    let mut id = 1;
    // Small writes may find room in the WAL, after which the store counts as writable again.
    until(SOON, "doctor finds the full disk", || {
        id += 1;
        let refused = small.say(&id.to_string(), &long);
        assert_eq!(refused["detail_code"], "DISK_FULL", "{refused}");
        let found = store(&doctor);
        found.trim_start().starts_with("FAILED") && found.contains("full")
    });
    let disk = operator.run(&page.take("df"), &words).ok();
    assert!(disk.stdout.contains("Avail"), "{disk:#?}");
    std::fs::remove_file(filler).unwrap();
    let doctor = page.take("G doctor");
    until(SOON, "doctor finds space", || store(&doctor).contains("well"));
    page.end();
    small.end();
}

/// A start on a full disk reports it, waits, and continues by itself when there is room.
#[test]
fn start_on_full_disk_waits_for_room() {
    const SAID: &str = "disk full; startup waits for space";
    if !can_mount() {
        return;
    }
    let world = World::new();
    let (room, logs) = (world.path("room"), world.path("log"));
    let make = room.clone();
    // Space is freed after the gateway has logged that it waits; it becomes ready after that.
    let making = std::thread::spawn(move || {
        until(SOON, "disk wait logged", || {
            let entries = std::fs::read_dir(&logs).into_iter().flatten().flatten();
            entries.into_iter().any(|it| std::fs::read_to_string(it.path()).is_ok_and(|it| it.contains(SAID)))
        });
        std::fs::write(make, "").unwrap();
    });
    let small = Small::on_a_full_disk(world, &room);
    making.join().unwrap();
    assert_eq!(small.gateway.log().matches(SAID).count(), 1, "said once: {}", small.gateway.log());
    small.spawn();
    small.end();
}
