//! `make bench`: costs of the product, measured next to their baselines in one run.
//!
//! Every comparison consists of interleaved pairs: a machine that becomes slower in between slows both sides.
//! The output is a table for people and, as the last line, one JSON object with every figure. Missed limits
//! are reported, and change the exit code with `--check` only. Nothing here is a test: no figure decides a
//! suite.
//!
//! Arguments: names of parts (`latency`, `throughput`, `cost`, `supervisor`, `wrapper`, `discord`, `northbound`, `acpx`, `hosts`; `plane` for
//! the control plane, or one of its parts: `prompts`, `streams`, `lines`, `idle`, `boot`; none means all of these; `scale`,
//! `engines`, `model` and `take_over` run only if they are named), `--check`.

mod acpx;
mod api;
mod cli;
mod cost;
mod discord;
mod hosts;
mod house;
mod latency;
mod leases;
mod northbound;
mod orphans;
mod peers;
mod pipe;
mod plane;
mod proc;
mod report;
mod stats;
mod supervisor;
mod throughput;
mod turn;
mod wrapper;

use house::House;
use report::Report;
use std::process::ExitCode;

/// The parts other than those of the control plane ([`plane::PARTS`]).
const PARTS: [&str; 9] =
    ["latency", "throughput", "cost", "supervisor", "wrapper", "discord", "northbound", "acpx", "hosts"];
/// The parts that need a gateway.
const OF_GATEWAY: [&str; 3] = ["latency", "throughput", "cost"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut check = false;
    let mut wanted = Vec::new();
    for arg in &args {
        match arg.as_str() {
            // Cargo passes it to every bench target.
            "--bench" => {}
            "--check" => check = true,
            "plane" => wanted.extend(plane::PARTS),
            part if PARTS.contains(&part) || plane::PARTS.contains(&part) || plane::NAMED.contains(&part) => {
                wanted.push(part);
            }
            other => {
                let parts = [PARTS.as_slice(), &["plane"], &plane::PARTS, &plane::NAMED].concat();
                eprintln!("{other}: expected --check or one of {}", parts.join(", "));
                return ExitCode::from(2);
            }
        }
    }
    if wanted.is_empty() {
        wanted = [PARTS.as_slice(), &plane::PARTS].concat();
    }
    let mut report = Report::start();
    if wanted.iter().any(|part| OF_GATEWAY.contains(part)) {
        let mut house = House::build();
        report.fact("durability", &house.durability());
        report.fact("journal_mode", &house.journal_mode());
        report.fact("file_system", &house.file_system());
        for part in &wanted {
            match *part {
                "latency" => latency::measure(&mut house, &mut report),
                "throughput" => throughput::measure(&mut house, &mut report),
                "cost" => cost::measure(&mut house, &mut report),
                _ => {}
            }
        }
        house.end();
    }
    plane::measure(&wanted, &mut report);
    if wanted.contains(&"supervisor") {
        supervisor::measure(&mut report);
    }
    if wanted.contains(&"wrapper") {
        wrapper::measure(&mut report);
    }
    if wanted.contains(&"discord") {
        discord::measure(&mut report);
    }
    if wanted.contains(&"northbound") {
        northbound::measure(&mut report);
    }
    if wanted.contains(&"acpx") {
        acpx::measure(&mut report);
    }
    if wanted.contains(&"hosts") {
        hosts::measure(&mut report);
    }
    let missed = report.finish();
    if check && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
