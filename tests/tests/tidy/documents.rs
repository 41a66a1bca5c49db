//! Documents that must agree with the code.

use crate::assert_none;
use crate::source::{files_below, product, quoted, relative};
use acp_shared::codes::Code;
use acp_shared::refusal::RefusalCode;
use acp_tests::world::repository;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const ERRORS: &str = "docs/manual/errors.md";
const LOGS: &str = "docs/manual/logs.md";
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const CLIENTS: &str = "docs/manual/clients.md";

fn document(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The sections of a document: heading of the second level → text below it.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    let mut heading = None;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            let title = title.trim().trim_matches('`');
            heading = Some(title);
            found.insert(title, String::new());
        } else if let Some(section) = heading.and_then(|title| found.get_mut(title)) {
            section.push_str(line);
            section.push('\n');
        }
    }
    found
}

#[test]
fn every_error_code_is_documented() {
    let text = document(ERRORS);
    let sections = sections(&text);
    let mut violations = Vec::new();
    for code in &Code::ALL {
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

/// Gateways forward refusals, and the admin command prints them.
#[test]
fn every_supervisor_refusal_is_documented() {
    let text = document(ERRORS);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let explained: Vec<&str> = rows.flat_map(|cell| cell.split(['`', ',', ' '])).collect();
    let missing = RefusalCode::ALL.iter().filter(|code| !explained.contains(&code.as_str()));
    let violations: Vec<String> = missing.map(|code| format!("{code} has no row")).collect();
    assert_none(&format!("{ERRORS} has a row for every refusal of the supervisor"), &violations);
}

/// Messages of the tables of a page, with the programs that log them: the first and third cells of each row.
fn listed_messages(page: &str) -> Vec<(String, Vec<String>)> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let programs = |cell: &str| match cell {
        "both" => vec!["gateway".to_owned(), "supervisor".to_owned()],
        one => vec![one.to_owned()],
    };
    cells
        .filter_map(|cells| Some((cells.get(1)?.trim_matches('`').to_owned(), programs(cells.get(3)?))))
        .collect()
}

/// Operators search for these messages, so the sources must log them word for word.
#[test]
fn listed_log_messages_are_logged() {
    let listed = listed_messages(&document(LOGS));
    assert!(listed.len() > 20, "{LOGS} lists messages");
    let sources = product();
    let logs = |program: &str, message: &str| {
        let literal = format!("\"{message}\"");
        let of = |path: &str| path.starts_with(&format!("{program}/")) || path.starts_with("shared/");
        sources.iter().any(|source| of(&source.path) && source.text.contains(&literal))
    };
    let missing = listed.iter().flat_map(|(message, programs)| {
        let absent = programs.iter().filter(|program| !logs(program, message));
        absent.map(move |program| format!("{program} never logs `{message}`"))
    });
    assert_none(&format!("{LOGS} lists messages that the programs log"), &missing.collect::<Vec<_>>());
}

/// True if a quoted text looks like a path of this repository: it starts with one of its directories, or has a known
/// extension. Protocol methods (`session/load`) have slashes too.
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

/// Returns text and target of the links in Markdown, without anchors. Links to other pages of the web are left out.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = text.match_indices("](").map(|(at, _)| at);
    let links = ends.filter_map(move |at| {
        let (before, after) = (text.get(..at)?, text.get(at + 2..)?);
        let (_, shown) = before.rsplit_once('[')?;
        Some((shown, after.split([')', '#']).next()?))
    });
    links.filter(|(_, target)| !target.is_empty() && !target.contains("://"))
}

/// Returns true if the text of a link is the name of a function or a test.
fn is_function_name(shown: &str) -> bool {
    let name = shown.trim_matches('`');
    name.len() < shown.len()
        && name.contains('_')
        && name.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// Returns the dead links of a page, and the links to a function that is not in its file.
fn dead_links(page: &Path, text: &str) -> Vec<String> {
    let from = page.parent().unwrap_or(page);
    let dead = links(text).filter(|(shown, target)| {
        let file = from.join(target);
        let lacks = |name: &str| !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(name));
        !file.exists() || (is_function_name(shown) && lacks(shown.trim_matches('`')))
    });
    dead.map(|(shown, target)| format!("{}: [{shown}]({target})", relative(page))).collect()
}

#[test]
fn links_of_design_pages_resolve() {
    let mut pages = files_below(&repository().join("docs/design"));
    pages.push(repository().join(ARCHITECTURE));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    assert!(pages.len() > 1, "docs/design has pages");
    let dead = |page: &PathBuf| dead_links(page, &document(&relative(page)));
    let violations: Vec<String> = pages.iter().flat_map(dead).collect();
    assert_none("links of the design pages lead to a file, and to a function in it", &violations);
}

/// Blocks of code in Markdown.
fn code_blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```").skip(1).step_by(2).filter_map(|block| Some(block.split_once('\n')?.1))
}

/// `make test-foreign` runs the files.
#[test]
fn examples_of_clients_are_the_files_that_tests_run() {
    let page = document(CLIENTS);
    let directory = repository().join("tests/clients");
    let files = files_below(&directory);
    let is_example = |file: &&PathBuf| {
        file.ends_with("editor/settings.json") || file.file_stem().is_some_and(|stem| stem == "example")
    };
    let examples: Vec<String> =
        files.iter().filter(is_example).map(|file| document(&relative(file))).collect();
    assert_eq!(examples.len(), 6, "{files:?}");
    let unknown =
        code_blocks(&page).filter(|block| !examples.iter().any(|example| example.trim_end() == *block));
    let mut violations: Vec<String> = unknown.map(|block| format!("no file holds\n{block}")).collect();
    let missing =
        examples.iter().filter(|example| !code_blocks(&page).any(|block| example.trim_end() == block));
    violations.extend(missing.map(|example| format!("the page lacks\n{example}")));
    assert_none(&format!("the blocks of {CLIENTS} are the examples in tests/clients"), &violations);
}

#[test]
fn document_checks_detect_violations() {
    assert_eq!(
        links("[a](b) `c` [`d_e`](../f.rs#x) [g](https://h) [i](#j)").collect::<Vec<_>>(),
        [("a", "b"), ("`d_e`", "../f.rs")]
    );
    for (shown, is) in [("`d_e`", true), ("d_e", false), ("`d_e.rs`", false), ("`session`", false)] {
        assert_eq!(is_function_name(shown), is, "{shown}");
    }
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
    assert_eq!(
        listed_messages("| message | level | program |\n|---|---|---|\n| `a b` | info, warn | both | c |\n"),
        [("a b".to_owned(), vec!["gateway".to_owned(), "supervisor".to_owned()])]
    );
    assert_eq!(sections("x\n## A\none\n## `B`\ntwo\n").len(), 2);
}
