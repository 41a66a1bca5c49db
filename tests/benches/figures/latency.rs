//! Time from a prompt to the first chunk of the answer, on a warm session.

use crate::cli;
use crate::house::{GATEWAY, House};
use crate::pipe::Pipe;
use crate::report::{Limit, Report};
use crate::stats::{Sample, ms};
use acp_tests::world::World;
use std::fs::File;
use std::io::Write as _;
use std::time::Instant;

const ROUNDS: usize = 50;
const PROMPT: &str = "hello";
/// Maximum delay of the first chunk compared with the raw pipe, in milliseconds.
const LATER_MS_MAX: f64 = 10.0;

/// Measures the raw pipe, the API and the command line, one after the other in each round.
pub(crate) fn measure(house: &mut House, report: &mut Report) {
    report.part("latency", &format!("prompt to first chunk, warm session, {ROUNDS} interleaved rounds"));
    let mut pipe = Pipe::start(&house.world, "work/latency-raw");
    let key = house.warm("work/latency");
    let _ = pipe.prompt(PROMPT);
    let mut file = sync_file(&house.world);
    let mut disk = Sample::default();
    let (mut raw, mut api, mut cli) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        disk.push(sync_ms(&mut file));
        raw.push(pipe.prompt(PROMPT).first_ms());
        api.push(house.api.prompt(&key, PROMPT).first_ms());
        cli.push(cli::prompt(&house.world, GATEWAY, &key, PROMPT).first_ms());
    }
    house.close(&key);
    for (name, sample) in [
        ("one sync of the disk", &disk),
        ("raw pipe", &raw),
        ("api", &api),
        ("cli, its start included", &cli),
    ] {
        report.figure(&format!("{name}, median"), sample.median(), "ms");
        report.figure(&format!("{name}, p90"), sample.p90(), "ms");
    }
    for (name, sample) in [("api", &api), ("cli", &cli)] {
        let limit = Limit::AtMost(LATER_MS_MAX);
        report.limited(&format!("{name} minus raw, median"), sample.median() - raw.median(), "ms", limit);
        report.limited(&format!("{name} minus raw, p90"), sample.p90() - raw.p90(), "ms", limit);
    }
}

/// Creates the file of [`sync_ms`].
///
/// # Panics
/// When it cannot be created.
pub(crate) fn sync_file(world: &World) -> File {
    let path = world.path("sync");
    File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Time of writing and syncing a page, with the system call that the store uses. Commits wait for that, so a
/// busy disk shows in every figure except the raw pipe's; this figure is the disk's part.
///
/// # Panics
/// When the file cannot be written.
pub(crate) fn sync_ms(file: &mut File) -> f64 {
    let began = Instant::now();
    let done = file.write_all(&[0; 4096]).and_then(|()| file.sync_all());
    done.unwrap_or_else(|e| panic!("cannot write: {e}"));
    ms(began.elapsed())
}
