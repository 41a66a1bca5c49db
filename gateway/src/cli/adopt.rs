//! `adopt`: gives a restored copy of a state directory a new gateway identity (H15).

use crate::cli::config::ConfigArgs;
use crate::cli::output::{CliResult, Out};
use crate::cli::{GlobalArgs, cell};
use acp_store::offline;
use serde::Serialize;

#[derive(Debug, Serialize)]
struct AdoptOutput {
    gateway_instance_id: String,
}

/// `adopt`
pub(crate) fn run(global: &GlobalArgs, out: &mut Out) -> CliResult {
    let dir = global.state_dir()?;
    if !dir.is_dir() {
        return Err(super::usage(format!("{} is not a directory", dir.display())).into());
    }
    let instead = "A cell has no place that a copy could be told by, and one gateway at a time serves it: start the gateway.";
    cell::refuse(&dir, &ConfigArgs::of_environment(), instead)?;
    let id = offline::adopt(&dir).map_err(acp_core::failure::Failure::from)?;
    out.show(&AdoptOutput { gateway_instance_id: id.to_string() }, |adopted| {
        format!(
            "{} has the new gateway id {}. Its sessions are kept; turns that were running in the \
             original end as uncertain.",
            dir.display(),
            adopted.gateway_instance_id
        )
    })
}
