//! Builds the C program for tests that a shell script cannot do.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/helper.c");

/// Compiled helper program.
pub(crate) struct Helper(tempfile::TempDir);

impl Helper {
    /// Compiles the helper into a directory that every user can enter.
    pub(crate) fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        let helper = Self(directory);
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(helper.path()).arg(SOURCE);
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        helper
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::join(self.0.path(), "helper")
    }

    pub(crate) fn path_string(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }
}
