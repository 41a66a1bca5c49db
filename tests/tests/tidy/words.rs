//! Forbidden texts and calls.

use crate::assert_none;
use crate::source::{Source, files_below, product, relative, sources};
use acp_tests::world::repository;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Texts that no file may contain, with the reason. Assembled from parts, so that this file does not contain them.
fn forbidden_texts() -> Vec<(String, &'static str)> {
    let join = |parts: &[&str]| parts.concat();
    vec![
        (join(&["TO", "DO"]), "do it, or open an issue"),
        (join(&["FIX", "ME"]), "fix it, or open an issue"),
        (join(&["XX", "X:"]), "say what is wrong, or open an issue"),
        (join(&["/work", "/main"]), "a path of one machine"),
        (join(&["/work", "/wt"]), "a path of one machine"),
        (join(&["/work", "/shared"]), "a path of one machine"),
        (join(&["/tmp", "/target-"]), "a path of one machine"),
        (join(&["/root", "/"]), "a path of one machine"),
    ]
}

#[test]
fn no_leftover_markers_and_no_machine_paths() {
    let texts = forbidden_texts();
    let mut violations = Vec::new();
    for path in files_below(repository()) {
        let name = relative(&path);
        // Binary files are skipped.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            for (word, why) in texts.iter().filter(|(word, _)| line.contains(word.as_str())) {
                violations.push(format!("{name}:{}: {word}: {why}", number + 1));
            }
        }
    }
    assert_none("words that do not belong here", &violations);
}

/// Calls of methods with these names, as lines.
pub(crate) fn calls(stream: TokenStream, names: &[&str], found: &mut Vec<(usize, String)>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            calls(group.stream(), names, found);
        }
        let TokenTree::Ident(ident) = token else { continue };
        let dot = at.checked_sub(1).and_then(|before| tokens.get(before));
        let dot = matches!(dot, Some(TokenTree::Punct(p)) if p.as_char() == '.');
        let called = matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
        if dot && called && names.contains(&ident.to_string().as_str()) {
            found.push((ident.span().start().line, ident.to_string()));
        }
    }
}

fn panicking_calls(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    calls(source.tokens.clone(), &["unwrap", "expect", "unwrap_err", "expect_err"], &mut found);
    found.retain(|(line, _)| !source.is_test(*line));
    found.into_iter().map(|(line, name)| format!("{}:{line}: {name}", source.path)).collect()
}

#[test]
fn product_code_does_not_panic_on_results() {
    let files = product();
    let violations: Vec<String> = files.iter().flat_map(panicking_calls).collect();
    assert_none("return the error, with what was being tried", &violations);
}

/// Lines of `allow` attributes, which give no warning when they are no longer needed.
fn allows(stream: TokenStream, in_attribute: bool, found: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let before = |n: usize| at.checked_sub(n).and_then(|i| tokens.get(i));
                let punct =
                    |t: Option<&TokenTree>, c| matches!(t, Some(TokenTree::Punct(p)) if p.as_char() == c);
                let opened = punct(before(1), '#') || (punct(before(1), '!') && punct(before(2), '#'));
                let attribute = group.delimiter() == Delimiter::Bracket && opened;
                allows(group.stream(), in_attribute || attribute, found);
            }
            TokenTree::Ident(ident) if in_attribute && ident == "allow" => {
                found.push(ident.span().start().line)
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn lints_are_expected_not_allowed() {
    let mut violations = Vec::new();
    for source in sources(&["shared", "wrapper", "supervisor", "gateway", "tests"]) {
        let mut lines = Vec::new();
        allows(source.tokens.clone(), false, &mut lines);
        violations.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
    }
    assert_none("use #[expect(lint, reason = \"…\")]: it says when it is no longer needed", &violations);
}

fn names_unsafe(stream: TokenStream) -> bool {
    stream.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "unsafe",
        TokenTree::Group(group) => names_unsafe(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

#[test]
fn unsafe_code_is_in_one_file_of_each_program() {
    let files: Vec<String> =
        product().iter().filter(|s| names_unsafe(s.tokens.clone())).map(|s| s.path.clone()).collect();
    let of =
        |package: &str| files.iter().filter(|path| path.starts_with(package)).cloned().collect::<Vec<_>>();
    let mut violations = [of("gateway/discord/"), of("shared/")].concat();
    for package in ["wrapper/", "supervisor/", "gateway/src/"] {
        let here = of(package);
        if here.len() > 1 {
            violations.extend(here);
        }
    }
    assert_none("unsafe code stands in one file of each program, nowhere else", &violations);
}

#[test]
fn source_text_checks_detect_violations() {
    let tokens = |text: &str| text.parse::<TokenStream>().unwrap_or_else(|e| panic!("{e}"));
    for (text, lines) in [
        ("#![allow(dead_code)]", 1),
        ("#[cfg_attr(test, allow(dead_code))] fn f() {}", 1),
        ("#[expect(dead_code, reason = \"allow\")] fn allow() { allow() }", 0),
    ] {
        let mut found = Vec::new();
        allows(tokens(text), false, &mut found);
        assert_eq!(found.len(), lines, "{text}");
    }
    for (text, count) in
        [("fn f() { a.unwrap(); b.expect(\"x\") }", 2), ("fn unwrap() { \"a.unwrap()\" } // .unwrap()", 0)]
    {
        let mut found = Vec::new();
        calls(tokens(text), &["unwrap", "expect"], &mut found);
        assert_eq!(found.len(), count, "{text}");
    }
    assert!(
        names_unsafe(tokens("fn f() { unsafe { g() } }")) && !names_unsafe(tokens("#![expect(unsafe_code)]"))
    );
}
