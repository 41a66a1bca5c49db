//! Checks of requests that come over a network: the host that a client believes to talk to, and the page that sends
//! the request. Both defend against pages of other sites, also those that let their own name resolve to this machine.

use std::net::SocketAddr;

/// Names of this machine that every client may use.
const LOOPBACK_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Splits `host[:port]`. `None` if the text is neither.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let end_of_host =
        if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
    let (host, rest) = text.split_at_checked(end_of_host)?;
    if host.is_empty() {
        return None;
    }
    if rest.is_empty() {
        return Some((host, None));
    }
    let port = rest.strip_prefix(':')?.parse().ok()?;
    Some((host, Some(port)))
}

/// True if `text` is `host` or `host:port`.
#[must_use]
pub fn is_host(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    split_port(text).is_some() && text.chars().all(plain)
}

/// True if a request may name this host: a loopback name, the address at which it arrived, or one that is configured.
/// A configured host without a port allows each port.
#[must_use]
pub fn is_allowed_host(host: &str, bound: Option<SocketAddr>, allowed: &[String]) -> bool {
    let Some((name, port)) = split_port(host) else { return false };
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    if LOOPBACK_HOSTS.iter().any(|known| same(known, name)) {
        return true;
    }
    let of_address = |at: SocketAddr| {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        bare.parse() == Ok(at.ip().to_canonical())
    };
    bound.is_some_and(of_address)
        || allowed
            .iter()
            .filter_map(|known| split_port(known))
            .any(|(known, wanted)| same(known, name) && (wanted.is_none() || wanted == port))
}

/// Judgement about the page that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginVerdict {
    /// The request comes from no page, or from one of this host.
    Own,
    /// A page that is configured: the response allows its browser to show it the content.
    Allowed,
    /// Any other page.
    Foreign,
}

/// Judges the `Origin` header of a request to an allowed host.
#[must_use]
pub fn judge_origin(origin: Option<&str>, host: &str, allowed: &[String]) -> OriginVerdict {
    let Some(origin) = origin else { return OriginVerdict::Own };
    if allowed.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
        return OriginVerdict::Allowed;
    }
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    match authority {
        Some(authority) if authority.eq_ignore_ascii_case(host) => OriginVerdict::Own,
        _ => OriginVerdict::Foreign,
    }
}

/// True if `text` is an origin as browsers send it: scheme, host and perhaps a port, without a path.
#[must_use]
pub fn is_origin(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, host)| {
        !scheme.is_empty()
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            && is_host(host)
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn host_is_loopback_bound_address_or_configured() {
        let allowed = ["agents.example.com".to_owned(), "other.example.com:8443".to_owned()];
        let v4: SocketAddr = "192.0.2.7:7433".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7]:7433".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:7433".parse().unwrap();
        for (host, bound, want) in [
            ("localhost", None, true),
            ("LocalHost:7433", None, true),
            ("127.0.0.1:80", None, true),
            ("[::1]:7433", None, true),
            ("[::1]", None, true),
            ("::1", None, false),
            ("localhost.evil.example", None, false),
            ("evil.example", Some(v4), false),
            ("192.0.2.7:7433", Some(v4), true),
            ("192.0.2.7:7433", Some(mapped), true),
            ("192.0.2.7", None, false),
            ("192.0.2.8", Some(v4), false),
            ("[2001:db8::7]:7433", Some(v6), true),
            ("agents.example.com", None, true),
            ("AGENTS.example.com:1", None, true),
            ("other.example.com:8443", None, true),
            ("other.example.com", None, false),
            ("", None, false),
            (":7433", None, false),
            ("localhost:", None, false),
            ("localhost:x", None, false),
            ("localhost@evil.example", None, false),
        ] {
            assert_eq!(is_allowed_host(host, bound, &allowed), want, "{host} {bound:?}");
        }
    }

    #[test]
    fn origin_is_own_configured_or_foreign() {
        use OriginVerdict::{Allowed, Foreign, Own};
        let allowed = ["https://app.example.com".to_owned()];
        for (origin, want) in [
            (None, Own),
            (Some("http://localhost:7433"), Own),
            (Some("https://localhost:7433"), Own),
            (Some("http://localhost"), Foreign),
            (Some("http://localhost:3000"), Foreign),
            (Some("https://app.example.com"), Allowed),
            (Some("HTTPS://APP.example.com"), Allowed),
            (Some("http://app.example.com"), Foreign),
            (Some("https://app.example.com.evil.example"), Foreign),
            (Some("null"), Foreign),
            (Some(""), Foreign),
            (Some("file://localhost:7433"), Foreign),
        ] {
            assert_eq!(judge_origin(origin, "localhost:7433", &allowed), want, "{origin:?}");
        }
    }

    #[test]
    fn configured_origins_and_hosts_have_no_path() {
        for (text, want) in [
            ("https://app.example.com", true),
            ("http://[::1]:3000", true),
            ("vscode-webview://abc", true),
            ("https://app.example.com/", false),
            ("app.example.com", false),
            ("https://", false),
            ("*", false),
        ] {
            assert_eq!(is_origin(text), want, "{text}");
        }
        for (text, want) in
            [("a.example.com", true), ("a:80", true), ("a/b", false), ("", false), ("a:x", false)]
        {
            assert_eq!(is_host(text), want, "{text}");
        }
    }
}
