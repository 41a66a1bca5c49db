//! Figures of the control plane, each as a ratio to the machine's own performance: issue "Control plane to
//! completion", "What must be shown" 4.

mod boot;
mod crowd;
mod engines;
mod ground;
mod line;
mod memory;
mod model;
mod plain;
mod prompts;
mod scale;
mod seed;
mod stream;
mod take_over;

use crate::report::Report;
use ground::Ground;
use plain::Plain;

/// Names of all parts, in their order.
pub(crate) const PARTS: [&str; 5] = ["prompts", "streams", "lines", "idle", "boot"];
/// The part that runs only if it is named: it takes minutes and gigabytes.
const SCALE: &str = "scale";
/// The part that needs a PostgreSQL, and runs only if it is named.
const ENGINES: &str = "engines";
/// The part that runs 1,000 agents for minutes, and runs only if it is named.
const MODEL: &str = "model";
/// The part that seeds a cell with 10,000 sessions, needs a PostgreSQL, and runs only if it is named.
const TAKE_OVER: &str = "take_over";
/// The parts that run only if they are named.
pub(crate) const NAMED: [&str; 4] = [SCALE, ENGINES, MODEL, TAKE_OVER];
/// The parts that share a gateway.
const TOGETHER: [&str; 3] = ["prompts", "streams", "lines"];

/// Measures the named parts.
pub(crate) fn measure(wanted: &[&str], report: &mut Report) {
    if wanted.iter().any(|part| TOGETHER.contains(part)) {
        let ground = Ground::build();
        let mut plain = Plain::beside(&ground.world);
        for part in wanted {
            match *part {
                "prompts" => prompts::measure(&ground, &mut plain, report),
                "streams" => stream::measure(&ground, &mut plain, report),
                "lines" => line::measure(&ground, &mut plain, report),
                _ => {}
            }
        }
        drop(plain);
        ground.end();
    }
    if wanted.contains(&"idle") {
        memory::measure(report);
    }
    if wanted.contains(&"boot") {
        boot::measure(report);
    }
    if wanted.contains(&ENGINES) {
        engines::measure(report);
    }
    if wanted.contains(&SCALE) {
        scale::measure(report);
    }
    if wanted.contains(&MODEL) {
        model::measure(report);
    }
    if wanted.contains(&TAKE_OVER) {
        take_over::measure(report);
    }
}
