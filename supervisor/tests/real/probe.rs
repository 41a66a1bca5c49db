//! Probes of the machine, and what tests print about them.

use std::process::Command;

/// Says what a probe saw, or a figure.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Whether this machine can do something, as a command that is tried; what was seen is printed where it cannot.
pub(crate) fn can(what: &str, program: &str, args: &[&str]) -> bool {
    let seen = Command::new(program).args(args).output();
    match &seen {
        Ok(output) if output.status.success() => return true,
        Ok(output) => {
            say(&format!(
                "probe: cannot {what}: {program} {args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Err(error) => say(&format!("probe: cannot {what}: {program}: {error}")),
    }
    false
}
