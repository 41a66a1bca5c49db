//! Private home directory of a session: for programs that keep their state below `$HOME`, such as acpx. The gateway names it
//! as a root of the [`Spawn`](crate::protocol::Spawn), the wrapper of a confined tree creates it, and the bridge of acpx
//! uses it.

/// Directory of all private home directories, below the home directory of the agents' user.
pub const BASE: &str = ".local/state/acp-host/acpx";
/// Feature of a supervisor that knows roots which stand for a private home directory.
pub const FEATURE: &str = "private_homes";

/// Returns the path of a session's private home directory below the user's home directory.
#[cfg(feature = "private-home")]
#[must_use]
pub fn below_home(instance_id: &str, session_key: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let digest = format!("{:x}", Sha256::digest(format!("{instance_id}\n{session_key}")));
    format!("{BASE}/{}", digest.get(..32).unwrap_or_default())
}

/// Returns the root of a spawn that stands for this path below the home directory.
#[must_use]
pub fn root(below_home: &str) -> String {
    format!("~/{below_home}")
}

/// Returns the path below the home directory if a root of a spawn stands for a private home directory.
#[must_use]
pub fn of_root(root: &str) -> Option<&str> {
    let below = root.strip_prefix("~/")?;
    let name = below.strip_prefix(BASE)?.strip_prefix('/')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then_some(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_base_are_private() {
        let dir = format!("{BASE}/0a");
        assert_eq!(of_root(&root(&dir)), Some(dir.as_str()));
        for other in
            ["/w", "~/", "~/x", "~root/.local/state/acp-host/acpx/0a", ".local/state/acp-host/acpx/0a"]
        {
            assert_eq!(of_root(other), None, "{other}");
        }
        for name in ["", "..", "0a/..", "0a/b", ".", "x y"] {
            assert_eq!(of_root(&format!("~/{BASE}/{name}")), None, "{name}");
        }
        assert_eq!(of_root(&format!("~/{BASE}")), None);
    }

    #[cfg(feature = "private-home")]
    #[test]
    fn directory_depends_on_gateway_and_session() {
        let dirs = [("a", "k"), ("b", "k"), ("a", "l"), ("a\nk", "")].map(|(id, key)| below_home(id, key));
        assert!(dirs.iter().all(|dir| of_root(&root(dir)).is_some()), "{dirs:?}");
        assert_ne!(dirs[0], dirs[1]);
        assert_ne!(dirs[0], dirs[2]);
    }
}
