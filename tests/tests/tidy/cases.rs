//! Each fault case of the reference has its tests, by number. A test that covers cases 26 and 27 of supervision and
//! A5 of the acceptance list with real processes is named `c26_c27_a05_r_…`, in the simulator `…_s_…`. The table of
//! what covers what is made from these names: `make cases`.

mod table;

use crate::source::{Source, sources};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use table::{Asked, Case, Kind, List, cases};

const PACKAGES: [&str; 5] = ["shared", "wrapper", "supervisor", "gateway", "tests"];

/// What a name says: which cases are covered, and how.
fn covered(name: &str) -> BTreeSet<(List, u32, Kind)> {
    let (mut covered, mut chain) = (BTreeSet::new(), Vec::new());
    for token in name.split('_') {
        let kind = match token {
            "s" => Some(Kind::Simulated),
            "r" => Some(Kind::Real),
            // Other requirements may be named in the same chain, and the groups of the test runner.
            "heavy" => continue,
            _ => None,
        };
        if let Some(kind) = kind {
            covered.extend(chain.drain(..).map(|(list, number)| (list, number, kind)));
            continue;
        }
        let Some(number) = token.get(1..).and_then(|number| number.parse().ok()) else { break };
        match token.chars().next() {
            Some('c') => chain.push((List::Supervision, number)),
            Some('a') => chain.push((List::Acceptance, number)),
            Some('h') => {}
            _ => break,
        }
    }
    covered
}

/// Whether an attribute makes a function a test: `test`, `tokio::test`.
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

/// The names of the tests in a file, those inside of macros too.
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

type Covered = BTreeMap<(List, u32, Kind), Vec<String>>;

fn covered_by(files: &[Source]) -> Covered {
    let mut all = Covered::new();
    for source in files {
        let mut names = Vec::new();
        tests(source.tokens.clone(), &mut names);
        for name in names {
            for case in covered(&name) {
                let place = format!("{}::{name}", source.path.trim_end_matches(".rs"));
                all.entry(case).or_default().push(place);
            }
        }
    }
    all
}

/// A case as the list of what is still to do names it.
fn short(case: &Case, kind: Option<Kind>) -> String {
    let list = match case.list {
        List::Supervision => 'c',
        List::Acceptance => 'a',
    };
    let kind = kind.map(|kind| format!(" {}", kind.letter())).unwrap_or_default();
    format!("{list}{:02}{kind}", case.number)
}

fn missing(covered: &Covered) -> BTreeSet<String> {
    let has = |case: &Case, kind| covered.contains_key(&(case.list, case.number, kind));
    let mut missing = BTreeSet::new();
    for case in cases() {
        match case.asked {
            Asked::Each(kinds) => {
                let lacking = kinds.iter().filter(|kind| !has(&case, **kind));
                missing.extend(lacking.map(|kind| short(&case, Some(*kind))));
            }
            Asked::Any if [Kind::Simulated, Kind::Real].iter().any(|kind| has(&case, *kind)) => {}
            Asked::Any => {
                missing.insert(short(&case, None));
            }
        }
    }
    missing
}

/// The numbers that a test names and no list has.
fn unknown(covered: &Covered) -> Vec<String> {
    let known: BTreeSet<(List, u32)> = cases().iter().map(|case| (case.list, case.number)).collect();
    let stray = covered.iter().filter(|((list, number, _), _)| !known.contains(&(*list, *number)));
    stray.map(|((_, number, _), by)| format!("there is no case {number}: {}", by.join(", "))).collect()
}

fn markdown(covered: &Covered) -> String {
    let mut text = String::from("| case | what | asked | S | R |\n|---|---|---|---|---|\n");
    for case in cases() {
        let asked: String = match case.asked {
            Asked::Each(kinds) => kinds.iter().map(|kind| kind.letter()).collect(),
            Asked::Any => "S or R".into(),
        };
        let by = |kind| match covered.get(&(case.list, case.number, kind)) {
            Some(names) => {
                let last = |name: &String| name.rsplit("::").next().unwrap_or_default().to_owned();
                format!("`{}`", names.iter().map(last).collect::<Vec<_>>().join("`, `"))
            }
            None => "–".into(),
        };
        let (name, title) = (short(&case, None), case.title);
        let (simulated, real) = (by(Kind::Simulated), by(Kind::Real));
        let _ = writeln!(text, "| {name} | {title} | {asked} | {simulated} | {real} |");
    }
    text
}

#[test]
fn every_case_has_its_tests() {
    let covered = covered_by(&sources(&PACKAGES));
    println!("{}", markdown(&covered));
    let mut violations: Vec<String> =
        missing(&covered).iter().map(|case| format!("{case} has no test")).collect();
    violations.extend(unknown(&covered));
    crate::assert_none(
        "a test's name begins with the cases it covers and their kind: c26_c27_a05_r_…",
        &violations,
    );
}

#[test]
fn names_are_read_as_they_are_written() {
    let (c, a, s, r) = (List::Supervision, List::Acceptance, Kind::Simulated, Kind::Real);
    for (name, want) in [
        ("c26_c27_a05_r_leftovers", vec![(c, 26, r), (c, 27, r), (a, 5, r)]),
        ("c1_s_x", vec![(c, 1, s)]),
        ("c14_r_c66_s_x", vec![(c, 14, r), (c, 66, s)]),
        ("c14_r_a_lease", vec![(c, 14, r)]),
        ("heavy_h9_c71_r_x", vec![(c, 71, r)]),
        ("h9_an_agent", vec![]),
        ("r_x", vec![]),
        ("c26_leftovers", vec![]),
        ("cat_r_x", vec![]),
        ("a_killed_supervisor_r_x", vec![]),
    ] {
        assert_eq!(covered(name).into_iter().collect::<Vec<_>>(), want, "{name}");
    }
    let text = "#[test] fn c1_s_a() { fn c2_s_no() {} } #[tokio::test(flavor = \"x\")] async fn c3_r_b() {}
        mod m { proptest! { #[test] fn c4_s_c(x in 0..1) {} } #[cfg(test)] fn c5_s_no() {} }";
    let mut found = Vec::new();
    tests(text.parse().unwrap_or_else(|e| panic!("{e}")), &mut found);
    assert_eq!(found, ["c1_s_a", "c3_r_b", "c4_s_c"]);
}

#[test]
fn a_case_without_its_tests_is_missing() {
    let all: Covered = covered_by(&sources(&PACKAGES));
    for (list, number, kind) in all.keys() {
        let mut without = all.clone();
        without.retain(|(l, n, k), _| (l, n) != (list, number) || k != kind);
        let case = cases().into_iter().find(|case| (case.list, case.number) == (*list, *number));
        let asked = case.is_some_and(|case| match case.asked {
            Asked::Each(kinds) => kinds.contains(kind),
            // One kind stands in for the other.
            Asked::Any => !without.keys().any(|(l, n, _)| (l, n) == (list, number)),
        });
        assert_eq!(missing(&without).is_empty(), !asked, "{number} {}", kind.letter());
    }
}
