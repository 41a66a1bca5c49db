//! `leases verify`: compares recorded with current evidence. The exit code depends on the verdict.

use super::{id_abbreviations, list_all, resolve};
use crate::cli::error::FAILED;
use crate::cli::table::{Cell, Column, TableFormat, Tone, render};
use crate::cli::text::{self, IdAbbreviation};
use crate::cli::{CliError, Output, json};
use acp_shared::conn::{Client, ConnError};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{EvidenceReport, LeaseState, RefusalCode, Reply, Request};
use clap::Args;

/// Maximum width of the evidence table, in columns.
const WIDTH_MAX: usize = 100;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(in crate::cli) struct VerifyArgs {
    /// Lease id, or the beginning or end of one
    #[arg(value_name = "ID", group = "which")]
    id: Option<String>,
    /// All living or lost leases, one line each
    #[arg(long, group = "which")]
    all: bool,
}

pub(super) async fn run(client: &mut Client, args: &VerifyArgs, out: &mut Output) -> Result<(), CliError> {
    let leases = list_all(client, false).await?;
    let good = match &args.id {
        Some(id) => {
            let report = verify(client, resolve(&leases, id)?).await?;
            if out.is_json() {
                out.data("evidence", &json::evidence(&report))?;
            } else {
                out.line(&one(&report, out.look()))?;
            }
            is_good(&report)
        }
        None => {
            let short = id_abbreviations(&leases).lease;
            let mut reports = Vec::new();
            for lease in leases.iter().filter(|l| !l.state.is_ended() || l.state == LeaseState::Lost) {
                match verify(client, lease.lease_id).await {
                    Ok(report) => reports.push(report),
                    // Removed by retention since the list was read.
                    Err(CliError::Call(ConnError::Refused(r))) if r.code == RefusalCode::LeaseUnknown => {}
                    Err(error) => return Err(error),
                }
            }
            if out.is_json() {
                out.data("evidence_list", &reports.iter().map(json::evidence).collect::<Vec<_>>())?;
            } else {
                out.line(&many(&reports, short, out.look()))?;
            }
            reports.iter().all(is_good)
        }
    };
    if good { Ok(()) } else { Err(CliError::Ended(FAILED)) }
}

async fn verify(client: &mut Client, lease_id: LeaseId) -> Result<EvidenceReport, CliError> {
    let Reply::Evidence(report) = client.call(Request::Verify { lease_id }).await? else {
        return Err(CliError::OutOfTurn);
    };
    Ok(report)
}

/// True if the processes match the record: a living lease owns its tree, an ended one has none.
fn is_good(report: &EvidenceReport) -> bool {
    if report.lease.state.is_ended() {
        report.tree.is_empty() && matches!(report.verdict.as_str(), "gone" | "not_ours")
    } else {
        report.verdict == "owned"
    }
}

fn verdict(report: &EvidenceReport) -> Cell {
    let tone = match (is_good(report), report.verdict.as_str()) {
        (true, _) => Tone::Good,
        (false, "unknown") => Tone::Warn,
        (false, _) => Tone::Bad,
    };
    Cell::new(&report.verdict).tone(tone)
}

const fn mark(agrees: Option<bool>) -> (&'static str, Tone) {
    match agrees {
        Some(true) => ("✓", Tone::Good),
        Some(false) => ("✗", Tone::Bad),
        None => ("?", Tone::Dim),
    }
}

fn one(report: &EvidenceReport, look: TableFormat) -> String {
    let look = TableFormat { width: Some(look.width.unwrap_or(WIDTH_MAX).min(WIDTH_MAX)), ..look };
    let columns = [
        Column::new(""),
        Column::new("OF"),
        Column::new("FACT"),
        Column::new("RECORDED").min_width(8),
        Column::new("NOW").min_width(8),
    ];
    let or_dash = |text: &str| if text.is_empty() { Cell::new("-") } else { Cell::new(text) };
    let rows: Vec<Vec<Cell>> = report
        .facts
        .iter()
        .map(|fact| {
            let (mark, tone) = mark(fact.agrees);
            vec![
                Cell::new(mark).tone(tone),
                Cell::new(&fact.subject),
                Cell::new(&fact.name),
                or_dash(&fact.recorded),
                or_dash(&fact.live).tone(if fact.agrees == Some(false) { Tone::Bad } else { Tone::Plain }),
            ]
        })
        .collect();
    let mut parts = Vec::new();
    if !rows.is_empty() {
        parts.push(render(&columns, &rows, look));
        parts.push(String::new());
    }
    // Differing values are printed in full, whatever their length.
    for fact in report.facts.iter().filter(|fact| fact.agrees == Some(false)) {
        let (of, name) = (text::plain(&fact.subject), text::plain(&fact.name));
        parts.push(format!(
            "✗ {of} {name}\n    recorded  {}\n    now       {}",
            text::plain(&fact.recorded),
            text::plain(&fact.live)
        ));
    }
    let verdict = verdict(report);
    parts.push(format!(
        "verdict: {} ({})",
        verdict.is().paint(verdict.text(), look.colour),
        text::plain(&report.why)
    ));
    parts.push(format!("lease:   {} ({})", report.lease.lease_id, report.lease.state));
    parts.push(format!("tree:    {}", tree(report)));
    parts.join("\n")
}

fn tree(report: &EvidenceReport) -> String {
    let tree: Vec<String> =
        report.tree.iter().map(|(pid, name)| format!("{pid} ({})", text::plain(name))).collect();
    if tree.is_empty() { "no processes".to_owned() } else { tree.join(", ") }
}

fn many(reports: &[EvidenceReport], short: IdAbbreviation, look: TableFormat) -> String {
    let columns = [
        Column::new("LEASE"),
        Column::new("STATE"),
        Column::new("VERDICT"),
        Column::new("AGREE").right(),
        Column::new("DIFFER").right(),
        Column::new("TREE").right(),
        Column::new("WHY").min_width(10),
    ];
    let rows: Vec<Vec<Cell>> = reports
        .iter()
        .map(|report| {
            let count = |agrees| report.facts.iter().filter(|f| f.agrees == Some(agrees)).count();
            let differ = count(false);
            vec![
                Cell::new(short.cut(&report.lease.lease_id)),
                Cell::new(report.lease.state.as_str()),
                verdict(report),
                Cell::new(count(true).to_string()),
                Cell::new(differ.to_string()).tone(if differ > 0 { Tone::Warn } else { Tone::Plain }),
                Cell::new(report.tree.len().to_string()),
                Cell::new(&report.why),
            ]
        })
        .collect();
    let good = reports.iter().filter(|report| is_good(report)).count();
    let summary =
        format!("{}: {good} as recorded, {} not", text::count(reports.len(), "lease"), reports.len() - good);
    if rows.is_empty() { summary } else { format!("{}\n{summary}", render(&columns, &rows, look)) }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::three;
    use super::*;
    use acp_shared::protocol::EvidenceFact;

    fn fact(name: &str, recorded: &str, live: &str, agrees: Option<bool>) -> EvidenceFact {
        EvidenceFact {
            subject: "wrapper".into(),
            name: name.into(),
            recorded: recorded.into(),
            live: live.into(),
            agrees,
        }
    }

    fn report(at: usize, verdict: &str, tree: &[(i32, &str)]) -> EvidenceReport {
        let long = format!("/var/lib/{}/acp-wrapper", "x".repeat(120));
        EvidenceReport {
            lease: three().remove(at),
            facts: vec![
                fact("pid", "812", "812", Some(true)),
                fact("start_ticks", "12345", "99999", Some(false)),
                fact("pidfs_inode", "77", "", None),
                fact("exe", &long, &long, Some(true)),
            ],
            verdict: verdict.into(),
            why: "reason \u{1b}[2J".into(),
            tree: tree.iter().map(|(pid, name)| (*pid, (*name).to_owned())).collect(),
        }
    }

    #[test]
    fn evidence_is_shown_next_to_record() {
        let format = TableFormat { width: None, headers: true, colour: false };
        assert_eq!(
            one(&report(0, "not_ours", &[(812, "sh"), (815, "cat \u{1b}[2J")]), format)
                .lines()
                .collect::<Vec<_>>(),
            [
                "   OF       FACT         RECORDED                               NOW",
                "✓  wrapper  pid          812                                    812",
                "✗  wrapper  start_ticks  12345                                  99999",
                "?  wrapper  pidfs_inode  77                                     -",
                "✓  wrapper  exe          /var/lib/xxxxxxxxxxxxxxxxxxxxxxxxxxx…  /var/lib/xxxxxxxxxxxxxxxxxxxxxxxxxx…",
                "",
                "✗ wrapper start_ticks",
                "    recorded  12345",
                "    now       99999",
                "verdict: not_ours (reason \\u{1b}[2J)",
                "lease:   0190b5f0-0000-7000-8000-000000000001 (open)",
                "tree:    812 (sh), 815 (cat \\u{1b}[2J)"
            ]
        );
        let text = many(
            &[report(0, "owned", &[(812, "sh")]), report(2, "gone", &[])],
            IdAbbreviation::Head(10),
            TableFormat { width: Some(100), ..format },
        );
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "LEASE       STATE  VERDICT  AGREE  DIFFER  TREE  WHY",
                "0190b5f0-0  open   owned        2       1     1  reason \\u{1b}[2J",
                "0190b5f0-2  lost   gone         2       1     0  reason \\u{1b}[2J",
                "2 leases: 2 as recorded, 0 not"
            ]
        );
    }

    #[test]
    fn verdict_is_good_depending_on_state() {
        for (at, verdict, tree, good) in [
            (0, "owned", true, true),
            (0, "gone", false, false),
            (0, "not_ours", false, false),
            (0, "unknown", true, false),
            (2, "gone", false, true),
            (2, "not_ours", false, true),
            (2, "not_ours", true, false),
            (2, "unknown", false, false),
        ] {
            let tree = if tree { &[(1, "x")][..] } else { &[] };
            assert_eq!(is_good(&report(at, verdict, tree)), good, "{at} {verdict}");
        }
    }
}
