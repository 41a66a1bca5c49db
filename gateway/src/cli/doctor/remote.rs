//! Check of the certificate with which the gateway reaches hosts.

use super::{Check, failed, noted, passed};
use crate::cli::output::now_ms;
use acp_core::config::{Config, RemoteConfig};
use acp_shared::tls::ClientTls;

/// Name of the check.
const NAME: &str = "certificate";
/// Remaining validity below which the check warns, in seconds: two weeks.
const ENDS_SOON_SECONDS: u64 = 14 * 24 * 3_600;

/// Returns no check if no certificate is configured.
pub(super) fn check(config: &Config) -> Option<Check> {
    check_at(&config.remote, now_ms() / 1_000)
}

fn check_at(config: &RemoteConfig, now_seconds: u64) -> Option<Check> {
    let RemoteConfig { cert: Some(cert), key: Some(key), ca: Some(ca), .. } = config else { return None };
    let loaded = ClientTls::load(cert, key, ca).and_then(|tls| Ok((tls.check(now_seconds)?, tls)));
    Some(match loaded {
        Err(error) => failed(
            NAME,
            format!(
                "remote.{error}. Where the key of the CA is, `acp-gateway hosts enrol NAME` makes what is missing and renews what \
                 ends"
            ),
        ),
        Ok((end, tls)) => {
            let (own, days) = (tls.identity(), end.saturating_sub(now_seconds) / (24 * 3_600));
            let text = format!("{own}, valid for {days} days");
            match end.saturating_sub(now_seconds) < ENDS_SOON_SECONDS {
                true => {
                    noted(NAME, format!("{text}: renew it, for example with `acp-gateway hosts enrol NAME`"))
                }
                false => passed(NAME, text),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn missing_certificate_is_reported_with_the_command_that_makes_it() {
        assert!(check_at(&RemoteConfig::default(), 0).is_none());
        let path = |name: &str| Some(format!("/nowhere/{name}").into());
        let config =
            RemoteConfig { cert: path("c"), key: path("k"), ca: path("a"), ..RemoteConfig::default() };
        let missing = check_at(&config, 0).unwrap();
        assert_eq!(missing.verdict, CheckStatus::Failed);
        for want in ["remote.cert = /nowhere/c: No such file", "`acp-gateway hosts enrol NAME`"] {
            assert!(missing.detail.contains(want), "{}", missing.detail);
        }
    }
}
