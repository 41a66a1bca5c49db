//! `adopt`: gives a restored copy of a state directory a new gateway identity (H15).

use crate::cli::GlobalArgs;
use crate::cli::output::{CliResult, Out};
use acp_store::identity;
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
    let id = identity::adopt(&dir).map_err(acp_core::failure::Failure::from)?;
    out.show(&AdoptOutput { gateway_instance_id: id.to_string() }, |adopted| {
        format!(
            "{} has the new gateway id {}. Its sessions are kept; turns that were running in the \
             original end as uncertain.",
            dir.display(),
            adopted.gateway_instance_id
        )
    })
}
