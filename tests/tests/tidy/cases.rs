//! Each case of the reference has its tests, by number. A test that covers cases 26 and 27 of supervision and
//! A5 of the acceptance list with real processes is named `c26_c27_a05_r_…`, in the simulator `…_s_…`. One of the
//! gateway's own suite that covers B3 of the control plane is named `b03_…`. The tables of what covers what are made
//! from these names: `make cases`.

mod control;
mod table;

use crate::source::{Source, sources};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use table::{Asked, Case, Kind, List};

const PACKAGES: [&str; 5] = ["shared", "wrapper", "supervisor", "gateway", "tests"];

/// Two lists have the letter `c`. Where a test stands says which one it means; in `tests/`, which has both, a number
/// that both have is delivery's: supervision has its own with its suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// What is below the gateway: supervision only.
    Processes,
    /// The gateway: the control plane, and a name without a kind is one of its suite.
    Gateway,
    /// `tests/`: both, and each name says its kind.
    House,
}

const DELIVERY_CASES: u32 = 14;

impl Home {
    fn of(path: &str) -> Self {
        match path.split('/').next() {
            Some("gateway") => Self::Gateway,
            Some("tests") => Self::House,
            _ => Self::Processes,
        }
    }

    /// The list that a letter with this number means here.
    fn list(self, letter: char, number: u32) -> Option<List> {
        let control = self != Self::Processes;
        match letter {
            'a' => Some(List::Acceptance),
            'b' if control => Some(List::Sessions),
            'c' if self == Self::Gateway || (control && number <= DELIVERY_CASES) => Some(List::Delivery),
            'c' => Some(List::Supervision),
            'd' if control => Some(List::Bindings),
            'e' if control => Some(List::Commands),
            _ => None,
        }
    }
}

/// What a name says.
#[derive(Debug, Default)]
struct Said {
    /// Which cases are covered, and how.
    covered: BTreeSet<(List, u32, Kind)>,
    /// Cases that it names without saying how.
    kindless: Vec<(List, u32)>,
}

fn said(home: Home, name: &str) -> Said {
    let mut said = Said::default();
    for token in name.split('_') {
        let kind = match token {
            "s" => Some(Kind::Simulated),
            "r" => Some(Kind::Real),
            // Other requirements may be named in the same chain, and the groups of the test runner.
            "heavy" => continue,
            _ => None,
        };
        if let Some(kind) = kind {
            said.covered.extend(said.kindless.drain(..).map(|(list, number)| (list, number, kind)));
            continue;
        }
        let Some(number) = token.get(1..).and_then(|number| number.parse().ok()) else { break };
        let Some(letter) = token.chars().next().filter(|letter| *letter != 'h') else { continue };
        match home.list(letter, number) {
            Some(list) => said.kindless.push((list, number)),
            None => break,
        }
    }
    if home == Home::Gateway {
        let suite = said.kindless.drain(..).map(|(list, number)| (list, number, Kind::Suite));
        said.covered.extend(suite);
    }
    said
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

/// The names of the tests in a file.
pub(crate) fn names_of_tests(source: &Source) -> Vec<String> {
    let mut names = Vec::new();
    tests(source.tokens.clone(), &mut names);
    names
}

type Covered = BTreeMap<(List, u32, Kind), Vec<String>>;

/// What the tests in these files cover, and the names that do not say how.
fn covered_by(files: &[Source]) -> (Covered, Vec<String>) {
    let (mut all, mut kindless) = (Covered::new(), Vec::new());
    for source in files {
        for name in names_of_tests(source) {
            let place = format!("{}::{name}", source.path.trim_end_matches(".rs"));
            let home = Home::of(&source.path);
            let said = said(home, &name);
            if home == Home::House && !said.kindless.is_empty() {
                kindless.push(format!("{place} names a case, and not its kind: _s_ or _r_"));
            }
            for case in said.covered {
                all.entry(case).or_default().push(place.clone());
            }
        }
    }
    (all, kindless)
}

/// Every case of every list.
fn cases() -> Vec<Case> {
    [table::cases(), control::cases()].concat()
}

/// A case as the list of what is still to do names it.
fn short(list: List, number: u32, kind: Option<Kind>) -> String {
    let kind = kind.map(|kind| format!(" {}", kind.letter())).unwrap_or_default();
    format!("{}{number:02}{kind}", list.letter())
}

/// What a case may be covered by where any test will do.
const KINDS: [Kind; 3] = [Kind::Suite, Kind::Simulated, Kind::Real];

/// A case, and the kind of test that it lacks, or none where any would do.
type Lack = (List, u32, Option<Kind>);

fn missing(covered: &Covered) -> BTreeSet<Lack> {
    let has = |case: &Case, kind| covered.contains_key(&(case.list, case.number, kind));
    let mut missing = BTreeSet::new();
    for case in cases() {
        match case.asked {
            Asked::Each(kinds) => {
                let lacking = kinds.iter().filter(|kind| !has(&case, **kind));
                missing.extend(lacking.map(|kind| (case.list, case.number, Some(*kind))));
            }
            Asked::Any if KINDS.iter().any(|kind| has(&case, *kind)) => {}
            Asked::Any => {
                missing.insert((case.list, case.number, None));
            }
        }
    }
    missing
}

/// What the lists of exceptions do not explain, and what they should not hold.
fn judge(missing: &BTreeSet<Lack>, discord: &[(List, u32, &str)], not_yet: &[(List, u32)]) -> Vec<String> {
    let excused = |list, number| {
        discord.iter().any(|(l, n, _)| (*l, *n) == (list, number)) || not_yet.contains(&(list, number))
    };
    let lacking = missing.iter().filter(|(list, number, _)| !excused(*list, *number));
    let mut violations: Vec<String> =
        lacking.map(|(list, number, kind)| format!("{} has no test", short(*list, *number, *kind))).collect();
    let done = not_yet.iter().filter(|(list, number)| !missing.contains(&(*list, *number, None)));
    violations.extend(done.map(|(list, number)| {
        format!(
            "{} has a test, or is no case: take it off the list of what is not yet there",
            short(*list, *number, None)
        )
    }));
    violations
}

/// The numbers that a test names and no list has.
fn unknown(covered: &Covered) -> Vec<String> {
    let known: BTreeSet<(List, u32)> = cases().iter().map(|case| (case.list, case.number)).collect();
    let stray = covered.iter().filter(|((list, number, _), _)| !known.contains(&(*list, *number)));
    stray
        .map(|((list, number, _), by)| {
            format!("there is no case {}: {}", short(*list, *number, None), by.join(", "))
        })
        .collect()
}

/// The tests of a case, by their names.
fn cell(covered: &Covered, case: &Case, kinds: &[Kind]) -> String {
    let of = |kind: &Kind| covered.get(&(case.list, case.number, *kind)).into_iter().flatten();
    let names = kinds.iter().flat_map(of).map(|name| name.rsplit("::").next().unwrap_or_default());
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "–".into() } else { format!("`{}`", names.join("`, `")) }
}

/// The cases of processes.
fn processes(covered: &Covered) -> String {
    let mut text = String::from("| case | what | asked | S | R |\n|---|---|---|---|---|\n");
    for case in table::cases() {
        let asked: String = match case.asked {
            Asked::Each(kinds) => kinds.iter().map(|kind| kind.letter()).collect(),
            Asked::Any => "S or R".into(),
        };
        let (name, title) = (short(case.list, case.number, None), case.title);
        let (simulated, real) =
            (cell(covered, &case, &[Kind::Simulated]), cell(covered, &case, &[Kind::Real]));
        let _ = writeln!(text, "| {name} | {title} | {asked} | {simulated} | {real} |");
    }
    text
}

/// The cases of the control plane, and those that wait for a channel of people.
fn control_plane(covered: &Covered) -> String {
    let mut text = String::from("| case | what | U/S | R |\n|---|---|---|---|\n");
    let discord = |case: &Case| {
        control::DISCORD.iter().find(|(list, number, _)| (*list, *number) == (case.list, case.number))
    };
    for case in control::cases() {
        let name = short(case.list, case.number, None).to_uppercase();
        let title = case.title;
        let suite = cell(covered, &case, &[Kind::Suite, Kind::Simulated]);
        let real = cell(covered, &case, &[Kind::Real]);
        let mark = if discord(&case).is_some() {
            " (left out on Discord)"
        } else if control::NOT_YET.contains(&(case.list, case.number)) {
            " (not yet)"
        } else {
            ""
        };
        let _ = writeln!(text, "| {name} | {title}{mark} | {suite} | {real} |");
    }
    text.push_str("\nWhat the adapter of Discord leaves out:\n\n| case | why |\n|---|---|\n");
    for (list, number, why) in control::DISCORD {
        let _ = writeln!(text, "| {} | {why} |", short(list, number, None).to_uppercase());
    }
    text
}

#[test]
fn every_case_has_its_tests() {
    let (covered, mut violations) = covered_by(&sources(&PACKAGES));
    println!("{}\n{}", processes(&covered), control_plane(&covered));
    violations.extend(judge(&missing(&covered), &control::DISCORD, control::NOT_YET));
    violations.extend(unknown(&covered));
    crate::assert_none(
        "a test's name begins with the cases it covers and their kind: c26_c27_a05_r_…",
        &violations,
    );
}

#[test]
fn names_are_read_as_they_are_written() {
    let (c, a, s, r) = (List::Supervision, List::Acceptance, Kind::Simulated, Kind::Real);
    let (b, delivery, d, e) = (List::Sessions, List::Delivery, List::Bindings, List::Commands);
    let (below, gateway, house) = (Home::Processes, Home::Gateway, Home::House);
    for (home, name, want) in [
        (below, "c26_c27_a05_r_leftovers", vec![(c, 26, r), (c, 27, r), (a, 5, r)]),
        (below, "c1_s_x", vec![(c, 1, s)]),
        (below, "c14_r_c66_s_x", vec![(c, 14, r), (c, 66, s)]),
        (below, "c14_r_a_lease", vec![(c, 14, r)]),
        (below, "heavy_h9_c71_r_x", vec![(c, 71, r)]),
        (below, "h9_an_agent", vec![]),
        (below, "r_x", vec![]),
        (below, "c26_leftovers", vec![]),
        (below, "cat_r_x", vec![]),
        (below, "a_killed_supervisor_r_x", vec![]),
        (below, "b03_r_x", vec![]),
        (gateway, "b03_b04_a_cancel", vec![(b, 3, Kind::Suite), (b, 4, Kind::Suite)]),
        (gateway, "h4_e01_every_row", vec![(e, 1, Kind::Suite)]),
        (gateway, "c08_s_x", vec![(delivery, 8, s)]),
        (gateway, "c44_x", vec![(delivery, 44, Kind::Suite)]),
        (gateway, "a_turn_that", vec![]),
        (house, "d02_d08_r_a_window", vec![(d, 2, r), (d, 8, r)]),
        (house, "heavy_c44_a11_r_x", vec![(a, 11, r), (c, 44, r)]),
        (house, "c09_c14_r_x", vec![(delivery, 9, r), (delivery, 14, r)]),
        (house, "c15_r_x", vec![(c, 15, r)]),
    ] {
        let found: BTreeSet<_> = said(home, name).covered;
        assert_eq!(found, want.into_iter().collect(), "{name}");
    }
    assert_eq!(said(house, "b03_b04_a_cancel").kindless, [(b, 3), (b, 4)]);
    let text = "#[test] fn c1_s_a() { fn c2_s_no() {} } #[tokio::test(flavor = \"x\")] async fn c3_r_b() {}
        mod m { proptest! { #[test] fn c4_s_c(x in 0..1) {} } #[cfg(test)] fn c5_s_no() {} }";
    let mut found = Vec::new();
    tests(text.parse().unwrap_or_else(|e| panic!("{e}")), &mut found);
    assert_eq!(found, ["c1_s_a", "c3_r_b", "c4_s_c"]);
}

#[test]
fn a_case_without_its_tests_is_missing() {
    let (all, _) = covered_by(&sources(&PACKAGES));
    let lacking = missing(&all);
    for (list, number, kind) in all.keys() {
        let mut without = all.clone();
        without.retain(|(l, n, k), _| (l, n) != (list, number) || k != kind);
        let case = cases().into_iter().find(|case| (case.list, case.number) == (*list, *number));
        let asked = case.is_some_and(|case| match case.asked {
            Asked::Each(kinds) => kinds.contains(kind),
            // One kind stands in for the other.
            Asked::Any => !without.keys().any(|(l, n, _)| (l, n) == (list, number)),
        });
        assert_eq!(missing(&without) == lacking, !asked, "{number} {}", kind.letter());
    }
}

#[test]
fn the_lists_of_exceptions_cannot_rot() {
    let (one, two) = ((List::Sessions, 1), (List::Sessions, 2));
    let lacks = |cases: &[(List, u32)]| cases.iter().map(|(list, number)| (*list, *number, None)).collect();
    for (missing, discord, not_yet, violations) in [
        (lacks(&[]), vec![], vec![], 0),
        (lacks(&[one]), vec![], vec![], 1),
        (lacks(&[one]), vec![], vec![one], 0),
        (lacks(&[one]), vec![(one.0, one.1, "why")], vec![], 0),
        (lacks(&[one]), vec![], vec![one, two], 1),
        (lacks(&[]), vec![(one.0, one.1, "why")], vec![], 0),
        (lacks(&[]), vec![], vec![one], 1),
    ] {
        let found = judge(&missing, &discord, &not_yet);
        assert_eq!(found.len(), violations, "{missing:?} {not_yet:?} {found:?}");
    }
    let both =
        control::DISCORD.iter().filter(|(list, number, _)| control::NOT_YET.contains(&(*list, *number)));
    assert_eq!(both.count(), 0, "a case is left out on Discord or on its way, not both");
    let known: BTreeSet<(List, u32)> = control::cases().iter().map(|case| (case.list, case.number)).collect();
    for (list, number, why) in control::DISCORD {
        assert!(known.contains(&(list, number)) && !why.is_empty(), "{}", short(list, number, None));
    }
    assert!(cases().iter().all(|case| case.list.of_processes() != known.contains(&(case.list, case.number))));
}
