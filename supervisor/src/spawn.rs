//! Starting a process tree so that at no instant a living process has no lease, or a lease names a wrong pid:
//! reserve, prepare, start the wrapper with a blocked adapter, verify, bind, let go. Each arrow of the protocol is
//! a [`Step`]; a crash after any of them leaves nothing running that no lease names.

use crate::confine::{self, Customer, confine};
use crate::context::Context;
use crate::core::cgroup::Leaf;
use crate::core::ladder::Limits;
use crate::core::lease::{Bound, Illegal, Lease, LeaseEvent};
use crate::core::redact::Redactor;
use crate::core::stop::WRAPPER_HEADSTART_MS;
use crate::core::tenant::{Confined, Places, caps_of};
use crate::core::verify::Life;
use crate::launchdir::{LaunchDirError, WrapperRoot};
use crate::relay::stderr::Stderr;
use crate::relay::{self, Pipes, Relay};
use crate::store::StoreError;
use crate::sys::linux::{self, Linux};
use crate::sys::packet;
use crate::sys::watch::{Child, Control, ControlError, Stranger};
use crate::sys::{OpenError, OpenProcess, Sys};
use acp_shared::launch::{
    ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, FromWrapper, LAUNCH_VERSION, Launch, ToWrapper, WRAPPER_FILE,
};
use acp_shared::protocol::{LeaseKind, Refusal, RefusalCode, Spawn};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe;

/// The steps of a start, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The lease is made durable, without a pid.
    Reserve,
    /// The wrapper and its description are written.
    Prepare,
    /// The wrapper is started.
    Start,
    /// The wrapper reports a blocked adapter.
    Hello,
    /// Both are verified to be what the wrapper says.
    Verify,
    /// The lease is made durable with both pids.
    Bind,
    /// The adapter is let go, and has called exec.
    Go,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Self; 7] =
        [Self::Reserve, Self::Prepare, Self::Start, Self::Hello, Self::Verify, Self::Bind, Self::Go];
}

/// Name of the last stage of a start, which concerns the program and no directory.
const EXEC: &str = "exec";

/// What a gateway asks to be started.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it is.
    pub spec: Spawn,
    /// The gateway's group, as the kernel said when it connected: what its agents get where its user has no entry.
    pub gid: u32,
}

/// Why a start failed.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The lease cannot be made durable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is not allowed to run like that.
    #[error(transparent)]
    Refused(Refusal),
    /// There is nothing to start from.
    #[error(transparent)]
    LaunchDir(#[from] LaunchDirError),
    /// The system refused.
    #[error("cannot {what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The control socket failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The wrapper could not set things up.
    #[error("the wrapper could not {stage}: {error}")]
    Setup {
        /// What it was doing.
        stage: String,
        /// Why not.
        error: io::Error,
    },
    /// The adapter could not be started.
    #[error("{program} could not be started ({stage}: {error})")]
    Exec {
        /// The program.
        program: String,
        /// Which call failed.
        stage: String,
        /// Why.
        error: io::Error,
    },
    /// The wrapper ended or said something else.
    #[error("the wrapper ended or broke its protocol at {0:?}")]
    Wrapper(Step),
    /// What the wrapper said is not what the system says.
    #[error("the processes are not what the wrapper says: {0}")]
    Mismatch(&'static str),
    /// It took too long.
    #[error("the wrapper did not get ready in time")]
    Timeout,
    /// The lease was no longer in the state for it.
    #[error(transparent)]
    Illegal(#[from] Illegal),
}

impl SpawnError {
    /// Whether the agent is to blame, and not this machine: such a start counts as a crash.
    #[must_use]
    pub fn is_the_agents(&self) -> bool {
        matches!(self, Self::Exec { .. } | Self::Timeout) && !self.leads_elsewhere()
    }

    /// True if a directory of the session has become a link.
    fn leads_elsewhere(&self) -> bool {
        let (Self::Setup { stage, error } | Self::Exec { stage, error, .. }) = self else { return false };
        stage != EXEC && error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
    }

    /// What the gateway is told.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let mut message = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        let code = match self {
            Self::Refused(refusal) => return refusal.clone(),
            Self::Store(_) => RefusalCode::StoreUnavailable,
            Self::Setup { .. } | Self::Exec { .. } if self.leads_elsewhere() => RefusalCode::NotAuthorised,
            Self::LaunchDir(_)
            | Self::Io { .. }
            | Self::Control(_)
            | Self::Setup { .. }
            | Self::Exec { .. }
            | Self::Wrapper(_)
            | Self::Mismatch(_)
            | Self::Timeout
            | Self::Illegal(_) => RefusalCode::SpawnFailed,
        };
        Refusal::new(code, message)
    }
}

fn doing(what: &'static str) -> impl FnOnce(io::Error) -> SpawnError {
    move |source| SpawnError::Io { what, source }
}

/// A wrapper that was started, from its first instant on.
#[derive(Debug)]
pub struct Started<S: Sys = Linux> {
    /// The wrapper.
    pub child: Child<S>,
    /// Its control socket.
    pub control: Control,
    /// The supervisor's ends of the adapter's pipes.
    ours: Ends,
    /// The adapter's ends, until the wrapper has them.
    theirs: [OwnedFd; 3],
    /// Limits that its control group did not take.
    unlimited: Vec<String>,
}

#[derive(Debug)]
enum Ends {
    Agent(Pipes),
    Terminal(pipe::Receiver),
}

/// Makes the lease durable and starts its wrapper (steps 1 to 3). Nothing of the adapter exists yet.
///
/// # Errors
/// [`SpawnError`]; no process was started.
pub async fn start<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    asked: &Asked,
) -> Result<Started<S>, SpawnError> {
    let spec = &asked.spec;
    let customer = Customer { gateway: lease.gateway, uid: lease.owner_uid, gid: asked.gid };
    let places = Places { cwd: Some(spec.cwd.clone()), roots: spec.roots.clone() };
    let confined = confine(context, customer, confine::Start { env: spec.env.clone(), places }).await?;
    context.store.save_lease(lease).await?;
    let launch = launch(lease, spec, confined);
    let (theirs, ours) = ends(&spec.kind).map_err(doing("make the adapter's pipes"))?;
    let limits = caps_of(&context.tenants, context.holding.limits, lease.owner_uid, lease.gateway);
    let group = context.holding.leaf(lease.lease_id).map(|leaf| (leaf, limits));
    let wrapper = start_wrapper(context, context.wrapper_root.clone(), launch, group).await?;
    lease.wrapper_path = wrapper.path.to_string_lossy().into_owned();
    let Wrapper { child, control, unlimited, .. } = wrapper;
    Ok(Started { child, control, ours, theirs, unlimited })
}

/// A running wrapper. The wrapper forks nothing before its first message.
#[derive(Debug)]
pub(crate) struct Wrapper<S: Sys = Linux> {
    /// The process.
    pub(crate) child: Child<S>,
    /// Its control socket.
    pub(crate) control: Control,
    /// The file that it was started from.
    path: PathBuf,
    /// Limits that its control group refused.
    unlimited: Vec<String>,
}

/// Writes the launch directory beneath `root` and starts the wrapper in it, in a control group if one is given.
///
/// # Errors
/// [`SpawnError`]; no process was started.
pub(crate) async fn start_wrapper<S: Sys>(
    context: &Arc<Context<S>>,
    root: WrapperRoot,
    launch: Launch,
    group: Option<(Leaf, Limits)>,
) -> Result<Wrapper<S>, SpawnError> {
    let (their_control, our_control) = packet::control_pair().map_err(doing("make the control socket"))?;
    packet::pass_credentials(our_control.as_fd()).map_err(doing("prepare the control socket"))?;
    if context.abilities.scm_pidfd {
        linux::pass_pidfd(our_control.as_fd()).map_err(doing("prepare the control socket"))?;
    }
    let at = Arc::clone(context);
    let slot = root.disk().slot().await.map_err(doing("reach the launch directories"))?;
    let started = context.blocking(move |_| {
        let prepared = prepare(&at, &root, &launch, group.as_ref(), &their_control);
        drop(slot);
        Ok(prepared)
    });
    let started = started.await;
    let Prepared { path, handle, unlimited } =
        started.unwrap_or_else(|e| Err(doing("start the wrapper")(e)))?;
    let pid = handle.pid();
    let watched = Child::new(Arc::clone(&context.sys), handle)
        .map_err(doing("watch the wrapper"))
        .and_then(|child| Ok((child, Control::new(our_control).map_err(doing("watch the control socket"))?)));
    // Where nobody holds it, it ends with its control socket, and is reaped as a stray.
    let (child, control) = watched.inspect_err(|_| context.forget_child(pid))?;
    Ok(Wrapper { child, control, path, unlimited })
}

/// A wrapper that was started where it belongs.
struct Prepared<H> {
    path: PathBuf,
    handle: Arc<H>,
    /// Limits that its control group did not take.
    unlimited: Vec<String>,
}

fn prepare<S: Sys>(
    context: &Context<S>,
    root: &WrapperRoot,
    launch: &Launch,
    group: Option<&(Leaf, Limits)>,
    control: &OwnedFd,
) -> Result<Prepared<S::Handle>, SpawnError> {
    let path = root.make(launch)?.wrapper;
    let unlimited = group.map_or(Ok(Vec::new()), |(leaf, limits)| context.sys.make_group(leaf, limits));
    let unlimited = unlimited.map_err(doing("make the control group"))?;
    let handle = exec(context, &path, launch, control)?;
    // The wrapper does nothing before it is told to, so all that it will start begins its life in the group.
    if let Some(Err(error)) = group.map(|(leaf, _)| context.sys.join_group(leaf, &handle)) {
        // Nobody holds it: it ends with its control socket, and is reaped as a stray.
        context.forget_child(handle.pid());
        return Err(doing("move the wrapper into its control group")(error));
    }
    Ok(Prepared { path, handle, unlimited })
}

/// Why an adapter runs as it does.
fn runs(unlimited: &[String]) -> String {
    if unlimited.is_empty() {
        return "the adapter runs".to_owned();
    }
    format!("the adapter runs; its control group did not take {}", unlimited.join(", "))
}

fn launch(lease: &Lease, spec: &Spawn, confined: Confined) -> Launch {
    let markers = [
        (ENV_LEASE_ID.to_owned(), lease.lease_id.to_string()),
        (ENV_GATEWAY_INSTANCE_ID.to_owned(), lease.gateway.to_string()),
    ];
    Launch {
        version: LAUNCH_VERSION,
        lease_id: lease.lease_id,
        gateway_instance_id: lease.gateway,
        argv: spec.argv.clone(),
        env: confined.env.into_iter().chain(markers).collect(),
        cwd: spec.cwd.clone(),
        term_grace_ms: lease.graces.term_ms,
        sweep_ms: lease.graces.kill_ms.max(WRAPPER_HEADSTART_MS),
        confine: confined.confine,
    }
}

fn ends(kind: &LeaseKind) -> io::Result<([OwnedFd; 3], Ends)> {
    let pair = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from);
    match kind {
        LeaseKind::Agent => {
            let ((in_read, in_write), (out_read, out_write), (err_read, err_write)) =
                (pair()?, pair()?, pair()?);
            let pipes = Pipes {
                stdin: pipe::Sender::from_owned_fd(in_write)?,
                stdout: pipe::Receiver::from_owned_fd(out_read)?,
                stderr: pipe::Receiver::from_owned_fd(err_read)?,
            };
            Ok(([in_read, out_write, err_write], Ends::Agent(pipes)))
        }
        LeaseKind::Terminal { .. } => {
            let (read, write) = pair()?;
            let nothing = OwnedFd::from(std::fs::File::open("/dev/null")?);
            let second = write.try_clone()?;
            Ok(([nothing, write, second], Ends::Terminal(pipe::Receiver::from_owned_fd(read)?)))
        }
    }
}

/// How often a wrapper that is "busy" is tried again: another thread may hold its file open for writing for the
/// moment between its fork and exec.
const BUSY_TRIES_MAX: u32 = 20;

fn exec<S: Sys>(
    context: &Context<S>,
    wrapper: &Path,
    launch: &Launch,
    control: &OwnedFd,
) -> Result<Arc<S::Handle>, SpawnError> {
    let mut command = Command::new(wrapper);
    command
        .arg0(WRAPPER_FILE)
        .env_clear()
        .env(ENV_LEASE_ID, launch.lease_id.to_string())
        .env(ENV_GATEWAY_INSTANCE_ID, launch.gateway_instance_id.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut tries = 0;
    let pid = loop {
        match context.start_child(|| context.sys.start(&mut command, control)) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES_MAX => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            other => break other.map_err(doing("start the wrapper"))?,
        }
    };
    // The child is not reaped, so its number is surely its own.
    if let Err(error) = context.sys.limit_open_files(pid, context.descriptors) {
        tracing::warn!(%error, "a wrapper keeps the supervisor's limit on open files");
    }
    context.sys.open_child(pid).map_err(|error| {
        // Nobody holds it: it ends with its control socket, and is reaped as a stray.
        context.forget_child(pid);
        match error {
            OpenError::Gone => SpawnError::Wrapper(Step::Start),
            OpenError::Io(source) => doing("open the wrapper")(source),
        }
    })
}

/// Lets the adapter be forked, verifies and binds both, and lets it go (steps 4 to 7).
///
/// # Errors
/// [`SpawnError`]. The wrapper may still be there: the caller closes its control socket, which ends it, and looks.
pub async fn go<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    spec: &Spawn,
    started: &mut Started<S>,
) -> Result<(), SpawnError> {
    let within = Duration::from_millis(context.config.spawn_ms);
    tokio::time::timeout(within, steps(context, lease, spec, started))
        .await
        .unwrap_or(Err(SpawnError::Timeout))
}

async fn steps<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    spec: &Spawn,
    started: &mut Started<S>,
) -> Result<(), SpawnError> {
    let bound = fork(context, &started.child, &started.control, &started.theirs).await?;
    lease.bound = Some(bound);
    lease.apply(LeaseEvent::Bind, "both processes are known")?;
    context.add_root(bound.wrapper.pid);
    context.store.save_lease(lease).await?;
    let program = spec.argv.first().map_or("", String::as_str);
    release(context, &started.child, &started.control, program).await?;
    lease.apply(LeaseEvent::Run, &runs(&started.unlimited))?;
    context.store.post_lease(lease);
    Ok(())
}

/// Has a wrapper fork its adapter, blocked before exec, and verifies both processes.
pub(crate) async fn fork<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
    stdio: &[OwnedFd; 3],
) -> Result<Bound, SpawnError> {
    let fds = [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()];
    // A wrapper that could not set things up may have ended before this: then it has said why.
    let sent = control.send(&ToWrapper::Launch, &fds);
    let heard = match said(context, child, control).await? {
        // With the message unread, the end of the socket comes before what was said.
        None => {
            let mut words = control.last_words().into_iter();
            words.find_map(|heard| heard.from(context.sys.as_ref(), child.handle()).ok()?.ok())
        }
        heard => heard,
    };
    match heard {
        Some(FromWrapper::Hello { wrapper_pid, adapter_pid }) => {
            verify(context, child.handle(), wrapper_pid, adapter_pid)
        }
        Some(FromWrapper::SetupFailed { errno, stage }) => {
            Err(SpawnError::Setup { stage, error: io::Error::from_raw_os_error(errno) })
        }
        Some(_) | None => sent.map_err(SpawnError::from).and(Err(SpawnError::Wrapper(Step::Hello))),
    }
}

/// Lets the blocked adapter of a wrapper exec, and waits until it has.
pub(crate) async fn release<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
    program: &str,
) -> Result<(), SpawnError> {
    control.send(&ToWrapper::Go, &[])?;
    match said(context, child, control).await? {
        Some(FromWrapper::Running) => Ok(()),
        Some(FromWrapper::ExecFailed { errno, stage }) => {
            let (program, error) = (program.to_owned(), io::Error::from_raw_os_error(errno));
            Err(SpawnError::Exec { program, stage, error })
        }
        Some(_) | None => Err(SpawnError::Wrapper(Step::Go)),
    }
}

/// Next message of the wrapper; `None` when it has closed its end. A message of another process is an error.
async fn said<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
) -> Result<Option<FromWrapper>, SpawnError> {
    let Some(heard) = control.recv().await? else { return Ok(None) };
    match heard.from(context.sys.as_ref(), child.handle()) {
        Ok(message) => Ok(Some(message.map_err(ControlError::from)?)),
        Err(Stranger::Other) => Err(SpawnError::Mismatch("another process speaks for the wrapper")),
        Err(Stranger::Laden) => Err(SpawnError::Mismatch("what the wrapper says comes with descriptors")),
    }
}

/// Nobody can say by now whether it ever was the wrapper's.
const NO_ADAPTER: &str = "the adapter has ended before it was let go, or was never there";

/// Whether both processes are what the wrapper says. The adapter is blocked and its parent is our own un-reaped
/// child, so neither number can have changed hands.
fn verify<S: Sys>(
    context: &Context<S>,
    wrapper: &S::Handle,
    wrapper_pid: i32,
    adapter_pid: i32,
) -> Result<Bound, SpawnError> {
    let check = |holds: bool, why: &'static str| if holds { Ok(()) } else { Err(SpawnError::Mismatch(why)) };
    check(wrapper_pid == wrapper.pid(), "the wrapper names another pid than that of the child")?;
    let w = context.sys.glance(wrapper);
    check(w.sid == Some(wrapper_pid), "the wrapper does not lead a session of its own")?;
    let adapter = context.sys.open(adapter_pid).map_err(|_| SpawnError::Mismatch(NO_ADAPTER))?;
    let a = context.sys.glance(&adapter);
    check(!matches!(a.life, Life::Zombie | Life::Gone), NO_ADAPTER)?;
    check(a.ppid == Some(wrapper_pid), "the adapter is no child of the wrapper")?;
    check(a.pgid == Some(adapter_pid), "the adapter does not lead a group of its own")?;
    check(a.sid == Some(wrapper_pid), "the adapter is not in the wrapper's session")?;
    let records = wrapper.record().zip(adapter.record());
    let (wrapper, adapter) =
        records.ok_or(SpawnError::Mismatch("their start times cannot be read, or they have ended"))?;
    Ok(Bound { wrapper, adapter, pgid: adapter_pid, sid: wrapper_pid })
}

/// Tells a gateway of the end of its terminal, wherever it is connected then.
pub(crate) fn news_of_exit(
    events: tokio::sync::mpsc::Sender<crate::owner::Event>,
    gateway: acp_shared::ids::GatewayInstanceId,
) -> relay::terminal::OnExit {
    Box::new(move |notice| {
        let news = crate::owner::Event::News { gateway, notice };
        tokio::spawn(async move { drop(events.send(news).await) });
    })
}

impl<S: Sys> Started<S> {
    /// The adapter runs: its streams get their relay, and our copies of its ends are closed.
    #[must_use]
    pub fn into_relay(
        self,
        context: &Arc<Context<S>>,
        lease: &Lease,
        env: &[(String, String)],
    ) -> (Child<S>, Control, Relay) {
        let relay = match (self.ours, &lease.kind) {
            (Ends::Agent(pipes), _) => {
                let log = context.logs.log(lease.gateway, &lease.session_key);
                let stderr = Stderr::new(lease.lease_id, log, Redactor::of_env(env));
                relay::agent::start(lease.lease_id, context.limits(lease.gateway), pipes, stderr)
            }
            (Ends::Terminal(output), kind) => {
                let asked = match kind {
                    LeaseKind::Terminal { output_bytes_max, .. } => *output_bytes_max,
                    LeaseKind::Agent => 0,
                };
                let bytes_max = crate::config::size(asked.min(context.config.terminal_bytes_max));
                let on_exit = news_of_exit(context.events.clone(), lease.gateway);
                relay::terminal::start(lease.lease_id, output, bytes_max, on_exit)
            }
        };
        drop(self.theirs);
        (self.child, self.control, relay)
    }
}
