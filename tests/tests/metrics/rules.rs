//! Alerts for Prometheus and the board for Grafana: what they name exists.

use acp_tests::world::repository;
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) const RULES: &str = "packaging/prometheus/acp-host.rules.yml";
pub(crate) const RULE_TESTS: &str = "packaging/prometheus/acp-host.rules.test.yml";
const BOARD: &str = "packaging/grafana/acp-host.json";
const METRICS: &str = "docs/manual/metrics.md";
const RUNBOOK: &str = "docs/manual/runbook.md";

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Values of a key in YAML with one key per line.
fn values(text: &str, key: &str) -> Vec<String> {
    let prefix = format!("{key}: ");
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| Some(line.strip_prefix(&prefix)?.to_owned())).collect()
}

/// Queries of the board, each with the title of its panel.
pub(crate) fn board_queries() -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(&read(BOARD)).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let queries = |panel: &Value| -> Vec<(String, String)> {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(|target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned())).collect()
    };
    panels.iter().flat_map(queries).collect()
}

/// Series that a query names.
fn series(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("acp_"))
}

#[test]
fn rules_and_board_name_documented_series() {
    let document = read(METRICS);
    let documented: BTreeSet<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("acp_"))
        .collect();
    let is_known = |name: &str| {
        documented.contains(name)
            || name.strip_suffix("_bucket").is_some_and(|name| documented.contains(name))
    };
    let rules = values(&read(RULES), "expr");
    let board = board_queries();
    assert!(rules.len() >= 16 && board.len() >= 40, "{} rules, {} queries", rules.len(), board.len());
    for query in rules.iter().chain(board.iter().map(|(_, query)| query)) {
        assert!(series(query).next().is_some(), "no series in {query}");
        let unknown: Vec<&str> = series(query).filter(|name| !is_known(name)).collect();
        assert_eq!(unknown, [""; 0], "not in {METRICS}: {query}");
    }
}

/// Anchor of a heading, as renderers of Markdown make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_alert_links_a_section_and_has_a_test() {
    let rules = read(RULES);
    let runbook = read(RUNBOOK);
    let anchors: BTreeSet<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")))
        .map(anchor)
        .collect();
    let alerts = values(&rules, "alert");
    let links = values(&rules, "runbook_url");
    assert_eq!(alerts.len(), links.len(), "an alert without runbook_url");
    for (alert, link) in alerts.iter().zip(&links) {
        let (page, section) = link.split_once('#').unwrap_or_else(|| panic!("{alert}: {link}"));
        assert_eq!(page, RUNBOOK, "{alert}");
        assert!(anchors.contains(section), "{alert}: {RUNBOOK} has no section #{section}");
    }
    let tested: BTreeSet<String> = values(&read(RULE_TESTS), "name").into_iter().collect();
    assert_eq!(
        alerts.into_iter().collect::<BTreeSet<_>>(),
        tested,
        "{RULE_TESTS} has one test for each alert"
    );
}
