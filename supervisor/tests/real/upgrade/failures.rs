//! Upgrades that fail at any step: the old program continues without loss.

use super::{
    Reader, assert_failed, await_descriptors, binary, counting_script, descriptors, lines, program,
    reconnect, try_upgrade, upgrade,
};
use crate::common::{Host, agent, eventually, script, terminal};
use acp_shared::protocol::Reply;
use acp_testkit::processes::children;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

#[tokio::test]
async fn unusable_program_does_not_take_over() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.input(spec.lease_id, 1, b"before").await.unwrap();
    gateway.read(spec.lease_id, 0, 6).await;
    let plain = host.dir.path().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    let garbage = host.dir.path().join("garbage");
    std::fs::write(&garbage, [0u8, 1, 2, 3]).unwrap();
    std::fs::set_permissions(&garbage, std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = r#"cat > /dev/null; echo '{"handover":2,"leases":0,"checksum":"00","version":"9.9.9"}'"#;
    for (what, path) in [
        ("not executable", plain),
        ("is missing", host.dir.path().join("missing")),
        ("unknown format", garbage),
        ("ends with 1", program(&host, "exit 1")),
        ("no output", program(&host, "exit 0")),
        ("is another program", PathBuf::from("/bin/echo")),
        ("has another version", program(&host, other)),
        ("floods", program(&host, "exec yes")),
        ("reads and is killed", program(&host, "kill -9 $$")),
        (
            "refuses its arguments",
            program(&host, &format!("exec {} handover-check -- serve --bad", binary().display())),
        ),
        ("hangs", program(&host, "trap '' TERM; sleep 600")),
    ] {
        assert_failed(&try_upgrade(&host, &path), what, "keeps running unchanged");
    }
    // No client was disconnected and no child process remains.
    assert_eq!(gateway.input(spec.lease_id, 2, b"after").await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(gateway.read(spec.lease_id, 6, 5).await, b"after");
    assert_eq!(gateway.leases().await.remove(0).adapter_pid, info.adapter_pid);
    eventually("no program is left", || children(host.pid()) == [info.wrapper_pid.unwrap()]);
    upgrade(&host);
    let mut gateway = reconnect(&identity).await;
    assert_eq!(gateway.attach(spec.lease_id, 11).await.stdin_written, 2);
}

/// The program passes the trial and fails after the export.
#[tokio::test]
async fn failed_takeover_restores_old_program() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (spec, parent) = (script(&counting_script(4_000)), agent(&["cat"]));
    let info = gateway.spawn(&spec).await;
    gateway.spawn(&parent).await;
    let running = gateway.start(terminal(&parent, "echo here; sleep 300", 100)).await;
    gateway.input(parent.lease_id, 1, b"before").await.unwrap();
    let before = descriptors(&host);
    let mut reader = Reader::start(&identity, gateway, spec.lease_id).await;
    reader.read_notice().await;
    let real = binary();
    let fails_second_check = format!("[ -e $0.1 ] && exit 1; touch $0.1; exec {} \"$@\"", real.display());
    let vanishes = format!("[ -e $0.1 ] && rm $0; touch $0.1; exec {} \"$@\"", real.display());
    for (text, message) in
        [(fails_second_check, "keeps running unchanged"), (vanishes, "the earlier program keeps running")]
    {
        let path = program(&host, &text);
        let mut command = host.cli_command(&["upgrade", "--json", "--program", path.to_str().unwrap()]);
        let upgrading = std::thread::spawn(move || command.output().unwrap());
        while !upgrading.is_finished() {
            reader.read_notice().await;
        }
        assert_failed(&upgrading.join().unwrap(), &text, message);
    }
    while reader.all.len() < 40_000 {
        reader.read_notice().await;
    }
    assert!(reader.all == lines(1, 4_000));
    assert!(reader.connections >= 3, "fewer than two handovers");
    let gateway = &mut reader.client;
    assert_eq!(gateway.tail(running.lease_id).await.bytes, b"here\n");
    assert_eq!(gateway.attach(parent.lease_id, 0).await.stdin_written, 1);
    assert!(gateway.leases().await.iter().any(|lease| lease.adapter_pid == info.adapter_pid));
    assert!(host.json(&["status"])["last_upgrade"]["error"].is_string());
    await_descriptors(&host, before);
    upgrade(&host);
}

/// The program passes all checks and then finds no wrapper in its directory.
#[tokio::test]
async fn program_failing_at_start_returns_control() {
    let mut host = Host::new();
    assert_eq!(host.stop(), Some(0));
    let command = host.command();
    let mut plain = std::process::Command::new(binary());
    plain.args(command.get_args().filter(|arg| *arg != "--wrapper" && *arg != crate::common::wrapper()));
    host.start_as(plain);
    let (identity, mut gateway) = host.connect_gateway().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    let without_wrapper = host.dir.path().join("alone");
    std::fs::copy(binary(), &without_wrapper).unwrap();
    assert_failed(&try_upgrade(&host, &without_wrapper), "alone", "there is no wrapper at");
    let mut gateway = reconnect(&identity).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.input(spec.lease_id, 1, b"still").await.unwrap();
    assert_eq!(gateway.read(spec.lease_id, 0, 5).await, b"still");
    assert_eq!(gateway.leases().await.remove(0).adapter_pid, info.adapter_pid);
    let program = std::fs::read_link(format!("/proc/{}/exe", host.pid())).unwrap();
    assert_eq!(program, binary().canonicalize().unwrap(), "the program changed");
    upgrade(&host);
}

/// The program passes all checks and panics right before it takes over.
#[tokio::test]
async fn program_panicking_late_returns_control() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    gateway.input(spec.lease_id, 1, b"before").await.unwrap();
    let program = binary().with_file_name("examples").join("panic_on_takeover");
    assert!(program.exists(), "`cargo build -p acp-supervisor --examples` builds {}", program.display());
    assert_failed(&try_upgrade(&host, &program), "panic", "the program panicked: takeover fails");
    let mut gateway = reconnect(&identity).await;
    let attached = gateway.attach(spec.lease_id, 0).await;
    assert_eq!((attached.stdin_written, attached.stdout_end), (1, 6));
    assert_eq!(gateway.read(spec.lease_id, 0, 6).await, b"before");
    assert_eq!(gateway.leases().await.remove(0).adapter_pid, info.adapter_pid);
    let program = std::fs::read_link(format!("/proc/{}/exe", host.pid())).unwrap();
    assert_eq!(program, binary().canonicalize().unwrap(), "the program changed");
    upgrade(&host);
}
