//! Look-ups on this machine by this very process, for commands that run without a gateway. The service never uses
//! them: it asks the supervisor (`lookup`).

use crate::lookup::{Findings, Lookup};
use acp_shared::files::FilesError;
use std::io::ErrorKind;
use std::path::Path;

/// Looks up everything as the user of this process.
pub(crate) fn look_up(lookup: &Lookup) -> Findings {
    let find = |name: &String| Some((name.clone(), program(name, &lookup.search)?));
    Findings {
        programs: lookup.programs.iter().filter_map(find).collect(),
        directories: lookup.directories.iter().map(|path| (path.clone(), directory(path))).collect(),
    }
}

/// Absolute path of an executable file: `name` itself, or the first one in the directories of `search`.
pub(crate) fn program(name: &str, search: &str) -> Option<String> {
    use rustix::fs::{Access, AtFlags, CWD};
    let is_program = |file: &Path| {
        file.is_file() && rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    if name.starts_with('/') {
        return is_program(Path::new(name)).then(|| name.to_owned());
    }
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let mut files = search.split(':').filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(name));
    files.find(|file| is_program(file))?.into_os_string().into_string().ok()
}

/// Canonical path of a directory.
pub(crate) fn directory(path: &str) -> Result<String, FilesError> {
    let real = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => FilesError::NotFound,
        ErrorKind::NotADirectory => FilesError::NotDirectory,
        ErrorKind::PermissionDenied => FilesError::Denied,
        _ => FilesError::Io { message: error.to_string() },
    })?;
    if !real.is_dir() {
        return Err(FilesError::NotDirectory);
    }
    real.into_os_string().into_string().map_err(|_| FilesError::BadPath)
}
