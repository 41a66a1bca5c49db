//! Base URL of Discord, for requests and websocket. With any other URL than Discord's own, nothing reaches
//! the real service.

use reqwest::Url;
use std::fmt;

/// Discord's own base URL.
const DISCORD: &str = "https://discord.com";
/// Domain of Discord's gateways.
const GATEWAY_DOMAIN: &str = "discord.gg";

/// Base URL of requests: scheme, host and port only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(Url);

/// Reason why an address is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrlError(pub String);

impl fmt::Display for BaseUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BaseUrlError {}

impl BaseUrl {
    /// Discord's own base URL.
    ///
    /// # Errors
    /// Never, since the address is valid.
    pub fn discord() -> Result<Self, BaseUrlError> {
        Self::parse(DISCORD)
    }

    /// Parses another base URL, of a proxy or a test.
    ///
    /// # Errors
    /// [`BaseUrlError`] if the address is not `http[s]://host[:port]`, or is Discord's in another spelling.
    pub fn parse(text: &str) -> Result<Self, BaseUrlError> {
        let url =
            Url::parse(text).map_err(|error| BaseUrlError(format!("`{text}` is not a URL: {error}")))?;
        let plain = url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() || !plain {
            return Err(BaseUrlError(
                "the base URL must be http[s]://HOST[:PORT] and nothing more".to_owned(),
            ));
        }
        if is_official(&url) && url.as_str() != "https://discord.com/" {
            return Err(BaseUrlError(format!(
                "`{text}` is another spelling of Discord's own address: leave the base URL out"
            )));
        }
        Ok(Self(url))
    }

    /// True if this is Discord's own base URL.
    #[must_use]
    pub fn is_official(&self) -> bool {
        is_official(&self.0)
    }

    /// Appends a path that begins with `/`.
    #[must_use]
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.as_str())
    }

    /// Base URL as configured, without a trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }

    /// Checks and returns the gateway URL that the service reports.
    ///
    /// # Errors
    /// [`BaseUrlError`] if the URL is outside of the service: not on the configured host, not in Discord's
    /// gateway domain (for Discord's own base URL), or without TLS although the base URL has TLS.
    pub fn check_gateway_url(&self, said: &str) -> Result<String, BaseUrlError> {
        let refuse = |why: &str| {
            BaseUrlError(format!("{} reports the gateway address `{said}`: {why}", self.as_str()))
        };
        let url = Url::parse(said).map_err(|_| refuse("not a URL"))?;
        let host = url.host_str().ok_or_else(|| refuse("it has no host"))?;
        let secure = match url.scheme() {
            "wss" => true,
            "ws" => false,
            _ => return Err(refuse("not a websocket address")),
        };
        if !secure && self.0.scheme() == "https" {
            return Err(refuse("it has no TLS, but the base URL has"));
        }
        if !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(refuse("it must not have a user name, password, query or fragment"));
        }
        let ours = if self.is_official() {
            host == GATEWAY_DOMAIN
                || host.strip_suffix(GATEWAY_DOMAIN).is_some_and(|name| name.ends_with('.'))
        } else {
            Some(host) == self.0.host_str()
        };
        if !ours {
            return Err(refuse("connections are made only to the configured host"));
        }
        Ok(url.as_str().trim_end_matches('/').to_owned())
    }
}

/// True if the host is Discord's, in any spelling.
fn is_official(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    ["discord.com", "discordapp.com"]
        .iter()
        .any(|own| host == *own || host.strip_suffix(own).is_some_and(|name| name.ends_with('.')))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

    use super::*;

    #[test]
    fn base_url_is_scheme_and_host_only() {
        for valid in
            ["http://127.0.0.1:8080", "https://proxy.example", "http://[::1]:1/", "https://discord.com"]
        {
            let base = BaseUrl::parse(valid).unwrap_or_else(|why| panic!("{valid}: {why}"));
            assert_eq!(base.join("/api/v10/x"), format!("{}/api/v10/x", valid.trim_end_matches('/')));
            assert_eq!(base.is_official(), valid == "https://discord.com", "{valid}");
        }
        for invalid in [
            "",
            "discord.com",
            "ftp://host",
            "http://host/path",
            "http://host?x",
            "http://user@host",
            "http://discord.com@host",
            "http://discord.com",
            "https://discord.com:444",
            "https://canary.discord.com",
            "https://discordapp.com",
            "https://discord.com.",
        ] {
            assert!(BaseUrl::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn gateway_url_must_match_base_host() {
        const OFFICIAL: &str = "https://discord.com";
        for (base, gateway_url, valid) in [
            ("http://127.0.0.1:8080", "ws://127.0.0.1:8081", true),
            ("http://127.0.0.1:8080", "wss://127.0.0.1:8080/", true),
            ("http://127.0.0.1:8080", "wss://gateway.discord.gg", false),
            ("http://127.0.0.1:8080", "ws://localhost:8080", false),
            ("http://127.0.0.1:8080", "ws://127.0.0.1.evil.example", false),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "", false),
            ("http://127.0.0.1:8080", "ws://gateway.discord.gg@127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "ws://127.0.0.1:8080@gateway.discord.gg", false),
            ("https://proxy.example", "ws://proxy.example", false),
            ("https://proxy.example", "wss://PROXY.example", true),
            (OFFICIAL, "wss://gateway.discord.gg", true),
            (OFFICIAL, "wss://gateway-us-east1-b.discord.gg", true),
            (OFFICIAL, "ws://gateway.discord.gg", false),
            (OFFICIAL, "wss://gateway.evildiscord.gg", false),
            (OFFICIAL, "wss://discord.gg.evil.example", false),
            (OFFICIAL, "wss://127.0.0.1", false),
        ] {
            let checked = BaseUrl::parse(base).expect("base").check_gateway_url(gateway_url);
            assert_eq!(checked.is_ok(), valid, "{base} {gateway_url}: {checked:?}");
        }
        let url =
            BaseUrl::parse("http://127.0.0.1:1").and_then(|base| base.check_gateway_url("ws://127.0.0.1:2/"));
        assert_eq!(url.as_deref(), Ok("ws://127.0.0.1:2"));
    }
}
