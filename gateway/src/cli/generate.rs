//! `generate`: man pages and completion scripts of this program, for `make man` and `make completions`.

use crate::cli::inside;
use crate::cli::output::CliResult;
use crate::cli::shell_completion;
use clap::{Args, ValueEnum};
use clap_complete::{Generator as _, Shell};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Kind of files to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GenerateKind {
    /// One page for each verb (section 1)
    Man,
    /// One script for each shell
    Completions,
}

/// `generate`
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Kind of files to write
    #[arg(value_enum)]
    what: GenerateKind,
    /// Directory to write to; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `generate`
pub(crate) fn run(args: &GenerateArgs, command: &clap::Command) -> CliResult {
    let written = fs::create_dir_all(&args.dir).and_then(|()| match args.what {
        GenerateKind::Man => write_man_pages(command, &args.dir),
        GenerateKind::Completions => Shell::value_variants().iter().try_for_each(|shell| {
            let path = args.dir.join(shell.file_name(command.get_name()));
            fs::write(path, shell_completion::script(*shell)?)
        }),
    });
    written.map_err(|error| inside(&format!("cannot write {}", args.dir.display()), &error).into())
}

/// Writes the man pages. A long group of alternatives fits on no line: lines may end between two of them, and the right
/// margin is ragged.
fn write_man_pages(command: &clap::Command, dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(command.clone(), dir)?;
    for page in fs::read_dir(dir)? {
        let path = page?.path();
        let text = fs::read_to_string(&path)?;
        let text = text.replace("|\\fB", "|\\:\\fB").replace(".SH SYNOPSIS\n", ".SH SYNOPSIS\n.ad l\n");
        fs::write(&path, text)?;
    }
    Ok(())
}
