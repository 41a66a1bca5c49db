//! Leaving this program image with `execve`, and resuming in the next one.

use super::Handover;
use super::image::{self, ImageError};
use crate::sys::inherited_fd::{self, HandoverFd};
use acp_shared::report::with_causes;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Option that makes a supervisor resume from a handover.
pub(crate) const RESUME_FLAG: &str = "--resume-from-fd";

/// Error: the image cannot resume from the handover.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A descriptor was not handed over.
    #[error("an inherited file descriptor is missing or unusable")]
    Descriptor(#[source] io::Error),
    /// The handover is damaged or of another version.
    #[error(transparent)]
    Image(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// Another process wrote the handover.
    #[error("this handover belongs to process {0}")]
    Process(i32),
    /// The program panicked before it resumed.
    #[error("the program panicked: {0}")]
    Panicked(String),
}

impl ResumeError {
    /// Creates the error from a panic payload.
    pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}

impl From<ImageError> for ResumeError {
    fn from(error: ImageError) -> Self {
        Self::Image(Box::new(error))
    }
}

/// Returns the descriptor number of the handover that this program was started with, if any.
pub(crate) fn number(args: &[OsString]) -> Option<i32> {
    let of_handover =
        |arg: &OsString| arg.to_str()?.strip_prefix(RESUME_FLAG)?.strip_prefix('=')?.parse().ok();
    args.iter().find_map(of_handover)
}

/// Reads the handover of an earlier image of this process. From here on children inherit none of its
/// descriptors.
///
/// # Errors
/// [`ResumeError`] if the handover or a descriptor is unusable.
pub(crate) fn resume(number: i32) -> Result<Handover, ResumeError> {
    let file = crate::sys::linux::take_fd(number).map_err(ResumeError::Descriptor)?;
    let (mut handover, _) = image::read(file.as_fd())?;
    if u32::try_from(handover.head.pid) != Ok(std::process::id()) {
        return Err(ResumeError::Process(handover.head.pid));
    }
    inherited_fd::take_inherited(handover.descriptors_mut()).map_err(ResumeError::Descriptor)?;
    Ok(handover)
}

/// Hands everything back to the previous program, because this one cannot start. Returns only if that fails
/// or was tried before.
pub(crate) fn exec_previous(mut handover: Handover, why: &dyn std::error::Error) -> io::Error {
    if handover.head.failed.is_some() {
        return io::Error::other("the previous program could not start either");
    }
    let text = with_causes(why);
    tracing::error!(why = text, "new program cannot start; returning to the previous one");
    handover.head.failed = Some(text);
    let program = format!("/proc/self/fd/{}", handover.head.left.number());
    let args = without_handover_args(std::env::args_os().skip(1));
    match image::write(&mut handover) {
        Ok((file, _)) => exec_program(Path::new(&program), &args, file, &mut handover),
        Err(error) => error,
    }
}

/// Returns the arguments of this program without handover options.
pub(crate) fn without_handover_args(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let of_handover = |arg: &OsString| arg.to_string_lossy().starts_with(RESUME_FLAG);
    args.filter(|arg| !of_handover(arg)).collect()
}

/// Executes `program` in place of this image. Returns only on failure, with all descriptors as before.
pub(crate) fn exec_program(
    program: &Path,
    args: &[OsString],
    image: File,
    handover: &mut Handover,
) -> io::Error {
    let mut image = HandoverFd::new(OwnedFd::from(image));
    let argv = strings(program, args, &image);
    let mut all = handover.descriptors_mut();
    all.push(&mut image);
    let failed = match argv {
        Ok((path, argv, environment)) => {
            let opened = all.iter().try_for_each(|passed| passed.inherit(true));
            opened.err().unwrap_or_else(|| {
                // The strings are copies: the new image uses no memory of this one.
                match nix::unistd::execve(&path, &argv, &environment) {
                    Ok(never) => match never {},
                    Err(errno) => errno.into(),
                }
            })
        }
        Err(error) => error,
    };
    for passed in all {
        if let Err(error) = passed.inherit(false) {
            tracing::error!(%error, "cannot restore close-on-exec of descriptor");
        }
    }
    failed
}

type Strings = (CString, Vec<CString>, Vec<CString>);

fn strings(program: &Path, args: &[OsString], image: &HandoverFd) -> io::Result<Strings> {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
    let path = text(program.as_os_str().to_owned().into_vec())?;
    let mut argv = vec![path.clone()];
    for arg in args {
        argv.push(text(arg.clone().into_vec())?);
    }
    argv.push(text(format!("{RESUME_FLAG}={}", image.number()).into_bytes())?);
    let pair = |(name, value): (OsString, OsString)| {
        text([name.into_vec(), b"=".to_vec(), value.into_vec()].concat())
    };
    let environment = std::env::vars_os().map(pair).collect::<io::Result<Vec<_>>>()?;
    Ok((path, argv, environment))
}
