//! The document equals the checked-in file, the mounted routes, and what clients get.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::{OPERATIONS, build, render};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Routes that only a gateway refused by its supervisor mounts, with handlers of documented operations.
const REFUSED_ONLY: &str = "src/app/rollback.rs";

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|end| end == "rs") {
            out.push(path);
        }
    }
}

/// Returns method and path of each route in the sources: `.route("/path", get(…).post(…))`.
fn mounted() -> BTreeSet<(String, String)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    files(&here.join("src"), &mut sources);
    let mut found = BTreeSet::new();
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap();
        let product = text.split("mod tests {").next().unwrap();
        let is_test =
            source.ends_with("tests.rs") || source.components().any(|part| part.as_os_str() == "tests");
        if !text.contains("Router::new()") || is_test || source.ends_with(REFUSED_ONLY) {
            continue;
        }
        for piece in product.split(".route(").skip(1) {
            let Some((path, rest)) = piece.trim_start().strip_prefix('"').and_then(|it| it.split_once('"'))
            else {
                continue;
            };
            // ACP has its own specification.
            if path.starts_with("/acp") {
                continue;
            }
            let call = rest.split(".route(").next().unwrap().split('\n').next().unwrap();
            let methods = ["get", "post", "put", "patch", "delete"];
            let mut of_route: Vec<&str> =
                methods.into_iter().filter(|method| call.contains(&format!("{method}("))).collect();
            if call.contains("ending(") {
                of_route = vec!["post"];
            }
            assert!(!of_route.is_empty(), "no method in {source:?}: {call}");
            found.extend(of_route.into_iter().map(|method| (method.to_owned(), path.to_owned())));
        }
    }
    found
}

#[test]
fn documented_routes_are_the_mounted_ones() {
    let documented: BTreeSet<(String, String)> =
        OPERATIONS.iter().map(|operation| (operation.method.to_owned(), operation.path.to_owned())).collect();
    let mounted = mounted();
    assert!(mounted.len() > 30, "{mounted:?}");
    let missing: Vec<_> = mounted.difference(&documented).collect();
    let extra: Vec<_> = documented.difference(&mounted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "not documented: {missing:?}; not mounted: {extra:?}");
    assert_eq!(documented.len(), OPERATIONS.len(), "an operation is documented twice");
}

/// With `ACP_WRITE_OPENAPI=1` the file is written instead.
#[test]
fn checked_in_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/manual/openapi.json");
    if std::env::var_os("ACP_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, render()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let hint = "docs/manual/openapi.json differs; write it with ACP_WRITE_OPENAPI=1 cargo test -p acp-gateway --lib openapi";
    assert!(found == render(), "{hint}");
}

fn references(value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get("$ref") {
                out.insert(to.clone());
            }
            members.values().for_each(|value| references(value, out));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, out)),
        _ => {}
    }
}

#[test]
fn every_reference_of_the_document_resolves() {
    let document = build();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let dangling: Vec<&String> =
        found.iter().filter(|to| document.pointer(to.trim_start_matches('#')).is_none()).collect();
    assert_eq!(dangling, Vec::<&String>::new());
    let used = |name: &String| found.contains(&format!("#/components/schemas/{name}"));
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let unused: Vec<&String> = schemas.keys().filter(|name| !used(name)).collect();
    assert_eq!(unused, Vec::<&String>::new(), "schemas without a use");
}
