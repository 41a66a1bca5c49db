//! The table of Discord's rules: each row names existing tests or a reason for none; each rule that the fake can disable
//! has a row.

use crate::source::{quoted, sources};
use crate::test_names::names_of_tests;
use crate::{REQUIREMENTS, assert_none, requirements};
use acp_tests::fake_discord::core::settings::Rule;
use std::collections::BTreeSet;

/// Row: rule, switches, and tests or the reason for none.
#[derive(Debug)]
struct Row<'a> {
    rule: &'a str,
    switches: Vec<&'a str>,
    tests: Vec<&'a str>,
    says_not: bool,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let lines = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Rule |"));
    lines
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let (rule, switches, tests) = (cells.next()?, cells.next()?, cells.next()?);
            let says_not = tests.starts_with("Not ");
            Some(Row { rule, switches: quoted(switches).collect(), tests: quoted(tests).collect(), says_not })
        })
        .collect()
}

fn judge(rows: &[Row<'_>], switches: &BTreeSet<String>, known: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for row in rows {
        if row.tests.is_empty() != row.says_not {
            violations.push(format!("{:?} has a test, or says why it has none, and not both", row.rule));
        }
        let gone = row.tests.iter().filter(|name| !known.contains(**name));
        violations.extend(gone.map(|name| format!("{:?}: there is no test {name}", row.rule)));
        let gone = row.switches.iter().filter(|name| !switches.contains(**name));
        violations.extend(gone.map(|name| format!("{:?}: there is no switch {name}", row.rule)));
    }
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| row.switches.iter().copied()).collect();
    let missing = switches.iter().filter(|name| !named.contains(name.as_str()));
    violations.extend(missing.map(|name| format!("the switch {name} is on no row")));
    violations
}

#[test]
fn every_discord_rule_names_tests_and_every_switch_has_a_rule() {
    let text = requirements("rules");
    let known = sources(&["gateway", "tests"]).iter().flat_map(names_of_tests).collect();
    let switches = Rule::ALL.iter().map(|rule| format!("{rule:?}")).collect();
    let rows = rows(&text);
    assert!(rows.len() > Rule::ALL.len(), "{REQUIREMENTS} has the rules");
    assert_none(&format!("{REQUIREMENTS} has every rule with its tests"), &judge(&rows, &switches, &known));
}

#[test]
fn discord_rule_checks_detect_violations() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let (switches, known) = (set(&["A"]), set(&["t"]));
    for (text, violations) in [
        ("| Rule | Switch | Tests |\n|---|---|---|\n| one | `A` | `t` |\n", 0),
        ("| one | `A` | `t` |\n| two | | Not this one. |\n", 0),
        ("| one | `A` | `t`, `u` |\n", 1),
        ("| one | `A`, `B` | `t` |\n", 1),
        ("| one | | `t` |\n", 1),
        ("| one | `A` | |\n", 1),
        ("| one | `A` | Not `t` |\n", 1),
        ("| one | `A` | words |\n", 1),
    ] {
        assert_eq!(judge(&rows(text), &switches, &known).len(), violations, "{text}");
    }
}
