//! The law of the house as tests: which module may name which, how large things may be, what must be documented.
//! Each test names every violation at once and says what to do.

mod acceptance;
mod cases;
mod documents;
mod floors;
mod packages;
mod project_files;
mod rules;
mod sizes;
mod source;
mod words;

/// Fails with all violations, if there are any.
fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}\n  {}\n", violations.join("\n  "));
}
