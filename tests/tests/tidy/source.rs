//! The Rust files of the repository, read once: their tokens, the paths they name, their functions.

use acp_tests::world::repository;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// The packages whose code is the product.
pub(crate) const PRODUCT: [&str; 9] = [
    "shared",
    "wrapper",
    "supervisor",
    "supervisor/acpx-bridge",
    "gateway",
    "gateway/core",
    "gateway/store",
    "gateway/discord",
    "gateway/demo-agent",
];

/// One Rust file.
pub(crate) struct Source {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
    /// Its tokens: neither comments nor the inside of strings.
    pub(crate) tokens: TokenStream,
    /// Its syntax.
    pub(crate) file: syn::File,
}

/// A path with at least two segments, as the code names it; `use` groups are taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// Its segments.
    pub(crate) segments: Vec<String>,
    /// How many inline modules surround it.
    pub(crate) inline: usize,
    /// Where it stands.
    pub(crate) line: usize,
}

/// One function with a body.
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Where it begins.
    pub(crate) line: usize,
    /// Lines from its signature to its closing brace.
    pub(crate) lines: usize,
}

/// Every file below a directory, build output and version control excepted.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries.flatten() {
            let name = entry.file_name();
            let skipped = ["target", ".git", "node_modules"].iter().any(|skip| name == *skip);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !skipped => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() && !skipped => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// A path as seen from the root of the repository.
pub(crate) fn relative(path: &Path) -> String {
    path.strip_prefix(repository()).unwrap_or(path).to_string_lossy().into_owned()
}

/// Every Rust file below these directories of the repository.
pub(crate) fn sources(dirs: &[&str]) -> Vec<Source> {
    let paths = dirs.iter().flat_map(|dir| files_below(&repository().join(dir)));
    let rust: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect();
    assert!(!rust.is_empty(), "no Rust files below {dirs:?}");
    rust.iter().map(|path| read(path)).collect()
}

/// Every Rust file of the product: what is shipped, unit tests inside of it included.
pub(crate) fn product() -> Vec<Source> {
    let dirs = PRODUCT.map(|package| format!("{package}/src"));
    sources(&dirs.each_ref().map(String::as_str))
}

fn read(path: &Path) -> Source {
    let name = relative(path);
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"));
    Source::parse(&name, &text)
}

/// Texts between backticks on one line.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

impl Source {
    /// Parses the text of a file.
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let tokens = TokenStream::from_str(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        Self { path: path.to_owned(), text: text.to_owned(), tokens, file }
    }

    /// The package of the file, by its directory.
    pub(crate) fn package(&self) -> &str {
        self.path.split_once("/src/").map_or("", |(package, _)| package)
    }

    /// True if a line is compiled for tests only: by package, by the file's name (`simulated.rs` is a port of the
    /// simulation, `fuzzing.rs` an entry point of fuzz targets), or inside of a test module.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        let by_name = self.path.contains("tests/")
            || self.path.ends_with("tests.rs")
            || self.path.ends_with("/simulated.rs")
            || self.path.ends_with("/fuzzing.rs");
        by_name || self.test_lines().iter().any(|range| range.contains(&line))
    }

    /// The paths that the code names, macro bodies included.
    pub(crate) fn named(&self) -> Vec<Named> {
        let mut found = Vec::new();
        walk(self.tokens.clone(), 0, &mut found);
        found
    }

    /// Every function with a body.
    pub(crate) fn functions(&self) -> Vec<Function> {
        struct Finder(Vec<Function>);
        impl Finder {
            fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
                let line = signature.span().start().line;
                let lines = block.span().end().line + 1 - line;
                self.0.push(Function { name: signature.ident.to_string(), line, lines });
            }
        }
        impl<'a> Visit<'a> for Finder {
            fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
                self.add(&item.sig, &item.block);
                visit::visit_item_fn(self, item);
            }
            fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
                self.add(&item.sig, &item.block);
                visit::visit_impl_item_fn(self, item);
            }
            fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
                if let Some(block) = &item.default {
                    self.add(&item.sig, block);
                }
                visit::visit_trait_item_fn(self, item);
            }
        }
        let mut finder = Finder(Vec::new());
        finder.visit_file(&self.file);
        finder.0
    }

    /// The lines of inline modules that are compiled for tests only.
    fn test_lines(&self) -> Vec<std::ops::RangeInclusive<usize>> {
        let is_test = |attr: &syn::Attribute| {
            attr.path().is_ident("cfg")
                && attr.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
        };
        let modules = self.file.items.iter().filter_map(|item| match item {
            syn::Item::Mod(module) if module.attrs.iter().any(is_test) => Some(module.span()),
            _ => None,
        });
        modules.map(|span| span.start().line..=span.end().line).collect()
    }

    /// Whether this file declares a module without a body, by its name or by the path of its file.
    pub(crate) fn declares(&self, module: &str) -> bool {
        let by_path = |attr: &syn::Attribute| {
            let syn::Meta::NameValue(pair) = &attr.meta else { return false };
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
                return false;
            };
            pair.path.is_ident("path") && text.value() == format!("{module}.rs")
        };
        self.file.items.iter().any(|item| match item {
            syn::Item::Mod(declared) if declared.content.is_none() => {
                declared.ident == module || declared.attrs.iter().any(by_path)
            }
            _ => false,
        })
    }
}

/// Whether the next two tokens are `::`.
fn is_path_sep(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |i: usize| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(at) && colon(at + 1)
}

fn walk(stream: TokenStream, inline: usize, found: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(ident) => {
                let is_mod = ident == "mod"
                    && matches!(tokens.get(at + 2), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace);
                if is_mod && let Some(TokenTree::Group(body)) = tokens.get(at + 2) {
                    walk(body.stream(), inline + 1, found);
                    at += 3;
                } else {
                    at = path_from(&tokens, at, &[], inline, found);
                }
            }
            TokenTree::Group(group) => {
                walk(group.stream(), inline, found);
                at += 1;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
        }
    }
}

/// Reads one path that starts at `at`, and returns where the rest goes on.
fn path_from(
    tokens: &[TokenTree],
    mut at: usize,
    prefix: &[String],
    inline: usize,
    found: &mut Vec<Named>,
) -> usize {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        segments.push(ident.to_string());
        line = ident.span().start().line;
        at += 1;
        if !is_path_sep(tokens, at) {
            break;
        }
        at += 2;
        match tokens.get(at) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut start = 0;
                while start < inner.len() {
                    let next = path_from(&inner, start, &segments, inline, found);
                    let comma = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
                    start = inner.iter().skip(next).position(comma).map_or(inner.len(), |i| next + i + 1);
                }
                return at + 1;
            }
            Some(TokenTree::Ident(_)) => {}
            _ => break,
        }
    }
    if segments.len() >= 2 {
        found.push(Named { segments, inline, line });
    }
    at
}
