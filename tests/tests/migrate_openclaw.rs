//! `migrate openclaw` on the home directory of an OpenClaw: report, dry run, kills, refusals, and use of what was imported.
//! `ACP_WRITE_MIGRATION=1` writes the record in `docs/manual/migrate-openclaw.md`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "migrate_openclaw/hostile.rs"]
mod hostile;

use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use acp_testkit::sys::{Boundary, boundary};
use acp_tests::cli::{Output, RunningCommand, run};
use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::invariants;
use acp_tests::openclaw_home::{
    BINDINGS, BOT_TOKEN, BROKEN, LEASES, OpenclawHome, SESSIONS, WEBHOOK_TOKEN, key,
};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World, open_read_only, repository};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

const PAGE: &str = "docs/manual/migrate-openclaw.md";
/// Lines of the page around the record of the test.
const BEGIN: &str = "<!-- record of tests/tests/migrate_openclaw.rs: begin -->";
const END: &str = "<!-- record: end -->";
/// Number of kills.
const KILLS: usize = 24;
const MIGRATE: [&str; 2] = ["migrate", "openclaw"];

#[expect(clippy::disallowed_methods, reason = "times of the fixture are relative to the present")]
fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn migrate(world: &World, more: &[&str]) -> Output {
    world.cli(GATEWAY, &[&MIGRATE, more].concat())
}

fn records(output: &Output) -> Vec<Value> {
    output.lines().into_iter().filter(|line| line["type"] == "record").collect()
}

fn totals(output: &Output) -> Value {
    output.lines().into_iter().find(|line| line["type"] == "totals").unwrap_or_else(|| panic!("{output:#?}"))
}

/// Content of all files below a directory.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.display().to_string(), fs::read(&path).unwrap());
        }
    }
    found
}

fn assert_no_token(name: &str, bytes: &[u8]) {
    for token in [WEBHOOK_TOKEN, BOT_TOKEN] {
        let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
        assert!(!found, "{name} holds {token}");
    }
}

fn count(world: &World, sql: &str) -> i64 {
    world.journal(GATEWAY).query_row(sql, [], |row| row.get(0)).unwrap_or(0)
}

/// The record of the page: the report of both runs, and the settings to review.
fn record_of(world: &World, dry: &Output, real: &Output) -> String {
    let (home, top) = (world.path("home/").display().to_string(), world.path("").display().to_string());
    let cell = |text: &str| text.replace(&home, "~/").replace(&top, "/srv/").replace('|', "\\|");
    let mut text = String::from("| kind | key | source | dry run | run | why |\n|---|---|---|---|---|---|\n");
    for (one, other) in records(dry).iter().zip(records(real)) {
        let of = |value: &Value, name: &str| cell(value[name].as_str().unwrap_or_default());
        let _ = writeln!(
            text,
            "| {} | `{}` | `{}` | {} | {} | {} |",
            of(one, "kind"),
            of(one, "key"),
            of(one, "source"),
            of(one, "action"),
            of(&other, "action"),
            of(one, "why")
        );
    }
    let config = real.lines().into_iter().find(|line| line["type"] == "config").unwrap();
    let (dry, real) = (totals(dry), totals(real));
    let number = |name: &str| format!("{} {name}", dry[name]);
    let sum: Vec<String> = ["import", "already", "skip", "refuse", "conflict"].map(number).to_vec();
    assert_eq!((&dry["import"], &dry["refuse"]), (&real["import"], &real["refuse"]));
    let _ = writeln!(text, "\n{}.\n\n```toml", sum.join(", "));
    for note in config["notes"].as_array().unwrap() {
        let _ = writeln!(text, "# {}", note.as_str().unwrap());
    }
    let _ = writeln!(text, "{}```", config["toml"].as_str().unwrap());
    text
}

fn check_page(record: &str) {
    let path = repository().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let wanted = format!("{head}{BEGIN}\n\n{record}\n{END}{tail}");
    if std::env::var_os("ACP_WRITE_MIGRATION").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    assert!(
        page == wanted || std::env::var_os("ACP_WRITE_MIGRATION").is_some(),
        "{PAGE} differs from the run: ACP_WRITE_MIGRATION=1 writes it. The record:\n{record}"
    );
}

#[test]
fn dry_run_and_run_agree_and_a_second_run_changes_nothing() {
    let world = World::new();
    let home = OpenclawHome::whole(&world, now_ms());
    let before = files(home.dir());
    let more = ["--account", "work=helper"];
    let dry = migrate(&world, &[&more[..], &["--dry-run"]].concat());
    assert!(!world.path(GATEWAY).join(GATEWAY_DB).exists(), "a dry run creates no database");
    let real = migrate(&world, &more);
    assert_eq!((dry.code, real.code), (Some(1), Some(1)), "{dry:#?}");
    assert_eq!(records(&dry), records(&real));
    let of = |kind: &str| records(&real).iter().filter(|line| line["kind"] == kind).count();
    assert_eq!((of("session"), of("lease")), (SESSIONS, LEASES));
    assert_eq!((of("binding"), of("file")), (BINDINGS, BROKEN + 1), "{real:#?}");
    let imported = |kind: &str| {
        records(&real).iter().filter(|line| line["kind"] == kind && line["action"] == "import").count() as i64
    };
    assert_eq!(count(&world, "SELECT count(*) FROM acp_sessions"), imported("session"));
    assert_eq!(count(&world, "SELECT count(*) FROM acp_bindings"), imported("binding"));
    invariants::check(&world.journal(GATEWAY));
    let backup = totals(&real)["backup"].as_str().unwrap().to_owned();
    let empty = "SELECT count(*) FROM acp_sessions";
    assert_eq!(
        open_read_only(Path::new(&backup)).query_row(empty, [], |row| row.get::<_, i64>(0)).unwrap(),
        0
    );

    let again = migrate(&world, &more);
    for (one, other) in records(&real).iter().zip(records(&again)) {
        let wanted = if one["action"] == "import" { "already" } else { one["action"].as_str().unwrap() };
        assert_eq!((other["action"].as_str(), &other["key"]), (Some(wanted), &one["key"]));
    }
    assert_eq!((totals(&again)["import"].as_i64(), &totals(&again)["backup"]), (Some(0), &Value::Null));
    assert_eq!(totals(&again)["source"]["sha256"], totals(&real)["source"]["sha256"]);
    let people =
        run(world.command("acp-gateway").arg("--state-dir").arg(world.path(GATEWAY)).args(MIGRATE), LONG);
    for output in [&dry, &real, &again, &people] {
        assert_no_token("the output", format!("{}{}", output.stdout, output.stderr).as_bytes());
    }
    for (name, bytes) in files(&world.path(GATEWAY)) {
        assert_no_token(&name, &bytes);
    }
    assert_eq!(files(home.dir()), before, "the source is only read");
    check_page(&record_of(&world, &dry, &real));
}

/// The older files may be stale where the newest source cannot be read.
#[test]
fn older_files_are_not_imported_beside_a_damaged_database() {
    let world = World::new();
    let home = OpenclawHome::whole(&world, now_ms());
    fs::write(home.dir().join("state/openclaw.sqlite"), "damaged ".repeat(1_000)).unwrap();
    let output = migrate(&world, &[]);
    assert_eq!((output.code, &totals(&output)["import"]), (Some(1), &Value::from(0)), "{output:#?}");
    let refused = records(&output).into_iter().filter(|line| line["why"].to_string().contains("which wins"));
    assert!(refused.count() > 20, "{output:#?}");
}

#[test]
fn choices_limit_and_rename_records() {
    let world = World::new();
    let _home = OpenclawHome::small(&world, now_ms());
    let only = migrate(&world, &["--only", "sessions", "--agent", "codex=claude"]).ok();
    assert_eq!(totals(&only)["import"], 4, "{only:#?}");
    assert_eq!(count(&world, "SELECT count(*) FROM acp_sessions WHERE agent = 'claude'"), 4);
    let conflict = migrate(&world, &["--only", "sessions"]);
    assert_eq!((conflict.code, &totals(&conflict)["conflict"]), (Some(1), &Value::from(4)), "{conflict:#?}");
    let bindings = migrate(&world, &["--only", "bindings", "--account", "default=helper"]).ok();
    assert_eq!(totals(&bindings)["import"], 4, "{bindings:#?}");
    assert_eq!(count(&world, "SELECT count(*) FROM acp_bindings WHERE account_id = 'helper'"), 4);
}

#[test]
fn running_programs_are_refused() {
    let house = House::new(&[]);
    let home = OpenclawHome::small(&house.world, now_ms());
    let locked = migrate(&house.world, &[]);
    assert_eq!(locked.error()["detail_code"], "STORE_LOCKED", "{locked:#?}");
    let other = |more: &[&str]| house.world.cli("other", &[&MIGRATE, more].concat());
    let database = home.dir().join("state/openclaw.sqlite");
    let mut holder = Command::new("/bin/sh");
    holder.arg("-c").arg("exec 9<\"$0\"; echo open; exec sleep 60").arg(&database);
    let mut holder = RunningCommand::start(&mut holder);
    assert_eq!(holder.line(SOON).as_deref(), Some("open"));
    let used = other(&[]);
    assert_eq!(used.error()["detail_code"], "OPENCLAW_RUNNING", "{used:#?}");
    drop(holder);
    let _ = other(&[]).ok();
    house.end();
}

/// Tells the way to import in refusals, but only where something was imported; an imported session whose conversation is
/// unknown to its agent does not begin a new one.
#[test]
fn imported_sessions_are_used_and_missing_ones_name_the_command() {
    let mut house = House::new(&[]);
    let unbound = house.say("room", "1", "hello");
    assert!(!unbound.to_string().contains("migrate openclaw"), "{unbound}");
    house.stop_gateway();
    let _home = OpenclawHome::small(&house.world, now_ms());
    let config = house.world.path(&format!("{GATEWAY}.toml"));
    let imported =
        migrate(&house.world, &["--agent", &format!("codex={AGENT}"), "--config", config.to_str().unwrap()]);
    assert_eq!(totals(&imported.ok())["import"], 8);
    house.start_gateway();
    let listed = house.verb(&["sessions", "show", &key(1)]);
    assert_eq!((&listed["agent"], &listed["state"]), (&Value::from(AGENT), &Value::from("idle")), "{listed}");
    let refused = house.cli(&["prompt", &key(1), "hello"]);
    assert_eq!(refused.error_code(), "ACP_RESUME_UNAVAILABLE", "{refused:#?}");
    let unbound = house.say("room", "2", "hello");
    assert!(unbound.to_string().contains("migrate openclaw"), "{unbound}");
    let unknown = house.say("room", "3", "/acp status agent:codex:acp:gone");
    assert!(unknown.to_string().contains("migrate openclaw"), "{unknown}");
    until(SOON, "no agent was started", || house.leases().is_empty());
    house.end();
}

/// A conversation continues by its id at the agent, also where new sessions have the backend `acpx`: acpx's records of
/// OpenClaw are not in the home directories of this gateway's sessions.
#[test]
fn imported_conversation_continues_where_acpx_is_configured() {
    let mut house = Plan::flags(&[]).gateway("[acp]\nbackend = \"acpx\"").build();
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--backend", "direct", "--wait", "60"];
    let first = house.verb(&spawn)["session_key"].as_str().unwrap().to_owned();
    let _ = house.prompt(&first, "say one");
    let id = house.verb(&["sessions", "show", &first])["agent_session_id"].as_str().unwrap().to_owned();
    let _ = house.verb(&["sessions", "close", &first]);
    house.stop_gateway();
    let _home = OpenclawHome::of_conversation(&house.world, now_ms(), &id);
    let config = house.world.path(&format!("{GATEWAY}.toml"));
    let agent = format!("codex={AGENT}");
    let imported = migrate(&house.world, &["--agent", &agent, "--config", config.to_str().unwrap()]).ok();
    assert_eq!((&totals(&imported)["import"], &records(&imported)[0]["why"]), (&1.into(), &"".into()));
    house.start_gateway();
    let _ = house.prompt(&key(1), "say two");
    let shown = house.verb(&["sessions", "show", &key(1)]);
    assert_eq!(shown["agent_session_id"], id.as_str(), "{shown}");
    house.end();
}

/// Settings that nest without end are left out; the records are imported.
#[test]
fn endless_settings_are_left_out() {
    let world = World::new();
    let _home = OpenclawHome::of_conversation(&world, now_ms(), "live");
    world.write("home/.openclaw/openclaw.json", &"[".repeat(200_000));
    let dry = migrate(&world, &["--dry-run", "--agent", "codex=demo"]).ok();
    assert_eq!(totals(&dry)["import"], 1, "{dry:#?}");
    assert!(dry.stdout.contains("its settings are not shown"), "{dry:#?}");
}

/// System calls that change files.
fn changes_files(call: libc::c_long) -> bool {
    let calls = [
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_ftruncate,
        libc::SYS_renameat2,
        libc::SYS_unlinkat,
        libc::SYS_fchmod,
        libc::SYS_copy_file_range,
    ];
    calls.contains(&call)
}

/// Starts a command that waits for a line on standard input, and traces it.
fn start_traced(command: &Command) -> (Child, Pid) {
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap());
    shell.args(["-c", "read line; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD).unwrap();
    ptrace::interrupt(pid).unwrap();
    assert!(matches!(waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap(), WaitStatus::PtraceEvent(..)));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    (child, pid)
}

/// Runs a command and kills it before its call number `kill_at` that changes files, from 1. Returns the number of such
/// calls.
fn run_traced(command: &Command, kill_at: Option<usize>) -> usize {
    let (mut child, pid) = start_traced(command);
    let mut calls = 0;
    let mut signal = None;
    loop {
        ptrace::syscall(pid, signal.take()).unwrap();
        match waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(_) => {
                if let Some(Boundary::Entry { call, .. }) = boundary(pid)
                    && changes_files(call)
                {
                    calls += 1;
                    if Some(calls) == kill_at {
                        child.kill().unwrap();
                        let _ = child.wait().unwrap();
                        return calls;
                    }
                }
            }
            WaitStatus::Stopped(_, stopped) => signal = Some(stopped),
            WaitStatus::Exited(_, code) => {
                assert_eq!(code, 0, "the import failed");
                return calls;
            }
            WaitStatus::PtraceEvent(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn kill_at_any_step_leaves_all_or_nothing() {
    skip_unless!(Ability::Ptrace);
    let world = World::new();
    let home = OpenclawHome::small(&world, now_ms());
    let before = files(home.dir());
    let total = run_traced(&world.gateway_verb("whole", &MIGRATE), None);
    assert!(total > KILLS, "{total}");
    let (mut nothing, mut all) = (0, 0);
    for number in 0..KILLS {
        let name = format!("killed-{number}");
        // The last calls are the output, after the commit.
        let kill_at = 1 + number * (total - 1) / (KILLS - 1);
        let _ = run_traced(&world.gateway_verb(&name, &MIGRATE), Some(kill_at));
        let database = world.path(&name).join(GATEWAY_DB);
        let counted = |sql: &str| {
            let read = || open_read_only(&database).query_row(sql, [], |row| row.get::<_, i64>(0));
            if database.exists() { read().unwrap_or(0) } else { 0 }
        };
        let found = [
            counted("SELECT count(*) FROM acp_sessions"),
            counted("SELECT count(*) FROM acp_bindings"),
            counted("SELECT 4 * count(*) FROM acp_meta WHERE key = 'openclaw_source'"),
        ];
        match found {
            [0, 0, 0] => nothing += 1,
            [4, 4, 4] => all += 1,
            partial => panic!("killed at call {kill_at} of {total}: {partial:?}"),
        }
        let again = world.cli(&name, &MIGRATE).ok();
        let done = totals(&again);
        assert_eq!(
            done["import"].as_i64().zip(done["already"].as_i64()).map(|(a, b)| a + b),
            Some(8),
            "{again:#?}"
        );
        invariants::check(&world.journal(&name));
    }
    assert!(
        nothing > 0 && all > 0,
        "killed before the commit {nothing} times, after it {all} times of {total} calls"
    );
    assert_eq!(files(home.dir()), before, "the source is only read");
}
