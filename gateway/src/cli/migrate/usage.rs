//! Refusal of a source that a running OpenClaw uses, as far as processes of this user tell.

use acp_core::failure::Failure;
use acp_shared::codes::Code;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Beginning of the name that OpenClaw's processes give themselves.
const PROCESS_NAME: &str = "openclaw";

/// Refuses a source with open files, or with a process of OpenClaw for it. Processes of other users cannot be read and
/// count as unknown.
///
/// # Errors
/// `RUNTIME` with the detail `OPENCLAW_RUNNING`.
pub(super) fn refuse_used_source(from: &Path) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Ok(()) };
    let own = std::process::id().to_string();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_string_lossy();
        if !pid.bytes().all(|b| b.is_ascii_digit()) || *pid == own {
            continue;
        }
        if let Some(why) = uses(&entry.path(), from) {
            let text = format!(
                "process {pid} {why}: stop OpenClaw, then repeat the command. Nothing was imported from {}",
                from.display()
            );
            return Err(Failure::new(Code::Runtime, text).detail("OPENCLAW_RUNNING").origin("client"));
        }
    }
    Ok(())
}

/// Use of the source by a process.
fn uses(process: &Path, from: &Path) -> Option<String> {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let open =
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).find(|path| path.starts_with(from));
    if let Some(path) = open {
        return Some(format!("has {} open", path.display()));
    }
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    let is_here = name.starts_with(PROCESS_NAME) && state_dir(process).is_some_and(|dir| dir == from);
    is_here.then(|| "is OpenClaw with this state directory".to_owned())
}

/// State directory in the environment of a process.
fn state_dir(process: &Path) -> Option<PathBuf> {
    let environment = std::fs::read(process.join("environ")).ok()?;
    let variable = |name: &str| {
        let mut found =
            environment.split(|byte| *byte == 0).filter_map(|entry| entry.strip_prefix(name.as_bytes()));
        let value = found.find_map(|rest| rest.strip_prefix(b"=")).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
    };
    let dir = variable("OPENCLAW_STATE_DIR").or_else(|| Some(variable("HOME")?.join(super::OPENCLAW_DIR)));
    std::fs::canonicalize(dir?).ok()
}
