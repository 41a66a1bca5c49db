//! The report of all figures, for people and for programs.

use serde_json::{Map, Value, json};
use std::time::Instant;

/// Limit of a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

/// A table that is printed as it grows, and its figures.
#[derive(Debug)]
pub(crate) struct Report {
    facts: Map<String, Value>,
    figures: Map<String, Value>,
    missed: Vec<String>,
    part: String,
    began: Instant,
}

impl Report {
    /// Creates a report with facts about the machine.
    pub(crate) fn start() -> Self {
        let mut report = Self {
            facts: Map::new(),
            figures: Map::new(),
            missed: Vec::new(),
            part: String::new(),
            began: Instant::now(),
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        report.fact("kernel", &read("/proc/sys/kernel/osrelease"));
        report.fact("cpus", &cpus.to_string());
        report.fact("load_at_start", read("/proc/loadavg").split(' ').next().unwrap_or_default());
        report
    }

    /// Adds a fact that is not a figure.
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        println!("{name}: {value}");
        self.facts.insert(name.to_owned(), json!(value));
    }

    /// Begins a part of the table.
    pub(crate) fn part(&mut self, name: &str, about: &str) {
        name.clone_into(&mut self.part);
        println!("\n{name}: {about}");
    }

    /// Prints a remark under the current part.
    pub(crate) fn remark(&self, text: &str) {
        println!("  {text}");
    }

    /// Adds a figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str) {
        self.row(name, value, unit, None);
    }

    /// Adds a figure with a limit.
    pub(crate) fn limited(&mut self, name: &str, value: f64, unit: &str, limit: Limit) {
        self.row(name, value, unit, Some(limit));
    }

    /// Adds a figure, the same figure of a peer, and the ratio of the two; the limit, if any, applies to the
    /// ratio.
    pub(crate) fn against(
        &mut self,
        name: &str,
        (ours, unit): (f64, &str),
        (peer, theirs): (&str, f64),
        (ratio, limit): (f64, Option<Limit>),
    ) {
        self.row(name, ours, unit, None);
        self.row(&format!("{name}, {peer}"), theirs, unit, None);
        self.row(&format!("{name}, ratio to {peer}"), ratio, "times", limit);
    }

    /// Adds a figure, with a limit if there is one.
    pub(crate) fn row(&mut self, name: &str, value: f64, unit: &str, limit: Option<Limit>) {
        let decimals = if value.abs() < 1_000.0 { 3 } else { 0 };
        let judged = match limit {
            None => String::new(),
            Some(limit) if limit.holds(value) => format!("{:>10}  ok", limit.text()),
            Some(limit) => format!("{:>10}  MISSED", limit.text()),
        };
        println!("  {name:<58} {value:>12.decimals$} {unit:<8} {judged}");
        let name = format!("{}.{name}", self.part).replace([' ', ',', '-'], "_").replace("__", "_");
        if limit.is_some_and(|limit| !limit.holds(value)) {
            self.missed.push(name.clone());
        }
        // NaN (nothing was measured) becomes null.
        self.figures.insert(format!("{name}_{}", unit.replace('/', "_per_")), json!(value));
    }

    /// Prints the line for programs and returns the number of missed limits.
    pub(crate) fn finish(mut self) -> usize {
        println!();
        self.fact("seconds", &self.began.elapsed().as_secs().to_string());
        match self.missed.as_slice() {
            [] => println!("\nEvery limit holds.\n"),
            missed => println!("\nMISSED: {}\n", missed.join(", ")),
        }
        let count = self.missed.len();
        println!("{}", json!({"facts": self.facts, "figures": self.figures, "missed": self.missed}));
        count
    }
}
