//! Command `leases reap`.

use super::{CliError, id_abbreviations, list_all};
use crate::cli::table::{Cell, Column, TableFormat, Tone, render};
use crate::cli::text::{self, IdAbbreviation};
use crate::cli::{Output, json};
use acp_shared::conn::Client;
use acp_shared::protocol::{ReapLine, Reply, Request};
use clap::Args;
use std::collections::BTreeMap;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how").required(true))]
pub(in crate::cli) struct ReapArgs {
    /// Only show what would be done, and the reasons
    #[arg(long, group = "how")]
    dry_run: bool,
    /// End the processes
    #[arg(long, group = "how")]
    yes: bool,
}

pub(super) async fn run(client: &mut Client, args: &ReapArgs, out: &mut Output) -> Result<(), CliError> {
    let short = id_abbreviations(&list_all(client, false).await?).lease;
    let Reply::Reaped(lines) = client.call(Request::Reap { dry_run: args.dry_run }).await? else {
        return Err(CliError::OutOfTurn);
    };
    if out.is_json() {
        return Ok(out.data("reap", &lines.iter().map(json::reap).collect::<Vec<_>>())?);
    }
    Ok(out.line(&text(&lines, args.dry_run, short, out.look()))?)
}

/// Returns the text of an action, as done or as planned.
fn words(action: &str, dry_run: bool) -> (&'static str, Tone) {
    match (action, dry_run) {
        ("signal", true) => ("would end", Tone::Warn),
        ("signal", false) => ("ended", Tone::Warn),
        ("mark_lost", true) => ("would be lost", Tone::Bad),
        ("mark_lost", false) => ("lost", Tone::Bad),
        ("mark_closed", true) => ("would close", Tone::Plain),
        ("mark_closed", false) => ("closed", Tone::Plain),
        _ => ("left alone", Tone::Dim),
    }
}

fn text(lines: &[ReapLine], dry_run: bool, short: IdAbbreviation, look: TableFormat) -> String {
    if lines.is_empty() {
        return if dry_run { "no lease is open" } else { "no leftover leases; nothing to do" }.to_owned();
    }
    let columns = [
        Column::new("LEASE"),
        Column::new("STATE"),
        Column::new("ACTION"),
        Column::new("PIDS").min_width(8),
        Column::new("WHY").min_width(12),
    ];
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    for line in lines {
        let (action, tone) = words(&line.action, dry_run);
        *counts.entry(action).or_default() += 1;
        let pids: Vec<String> = line.pids.iter().map(i32::to_string).collect();
        rows.push(vec![
            Cell::new(short.cut(&line.lease_id)),
            Cell::new(line.state.as_str()),
            Cell::new(action).tone(tone),
            Cell::new(if pids.is_empty() { "-".to_owned() } else { pids.join(" ") }),
            Cell::new(&line.why),
        ]);
    }
    let counts: Vec<String> = counts.into_iter().map(|(action, n)| format!("{n} {action}")).collect();
    let how = if dry_run { "; nothing was done" } else { "" };
    let summary = format!("{}: {}{how}", text::count(lines.len(), "lease"), counts.join(", "));
    format!("{}\n{summary}", render(&columns, &rows, look))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::three;
    use super::*;

    #[test]
    fn reap_table_shows_actions_and_reasons() {
        let why = [
            "its supervisor is dead and it is verified",
            "a task of this supervisor holds it",
            "its boot is over",
        ];
        let lines: Vec<ReapLine> = three()
            .iter()
            .zip(["signal", "leave", "mark_lost"])
            .zip(why)
            .map(|((lease, action), why)| ReapLine {
                lease_id: lease.lease_id,
                state: lease.state,
                action: action.into(),
                pids: if action == "signal" { vec![815, 812] } else { vec![] },
                why: why.into(),
            })
            .collect();
        let format = TableFormat { width: Some(80), headers: true, colour: false };
        assert_eq!(
            text(&lines, true, IdAbbreviation::Head(10), format).lines().collect::<Vec<_>>(),
            [
                "LEASE       STATE    ACTION         PIDS     WHY",
                "0190b5f0-0  open     would end      815 812  its supervisor is dead and it is v…",
                "0190b5f0-1  closing  left alone     -        a task of this supervisor holds it",
                "0190b5f0-2  lost     would be lost  -        its boot is over",
                "3 leases: 1 left alone, 1 would be lost, 1 would end; nothing was done"
            ]
        );
        assert!(
            text(&lines, false, IdAbbreviation::Head(10), format)
                .ends_with("3 leases: 1 ended, 1 left alone, 1 lost")
        );
        assert_eq!(text(&[], true, IdAbbreviation::Head(10), format), "no lease is open");
    }
}
