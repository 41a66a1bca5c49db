//! Gateways on other machines: TCP with mutual TLS on loopback.

use crate::common::{Client, Host, Identity, TIMEOUT, agent, eventually, is_alive, script};
use crate::scenarios::refusal_of;
use acp_shared::conn::{self, ConnError, Endpoint, TlsEndpoint};
use acp_shared::figures::{self, Figure};
use acp_shared::ids::{GatewayInstanceId, LeaseId, StartId};
use acp_shared::protocol::{
    Hello, Home, LeaseState, Marks, RefusalCode, Reply, Request, Role, ToClient, VERSION_MARKS,
};
use acp_shared::tls::ClientTls;
use acp_testkit::certificates::{Authority, CertificateFiles, localhost};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const HOST: &str = "acp://plane/host/one";
pub(crate) const CELL: &str = "acp://plane/cell/main";
pub(crate) const OTHER_CELL: &str = "acp://plane/cell/other";

/// Supervisor that listens on loopback, for the cells above.
pub(crate) struct RemoteHost {
    pub(crate) host: Host,
    pub(crate) ca: Authority,
    cell: CertificateFiles,
}

/// One start of a gateway of a cell.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) endpoint: Endpoint,
    pub(crate) id: GatewayInstanceId,
    pub(crate) epoch: u64,
    pub(crate) start_id: StartId,
    /// Committed output in its database.
    pub(crate) offsets: Vec<(LeaseId, u64)>,
    pub(crate) version: u16,
}

pub(crate) fn credentials(files: &CertificateFiles) -> Arc<ClientTls> {
    Arc::new(ClientTls::load(&files.cert, &files.key, &files.ca).unwrap())
}

impl RemoteHost {
    pub(crate) fn new(config: &str) -> Self {
        let mut remote = Self::prepare(config);
        remote.host.start_logged();
        remote
    }

    pub(crate) fn prepare(config: &str) -> Self {
        let mut host = Host::prepare("");
        let ca = Authority::new(host.dir.path(), "ca");
        // The URI names of others have no meaning; the DNS name is for clients without a verifier of ours.
        let files = ca.issue_with("host", &[HOST, "https://example.org"], localhost);
        let cell = ca.issue("cell", &[CELL]);
        // A supervisor that runs as root must be told whom agents run as; the test's directories are for root only.
        let user = if rustix::process::geteuid().is_root() {
            "run_as_user = \"root\"\nallow_root = true\n"
        } else {
            ""
        };
        let tenants =
            [CELL, OTHER_CELL].map(|cell| format!("[[tenant]]\ncell = \"{cell}\"\n{user}")).concat();
        host.config = format!(
            "{}{config}\nreap_term_ms = 300\nlisten = \"127.0.0.1:0\"\ntls_cert = {:?}\ntls_key = {:?}\ntls_ca = {:?}\n{tenants}",
            host.config, files.cert, files.key, files.ca
        );
        Self { host, ca, cell }
    }

    /// Address of the newest line in the log.
    pub(crate) fn address(&self) -> String {
        let log = self.host.log();
        let line =
            log.lines().rfind(|line| line.contains("listening for gateways on other machines")).unwrap();
        let (_, rest) = line.split_once("127.0.0.1:").unwrap();
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        format!("127.0.0.1:{port}")
    }

    pub(crate) fn endpoint(&self, files: &CertificateFiles) -> Endpoint {
        let (address, identity) = (self.address(), HOST.to_owned());
        Endpoint::Tls(TlsEndpoint { address, identity, config: credentials(files) })
    }

    /// First start of a new gateway of the cell.
    pub(crate) fn gateway(&self) -> Start {
        self.gateway_of(&self.cell)
    }

    pub(crate) fn gateway_of(&self, files: &CertificateFiles) -> Start {
        Start {
            endpoint: self.endpoint(files),
            id: GatewayInstanceId::mint(),
            epoch: 1,
            start_id: StartId::mint(),
            offsets: Vec::new(),
            version: VERSION_MARKS,
        }
    }
}

impl Start {
    pub(crate) fn hello(&self) -> Hello {
        let home = Home { machine_id: "elsewhere".into(), dev: 8, ino: 9 };
        let role = Role::Gateway { instance_id: self.id, epoch: self.epoch, home };
        Hello { version_min: self.version, version_max: self.version, features: vec![], role, secret: None }
    }

    pub(crate) async fn connect(&self) -> Result<Client, ConnError> {
        if self.version < VERSION_MARKS {
            let (conn, welcome) = conn::open(&self.endpoint, self.hello(), TIMEOUT).await?;
            return Ok(Client::new(conn, welcome, None));
        }
        let marks = Marks {
            start_id: self.start_id,
            event_id: 0,
            offsets: self.offsets.clone(),
            accepts_loss: false,
        };
        let (conn, welcome) = conn::open_gateway(&self.endpoint, self.hello(), marks, TIMEOUT).await?;
        Ok(Client::new(conn, welcome, Some(self.epoch)))
    }

    /// The next start of the gateway.
    fn next(&self) -> Self {
        Self { epoch: self.epoch + 1, start_id: StartId::mint(), ..self.clone() }
    }
}

async fn ack(client: &mut Client, lease_id: LeaseId, offset: u64) {
    let body = Request::AckSynced { lease_id, offset, event_id: 1 };
    assert_eq!(client.call(body).await, Ok(Reply::Done));
}

fn code(result: Result<Client, ConnError>) -> RefusalCode {
    match result {
        Err(ConnError::RolledBack(rollback)) => rollback.refusal.code,
        other => refusal_of(other).code,
    }
}

#[tokio::test]
async fn remote_cell_runs_agents_over_tls() {
    let remote = RemoteHost::new("");
    let start = remote.gateway();
    let mut client = start.connect().await.unwrap();
    let mut spec = script("echo \"$HOME $SHELL ${LD_PRELOAD-none}\"; exec cat");
    spec.env.extend(
        [("HOME", "/of/the/gateway"), ("SHELL", "/no/shell"), ("LD_PRELOAD", "/x.so")]
            .map(|(k, v)| (k.into(), v.into())),
    );
    let info = client.spawn(&spec).await;
    assert_eq!(info.owner_uid, rustix::process::geteuid().as_raw());
    client.attach(spec.lease_id, 0).await;
    let mut greeting = Vec::new();
    while !greeting.ends_with(b"\n") {
        greeting.extend(client.output(spec.lease_id).await.1);
    }
    let greeting = String::from_utf8(greeting).unwrap();
    let own = own_home();
    assert!(greeting.starts_with(&format!("{own} /")) && greeting.ends_with(" none\n"), "{greeting}");
    let at = greeting.len() as u64;
    ack(&mut client, spec.lease_id, at).await;
    let line = [vec![b'x'; 2 << 20], b"\n".to_vec()].concat();
    assert_eq!(client.input(spec.lease_id, 1, &line).await, Ok(Reply::Written { seq: 1 }));
    assert!(client.read(spec.lease_id, at, line.len()).await == line);
    // The connection is cut before the acknowledgement: the same start reads the output again, and repeats its input.
    drop(client);
    let mut client = start.connect().await.unwrap();
    let attached = client.attach(spec.lease_id, at).await;
    assert_eq!((attached.stdout_base, attached.stdin_written), (at, 1));
    assert!(client.read(spec.lease_id, at, line.len()).await == line);
    assert_eq!(client.input(spec.lease_id, 1, &line).await, Ok(Reply::Written { seq: 1 }));
    assert_eq!(client.input(spec.lease_id, 2, b"y\n").await, Ok(Reply::Written { seq: 2 }));
    assert_eq!(client.read(spec.lease_id, at + line.len() as u64, 2).await, b"y\n");
    let Ok(Reply::Figures(all)) = client.call(Request::Figures).await else { panic!("no figures") };
    let value =
        |name: &str| all.iter().find(|figure: &&Figure| figure.name == name).map(|figure| figure.value);
    // 900 s, twice the silence of 30 s, 5 s until the owner looks, and the graces of the agent.
    let graces_s = spec.graces.total_ms().div_ceil(1_000);
    let want = (Some(900 + 60 + 5 + graces_s), Some(1));
    assert_eq!((value(figures::DETACHED_GRACE), value(figures::LIVING)), want);
    assert!(value(figures::MEMORY).unwrap() > 100_000_000);
    client.close(spec.lease_id).await;
    client.state(spec.lease_id, LeaseState::Closed).await;
}

/// Median time of a request and its answer.
async fn median_hop(client: &mut Client) -> Duration {
    let mut times = Vec::new();
    for _ in 0..1_000 {
        let began = std::time::Instant::now();
        client.call(Request::Status).await.unwrap();
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
async fn encryption_costs_little_time() {
    let remote = RemoteHost::new("");
    let mut local = remote.host.gateway().connect().await;
    let mut far = remote.gateway().connect().await.unwrap();
    let (of_socket, of_tls) = (median_hop(&mut local).await, median_hop(&mut far).await);
    println!("median of a request and its answer: socket {of_socket:?}, TLS {of_tls:?}");
    assert!(of_tls < of_socket + Duration::from_millis(5), "socket {of_socket:?}, TLS {of_tls:?}");
}

/// Home directory of the user that the test runs as.
fn own_home() -> String {
    let user = std::fs::read_to_string("/etc/passwd").unwrap();
    let uid = rustix::process::geteuid().as_raw().to_string();
    let entry = user.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|entry| entry[2] == uid);
    entry.unwrap()[5].to_owned()
}

#[tokio::test]
async fn epoch_of_remote_decides_alone() {
    let mut remote = RemoteHost::new("");
    let first = Start { epoch: 5, ..remote.gateway() };
    let mut old = first.connect().await.unwrap();
    let spec = agent(&["cat"]);
    old.spawn(&spec).await;
    let lower = Start { epoch: 4, ..first.clone() };
    let other_start = Start { start_id: StartId::mint(), ..first.clone() };
    assert_eq!(code(lower.connect().await), RefusalCode::EpochStale);
    assert_eq!(code(other_start.connect().await), RefusalCode::RolledBack);
    assert_eq!(
        old.input(spec.lease_id, 1, b"a\n").await,
        Ok(Reply::Written { seq: 1 }),
        "it stays connected"
    );
    // The same start comes back, though its earlier connection is open.
    let mut again = first.connect().await.unwrap();
    let last = tokio::time::timeout(TIMEOUT, old.conn.receiver.recv()).await.unwrap();
    assert!(matches!(last, Ok(Some(ToClient::Refused(refusal))) if refusal.code == RefusalCode::EpochStale));
    // A higher epoch replaces it, though its process lives: this one.
    let second = Start { offsets: vec![(spec.lease_id, 0)], ..first.next() };
    let mut new = second.connect().await.unwrap();
    again.try_call(Request::CloseLease { lease_id: spec.lease_id, reason: "late".into() }).await;
    assert_eq!(new.leases().await[0].state, LeaseState::Open, "a superseded gateway closes nothing");
    // Acting requests of an older epoch are refused on any connection.
    new.epoch = Some(5);
    for body in crate::scenarios::requests_about(spec.lease_id).into_iter().filter(Request::changes_lease) {
        assert_eq!(new.call(body.clone()).await.unwrap_err().code, RefusalCode::EpochStale, "{body:?}");
    }
    assert_eq!(new.call(Request::Spawn(agent(&["cat"]))).await.unwrap_err().code, RefusalCode::EpochStale);
    drop(new);
    assert_eq!(code(first.connect().await), RefusalCode::RolledBack, "nobody is connected");
    remote.host.crash();
    remote.host.start_logged();
    let first = Start { endpoint: remote.gateway().endpoint, ..first };
    assert_eq!(code(first.connect().await), RefusalCode::RolledBack, "the epoch is on disk");
    first.next().next().connect().await.unwrap();
}

#[tokio::test]
async fn instance_of_a_remote_cell_is_taken_by_nobody_else() {
    let remote = RemoteHost::new("");
    let start = remote.gateway();
    let mut client = start.connect().await.unwrap();
    client.spawn(&agent(&["cat"])).await;
    let other = remote.gateway_of(&remote.ca.issue("other", &[OTHER_CELL]));
    let other = Start { id: start.id, epoch: 9, ..other };
    assert_eq!(code(other.connect().await), RefusalCode::InstanceOfOtherUser);
    // A gateway of this machine and of the agents' user, with the secret of the supervisor.
    let local = Identity { id: start.id, epoch: 9, ..remote.host.gateway() };
    assert_eq!(code(local.try_connect().await), RefusalCode::InstanceOfOtherUser);
    let home = Home { machine_id: CELL.into(), dev: 0, ino: 0 };
    let liar = Identity { home, ..local };
    assert_eq!(code(liar.try_connect().await), RefusalCode::BadRequest);
    // Neither does a cell get the instance of a gateway of this machine.
    let of_machine = remote.host.gateway();
    let _connected = of_machine.connect().await;
    let thief = Start { id: of_machine.id, epoch: 9, ..start };
    assert_eq!(code(thief.connect().await), RefusalCode::InstanceOfOtherUser);
    assert_eq!(client.leases().await.len(), 1);
}

#[tokio::test]
async fn silent_gateway_is_given_up_and_agents_end_after_the_grace() {
    let remote = RemoteHost::new("remote_silence_ms = 600\ndetached_grace_ms = 600");
    let (talking, silent) = (remote.gateway(), remote.gateway());
    let (mut client, mut cut) = (talking.connect().await.unwrap(), silent.connect().await.unwrap());
    let kept = client.spawn(&agent(&["cat"])).await;
    let lost = cut.spawn(&agent(&["cat"])).await;
    // Nothing more comes from it, and its kernel acknowledges all the same.
    let until = std::time::Instant::now() + TIMEOUT;
    while is_alive(lost.adapter_pid.unwrap()) {
        assert!(std::time::Instant::now() < until, "the agent of a silent gateway lives on");
        client.call(Request::Status).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(is_alive(kept.adapter_pid.unwrap()));
    assert!(remote.host.log().contains("remote gateway timed out"), "{}", remote.host.log());
    let mut cut = silent.next().connect().await.unwrap();
    let ended = cut.leases().await.remove(0);
    assert_eq!(
        (ended.lease_id, ended.state_reason.as_str()),
        (lost.lease_id, "its gateway did not reconnect")
    );
}

/// A stale owner that comes back does not lengthen the promise of the host.
#[tokio::test]
async fn agents_of_a_remote_cell_are_not_held_for_a_stale_owner() {
    let remote = RemoteHost::new("detached_grace_ms = 500");
    let first = remote.gateway();
    first.connect().await.unwrap();
    let mut client = first.next().connect().await.unwrap();
    let info = client.spawn(&agent(&["cat"])).await;
    drop(client);
    assert_eq!(code(first.connect().await), RefusalCode::RolledBack);
    eventually("the agent ends after the grace", || !is_alive(info.adapter_pid.unwrap()));
}

#[tokio::test]
async fn upgraded_supervisor_listens_again() {
    let remote = RemoteHost::new("");
    let start = remote.gateway();
    let mut client = start.connect().await.unwrap();
    let spec = agent(&["cat"]);
    client.spawn(&spec).await;
    let before = remote.host.log().matches("listening for gateways").count();
    assert_eq!(remote.host.json(&["upgrade"])["error"], serde_json::Value::Null);
    eventually("it listens again", || remote.host.log().matches("listening for gateways").count() > before);
    let mut client = Start { endpoint: remote.gateway().endpoint, ..start }.connect().await.unwrap();
    assert_eq!(client.input(spec.lease_id, 1, b"a\n").await, Ok(Reply::Written { seq: 1 }));
    client.attach(spec.lease_id, 0).await;
    assert_eq!(client.read(spec.lease_id, 0, 2).await, b"a\n");
}
