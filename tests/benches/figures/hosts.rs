//! What TLS adds to a request: the same supervisor over its Unix socket and over TCP with mutual TLS, in turns.

#[expect(dead_code, reason = "the tests of hosts use the rest")]
#[path = "../../tests/hosts/plane.rs"]
mod plane;

use crate::report::{Limit, Report};
use crate::stats::Sample;
use acp_shared::conn::{Client, Endpoint, TlsEndpoint};
use acp_shared::ids::{GatewayInstanceId, StartId};
use acp_shared::protocol::{Hello, Home, Marks, Request, Role, VERSION_MAX};
use acp_shared::redact::Secret;
use acp_shared::tls::ClientTls;
use acp_tests::world::World;
use plane::Plane;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of requests over each.
const ROUNDS: usize = 4_000;
/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Most that TLS may add to the median, in microseconds.
const ADDED_US: f64 = 50.0;

pub(crate) fn measure(report: &mut Report) {
    report.part("hosts", &format!("a request to a supervisor and its answer, {ROUNDS} interleaved rounds"));
    let world = World::new();
    let plane = Plane::new(&world);
    let host = plane.host(&world, "host1", "");
    let [cert, key, ca] = plane.cell_files();
    let tls = ClientTls::load(&cert, &key, &ca).unwrap_or_else(|e| panic!("{e}"));
    let (address, identity) = (host.address.to_string(), "acp://test/host/host1".to_owned());
    let remote = Endpoint::Tls(TlsEndpoint { address, identity, config: Arc::new(tls) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|e| panic!("no runtime: {e}"));
    let socket = host.socket();
    let (local, remote) = runtime.block_on(async {
        let mut clients =
            [open(Endpoint::Socket(socket.clone()), &socket).await, open(remote, &socket).await];
        let mut samples = [Sample::default(), Sample::default()];
        for _ in 0..ROUNDS {
            for (client, sample) in clients.iter_mut().zip(&mut samples) {
                let began = Instant::now();
                let answer = client.call(Request::ListLeases { detail: false }).await;
                answer.unwrap_or_else(|e| panic!("no answer: {e}"));
                sample.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [local, remote] = samples;
        (local, remote)
    });
    for (name, sample) in [("Unix socket", &local), ("TLS", &remote)] {
        report.figure(&format!("{name}, median"), sample.median(), "us");
        report.figure(&format!("{name}, p90"), sample.p90(), "us");
    }
    let added = remote.median() - local.median();
    report.limited("added by TLS, median", added, "us", Limit::AtMost(ADDED_US));
    host.end();
}

/// Connects as a gateway of its own.
async fn open(endpoint: Endpoint, socket: &Path) -> Client {
    let home = Home { machine_id: "bench".to_owned(), dev: 1, ino: 1 };
    let role = Role::Gateway { instance_id: GatewayInstanceId::mint(), epoch: 1, home };
    let secret = std::fs::read_to_string(socket.with_file_name("secret")).ok();
    let secret = secret.map(|text| Secret::new(text.trim().to_owned()));
    let hello =
        Hello { version_min: VERSION_MAX, version_max: VERSION_MAX, features: Vec::new(), role, secret };
    let marks = Marks { start_id: StartId::mint(), event_id: 0, offsets: Vec::new(), accepts_loss: false };
    let opened = Client::open_gateway(endpoint, hello, marks, DEADLINE).await;
    opened.unwrap_or_else(|e| panic!("not admitted: {e}"))
}
