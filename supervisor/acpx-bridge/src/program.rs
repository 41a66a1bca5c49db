//! Program of acpx, with a Node that can run it: Node 20 installs and runs an older acpx that behaves otherwise, so the
//! first Node of `PATH` is not necessarily the right one.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Oldest major version of Node that runs the supported versions of acpx.
const NODE_MAJOR_MIN: u64 = 22;

/// Program of acpx.
#[derive(Debug)]
pub(crate) struct AcpxProgram {
    /// Program and arguments, before those of a command.
    pub(crate) words: Vec<String>,
    /// Output of `--version`.
    pub(crate) version: String,
    /// Version of Node; `None` if acpx does not run on Node.
    pub(crate) node: Option<String>,
}

impl AcpxProgram {
    /// Finds Node for a script of Node, and asks acpx for its version.
    ///
    /// # Errors
    /// The program cannot be used, with the next step.
    pub(crate) fn find(configured: &[String]) -> Result<Self, String> {
        let mut words = configured.to_vec();
        let program = words.first().cloned().unwrap_or_default();
        let node = if is_node_script(Path::new(&program)) {
            let (node, version) = find_node()?;
            words.insert(0, node);
            Some(version)
        } else if Path::new(&program).file_name().is_some_and(|name| name == "node" || name == "nodejs") {
            Some(node_version(Path::new(&program))?)
        } else {
            None
        };
        let version = output(&words, "--version")
            .map_err(|error| format!("{program} --version failed: {error}; {}", install_hint()))?;
        Ok(Self { words, version, node })
    }
}

fn install_hint() -> &'static str {
    "install Node.js 22 or later and `npm install --global acpx@0.19.1`, or name the program with [backends.acpx] \
     command"
}

/// True for a script whose first line names Node.
fn is_node_script(program: &Path) -> bool {
    let mut head = [0; 128];
    let read = File::open(program).and_then(|mut file| file.read(&mut head)).unwrap_or(0);
    let first = head[..read].split(|&byte| byte == b'\n').next().unwrap_or_default();
    first.starts_with(b"#!") && first.windows(4).any(|word| word == b"node")
}

/// Returns the first Node of `PATH` that is new enough, with its version.
fn find_node() -> Result<(String, String), String> {
    let mut old = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for node in std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join("node")) {
        if !is_executable(&node) {
            continue;
        }
        match node_version(&node) {
            Ok(version) => return Ok((node.to_string_lossy().into_owned(), version)),
            Err(error) => old.push(error),
        }
    }
    let found = if old.is_empty() { "PATH of the agents has no node".to_owned() } else { old.join("; ") };
    Err(format!(
        "acpx needs Node.js {NODE_MAJOR_MIN} or later: {found}. Install it, or name it with [backends.acpx] command = \
         [\"/path/to/node\", \"/path/to/acpx\"]"
    ))
}

/// Returns the version of a Node that is new enough.
fn node_version(node: &Path) -> Result<String, String> {
    let words = [node.to_string_lossy().into_owned()];
    let version =
        output(&words, "--version").map_err(|error| format!("{} failed: {error}", node.display()))?;
    let version = version.trim_start_matches('v').to_owned();
    let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    if major.is_some_and(|major| major >= NODE_MAJOR_MIN) {
        return Ok(version);
    }
    Err(format!("{} is Node.js {version}, and acpx needs {NODE_MAJOR_MIN} or later", node.display()))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the first line of a program's output.
fn output(words: &[String], argument: &str) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("it is empty")?;
    let mut command = Command::new(program);
    let ended = command.args(arguments).arg(argument).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let ended = ended.map_err(|error| error.to_string())?;
    if !ended.status.success() {
        return Err(ended.status.to_string());
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
