//! The requirements page names existing tests, and each requirement has a test or a reason for none.

use crate::source::{quoted, sources};
use crate::test_names::names_of_tests;
use crate::{REQUIREMENTS, assert_none, requirements};
use std::collections::BTreeSet;

/// Number of acceptance points in the source document.
const POINTS: usize = 13;
/// Number of user requirements of a bot.
const WISHES: usize = 20;
/// Numbers of cases: delivery, bindings, and the binding service.
const CASES: [(&str, usize); 3] = [("C", 14), ("D", 15), ("S", 5)];

/// Points in order: number and named tests.
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
fn every_acceptance_point_names_existing_tests() {
    let text = requirements("control plane");
    let points = points(&text);
    assert_eq!(points.len(), POINTS, "{REQUIREMENTS} has the points of the source document");
    let known = sources(&["gateway", "tests"]).iter().flat_map(names_of_tests).collect();
    assert_none(&format!("{REQUIREMENTS} names tests for every point"), &judge(&points, &known));
}

/// Points without tests and without a reason.
fn unsaid(text: &str) -> Vec<String> {
    let sections = text.split("\n## ").skip(1);
    let is_silent = |section: &&str| !section.contains("\n- `") && !section.contains("\nNot ");
    sections.filter(is_silent).map(|section| section.lines().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_discord_requirement_names_tests_or_a_reason() {
    let text = requirements("discord");
    let points = points(&text);
    let numbers: Vec<String> = points.iter().map(|(number, _)| number.clone()).collect();
    let wishes = (1..=WISHES).map(|number| number.to_string());
    let cases =
        CASES.into_iter().flat_map(|(kind, count)| (1..=count).map(move |number| format!("{kind}{number}")));
    let want: Vec<String> = wishes.chain(cases).collect();
    assert_eq!(numbers, want, "{REQUIREMENTS} has the wishes and cases in order");
    let known: BTreeSet<String> = sources(&["gateway", "tests"]).iter().flat_map(names_of_tests).collect();
    let named = points.iter().flat_map(|(number, tests)| tests.iter().map(move |test| (number, test)));
    let gone = named.filter(|(_, test)| !known.contains(*test));
    let gone = gone.map(|(number, test)| format!("point {number}: there is no test {test}"));
    let violations: Vec<String> = gone.chain(unsaid(&text)).collect();
    assert_none(&format!("{REQUIREMENTS} names tests that are there, or says why not"), &violations);
}

/// Lists of numbered cases, in the order of their tables.
const TABLES: [(&str, &[(&str, usize)]); 4] = [
    ("process supervision", &[("C", 72), ("A", 21)]),
    ("cases", &[("B", 20), ("C", 14), ("D", 15), ("E", 6)]),
    ("northbound", &[("H", 45), ("N", 16)]),
    ("acpx contract", &[("A", 9), ("T", 13)]),
];

/// Rows of a table of cases: number and cells with tests.
fn rows(text: &str) -> Vec<(String, &str)> {
    let cells = |line: &str| Some(line.strip_prefix("| ")?.split_once(" | ")?.0.to_owned());
    let numbered = text.lines().filter_map(|line| Some((cells(line)?, line)));
    numbered.filter(|(number, _)| number != "case").collect()
}

/// Rows that name tests that do not exist, or neither name a test nor say "Not".
fn judge_rows(rows: &[(String, &str)], known: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in rows {
        let named: Vec<&str> = quoted(line).collect();
        if named.is_empty() && !line.contains("| Not ") {
            violations.push(format!("case {number} names no test"));
        }
        let gone = named.into_iter().filter(|name| !known.contains(*name));
        violations.extend(gone.map(|name| format!("case {number}: there is no test {name}")));
    }
    violations
}

#[test]
fn every_numbered_case_names_existing_tests() {
    let packages = ["shared", "wrapper", "supervisor", "gateway", "tests"];
    let known: BTreeSet<String> = sources(&packages).iter().flat_map(names_of_tests).collect();
    for (name, lists) in TABLES {
        let text = requirements(name);
        let rows = rows(&text);
        let numbers: Vec<&str> = rows.iter().map(|(number, _)| number.as_str()).collect();
        let want: Vec<String> = lists
            .iter()
            .flat_map(|(list, count)| (1..=*count).map(move |number| format!("{list}{number}")))
            .collect();
        assert_eq!(numbers, want, "{REQUIREMENTS} has the cases of {name} in order");
        assert_none(&format!("{REQUIREMENTS}, {name}"), &judge_rows(&rows, &known));
    }
}

/// Rows of the list of actions that name tests that do not exist, or no control, or no test.
fn judge_actions(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| page |"));
    let judge = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [_, _, controls, tests] = cells[..] else { return vec![format!("{line}: not four cells")] };
        let gone = quoted(tests).filter(|name| !known.contains(*name));
        let gone = gone.map(|name| format!("{line}: there is no test {name}"));
        let empty = [("control", controls), ("test", tests)].into_iter();
        let empty = empty.filter(|(_, cell)| quoted(cell).next().is_none());
        gone.chain(empty.map(|(what, _)| format!("{line}: no {what}"))).collect()
    };
    rows.flat_map(judge).collect()
}

#[test]
fn every_action_of_the_console_names_existing_tests() {
    let text = requirements("console");
    let known: BTreeSet<String> = sources(&["tests"]).iter().flat_map(names_of_tests).collect();
    assert_none(&format!("{REQUIREMENTS}, console"), &judge_actions(&text, &known));
    for place in ["sign-in", "sessions", "session", "files", "new", "agents", "processes", "health", "tokens"]
    {
        assert!(
            text.contains(&format!("\n| {place} | ")),
            "{REQUIREMENTS} has no action of the page {place}"
        );
    }
}

#[test]
fn requirement_checks_detect_violations() {
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
    let text = "x\n## 1. One\n\n- `a`\n\n## 2. Two\n\nwords\n\n## 3. Three\n\nNot yet.\n";
    assert_eq!(unsaid(text), ["2. Two"]);
    for (line, violations) in [
        ("| C1 | text | `a` | – |", 0),
        ("| C1 | text | – | `b` |", 1),
        ("| C1 | text | – | – |", 1),
        ("| C1 | text | Not built: why. | – |", 0),
    ] {
        assert_eq!(judge_rows(&rows(line), &known).len(), violations, "{line}");
    }
    for (line, violations) in [
        ("| page | action | controls | tests |\n|---|---|---|---|\n| p | do | `button A` | `a` |", 0),
        ("| p | do | `button A` | `a`, `b` |", 1),
        ("| p | do | button A | `a` |", 1),
        ("| p | do | `button A` | – |", 1),
        ("| p | `button A` | `a` |", 1),
    ] {
        assert_eq!(judge_actions(line, &known).len(), violations, "{line}");
    }
}
