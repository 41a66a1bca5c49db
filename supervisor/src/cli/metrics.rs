//! Command `metrics`.

use super::{CliError, Output};
use acp_shared::conn::Client;
use acp_shared::figures;
use acp_shared::protocol::{Reply, Request};
use serde_json::json;

pub(super) async fn run(client: &mut Client, out: &mut Output) -> Result<(), CliError> {
    if !client.welcome().features.iter().any(|feature| feature == figures::FEATURE) {
        return Err(CliError::NoFigures);
    }
    let Reply::Figures(found) = client.call(Request::Figures).await? else { return Err(CliError::OutOfTurn) };
    if !out.is_json() {
        return Ok(out.line(figures::render(&found).trim_end())?);
    }
    let found = found.iter().map(|figure| {
        let labels = if figure.state.is_empty() { json!({}) } else { json!({ "state": figure.state }) };
        json!({ "name": format!("acp_{}", figure.name), "labels": labels, "value": figure.value })
    });
    Ok(out.data("metrics", &found.collect::<Vec<_>>())?)
}
