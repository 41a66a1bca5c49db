//! Command-line interface that scripts rely on. A change here breaks scripts.

#[path = "cli_contract/background.rs"]
mod background;
#[path = "cli_contract/failures.rs"]
mod failures;
#[path = "cli_contract/prune.rs"]
mod prune;
#[path = "cli_contract/services.rs"]
mod services;
#[path = "cli_contract/verbs.rs"]
mod verbs;
