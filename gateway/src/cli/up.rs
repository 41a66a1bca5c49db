//! `up`: everything on one machine. Finds or starts the supervisor of the state directory, serves, and at the
//! end stops both in order. The supervisor runs in a separate Unix session: Ctrl-C does not reach it, and if
//! the gateway is killed, the supervisor keeps running and the next `up` finds it; `down` ends it.

pub(crate) mod child;
mod detached;
pub(crate) mod lock;

use crate::api::peer_ancestry;
use crate::app;
use crate::app::signals::{ServiceSignals, SighupAction};
use crate::channel::ChannelAdapter;
use crate::cli::agents::{agents_found_here, agents_of, exe};
use crate::cli::cell;
use crate::cli::output::{CliError, CliResult, Out, print_message, unless_closed};
use crate::cli::serve::{ServeArgs, ServeMode, make_private, prepare, sibling, supervisor_dir};
use crate::cli::service::unit_of;
use crate::cli::{GlobalArgs, inside, shell_word};
use crate::runtime::agents::Agents;
use crate::supervisor::{gateway_role, hello_at};
use acp_core::config::remote::LOCAL;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::conn::{Client, ConnError};
use acp_shared::protocol::{Hello, Marks, Reply, Request, Role};
use acp_store::{Durability, Store};
use clap::Args;
use lock::{RunningUp, UpLock, own_supervisor_runs};
use rustix::process::{Pid, Signal};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deadline for the first response of a started supervisor, in milliseconds: it first recovers leases of an
/// earlier one.
const START_MS: u64 = 30_000;
/// Polling interval during that time, in milliseconds.
const ASK_MS: u64 = 20;
/// Deadline for one response, in milliseconds.
const ANSWER_MS: u64 = 5_000;
/// Deadline for the supervisor to end, in milliseconds: every process tree gets its grace periods.
const END_MS: u64 = 60_000;
/// Number of log lines shown if the supervisor does not start.
const LOG_LINES: usize = 5;

/// Notice of `up` in the foreground when a signal ends it: agents get time to end.
const ENDING: &str = "Ending the gateway, its supervisor and all agents …";
/// Last line of `up` in the foreground.
const ENDED: &str = "Everything has ended. Sessions stay for the next `up`.";

const EXAMPLES: &str = "\
Examples:
  acp-gateway up                    in the foreground; Ctrl-C ends everything
  acp-gateway up -d                 in the background, until `acp-gateway down`
  acp-gateway status                show what runs

Exit codes of `up -d`: 0 if it is up, also if it was up before; 1 if it could not be started, and then nothing of it is left,
or if the gateway that runs has lost its supervisor. `up` in the foreground exits with 1 if another gateway runs on the state
directory. SIGHUP reloads the configuration.";

/// Error of `up` with PostgreSQL.
const CELL_INSTEAD: &str = "`up` serves the embedded database, but acp.control_plane.store is \"postgres\": install the services \
    (`acp-gateway service install`), or run `acp-supervisor serve` and `acp-gateway serve`";

/// `up`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Run in the background, and return when gateway and supervisor are ready
    #[arg(short, long)]
    detach: bool,
    /// Run as started by `up --detach` (internal)
    #[arg(long, hide = true, conflicts_with = "detach")]
    background: bool,
    /// End when this parent process ends (internal)
    #[arg(long, hide = true, value_name = "PID", conflicts_with = "detach")]
    parent: Option<i32>,
}

/// Supervisor that answers.
#[derive(Debug)]
pub(crate) struct RunningSupervisor {
    pub(crate) pid: i32,
    socket: PathBuf,
    /// Child process, if this `up` started the supervisor.
    child: Option<Child>,
    /// Pidfd of a supervisor started by another process; `None` if the kernel does not support pidfds.
    process: Option<OwnedFd>,
}

impl RunningSupervisor {
    /// Creates the handle of a running supervisor that another process started.
    pub(crate) fn found(pid: i32, socket: &Path) -> Self {
        let process = rustix::process::Pid::from_raw(pid);
        let process = process
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
        Self { pid, socket: socket.to_owned(), child: None, process }
    }
}

#[derive(Debug, Serialize)]
struct UpReadyLine<'a> {
    event: &'a str,
    gateway_pid: u32,
    supervisor_pid: i32,
    socket: &'a Path,
    supervisor_socket: &'a Path,
}

/// `up`
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &UpArgs,
    channels: Vec<Arc<dyn ChannelAdapter>>,
    out: &mut Out,
) -> CliResult {
    if cell::configured(&global.state_dir()?, &args.serve.config).is_some() {
        return Err(super::usage(CELL_INSTEAD).into());
    }
    if args.detach {
        return detached::run(global, args, out).await;
    }
    let (mode, hangup) = match args.background {
        true => (ServeMode::Background, SighupAction::Reloads),
        false => (ServeMode::Terminal, SighupAction::EndsWithTerminal),
    };
    let settings = prepare(global, &args.serve, mode)?;
    let agents = agents_of(settings.loaded.clone(), &settings.state_dir);
    let state_dir = settings.state_dir.clone();
    let mut signals = ServiceSignals::listen(hangup)?;
    let tells_end = !args.background && !out.json;
    if tells_end {
        signals = signals.with_end_notice(Box::new(|| print_message(ENDING)));
    }
    if args.parent.is_some_and(|parent| !ends_with(parent)) {
        return Ok(());
    }
    let lock = UpLock::take(&state_dir)?.ok_or_else(|| running_already(global, &state_dir))?;
    refuse_second_supervisor(&lock, global, &settings.supervisor_socket, &state_dir)?;
    lock.record(&settings.supervisor_socket)?;
    let started = find_or_start(&settings.supervisor_socket, &state_dir, &mut signals).await?;
    let Some(mut supervisor) = started else {
        tells_end.then(|| print_message(ENDED));
        return Ok(());
    };
    let mut printed = Ok(());
    let served = app::serve(settings, channels, signals, |socket: &Path| {
        let line = UpReadyLine {
            event: "ready",
            gateway_pid: std::process::id(),
            supervisor_pid: supervisor.pid,
            socket,
            supervisor_socket: &supervisor.socket,
        };
        printed = out.show(&line, |line| {
            let pids = (line.gateway_pid.into(), Some(line.supervisor_pid.into()));
            let end = "Logs: gateway.log and supervisor/supervisor.log in the state directory.\n\
                       Ctrl-C ends everything, agents included.";
            welcome(("is up", "In another terminal:"), pids, &agents, global, &state_dir, end)
        });
    })
    .await;
    let ended = match &served {
        Ok(()) => note_end(end(&mut supervisor, &state_dir).await, &supervisor, tells_end),
        // A supervisor started by this command is ended; one that was running before is left running.
        Err(_) if supervisor.child.is_some() => stop_unused_supervisor(&mut supervisor, &state_dir).await,
        Err(_) => Ok(()),
    };
    served?;
    ended?;
    unless_closed(printed)
}

/// Lets the kernel send SIGTERM to this process when its parent ends. Returns false if the parent has ended already.
fn ends_with(parent: i32) -> bool {
    let is_set = rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    is_set && rustix::process::getppid() == Pid::from_raw(parent)
}

/// Builds the failure for a state directory in which `up` runs already.
fn running_already(global: &GlobalArgs, state_dir: &Path) -> Failure {
    let pid =
        RunningUp::find(state_dir).ok().flatten().map(|up| format!(", pid {}", up.pid)).unwrap_or_default();
    let text = format!(
        "`up` runs already in {}{pid}. `{}` shows it, `{}` ends it.",
        state_dir.display(),
        global.advise("status", None),
        global.advise("down", None)
    );
    Failure::new(Code::StoreUnavailable, text).detail("STORE_LOCKED").origin("client")
}

/// Refuses a new socket while the supervisor of an earlier `up` runs: its agents would be out of reach of `up` and `down`.
fn refuse_second_supervisor(
    lock: &UpLock,
    global: &GlobalArgs,
    socket: &Path,
    state_dir: &Path,
) -> Result<(), Failure> {
    let Some(earlier) = lock.recorded().filter(|earlier| earlier != socket) else { return Ok(()) };
    if !own_supervisor_runs(state_dir)? {
        return Ok(());
    }
    let text = format!(
        "the supervisor of an earlier `up` runs with its agents: continue with `--supervisor-socket {}`, or end it first: `{}`",
        shell_word(&earlier),
        global.advise("down", None)
    );
    Err(Failure::new(Code::BackendUnavailable, text).origin("client"))
}

/// Builds the welcome text, with a heading for the commands to try.
fn welcome(
    (state, heading): (&str, &str),
    (gateway_pid, supervisor_pid): (i64, Option<i64>),
    agents: &Agents,
    global: &GlobalArgs,
    state_dir: &Path,
    end: &str,
) -> String {
    let flag = if global.state_dir.is_some() {
        format!(" --state-dir {}", state_dir.display())
    } else {
        String::new()
    };
    let supervisor = supervisor_pid.map_or("not connected".to_owned(), |pid| format!("pid {pid}"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = std::env::current_dir().unwrap_or_default();
    let program = command_to_type(&exe(), &std::env::split_paths(&path).collect::<Vec<_>>(), &here);
    let views = agents_found_here(agents);
    let real: Vec<String> = views
        .iter()
        .filter(|view| view.installed && view.allowed && view.name.as_str() != crate::runtime::agents::DEMO)
        .map(|view| view.name.to_string())
        .collect();
    let fetched = views.iter().filter(|view| !view.installed && view.path.is_some() && view.allowed).count();
    let found = match (real.is_empty(), fetched) {
        (false, _) => format!("Agents found here: demo {}", real.join(" ")),
        (true, 0) => {
            "Agents found here: demo (no other agent is installed: `acp-gateway agents --all` shows how to \
             install them)"
                .to_owned()
        }
        (true, n) => {
            format!("Agents found here: demo ({n} others can be downloaded on first use)")
        }
    };
    format!(
        "acp-host {state}. gateway pid {gateway_pid}, supervisor {supervisor}, state in {}\n\
         {found}\n\n\
         {heading}\n  \
         {program}{flag} chat --agent demo\n    \
         start a conversation; type help. The demo agent needs no credentials\n  \
         {program}{flag} sessions spawn --agent demo\n    start a session and print its key, for scripts\n  \
         {program}{flag} prompt KEY 'help'\n    send it a prompt and print the reply\n  \
         {program}{flag} agents --all\n    list all known agents and how to install them\n\n\
         {end}",
        state_dir.display(),
    )
}

/// Returns the command to type for this program: the name if `PATH` resolves to this file, else the path,
/// relative if below the current directory.
fn command_to_type(exe: &Path, path: &[PathBuf], here: &Path) -> String {
    let name = Path::new(exe.file_name().unwrap_or_default());
    let found = path.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
    let is_this =
        found.is_some_and(|file| std::fs::canonicalize(file).ok() == std::fs::canonicalize(exe).ok());
    let below = || exe.strip_prefix(here).ok().filter(|path| path.components().count() > 1);
    let shown = if is_this { name } else { below().unwrap_or(exe) };
    let text = shown.display().to_string();
    if text.contains([' ', '\'']) { format!("\"{text}\"") } else { text }
}

/// Builds the Hello of the gateway of this state directory, one epoch after the one that ended.
async fn own_hello(socket: &Path, state_dir: &Path) -> Result<(Hello, Marks), Failure> {
    let dir = state_dir.to_owned();
    let opened = tokio::task::spawn_blocking(move || Store::open(&dir, Durability::Full));
    let opened = opened.await.map_err(|error| inside("cannot open the state directory", &error))?;
    let store = opened.map_err(Failure::from)?;
    let marks = async {
        store.begin_admissions(vec![LOCAL.to_owned()]).await?;
        store.marks(LOCAL).await
    };
    let marks = marks.await;
    store.close().await;
    let marks = marks.map_err(Failure::from)?;
    Ok((hello_at(socket, gateway_role(store.identity())), marks))
}

async fn ask(socket: &Path, body: Request) -> Result<Reply, ConnError> {
    Client::open(socket, hello_at(socket, Role::Admin), Duration::from_millis(ANSWER_MS))
        .await?
        .call(body)
        .await
}

/// Returns the pid of the supervisor at this socket, if one answers.
pub(crate) async fn running_supervisor_pid(socket: &Path) -> Result<Option<i32>, Failure> {
    match ask(socket, Request::Status).await {
        Ok(Reply::Status(status)) => Ok(Some(status.pid)),
        Ok(_) | Err(ConnError::OutOfTurn | ConnError::RolledBack(_)) => {
            Err(supervisor_failure(socket, "unexpected response"))
        }
        Err(ConnError::Refused(refusal)) => Err(supervisor_failure(socket, &refusal.to_string())),
        Err(ConnError::Wire(error)) => Err(supervisor_failure(socket, &error.to_string())),
        Err(ConnError::Io(_) | ConnError::Closed | ConnError::Timeout(_)) => Ok(None),
    }
}

fn supervisor_failure(socket: &Path, why: &str) -> Failure {
    let what = format!("the supervisor at {} cannot be used: {why}", socket.display());
    Failure::new(Code::BackendUnavailable, what).origin("supervisor")
}

/// Returns the supervisor to use; starts one in the state directory if none answers. Returns `None` after a signal that ends
/// the service. A started supervisor that is not returned is ended.
async fn find_or_start(
    socket: &Path,
    state_dir: &Path,
    signals: &mut ServiceSignals,
) -> Result<Option<RunningSupervisor>, Failure> {
    if let Some(pid) = running_supervisor_pid(socket).await? {
        return Ok(Some(RunningSupervisor::found(pid, socket)));
    }
    let home = supervisor_dir(state_dir);
    make_private(&home)?;
    let log = home.join("supervisor.log");
    let before = std::fs::metadata(&log).map_or(0, |meta| meta.len());
    let mut child = start(&home, socket, &log)?;
    let answered = tokio::select! {
        answered = wait_for_answer(&mut child, socket, &log, before) => answered.map(Some),
        () = signals.next() => Ok(None),
    };
    // The supervisor of another state directory may be the one that answers.
    let is_child = |pid: &i32| i32::try_from(child.id()).is_ok_and(|child| child == *pid);
    if !answered.as_ref().is_ok_and(|pid| pid.as_ref().is_some_and(is_child)) {
        // Not waited for yet, so this is still the process that was started. The next start ends what it left.
        let _ = child.kill().and_then(|()| child.wait());
        return Ok(answered?.map(|pid| RunningSupervisor::found(pid, socket)));
    }
    Ok(answered?.map(|pid| RunningSupervisor { child: Some(child), ..RunningSupervisor::found(pid, socket) }))
}

/// Waits until a supervisor answers, and returns its pid.
async fn wait_for_answer(child: &mut Child, socket: &Path, log: &Path, before: u64) -> Result<i32, Failure> {
    let until = Instant::now() + Duration::from_millis(START_MS);
    loop {
        if let Some(pid) = running_supervisor_pid(socket).await? {
            return Ok(pid);
        }
        let gone = child.try_wait().map_err(|error| inside("cannot wait for the supervisor", &error))?;
        if gone.is_some() || Instant::now() >= until {
            let state = gone
                .map_or("does not answer".to_owned(), |status| format!("exited during its start ({status})"));
            let what =
                format!("the supervisor {state}; end of {}: {}", log.display(), last_lines(log, before));
            return Err(Failure::new(Code::BackendUnavailable, what).origin("supervisor"));
        }
        tokio::time::sleep(Duration::from_millis(ASK_MS)).await;
    }
}

/// Starts a supervisor in a new Unix session, through the `detached` verb of this program: it calls `setsid`
/// and then execs the supervisor, so that no code of ours runs between fork and exec of a threaded process.
fn start(home: &Path, socket: &Path, log: &Path) -> Result<Child, Failure> {
    let program = sibling("acp-supervisor")?;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(log);
    let file = file.map_err(|error| inside("cannot open the supervisor's log", &error))?;
    let same = file.try_clone().map_err(|error| inside("cannot open the supervisor's log", &error))?;
    let started = Command::new(exe())
        .arg("detached")
        .arg(program)
        .args(["serve", "--json", "--state-dir"])
        .arg(home)
        .arg("--log-file")
        .arg(log)
        .arg("--socket")
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(same)
        .spawn();
    started.map_err(|error| inside("cannot start the supervisor", &error))
}

/// `detached`: leaves the Unix session of the caller and execs the program.
pub(crate) fn detached(command: &[OsString]) -> ExitCode {
    if let Err(error) = rustix::process::setsid() {
        print_message(&format!("cannot leave the Unix session: {error}"));
        return ExitCode::FAILURE;
    }
    let Some((program, args)) = command.split_first() else { return ExitCode::FAILURE };
    // Returns only on failure.
    let error = Command::new(program).args(args).exec();
    print_message(&format!("cannot start {}: {error}", program.display()));
    ExitCode::FAILURE
}

/// Returns the end of the part of a log that was written after it had `before` bytes.
fn last_lines(log: &Path, before: u64) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let from = usize::try_from(before).unwrap_or(usize::MAX).max(text.len().saturating_sub(4_096));
    let tail = text.get(from..).unwrap_or_default();
    let tail = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = tail.lines().collect();
    // The last line is the supervisor's error report; the lines before it only show how it got there.
    let error = lines.last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    if let Some(message) = error.as_ref().and_then(|error| error["message"].as_str()) {
        return message.to_owned();
    }
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join(" | ")
}

/// Ends the supervisor of this state directory, unless other gateways use it (H17) or systemd runs it. Returns the reason if
/// it keeps running. Connects as the gateway that has just ended, so that this gateway's own leases do not prevent the
/// shutdown.
pub(crate) async fn end(
    supervisor: &mut RunningSupervisor,
    state_dir: &Path,
) -> Result<Option<String>, CliError> {
    if let Some(unit) = unit_of(supervisor.pid) {
        return Ok(Some(format!("it is the service {}; `{}` stops it", unit.name, unit.stop())));
    }
    let (hello, marks) = own_hello(&supervisor.socket, state_dir).await?;
    match request_shutdown(supervisor, state_dir, hello, Some(marks)).await {
        Ok(_) | Err(ConnError::Closed) => {}
        Err(ConnError::Refused(refusal)) => return Ok(Some(refusal.to_string())),
        Err(ConnError::RolledBack(rollback)) => return Ok(Some(rollback.refusal.to_string())),
        Err(ConnError::Io(error)) => {
            tracing::info!(%error, "supervisor already stopped");
        }
        Err(error @ (ConnError::Wire(_) | ConnError::Timeout(_) | ConnError::OutOfTurn)) => {
            return Err(supervisor_failure(&supervisor.socket, &error.to_string()).into());
        }
    }
    wait_for_exit(supervisor).await.map(|()| None)
}

/// Tells a person how `up` ended. Uses standard error, because the terminal may be gone.
fn note_end(
    ended: Result<Option<String>, CliError>,
    supervisor: &RunningSupervisor,
    tells_end: bool,
) -> CliResult {
    let ended = ended?;
    if tells_end {
        print_message(&match ended {
            Some(why) => {
                format!("The gateway has ended. The supervisor (pid {}) keeps running: {why}", supervisor.pid)
            }
            None => ENDED.to_owned(),
        });
    }
    Ok(())
}

/// Ends the supervisor that was started for a gateway that failed to start. Open leases of an earlier gateway
/// keep the supervisor running, and the next `up` finds it.
async fn stop_unused_supervisor(
    supervisor: &mut RunningSupervisor,
    state_dir: &Path,
) -> Result<(), CliError> {
    match request_shutdown(supervisor, state_dir, hello_at(&supervisor.socket, Role::Admin), None).await {
        Ok(_) | Err(ConnError::Closed) => wait_for_exit(supervisor).await,
        Err(error) => {
            tracing::warn!(
                %error,
                supervisor_pid = supervisor.pid,
                "stopping unused supervisor failed; it keeps running"
            );
            Ok(())
        }
    }
}

async fn request_shutdown(
    supervisor: &RunningSupervisor,
    state_dir: &Path,
    hello: Hello,
    marks: Option<Marks>,
) -> Result<Reply, ConnError> {
    let deadline = Duration::from_millis(ANSWER_MS);
    let mut client = match marks {
        Some(marks) => Client::open_gateway(&supervisor.socket, hello, marks, deadline).await?,
        None => Client::open(&supervisor.socket, hello, deadline).await?,
    };
    // The supervisor compares the path with its own, so one of another state directory refuses.
    let state_dir = supervisor_dir(state_dir).to_string_lossy().into_owned();
    client.call(Request::Shutdown { state_dir }).await
}

/// Waits until the supervisor has ended.
async fn wait_for_exit(supervisor: &mut RunningSupervisor) -> Result<(), CliError> {
    let until = Instant::now() + Duration::from_millis(END_MS);
    while Instant::now() < until {
        let ended = match (&mut supervisor.child, &supervisor.process) {
            (Some(child), _) => child.try_wait().is_ok_and(|status| status.is_some()),
            // The supervisor makes its last commit after the removal of the socket.
            (None, Some(process)) => peer_ancestry::has_ended(process),
            (None, None) => acp_shared::conn::connect::<(), ()>(&supervisor.socket).await.is_err(),
        };
        if ended {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(ASK_MS)).await;
    }
    Err(supervisor_failure(&supervisor.socket, "it did not exit after a shutdown request").into())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn printed_command_can_be_typed() {
        let dir = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(dir.path()).unwrap();
        let (exe, bin) = (real.join("target/release/acp-gateway"), real.join("bin"));
        let path = std::slice::from_ref(&bin);
        std::fs::create_dir_all(exe.parent().unwrap()).unwrap();
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(&exe, "").unwrap();
        assert_eq!(command_to_type(&exe, path, &real), "target/release/acp-gateway");
        assert_eq!(command_to_type(&exe, path, Path::new("/nowhere")), exe.display().to_string());
        assert_eq!(
            command_to_type(&exe, &[], exe.parent().unwrap()),
            exe.display().to_string(),
            "shells do not search the current directory"
        );
        std::fs::write(bin.join("acp-gateway"), "another one").unwrap();
        assert_eq!(command_to_type(&exe, path, &real), "target/release/acp-gateway");
        std::fs::remove_file(bin.join("acp-gateway")).unwrap();
        std::os::unix::fs::symlink(&exe, bin.join("acp-gateway")).unwrap();
        assert_eq!(command_to_type(&exe, path, &real), "acp-gateway");
    }

    #[test]
    fn last_log_lines_contain_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_lines(&log, 0), "");
        std::fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(last_lines(&log, 0), "one | two");
        std::fs::write(&log, "one\n{\"code\":\"RUNTIME\",\"message\":\"no wrapper\",\"type\":\"error\"}\n")
            .unwrap();
        assert_eq!(last_lines(&log, 0), "no wrapper");
        assert_eq!(last_lines(&log, 1_000), "", "nothing was written since");
    }
}
