//! Check of the database server of a PostgreSQL store.

use super::{Check, failed, noted, passed};
use crate::app::store::{Cell, read_cell};
use acp_core::config::PostgresStore;
use acp_store::cell::inspect::{ServerReport, inspect};

/// Name of the check.
const NAME: &str = "store server";

/// Checks that the server can be reached and used, and shows its state and the cell's. Blocks.
pub(super) fn check(settings: &PostgresStore) -> Vec<Check> {
    let Cell { address, allow_loss } = match read_cell(settings) {
        Ok(cell) => cell,
        Err(failure) => return vec![failed(NAME, failure.message)],
    };
    let mut checks = match inspect(&address, allow_loss) {
        Ok(report) => report_checks(&address.to_string(), &report),
        Err(error) => vec![failed(NAME, error.whole())],
    };
    if allow_loss {
        let text = "allow_loss is true: the loss of the server may lose acknowledged work";
        checks.push(noted(NAME, text));
    }
    checks
}

fn report_checks(address: &str, report: &ServerReport) -> Vec<Check> {
    let ServerReport { version, standbys, schema_version, known_version, bytes, owner, broken } = report;
    let standbys = if standbys.is_empty() {
        "no synchronous standby".to_owned()
    } else {
        format!("synchronous standby {standbys}")
    };
    let schema = match schema_version {
        None => "no gateway has used the cell".to_owned(),
        Some(found) => format!("schema {found}, {bytes} bytes"),
    };
    let owner =
        owner.as_ref().map_or("no gateway serves it".to_owned(), |owner| format!("served by {owner}"));
    let mut checks =
        vec![passed(NAME, format!("{address}: PostgreSQL {version}, {standbys}; {schema}, {owner}"))];
    match schema_version {
        Some(found) if found > known_version => {
            let text = format!(
                "schema {found} is newer than this program's, {known_version}: install the newer version"
            );
            checks.push(failed(NAME, text));
        }
        Some(found) if found < known_version => {
            checks.push(noted(
                NAME,
                format!("schema {found}: the next start of a gateway migrates it to {known_version}"),
            ));
        }
        Some(_) if broken.is_none() => {
            checks.push(noted(NAME, "rules of the rows not checked because the cell is large"));
        }
        _ => {}
    }
    checks.extend(broken.iter().flatten().map(|rule| failed(NAME, rule.clone())));
    checks
}
