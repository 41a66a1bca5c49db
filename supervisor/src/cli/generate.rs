//! `generate`: man pages and completion scripts of this program, for `make man` and `make completions`.

use super::CliError;
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Kind of generated files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GeneratedFiles {
    /// One page for each command (section 1)
    Man,
    /// One script for each shell
    Completions,
}

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Kind of files to write
    #[arg(value_enum)]
    what: GeneratedFiles,
    /// Target directory; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &GenerateArgs, command: &clap::Command) -> Result<(), CliError> {
    let written = fs::create_dir_all(&args.dir).and_then(|()| match args.what {
        GeneratedFiles::Man => clap_mangen::generate_to(command.clone(), &args.dir),
        GeneratedFiles::Completions => completions(command, &args.dir),
    });
    written.map_err(|source| CliError::File { path: args.dir.clone(), source })
}

fn completions(command: &clap::Command, dir: &Path) -> io::Result<()> {
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command.clone(), command.get_name(), dir)?;
    }
    Ok(())
}
