//! The helper process: reads jobs from standard input and answers on standard output until its input ends.

use super::roots::{self, Roots};
use super::{FRAMES_VERSION, HelperJob};
use acp_shared::files::{FilesError, FilesOp, FilesReply};
use acp_shared::protocol::FRAME_BYTES_MAX;
use acp_shared::wire::{Decoder, encode_frame};
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Serves until standard input ends.
///
/// # Errors
/// Another version of frames was asked for, or the pipes broke.
pub(crate) fn run(version: u32) -> io::Result<()> {
    if version != FRAMES_VERSION {
        let why = format!("this program speaks version {FRAMES_VERSION} of file jobs, not {version}");
        return Err(io::Error::other(why));
    }
    // Agents may have the same user: they are not to write into the pipes of this process.
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
            open()?.read(&path, (line, limit), bytes_max).map(FilesReply::Text)
        }
        FilesOp::Write { path, content } => open()?.write(&path, &content).map(|()| FilesReply::Written),
        FilesOp::Inspect { path, text_bytes_max } => {
            open()?.inspect(&path, text_bytes_max).map(FilesReply::Inspected)
        }
        FilesOp::Directory { path } => {
            let roots = open()?;
            Ok(FilesReply::Directory { path: roots.directory(&path)?, roots: roots.paths()? })
        }
        FilesOp::Directories { paths } => {
            Ok(FilesReply::Directories(paths.iter().map(|path| roots::directory(path)).collect()))
        }
        FilesOp::Programs { names, search } => {
            Ok(FilesReply::Programs(names.iter().map(|name| program(name, &search)).collect()))
        }
    }
}

/// The executable file of a name: an absolute path, or a name without a slash in one of the directories of `search`.
fn program(name: &str, search: &str) -> Option<String> {
    if name.starts_with('/') {
        return is_program(Path::new(name)).then(|| name.to_owned());
    }
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let mut files = search.split(':').filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(name));
    files.find(|file| is_program(file))?.into_os_string().into_string().ok()
}

/// True for a regular file that this process may execute.
fn is_program(file: &Path) -> bool {
    let is_file = rustix::fs::stat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    is_file && rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
