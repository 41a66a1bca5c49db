//! Checks of `doctor` for clients: ACP, the files of TLS, tokens.

use super::{ANSWER_MS, Check, GatewayProbe, failed, noted, passed};
use crate::api::tls;
use crate::cli::GlobalArgs;
use crate::cli::output::now_ms;
use acp_core::api::TokenView;
use acp_core::config::northbound::NorthboundConfig;
use std::time::{Duration, Instant};

/// Remaining validity of a token that is worth a note, in milliseconds: one week.
const EXPIRES_SOON_MS: u64 = 7 * 24 * 3_600_000;

/// Checks the configuration, and with a running gateway its tokens.
pub(super) async fn check(
    global: &GlobalArgs,
    config: &NorthboundConfig,
    answers: &GatewayProbe,
) -> Vec<Check> {
    let mut checks = configured(config);
    if config.addresses().is_empty() || matches!(answers, GatewayProbe::Nothing) {
        return checks;
    }
    let deadline = Instant::now() + Duration::from_millis(ANSWER_MS);
    let asked = async { global.client()?.until(Some(deadline)).get::<Vec<TokenView>>("/v1/tokens").await };
    checks.extend(match asked.await {
        Ok(views) => tokens(&views, now_ms()),
        Err(failure) => vec![noted("tokens", failure.message)],
    });
    checks
}

/// Checks what needs no gateway.
fn configured(config: &NorthboundConfig) -> Vec<Check> {
    let mut checks = vec![if config.acp {
        passed("acp", "clients that speak ACP are served at /acp")
    } else {
        noted(
            "acp",
            "northbound.acp is false: /acp is answered with 404, and `acp-gateway acp` cannot connect",
        )
    }];
    match tls::load(&config.tls) {
        Ok(None) => {}
        Ok(Some(_)) => checks.push(passed("tls", "certificate and key can be read and fit")),
        Err(text) => checks.push(failed("tls", text)),
    }
    checks
}

/// Checks the tokens of a gateway that listens on TCP.
fn tokens(views: &[TokenView], now_ms: u64) -> Vec<Check> {
    let valid: Vec<&TokenView> = views.iter().filter(|view| view.state == "valid").collect();
    let mut checks = vec![match valid.len() {
        0 => noted(
            "tokens",
            "no valid token: nobody can connect over TCP. Add one with `acp-gateway token add`",
        ),
        count => passed("tokens", format!("{count} valid")),
    }];
    let ends_soon = |view: &&&TokenView| {
        view.expires_at_ms.is_some_and(|at_ms| at_ms.saturating_sub(now_ms) < EXPIRES_SOON_MS)
    };
    checks.extend(valid.iter().filter(ends_soon).map(|view| {
        let text = "expires within a week: add another one and revoke it";
        noted("tokens", format!("{} {text}", view.name))
    }));
    checks
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::CheckStatus::{self, Failed, Note, Ok};
    use super::*;
    use acp_core::config::northbound::TlsConfig;
    use serde_json::json;

    fn brief(checks: Vec<Check>) -> Vec<(&'static str, CheckStatus)> {
        checks.into_iter().map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn acp_that_is_off_and_unreadable_tls_files_are_reported() {
        let served = NorthboundConfig::default();
        assert_eq!(brief(configured(&served)), [("acp", Ok)]);
        let tls = TlsConfig {
            cert: Some("/nowhere/cert.pem".into()),
            key: Some("/nowhere/key.pem".into()),
            ..TlsConfig::default()
        };
        let broken = configured(&NorthboundConfig { acp: false, tls, ..served });
        assert!(broken[1].detail.contains("northbound.tls.cert = /nowhere/cert.pem"), "{}", broken[1].detail);
        assert_eq!(brief(broken), [("acp", Note), ("tls", Failed)]);
    }

    #[test]
    fn missing_and_ending_tokens_are_noted() {
        let token = |state: &str, expires_at_ms: Option<u64>| -> TokenView {
            serde_json::from_value(json!({
                "token_id": "01890a5d-ac96-774b-bcce-b302099a8057", "name": "phone", "scope": "read", "agents": [],
                "state": state, "created_at_ms": 0, "expires_at_ms": expires_at_ms, "revoked_at_ms": null,
            }))
            .unwrap()
        };
        for (views, want) in [
            (vec![], vec![("tokens", Note)]),
            (vec![token("revoked", None), token("expired", Some(5))], vec![("tokens", Note)]),
            (vec![token("valid", None)], vec![("tokens", Ok)]),
            (vec![token("valid", Some(EXPIRES_SOON_MS + 20))], vec![("tokens", Ok)]),
            (vec![token("valid", Some(EXPIRES_SOON_MS))], vec![("tokens", Ok), ("tokens", Note)]),
        ] {
            assert_eq!(brief(tokens(&views, 10)), want, "{views:?}");
        }
    }
}
