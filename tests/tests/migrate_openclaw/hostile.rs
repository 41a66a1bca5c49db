//! Home directories whose files are of another kind, damaged, or change meanwhile: each is refused by name, nothing hangs,
//! and no content is printed.

use super::{MIGRATE, migrate, now_ms, records, totals};
use acp_tests::cli::{Output, run};
use acp_tests::house::GATEWAY;
use acp_tests::invariants;
use acp_tests::openclaw_home::{OpenclawHome, key};
use acp_tests::wait::{LONG, until};
use acp_tests::world::{GATEWAY_DB, World, open_read_only};
use nix::sys::stat::Mode;
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Content of a file that must not be printed.
const PRIVATE: &str = "content-that-must-not-be-printed";

fn why(output: &Output, file: &str) -> String {
    let all = records(output);
    let found = all.iter().find(|line| line["kind"] == "file" && line["key"] == file);
    let found = found.unwrap_or_else(|| panic!("no line about {file}: {output:#?}"));
    assert_eq!(found["action"], "refuse", "{found}");
    found["why"].as_str().unwrap_or_default().to_owned()
}

fn sparse(path: &Path, bytes: u64) {
    fs::File::create(path).and_then(|file| file.set_len(bytes)).unwrap();
}

#[test]
fn files_of_other_kinds_and_damaged_files_are_refused_by_name() {
    let world = World::new();
    let home = OpenclawHome::small(&world, now_ms());
    let at = |name: &str| {
        let dir = home.dir().join(format!("agents/{name}/sessions"));
        fs::create_dir_all(&dir).unwrap();
        dir.join("sessions.json")
    };
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", at("zero")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    sparse(&at("sparse"), 1 << 30);
    fs::write(at("utf8"), b"{\"agent:x:acp:1\": \"\xff\xfe\"}").unwrap();
    fs::write(at("bom"), "\u{feff}{}").unwrap();
    fs::write(at("deep"), format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000))).unwrap();
    fs::write(at("cut"), format!("{{\"{PRIVATE}\": \"{PRIVATE}\", ")).unwrap();
    fs::write(at("version"), json!({ "version": PRIVATE.repeat(1_000) }).to_string()).unwrap();
    // A link out of the home directory to a file that is not meant for it.
    fs::write(world.path("secret"), PRIVATE).unwrap();
    symlink(world.path("secret"), at("link")).unwrap();
    nix::unistd::mkfifo(&home.dir().join("openclaw.json"), Mode::S_IRWXU).unwrap();
    fs::create_dir_all(home.dir().join("discord")).unwrap();
    nix::unistd::mkfifo(&home.dir().join("discord/thread-bindings.json"), Mode::S_IRWXU).unwrap();
    // A file among the directories of agents, and text with other line ends, are no errors.
    fs::write(home.dir().join("agents/README"), "").unwrap();
    fs::write(at("crlf"), "{\r\n}\r\n").unwrap();

    let output = migrate(&world, &["--dry-run"]);
    assert_eq!(output.code, Some(1), "{output:#?}");
    for (name, part) in [
        ("fifo", "not a regular file"),
        ("zero", "not a regular file"),
        ("loop", "cannot be read"),
        ("socket", "cannot be read"),
        ("sparse", "larger than"),
        ("utf8", "not JSON"),
        ("bom", "not JSON"),
        ("deep", "not JSON"),
        ("cut", "not JSON"),
        ("version", "it has another version"),
        ("link", "not JSON"),
    ] {
        let file = format!("agents/{name}/sessions/sessions.json");
        let why = why(&output, &file);
        assert!(why.contains(part), "{file}: {why}");
    }
    assert!(why(&output, "discord/thread-bindings.json").contains("not a regular file"));
    assert!(output.stdout.contains("openclaw.json: it is not a regular file"), "{output:#?}");
    let all = format!("{}{}", output.stdout, output.stderr);
    assert!(!all.contains(PRIVATE), "{output:#?}");
    let files = records(&output).into_iter().filter(|line| line["kind"] == "file").count();
    assert_eq!(files, 12, "nothing else is refused: {output:#?}");
    // Rows whose entries may be in one of these files are not imported.
    assert_eq!(totals(&output)["import"], 0, "{output:#?}");
}

/// A directory that cannot be read may hold the newer records.
#[test]
fn unreadable_directories_are_refused_by_name() {
    let world = World::new();
    let home = OpenclawHome::small(&world, now_ms());
    let agents = home.dir().join("agents");
    fs::remove_dir_all(&agents).unwrap();
    symlink(&agents, &agents).unwrap();
    let acpx = world.dir("home/.acpx");
    symlink(acpx.join("sessions"), acpx.join("sessions")).unwrap();
    let output = migrate(&world, &["--dry-run"]);
    assert!(why(&output, "agents").contains("cannot be read"), "{output:#?}");
    let acpx = acpx.join("sessions");
    assert!(why(&output, acpx.to_str().unwrap()).contains("cannot be read"), "{output:#?}");
    assert_eq!((output.code, &totals(&output)["import"]), (Some(1), &json!(0)), "{output:#?}");
}

/// Where a member stands twice, the last one counts, as for OpenClaw.
#[test]
fn last_of_equal_members_counts() {
    let world = World::new();
    let home = OpenclawHome::of_conversation(&world, now_ms(), "live");
    let path = home.dir().join("agents/codex/sessions/sessions.json");
    let entry: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut closed = entry[key(1)].clone();
    closed["acp"]["state"] = json!("closed");
    let twice = |first: &serde_json::Value, last: &serde_json::Value| {
        format!("{{{key:?}: {first}, {key:?}: {last}}}", key = key(1))
    };
    for (first, last, want) in [(&entry[key(1)], &closed, "skip"), (&closed, &entry[key(1)], "import")] {
        fs::write(&path, twice(first, last)).unwrap();
        let output = migrate(&world, &["--dry-run", "--agent", "codex=demo"]);
        let found = records(&output).into_iter().find(|line| line["kind"] == "session").unwrap();
        assert_eq!((&found["key"], &found["action"]), (&json!(key(1)), &json!(want)), "{output:#?}");
    }
}

/// A file that another program rewrites is not imported in parts. That program may also be noticed as OpenClaw.
#[test]
fn file_that_changes_while_it_is_read_is_refused() {
    let world = World::new();
    let home = OpenclawHome::of_conversation(&world, now_ms(), "live");
    let path = home.dir().join("agents/codex/sessions/sessions.json");
    let text = fs::read_to_string(&path).unwrap();
    // Long enough that each reading overlaps with a change.
    let long = format!("{text}{}", " ".repeat(8 * 1024 * 1024));
    fs::write(&path, &long).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .and_then(|file| std::os::unix::fs::FileExt::write_at(&file, text.as_bytes(), 0))
                    .unwrap();
            }
        });
        until(LONG, "a reading overlaps with a change", || {
            let output = migrate(&world, &["--dry-run", "--agent", "codex=demo"]);
            let is_running = output.stdout.contains("OPENCLAW_RUNNING");
            let is_refused = output.stdout.contains("it changed while it was read");
            assert!(is_running || is_refused, "{output:#?}");
            is_refused
        });
        stop.store(true, Ordering::Relaxed);
    });
    let output = migrate(&world, &["--dry-run", "--agent", "codex=demo"]).ok();
    assert_eq!(totals(&output)["import"], 1, "{output:#?}");
}

/// A disk that runs full during the import: all records or none, and the failure is told.
#[test]
fn full_disk_leaves_all_or_nothing() {
    let mount = ["-m", "mount", "-t", "tmpfs", "none", "/mnt"];
    let tried = Command::new("unshare").args(mount).output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        println!("not possible here: mounting a tmpfs: {tried:?}");
        return;
    }
    let world = World::new();
    let _home = OpenclawHome::small(&world, now_ms());
    let state = world.dir(GATEWAY);
    let (mut nothing, mut all) = (0, 0);
    for kib in [64, 160, 256, 384, 512, 768, 1_024, 2_048, 8_192] {
        let kept = world.dir(&format!("kept-{kib}"));
        let import = world.gateway_verb(GATEWAY, &MIGRATE);
        let line = "mount -t tmpfs -o size=\"$1k\",mode=700 none \"$2\" || exit 99; from=$2 to=$3; shift 3; \"$@\"; code=$?; \
                    cp -a \"$from/.\" \"$to\"; exit $code";
        let mut full = Command::new("unshare");
        full.env_clear().envs(import.get_envs().filter_map(|(name, value)| Some((name, value?))));
        full.current_dir(import.get_current_dir().unwrap());
        full.args(["-m", "sh", "-c", line, "sh", &kib.to_string()]).arg(&state).arg(&kept);
        full.arg(import.get_program()).args(import.get_args());
        let output = run(&mut full, LONG);
        let database = kept.join(GATEWAY_DB);
        let count =
            || open_read_only(&database).query_row("SELECT count(*) FROM acp_sessions", [], |row| row.get(0));
        let sessions: i64 = if database.exists() { count().unwrap_or(0) } else { 0 };
        match (output.code, sessions) {
            (Some(0), 4) => {
                invariants::check(&open_read_only(&database));
                assert_eq!(totals(&output)["import"], 8, "{output:#?}");
                all += 1;
            }
            (Some(code), 0) if code != 0 && code != 99 => {
                assert!(
                    output.stdout.contains("\"type\":\"error\"") || totals(&output)["import"] == 0,
                    "{output:#?}"
                );
                nothing += 1;
            }
            partial => panic!("{kib} KiB: {partial:?} {output:#?}"),
        }
    }
    assert!(nothing > 0 && all > 0, "{nothing} times nothing, {all} times all");
}
