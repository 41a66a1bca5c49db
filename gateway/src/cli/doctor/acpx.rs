//! Check of `doctor` for the backend `acpx`: the versions of acpx and Node.js that the bridge would use.

use super::{Check, failed, noted, passed};
use crate::cli::agents::exe;
use crate::runtime::acpx::{BRIDGE_FILE, names_acpx};
use crate::runtime::local_lookup::look_up;
use crate::runtime::lookup::LookupRequest;
use acp_core::config::Config;
use acp_core::runtime::acpx::{version_refusal, versions_text};
use acp_shared::service::wrapper_of;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time limit of acpx and Node for their versions.
const VERSIONS: Duration = Duration::from_secs(10);

/// Asks the programs for their versions, as the user of this process. `None` if the configuration does not name the backend,
/// or acpx is missing, which the gateway reports.
pub(super) async fn check(config: &Config) -> Option<Check> {
    let backend = &config.backends.acpx;
    let (name, arguments) = backend.command.split_first().filter(|_| names_acpx(config))?;
    let search = std::env::var("PATH").unwrap_or_default();
    let lookup = LookupRequest { programs: [name.clone()].into(), search, ..LookupRequest::default() };
    let program = look_up(&lookup).programs.remove(name)?;
    let mut command = Command::new(wrapper_of(&exe()).with_file_name(BRIDGE_FILE));
    command.arg("--check");
    for word in std::iter::once(&program).chain(arguments) {
        command.arg("--acpx").arg(word);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(output) = tokio::time::timeout(VERSIONS, command.output()).await else {
        return Some(noted("acpx", format!("no version within {} s", VERSIONS.as_secs())));
    };
    Some(match output {
        Ok(output) => judge(&String::from_utf8_lossy(&output.stdout), &backend.versions),
        Err(error) => noted("acpx", format!("{BRIDGE_FILE} cannot be started: {error}")),
    })
}

/// Judges the output of the bridge.
fn judge(found: &str, versions: &str) -> Check {
    let line: Value = serde_json::from_str(found).unwrap_or_default();
    let text = |name| line.get(name).and_then(Value::as_str);
    match (text("error"), text("acpx"), versions_text(found)) {
        (Some(error), _, _) => failed("acpx", error),
        (None, Some(acpx), Some(shown)) => match version_refusal(acpx, versions) {
            Some(why) => failed("acpx", why),
            None => passed("acpx", format!("{shown}, as this user")),
        },
        _ => noted("acpx", format!("{BRIDGE_FILE} --check has printed {found:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus::{Failed, Note, Ok};
    use super::*;

    #[test]
    fn versions_are_judged() {
        for (found, verdict, word) in [
            (r#"{"type":"versions","acpx":"0.19.1","node":"22.1.0"}"#, Ok, "acpx 0.19.1 on Node.js 22.1.0"),
            (r#"{"type":"versions","acpx":"0.1.15"}"#, Failed, ">=0.19.1, <0.20 is needed"),
            (r#"{"type":"unusable","error":"no node"}"#, Failed, "no node"),
            ("", Note, "has printed"),
        ] {
            let check = judge(found, ">=0.19.1, <0.20");
            assert_eq!(check.verdict, verdict, "{found}");
            assert!(check.detail.contains(word), "{}", check.detail);
        }
    }
}
