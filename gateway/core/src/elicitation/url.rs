//! Addresses of pages that a person is asked to open.

use crate::sanitize;

/// Maximum length of an address, in bytes.
const URL_BYTES_MAX: usize = 2_048;

/// Returns the host of an `http` or `https` address; `None` for anything that is not one.
pub(super) fn host_of(url: &str) -> Option<&str> {
    let is_plain = |c: char| !c.is_whitespace() && !sanitize::is_hidden(c) && !"\"<>\\^`{|}".contains(c);
    if url.len() > URL_BYTES_MAX || !url.chars().all(is_plain) {
        return None;
    }
    let host = authority_of(url)?.rsplit('@').next()?;
    let host = match host.strip_prefix('[') {
        Some(rest) => host.get(..rest.find(']')? + 2)?,
        None => host.split(':').next()?,
    };
    (!host.is_empty()).then_some(host)
}

/// Part between the scheme and the path.
fn authority_of(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let is_web = scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
    rest.split(['/', '?', '#']).next().filter(|_| is_web)
}

/// Warnings about an address for the person who decides whether to open it.
pub fn url_warnings(url: &str) -> Vec<&'static str> {
    let authority = authority_of(url).unwrap_or_default();
    let host = host_of(url).unwrap_or_default().to_ascii_lowercase();
    let is_puny = host.split('.').any(|label| label.starts_with("xn--"));
    let is_local = matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]");
    let is_encrypted = url.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://"));
    let all = [
        (!host.is_ascii() || is_puny, "The host has letters that may look like others."),
        (authority.contains('@'), "The part before @ is not the host."),
        (!is_encrypted && !is_local, "The connection is not encrypted."),
    ];
    all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect()
}
