//! Manifests, dependency trees and files that are not compiled.

use crate::assert_none;
use crate::floors::below;
use crate::source::{PRODUCT, product};
use acp_tests::world::repository;
use std::process::Command;

/// Crates of asynchronous runtimes.
const RUNTIMES: [&str; 8] = [
    "tokio",
    "mio",
    "async-std",
    "async-executor",
    "smol",
    "futures-executor",
    "futures-util",
    "interprocess",
];

#[test]
fn the_wrapper_and_the_pure_packages_have_no_async_runtime() {
    for package in ["acp-wrapper", "acp-core"] {
        let names = dependency_tree(package);
        assert!(
            names.iter().any(|name| name == "acp-shared"),
            "this is not the tree of {package}: {names:?}"
        );
        let databases = ["rusqlite", "libsqlite3-sys"];
        let violations: Vec<String> = names
            .into_iter()
            .filter(|name| RUNTIMES.contains(&name.as_str()) || databases.contains(&name.as_str()))
            .collect();
        assert_none(&format!("{package} has no asynchronous runtime and no database"), &violations);
    }
}

/// Returns the names of all packages that a package is built from.
fn dependency_tree(package: &str) -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = ["tree", "--locked", "--offline", "-p", package, "--edges", "normal", "--prefix", "none"];
    let output = Command::new(cargo).args(tree).current_dir(repository()).output();
    let output = output.unwrap_or_else(|e| panic!("cargo tree: {e}"));
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn manifest(package: &str) -> toml::Table {
    let path = repository().join(package).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn versions_are_declared_in_workspace_only() {
    let mut violations = Vec::new();
    for package in PRODUCT.iter().chain(&["tests"]) {
        let manifest = manifest(package);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
            for (name, value) in table {
                if value.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    violations.push(format!("{package}: {name}"));
                }
            }
        }
    }
    assert_none(
        "a dependency is stated in [workspace.dependencies] and taken with `workspace = true`",
        &violations,
    );
}

#[test]
fn packages_depend_downward_and_use_workspace_lints() {
    let mut violations = Vec::new();
    for package in PRODUCT {
        let manifest = manifest(package);
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let ours =
            dependencies.into_iter().flat_map(|table| table.keys()).filter(|name| name.starts_with("acp-"));
        let below = |name: &str| below(package).contains(&name.replace('-', "_").as_str());
        violations
            .extend(ours.filter(|name| !below(name)).map(|name| format!("{package} depends on {name}")));
        let lints =
            manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        if lints != Some(true) {
            violations.push(format!("{package} does not take the workspace's lints"));
        }
    }
    assert_none("packages depend on lower ones only (PACKAGES), under the workspace's lints", &violations);
}

/// Every binary package needs a test of its own, otherwise a fresh `cargo test` does not build its program.
#[test]
fn every_program_has_a_test_of_its_command_line() {
    let missing =
        ["wrapper", "supervisor", "gateway"].iter().map(|package| format!("{package}/tests/cli.rs"));
    let violations: Vec<String> = missing.filter(|path| !repository().join(path).is_file()).collect();
    assert_none("a binary package has tests/cli.rs", &violations);
}

#[test]
fn every_source_file_is_compiled() {
    let files = product();
    let mut violations = Vec::new();
    for source in &files {
        let Some((package, inside)) = source.path.split_once("/src/") else { continue };
        let module = inside.trim_end_matches(".rs").trim_end_matches("/mod");
        if matches!(module, "lib" | "main") || module.starts_with("bin/") {
            continue;
        }
        // A module with a `#[path]` is declared by a file in the same directory.
        let (dir, name) = module.rsplit_once('/').unwrap_or(("", module));
        let parents = match dir {
            "" => vec!["lib.rs".to_owned(), "main.rs".to_owned()],
            dir => vec![format!("{dir}.rs"), format!("{dir}/mod.rs")],
        };
        let parents: Vec<String> = parents.iter().map(|parent| format!("{package}/src/{parent}")).collect();
        let siblings = format!("{package}/src/{dir}").trim_end_matches('/').to_owned();
        let declared = files.iter().any(|other| {
            let beside = other.path.rsplit_once('/').is_some_and(|(dir, _)| dir == siblings);
            (parents.contains(&other.path) || beside) && other.path != source.path && other.declares(name)
        });
        if !declared {
            violations.push(format!("{} is declared in none of {parents:?}", source.path));
        }
    }
    assert_none("a file that no `mod` names is not compiled", &violations);
}
