//! Completion in Debian's zsh and fish.

use crate::{Shell, command_of, house_with_label};
use acp_tests::cli::{has_program, run};
use acp_tests::house::House;
use acp_tests::wait::LONG;

/// `make test-foreign` unpacks both; elsewhere the test is skipped with a message, and in CI it fails without them.
#[test]
#[ignore = "needs zsh and fish: make test-foreign"]
fn zsh_and_fish_complete_agents_sessions_and_options() {
    let (house, key) = house_with_label();
    let (start, id) = key.rsplit_once(':').unwrap_or_default();
    let prefix = id.get(..6).unwrap_or_default();
    let label = "fix the build";
    // Line up to the cursor, its last words afterwards in zsh, and the value that is offered in fish.
    let cases = [
        ("sess", "acp-gateway sessions".to_owned(), "sessions"),
        ("sessions pru", "sessions prune".to_owned(), "prune"),
        ("chat --agent dem", "chat --agent demo".to_owned(), "demo"),
        ("prompt age", format!("prompt {key}"), &key),
        (&format!("sessions show {start}:"), format!("sessions show {key}"), &key),
        (&format!("logs {prefix}"), format!("logs {id}"), id),
        ("sessions show fix", "show fix\\ the\\ build".to_owned(), label),
        ("sessions export fix\\ t", "export fix\\ the\\ build".to_owned(), label),
        ("steer \"fix t", "steer \"fix the build\"".to_owned(), label),
        ("steer 'fix t", "steer 'fix the build'".to_owned(), label),
        ("sessions set --last --mode au", "--mode auto".to_owned(), "auto"),
        ("sessions spawn --permission deny", "--permission deny-all".to_owned(), "deny-all"),
        ("sessions spawn --permission=deny", "--permission=deny-all".to_owned(), "--permission=deny-all"),
    ];
    if has_program("zsh") {
        let mut zsh = zsh(&house);
        for (typed, want, _) in &cases {
            zsh.completes(&format!("acp-gateway {typed}"), want);
        }
    }
    if has_program("fish") {
        for (typed, _, want) in &cases {
            let offered = fish_offers(&house, &format!("acp-gateway {typed}"));
            assert_eq!(offered.first().map(String::as_str), Some(*want), "{typed}: {offered:?}");
        }
    }
    house.end();
}

/// Starts zsh with files of its own: without a `.zshrc` it asks a newcomer for settings, and `-f` reads none.
fn zsh(house: &House) -> Shell {
    // A zsh that is unpacked but not installed is told where its modules and functions are.
    house.world.write("zsh/.zshenv", "[[ -z $ZSH_PLACES ]] || source $ZSH_PLACES\n");
    let settings = "fpath=($SCRIPTS $fpath)\nautoload -Uz compinit\ncompinit -u -D\nPS1='$ '\n";
    house.world.write("zsh/.zshrc", settings);
    let mut command = command_of(house, "zsh");
    command.env("ZDOTDIR", house.world.path("zsh")).args(["-d", "-i"]);
    Shell::start(&mut command, &[])
}

/// Values that fish offers for a line; it needs no terminal for that.
fn fish_offers(house: &House, line: &str) -> Vec<String> {
    let script = "set -p fish_complete_path $SCRIPTS; complete -C $argv[1]";
    let mut command = command_of(house, "fish");
    let done = run(command.args(["--no-config", "-c", script, line]), LONG).ok();
    // A description follows a tab.
    done.stdout.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}
