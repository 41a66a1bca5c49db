//! Sign-ins of the web console: one-time codes, and the tokens they are exchanged for. They are in memory only: each ends
//! with the command that opened the console, and all of them with the gateway.

use crate::api::tokens::TokenLease;
use acp_core::api::TokenView;
use acp_core::bearer::{BearerToken, TokenDigest};
use acp_core::principal::{Principal, Scope};
use acp_shared::ids::TokenId;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time in which a code must be used, in milliseconds.
pub(super) const CODE_MS: u64 = 5 * 60_000;
/// Time after which the token of a sign-in is refused, in milliseconds.
const SIGN_IN_MS: u64 = 12 * 3_600_000;

/// State of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeState {
    /// Not used yet.
    Unused,
    /// Exchanged for this token.
    Used { token: TokenDigest, at_ms: u64 },
    /// Its token has ended.
    Over,
}

/// A console that a command has opened.
struct OpenConsole {
    id: TokenId,
    user: String,
    scope: Scope,
    code: TokenDigest,
    code_until_ms: u64,
    state: CodeState,
    /// Cancelled when the token ends.
    ended: CancellationToken,
}

impl OpenConsole {
    fn end(&mut self) {
        self.state = CodeState::Over;
        self.ended.cancel();
    }

    /// Time of the login, if its token is valid.
    fn signed_in_at(&self, now_ms: u64) -> Option<u64> {
        match self.state {
            CodeState::Used { at_ms, .. } if now_ms < at_ms + SIGN_IN_MS => Some(at_ms),
            _ => None,
        }
    }
}

/// All sign-ins. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct SignIns {
    all: Arc<RwLock<Vec<OpenConsole>>>,
}

/// Guard of a console: dropping it ends the code and the sign-in.
pub(super) struct ConsoleGrant {
    id: TokenId,
    sign_ins: SignIns,
}

impl Drop for ConsoleGrant {
    fn drop(&mut self) {
        let mut all = self.sign_ins.all.write();
        all.iter_mut().filter(|console| console.id == self.id).for_each(OpenConsole::end);
        all.retain(|console| console.id != self.id);
    }
}

impl SignIns {
    /// Opens a console for a local user. `code` is random.
    pub(super) fn open(&self, user: String, scope: Scope, code: &BearerToken, now_ms: u64) -> ConsoleGrant {
        let id = TokenId::mint();
        let console = OpenConsole {
            id,
            user,
            scope,
            code: code.digest(),
            code_until_ms: now_ms + CODE_MS,
            state: CodeState::Unused,
            ended: CancellationToken::new(),
        };
        self.all.write().push(console);
        ConsoleGrant { id, sign_ins: self.clone() }
    }

    /// Exchanges a code for a token. Returns false if the code is not valid. A code that is used again was read by
    /// somebody else: the sign-in of the first one ends.
    pub(super) fn log_in(&self, code: &BearerToken, token: &BearerToken, now_ms: u64) -> bool {
        let digest = code.digest();
        let mut all = self.all.write();
        let Some(console) = all.iter_mut().find(|console| console.code == digest) else { return false };
        match console.state {
            CodeState::Unused if now_ms < console.code_until_ms => {
                console.state = CodeState::Used { token: token.digest(), at_ms: now_ms };
                tracing::info!(token_id = %console.id, name = console.user, "signed in at the console");
                true
            }
            CodeState::Unused | CodeState::Over => false,
            CodeState::Used { .. } => {
                console.end();
                tracing::warn!(token_id = %console.id, name = console.user, "console code used twice; sign-in ended");
                false
            }
        }
    }

    /// Returns the principal of a valid token.
    pub(super) fn find(
        &self,
        token: TokenDigest,
        now_ms: u64,
        is_local: bool,
    ) -> Option<(Principal, TokenLease)> {
        let all = self.all.read();
        let is_of = |console: &&OpenConsole| matches!(console.state, CodeState::Used { token: of, .. } if of == token);
        let console = all.iter().find(is_of)?;
        let left_ms = console.signed_in_at(now_ms)? + SIGN_IN_MS - now_ms;
        let principal = Principal::of_console(console.user.clone(), console.scope, is_local);
        let lease = TokenLease {
            token,
            revoked: console.ended.clone(),
            expires_in: Some(Duration::from_millis(left_ms)),
        };
        Some((principal, lease))
    }

    /// Ends the sign-in of a token. Returns the cancellation token of the sign-in's running requests.
    pub(super) fn log_out(&self, token: TokenDigest) -> Option<CancellationToken> {
        let mut all = self.all.write();
        let is_of = |console: &&mut OpenConsole| matches!(console.state, CodeState::Used { token: of, .. } if of == token);
        let console = all.iter_mut().find(is_of)?;
        console.state = CodeState::Over;
        Some(console.ended.clone())
    }

    /// Ends the sign-in with this id. Returns `None` for an unknown id.
    pub(super) fn revoke(&self, id: &str, now_ms: u64) -> Option<TokenView> {
        let mut all = self.all.write();
        let console = all.iter_mut().find(|console| console.id.to_string() == id)?;
        let view = view(console, now_ms)?;
        console.end();
        Some(TokenView { state: "revoked".to_owned(), revoked_at_ms: Some(now_ms), ..view })
    }

    /// Returns the valid sign-ins, the newest first.
    pub(super) fn views(&self, now_ms: u64) -> Vec<TokenView> {
        self.all.read().iter().rev().filter_map(|console| view(console, now_ms)).collect()
    }
}

fn view(console: &OpenConsole, now_ms: u64) -> Option<TokenView> {
    let at_ms = console.signed_in_at(now_ms)?;
    Some(TokenView {
        token_id: console.id,
        name: console.user.clone(),
        scope: console.scope,
        agents: Vec::new(),
        state: "valid".to_owned(),
        created_at_ms: at_ms,
        expires_at_ms: Some(at_ms + SIGN_IN_MS),
        revoked_at_ms: None,
        console: true,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn secret(byte: u8) -> BearerToken {
        BearerToken::new([byte; 32])
    }

    fn is_valid(all: &SignIns, token: u8, now_ms: u64) -> bool {
        all.find(secret(token).digest(), now_ms, true).is_some()
    }

    #[test]
    fn code_is_exchanged_once_and_in_time() {
        let all = SignIns::default();
        let _first = all.open("ann".to_owned(), Scope::Approve, &secret(1), 1_000);
        assert!(!all.log_in(&secret(9), &secret(2), 1_000), "an unknown code");
        assert!(!is_valid(&all, 1, 1_000), "a code is no token");
        assert!(all.log_in(&secret(1), &secret(2), 1_000 + CODE_MS - 1));
        let (principal, lease) = all.find(secret(2).digest(), 1_000 + CODE_MS, true).unwrap();
        assert_eq!((principal.name.as_str(), principal.scope), ("ann", Scope::Approve));
        assert!(principal.is_console() && !principal.is_local_user() && !lease.revoked.is_cancelled());
        let _late = all.open("ann".to_owned(), Scope::Approve, &secret(3), 1_000);
        assert!(!all.log_in(&secret(3), &secret(4), 1_000 + CODE_MS), "too late");
    }

    #[test]
    fn second_use_of_a_code_ends_the_first_sign_in() {
        let all = SignIns::default();
        let _console = all.open("ann".to_owned(), Scope::Admin, &secret(1), 0);
        assert!(all.log_in(&secret(1), &secret(2), 5));
        let (_, lease) = all.find(secret(2).digest(), 5, true).unwrap();
        assert!(!all.log_in(&secret(1), &secret(3), 6));
        assert!(lease.revoked.is_cancelled() && !is_valid(&all, 2, 6) && !is_valid(&all, 3, 6));
        assert!(!all.log_in(&secret(1), &secret(4), 7), "it stays over");
    }

    #[test]
    fn sign_in_ends_with_its_command_its_time_its_logout_or_its_revocation() {
        let all = SignIns::default();
        let first = all.open("ann".to_owned(), Scope::Admin, &secret(1), 0);
        let _second = all.open("ann".to_owned(), Scope::Admin, &secret(2), 0);
        assert!(all.views(0).is_empty(), "nobody has signed in");
        assert!(all.log_in(&secret(1), &secret(11), 5) && all.log_in(&secret(2), &secret(12), 6));
        assert_eq!(all.views(6).iter().map(|view| view.created_at_ms).collect::<Vec<_>>(), [6, 5]);
        let (_, lease) = all.find(secret(11).digest(), 6, true).unwrap();
        drop(first);
        assert!(lease.revoked.is_cancelled() && !is_valid(&all, 11, 6) && is_valid(&all, 12, 6));
        assert!(!is_valid(&all, 12, 6 + SIGN_IN_MS) && all.views(6 + SIGN_IN_MS).is_empty());
        let id = all.views(6)[0].token_id.to_string();
        assert_eq!(all.revoke(&id, 7).unwrap().state, "revoked");
        assert!(all.revoke(&id, 7).is_none() && !is_valid(&all, 12, 7));
        let _third = all.open("ann".to_owned(), Scope::Admin, &secret(3), 0);
        assert!(all.log_in(&secret(3), &secret(13), 8));
        let ended = all.log_out(secret(13).digest()).unwrap();
        assert!(
            !ended.is_cancelled() && !is_valid(&all, 13, 8) && all.log_out(secret(13).digest()).is_none()
        );
    }
}
