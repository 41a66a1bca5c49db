//! Several gateways under one supervisor: each sees only its own leases.

use acp_shared::conn::{Client, ConnError};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{Hello, Home, LeaseInfo, RefusalCode, Reply, Request, Role, VERSION_MIN};
use acp_shared::redact::Secret;
use acp_tests::house::{AGENT, scripted};
use acp_tests::lease::Lease;
use acp_tests::service::Service;
use acp_tests::story::{check_answer, check_turn};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAMES: [&str; 2] = ["one", "two"];
const ANSWER: Duration = Duration::from_secs(20);

/// Two gateways under one supervisor, a session each.
struct Tenants {
    gateways: Vec<Option<Service>>,
    supervisor: Service,
    socket: PathBuf,
    keys: Vec<String>,
    world: World,
}

impl Tenants {
    fn new() -> Self {
        let world = World::new();
        for name in NAMES {
            world.configure(name, "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
        }
        let supervisor = world.supervisor();
        let socket = supervisor.socket();
        let gateways = NAMES.map(|name| Some(world.gateway(name, &socket))).into();
        let keys = NAMES.map(|name| world.spawn(name, AGENT, &format!("work/{name}"))).into();
        let tenants = Self { gateways, supervisor, socket, keys, world };
        for at in 0..NAMES.len() {
            let _ = tenants.lease(at);
        }
        tenants
    }

    /// The agent lease of one tenant.
    fn lease(&self, at: usize) -> Lease {
        eventually(SOON, "agent running", || {
            self.world.living_lease(&self.socket, &self.keys[at]).filter(|lease| lease.state() == "open")
        })
    }

    fn instance(&self, at: usize) -> GatewayInstanceId {
        GatewayInstanceId::parse(self.lease(at).text("gateway_instance_id")).unwrap()
    }

    fn kill(&mut self, at: usize) {
        if let Some(gateway) = self.gateways[at].take() {
            gateway.kill9();
        }
    }

    fn start(&mut self, at: usize) {
        self.gateways[at] = Some(self.world.gateway(NAMES[at], &self.socket));
    }

    /// Handshake as sent by the gateway of a state directory.
    fn hello(&self, at: usize, epoch: u64) -> Hello {
        let meta = std::fs::metadata(self.world.path(NAMES[at])).unwrap();
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let home = Home { machine_id: machine.trim().to_owned(), dev: meta.dev(), ino: meta.ino() };
        hello(&self.socket, Role::Gateway { instance_id: self.instance(at), epoch, home })
    }
}

/// Handshake with the supervisor's secret.
fn hello(socket: &Path, role: Role) -> Hello {
    let secret = std::fs::read_to_string(socket.with_file_name("secret")).ok();
    let secret = secret.map(|text| Secret::new(text.trim().to_owned()));
    Hello { version_min: VERSION_MIN, version_max: VERSION_MIN, features: Vec::new(), role, secret }
}

fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn leases(client: &mut Client) -> Vec<LeaseInfo> {
    match client.call(Request::ListLeases { detail: false }).await.unwrap() {
        Reply::Leases(leases) => leases,
        other => panic!("{other:?}"),
    }
}

fn refusal(result: Result<impl std::fmt::Debug, ConnError>) -> RefusalCode {
    match result {
        Err(ConnError::Refused(refusal)) => {
            assert!(refusal.message.len() > 10, "it says what to do: {refusal:?}");
            refusal.code
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn sessions(world: &World, name: &str) -> Vec<String> {
    let list: Value = world.cli(name, &["sessions", "list", "--all"]).ok().json();
    let keys = list.as_array().into_iter().flatten().filter_map(|view| view["session_key"].as_str());
    keys.map(str::to_owned).collect()
}

/// Acceptance point 6, through the command lines.
#[test]
fn each_gateway_sees_its_own_sessions_and_admin_sees_all_leases() {
    let tenants = Tenants::new();
    let Tenants { world, keys, socket, .. } = &tenants;
    let all = world.leases(socket);
    let mut seen: Vec<&str> = all.iter().map(|lease| lease.text("session_key")).collect();
    seen.sort_unstable();
    let mut want: Vec<&str> = keys.iter().map(String::as_str).collect();
    want.sort_unstable();
    assert_eq!(seen, want, "the admin sees both");
    assert_ne!(tenants.instance(0).to_string(), tenants.instance(1).to_string());
    for at in 0..2 {
        assert_eq!(sessions(world, NAMES[at]), [keys[at].clone()], "its own and nothing else");
        let foreign = world.cli(NAMES[at], &["prompt", &keys[1 - at], "hello?"]);
        assert_eq!((foreign.code, foreign.error_code().as_str()), (Some(4), "NO_SESSION"));
        let foreign = world.cli(NAMES[at], &["sessions", "close", &keys[1 - at]]);
        assert_eq!((foreign.code, foreign.error_code().as_str()), (Some(4), "NO_SESSION"));
    }
    let status = world.supervisor_cli(socket, &["status"]).ok().json();
    assert_eq!(status["gateways"].as_array().map(Vec::len), Some(2), "{status}");
}

/// Close, shutdown, SIGKILL and restart of one gateway never touch the other's processes.
#[test]
fn gateway_never_touches_processes_of_another() {
    let mut tenants = Tenants::new();
    let other = tenants.lease(1);
    let mut turn = tenants.world.follow("two", &["prompt", &tenants.keys[1], "chunks 100000 pace_ms=10"]);
    let _ = turn.events_until(SOON, |event| event["type"] == "text_delta");
    let unharmed = |tenants: &Tenants| {
        let now = tenants.lease(1);
        assert_eq!((now.id(), now.adapter_pid()), (other.id(), other.adapter_pid()));
    };
    let mine = tenants.lease(0);
    let key = tenants.keys[0].clone();
    let _ = tenants.world.cli("one", &["sessions", "close", &key]).ok();
    until(LONG, "process tree gone", || mine.processes().is_empty());
    unharmed(&tenants);
    tenants.keys[0] = tenants.world.spawn("one", AGENT, "work/one");
    let again = tenants.lease(0);
    tenants.kill(0);
    unharmed(&tenants);
    tenants.start(0);
    unharmed(&tenants);
    assert_eq!(tenants.lease(0).adapter_pid(), again.adapter_pid(), "its own is still there, too");
    let gateway = tenants.gateways[0].take().unwrap();
    assert_eq!(gateway.terminate(LONG), Some(0));
    unharmed(&tenants);
    let seen = turn.events_until(SOON, |event| event["type"] == "text_delta");
    assert!(!seen.is_empty(), "the other's turn streams on");
    let _ = tenants.world.cli("two", &["sessions", "cancel", &tenants.keys[1]]).ok();
    assert_eq!(turn.finish(LONG).code, Some(0));
    check_answer(&tenants.world.prompt("two", &tenants.keys[1], "still here"), ["echo: still here"]);
}

/// Protocol level: with the instance id of one gateway, leases of the other are invisible and cannot be changed.
#[test]
fn supervisor_isolates_tenants() {
    let mut tenants = Tenants::new();
    let (mine, theirs) = (tenants.lease(0), tenants.lease(1));
    let their_id = LeaseId::parse(theirs.id()).unwrap();
    // The instance id must be free: its gateway is killed.
    let hello = tenants.hello(0, u64::MAX / 2);
    tenants.kill(0);
    block(async {
        let mut client = eventually_open(&tenants.socket, hello).await;
        let seen: Vec<String> =
            leases(&mut client).await.iter().map(|lease| lease.lease_id.to_string()).collect();
        assert_eq!(seen, [mine.id()], "its own and nothing else");
        for request in [
            Request::Attach { lease_id: their_id, from_offset: 0 },
            Request::Input { lease_id: their_id, seq: 1, bytes: b"x\n".to_vec() },
            Request::Ack { lease_id: their_id, offset: 1 },
            Request::Tail { lease_id: their_id },
            Request::CloseLease { lease_id: their_id, reason: "not mine".to_owned() },
            Request::Release { lease_id: their_id },
            Request::Verify { lease_id: their_id },
        ] {
            let said = format!("{request:?}");
            assert_eq!(refusal(client.call(request).await), RefusalCode::LeaseUnknown, "{said}");
        }
        assert_eq!(refusal(client.call(Request::Reap { dry_run: true }).await), RefusalCode::NotAuthorised);
        let home = tenants.world.path("supervisor").to_string_lossy().into_owned();
        assert_eq!(refusal(client.call(Request::Shutdown { state_dir: home }).await), RefusalCode::InUse);
    });
    let now = tenants.lease(1);
    assert_eq!((now.id(), now.adapter_pid()), (theirs.id(), theirs.adapter_pid()), "the other lives on");
    check_turn(&tenants.world.prompt("two", &tenants.keys[1], "still here"), "end_turn");
}

/// Opens a connection, and retries until the supervisor has noticed the killed one.
async fn eventually_open(socket: &Path, hello: Hello) -> Client {
    let end = tokio::time::Instant::now() + SOON;
    loop {
        match Client::open(socket, hello.clone(), ANSWER).await {
            Ok(client) => return client,
            Err(ConnError::Refused(refusal)) if refusal.code == RefusalCode::InstanceBusy => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(tokio::time::Instant::now() < end, "the instance id stays busy");
        tokio::task::yield_now().await;
    }
}

/// A second client with an instance id in use is refused, and the first one is not affected.
#[test]
fn an_instance_id_in_use_is_refused() {
    let tenants = Tenants::new();
    let mut turn = tenants.world.follow("one", &["prompt", &tenants.keys[0], "chunks 100000 pace_ms=10"]);
    let _ = turn.events_until(SOON, |event| event["type"] == "text_delta");
    block(async {
        for epoch in [0, 1, u64::MAX / 2] {
            let opened = Client::open(&tenants.socket, tenants.hello(0, epoch), ANSWER).await;
            assert_eq!(refusal(opened), RefusalCode::InstanceBusy, "epoch {epoch}");
        }
        // The same id from another directory is a copy.
        let mut copied = tenants.hello(0, u64::MAX / 2);
        if let Role::Gateway { home, .. } = &mut copied.role {
            home.ino += 1;
        }
        let code = refusal(Client::open(&tenants.socket, copied, ANSWER).await);
        assert!(matches!(code, RefusalCode::CloneDetected | RefusalCode::InstanceBusy), "{code}");
    });
    let lease = tenants.lease(0);
    let _ = turn.events_until(SOON, |event| event["type"] == "text_delta");
    let _ = tenants.world.cli("one", &["sessions", "cancel", &tenants.keys[0]]).ok();
    assert_eq!(turn.finish(LONG).code, Some(0));
    assert_eq!(tenants.lease(0).id(), lease.id());
}

/// A gateway on a copied state directory refuses to start, and the original continues.
#[test]
fn a_copied_state_directory_is_refused() {
    let mut tenants = Tenants::new();
    tenants.kill(0);
    let copy = tenants.world.path("copy");
    let copied =
        std::process::Command::new("cp").arg("-a").arg(tenants.world.path("one")).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()));
    tenants.start(0);
    let socket = tenants.socket.to_string_lossy().into_owned();
    let refused = tenants.world.cli("copy", &["serve", "--supervisor-socket", &socket]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error = refused.error();
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("adopt")),
        "the way out is named: {error}"
    );
    check_turn(&tenants.world.prompt("one", &tenants.keys[0], "still here"), "end_turn");
    // After `adopt` the copy has its own identity and does not touch running agents.
    let _ = tenants.world.cli("copy", &["adopt"]).ok();
    let lease = tenants.lease(0);
    let third = tenants.world.gateway("copy", &tenants.socket);
    until(SOON, "gateway serving", || tenants.world.cli("copy", &["sessions", "list"]).code == Some(0));
    assert_eq!(tenants.lease(0).adapter_pid(), lease.adapter_pid());
    check_turn(&tenants.world.prompt("one", &tenants.keys[0], "and now"), "end_turn");
    assert_eq!(third.terminate(LONG), Some(0));
}

/// Gateways end one after the other; agents stay until the supervisor ends, and then no process is left.
#[test]
fn gateway_shutdown_keeps_agents_until_supervisor_ends() {
    let mut tenants = Tenants::new();
    let trees: Vec<Lease> = (0..2).map(|at| tenants.lease(at)).collect();
    for (gateway, lease) in tenants.gateways.iter_mut().zip(&trees) {
        assert_eq!(gateway.take().unwrap().terminate(LONG), Some(0));
        assert!(!lease.processes().is_empty(), "agents outlive their gateway");
    }
    let Tenants { supervisor, world, .. } = tenants;
    assert_eq!(supervisor.terminate(LONG), Some(0));
    for lease in trees {
        assert_eq!(lease.processes(), [], "{lease:?}");
    }
    assert_eq!(world.processes(), []);
}
