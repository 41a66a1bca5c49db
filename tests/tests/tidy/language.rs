//! Limits of the language of comments and type names in product code. See the rules in `docs/design/glossary.md`.

use crate::assert_none;
use crate::source::{Source, product};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use syn::visit::Visit;

/// Maximum share of doc comments that open with one of [`OPENERS`], in percent.
const OPENERS_MAX: usize = 8;
/// Maximum share of long comments that are vague, in percent.
const VAGUE_MAX: usize = 12;
/// Maximum number of type names that are defined [`HOMONYM`] times or more.
const HOMONYMS_MAX: usize = 10;
const HOMONYM: usize = 3;
/// Number of words from which a comment is long.
const LONG: usize = 8;

/// First words that hide the subject of a comment.
const OPENERS: [&str; 18] = [
    "what", "whatever", "who", "whoever", "whom", "whose", "which", "whether", "how", "where", "wherever",
    "when", "why", "nobody", "somebody", "anybody", "it", "they",
];
/// Pronouns and indefinites. A long comment with 12 % of them is vague.
const INDEFINITES: [&str; 17] = [
    "what",
    "whatever",
    "whoever",
    "who",
    "nobody",
    "somebody",
    "anybody",
    "whose",
    "whom",
    "whether",
    "it",
    "its",
    "they",
    "them",
    "that",
    "there",
    "whichever",
];
/// Words and phrases with a meaning in this project alone. The glossary names the words to use.
const PRIVATE: [&str; 24] = [
    "untold",
    "telling",
    "owed",
    "lately",
    "beside",
    "aside",
    "ear",
    "door",
    "lane",
    "lanes",
    "kin",
    "stray",
    "strays",
    "look for what",
    "looks for what",
    "is told",
    "was told",
    "goes on",
    "anew",
    "by itself",
    "any more",
    "says so",
    "of the house",
    "in disorder",
];

/// A comment: consecutive comment lines as one text.
#[derive(Debug, PartialEq, Eq)]
struct Comment {
    line: usize,
    is_doc: bool,
    text: String,
}

#[derive(Debug, Default)]
struct Counts {
    docs: usize,
    opened: usize,
    long: usize,
    vague: usize,
    private: Vec<String>,
}

fn comments(text: &str) -> Vec<Comment> {
    let mut found: Vec<Comment> = Vec::new();
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("mod tests {") {
            break;
        }
        let line = line.trim();
        let Some(rest) = line.strip_prefix("//") else {
            is_open = false;
            continue;
        };
        let is_doc = rest.starts_with(['/', '!']);
        let words = rest.trim_start_matches(['/', '!']).trim();
        match found.last_mut().filter(|_| is_open) {
            Some(comment) => comment.text = format!("{} {words}", comment.text).trim().to_owned(),
            None => found.push(Comment { line: number + 1, is_doc, text: words.to_owned() }),
        }
        is_open = true;
    }
    found.retain(|comment| !comment.text.is_empty() && !comment.text.starts_with("# "));
    found
}

/// Splits a text into lower-case words without punctuation.
fn words(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.to_lowercase().split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn count(path: &str, text: &str, counts: &mut Counts) {
    for comment in comments(text) {
        let words = words(&comment.text);
        let length = comment.text.split_whitespace().count();
        counts.docs += usize::from(comment.is_doc);
        let is_opened = words.first().is_some_and(|word| OPENERS.contains(&word.as_str()));
        counts.opened += usize::from(comment.is_doc && is_opened);
        if length >= LONG {
            counts.long += 1;
            let indefinites = words.iter().filter(|word| INDEFINITES.contains(&word.as_str())).count();
            counts.vague += usize::from(indefinites * 100 >= length * 12);
        }
        let spaced = format!(" {} ", words.join(" "));
        let private = PRIVATE.iter().find(|word| spaced.contains(&format!(" {word} ")));
        counts.private.extend(private.map(|word| format!("{path}:{}: \"{word}\"", comment.line)));
    }
}

/// Collects the names of types and traits, except those of unit tests.
#[derive(Default)]
struct TypeNames(Vec<String>);

impl<'ast> Visit<'ast> for TypeNames {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            syn::visit::visit_item_mod(self, module);
        }
    }
}

fn is_product(source: &Source) -> bool {
    !source.is_test(usize::MAX)
}

#[test]
fn comments_are_plain() {
    let mut counts = Counts::default();
    for source in product().iter().filter(|source| is_product(source)) {
        count(&source.path, &source.text, &mut counts);
    }
    assert_none("use the glossary's words (docs/design/glossary.md)", &counts.private);
    assert!(counts.docs > 1_000 && counts.long > 1_000, "the comments are found: {counts:?}");
    let (opened, vague) = (counts.opened * 100 / counts.docs, counts.vague * 100 / counts.long);
    assert!(
        opened <= OPENERS_MAX,
        "{opened} % of doc comments open with what, who, whether …: begin with a noun or verb"
    );
    assert!(vague <= VAGUE_MAX, "{vague} % of long comments are mostly pronouns: name the things");
}

/// String literals with a private word, as lines.
fn private_strings(stream: TokenStream, found: &mut Vec<(usize, &'static str)>) {
    for token in stream {
        match token {
            TokenTree::Group(group) => private_strings(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let spaced = format!(" {} ", words(&text).join(" "));
                // A single word is a key, a column or a value, not a sentence.
                let is_sentence = text.starts_with(['"', 'r']) && text.trim().contains(' ');
                let word = PRIVATE.iter().find(|word| spaced.contains(&format!(" {word} ")));
                found.extend(word.filter(|_| is_sentence).map(|word| (literal.span().start().line, *word)));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn texts_for_people_are_plain() {
    let mut violations = Vec::new();
    for source in product().iter().filter(|source| is_product(source)) {
        let mut found = Vec::new();
        private_strings(source.tokens.clone(), &mut found);
        found.retain(|(line, _)| !source.is_test(*line));
        violations.extend(found.iter().map(|(line, word)| format!("{}:{line}: \"{word}\"", source.path)));
    }
    assert_none("use the glossary's words (docs/design/glossary.md)", &violations);
}

#[test]
fn type_names_are_distinct() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in product().iter().filter(|source| is_product(source)) {
        let mut names = TypeNames::default();
        names.visit_file(&source.file);
        for name in names.0 {
            places.entry(name).or_default().push(source.path.clone());
        }
    }
    let homonyms: Vec<String> = places
        .iter()
        .filter(|(_, paths)| paths.len() >= HOMONYM)
        .map(|(name, paths)| format!("{name}: {paths:?}"))
        .collect();
    assert!(homonyms.len() <= HOMONYMS_MAX, "too many types share a name:\n{}", homonyms.join("\n"));
}

#[test]
fn the_measures_see_what_they_must() {
    let measure = |text: &str| {
        let mut counts = Counts::default();
        count("a.rs", text, &mut counts);
        (counts.docs, counts.opened, counts.long, counts.vague, counts.private.len())
    };
    for (text, expected) in [
        ("/// Whether the lease ended.\nfn f() {}", (1, 1, 0, 0, 0)),
        ("/// True if the lease ended.\nfn f() {}\n// What it is.", (1, 0, 0, 0, 0)),
        ("/// Sends what somebody said to whoever\n/// is there for it.", (1, 0, 1, 1, 0)),
        ("// Lanes that were\n// owed.", (0, 0, 0, 0, 1)),
        ("/// Reads at most `n` bytes from the pipe of the agent.", (1, 0, 1, 0, 0)),
        ("let a = \"// who\";\nmod tests {\n// lane\n}", (0, 0, 0, 0, 0)),
    ] {
        assert_eq!(measure(text), expected, "{text}");
    }
}
