//! Faults below SQLite, for a program under test: `tests/faults/disk_fault.c`, built with the C compiler that the
//! project needs anyway.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Preloaded library that makes calls on databases fail.
#[derive(Debug)]
pub struct DiskFault {
    library: PathBuf,
    control: PathBuf,
}

impl DiskFault {
    /// Builds the library in this directory. No fault is set.
    ///
    /// # Panics
    /// When it does not compile.
    #[must_use]
    pub fn build(dir: &Path) -> Self {
        let (library, control) = (dir.join("disk_fault.so"), dir.join("fault"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../faults/disk_fault.c");
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        let status = compiler.status().unwrap_or_else(|e| panic!("cannot run the C compiler: {e}"));
        assert!(status.success(), "the fault library does not compile");
        Self { library, control }
    }

    /// Makes a program run with the library.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("DISK_FAULT", &self.control);
    }

    /// Sets the fault of all calls from now on: `sync`, `write`, `torn` or `none`.
    ///
    /// # Panics
    /// When the control file cannot be written.
    pub fn set(&self, fault: &str) {
        let new = self.control.with_extension("new");
        std::fs::write(&new, fault).unwrap_or_else(|e| panic!("{}: {e}", new.display()));
        std::fs::rename(&new, &self.control).unwrap_or_else(|e| panic!("{}: {e}", self.control.display()));
    }
}
