//! The interface that scripts may rely on, to the letter. What changes here breaks somebody's script.

#[path = "cli_contract/failures.rs"]
mod failures;
#[path = "cli_contract/services.rs"]
mod services;
#[path = "cli_contract/verbs.rs"]
mod verbs;
