//! Disks that are full, broken, read-only or hung: real ones, mounted for the supervisor alone.

use crate::common::{Client, Host, agent, can, eventually, marked, say, script, wrapper};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, RefusalCode, Reply, Request};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Mounts a small file system on the state directory, in a namespace that dies with the supervisor.
fn mounted(what: &str, mount: &str) -> Option<Host> {
    let mut host = Host::idle("");
    host.config = format!("wrapper_root = {:?}\nreap_term_ms = 300", host.dir.path().join("wrappers"));
    std::fs::create_dir(host.state_dir()).unwrap();
    let line = format!("{mount} {}", host.state_dir().display());
    if !can(what, "unshare", &["-m", "sh", "-ec", &line]) {
        return None;
    }
    host.before = Some(line);
    host.start();
    Some(host)
}

fn tmpfs() -> Option<Host> {
    mounted("mount a small tmpfs", "mount -t tmpfs -o size=2m,mode=700 none")
}

/// A real file system on a loop device, which can break, and which can be frozen.
fn ext4() -> Option<(Host, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let path = image.to_str().unwrap();
    if !can("make an ext4 file system", "mkfs.ext4", &["-q", "-F", path]) {
        return None;
    }
    Some((mounted("mount it", &format!("mount -o loop {path}"))?, dir))
}

/// The state directory as the supervisor sees it.
fn inside(host: &Host) -> PathBuf {
    Path::new(&format!("/proc/{}/root", host.pid())).join(host.state_dir().strip_prefix("/").unwrap())
}

/// Runs a program in the supervisor's mount namespace.
fn within(host: &Host, program: &str, args: &[&str]) {
    let pid = host.pid().to_string();
    let output = Command::new("nsenter").args(["-m", "-t", &pid, program]).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// Takes all that is left of the disk, to the last byte.
fn fill(host: &Host) -> PathBuf {
    let path = inside(host).join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for piece in [65_536, 4_096, 512, 1] {
        while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
    }
    path
}

async fn refused(gateway: &mut Client) -> String {
    let next = agent(&["cat"]);
    let refusal = gateway.call(Request::Spawn(next.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    assert!(marked(next.lease_id).is_empty());
    refusal.message
}

fn warned(host: &Host) -> bool {
    host.warnings().contains("the lease store cannot be written")
}

#[tokio::test]
async fn on_a_full_disk_nothing_is_spawned_and_everything_can_be_ended() {
    let Some(mut host) = tmpfs() else { return };
    let mut gateway = host.gateway().connect().await;
    let living = gateway.start(agent(&["cat"])).await;
    let filler = fill(&host);
    let why = refused(&mut gateway).await;
    assert!(why.contains("full"), "{why}");
    assert!(warned(&host));
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || marked(living.lease_id).is_empty());
    gateway.state(living.lease_id, LeaseState::Closed).await;
    std::fs::remove_file(filler).unwrap();
    let next = agent(&["cat"]);
    assert_eq!(gateway.spawn(&next).await.state, LeaseState::Open, "it recovers without intervention");
    assert!(!warned(&host));
    assert_eq!(host.stop(), Some(0));
}

/// A wrapper that waits for a word before it becomes the real one.
fn waiting_wrapper(dir: &Path) -> PathBuf {
    let path = dir.join("waiting-wrapper");
    let (real, here, go) = (wrapper().display(), dir.join("here"), dir.join("go"));
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {real} --version\n: > {}\n\
         until [ -e {} ]; do /bin/sleep 0.02; done\n/bin/cp {real} \"$0.real\"\nexec \"$0.real\"\n",
        here.display(),
        go.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_disk_that_is_full_when_the_lease_is_bound_lets_nothing_run() {
    let Some(mut host) = tmpfs() else { return };
    host.crash();
    host.wrapper = Some(waiting_wrapper(host.dir.path()));
    host.start();
    let mut gateway = host.gateway().connect().await;
    let ran = host.dir.path().join("ran");
    let spec = script(&format!("touch {}; exec cat", ran.display()));
    let id = gateway.send(Request::Spawn(spec.clone())).await;
    eventually("RESERVED is on record and the wrapper runs", || host.dir.path().join("here").exists());
    fill(&host);
    std::fs::write(host.dir.path().join("go"), "").unwrap();
    let refusal = gateway.reply(id).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    eventually("the wrapper is gone", || marked(spec.lease_id).is_empty());
    assert!(!ran.exists(), "no GO without a durable BOUND");
}

#[tokio::test]
async fn on_a_disk_that_broke_and_became_read_only_everything_can_be_ended() {
    let Some((host, _image)) = ext4() else { return };
    let mut gateway = host.gateway().connect().await;
    let living = gateway.start(agent(&["cat"])).await;
    // What the kernel does by itself when an ext4 file system breaks.
    within(&host, "mount", &["-o", "remount,abort", host.state_dir().to_str().unwrap()]);
    say(&refused(&mut gateway).await);
    assert!(warned(&host));
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || marked(living.lease_id).is_empty());
    gateway.state(living.lease_id, LeaseState::Closed).await;
}

#[test]
fn a_read_only_state_directory_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    if !can("mount read-only", "unshare", &["-m", "sh", "-ec", &format!("mount -t tmpfs -o ro none {path}")])
    {
        return;
    }
    let mut host = Host::idle("");
    std::fs::create_dir(host.state_dir()).unwrap();
    host.before = Some(format!("mount -t tmpfs -o ro none {}", host.state_dir().display()));
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Read-only file system") && said.contains("state"), "{said}");
}

/// Holds all writes of the file system until it is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(host: &Host) -> Self {
        let path = inside(host);
        let output = Command::new("fsfreeze").arg("-f").arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(path)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(Command::new("fsfreeze").arg("-u").arg(&self.0).output());
    }
}

async fn answered_within(gateway: &mut Client, lease_id: LeaseId, wait: Duration) -> bool {
    let began = Instant::now();
    gateway.close(lease_id).await;
    eventually("the tree is gone", || marked(lease_id).is_empty());
    began.elapsed() < wait
}

#[tokio::test]
async fn a_hung_disk_holds_up_no_end_and_lets_nothing_start() {
    let Some((host, _image)) = ext4() else { return };
    if !can("freeze a file system", "fsfreeze", &["--version"]) {
        return;
    }
    let mut gateway = host.gateway().connect().await;
    let (living, next) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    let frozen = Frozen::new(&host);
    let spawn = gateway.send(Request::Spawn(next.clone())).await;
    assert!(answered_within(&mut gateway, living.lease_id, Duration::from_secs(20)).await);
    gateway.state(living.lease_id, LeaseState::Closed).await;
    assert!(marked(next.lease_id).is_empty(), "nothing starts without a record");
    assert!(host.json(&["status"])["pid"].is_number(), "others are answered throughout");
    drop(frozen);
    // What waited for the disk goes on where it was.
    assert!(matches!(gateway.reply(spawn).await, Ok(Reply::Spawned(_))));
    assert_eq!(marked(next.lease_id).len(), 2);
}

/// Another program holds the write lock of the store: every commit fails for as long.
#[tokio::test]
async fn without_a_store_nothing_is_spawned_and_everything_can_still_be_ended() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (living, next) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    let blocked = host.rows();
    blocked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refusal = gateway.call(Request::Spawn(next.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
    assert!(marked(next.lease_id).is_empty());
    // H19: processes come before records.
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || marked(living.lease_id).is_empty());
    drop(blocked);
    // Nothing was done the first time, so the same spawn is a new one.
    assert_eq!(gateway.spawn(&next).await.state, LeaseState::Open);
}
