//! Command `leases list`.

use super::select::{Filter, SortKey, sort};
use super::{LeaseIdAbbreviations, id_abbreviations, list_all, rows};
use crate::cli::table::{TableFormat, render};
use crate::cli::{CliError, Output, json};
use acp_shared::conn::Client;
use acp_shared::protocol::LeaseInfo;
use clap::{Args, ValueEnum};

/// Values of `--output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns that fit into the terminal
    Table,
    /// All columns, untruncated
    Wide,
    /// Same as --json
    Json,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    filter: Filter,
    /// Sort order
    #[arg(long, value_enum, value_name = "KEY", default_value_t = SortKey::Age)]
    sort: SortKey,
    /// Reverse the sort order
    #[arg(long, short = 'r')]
    reverse: bool,
    /// Output format
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,
    /// All columns, untruncated (same as -o wide)
    #[arg(long)]
    wide: bool,
    /// Omit the line of column names
    #[arg(long)]
    no_headers: bool,
}

pub(super) async fn run(client: &mut Client, args: &ListArgs, out: &mut Output) -> Result<(), CliError> {
    let leases = list_all(client, true).await?;
    let now_ms = crate::context::wall_ms();
    let (short, total) = (id_abbreviations(&leases), leases.len());
    let mut shown: Vec<LeaseInfo> =
        leases.into_iter().filter(|lease| args.filter.fits(lease, now_ms)).collect();
    sort(&mut shown, args.sort, args.reverse);
    if out.is_json() || args.output == Format::Json {
        return Ok(out.data("leases", &shown.iter().map(json::lease).collect::<Vec<_>>())?);
    }
    if shown.is_empty() {
        // Without headers, print nothing: a script could read the message as a lease.
        return if args.no_headers { Ok(()) } else { Ok(out.line(&empty_message(total))?) };
    }
    let look = TableFormat { headers: !args.no_headers, ..out.look() };
    Ok(out.line(&table(&shown, args.wide || args.output == Format::Wide, short, now_ms, look))?)
}

/// Returns the message for an empty list.
fn empty_message(total: usize) -> String {
    match total {
        0 => "no leases".to_owned(),
        1 => "no lease matches; there is 1 without filters".to_owned(),
        _ => format!("no lease matches; there are {total} without filters"),
    }
}

fn table(
    leases: &[LeaseInfo],
    wide: bool,
    short: LeaseIdAbbreviations,
    now_ms: u64,
    look: TableFormat,
) -> String {
    if wide {
        let rows: Vec<_> = leases.iter().map(|lease| rows::wide(lease, now_ms)).collect();
        return render(&rows::WIDE, &rows, TableFormat { width: None, ..look });
    }
    let rows: Vec<_> = leases.iter().map(|lease| rows::narrow(lease, short, now_ms)).collect();
    render(&rows::NARROW, &rows, look)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW_MS, three};
    use super::*;

    fn table_at(width: usize, headers: bool) -> String {
        let leases = three();
        let format = TableFormat { width: Some(width), headers, colour: false };
        table(&leases, false, id_abbreviations(&leases), NOW_MS, format)
    }

    #[test]
    fn list_fits_width() {
        for width in 70..200 {
            let text = table_at(width, true);
            assert!(text.lines().all(|line| crate::cli::text::width(line) <= width), "{width}\n{text}");
        }
        assert_eq!(
            table_at(120, true).lines().collect::<Vec<_>>(),
            [
                "LEASE       STATE    KIND   SESSION               GATEWAY   PIDS     UPTIME   MEM  TREE   BUF  RUNG  REASON",
                "0190b5f0-0  open     agent  agent:claude:acp:01…  01000000  812/815   1h01m   90M     4  1.4K  R2",
                "0190b5f0-1  closing  term   agent:claude:acp:01…  01000000  812/815   1m01s  2.0M     1     0  R2    its agent is \\u{1b…",
                "0190b5f0-2  lost     agent  agent:codex:acp:019…  02000000  -             -     -     -     0  R2    the wrapper's pid …"
            ]
        );
        assert_eq!(
            table_at(80, true).lines().collect::<Vec<_>>(),
            [
                "LEASE       STATE    SESSION             PIDS     UPTIME   MEM  TREE   BUF  RUNG",
                "0190b5f0-0  open     agent:claude:acp:…  812/815   1h01m   90M     4  1.4K  R2",
                "0190b5f0-1  closing  agent:claude:acp:…  812/815   1m01s  2.0M     1     0  R2",
                "0190b5f0-2  lost     agent:codex:acp:0…  -             -     -     -     0  R2"
            ]
        );
        assert_eq!(table_at(80, false).lines().count(), 3);
    }

    #[test]
    fn empty_list_reports_hidden_leases() {
        assert_eq!(empty_message(0), "no leases");
        assert_eq!(empty_message(1), "no lease matches; there is 1 without filters");
        assert_eq!(empty_message(3), "no lease matches; there are 3 without filters");
    }

    #[test]
    fn wide_list_is_not_truncated() {
        let leases = three();
        let format = TableFormat { width: Some(80), headers: true, colour: false };
        let text = table(&leases, true, id_abbreviations(&leases), NOW_MS, format);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "LEASE                                 STATE    KIND   SESSION                            GATEWAY                                UID  WRAPPER  ADAPTER  UPTIME  STARTED                MEM  TREE   BUF  RUNG  CGROUP  REASON",
                "0190b5f0-0000-7000-8000-000000000001  open     agent  agent:claude:acp:0190b5f000007000  01000000-0000-7000-8000-000000000000  1000      812      815   1h01m  2027-01-15T06:58:20Z   90M     4  1.4K  R2    -",
                "0190b5f0-1000-7000-8000-000000000002  closing  term   agent:claude:acp:0190b5f000007000  01000000-0000-7000-8000-000000000000  1000      812      815   1m01s  2027-01-15T07:58:59Z  2.0M     1     0  R2    -       its agent is \\u{1b}[2Jending",
                "0190b5f0-2000-7000-8000-000000000003  lost     agent  agent:codex:acp:0190b5f2           02000000-0000-7000-8000-000000000000  1000        -        -       -  2027-01-04T22:00:00Z     -     -     0  R2    -       the wrapper's pid belongs to another process now"
            ]
        );
    }
}
