//! Documents that must keep up with the code.

use crate::assert_none;
use acp_shared::codes::Code;
use acp_shared::refusal::RefusalCode;
use acp_tests::world::repository;
use std::collections::BTreeMap;

const ERRORS: &str = "docs/manual/errors.md";
const ARCHITECTURE: &str = "ARCHITECTURE.md";

fn document(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The sections of a document: heading of the second level → text below it.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    let mut heading = None;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = Some(title.trim().trim_matches('`'));
            found.insert(title.trim().trim_matches('`'), String::new());
        } else if let Some(section) = heading.and_then(|title| found.get_mut(title)) {
            section.push_str(line);
            section.push('\n');
        }
    }
    found
}

#[test]
fn every_error_code_is_explained() {
    let text = document(ERRORS);
    let sections = sections(&text);
    let mut violations = Vec::new();
    for code in Code::ALL {
        let Some(section) = sections.get(code.as_str()) else {
            violations.push(format!("{code} has no section"));
            continue;
        };
        for part in ["**What happened.** ", "**Why.** ", "**What to do.** "] {
            if section.matches(part).count() != 1 {
                violations.push(format!("{code} does not say {part}"));
            }
        }
        if !section.contains(&format!("Exit code {}.", code.exit())) {
            violations.push(format!("{code} does not say `Exit code {}.`", code.exit()));
        }
    }
    let unknown = sections.keys().filter(|heading| Code::parse(heading).is_none());
    violations.extend(unknown.map(|heading| format!("there is no code {heading}")));
    assert_none(&format!("{ERRORS} has a section for every code, and for nothing else"), &violations);
}

/// Gateways pass them on, and the admin command prints them.
#[test]
fn every_refusal_of_the_supervisor_is_explained() {
    let text = document(ERRORS);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let explained: Vec<&str> = rows.flat_map(|cell| cell.split(['`', ',', ' '])).collect();
    let missing = RefusalCode::ALL.iter().filter(|code| !explained.contains(&code.as_str()));
    let violations: Vec<String> = missing.map(|code| format!("{code} has no row")).collect();
    assert_none(&format!("{ERRORS} has a row for every refusal of the supervisor"), &violations);
}

/// What stands between backticks on one line.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether a quoted text claims to be a path of this repository: it starts in one of its directories, or ends
/// like one of its files. Protocol methods (`session/load`) have slashes too.
fn is_repository_path(text: &str, roots: &[String]) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let Some((first, _)) = text.split_once('/') else { return false };
    let like_a_file = [".rs", ".md", ".toml", ".sql", ".sh", ".txt"].iter().any(|end| text.ends_with(end));
    text.chars().all(plain) && !first.is_empty() && (like_a_file || roots.iter().any(|root| root == first))
}

#[test]
fn paths_in_the_architecture_exist() {
    let entries = std::fs::read_dir(repository()).unwrap_or_else(|e| panic!("{e}"));
    let entries = entries.flatten().filter(|entry| entry.path().is_dir());
    let roots: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let text = document(ARCHITECTURE);
    let paths: Vec<&str> = quoted(&text).filter(|path| is_repository_path(path, &roots)).collect();
    assert!(!paths.is_empty(), "{ARCHITECTURE} names no path: it has a code map");
    let missing =
        paths.iter().filter(|path| !path.starts_with("target/") && !repository().join(path).exists());
    let violations: Vec<String> = missing.map(|path| (*path).to_owned()).collect();
    assert_none(&format!("{ARCHITECTURE} names only what exists, by its path from the root"), &violations);
}

#[test]
fn the_rules_see_what_they_must() {
    let roots = vec!["gateway".to_owned()];
    for (text, is) in [
        ("gateway/src/core", true),
        ("core/verify.rs", true),
        ("session/load", false),
        ("fs/*", false),
        ("/proc/PID/exe", false),
        ("gateway", false),
        ("gateway/{a,b}.rs", false),
    ] {
        assert_eq!(is_repository_path(text, &roots), is, "{text}");
    }
    assert_eq!(quoted("a `b` c `d`\n`e").collect::<Vec<_>>(), ["b", "d", "e"]);
    assert_eq!(sections("x\n## A\none\n## `B`\ntwo\n").len(), 2);
}
