//! The gateway accesses no project files: the supervisor does, where agents run and as their user.

use crate::assert_none;
use crate::source::{Source, sources};
use crate::words::calls;

/// Files and directories of the gateway's code that may use the file system, with the purpose.
const ALLOWED: [(&str, &str); 10] = [
    ("cli/", "commands of a user, configuration and logs"),
    ("app/signals.rs", "the terminal, to know whether it is gone"),
    ("api/socket.rs", "the socket"),
    ("api/peer_ancestry.rs", "/proc"),
    ("util/random.rs", "random bytes of the kernel"),
    ("supervisor/mod.rs", "the secret beside the supervisor's socket"),
    ("channel/discord/settings.rs", "the file of a bot's token"),
    ("app/store.rs", "the authorities of a database server"),
    ("util/private_file.rs", "files of webhooks' secrets and of the database server's address"),
    ("runtime/local_lookup.rs", "commands that run without a gateway"),
];
/// Modules for files.
const MODULES: [[&str; 2]; 4] = [["std", "fs"], ["tokio", "fs"], ["rustix", "fs"], ["acp_shared", "probe"]];
/// Methods of paths that access the file system.
const METHODS: [&str; 8] =
    ["exists", "try_exists", "is_dir", "is_file", "is_symlink", "canonicalize", "read_dir", "read_link"];
/// The module that looks up programs and directories in the own process.
const LOCAL: &str = "local_lookup";

/// Path below the source directory of the gateway.
fn inside(source: &Source) -> &str {
    source.path.strip_prefix("gateway/src/").unwrap_or(&source.path)
}

fn file_accesses(source: &Source) -> Vec<String> {
    let path = inside(source);
    if ALLOWED.iter().any(|(allowed, _)| path.starts_with(allowed)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    calls(source.tokens.clone(), &METHODS, &mut found);
    for named in source.named() {
        if named.segments.windows(2).any(|pair| MODULES.iter().any(|module| pair == module)) {
            found.push((named.line, named.segments.join("::")));
        }
    }
    found.retain(|(line, _)| !source.is_test(*line));
    found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", source.path)).collect()
}

fn local_lookups(source: &Source) -> Vec<String> {
    let named = source.named().into_iter().filter(|named| {
        let is_local = named.segments.iter().any(|segment| segment == LOCAL);
        is_local && !inside(source).starts_with("cli/") && !source.is_test(named.line)
    });
    named.map(|named| format!("{}:{}: {}", source.path, named.line, named.segments.join("::"))).collect()
}

#[test]
fn gateway_does_not_access_project_files() {
    let files = sources(&["gateway/src"]);
    let violations: Vec<String> = files.iter().flat_map(file_accesses).collect();
    assert_none(
        "the gateway asks the supervisor for files, programs and directories (runtime/lookup.rs, runtime/agent_host/fs.rs)",
        &violations,
    );
    let violations: Vec<String> = files.iter().flat_map(local_lookups).collect();
    assert_none("only commands without a gateway look things up by themselves", &violations);
}

#[test]
fn file_access_checks_detect_violations() {
    for (path, text, violations) in [
        ("gateway/src/runtime/agents.rs", "use std::fs;", 1),
        ("gateway/src/runtime/agents.rs", "use acp_shared::probe;", 1),
        ("gateway/src/runtime/agents.rs", "use rustix::fs::{Mode, open};", 2),
        ("gateway/src/runtime/agents.rs", "fn f() { tokio::fs::read(p); p.is_dir(); p.canonicalize(); }", 3),
        ("gateway/src/runtime/agents.rs", "fn f() { std::io::read(p); p.is_absolute(); }", 0),
        ("gateway/src/runtime/agents.rs", "#[cfg(test)] mod tests { use std::fs; }", 0),
        ("gateway/src/cli/up.rs", "use std::fs;", 0),
    ] {
        assert_eq!(file_accesses(&Source::parse(path, text)).len(), violations, "{path}: {text}");
    }
    for (path, violations) in [
        ("gateway/src/session/manager.rs", 1),
        ("gateway/src/cli/up.rs", 0),
        ("gateway/src/session/manager_tests.rs", 0),
    ] {
        let source = Source::parse(path, "use crate::runtime::local_lookup;");
        assert_eq!(local_lookups(&source).len(), violations, "{path}");
    }
}
