//! Clients that speak ACP to the gateway, beside the same agent's own standard input and output.

mod crowd;
mod peers;
mod viewer;

use crate::house::{GATEWAY, House};
use crate::latency::{sync_file, sync_ms};
use crate::pipe::Pipe;
use crate::proc::cpu_ms;
use crate::report::{Limit, Report};
use crate::stats::{Sample, count, ms, per_second};
use crate::turn::Turn;
use std::time::Instant;
use viewer::{Server, Viewer};

const ROUNDS: usize = 100;
/// Maximum delay of the first update beyond one durable commit, at the median, in milliseconds.
const LATER_MS_MAX: f64 = 1.0;
const CHUNKS: usize = 2_000;
const ROUNDS_OF_BURSTS: usize = 7;
/// Pause between the chunks of an agent that is as fast as the fastest models, in milliseconds.
const PACE_MS: usize = 1;
/// Minimum rate of a paced burst compared with the agent's own output.
const PACED_MIN: f64 = 0.95;
/// Minimum rate with two clients compared with one.
const OF_TWO_MIN: f64 = 0.9;
const RESUMED: usize = 100_000;

/// Measures all figures.
pub(crate) fn measure(report: &mut Report) {
    let mut house = House::build();
    first_update(&house, report);
    bursts(&house, report);
    second_client(&house, report, "", Some(Limit::AtLeast(OF_TWO_MIN)));
    second_client(&house, report, &format!(" pace {PACE_MS}"), None);
    resume(&mut house, report);
    house.end();
    crowd::measure(report);
    peers::measure(report);
}

/// The bridge of editors.
fn bridge(house: &House, cwd: &str) -> Pipe {
    let mut command = house.world.command("acp-gateway");
    command.arg("--state-dir").arg(house.world.path(GATEWAY)).args(["acp", "--agent", "demo"]);
    Pipe::of(command, &house.world.dir(cwd))
}

fn websocket(house: &House, cwd: &str) -> Viewer {
    Viewer::websocket(&Server::demo(&house.gateway.socket())).start(&house.world.dir(cwd))
}

fn http(house: &House, cwd: &str) -> Viewer {
    Viewer::http(&Server::demo(&house.gateway.socket())).start(&house.world.dir(cwd)).with_session_stream()
}

fn first_update(house: &House, report: &mut Report) {
    report.part(
        "northbound first update",
        &format!("prompt to first update, warm session, {ROUNDS} interleaved rounds"),
    );
    let mut file = sync_file(&house.world);
    let mut pipe = Pipe::start(&house.world, "work/first-raw");
    let (mut ws, mut sse) = (websocket(house, "work/first-ws"), http(house, "work/first-sse"));
    let mut editor = bridge(house, "work/first-stdio");
    let (mut disk, mut raw) = (Sample::default(), Sample::default());
    let mut sides = [Sample::default(), Sample::default(), Sample::default()];
    for round in 0..=ROUNDS {
        let synced = sync_ms(&mut file);
        let alone = pipe.prompt("hello").first_ms();
        let firsts = [ws.prompt("hello"), sse.prompt("hello"), editor.prompt("hello")];
        // The first round warms every side up.
        if round > 0 {
            disk.push(synced);
            raw.push(alone);
            sides.iter_mut().zip(firsts).for_each(|(sample, turn)| sample.push(turn.first_ms()));
        }
    }
    for (percent, limit) in [(50, Some(Limit::AtMost(LATER_MS_MAX))), (99, None)] {
        let (disk, raw) = (disk.percentile(percent), raw.percentile(percent));
        report.figure(&format!("one sync of the disk, p{percent}"), disk, "ms");
        report.figure(&format!("agent's stdio, p{percent}"), raw, "ms");
        for (name, sample) in ["WebSocket", "HTTP", "stdio"].iter().zip(&sides) {
            let added = sample.percentile(percent) - raw;
            report.figure(&format!("{name}, added, p{percent}"), added, "ms");
            let later = format!("{name}, added beyond one sync, p{percent}");
            match limit {
                Some(limit) => report.limited(&later, added - disk, "ms", limit),
                None => report.figure(&later, added - disk, "ms"),
            }
        }
    }
}

/// Rates of the sides in each round, and updates behind an answer.
#[derive(Default)]
struct Rates {
    raw: Sample,
    sides: [Sample; 3],
    ratios: [Sample; 3],
    late: usize,
}

fn bursts(house: &House, report: &mut Report) {
    let mut pipe = Pipe::start(&house.world, "work/burst-raw");
    let (mut ws, mut sse) = (websocket(house, "work/burst-ws"), http(house, "work/burst-sse"));
    let mut editor = bridge(house, "work/burst-stdio");
    let fast = format!("stream {CHUNKS}");
    let paced = format!("stream {CHUNKS} pace {PACE_MS}");
    for (name, text, limit) in
        [("northbound burst", fast, None), ("northbound paced burst", paced, Some(Limit::AtLeast(PACED_MIN)))]
    {
        report.part(
            name,
            &format!("`{text}`, prompt to answer, medians of {ROUNDS_OF_BURSTS} interleaved rounds"),
        );
        let mut rates = Rates::default();
        for round in 0..=ROUNDS_OF_BURSTS {
            let alone = pipe.prompt(&text).whole_rate();
            let turns = [ws.prompt(&text), sse.prompt(&text), editor.prompt(&text)];
            rates.late += turns.iter().map(|turn| CHUNKS.saturating_sub(turn.chunks)).sum::<usize>();
            if round > 0 {
                rates.raw.push(alone);
                for (at, turn) in turns.iter().enumerate() {
                    rates.sides[at].push(turn.whole_rate());
                    rates.ratios[at].push(turn.whole_rate() / alone);
                }
            }
        }
        for (at, name) in ["WebSocket", "HTTP", "stdio"].iter().enumerate() {
            let ours = (rates.sides[at].median(), "updates/s");
            let ratio = (rates.ratios[at].median(), limit);
            report.against(name, ours, ("agent's stdio", rates.raw.median()), ratio);
        }
        report.limited("updates behind the answer", count(rates.late), "updates", Limit::AtMost(0.0));
    }
}

fn second_client(house: &House, report: &mut Report, pace: &str, limit: Option<Limit>) {
    let text = format!("stream {CHUNKS}{pace}");
    report.part(
        if pace.is_empty() { "northbound second client" } else { "northbound second client, paced" },
        &format!("`{text}` read by one client and by two, medians of {ROUNDS_OF_BURSTS} interleaved rounds"),
    );
    let mut first = websocket(house, "work/second");
    let mut alone = websocket(house, "work/second-alone");
    let mut second = Viewer::websocket(&Server::demo(&house.gateway.socket())).load(&first.session, |_| {});
    let _ = (first.prompt("hello"), second.watch(), alone.prompt("hello"));
    let (mut one, mut two, mut ratio, mut cpu) =
        (Sample::default(), Sample::default(), Sample::default(), Sample::default());
    for _ in 0..ROUNDS_OF_BURSTS {
        let pid = house.gateway.pid();
        let before = cpu_ms(pid);
        let single = alone.prompt(&text);
        let between = cpu_ms(pid);
        let [turn, other] = std::thread::scope(|scope| {
            let watching = scope.spawn(|| second.watch());
            let turn = first.prompt(&text);
            [turn, watching.join().unwrap_or_else(|_| panic!("the second client failed"))]
        });
        assert_eq!((single.chunks, turn.chunks, other.chunks), (CHUNKS, CHUNKS, CHUNKS));
        one.push(single.whole_rate());
        two.push(turn.whole_rate());
        ratio.push(turn.whole_rate() / single.whole_rate());
        cpu.push((cpu_ms(pid) - between) / (between - before));
    }
    let ours = (two.median(), "updates/s");
    report.against("two clients", ours, ("one client", one.median()), (ratio.median(), limit));
    report.figure("two clients, CPU of the gateway to one client", cpu.median(), "times");
}

fn resume(house: &mut House, report: &mut Report) {
    report.part(
        "northbound resume",
        &format!("load of a session with {RESUMED} updates by a new client, to its answer"),
    );
    let mut first = websocket(house, "work/resume");
    let turn: Turn = first.prompt(&format!("stream {RESUMED}"));
    assert_eq!(turn.chunks, RESUMED);
    let server = Server::demo(&house.gateway.socket());
    let (began, mut rows) = (Instant::now(), 0_usize);
    let journal = house.world.journal(GATEWAY);
    let sql = "SELECT payload_json FROM acp_events WHERE session_key = ?1 ORDER BY session_seq";
    let mut statement = journal.prepare(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    let mut found = statement.query([&first.session]).unwrap_or_else(|e| panic!("{sql}: {e}"));
    while let Some(row) = found.next().unwrap_or_else(|e| panic!("{sql}: {e}")) {
        let text: String = row.get(0).unwrap_or_else(|e| panic!("{sql}: {e}"));
        rows += usize::from(!text.is_empty());
    }
    let plain = began.elapsed();
    report.figure("plain read of the rows", ms(plain), "ms");
    for name in ["WebSocket", "HTTP"] {
        let viewer = if name == "HTTP" { Viewer::http(&server) } else { Viewer::websocket(&server) };
        let (began, mut chunks) = (Instant::now(), 0_usize);
        let _viewer = viewer.load(&first.session, |line| {
            chunks += usize::from(line.contains("\"agent_message_chunk\""));
        });
        let took = began.elapsed();
        assert_eq!(chunks, RESUMED, "of {rows} rows");
        report.figure(name, ms(took), "ms");
        report.figure(&format!("{name}, rate"), per_second(chunks, took), "updates/s");
        report.figure(&format!("{name}, ratio to a plain read"), ms(took) / ms(plain), "times");
    }
}
