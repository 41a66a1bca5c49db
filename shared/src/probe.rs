//! Look-ups of programs and directories as the user of this process: in the supervisor's file helper, and in
//! commands that run without a gateway.

use crate::files::FilesError;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Returns the absolute path of an executable file: `name` itself if it is absolute, else `name`, which must
/// not have a slash, in the first directory of `search` that contains it. `search` has the form of `PATH`;
/// its relative directories are ignored.
#[must_use]
pub fn program(name: &str, search: &str) -> Option<String> {
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

/// Returns the canonical path of a directory that this process may enter.
///
/// # Errors
/// [`FilesError::BadPath`] for a path that is relative or not UTF-8, [`FilesError::NotFound`],
/// [`FilesError::NotDirectory`], [`FilesError::Denied`], [`FilesError::Io`].
pub fn directory(path: &str) -> Result<String, FilesError> {
    if !path.starts_with('/') {
        return Err(FilesError::BadPath);
    }
    let real = std::fs::canonicalize(path).map_err(|error| io(&error))?;
    let real = real.into_os_string().into_string().map_err(|_| FilesError::BadPath)?;
    let opened = rustix::fs::open(&real, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let opened = opened.map_err(|errno| match errno {
        Errno::NOTDIR => FilesError::NotDirectory,
        errno => io(&errno.into()),
    })?;
    // Fails if this process may not enter the directory.
    rustix::fs::openat(&opened, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| io(&errno.into()))?;
    Ok(real)
}

fn io(error: &std::io::Error) -> FilesError {
    match error.kind() {
        // A path with a file in place of a directory counts as missing.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => FilesError::NotFound,
        std::io::ErrorKind::PermissionDenied => FilesError::Denied,
        _ => FilesError::Io { message: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn first_executable_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (tool, plain, link) = (base.join("tool"), base.join("plain"), base.join("link"));
        std::fs::write(&tool, "").unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&plain, "").unwrap();
        symlink(&base, &link).unwrap();
        let search = format!("relative:/nonexistent:{}", text(&base));
        for name in ["tool", &text(&tool)] {
            assert_eq!(program(name, &search), Some(text(&tool)), "{name}");
        }
        for name in ["plain", "link", "./tool", "", "none", &text(&plain)] {
            assert_eq!(program(name, &search), None, "{name}");
        }
    }

    #[test]
    fn directories_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (plain, link) = (base.join("plain"), base.join("link"));
        std::fs::write(&plain, "").unwrap();
        symlink(&base, &link).unwrap();
        for (path, want) in [
            (text(&base), Ok(text(&base))),
            (text(&link), Ok(text(&base))),
            (text(&plain), Err(FilesError::NotDirectory)),
            (text(&plain.join("below")), Err(FilesError::NotFound)),
            (text(&base.join("none")), Err(FilesError::NotFound)),
            ("relative".to_owned(), Err(FilesError::BadPath)),
        ] {
            assert_eq!(directory(&path), want, "{path}");
        }
    }
}
