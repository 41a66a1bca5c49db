//! Start of a process tree. At every moment each living process has a lease, and no lease has a wrong pid:
//! reserve, prepare, start the wrapper with a blocked adapter, verify, bind, release. Each part is a
//! [`SpawnStep`]; a crash after any step leaves no process running without a lease.

use crate::context::Context;
use crate::core::admission::ClientUser;
use crate::core::cgroup::LeaseCgroup;
use crate::core::containment::CgroupLimits;
use crate::core::escalation::WRAPPER_HEADSTART_MS;
use crate::core::lease::{BoundProcesses, Lease, LeaseEvent, TransitionError};
use crate::core::redact::Redactor;
use crate::core::tenant::{AdapterStart, SpawnDirectories, cgroup_limits_for};
use crate::core::verify::ProcessState;
use crate::lease::confine::{self, Requester, confine};
use crate::relay::stderr::Stderr;
use crate::relay::{self, Pipes, Relay};
use crate::store::StoreError;
use crate::sys::child::{Child, Control, ControlError, PacketRejection};
use crate::sys::launch_dir::{LaunchDirError, WrapperRoot};
use crate::sys::linux::{self, Linux};
use crate::sys::packet;
use crate::sys::{OpenError, OpenProcess, Sys};
use acp_shared::launch::{
    ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID, FromWrapper, LAUNCH_VERSION, Launch, ToWrapper, WRAPPER_FILE,
};
use acp_shared::protocol::{LeaseKind, Refusal, RefusalCode, Spawn};
use acp_shared::report::with_causes;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe;

/// Steps of a start, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnStep {
    /// The lease is durable, without a pid.
    Reserve,
    /// The wrapper and its launch description are written.
    Prepare,
    /// The wrapper is started.
    Start,
    /// The wrapper reports a blocked adapter.
    Hello,
    /// Both processes are verified to match the wrapper's report.
    Verify,
    /// The lease is durable with both pids.
    Bind,
    /// The adapter was released and has called exec.
    Go,
}

impl SpawnStep {
    /// All steps, in order.
    pub const ALL: [Self; 7] =
        [Self::Reserve, Self::Prepare, Self::Start, Self::Hello, Self::Verify, Self::Bind, Self::Go];
}

/// Stage name of a failed exec; all other stages with `ELOOP` concern a directory.
const EXEC_STAGE: &str = "exec";

/// Spawn request of a gateway.
#[derive(Debug, Clone)]
pub struct SpawnRequest {
    /// The request.
    pub spec: Spawn,
    /// User of the gateway when it connected.
    pub user: ClientUser,
}

/// Error of a start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The lease cannot be recorded.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The confinement does not permit the request.
    #[error(transparent)]
    Refused(Refusal),
    /// The launch directory cannot be created.
    #[error(transparent)]
    LaunchDir(#[from] LaunchDirError),
    /// A system call failed.
    #[error("cannot {what}")]
    Io {
        /// Failed operation.
        what: &'static str,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The control socket failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The setup in the wrapper failed.
    #[error("the wrapper could not {stage}: {error}")]
    Setup {
        /// Failed step.
        stage: String,
        /// Cause of the failure.
        error: io::Error,
    },
    /// The adapter could not be started.
    #[error("{program} could not be started ({stage}: {error})")]
    Exec {
        /// The program.
        program: String,
        /// Failed call.
        stage: String,
        /// Cause of the failure.
        error: io::Error,
    },
    /// The wrapper ended or sent an unexpected message.
    #[error("the wrapper ended or violated its protocol at {0:?}")]
    Wrapper(SpawnStep),
    /// The wrapper's report differs from the evidence.
    #[error("the processes do not match the wrapper's report: {0}")]
    Mismatch(&'static str),
    /// The wrapper was not ready in time.
    #[error("the wrapper was not ready in time")]
    Timeout,
    /// The lease was no longer in a state that permits the step.
    #[error(transparent)]
    Illegal(#[from] TransitionError),
}

impl SpawnError {
    /// True if the agent, not this machine, caused the failure: such a start counts as a crash.
    #[must_use]
    pub fn is_agent_fault(&self) -> bool {
        matches!(self, Self::Exec { .. } | Self::Timeout) && !self.is_redirected_directory()
    }

    /// True if a directory of the session has become a link.
    fn is_redirected_directory(&self) -> bool {
        let (Self::Setup { stage, error } | Self::Exec { stage, error, .. }) = self else { return false };
        stage != EXEC_STAGE && error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
    }

    /// Returns the refusal for the gateway.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let code = match self {
            Self::Refused(refusal) => return refusal.clone(),
            Self::Store(_) => RefusalCode::StoreUnavailable,
            Self::Setup { .. } | Self::Exec { .. } if self.is_redirected_directory() => {
                RefusalCode::NotAuthorised
            }
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
        Refusal::new(code, with_causes(self))
    }
}

fn io_context(what: &'static str) -> impl FnOnce(io::Error) -> SpawnError {
    move |source| SpawnError::Io { what, source }
}

/// Wrapper process after its start.
#[derive(Debug)]
pub struct StartedWrapper<S: Sys = Linux> {
    /// Wrapper process.
    pub child: Child<S>,
    /// Control socket of the wrapper.
    pub control: Control,
    /// Supervisor's ends of the adapter's pipes.
    ours: PipeEnds,
    /// Adapter's ends of its pipes, until they are sent to the wrapper.
    theirs: [OwnedFd; 3],
    /// Limits that the cgroup did not accept.
    unlimited: Vec<String>,
}

#[derive(Debug)]
enum PipeEnds {
    Agent(Pipes),
    Terminal(pipe::Receiver),
}

/// Records the lease and starts its wrapper (steps 1 to 3). The adapter does not exist yet.
///
/// # Errors
/// [`SpawnError`]; no process was started.
pub async fn start<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    asked: &SpawnRequest,
) -> Result<StartedWrapper<S>, SpawnError> {
    let spec = &asked.spec;
    let requester = Requester { gateway: lease.gateway, user: asked.user.clone() };
    let directories = SpawnDirectories::of_session(&spec.cwd, &spec.roots);
    let confined =
        confine(context, requester, confine::ConfinementInput { env: spec.env.clone(), directories }).await?;
    context.store.save_lease(lease).await?;
    let launch = launch(lease, spec, confined);
    let (theirs, ours) = make_pipes(&spec.kind).map_err(io_context("create the adapter's pipes"))?;
    let limits = cgroup_limits_for(&context.tenants, context.containment.limits, &asked.user, lease.gateway);
    let group = context.containment.leaf(lease.lease_id).map(|leaf| LimitedCgroup { leaf, limits });
    let wrapper = start_wrapper(context, context.wrapper_root.clone(), launch, group).await?;
    lease.wrapper_path = wrapper.path.to_string_lossy().into_owned();
    let RunningWrapper { child, control, unlimited, .. } = wrapper;
    Ok(StartedWrapper { child, control, ours, theirs, unlimited })
}

/// Control group of a lease, with its limits.
#[derive(Debug)]
pub(crate) struct LimitedCgroup {
    leaf: LeaseCgroup,
    limits: CgroupLimits,
}

/// Running wrapper. A wrapper forks nothing before its first message.
#[derive(Debug)]
pub(crate) struct RunningWrapper<S: Sys = Linux> {
    /// Wrapper process.
    pub(crate) child: Child<S>,
    /// Control socket of the wrapper.
    pub(crate) control: Control,
    /// Path of its executable.
    path: PathBuf,
    /// Limits that the cgroup did not accept.
    unlimited: Vec<String>,
}

/// Creates the launch directory beneath `root` and starts the wrapper in it, in a cgroup if one is given.
///
/// # Errors
/// [`SpawnError`]; no process was started.
pub(crate) async fn start_wrapper<S: Sys>(
    context: &Arc<Context<S>>,
    root: WrapperRoot,
    launch: Launch,
    group: Option<LimitedCgroup>,
) -> Result<RunningWrapper<S>, SpawnError> {
    let (their_control, our_control) =
        packet::control_pair().map_err(io_context("create the control socket"))?;
    packet::pass_credentials(our_control.as_fd()).map_err(io_context("prepare the control socket"))?;
    if context.abilities.scm_pidfd {
        linux::pass_pidfd(our_control.as_fd()).map_err(io_context("prepare the control socket"))?;
    }
    let at = Arc::clone(context);
    let slot = root.disk().slot().await.map_err(io_context("reach the launch directories"))?;
    let started = context.blocking(move |_| {
        let prepared = prepare(&at, &root, &launch, group.as_ref(), &their_control);
        drop(slot);
        Ok(prepared)
    });
    let started = started.await;
    let PreparedWrapper { path, handle, unlimited } =
        started.unwrap_or_else(|e| Err(io_context("start the wrapper")(e)))?;
    let pid = handle.pid();
    let watched =
        Child::new(Arc::clone(&context.sys), handle).map_err(io_context("watch the wrapper")).and_then(
            |child| Ok((child, Control::new(our_control).map_err(io_context("watch the control socket"))?)),
        );
    // Without an owner the wrapper ends with its control socket, and is reaped as an orphan.
    let (child, control) = watched.inspect_err(|_| context.release_child(pid))?;
    Ok(RunningWrapper { child, control, path, unlimited })
}

/// Started wrapper, already in its cgroup.
struct PreparedWrapper<H> {
    path: PathBuf,
    handle: Arc<H>,
    /// Limits that the cgroup did not accept.
    unlimited: Vec<String>,
}

fn prepare<S: Sys>(
    context: &Context<S>,
    root: &WrapperRoot,
    launch: &Launch,
    group: Option<&LimitedCgroup>,
    control: &OwnedFd,
) -> Result<PreparedWrapper<S::Handle>, SpawnError> {
    let path = root.make(launch)?.wrapper;
    let unlimited = group.map_or(Ok(Vec::new()), |group| context.sys.make_group(&group.leaf, &group.limits));
    let unlimited = unlimited.map_err(io_context("create the control group"))?;
    let (handle, is_inside) = start_wrapper_process(context, &path, launch, group, control)?;
    // The wrapper waits for its first message, so its later children start inside the cgroup.
    let group = group.filter(|_| !is_inside);
    if let Some(Err(error)) = group.map(|group| context.sys.join_group(&group.leaf, &handle)) {
        // Without an owner the wrapper ends with its control socket, and is reaped as an orphan.
        context.release_child(handle.pid());
        return Err(io_context("move the wrapper into its control group")(error));
    }
    Ok(PreparedWrapper { path, handle, unlimited })
}

/// Returns the reason text of a running lease.
fn running_reason(unlimited: &[String]) -> String {
    if unlimited.is_empty() {
        return "the adapter runs".to_owned();
    }
    format!("the adapter runs; its control group did not accept {}", unlimited.join(", "))
}

fn launch(lease: &Lease, spec: &Spawn, confined: AdapterStart) -> Launch {
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

fn make_pipes(kind: &LeaseKind) -> io::Result<([OwnedFd; 3], PipeEnds)> {
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
            Ok(([in_read, out_write, err_write], PipeEnds::Agent(pipes)))
        }
        LeaseKind::Terminal { .. } => {
            let (read, write) = pair()?;
            let nothing = OwnedFd::from(std::fs::File::open("/dev/null")?);
            let second = write.try_clone()?;
            Ok(([nothing, write, second], PipeEnds::Terminal(pipe::Receiver::from_owned_fd(read)?)))
        }
    }
}

/// Maximum number of retries after `ETXTBSY`: another thread may hold the wrapper open for writing between
/// its fork and exec.
const BUSY_TRIES_MAX: u32 = 20;

/// Starts the wrapper. Returns true if the wrapper has begun inside its cgroup.
fn start_wrapper_process<S: Sys>(
    context: &Context<S>,
    wrapper: &Path,
    launch: &Launch,
    group: Option<&LimitedCgroup>,
    control: &OwnedFd,
) -> Result<(Arc<S::Handle>, bool), SpawnError> {
    let mut command = Command::new(wrapper);
    command
        .arg0(WRAPPER_FILE)
        .env_clear()
        .env(ENV_LEASE_ID, launch.lease_id.to_string())
        .env(ENV_GATEWAY_INSTANCE_ID, launch.gateway_instance_id.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (mut tries, mut is_inside) = (0, false);
    let pid = loop {
        let started = context.start_child(|| {
            if let Some(group) = group
                && let Some(pid) = context.sys.start_in_group(&group.leaf, &command, control)?
            {
                is_inside = true;
                return Ok(pid);
            }
            context.sys.start(&mut command, control)
        });
        match started {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES_MAX => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            other => break other.map_err(io_context("start the wrapper"))?,
        }
    };
    // The child is not reaped, so its pid cannot be reused.
    if let Err(error) = context.sys.limit_open_files(pid, context.descriptors) {
        tracing::warn!(%error, "cannot reset open file limit of wrapper");
    }
    let opened = context.sys.open_child(pid).map_err(|error| {
        // Without an owner the wrapper ends with its control socket, and is reaped as an orphan.
        context.release_child(pid);
        match error {
            OpenError::Gone => SpawnError::Wrapper(SpawnStep::Start),
            OpenError::Io(source) => io_context("open the wrapper")(source),
        }
    });
    Ok((opened?, is_inside))
}

/// Lets the wrapper fork the adapter, verifies and binds both, and releases the adapter (steps 4 to 7).
///
/// # Errors
/// [`SpawnError`]. The wrapper may still run: the caller closes its control socket, which ends it, and cleans
/// up.
pub async fn bind_and_release<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    spec: &Spawn,
    started: &mut StartedWrapper<S>,
) -> Result<(), SpawnError> {
    let within = Duration::from_millis(context.config.spawn_ms);
    tokio::time::timeout(within, run_start_steps(context, lease, spec, started))
        .await
        .unwrap_or(Err(SpawnError::Timeout))
}

async fn run_start_steps<S: Sys>(
    context: &Arc<Context<S>>,
    lease: &mut Lease,
    spec: &Spawn,
    started: &mut StartedWrapper<S>,
) -> Result<(), SpawnError> {
    let bound = fork(context, &started.child, &started.control, &started.theirs).await?;
    lease.bound = Some(bound);
    lease.apply(LeaseEvent::Bind, "both processes are known")?;
    context.add_root(bound.wrapper.pid);
    context.store.save_lease(lease).await?;
    let program = spec.argv.first().map_or("", String::as_str);
    release(context, &started.child, &started.control, program).await?;
    lease.apply(LeaseEvent::Run, &running_reason(&started.unlimited))?;
    context.store.post_lease(lease);
    Ok(())
}

/// Lets a wrapper fork its adapter, blocked before exec, and verifies both processes.
pub(crate) async fn fork<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
    stdio: &[OwnedFd; 3],
) -> Result<BoundProcesses, SpawnError> {
    let fds = [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()];
    // A wrapper whose setup failed may have ended already: then its last message has the reason.
    let sent = control.send(&ToWrapper::Launch, &fds);
    let heard = match recv_message(context, child, control).await? {
        // If the launch message was not read, the socket reports its end before the wrapper's messages.
        None => {
            let mut words = control.drain_messages().into_iter();
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
        Some(_) | None => sent.map_err(SpawnError::from).and(Err(SpawnError::Wrapper(SpawnStep::Hello))),
    }
}

/// Lets the blocked adapter of a wrapper exec, and waits for the result.
pub(crate) async fn release<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
    program: &str,
) -> Result<(), SpawnError> {
    control.send(&ToWrapper::Go, &[])?;
    match recv_message(context, child, control).await? {
        Some(FromWrapper::Running) => Ok(()),
        Some(FromWrapper::ExecFailed { errno, stage }) => {
            let (program, error) = (program.to_owned(), io::Error::from_raw_os_error(errno));
            Err(SpawnError::Exec { program, stage, error })
        }
        Some(_) | None => Err(SpawnError::Wrapper(SpawnStep::Go)),
    }
}

/// Receives the next message of the wrapper; `None` if it has closed its end. A message of another process is
/// an error.
async fn recv_message<S: Sys>(
    context: &Context<S>,
    child: &Child<S>,
    control: &Control,
) -> Result<Option<FromWrapper>, SpawnError> {
    let Some(heard) = control.recv().await? else { return Ok(None) };
    match heard.from(context.sys.as_ref(), child.handle()) {
        Ok(message) => Ok(Some(message.map_err(ControlError::from)?)),
        Err(PacketRejection::Other) => Err(SpawnError::Mismatch("another process sent the wrapper's report")),
        Err(PacketRejection::Laden) => Err(SpawnError::Mismatch("the wrapper's report carries descriptors")),
    }
}

/// At this point it is unknown if the process ever was the wrapper's adapter.
const NO_ADAPTER: &str = "the adapter ended before it was released, or never existed";

/// Checks that both processes match the wrapper's report. The adapter is blocked and its parent is an own
/// child that was not reaped, so neither pid can have been reused.
fn verify<S: Sys>(
    context: &Context<S>,
    wrapper: &S::Handle,
    wrapper_pid: i32,
    adapter_pid: i32,
) -> Result<BoundProcesses, SpawnError> {
    let check = |holds: bool, why: &'static str| if holds { Ok(()) } else { Err(SpawnError::Mismatch(why)) };
    check(wrapper_pid == wrapper.pid(), "the wrapper reports another pid than that of the child")?;
    let w = context.sys.kernel_evidence(wrapper);
    check(w.sid == Some(wrapper_pid), "the wrapper does not lead a session of its own")?;
    let adapter = context.sys.open(adapter_pid).map_err(|_| SpawnError::Mismatch(NO_ADAPTER))?;
    let a = context.sys.kernel_evidence(&adapter);
    check(!matches!(a.life, ProcessState::Zombie | ProcessState::Gone), NO_ADAPTER)?;
    check(a.ppid == Some(wrapper_pid), "the adapter is not a child of the wrapper")?;
    check(a.pgid == Some(adapter_pid), "the adapter does not lead a group of its own")?;
    check(a.sid == Some(wrapper_pid), "the adapter is not in the wrapper's session")?;
    let records = wrapper.record().zip(adapter.record());
    let (wrapper, adapter) =
        records.ok_or(SpawnError::Mismatch("their start times cannot be read, or they have ended"))?;
    Ok(BoundProcesses { wrapper, adapter, pgid: adapter_pid, sid: wrapper_pid })
}

/// Creates a callback that notifies a gateway of the end of its terminal, on any connection.
pub(crate) fn exit_notifier(
    events: tokio::sync::mpsc::Sender<crate::context::event::Event>,
    gateway: acp_shared::ids::GatewayInstanceId,
) -> relay::terminal::OnExit {
    Box::new(move |notice| {
        let news = crate::context::event::Event::Notice { gateway, notice };
        tokio::spawn(async move { drop(events.send(news).await) });
    })
}

impl<S: Sys> StartedWrapper<S> {
    /// Creates the relay for the streams of the running adapter, and closes the own copies of its ends.
    #[must_use]
    pub fn start_relay(
        self,
        context: &Arc<Context<S>>,
        lease: &Lease,
        env: &[(String, String)],
    ) -> (Child<S>, Control, Relay) {
        let relay = match (self.ours, &lease.kind) {
            (PipeEnds::Agent(pipes), _) => {
                let log = context.logs.log(lease.gateway, &lease.session_key);
                let stderr = Stderr::new(lease.lease_id, log, Redactor::of_env(env));
                relay::agent::start(lease.lease_id, context.limits(lease.gateway), pipes, stderr)
            }
            (PipeEnds::Terminal(output), kind) => {
                let asked = match kind {
                    LeaseKind::Terminal { output_bytes_max, .. } => *output_bytes_max,
                    LeaseKind::Agent => 0,
                };
                let bytes_max = crate::config::size(asked.min(context.config.terminal_bytes_max));
                let on_exit = exit_notifier(context.events.clone(), lease.gateway);
                relay::terminal::start(lease.lease_id, output, bytes_max, on_exit)
            }
        };
        drop(self.theirs);
        (self.child, self.control, relay)
    }
}
