//! Who makes a request, and what they may do.

use std::fmt;
use std::str::FromStr;

/// What a principal may do. Each scope includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Lists and reads sessions.
    Read,
    /// Starts sessions, sends prompts and stops them.
    Prompt,
    /// Answers permission requests, and widens what an agent may do unasked.
    Approve,
    /// Starts programs of their own choice on the host, and manages tokens.
    Admin,
}

impl Scope {
    /// All scopes, the smallest first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Prompt, Self::Approve, Self::Admin];

    /// Name in command lines, JSON and the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Prompt => "prompt",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("unknown scope {text:?}; use read, prompt, approve or admin"))
    }
}

/// Who makes a request: the user of a local process, or the holder of a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Identity: `user:NAME` of a local process, `token:ID` of a token. Two principals are the same if this is equal.
    pub id: String,
    /// Name that is shown as author of prompts and of answers: the user's or the token's.
    pub name: String,
    /// What this principal may do.
    pub scope: Scope,
    /// True if the kernel reports a peer on this machine for this request.
    pub local: bool,
}

impl Principal {
    /// Creates the principal of a process on the gateway's own Unix socket, which admits the gateway's user and root.
    #[must_use]
    pub fn of_local_user(name: String) -> Self {
        Self { id: format!("user:{name}"), name, scope: Scope::Admin, local: true }
    }

    /// True if the principal has this scope or a larger one.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.scope >= scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_includes_the_smaller_ones() {
        for (place, scope) in Scope::ALL.into_iter().enumerate() {
            let principal = Principal { scope, ..Principal::of_local_user("ann".to_owned()) };
            let allowed: Vec<Scope> = Scope::ALL.into_iter().filter(|asked| principal.may(*asked)).collect();
            assert_eq!(allowed, Scope::ALL[..=place]);
        }
    }

    #[test]
    fn scope_names_parse_to_their_scope() {
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        let error = Err("unknown scope \"root\"; use read, prompt, approve or admin".to_owned());
        assert_eq!("root".parse::<Scope>(), error);
    }
}
