//! File requests of agents: reading, writing, and confinement to the roots of the session.

use acp_tests::house::House;
use acp_tests::seed::Seed;
use acp_tests::story::{check_turn, chunks};
use acp_tests::wait::{LONG, wait_until_instant};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs a script and returns the agent's message about each of its requests.
pub(crate) fn said(house: &House, key: &str, script: &str) -> Vec<String> {
    let events = house.prompt(key, script);
    check_turn(&events, "end_turn");
    chunks(&events).into_iter().map(str::to_owned).collect()
}

/// File content is transferred unchanged in both directions.
#[test]
fn files_are_read_and_written_as_asked() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let cwd = house.cwd();
    let odd = "one\n\ttwo \u{e9}\u{1f980} \"three\"\n\nno newline at the end";
    fs::write(cwd.join("odd.txt"), odd).unwrap();
    fs::write(cwd.join("empty.txt"), "").unwrap();
    fs::create_dir(cwd.join("sub")).unwrap();
    fs::write(cwd.join("sub/inner.txt"), "inner").unwrap();
    symlink("sub/inner.txt", cwd.join("inside")).unwrap();
    let inner = cwd.join("sub/inner.txt");
    let script = format!(
        "fs_read odd.txt\nfs_read empty.txt\nfs_read sub/inner.txt\nfs_read {}\nfs_read inside\nfs_read sub/../odd.txt",
        inner.display()
    );
    let want = [odd, "", "inner", "inner", "inner", odd].map(|text| format!("fs_read: {text}"));
    assert_eq!(said(&house, &key, &script), want);

    let script = "fs_write new.txt a\\tb\\nc\nfs_write odd.txt over\nfs_write deep/er/file.txt made\nfs_write blank.txt";
    assert_eq!(said(&house, &key, script), ["fs_write: ok"; 4]);
    for (name, content) in
        [("new.txt", "a\tb\nc"), ("odd.txt", "over"), ("deep/er/file.txt", "made"), ("blank.txt", "")]
    {
        assert_eq!(fs::read_to_string(cwd.join(name)).unwrap(), content, "{name}");
    }
    let left: Vec<_> = fs::read_dir(&cwd).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 7, "no temporary file is left: {left:?}");
    house.end();
}

/// Reads and writes that are impossible return errors, and the turn continues.
#[test]
fn unreadable_and_unwritable_paths_return_errors() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let cwd = house.cwd();
    fs::write(cwd.join("bytes"), [0xff, 0xfe, 0x00]).unwrap();
    fs::create_dir(cwd.join("dir")).unwrap();
    rustix::fs::mknodat(CWD, cwd.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let script = "fs_read missing.txt\nfs_read dir\nfs_read bytes\nfs_read pipe\nfs_write dir x\nfs_write pipe x\nsay alive";
    let said = said(&house, &key, script);
    for line in &said[..6] {
        assert!(line.starts_with("fs_read: error -") || line.starts_with("fs_write: error -"), "{said:?}");
    }
    assert_eq!(said[0], "fs_read: error -32002", "a missing file is ACP's resource-not-found");
    assert_eq!(said[6..], ["alive"]);
    house.end();
}

/// Static paths and links that lead outside of the roots are refused.
#[test]
fn paths_outside_the_roots_are_refused() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let cwd = house.cwd();
    let secret = house.world.write("work/secret.txt", "secret");
    let beside = house.world.write("work/project-not/secret.txt", "secret");
    symlink(&secret, cwd.join("absolute")).unwrap();
    symlink("../secret.txt", cwd.join("relative")).unwrap();
    symlink("..", cwd.join("up")).unwrap();
    symlink("/proc/self/root", cwd.join("magic")).unwrap();
    symlink("loop", cwd.join("loop")).unwrap();
    let ways = [
        secret.display().to_string(),
        beside.display().to_string(),
        "../secret.txt".to_owned(),
        "../../work/secret.txt".to_owned(),
        "absolute".to_owned(),
        "relative".to_owned(),
        "up/secret.txt".to_owned(),
        format!("magic{}", secret.display()),
        "loop".to_owned(),
        "/etc/hostname".to_owned(),
        "/dev/null".to_owned(),
    ];
    let script: String =
        ways.iter().map(|way| format!("fs_read {way}\nfs_write {way} overwritten\n")).collect();
    let said = said(&house, &key, &script);
    assert_eq!(said.len(), ways.len() * 2);
    for (line, way) in said.iter().zip(ways.iter().flat_map(|way| [way, way])) {
        assert!(line.contains(": error -"), "{way}: {line}");
    }
    for path in [secret, beside] {
        assert_eq!(fs::read_to_string(&path).unwrap(), "secret", "{}", path.display());
    }
    let outside: Vec<_> =
        fs::read_dir(house.world.path("work")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(outside.len(), 3, "no file was created outside: {outside:?}");
    house.end();
}

/// Point 7: names are swapped between check and open; nothing outside of the roots is read or written.
#[test]
fn heavy_a_link_swapped_between_check_and_open_stays_inside() {
    let mut seed = Seed::new();
    let (house, key) = House::with_approve_all(&[]).with_session();
    let cwd = house.cwd();
    let outside = house.world.dir("work/outside");
    fs::write(outside.join("file"), "outside").unwrap();
    // Two names that change places: a directory and a link out; and a file and a link out.
    fs::create_dir(cwd.join("dir")).unwrap();
    fs::write(cwd.join("dir/file"), "inside").unwrap();
    symlink(&outside, cwd.join("dir-out")).unwrap();
    fs::write(cwd.join("leaf"), "inside").unwrap();
    symlink(outside.join("file"), cwd.join("leaf-out")).unwrap();

    let stop = AtomicBool::new(false);
    let swaps = AtomicU64::new(0);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (one, other) in [("dir", "dir-out"), ("leaf", "leaf-out")] {
                    swap(&cwd.join(one), &cwd.join(other));
                }
                swaps.fetch_add(1, Ordering::Relaxed);
                wait_until_instant(Instant::now() + seed.time_below(Duration::from_micros(400)));
            }
        });
        let script = "fs_read dir/file\nfs_read leaf\nfs_write dir/new inside\nfs_write leaf inside\nfs_read dir-out/file\n";
        let turn = house.follow(&["prompt", &key, &script.repeat(120)]);
        let ended = turn.finish(LONG);
        stop.store(true, Ordering::Relaxed);
        ended.ok().lines()
    });
    let said = chunks(&said);
    assert_eq!(said.len(), 600);
    let count = |want: &dyn Fn(&str) -> bool| said.iter().filter(|line| want(line)).count();
    let good = count(&|line| matches!(line, "fs_read: inside" | "fs_write: ok"));
    let refused = count(&|line| line.contains(": error -"));
    eprintln!("{good} inside, {refused} refused, over {} swaps", swaps.load(Ordering::Relaxed));
    assert_eq!(good + refused, 600, "unexpected messages: {said:?}");
    assert!(good > 0 && refused > 0, "no swap hit a request: {good} inside, {refused} refused");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside");
    let found: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(found, ["file"], "no file was created outside");
    house.end();
}

fn swap(one: &Path, other: &Path) {
    // A write may just have put a file where the link was; then there is still something under both names.
    let swapped = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
    assert!(swapped.is_ok() || !one.exists() || !other.exists(), "{swapped:?}");
}

/// All `terminal/*` and `fs/*` requests are refused if the session's directory was removed.
#[test]
fn removed_working_directory_returns_errors() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    fs::remove_dir_all(house.cwd()).unwrap();
    let said = said(&house, &key, "fs_read a\nfs_write a x\nterminal echo hi\nsay alive");
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[..3].iter().all(|line| line.contains("error -")), "{said:?}");
    assert_eq!(said[3], "alive");
    assert!(!house.cwd().exists(), "the directory is not created again");
    house.end();
}
