//! Probes of the machine and output of tests.

use std::process::Command;

/// Prints the result of a probe or a measured figure.
pub(crate) fn report(text: &str) {
    println!("{text}");
}

/// Tries a command. Returns true on success, and prints the failure otherwise.
pub(crate) fn is_possible(name: &str, program: &str, args: &[&str]) -> bool {
    let result = Command::new(program).args(args).output();
    match &result {
        Ok(output) if output.status.success() => return true,
        Ok(output) => {
            report(&format!(
                "probe: cannot {name}: {program} {args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Err(error) => report(&format!("probe: cannot {name}: {program}: {error}")),
    }
    false
}
