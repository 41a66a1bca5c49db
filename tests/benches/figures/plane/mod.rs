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

/// Measures all of it.
pub(crate) fn measure(report: &mut Report) {
    let ground = Ground::build();
    let mut plain = Plain::beside(&ground.world, "FULL");
    prompts::measure(&ground, &mut plain, report);
    stream::measure(&ground, &mut plain, report);
    line::measure(&ground, &mut plain, report);
    drop(plain);
    ground.end();
    memory::measure(report);
    boot::measure(report);
}
