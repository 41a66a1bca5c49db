//! The command line without a supervisor.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_acp-supervisor")).args(args).output().unwrap()
}

#[test]
fn help_names_every_verb() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let codes =
        "Exit codes: 0 done, 1 failed or a negative verdict (verify, doctor), 2 usage or configuration,";
    assert!(text.contains(codes), "{text}");
    for verb in ["serve", "status", "doctor", "leases"] {
        assert!(text.contains(verb), "{text}");
    }
    let text = String::from_utf8(run(&["leases", "--help"]).stdout).unwrap();
    for verb in ["list", "show", "verify", "reap", "close", "watch"] {
        assert!(text.contains(verb), "{text}");
    }
}

#[test]
fn version_is_printed() {
    let output = run(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("acp-supervisor {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn usage_error_exits_with_2() {
    for args in [&["--bad"][..], &["leases", "frobnicate"], &[]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    let output = run(&["--json", "--bad"]);
    assert_eq!(output.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&"error".into(), &"USAGE".into()));
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("unexpected argument '--bad'"), "{message}");
}

#[test]
fn invalid_configuration_is_refused_with_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("s.toml");
    std::fs::write(&config, "# leases\nleases_mx = 3").unwrap();
    let state = dir.path().join("state");
    let args = ["serve", "--state-dir", state.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("did you mean \"leases_max\"?"), "{stderr}");
    assert!(
        stderr.contains(&format!("{}, line 2,", config.display())) && stderr.contains("doctor --config"),
        "{stderr}"
    );
    // A value that only this machine refuses is reported in the same way.
    std::fs::write(&config, "leases_max = 3\n\n[[tenant]]\nuser = \"no-such-user-here\"").unwrap();
    let output = run(&args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains(&format!("{}, line 3,", config.display())) && stderr.contains("create the user"),
        "{stderr}"
    );
    assert!(!state.exists());
}

#[test]
fn missing_wrapper_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["serve", "--wrapper", "/nonexistent", "--state-dir", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no wrapper at /nonexistent"));
    let output = run(&["serve", "--wrapper", "/bin/false", "--state-dir", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/bin/false is not an acp-wrapper") && text.contains("--wrapper"), "{text}");
}

#[test]
fn colours_follow_terminal_and_flags() {
    let colour = |args: &[&str], vars: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        command.arg("doctor").arg("--state-dir").arg(dir.path()).args(args).env_remove("NO_COLOR");
        command.env_remove("CLICOLOR_FORCE").envs(vars.iter().copied());
        command.output().unwrap().stdout.contains(&0x1b)
    };
    assert!(!colour(&[], &[]));
    assert!(colour(&["--color", "always"], &[]));
    assert!(colour(&["--color", "always"], &[("NO_COLOR", "1")]), "a flag overrides the environment");
    assert!(!colour(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!colour(&["--json", "--color", "always"], &[]));
}

#[test]
fn unreachable_supervisor_exits_with_3_and_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    for args in [
        &["status"][..],
        &["leases", "list"],
        &["leases", "watch"],
        &["leases", "close", "0190b5f0", "--yes"],
    ] {
        let mut with = args.to_vec();
        with.extend(["--state-dir", state]);
        let output = run(&with);
        assert_eq!(output.status.code(), Some(3), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("no supervisor answers at") && text.contains("acp-supervisor serve"), "{text}");
    }
}

/// The man pages contain the help texts and pass groff, if installed.
#[test]
fn man_pages_and_completions_are_generated() {
    let dir = tempfile::tempdir().unwrap();
    let (man, completions) = (dir.path().join("man"), dir.path().join("completions"));
    for (what, to) in [("man", &man), ("completions", &completions)] {
        let output = run(&["generate", what, to.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    }
    for (page, words) in [
        (
            "acp-supervisor.1",
            &[".TH acp-supervisor 1", ".SH SYNOPSIS", "Exit codes", "ACP_SUPERVISOR_SOCKET"][..],
        ),
        ("acp-supervisor-leases-list.1", &["\\-\\-older\\-than", "living", "wide"]),
        ("acp-supervisor-leases-watch.1", &["\\-\\-interval"]),
        ("acp-supervisor-doctor.1", &["\\-\\-verbose"]),
    ] {
        let path = man.join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        for word in words {
            assert!(text.contains(word), "{page}: {word}\n{text}");
        }
        check_roff(&path);
    }
    assert!(!man.join("acp-supervisor-generate.1").exists(), "hidden commands have no man page");
    check_roff(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/man/acp-wrapper.1")));
    for (script, word) in [
        ("acp-supervisor.bash", "--older-than"),
        ("_acp-supervisor", "--older-than"),
        ("acp-supervisor.fish", "older-than"),
    ] {
        let text = std::fs::read_to_string(completions.join(script)).unwrap();
        assert!(text.contains(word), "{script}");
    }
    let bash = Command::new("bash").arg("-n").arg(completions.join("acp-supervisor.bash")).output();
    assert!(bash.is_ok_and(|output| output.status.success() && output.stderr.is_empty()));
}

/// Asserts that groff formats a page without warnings.
fn check_roff(page: &std::path::Path) {
    match Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(page).output() {
        Ok(output) => assert!(output.status.success() && output.stderr.is_empty(), "{output:?}"),
        // Without groff only the content is checked.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}
