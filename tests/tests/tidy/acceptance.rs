//! The acceptance list names tests: each of them is there, and each point has one.

use crate::assert_none;
use crate::cases::names_of_tests;
use crate::source::sources;
use acp_tests::world::repository;
use std::collections::BTreeSet;

const DOCUMENT: &str = "packaging/doc/acceptance.md";
/// The points of the source document's list.
const POINTS: usize = 13;

/// The points in order: number, and the tests that it names.
fn points(text: &str) -> Vec<(String, Vec<String>)> {
    let mut points: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            points.push((title.split('.').next().unwrap_or_default().to_owned(), Vec::new()));
        } else if let (Some(rest), Some((_, tests))) = (line.strip_prefix("- `"), points.last_mut()) {
            tests.push(rest.trim_end_matches('`').to_owned());
        }
    }
    points
}

fn judge(points: &[(String, Vec<String>)], known: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for (at, (number, tests)) in points.iter().enumerate() {
        if *number != (at + 1).to_string() {
            violations.push(format!("point {number} stands where {} should", at + 1));
        }
        if tests.is_empty() {
            violations.push(format!("point {number} names no test"));
        }
        let gone = tests.iter().filter(|name| !known.contains(*name));
        violations.extend(gone.map(|name| format!("point {number}: there is no test {name}")));
    }
    violations
}

#[test]
fn every_point_names_tests_that_are_there() {
    let text = std::fs::read_to_string(repository().join(DOCUMENT)).unwrap_or_else(|e| panic!("{e}"));
    let points = points(&text);
    assert_eq!(points.len(), POINTS, "{DOCUMENT} has the points of the source document");
    let known = sources(&["gateway", "tests"]).iter().flat_map(names_of_tests).collect();
    assert_none(&format!("{DOCUMENT} names tests for every point"), &judge(&points, &known));
}

#[test]
fn the_rules_see_what_they_must() {
    let known: BTreeSet<String> = ["a".to_owned()].into();
    for (text, violations) in [
        ("## 1. One\n\n- `a`\n", 0),
        ("## 1. One\n\n- `a`\n- `b`\n", 1),
        ("## 1. One\n\nwords, and `a` among them\n", 1),
        ("## 2. One\n\n- `a`\n", 1),
        ("## 1. One\n- `a`\n## 2. Two\n- `a`\n", 0),
    ] {
        assert_eq!(judge(&points(text), &known).len(), violations, "{text}");
    }
}
