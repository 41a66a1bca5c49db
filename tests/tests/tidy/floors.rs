//! Imports run downward.

use crate::assert_none;
use crate::source::{Named, Source, product, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Top modules of each package by floor: a module imports modules of lower floors only. A package that is not listed
/// has no floors.
const FLOORS: [(&str, &[&[&str]]); 3] = [
    (
        "gateway",
        &[
            &["util", "config", "metrics"],
            &["supervisor"],
            &["runtime", "channel"],
            &["session"],
            &["conversation"],
            &["api", "ops"],
            &["app"],
            &["cli"],
        ],
    ),
    ("gateway/discord", &[&["core"], &["rest", "websocket"]]),
    (
        "supervisor",
        &[
            &["config"],
            &["core"],
            &["sys", "store"],
            &["relay"],
            &["context"],
            &["lease", "server"],
            &["files"],
            &["owner"],
            &["app"],
            &["cli"],
        ],
    ),
];

/// Top modules that only tests and fuzzing compile.
const TEST_SUPPORT: [&str; 2] = ["tests", "fuzzing"];

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
const PACKAGES: [(&str, &[&str]); 9] = [
    ("shared", &[]),
    ("wrapper", &["acp_shared"]),
    ("supervisor", &["acp_shared"]),
    ("supervisor/acpx-bridge", &["acp_shared"]),
    ("gateway/core", &["acp_shared"]),
    ("gateway/store", &["acp_shared", "acp_core"]),
    ("gateway/discord", &["acp_shared"]),
    ("gateway/demo-agent", &[]),
    ("gateway", &["acp_shared", "acp_core", "acp_store", "acp_discord", "acp_demo_agent"]),
];

/// Files of the gateway that name the database's engine. All others use `acp_store::db`.
const ENGINE: [&str; 5] = ["backup", "db", "error", "salvage", "schema"];

/// Packages and modules that decide without I/O.
const PURE: [&str; 3] = ["gateway/core/src/", "gateway/discord/src/core/", "supervisor/src/core/"];

/// Returns the packages that a package may name.
pub(crate) fn below(package: &str) -> &'static [&'static str] {
    PACKAGES.iter().find(|(name, _)| *name == package).map_or(&[], |(_, below)| below)
}

/// Returns the floor of a top module; `None` if the table does not list it.
fn floor(package: &str, module: &str) -> Option<usize> {
    let (_, floors) = FLOORS.iter().find(|(name, _)| *name == package)?;
    floors.iter().position(|modules| modules.contains(&module))
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
    let package = source.package();
    let modules = module_of(&source.path);
    let Some(top) = modules.first() else { return Vec::new() };
    if TEST_SUPPORT.contains(top) {
        return Vec::new();
    }
    let Some(own) = floor(package, top) else {
        return vec![format!("{}: `{top}` is on no floor", source.path)];
    };
    let judge = |named: Named| {
        let target = own_module(&named, modules.len())?;
        // Names that are re-exported at the root (types, macros) begin with a capital or are no module.
        let is_module = target.chars().next().is_some_and(char::is_lowercase) && target != *top;
        // Other lower-case names are functions and macros of the root.
        let other = floor(package, target)?;
        (is_module && other > own).then(|| {
            format!("{}:{}: `{top}` (floor {own}) names `{target}` (floor {other})", source.path, named.line)
        })
    };
    source.named().into_iter().filter_map(judge).collect()
}

#[test]
fn imports_run_downward() {
    let files = sources(&["gateway/src", "gateway/discord/src", "supervisor/src"]);
    let violations: Vec<String> = files.iter().flat_map(upward_imports).collect();
    assert_none("a module imports modules of lower floors only (FLOORS)", &violations);
}

/// Modules of a package that import each other in a circle, by repeated removal of the modules that import none of the
/// others.
fn circle(files: &[Source]) -> Vec<String> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in files {
        let modules = module_of(&source.path);
        let Some(top) = modules.first().filter(|top| !TEST_SUPPORT.contains(top)) else { continue };
        let named = source.named();
        let product = named.iter().filter(|named| !source.is_test(named.line));
        let own = product.filter_map(|named| own_module(named, modules.len())).map(str::to_owned);
        imports.entry((*top).to_owned()).or_default().extend(own.filter(|name| name != top));
    }
    loop {
        let before = imports.len();
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|_, named| named.iter().any(|name| left.contains(name)));
        if imports.len() == before {
            return left.into_iter().collect();
        }
    }
}

#[test]
fn modules_of_the_store_import_each_other_in_no_circle() {
    assert_none("modules of the store form no import cycle", &circle(&sources(&["gateway/store/src"])));
}

fn forbidden_in_core(segments: &[String]) -> bool {
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let io = match parts.as_slice() {
        [krate, ..] if NOT_IN_CORE.contains(krate) => true,
        ["std", "net", "SocketAddr"] => false,
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
    let core = product().into_iter().filter(|source| PURE.iter().any(|dir| source.path.starts_with(dir)));
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
        "pure modules (PURE) name no I/O, no process and no clock (time and fresh ids are arguments)",
        &violations,
    );
}

#[test]
fn packages_name_only_packages_below_them() {
    let mut violations = Vec::new();
    for source in product() {
        let package = source.package();
        let below = below(package);
        for named in source.named() {
            let Some(first) = named.segments.first() else { continue };
            let name = package.rsplit('/').next().unwrap_or_default().replace('-', "_");
            let own = first.strip_prefix("acp_") == Some(name.as_str());
            if first.starts_with("acp_") && !own && !below.contains(&first.as_str()) {
                violations.push(format!("{}:{}: {first}", source.path, named.line));
            }
        }
    }
    assert_none("a package names lower packages only (PACKAGES)", &violations);
}

/// Names of an engine in a file of the gateway outside of [`ENGINE`], the connections to PostgreSQL and tests: rusqlite and its
/// connection, and tokio-postgres.
fn engine_named(source: &Source) -> Vec<String> {
    let engine = ENGINE.map(|module| format!("gateway/store/src/{module}.rs"));
    if engine.contains(&source.path) || source.path.starts_with("gateway/store/src/postgres/") {
        return Vec::new();
    }
    let named = source.named();
    let paths = named.iter().filter(|named| {
        named.segments.iter().any(|name| name.starts_with("rusqlite") || name.starts_with("tokio_postgres"))
    });
    let calls = (1..).zip(source.text.lines()).filter(|(_, text)| text.contains(".sqlite()"));
    paths
        .map(|named| named.line)
        .chain(calls.map(|(line, _)| line))
        .filter(|line| !source.is_test(*line))
        .map(|line| format!("{}:{line}", source.path))
        .collect()
}

#[test]
fn engine_of_the_store_is_named_in_its_own_files_only() {
    let files = sources(&["gateway/src", "gateway/core/src", "gateway/store/src", "gateway/discord/src"]);
    let violations: Vec<String> = files.iter().flat_map(engine_named).collect();
    assert_none("SQL goes through `acp_store::db` outside of the engine's files (ENGINE)", &violations);
}

#[test]
fn import_checks_detect_violations() {
    let circle = |texts: [&str; 2]| {
        let files = [("p/src/a.rs", texts[0]), ("p/src/b.rs", texts[1])];
        circle(&files.map(|(path, text)| Source::parse(path, text)))
    };
    assert_eq!(circle(["use crate::b::X;", "fn f() { crate::a::g() }"]), ["a", "b"]);
    assert_eq!(circle(["use crate::{Store, b};", "#[cfg(test)] mod tests { use crate::a; }"]), [""; 0]);
    let engine = |path: &str, text: &str| engine_named(&Source::parse(path, text)).len();
    assert_eq!(engine("gateway/store/src/runs.rs", "use rusqlite::Row;\nfn f(db: &Db) { db.sqlite(); }"), 2);
    assert_eq!(engine("gateway/store/src/schema.rs", "use rusqlite::Connection;"), 0);
    assert_eq!(engine("gateway/src/app.rs", "#[cfg(test)]\nmod tests { use rusqlite::Row; }"), 0);
    let seen = |path: &str, text: &str| upward_imports(&Source::parse(path, text));
    for (path, text, violations) in [
        ("gateway/src/session/task.rs", "use crate::conversation::inbound;", 1),
        ("gateway/src/session/task.rs", "use crate::metrics::Metrics; use super::manager;", 0),
        ("gateway/src/runtime/agents.rs", "use crate::{config::Live, cli::{a, b}, session};", 3),
        ("gateway/src/channel.rs", "use super::session;", 1),
        ("gateway/src/channel.rs", "mod tests { use super::super::session; use super::inbox; }", 1),
        ("gateway/src/session/mod.rs", "fn f() { call!(crate::app::run()) }", 1),
        ("gateway/src/unknown.rs", "use crate::config::Live;", 1),
        ("gateway/src/app.rs", "use crate::session; use crate::cli;", 1),
        ("gateway/src/lib.rs", "pub mod app; use crate::cli;", 0),
        ("supervisor/src/core/a.rs", "// crate::store\nconst S: &str = \"crate::store::x\";", 0),
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
