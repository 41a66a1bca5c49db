//! Rules of the repository as tests: which module may name which, how large things may be, what must be documented.
//! Each test names every violation at once and says what to do.

mod build;
mod documents;
mod floors;
mod language;
mod packages;
mod project_files;
mod requirements;
mod rules;
mod sizes;
mod source;
mod test_names;
mod words;

use acp_tests::world::repository;

/// The page that maps requirements to tests.
const REQUIREMENTS: &str = "docs/design/requirements.md";

/// Returns the part of [`REQUIREMENTS`] between the comments `<!-- NAME -->` and `<!-- end -->`.
fn requirements(name: &str) -> String {
    let text = std::fs::read_to_string(repository().join(REQUIREMENTS)).unwrap_or_else(|e| panic!("{e}"));
    let begin = format!("\n<!-- {name} -->\n");
    let part = text.split_once(&begin).and_then(|(_, rest)| rest.split_once("\n<!-- end -->\n"));
    part.unwrap_or_else(|| panic!("{REQUIREMENTS} has no part {name:?}")).0.to_owned()
}

/// Fails with all violations, if there are any.
fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}\n  {}\n", violations.join("\n  "));
}
