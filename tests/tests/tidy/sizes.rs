//! Maximum sizes of files and functions. Larger ones are listed in the ratchet with their size, which may only shrink.

use crate::assert_none;
use crate::source::sources;
use acp_tests::world::repository;
use std::collections::BTreeMap;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
/// Tests may contain long tables.
const TEST_FUNCTION_LINES_MAX: usize = 140;
const MAIN_LINES_MAX: usize = 10;
const RATCHET: &str = "tests/tidy-ratchet.txt";

/// Entries of the ratchet: a file, or a file and a function, with its size.
fn ratchet() -> BTreeMap<String, usize> {
    let text =
        std::fs::read_to_string(repository().join(RATCHET)).unwrap_or_else(|e| panic!("{RATCHET}: {e}"));
    let entries = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let (name, size) = line.rsplit_once(' ')?;
        Some((name.trim().to_owned(), size.parse().ok()?))
    };
    entries.map(|line| read(line).unwrap_or_else(|| panic!("{RATCHET}: not `name lines`: {line}"))).collect()
}

/// Compares oversized entries with the ratchet.
fn judge(too_large: &BTreeMap<String, usize>, admitted: &BTreeMap<String, usize>) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, size) in too_large {
        match admitted.get(name) {
            Some(entry) if entry == size => {}
            Some(entry) if entry > size => {
                violations.push(format!(
                    "{name} shrank to {size} lines: lower its entry in {RATCHET} from {entry}"
                ));
            }
            Some(entry) => violations.push(format!("{name} grew from {entry} to {size} lines: split it")),
            None => violations.push(format!("{name} has {size} lines: split it")),
        }
    }
    let done = admitted.keys().filter(|name| !too_large.contains_key(*name));
    violations.extend(done.map(|name| format!("{name} is small enough now: remove it from {RATCHET}")));
    violations
}

#[test]
fn files_and_functions_stay_small() {
    let mut too_large = BTreeMap::new();
    for source in sources(&["shared", "wrapper", "supervisor", "gateway", "tests"]) {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            too_large.insert(source.path.clone(), lines);
        }
        for function in source.functions() {
            let is_test = source.is_test(function.line);
            let limit = if is_test { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
            if function.lines > limit {
                let size = too_large.entry(format!("{}::{}", source.path, function.name)).or_insert(0);
                *size = function.lines.max(*size);
            }
        }
    }
    let rule = format!(
        "at most {FILE_LINES_MAX} lines a file, {FUNCTION_LINES_MAX} a function, {TEST_FUNCTION_LINES_MAX} a test"
    );
    assert_none(&rule, &judge(&too_large, &ratchet()));
}

#[test]
fn main_only_calls_the_library() {
    let mains = sources(&["wrapper/src", "supervisor/src", "gateway/src"]);
    let mains = mains.iter().filter(|source| source.path.ends_with("/main.rs"));
    let violations: Vec<String> = mains
        .filter(|source| source.text.lines().count() >= MAIN_LINES_MAX)
        .map(|source| format!("{} has {} lines", source.path, source.text.lines().count()))
        .collect();
    assert_none("main.rs has less than ten lines: what it does belongs into the library", &violations);
}

#[test]
fn ratchet_entries_only_shrink() {
    let map = |entries: &[(&str, usize)]| entries.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect();
    for (too_large, admitted, violations) in [
        (vec![], vec![], 0),
        (vec![("a", 80)], vec![("a", 80)], 0),
        (vec![("a", 80)], vec![], 1),
        (vec![("a", 79)], vec![("a", 80)], 1),
        (vec![("a", 81)], vec![("a", 80)], 1),
        (vec![], vec![("a", 80)], 1),
    ] {
        let found = judge(&map(&too_large), &map(&admitted));
        assert_eq!(found.len(), violations, "{too_large:?} {admitted:?} {found:?}");
    }
}
