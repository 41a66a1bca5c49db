//! Selection and check of the program that takes over.

use rustix::process::geteuid;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Kernel's suffix on the path of a program whose file was replaced.
const DELETED: &str = " (deleted)";
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Returns the path that this program was started from. After an installation the path names another file.
#[must_use]
pub(crate) fn own() -> PathBuf {
    let now = std::env::current_exe().unwrap_or_default();
    let text = now.to_string_lossy();
    text.strip_suffix(DELETED).map_or_else(|| now.clone(), PathBuf::from)
}

/// Checks that a program may replace this one: only root and the supervisor's own user can have installed it
/// or can replace it.
///
/// # Errors
/// The reason, as text.
pub(crate) fn check(program: &Path) -> Result<(), String> {
    let shown = program.display();
    if !program.is_absolute() {
        return Err(format!("{shown} is not an absolute path"));
    }
    let real = program.canonicalize().map_err(|e| format!("{shown} cannot be found: {e}"))?;
    let own_uid = geteuid().as_raw();
    let mut at: Option<&Path> = Some(&real);
    while let Some(path) = at {
        let meta = path.metadata().map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        let of_others = meta.uid() != 0 && meta.uid() != own_uid;
        let open = meta.mode() & WRITABLE_BY_OTHERS != 0 && !(meta.is_dir() && meta.mode() & STICKY != 0);
        if of_others || open {
            let what = if of_others { "belongs to another user" } else { "can be written by other users" };
            return Err(format!("{} {what}", path.display()));
        }
        if path == real && !(meta.is_file() && meta.mode() & 0o111 != 0) {
            return Err(format!("{shown} is not an executable file"));
        }
        at = path.parent();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn program_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, inside) = (dir.path().join("program"), dir.path().join("open"));
        std::fs::create_dir(&inside).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for path in [&file, &inside.join("program")] {
            std::fs::write(path, "#!/bin/sh\n").unwrap();
            mode(path, 0o755);
        }
        mode(&inside, 0o777);
        assert_eq!(check(&file), Ok(()));
        let refused = |path: &Path| check(path).unwrap_err();
        assert!(refused(&inside.join("program")).contains("can be written by other users"));
        assert!(refused(Path::new("program")).contains("not an absolute path"));
        assert!(refused(&dir.path().join("missing")).contains("cannot be found"));
        assert!(refused(dir.path()).contains("is not an executable file"));
        for bits in [0o775, 0o757] {
            mode(&file, bits);
            assert!(refused(&file).contains("can be written by other users"), "{bits:o}");
        }
        mode(&file, 0o644);
        assert!(refused(&file).contains("is not an executable file"));
        if geteuid().is_root() {
            mode(&file, 0o755);
            std::os::unix::fs::chown(&file, Some(12_345), None).unwrap();
            assert!(refused(&file).contains("belongs to another user"));
        }
    }
}
