//! Imports run downward.

use crate::assert_none;
use crate::source::{Named, Source, product, sources};

/// The floors inside of gateway, its Discord package and supervisor. A module that is not listed is a driver.
const FLOORS: [(u8, &[&str]); 5] = [
    (0, &["ids", "error", "config", "metrics", "aside"]),
    (1, &["core"]),
    (2, &["store", "runtime", "channel", "sys"]),
    (3, &[]),
    (4, &["app", "cli", "sim"]),
];
const DRIVERS: u8 = 3;

/// Crates with I/O, processes, sockets, databases or clocks, which `core` must not use.
const NOT_IN_CORE: [&str; 12] = [
    "tokio",
    "tokio_util",
    "rusqlite",
    "nix",
    "rustix",
    "serenity",
    "axum",
    "hyper",
    "hyper_util",
    "interprocess",
    "procfs",
    "sysinfo",
];
/// Modules of the standard library that `core` must not use.
const STD_NOT_IN_CORE: [&str; 7] = ["fs", "process", "net", "os", "env", "thread", "io"];

/// Which packages of the workspace a package may name.
const PACKAGES: [(&str, &[&str]); 5] = [
    ("shared", &[]),
    ("wrapper", &["acp_shared"]),
    ("supervisor", &["acp_shared"]),
    ("gateway", &["acp_shared", "acp_discord"]),
    ("gateway/discord", &["acp_shared"]),
];

fn floor(module: &str) -> u8 {
    FLOORS.iter().find(|(_, modules)| modules.contains(&module)).map_or(DRIVERS, |(floor, _)| *floor)
}

/// The modules above a file, from the root of its crate, the file's own module last.
fn module_of(path: &str) -> Vec<&str> {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let parts = inside.trim_end_matches(".rs").split('/');
    parts.filter(|part| !matches!(*part, "mod" | "lib" | "main")).collect()
}

/// The top module of its own crate that a path names, if it names one.
fn own_module(named: &Named, depth: usize) -> Option<&str> {
    let mut segments = named.segments.iter().map(String::as_str).peekable();
    let first = segments.next()?;
    if first == "crate" {
        return segments.next();
    }
    if first != "super" {
        return None;
    }
    let mut up = 1;
    while segments.peek() == Some(&"super") {
        segments.next();
        up += 1;
    }
    // Only a chain of `super` up to the crate root can name another top module.
    if up == depth + named.inline { segments.next() } else { None }
}

fn upward_imports(source: &Source) -> Vec<String> {
    let modules = module_of(&source.path);
    let Some(top) = modules.first() else { return Vec::new() };
    let own = floor(top);
    let judge = |named: Named| {
        let target = own_module(&named, modules.len())?;
        // Names that are re-exported at the root (types, macros) begin with a capital or are no module.
        let is_module = target.chars().next().is_some_and(char::is_lowercase) && target != *top;
        let above = floor(target);
        (is_module && above > own).then(|| {
            format!("{}:{}: `{top}` (floor {own}) names `{target}` (floor {above})", source.path, named.line)
        })
    };
    source.named().into_iter().filter_map(judge).collect()
}

#[test]
fn imports_run_downward() {
    let files = sources(&["gateway/src", "gateway/discord/src", "supervisor/src"]);
    let violations: Vec<String> = files.iter().flat_map(upward_imports).collect();
    assert_none(
        "ids, error, config, metrics < core < store, runtime, channel, sys < drivers < app, cli",
        &violations,
    );
}

fn forbidden_in_core(segments: &[String]) -> bool {
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let io = match parts.as_slice() {
        [krate, ..] if NOT_IN_CORE.contains(krate) => true,
        ["std", module, ..] => STD_NOT_IN_CORE.contains(module),
        _ => false,
    };
    io || parts.windows(2).any(|pair| matches!(pair, ["Instant" | "SystemTime", "now"]))
}

/// Fresh ids depend on time and chance: outside of tests they are arguments.
fn makes_an_id(segments: &[String]) -> bool {
    segments.last().is_some_and(|last| matches!(last.as_str(), "mint" | "now_v7" | "new_v4"))
}

#[test]
fn core_is_pure() {
    let core = product().into_iter().filter(|source| module_of(&source.path).first() == Some(&"core"));
    let mut violations = Vec::new();
    for source in core {
        for named in source.named() {
            let makes_an_id = makes_an_id(&named.segments) && !source.is_test(named.line);
            if forbidden_in_core(&named.segments) || makes_an_id {
                violations.push(format!("{}:{}: {}", source.path, named.line, named.segments.join("::")));
            }
        }
    }
    assert_none(
        "core/ decides; it names no I/O, no process and no clock (time and fresh ids are arguments)",
        &violations,
    );
}

#[test]
fn packages_name_only_packages_below_them() {
    let mut violations = Vec::new();
    for source in product() {
        let package = source.path.split_once("/src/").map_or("", |(package, _)| package);
        let below = PACKAGES.iter().find(|(name, _)| *name == package).map_or(&[][..], |(_, below)| below);
        for named in source.named() {
            let Some(first) = named.segments.first() else { continue };
            let name = package.rsplit('/').next().unwrap_or_default();
            let own = first.strip_prefix("acp_") == Some(name);
            if first.starts_with("acp_") && !own && !below.contains(&first.as_str()) {
                violations.push(format!("{}:{}: {first}", source.path, named.line));
            }
        }
    }
    assert_none(
        "gateway and supervisor know only acp_shared, and never each other; the gateway knows acp_discord, which knows nothing of it",
        &violations,
    );
}

#[test]
fn import_checks_detect_violations() {
    let seen = |path: &str, text: &str| -> Vec<String> {
        let tokens = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{e}"));
        let source = Source { path: path.to_owned(), text: text.to_owned(), tokens, file };
        upward_imports(&source)
    };
    for (path, text, violations) in [
        ("gateway/src/core/route.rs", "use crate::store::Row;", 1),
        ("gateway/src/core/route.rs", "use crate::ids::Id; use super::run;", 0),
        ("gateway/src/store/tx.rs", "use crate::{core::run, cli::{a, b}, manager};", 3),
        ("gateway/src/store.rs", "use super::manager;", 1),
        ("gateway/src/store.rs", "mod tests { use super::super::manager; use super::tx; }", 1),
        ("gateway/src/store/mod.rs", "fn f() { call!(crate::app::run()) }", 1),
        ("gateway/src/manager.rs", "use crate::store; use crate::app::App;", 1),
        ("gateway/src/app.rs", "use crate::store; use crate::cli;", 0),
        ("gateway/src/lib.rs", "pub mod app; use crate::cli;", 0),
        ("gateway/src/core/a.rs", "// crate::store\nconst S: &str = \"crate::store::x\";", 0),
    ] {
        assert_eq!(seen(path, text).len(), violations, "{path}: {text}: {:?}", seen(path, text));
    }
    for (path, forbidden) in [
        ("std::fs::read", true),
        ("std::collections::BTreeMap", false),
        ("tokio::time::Duration", true),
        ("std::time::Instant::now", true),
        ("SystemTime::now", true),
        ("Instant::checked_add", false),
    ] {
        let segments: Vec<String> = path.split("::").map(str::to_owned).collect();
        assert_eq!(forbidden_in_core(&segments), forbidden, "{path}");
    }
    assert!(makes_an_id(&["LeaseId".to_owned(), "mint".to_owned()]));
    assert!(!makes_an_id(&["LeaseId".to_owned(), "parse".to_owned()]));
}
