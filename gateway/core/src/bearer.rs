//! Bearer tokens of the API: their text, their digest, and the places of a request where a client puts them.

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;

/// Beginning of each token, by which people and scanners of secrets recognise one.
const PREFIX: &str = "acp_";
/// Number of random bytes of a token.
pub const SECRET_BYTES: usize = 32;
/// Number of characters of a token behind its prefix.
const TOKEN_CHARS: usize = 43;
/// Placeholder for a token.
const REDACTED: &str = "[redacted:token]";
/// Beginning of the WebSocket subprotocol that carries a token, for clients that cannot set headers.
const SUBPROTOCOL: &str = "acphost.bearer.";

/// SHA-256 of a token's random bytes. The only trace of a token that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Parses the text in the database.
    ///
    /// # Errors
    /// The text is not 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| "not a digest of a token".to_owned())
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// A token in the clear. Never logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BearerToken([u8; SECRET_BYTES]);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl BearerToken {
    /// Creates the token of these random bytes.
    #[must_use]
    pub const fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self(secret)
    }

    /// Parses a token as it is shown. `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.strip_prefix(PREFIX)?.as_bytes()).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the text that is shown once, and that clients send.
    #[must_use]
    pub fn show(&self) -> String {
        format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&self.0))
    }

    /// Returns the digest by which the token is found.
    #[must_use]
    pub fn digest(&self) -> TokenDigest {
        TokenDigest(Sha256::digest(self.0).into())
    }
}

/// Replaces what looks like a token in a text. Overlapping ones are replaced as one.
#[must_use]
pub fn redact_tokens(text: &str) -> Cow<'_, str> {
    let (mut out, mut copied) = (String::new(), 0);
    for (at, _) in text.match_indices(PREFIX) {
        let end = at + PREFIX.len() + TOKEN_CHARS;
        if text.get(at..end).is_none_or(|shown| BearerToken::parse(shown).is_none()) {
            continue;
        }
        if let Some(before) = text.get(copied..at) {
            out.push_str(before);
            out.push_str(REDACTED);
        }
        copied = end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// Returns the token of an `Authorization` header; `None` for another scheme or an invalid token.
#[must_use]
pub fn of_authorization(value: &str) -> Option<BearerToken> {
    let (scheme, token) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    BearerToken::parse(token.trim())
}

/// Splits the subprotocols that a WebSocket client offers into those for the handshake and its token. The token counts
/// only together with the subprotocol `acp`, which is the one to be echoed. `None` if there is no token.
#[must_use]
pub fn of_subprotocols(value: &str) -> Option<(String, BearerToken)> {
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        value.split(',').map(str::trim).partition(|offered| offered.starts_with(SUBPROTOCOL));
    let [token] = tokens.as_slice() else { return None };
    if !others.contains(&"acp") {
        return None;
    }
    let token = BearerToken::parse(token.strip_prefix(SUBPROTOCOL)?)?;
    Some((others.join(", "), token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> BearerToken {
        BearerToken::new([7; SECRET_BYTES])
    }

    #[test]
    fn token_is_parsed_as_shown_and_hidden_elsewhere() {
        let shown = token().show();
        assert_eq!(shown.len(), 4 + 43);
        assert_eq!(BearerToken::parse(&shown), Some(token()));
        assert_eq!(format!("{:?}", token()), "***");
        for wrong in
            ["", "acp_", &shown[4..], &shown[..46], &format!("{shown}A"), &format!("{shown}="), "acp_ü"]
        {
            assert_eq!(BearerToken::parse(wrong), None, "{wrong}");
        }
        let digest = token().digest();
        assert_eq!(TokenDigest::parse(&digest.to_string()), Ok(digest));
        assert!(TokenDigest::parse("00").is_err());
    }

    #[test]
    fn tokens_in_texts_are_redacted() {
        let shown = token().show();
        for (text, want) in [
            (format!("a {shown}, {shown}"), "a [redacted:token], [redacted:token]"),
            (format!("acp_acp_{shown}ü"), "[redacted:token]ü"),
            (format!("acp_{shown} acp_"), "[redacted:token] acp_"),
            ("acp_host and acp_".to_owned(), "acp_host and acp_"),
            ("nothing".to_owned(), "nothing"),
        ] {
            assert_eq!(redact_tokens(&text), want);
        }
    }

    #[test]
    fn authorization_needs_scheme_and_token() {
        let shown = token().show();
        for (value, want) in [
            (format!("Bearer {shown}"), true),
            (format!("bearer  {shown} "), true),
            (format!("Basic {shown}"), false),
            (shown.clone(), false),
            ("Bearer".to_owned(), false),
            (format!("Bearer {shown} {shown}"), false),
        ] {
            assert_eq!(of_authorization(&value).is_some(), want, "{value}");
        }
    }

    #[test]
    fn subprotocol_token_counts_with_acp_only() {
        let offer = format!("{SUBPROTOCOL}{}", token().show());
        let with = |rest: &str| of_subprotocols(&format!("{rest}{offer}"));
        assert_eq!(with("acp, "), Some(("acp".to_owned(), token())));
        assert_eq!(of_subprotocols(&format!("{offer},acp,other")), Some(("acp, other".to_owned(), token())));
        assert_eq!(with(""), None);
        assert_eq!(with("other, "), None);
        assert_eq!(with(&format!("acp, {offer}, ")), None, "two tokens");
        assert_eq!(of_subprotocols("acp"), None);
        assert_eq!(of_subprotocols("acp, acphost.bearer.x"), None);
    }
}
