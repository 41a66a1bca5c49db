//! Names of the tests in the source.

use crate::source::Source;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// True if an attribute makes a function a test: `test`, `tokio::test`.
fn makes_a_test(attribute: TokenStream) -> bool {
    let mut last = None;
    for token in attribute {
        match token {
            TokenTree::Ident(ident) => last = Some(ident.to_string()),
            TokenTree::Punct(p) if p.as_char() == ':' => {}
            _ => break,
        }
    }
    last.as_deref() == Some("test")
}

/// Collects the names of the tests in a file, those in macros too.
fn tests(stream: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut is_test = false;
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| tokens.get(before));
        match token {
            TokenTree::Group(group) => {
                let hash = matches!(before, Some(TokenTree::Punct(p)) if p.as_char() == '#');
                if hash && group.delimiter() == Delimiter::Bracket {
                    is_test |= makes_a_test(group.stream());
                } else {
                    tests(group.stream(), found);
                }
            }
            TokenTree::Ident(ident) if ident == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.get(at + 1).filter(|_| is_test) {
                    found.push(name.to_string());
                }
                is_test = false;
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns the names of the tests in a file.
pub(crate) fn names_of_tests(source: &Source) -> Vec<String> {
    let mut names = Vec::new();
    tests(source.tokens.clone(), &mut names);
    names
}

#[test]
fn tests_in_macros_are_found() {
    let text = "#[test] fn a() { fn no() {} } #[tokio::test(flavor = \"x\")] async fn b() {}
        mod m { proptest! { #[test] fn c(x in 0..1) {} } #[cfg(test)] fn no() {} }";
    let mut found = Vec::new();
    tests(text.parse().unwrap_or_else(|e| panic!("{e}")), &mut found);
    assert_eq!(found, ["a", "b", "c"]);
}
