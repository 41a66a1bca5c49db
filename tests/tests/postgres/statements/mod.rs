//! Statements of the program, read from its sources.

mod foreign;

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, LitStr, Macro};

/// First words of a statement.
const VERBS: [&str; 4] = ["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM "];
/// Files with statements for one engine alone.
const OF_ONE_ENGINE: [&str; 8] = [
    "backup.rs",
    "check.rs",
    "compact.rs",
    "move_rows.rs",
    "openclaw_source.rs",
    "restore.rs",
    "salvage.rs",
    "schema.rs",
];

/// Returns the statements of the store that are literals as a whole: no parts are put into them.
pub(crate) fn of_store() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/store/src");
    let mut found = Found::default();
    for dir in [root.clone(), root.join("tx")] {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".rs")
                && !name.ends_with("_tests.rs")
                && !OF_ONE_ENGINE.contains(&name.as_str())
            {
                found.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
            }
        }
    }
    found.0
}

#[derive(Default)]
struct Found(BTreeSet<String>);

impl Found {
    fn add(&mut self, text: &str) {
        let is_whole = !text.contains('{') && !text.ends_with(' ');
        if is_whole && VERBS.iter().any(|verb| text.starts_with(verb)) {
            self.0.insert(text.to_owned());
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let is_test = |attribute: &Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
        };
        if !module.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.add(&literal.value());
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        if call.path.is_ident("concat") {
            if let Some(text) = joined(call.tokens.clone()) {
                self.add(&text);
            }
        } else if !call.path.is_ident("format") {
            call.tokens.clone().into_iter().filter_map(literal).for_each(|text| self.add(&text));
        }
    }
}

fn literal(token: TokenTree) -> Option<String> {
    let TokenTree::Literal(_) = &token else { return None };
    syn::parse2::<LitStr>(token.into()).ok().map(|literal| literal.value())
}

/// Text of a `concat!` of literals alone.
fn joined(tokens: TokenStream) -> Option<String> {
    let parts = tokens
        .into_iter()
        .filter(|token| !matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
    parts.map(literal).collect()
}
