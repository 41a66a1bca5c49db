//! Names of the tests in the source, and the tiers that follow from them.

use crate::assert_none;
use crate::source::{Source, sources};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Test in a file.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    is_ignored: bool,
}

/// Returns the last segment of an attribute's path: `test` of `tokio::test`.
fn attribute_name(attribute: TokenStream) -> Option<String> {
    let mut last = None;
    for token in attribute {
        match token {
            TokenTree::Ident(ident) => last = Some(ident.to_string()),
            TokenTree::Punct(p) if p.as_char() == ':' => {}
            _ => break,
        }
    }
    last
}

/// Collects the tests in a file, those in macros too.
fn tests(stream: TokenStream, found: &mut Vec<Test>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let (mut is_test, mut is_ignored) = (false, false);
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| tokens.get(before));
        match token {
            TokenTree::Group(group) => {
                let hash = matches!(before, Some(TokenTree::Punct(p)) if p.as_char() == '#');
                if hash && group.delimiter() == Delimiter::Bracket {
                    let name = attribute_name(group.stream());
                    is_test |= name.as_deref() == Some("test");
                    is_ignored |= name.as_deref() == Some("ignore");
                } else {
                    tests(group.stream(), found);
                }
            }
            TokenTree::Ident(ident) if ident == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.get(at + 1).filter(|_| is_test) {
                    found.push(Test { name: name.to_string(), is_ignored });
                }
                (is_test, is_ignored) = (false, false);
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns the names of the tests in a file.
pub(crate) fn names_of_tests(source: &Source) -> Vec<String> {
    tests_of(source).into_iter().map(|test| test.name).collect()
}

fn tests_of(source: &Source) -> Vec<Test> {
    let mut found = Vec::new();
    tests(source.tokens.clone(), &mut found);
    found
}

/// Violations of the table in docs/design/testing.md: place and name of a test tell the tier that runs it.
fn tier_violations(source: &Source) -> Vec<String> {
    let is_library = source.path.contains("/src/");
    let is_foreign = !is_library && source.path.ends_with("/foreign.rs");
    let is_program = source.path.ends_with("/src/main.rs") || source.path.contains("/src/bin/");
    let judge = |test: &Test| {
        let has_prefix = |prefix: &str| test.name.starts_with(prefix);
        match () {
            () if is_program => Some("a program has no tests: `make check` runs those of libraries"),
            () if is_foreign && !test.is_ignored => Some("a test in foreign.rs has #[ignore]"),
            () if !is_foreign && test.is_ignored => Some("#[ignore] is for tests in foreign.rs"),
            () if !is_foreign && has_prefix("nightly_") => Some("nightly_ is for tests in foreign.rs"),
            () if is_library && has_prefix("heavy_") => Some("heavy_ is for tests in tests/"),
            () => None,
        }
    };
    let all = tests_of(source);
    let violations = all.iter().filter_map(|test| Some((test, judge(test)?)));
    violations.map(|(test, why)| format!("{}: {}: {why}", source.path, test.name)).collect()
}

#[test]
fn every_test_has_a_tier() {
    let files = sources(&["shared", "wrapper", "supervisor", "gateway", "tests"]);
    let violations: Vec<String> = files.iter().flat_map(tier_violations).collect();
    assert_none("place and name of a test tell its tier (docs/design/testing.md)", &violations);
}

#[test]
fn tier_checks_detect_violations() {
    for (path, text, violations) in [
        ("gateway/core/src/a.rs", "#[test] fn a() {}", 0),
        ("gateway/core/src/a.rs", "#[test] fn heavy_a() {}", 1),
        ("gateway/core/src/a.rs", "#[ignore = \"x\"] #[test] fn a() {}", 1),
        ("gateway/src/main.rs", "#[test] fn a() {}", 1),
        ("tests/src/bin/a.rs", "#[test] fn a() {}", 1),
        ("tests/tests/a.rs", "#[test] fn heavy_a() {}", 0),
        ("tests/tests/a.rs", "#[test] fn nightly_a() {}", 1),
        ("tests/tests/a.rs", "#[test] #[ignore] fn a() {} #[test] fn b() {}", 1),
        ("tests/tests/foreign.rs", "#[test] fn a() {}", 1),
        (
            "tests/tests/discord/foreign.rs",
            "#[test] #[ignore] fn a() {} #[test] #[ignore] fn nightly_b() {}",
            0,
        ),
    ] {
        assert_eq!(tier_violations(&Source::parse(path, text)).len(), violations, "{path}: {text}");
    }
}

#[test]
fn tests_in_macros_are_found() {
    let text = "#[test] fn a() { fn no() {} } #[tokio::test(flavor = \"x\")] async fn b() {}
        mod m { proptest! { #[test] fn c(x in 0..1) {} } #[cfg(test)] fn no() {} }";
    let mut found = Vec::new();
    tests(text.parse().unwrap_or_else(|e| panic!("{e}")), &mut found);
    let names: Vec<&str> = found.iter().map(|test| test.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}
