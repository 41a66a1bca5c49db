//! Helper process: reads jobs from standard input and writes replies to standard output until its input ends.

use super::roots::Roots;
use super::{FRAMES_VERSION, HelperJob};
use acp_shared::files::{FilesError, FilesOp, FilesReply};
use acp_shared::probe;
use acp_shared::protocol::FRAME_BYTES_MAX;
use acp_shared::wire::{Decoder, encode_frame};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// Serves jobs until standard input ends.
///
/// # Errors
/// The frames have another version, or a pipe broke.
pub(crate) fn run(version: u32) -> io::Result<()> {
    if version != FRAMES_VERSION {
        let why = format!("this program speaks version {FRAMES_VERSION} of file jobs, not {version}");
        return Err(io::Error::other(why));
    }
    // Agents may have the same user: they must not write into the pipes of this process through /proc.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    serve(&mut io::stdin().lock(), &mut io::stdout().lock())
}

fn serve(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let (mut decoder, mut block) = (Decoder::new(FRAME_BYTES_MAX), vec![0; 64 * 1024]);
    loop {
        while let Some(job) = decoder.pop::<HelperJob>().map_err(io::Error::other)? {
            let answer = encode_frame(&answer(job), FRAME_BYTES_MAX).map_err(io::Error::other)?;
            output.write_all(&answer)?;
            output.flush()?;
        }
        let count = input.read(&mut block)?;
        if count == 0 {
            return Ok(());
        }
        decoder.push(block.get(..count).unwrap_or_default());
    }
}

fn answer(job: HelperJob) -> Result<FilesReply, FilesError> {
    let HelperJob { roots, op } = job;
    let open = || Roots::open(&roots.iter().map(PathBuf::from).collect::<Vec<_>>());
    match op {
        FilesOp::Read { path, line, limit, bytes_max } => {
            open()?.read(&path, line, limit, bytes_max).map(FilesReply::Text)
        }
        FilesOp::Write { path, content } => open()?.write(&path, &content).map(|()| FilesReply::Written),
        FilesOp::Inspect { path, text_bytes_max } => {
            open()?.inspect(&path, text_bytes_max).map(FilesReply::Inspected)
        }
        FilesOp::Directory { path } => {
            let roots = open()?;
            Ok(FilesReply::Directory { path: roots.directory(&path)?, roots: roots.paths()? })
        }
        FilesOp::List { path, entries_max } => {
            let (entries, more) = open()?.list(&path, entries_max)?;
            Ok(FilesReply::List { entries, more })
        }
        FilesOp::Directories { paths } => {
            Ok(FilesReply::Directories(paths.iter().map(|path| probe::directory(path)).collect()))
        }
        FilesOp::Programs { names, search } => {
            Ok(FilesReply::Programs(names.iter().map(|name| probe::program(name, &search)).collect()))
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
