//! Agents that serve ACP over HTTP and WebSocket themselves: what their servers add to their own standard input and
//! output, and what the gateway adds. All servers listen on TCP, and one fake model answers all.

use super::viewer::{Server, Viewer, initialize_http};
use crate::latency::{sync_file, sync_ms};
use crate::pipe::Pipe;
use crate::report::{Limit, Report};
use crate::stats::{Sample, count};
use crate::turn::{Dialect, Turn};
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign;
use acp_tests::house::{House, Plan};
use acp_tests::service::Service;
use acp_tests::wait::LONG;
use acp_tests::world::{Agent, World};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;

const ROUNDS: usize = 100;
const CHUNKS: usize = 2_000;
const ROUNDS_OF_BURSTS: usize = 7;
const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";
/// The ways to an agent: its own standard input and output, its own server, the gateway.
const SIDES: [&str; 5] = ["stdio", "own WebSocket", "own HTTP", "gateway WebSocket", "gateway HTTP"];
/// Sides of the gateway, and of the agent's own server over the same transport.
const PAIRS: [(usize, usize); 2] = [(3, 1), (4, 2)];

/// An agent and its server.
struct Peer {
    name: &'static str,
    serve: [&'static str; 2],
    dialect: Dialect,
    /// Maximum delay of the first update by the gateway beyond the delay by the agent's own server, at the median.
    limit: Option<Limit>,
    agent: fn(&World, &str) -> Result<Agent, String>,
}

const PEERS: [Peer; 2] = [
    Peer {
        name: "qwen",
        serve: ["serve", "--no-web"],
        dialect: Dialect::QwenServe,
        limit: Some(Limit::AtMost(0.0)),
        agent: |world, url| foreign::find_install_dir().map(|_| foreign::agent(world, "qwen", url)),
    },
    // No limit: its server and the agent are one process, which no other server can be as near to.
    Peer {
        name: "goose",
        serve: ["serve", "--dangerously-unauthenticated"],
        dialect: Dialect::Acp,
        limit: None,
        agent: |world, url| {
            let program = crate::wrapper::target().join("peers/usr/bin/goose");
            let missing = || format!("{} is missing: run `make bench`", program.display());
            program.is_file().then(|| foreign::goose(world, &program, url)).ok_or_else(missing)
        },
    },
];

/// Measures each agent that is installed.
pub(super) fn measure(report: &mut Report) {
    for peer in &PEERS {
        let world = World::new();
        let model = FakeModel::start(&world);
        match (peer.agent)(&world, model.url()) {
            Ok(agent) => peer.measure(&agent, world, model, report),
            Err(reason) => report.fact(&format!("northbound_{}", peer.name), &format!("SKIPPED: {reason}")),
        }
    }
}

/// The sides of [`SIDES`], each with an open session: functions that run a turn.
type Sides = [Box<dyn FnMut(&str) -> Turn>; 5];

/// Runs a turn on each side; the side that begins changes with the round.
fn prompt_all(sides: &mut Sides, round: usize, text: &str) -> [Turn; 5] {
    let mut turns = [None; 5];
    for at in (0..5).map(|at| (at + round) % 5) {
        turns[at] = Some(sides[at](text));
    }
    turns.map(|turn| turn.unwrap_or_else(|| panic!("a side was left out")))
}

fn side(server: &Server, is_http: bool, cwd: &Path) -> Box<dyn FnMut(&str) -> Turn> {
    let viewer = if is_http { Viewer::http(server) } else { Viewer::websocket(server) };
    let mut viewer = viewer.start(cwd).with_session_stream();
    Box::new(move |text: &str| viewer.prompt(text))
}

impl Peer {
    fn measure(&self, agent: &Agent, world: World, model: FakeModel, report: &mut Report) {
        let agents = BTreeMap::from([(self.name, agent.clone())]);
        let house = Plan::default().gateway(LISTEN).build_in(world, &agents);
        let cwd = house.world.dir("work/project");
        let own = [(); 2].map(|()| self.serve(agent, &house, &cwd));
        let token = house.verb(&["token", "add", "figures", "--scope", "prompt"]);
        let token = token["token"].as_str().unwrap_or_else(|| panic!("no token: {token}")).to_owned();
        let path = format!("/acp/{}", self.name);
        let ours = Server::tcp(house.tcp_address(), path, token, Dialect::Acp);
        let mut pipe = Pipe::of(foreign::command(&house.world, agent, &cwd), &cwd);
        let mut sides: Sides = [
            Box::new(move |text: &str| pipe.prompt(text)),
            side(&own[0].1, false, &cwd),
            side(&own[1].1, true, &cwd),
            side(&ours, false, &cwd),
            side(&ours, true, &cwd),
        ];
        self.first_update(&mut sides, &house, report);
        self.bursts(&mut sides, report);
        drop(sides);
        for (service, _) in own {
            let _ = service.terminate(LONG);
        }
        drop(model);
        house.end();
    }

    /// Starts the agent's own server; each transport has one, so that no agent is warmer than the others.
    fn serve(&self, agent: &Agent, house: &House, cwd: &Path) -> (Service, Server) {
        // These servers do not tell a port that the system chose.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.unwrap_or_else(|e| panic!("no free port: {e}"));
        let mut agent = agent.clone();
        agent.command.truncate(1);
        agent.command.extend(self.serve.map(str::to_owned));
        agent.command.extend(["--port".to_owned(), address.port().to_string()]);
        let service = house.world.start_listener(foreign::command(&house.world, &agent, cwd), address);
        let server = Server::tcp(address, "/acp".to_owned(), String::new(), self.dialect);
        // Qwen Code accepts a WebSocket once the first request has started its agent.
        let _ = initialize_http(&server);
        (service, server)
    }

    fn first_update(&self, sides: &mut Sides, house: &House, report: &mut Report) {
        let about = format!("prompt to first update, warm session, {ROUNDS} interleaved rounds");
        report.part(&format!("northbound {} first update", self.name), &about);
        let mut file = sync_file(&house.world);
        let (mut disk, mut samples) = (Sample::default(), <[Sample; 5]>::default());
        for round in 0..=ROUNDS {
            let synced = sync_ms(&mut file);
            let turns = prompt_all(sides, round, "[[say hello]]");
            // The first round warms every side up.
            if round > 0 {
                disk.push(synced);
                samples.iter_mut().zip(turns).for_each(|(sample, turn)| sample.push(turn.first_ms()));
            }
        }
        for (percent, limit) in [(50, self.limit), (99, None)] {
            let stdio = samples[0].percentile(percent);
            let added = samples.each_ref().map(|sample| sample.percentile(percent) - stdio);
            report.figure(&format!("one sync of the disk, p{percent}"), disk.percentile(percent), "ms");
            report.figure(&format!("stdio, p{percent}"), stdio, "ms");
            for (name, added) in SIDES.iter().zip(added).skip(1) {
                report.figure(&format!("{name}, added, p{percent}"), added, "ms");
            }
            for (ours, own) in PAIRS {
                let name = format!("{}, added beyond {}, p{percent}", SIDES[ours], SIDES[own]);
                report.row(&name, added[ours] - added[own], "ms", limit);
            }
        }
    }

    fn bursts(&self, sides: &mut Sides, report: &mut Report) {
        let text = format!("[[chunks {CHUNKS} 0ms]]");
        let about = format!("`{text}`, prompt to end, medians of {ROUNDS_OF_BURSTS} interleaved rounds");
        report.part(&format!("northbound {} burst", self.name), &about);
        let mut rates = <[Sample; 5]>::default();
        let (mut ratios, mut late) = (rates.clone(), [0; 5]);
        for round in 0..=ROUNDS_OF_BURSTS {
            let turns = prompt_all(sides, round, &text);
            for (at, turn) in turns.iter().enumerate() {
                late[at] += turn.late + turns[0].chunks.saturating_sub(turn.chunks);
                if round > 0 {
                    rates[at].push(turn.whole_rate());
                    ratios[at].push(turn.whole_rate() / turns[0].whole_rate());
                }
            }
        }
        for (at, name) in SIDES.iter().enumerate() {
            report.figure(&format!("{name}, rate"), rates[at].median(), "updates/s");
            if at > 0 {
                report.figure(&format!("{name}, ratio to stdio"), ratios[at].median(), "times");
                report.figure(&format!("{name}, updates behind the answer"), count(late[at]), "updates");
            }
        }
    }
}
