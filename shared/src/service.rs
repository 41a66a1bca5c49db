//! Services of systemd: installs, checks and removes the units of this project, for the system or for one user.
//! Both programs have a verb `service`, and this module is its common part.

use crate::launch::WRAPPER_FILE;
use crate::report::with_causes;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of units that belong to this machine and not to a package.
const SYSTEM_DIR: &str = "/etc/systemd/system";
/// Directories of units that came with the programs, first the one that systemd prefers.
const PACKAGED_DIRS: [&str; 2] = ["/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];
/// First line of the units that this module writes. A unit without it is never changed.
const MARKER: &str = "# Written by `service install` of acp-host. Change it with `systemctl edit`.";

/// Directory of programs that nobody runs by hand, from the directory of the others.
const LIB_DIR: &str = "../lib/acp-host";

/// Returns the path of the wrapper that belongs to a program: in the same directory, as in a build directory, or else in
/// `../lib/acp-host`, as in an installation. Without either, the path in the same directory.
#[must_use]
pub fn wrapper_of(program: &Path) -> PathBuf {
    let same_dir = program.with_file_name(WRAPPER_FILE);
    let installed = || program.parent()?.join(LIB_DIR).canonicalize().ok().map(|dir| dir.join(WRAPPER_FILE));
    if same_dir.is_file() { same_dir } else { installed().filter(|path| path.is_file()).unwrap_or(same_dir) }
}

/// Manager of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceScope {
    /// The system's manager; changes need root.
    System,
    /// The manager of the calling user.
    User,
}

/// Way in which a running service gets a changed program or unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceUpdate {
    /// `systemctl reload`: the supervisor replaces its program in place, because its end would end all agents.
    Reload,
    /// `systemctl restart`.
    Restart,
}

/// Error of a `service` verb.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The system's units can only be changed by root.
    #[error(
        "only root may change the services of the system; with --user, the service belongs to this user and needs no root"
    )]
    NotRoot,
    /// The service manager does not answer.
    #[error("{}", not_running(*.scope, .program, .detail))]
    NotRunning {
        /// Manager that was asked.
        scope: ServiceScope,
        /// Program that can be run without it.
        program: &'static str,
        /// Answer of `systemctl`.
        detail: String,
    },
    /// `systemctl` failed.
    #[error("`{command}` failed: {detail}")]
    Systemctl {
        /// Command line.
        command: String,
        /// Its standard error, and where to look.
        detail: String,
    },
    /// There is a unit of this name that was not written by `service install`.
    #[error("{0} was not written by `service install`, and is not replaced; move it away first")]
    ForeignUnit(PathBuf),
    /// The service is not installed.
    #[error("{0} is not installed: there is no unit of this name")]
    NotInstalled(String),
    /// A path cannot be written in a unit.
    #[error("{0:?} cannot be written in a unit: it contains control characters or is not UTF-8")]
    Unwritable(PathBuf),
    /// There is no directory for the units of this user.
    #[error("neither XDG_CONFIG_HOME nor HOME is set: there is no directory for the units of this user")]
    NoHome,
    /// A file cannot be read or written.
    #[error("{path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

fn not_running(scope: ServiceScope, program: &str, detail: &str) -> String {
    match scope {
        ServiceScope::System => format!(
            "systemd does not run here ({detail}); run `{program} serve` under the service manager of this machine"
        ),
        ServiceScope::User => format!(
            "the systemd of this user does not answer ({detail}); log in as this user instead of using su or sudo, \
             or run `{program} serve` under another service manager"
        ),
    }
}

fn file<T>(path: &Path, result: io::Result<T>) -> Result<T, ServiceError> {
    result.map_err(|source| ServiceError::File { path: path.to_owned(), source })
}

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceVerdict {
    /// Passed.
    Ok,
    /// Passed, with a hint.
    Note,
    /// Not passed.
    Failed,
}

/// Result of one check of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceCheck {
    /// Verdict.
    pub verdict: ServiceVerdict,
    /// Subject.
    pub name: &'static str,
    /// What was found, and the next step after a failure.
    pub detail: String,
}

impl ServiceCheck {
    /// Creates a check that passed if `ok` is true.
    #[must_use]
    pub fn new(name: &'static str, ok: bool, detail: impl Into<String>) -> Self {
        let verdict = if ok { ServiceVerdict::Ok } else { ServiceVerdict::Failed };
        Self { verdict, name, detail: detail.into() }
    }
}

/// Result of a `service` verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceReport {
    /// Unit.
    pub unit: String,
    /// Action taken: `started`, `reloaded`, `restarted`, `checked` or `removed`.
    pub action: &'static str,
    /// Checks afterwards.
    pub checks: Vec<ServiceCheck>,
}

impl ServiceReport {
    /// True if no check failed.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.checks.iter().all(|check| check.verdict != ServiceVerdict::Failed)
    }

    /// Formats the report for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}", self.unit, self.action);
        for check in &self.checks {
            let verdict = match check.verdict {
                ServiceVerdict::Ok => "ok",
                ServiceVerdict::Note => "note",
                ServiceVerdict::Failed => "FAILED",
            };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {verdict:<6}  {:<10}  {}", check.name, check.detail);
        }
        text
    }
}

/// Service of one of the programs.
#[derive(Debug, Clone)]
pub struct Service {
    /// Manager.
    pub scope: ServiceScope,
    /// Name of the program, whose path in the unit's template is `/usr/bin/NAME`.
    pub name: &'static str,
    /// File name of the unit.
    pub file: &'static str,
    /// Template of the unit.
    pub template: &'static str,
    /// Instance, if the unit is a template unit.
    pub instance: Option<String>,
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments added to the command lines of the program.
    pub arguments: Vec<PathBuf>,
    /// Variables added to the environment.
    pub environment: Vec<(&'static str, PathBuf)>,
    /// Way in which the running service gets changes.
    pub update: ServiceUpdate,
}

impl Service {
    /// Returns the name of the unit for `systemctl`.
    #[must_use]
    pub fn unit(&self) -> String {
        self.instance.as_ref().map_or_else(
            || self.file.to_owned(),
            |instance| self.file.replace("@.", &format!("@{instance}.")),
        )
    }

    /// Writes the unit unless the one of a package runs this program, then enables and starts the service. One
    /// that runs already is reloaded or restarted.
    ///
    /// # Errors
    /// The reason; what was done before stays, and a second call continues.
    pub fn install(&self) -> Result<ServiceReport, ServiceError> {
        self.check_access()?;
        let path = self.path()?;
        if self.packaged().is_some_and(|(_, text)| self.is_run_by(&text)) {
            self.remove_file(&path)?;
        } else {
            self.write(&path)?;
        }
        let unit = self.unit();
        self.systemctl(&["daemon-reload"])?;
        self.systemctl(&["enable", &unit])?;
        let (verb, action) = match (self.is_active()?, self.update) {
            (false, _) => ("start", "started"),
            (true, ServiceUpdate::Reload) => ("reload", "reloaded"),
            (true, ServiceUpdate::Restart) => ("restart", "restarted"),
        };
        self.systemctl(&[verb, &unit])?;
        Ok(ServiceReport { unit, action, checks: self.checks()? })
    }

    /// Checks unit, enablement and activity.
    ///
    /// # Errors
    /// The service manager cannot be asked, or a unit cannot be read.
    pub fn check(&self) -> Result<ServiceReport, ServiceError> {
        self.ask_manager()?;
        Ok(ServiceReport { unit: self.unit(), action: "checked", checks: self.checks()? })
    }

    /// Stops and disables the service, and removes the unit if `service install` wrote it and no other instance
    /// is enabled. The state directory stays.
    ///
    /// # Errors
    /// The reason; a second call continues.
    pub fn remove(&self) -> Result<ServiceReport, ServiceError> {
        self.check_access()?;
        let (path, unit) = (self.path()?, self.unit());
        if self.own(&path)?.is_none() && self.packaged().is_none() {
            return Err(ServiceError::NotInstalled(unit));
        }
        self.systemctl(&["disable", "--now", &unit])?;
        if !self.has_other_instances(&path) {
            self.remove_file(&path)?;
        }
        self.systemctl(&["daemon-reload"])?;
        Ok(ServiceReport { unit, action: "removed", checks: Vec::new() })
    }

    fn checks(&self) -> Result<Vec<ServiceCheck>, ServiceError> {
        let path = self.path()?;
        let found = self.own(&path)?.map(|text| (path, text)).or_else(|| self.packaged());
        let Some((path, text)) = found else {
            let next = format!("{} is not installed: `{} service install`", self.unit(), self.name);
            return Ok(vec![ServiceCheck::new("unit", false, next)]);
        };
        let mut unit = ServiceCheck::new("unit", true, path.display().to_string());
        if !self.is_run_by(&text) {
            unit.verdict = ServiceVerdict::Note;
            unit.detail.push_str(&format!(" runs another program than {}", self.program.display()));
        }
        let name = self.unit();
        let enabled = self.answer(&["is-enabled", &name])?;
        let active = self.answer(&["is-active", &name])?;
        let journal = match self.scope {
            ServiceScope::System => format!("journalctl -u {name}"),
            ServiceScope::User => format!("journalctl --user -u {name}"),
        };
        let is_active = active == "active";
        let active = if is_active { active } else { format!("{active}: see `{journal}`") };
        let mut checks = vec![
            unit,
            ServiceCheck::new("enabled", enabled == "enabled", enabled),
            ServiceCheck::new("active", is_active, active),
        ];
        checks.extend(self.lingering());
        Ok(checks)
    }

    /// Hints that the services of this user end with the user's last logout, if they do.
    fn lingering(&self) -> Option<ServiceCheck> {
        let user = std::env::var_os("USER").or_else(|| std::env::var_os("LOGNAME"))?;
        if self.scope == ServiceScope::System || Path::new("/var/lib/systemd/linger").join(&user).exists() {
            return None;
        }
        let user = user.display();
        let detail =
            format!("ends with the last logout of {user}; to keep it: `loginctl enable-linger {user}`");
        Some(ServiceCheck { verdict: ServiceVerdict::Note, name: "logout", detail })
    }

    /// Checks that this user may change the service and that the service manager answers.
    ///
    /// # Errors
    /// [`ServiceError::NotRoot`], [`ServiceError::NotRunning`]
    pub fn check_access(&self) -> Result<(), ServiceError> {
        match self.scope {
            ServiceScope::System if !rustix::process::geteuid().is_root() => Err(ServiceError::NotRoot),
            ServiceScope::System | ServiceScope::User => self.ask_manager(),
        }
    }

    /// Returns the path of a unit that `service install` writes.
    fn path(&self) -> Result<PathBuf, ServiceError> {
        if self.scope == ServiceScope::System {
            return Ok(Path::new(SYSTEM_DIR).join(self.file));
        }
        let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        Ok(config.ok_or(ServiceError::NoHome)?.join("systemd/user").join(self.file))
    }

    /// Returns the text of the unit at `path`, if there is one.
    fn own(&self, path: &Path) -> Result<Option<String>, ServiceError> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ServiceError::File { path: path.to_owned(), source }),
        }
    }

    /// Returns the unit of a package, if there is one. Packages have none for users.
    fn packaged(&self) -> Option<(PathBuf, String)> {
        let dirs = PACKAGED_DIRS.iter().filter(|_| self.scope == ServiceScope::System);
        dirs.map(|dir| Path::new(dir).join(self.file))
            .find_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text)))
    }

    /// True if a unit runs this program.
    fn is_run_by(&self, text: &str) -> bool {
        let Ok(program) = quoted(&self.program) else { return false };
        let commands = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
        commands.into_iter().any(|command| {
            command
                .strip_prefix(program.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    }

    /// Returns the text of the unit: the template with the program, arguments and environment of this service.
    ///
    /// # Errors
    /// [`ServiceError::Unwritable`]
    pub fn render(&self) -> Result<String, ServiceError> {
        let (installed, program) = (format!("/usr/bin/{}", self.name), quoted(&self.program)?);
        let mut text = format!("{MARKER}\n");
        for line in self.template.lines() {
            text.push_str(&line.replace(&installed, &program));
            if line.starts_with("Exec") && line.contains(&installed) {
                for argument in &self.arguments {
                    text.push(' ');
                    text.push_str(&quoted(argument)?);
                }
            }
            text.push('\n');
            if line == "[Service]" {
                for (name, value) in &self.environment {
                    let _ = writeln!(text, "Environment=\"{name}={}\"", escaped(value)?);
                }
            }
        }
        Ok(text)
    }

    /// Writes the unit; a unit written by hand stays as it is.
    fn write(&self, path: &Path) -> Result<(), ServiceError> {
        let text = self.render()?;
        match self.own(path)? {
            Some(old) if !old.starts_with(MARKER) => return Err(ServiceError::ForeignUnit(path.to_owned())),
            Some(old) if old == text => return Ok(()),
            Some(_) | None => {}
        }
        if let Some(dir) = path.parent() {
            file(dir, fs::create_dir_all(dir))?;
        }
        // systemd ignores this name.
        let new = path.with_extension("service.new");
        file(&new, fs::write(&new, text))?;
        file(path, fs::rename(&new, path))
    }

    /// Removes a unit that `service install` wrote.
    fn remove_file(&self, path: &Path) -> Result<(), ServiceError> {
        match self.own(path)? {
            Some(text) if text.starts_with(MARKER) => file(path, fs::remove_file(path)),
            Some(_) | None => Ok(()),
        }
    }

    /// True if an instance of the template unit is still enabled.
    fn has_other_instances(&self, path: &Path) -> bool {
        let Some((prefix, _)) = self.file.split_once("@.") else { return false };
        let entries =
            |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_wants = |path: &PathBuf| path.extension() == Some(OsStr::new("wants"));
        let wants = path.parent().into_iter().flat_map(entries).filter(is_wants);
        let units = wants.flat_map(|dir| entries(&dir).collect::<Vec<_>>());
        units.into_iter().any(|unit| {
            unit.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{prefix}@")))
        })
    }

    fn is_active(&self) -> Result<bool, ServiceError> {
        Ok(self.answer(&["is-active", &self.unit()])? == "active")
    }

    /// Checks that the service manager answers. In a chroot `systemctl` ignores commands and succeeds.
    fn ask_manager(&self) -> Result<(), ServiceError> {
        let failed = |detail: String| ServiceError::NotRunning {
            scope: self.scope,
            program: self.name,
            detail: detail.trim().replace('\n', "; "),
        };
        let output = self.command(&["show", "--property=Version"]).output();
        let output = output.map_err(|error| failed(format!("cannot run systemctl: {error}")))?;
        match output.status.success() && output.stdout.starts_with(b"Version=") {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("systemctl");
        if self.scope == ServiceScope::User {
            command.arg("--user");
        }
        command.args(args).env("LC_ALL", "C");
        command
    }

    /// Returns the first line that `systemctl` prints; its exit code tells nothing more.
    fn answer(&self, args: &[&str]) -> Result<String, ServiceError> {
        let output = file(Path::new("systemctl"), self.command(args).output())?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or("unknown").to_owned())
    }

    fn systemctl(&self, args: &[&str]) -> Result<(), ServiceError> {
        let user = if self.scope == ServiceScope::User { "--user " } else { "" };
        let command = format!("systemctl {user}{}", args.join(" "));
        let output = self.command(args).output();
        let detail = match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => with_causes(&error),
        };
        Err(ServiceError::Systemctl { command, detail })
    }
}

/// Escapes a value in double quotes (systemd.syntax(7)), with specifiers.
fn escaped(path: &Path) -> Result<String, ServiceError> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| ServiceError::Unwritable(path.to_owned()))?;
    Ok(text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%"))
}

/// Quotes an argument of a command line in a unit (systemd.service(5)).
fn quoted(path: &Path) -> Result<String, ServiceError> {
    let text = escaped(path)?.replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@=%".contains(c);
    Ok(if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("\"{text}\"") })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn service() -> Service {
        Service {
            scope: ServiceScope::User,
            name: "acp-x",
            file: "acp-x@.service",
            template: "[Service]\nExecStart=/usr/bin/acp-x serve\nExecReload=/bin/kill -HUP $MAINPID\n",
            instance: Some("alice".to_owned()),
            program: "/opt/a b/100%/acp-x".into(),
            arguments: vec!["--state-dir".into(), "/s/$x\"\\".into()],
            environment: vec![("PATH", "/a b:/50%".into())],
            update: ServiceUpdate::Restart,
        }
    }

    #[test]
    fn rendered_unit_names_program_arguments_and_environment() {
        let expected = format!(
            "{MARKER}\n[Service]\nEnvironment=\"PATH=/a b:/50%%\"\nExecStart=\"/opt/a b/100%%/acp-x\" serve \
             --state-dir \"/s/$$x\\\"\\\\\"\nExecReload=/bin/kill -HUP $MAINPID\n"
        );
        assert_eq!(service().render().unwrap(), expected);
        assert!(service().is_run_by(&expected));
        assert!(!Service { program: "/opt/a".into(), ..service() }.is_run_by(&expected));
        assert_eq!(service().unit(), "acp-x@alice.service");
    }

    #[test]
    fn wrapper_is_in_the_directory_of_the_program_or_in_lib() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let program = root.join("bin/acp-x");
        for dir in ["bin", "lib/acp-host"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let (same_dir, installed) = (root.join("bin/acp-wrapper"), root.join("lib/acp-host/acp-wrapper"));
        assert_eq!(wrapper_of(&program), same_dir, "the path to name in an error");
        fs::write(&installed, "").unwrap();
        assert_eq!(wrapper_of(&program), installed);
        fs::write(&same_dir, "").unwrap();
        assert_eq!(wrapper_of(&program), same_dir);
    }

    #[test]
    fn control_characters_are_refused() {
        let service = Service { arguments: vec!["/s\nExecStartPre=/bin/evil".into()], ..service() };
        assert!(matches!(service.render(), Err(ServiceError::Unwritable(_))));
    }
}
