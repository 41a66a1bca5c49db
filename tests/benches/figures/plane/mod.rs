//! What the control plane holds, each figure as a ratio to what the machine gives without it: issue "Control plane to
//! completion", "What must be shown" 4.

mod boot;
mod crowd;
mod ground;
mod line;
mod memory;
mod plain;
mod prompts;
mod seed;
mod stream;

use crate::report::Report;
use ground::Ground;
use plain::Plain;

/// What there is to measure, in its order.
pub(crate) const PARTS: [&str; 5] = ["prompts", "streams", "lines", "idle", "boot"];
/// Those that share a gateway.
const TOGETHER: [&str; 3] = ["prompts", "streams", "lines"];

/// Measures what is named.
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
}
