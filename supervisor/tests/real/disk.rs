//! Full, broken, read-only and hung disks, mounted for the supervisor alone.

use crate::common::{Client, Host, agent, eventually, is_possible, pids_of, report, script, wrapper};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseState, RefusalCode, Reply, Request};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Mounts a small file system on the state directory, in the supervisor's mount namespace.
fn host_with_mount(name: &str, mount: &str) -> Option<Host> {
    let mut host = Host::prepare("");
    host.config = format!("wrapper_root = {:?}\nreap_term_ms = 300", host.dir.path().join("wrappers"));
    std::fs::create_dir(host.state_dir()).unwrap();
    let line = format!("{mount} {}", host.state_dir().display());
    if !is_possible(name, "unshare", &["-m", "sh", "-ec", &line]) {
        return None;
    }
    host.mount_script = Some(line);
    host.start();
    Some(host)
}

fn tmpfs() -> Option<Host> {
    host_with_mount("mount a small tmpfs", "mount -t tmpfs -o size=2m,mode=700 none")
}

/// File system on a loop device, which can be aborted and frozen.
fn ext4() -> Option<(Host, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let path = image.to_str().unwrap();
    if !is_possible("make an ext4 file system", "mkfs.ext4", &["-q", "-F", path]) {
        return None;
    }
    Some((host_with_mount("mount the file system", &format!("mount -o loop {path}"))?, dir))
}

/// Path of the state directory as the supervisor sees it.
fn state_dir_in_namespace(host: &Host) -> PathBuf {
    Path::new(&format!("/proc/{}/root", host.pid())).join(host.state_dir().strip_prefix("/").unwrap())
}

/// Runs a program in the supervisor's mount namespace.
fn run_in_namespace(host: &Host, program: &str, args: &[&str]) {
    let pid = host.pid().to_string();
    let output = Command::new("nsenter").args(["-m", "-t", &pid, program]).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// Fills the disk to the last byte.
fn fill(host: &Host) -> PathBuf {
    let path = state_dir_in_namespace(host).join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for piece in [65_536, 4_096, 512, 1] {
        while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
    }
    path
}

async fn refused_spawn(gateway: &mut Client) -> String {
    let next = agent(&["cat"]);
    let refusal = gateway.call(Request::Spawn(next.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    assert!(pids_of(next.lease_id).is_empty());
    refusal.message
}

fn has_store_warning(host: &Host) -> bool {
    host.warnings().contains("the lease store cannot be written")
}

#[tokio::test]
async fn full_disk_refuses_spawns_and_allows_close() {
    let Some(mut host) = tmpfs() else { return };
    let mut gateway = host.gateway().connect().await;
    let living = gateway.start(agent(&["cat"])).await;
    let filler = fill(&host);
    let why = refused_spawn(&mut gateway).await;
    assert!(why.contains("full"), "{why}");
    assert!(has_store_warning(&host));
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || pids_of(living.lease_id).is_empty());
    gateway.state(living.lease_id, LeaseState::Closed).await;
    std::fs::remove_file(filler).unwrap();
    let next = agent(&["cat"]);
    assert_eq!(gateway.spawn(&next).await.state, LeaseState::Open, "recovery without intervention");
    assert!(!has_store_warning(&host));
    assert_eq!(host.stop(), Some(0));
}

/// Wrapper that waits for a file before it runs the real one.
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
async fn disk_full_at_bind_runs_nothing() {
    let Some(mut host) = tmpfs() else { return };
    host.crash();
    host.wrapper = Some(waiting_wrapper(host.dir.path()));
    host.start();
    let mut gateway = host.gateway().connect().await;
    let ran = host.dir.path().join("ran");
    let spec = script(&format!("touch {}; exec cat", ran.display()));
    let id = gateway.send(Request::Spawn(spec.clone())).await;
    eventually("the lease is reserved and the wrapper runs", || host.dir.path().join("here").exists());
    fill(&host);
    std::fs::write(host.dir.path().join("go"), "").unwrap();
    let refusal = gateway.reply(id).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable, "{refusal:?}");
    eventually("the wrapper is gone", || pids_of(spec.lease_id).is_empty());
    assert!(!ran.exists(), "Go before a durable binding");
}

#[tokio::test]
async fn read_only_disk_refuses_spawns_and_allows_close() {
    let Some((host, _image)) = ext4() else { return };
    let mut gateway = host.gateway().connect().await;
    let living = gateway.start(agent(&["cat"])).await;
    // As the kernel does after an error of an ext4 file system.
    run_in_namespace(&host, "mount", &["-o", "remount,abort", host.state_dir().to_str().unwrap()]);
    report(&refused_spawn(&mut gateway).await);
    assert!(has_store_warning(&host));
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || pids_of(living.lease_id).is_empty());
    gateway.state(living.lease_id, LeaseState::Closed).await;
}

#[test]
fn read_only_state_directory_is_refused_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    if !is_possible(
        "mount read-only",
        "unshare",
        &["-m", "sh", "-ec", &format!("mount -t tmpfs -o ro none {path}")],
    ) {
        return;
    }
    let mut host = Host::prepare("");
    std::fs::create_dir(host.state_dir()).unwrap();
    host.mount_script = Some(format!("mount -t tmpfs -o ro none {}", host.state_dir().display()));
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.contains("Read-only file system") && stdout.contains("state"), "{stdout}");
}

/// Blocks all writes to a file system until it is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(host: &Host) -> Self {
        let path = state_dir_in_namespace(host);
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

async fn is_closed_within(gateway: &mut Client, lease_id: LeaseId, wait: Duration) -> bool {
    let began = Instant::now();
    gateway.close(lease_id).await;
    eventually("the tree is gone", || pids_of(lease_id).is_empty());
    began.elapsed() < wait
}

#[tokio::test]
async fn hung_disk_delays_spawns_and_allows_close() {
    let Some((host, _image)) = ext4() else { return };
    if !is_possible("freeze a file system", "fsfreeze", &["--version"]) {
        return;
    }
    let mut gateway = host.gateway().connect().await;
    let (living, next) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    let frozen = Frozen::new(&host);
    let spawn = gateway.send(Request::Spawn(next.clone())).await;
    assert!(is_closed_within(&mut gateway, living.lease_id, Duration::from_secs(20)).await);
    gateway.state(living.lease_id, LeaseState::Closed).await;
    assert!(pids_of(next.lease_id).is_empty(), "started without a record");
    assert!(host.json(&["status"])["pid"].is_number(), "other requests are answered");
    drop(frozen);
    // The waiting spawn continues.
    assert!(matches!(gateway.reply(spawn).await, Ok(Reply::Spawned(_))));
    assert_eq!(pids_of(next.lease_id).len(), 2);
}

/// Another program holds the write lock of the store, so every commit fails.
#[tokio::test]
async fn locked_store_refuses_spawns_and_allows_close() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (living, next) = (agent(&["cat"]), agent(&["cat"]));
    gateway.spawn(&living).await;
    let blocked = host.rows();
    blocked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refusal = gateway.call(Request::Spawn(next.clone())).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
    assert!(pids_of(next.lease_id).is_empty());
    // H19: processes come before records.
    gateway.close(living.lease_id).await;
    eventually("the tree is gone", || pids_of(living.lease_id).is_empty());
    drop(blocked);
    // The refused spawn left no record, so the same spawn is new.
    assert_eq!(gateway.spawn(&next).await.state, LeaseState::Open);
}
