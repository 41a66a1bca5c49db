//! Completion in Debian's zsh and fish.

use crate::complete_in;

#[test]
#[ignore = "needs zsh and fish: make test-foreign"]
fn debians_zsh_and_fish_complete_agents_and_sessions() {
    complete_in(&["zsh", "fish"]);
}
