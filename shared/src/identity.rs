//! Identities of cells and hosts: the URI names in their certificates, `acp://PLANE/cell/ID` and
//! `acp://PLANE/host/NAME`.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Scheme of the URI names. Other URI names of a certificate have no meaning here.
pub const SCHEME: &str = "acp://";
/// Maximum length of a plane, of a cell's id and of a host's name, in bytes.
const PART_BYTES_MAX: usize = 63;

crate::named! {
    /// Kind of the holder of a certificate, named as in its URI.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum Holder {
        /// A gateway's cell.
        Cell = "cell",
        /// A machine with a supervisor.
        Host = "host",
    }
}

/// Identity of a cell or a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Name of the installation that cells and hosts belong to.
    pub plane: String,
    /// Kind of the holder.
    pub holder: Holder,
    /// Id of the cell, or name of the host.
    pub name: String,
}

impl Display for Identity {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.plane, self.holder.as_str(), self.name)
    }
}

/// Text that is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not acp://PLANE/cell/ID or acp://PLANE/host/NAME with parts of 1 to {PART_BYTES_MAX} lower-case \
     letters, digits, \".\", \"_\" and \"-\""
)]
pub struct IdentityError(pub String);

fn is_part(part: &str) -> bool {
    let is_letter = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c);
    (1..=PART_BYTES_MAX).contains(&part.len()) && part.bytes().all(is_letter)
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let error = || IdentityError(text.to_owned());
        let mut parts = text.strip_prefix(SCHEME).ok_or_else(error)?.split('/');
        let (Some(plane), Some(holder), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error());
        };
        let holder = Holder::ALL.into_iter().find(|kind| kind.as_str() == holder).ok_or_else(error)?;
        if !is_part(plane) || !is_part(name) {
            return Err(error());
        }
        Ok(Self { plane: plane.to_owned(), holder, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn identities_have_one_spelling() {
        for text in ["acp://plane-1/cell/main_7", "acp://a/host/n1.example.org"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        let long = format!("acp://plane/cell/{}", "x".repeat(64));
        for text in [
            "",
            "acp://",
            "acp://plane/cell",
            "acp://plane/cell/",
            "acp:///cell/main",
            "acp://plane/node/main",
            "acp://plane/cell/main/",
            "acp://plane/cell/main/more",
            "acp://Plane/cell/main",
            "acp://plane/cell/a b",
            "acp://plane/cell/a%20b",
            "acp://plane/cell/a?b",
            "ACP://plane/cell/main",
            "spiffe://plane/cell/main",
            " acp://plane/cell/main",
            &long,
        ] {
            assert_eq!(text.parse::<Identity>(), Err(IdentityError(text.to_owned())), "{text}");
        }
    }
}
