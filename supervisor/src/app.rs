//! `serve`: takes the lock, reaps leases of earlier supervisors, listens, and shuts down in order.

pub mod environment;
pub(crate) mod signals;
pub mod tenants;

use crate::app::environment::StartupError;
use crate::app::signals::TerminationSignals;
use crate::app::tenants::tenants;
use crate::config::{Config, ConfigError};
use crate::context::event::Event;
use crate::context::{Context, wall_ms};
use crate::core::admission::AccessPolicy;
use crate::core::lease::Lease;
use crate::core::quarantine::{self, SupervisorIdentity};
use crate::core::tenant::Tenant;
use crate::lease::orphans;
use crate::lease::reaper;
use crate::owner::handover::{
    Handover, HandoverResources, ImportedState, InheritableResources, without_handover_args,
};
use crate::owner::{Owner, OwnerExit};
use crate::relay::session_logs::SessionLogs;
use crate::relay::spool_dir::SpoolDir;
use crate::server;
use crate::server::remote::{self, RemoteAddress, RemoteError};
use crate::server::secret::{self, SECRET_FILE};
use crate::server::socket::Socket;
use crate::store::{Loaded, Store, StoreError, Writer};
use crate::sys::launch_dir::{LaunchDirError, WrapperRoot, private_dir};
use crate::sys::program;
use crate::sys::systemd::Manager;
use crate::sys::{OpenProcess, Sys};
use acp_shared::conn::{Listener, TlsListener};
use acp_shared::identity::Identity;
use acp_shared::ids::LeaseId;
use acp_shared::log_limit::RefusalLog;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// File name of the socket inside the state directory.
pub const SOCKET_FILE: &str = "supervisor.sock";
/// File name of the exclusive lock inside the state directory.
pub(crate) const LOCK_FILE: &str = "lock";
/// Capacity of the owner's event queue; senders wait while it is full.
const EVENTS_QUEUED_MAX: usize = 4096;
/// Maximum number of concurrent process inspections for clients.
const INSPECTIONS_MAX: usize = 2;

/// Reason why the supervisor cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Another supervisor holds the state directory.
    #[error("another supervisor uses {state_dir}{who}; stop it first, or choose another --state-dir")]
    Locked {
        /// The state directory.
        state_dir: PathBuf,
        /// Pid of the lock holder as text, if known.
        who: String,
    },
    /// A file or directory cannot be created or read.
    #[error("cannot use {path}")]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The lease store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration is not valid on this machine.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no usable wrapper.
    #[error(transparent)]
    Wrapper(#[from] LaunchDirError),
    /// Gateways on other machines cannot be served.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The system lacks a required facility, or cannot be inspected.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// The state handed over by an earlier program of this process is invalid.
    #[error("cannot resume from the earlier program")]
    Resume(#[from] crate::owner::handover::ResumeError),
    /// Notifications to the service manager cannot be set up.
    #[error("cannot use the environment variables of the service manager")]
    Manager(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

/// Options of `serve`.
#[derive(Debug, Clone)]
pub struct Options {
    /// The state directory.
    pub state_dir: PathBuf,
    /// Path of the socket; by default in the state directory.
    pub socket: Option<PathBuf>,
    /// Path of the wrapper; by default the one that was installed with this program.
    pub wrapper: Option<PathBuf>,
    /// The configuration.
    pub config: Config,
}

fn file<T>(path: &Path, result: io::Result<T>) -> Result<T, AppError> {
    result.map_err(|source| AppError::File { path: path.to_owned(), source })
}

/// Maximum wait for the lock: a killed supervisor holds it until its last thread has ended, and until a child
/// that it was just forking has called exec.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Takes the exclusive lock of a state directory. It is held while the file is open, and released when the
/// process dies.
fn lock(state_dir: &Path) -> Result<File, AppError> {
    let path = state_dir.join(LOCK_FILE);
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let held = file(&path, open)?;
    let until = std::time::Instant::now() + LOCK_WAIT;
    let locked = loop {
        match rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if std::time::Instant::now() < until => {
                std::thread::sleep(LOCK_POLL);
            }
            other => break other,
        }
    };
    match locked {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = std::fs::read_to_string(&path).unwrap_or_default();
            let who = if pid.trim().is_empty() { String::new() } else { format!(" (pid {})", pid.trim()) };
            return Err(AppError::Locked { state_dir: state_dir.to_owned(), who });
        }
        Err(errno) => return file(&path, Err(errno.into())),
    }
    file(&path, held.set_len(0))?;
    file(&path, io::Write::write_all(&mut &held, format!("{}\n", std::process::id()).as_bytes()))?;
    Ok(held)
}

/// Returns the path of the wrapper that was installed with this program.
pub(crate) fn default_wrapper() -> PathBuf {
    acp_shared::service::wrapper_of(&crate::sys::program::own())
}

/// Raises the soft descriptor limit to the hard one: each lease uses about eight descriptors. Returns the
/// previous limit, which wrappers and adapters get.
fn raise_descriptor_limit() -> rustix::process::Rlimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    now
}

/// Returns the open files limit for wrappers. After a handover, an earlier program has already raised the own
/// limit.
fn descriptors(handover: Option<&Handover>) -> rustix::process::Rlimit {
    let Some(handover) = handover else { return raise_descriptor_limit() };
    let (current, maximum) = handover.head.descriptors;
    rustix::process::Rlimit { current, maximum }
}

/// Parts of the supervisor that are constant until this program ends.
struct SupervisorParts {
    context: Arc<Context>,
    policy: AccessPolicy,
    /// Address for gateways on other machines, if one is configured.
    remote: Option<RemoteAddress>,
    /// Source of connection ids.
    links: Arc<AtomicU64>,
    program: PathBuf,
}

/// Listener, signals and service manager, set up but not yet served.
struct ServerEndpoints {
    accepts: Listener,
    signals: TerminationSignals,
    manager: Manager,
}

impl SupervisorParts {
    /// Sets up listener, signals and service manager.
    fn set_up_endpoints(&self, listener: io::Result<OwnedFd>) -> Result<ServerEndpoints, AppError> {
        let accepts = listener.and_then(Listener::inherited);
        Ok(ServerEndpoints {
            accepts: file(&self.context.state_dir.join(SOCKET_FILE), accepts)?,
            signals: TerminationSignals::new().map_err(AppError::Signals)?,
            manager: Manager::from_env().map_err(AppError::Manager)?,
        })
    }

    /// Starts to accept connections and signals.
    fn start_serving(
        &self,
        owner: &mut Owner,
        inheritable: InheritableResources,
        endpoints: ServerEndpoints,
        remote_listener: Option<TlsListener>,
    ) {
        let ServerEndpoints { accepts, signals, manager } = endpoints;
        let server =
            server::serve(Arc::clone(&self.context), accepts, Arc::clone(&self.links), self.policy.clone());
        let signals = signals.watch(Arc::clone(&self.context));
        let mut server_tasks = vec![tokio::spawn(server), tokio::spawn(signals)];
        if let Some(remote) = self.remote.clone() {
            let (context, links) = (Arc::clone(&self.context), Arc::clone(&self.links));
            server_tasks.push(tokio::spawn(remote::serve(context, remote, remote_listener, links)));
        }
        owner.manager = manager;
        let read_only = self.context.store.read_only().is_some();
        owner.manager.notify(if read_only { "READY=1\nSTATUS=read-only" } else { "READY=1\nSTATUS=serving" });
        owner.set_handover_resources(HandoverResources {
            inheritable,
            server_tasks,
            program: self.program.clone(),
            args: without_handover_args(std::env::args_os().skip(1)),
        });
    }

    /// Resumes an owner from its exported state.
    fn import(&self, imported: ImportedState, endpoints: ServerEndpoints) -> Result<Owner, AppError> {
        let imported = Owner::import(&self.context, self.policy.clone(), imported);
        let (mut owner, inheritable) = file(&self.context.state_dir, imported)?;
        self.start_serving(&mut owner, inheritable, endpoints, None);
        Ok(owner)
    }

    /// Starts an owner with the leases of the store.
    async fn start_from_store(
        &self,
        AcquiredResources { lock, socket }: AcquiredResources,
        mut loaded: Loaded,
        mut warnings: Vec<String>,
        ready: impl FnOnce(&Path),
    ) -> Result<Owner, AppError> {
        let context = &self.context;
        if let Some(why) = context.store.read_only() {
            tracing::error!(why, "lease store read-only; nothing is signalled or started");
        } else {
            warnings.extend(quarantine_and_clean_up(context, &mut loaded));
            let manager = Manager::from_env().map_err(AppError::Manager)?;
            manager.notify("STATUS=checking leases of an earlier supervisor");
            if let Err(error) = reap_at_start(context, &mut loaded.leases).await {
                tracing::error!(%error, "reaping leases of earlier supervisor failed; retrying");
                warnings.push(format!("leases of an earlier supervisor are not checked yet: {error}"));
            }
            remove_empty_cgroups(context, &loaded.leases);
        }
        let (leases, installations) = (loaded.leases, loaded.installations);
        let mut owner = Owner::new(Arc::clone(context), self.policy.clone(), leases, installations, warnings);
        let socket = file(&socket, Socket::open(socket.clone(), &context.config, &self.policy))?;
        let listener = file(&socket.path, socket.listener.descriptor())?;
        let remote_listener = match &self.remote {
            Some(remote) => remote.bind_at_start().await?,
            None => None,
        };
        let inheritable = InheritableResources { lock: lock.into(), listener, to_remove: socket.to_remove() };
        tracing::info!(
            socket = %socket.path.display(),
            pid = context.me.pid,
            containment = context.containment.rung.as_str(),
            "supervisor ready"
        );
        let endpoints = self.set_up_endpoints(inheritable.listener.try_clone())?;
        self.start_serving(&mut owner, inheritable, endpoints, remote_listener);
        ready(&socket.path);
        Ok(owner)
    }

    /// Runs the owner until the supervisor ends, also across failed upgrades. Returns the process-level
    /// resources.
    async fn run_owner(
        &self,
        mut owner: Owner,
        mut queue: mpsc::Receiver<Event>,
    ) -> Result<Option<InheritableResources>, AppError> {
        let watches = self.context.store.read_only().is_none();
        let strays = watches.then(|| tokio::spawn(orphans::watch_orphans(Arc::clone(&self.context))));
        let inheritable = loop {
            // A task of its own runs on the threads that read and write messages; the main thread would have to be woken for each.
            let running = tokio::spawn(async move { (owner.run(&mut queue).await, queue) });
            let exit;
            (exit, queue) =
                running.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            match exit {
                OwnerExit::Ended(inheritable) => break inheritable,
                OwnerExit::Exported(exported) => {
                    let imported = exported.exec(&self.context).await;
                    let endpoints = self.set_up_endpoints(imported.handover.head.listener.try_clone())?;
                    owner = self.import(imported, endpoints)?;
                }
            }
        };
        if let Some(task) = strays {
            task.abort();
            drop(task.await);
        }
        Ok(inheritable)
    }
}

/// Runs a supervisor until it is asked to end. It starts from the store, or from the state that an earlier
/// program of this process handed over (H14). The handover is taken out of `handover` only when no later step
/// can fail: until then it can be given back. `ready` is called with the socket's path when the first program
/// accepts connections.
///
/// [`AppError`], before any process was started.
pub(crate) async fn serve(
    options: Options,
    handover: &mut Option<Handover>,
    ready: impl FnOnce(&Path),
) -> Result<(), AppError> {
    let program = program::own();
    let setup = set_up(options, handover.as_ref())?;
    let OwnerSetup { context, policy, remote, queue, loaded, warnings, writer, fresh } = setup;
    let links = Arc::new(AtomicU64::new(1));
    let parts = SupervisorParts { context: Arc::clone(&context), policy, remote, links, program };
    let owner = match (handover.as_ref(), fresh) {
        (Some(pending), _) => {
            let endpoints = parts.set_up_endpoints(pending.head.listener.try_clone())?;
            let (from, leases) = (&pending.head.version, pending.living_leases());
            tracing::info!(from, leases, "taking over from previous program");
            let Some(handover) = handover.take() else { return Ok(()) };
            let mut owner = parts.import(handover.into_imported_state(loaded.leases), endpoints)?;
            // The warnings of the earlier program are already in the handover.
            let new = |warning: &String| !owner.warnings.contains(warning);
            let new: Vec<String> = warnings.into_iter().filter(new).collect();
            owner.warnings.extend(new);
            owner.resume_failed_start_cleanup();
            owner
        }
        (None, Some(fresh)) => parts.start_from_store(fresh, loaded, warnings, ready).await?,
        (None, None) => return Ok(()),
    };
    let inheritable = parts.run_owner(owner, queue).await?;
    drop(
        inheritable.as_ref().and_then(|inheritable| inheritable.to_remove.as_ref()).map(std::fs::remove_file),
    );
    context.finish_disk_work().await;
    remove_cgroup_subtree(&context);
    // After this, all posted writes are on disk, in one file.
    let finished = context.store.finish().await;
    if finished.is_ok() {
        writer.finish();
    }
    drop(inheritable);
    Ok(finished?)
}

/// Resources taken by the first program of this process, and handed over to later ones.
struct AcquiredResources {
    lock: File,
    socket: PathBuf,
}

/// Everything that is set up before the owner.
struct OwnerSetup {
    context: Arc<Context>,
    policy: AccessPolicy,
    remote: Option<RemoteAddress>,
    queue: mpsc::Receiver<Event>,
    loaded: Loaded,
    warnings: Vec<String>,
    writer: Writer,
    fresh: Option<AcquiredResources>,
}

/// Takes the state directory, unless an earlier program of this process holds it, and prepares it.
fn set_up(options: Options, handover: Option<&Handover>) -> Result<OwnerSetup, AppError> {
    let tenants = tenants(&options.config, rustix::process::geteuid().as_raw())?;
    let state_dir = options.state_dir.clone();
    file(&state_dir, private_dir(&state_dir))?;
    let state_dir = file(&state_dir, std::fs::canonicalize(&state_dir))?;
    let fresh = match handover {
        Some(_) => None,
        None => Some(AcquiredResources {
            lock: lock(&state_dir)?,
            socket: options.socket.clone().unwrap_or_else(|| state_dir.join(SOCKET_FILE)),
        }),
    };
    let (remote, host) = RemoteAddress::load(&options.config)?.unzip();
    let policy = policy(&options.config, &tenants, host, &state_dir)?;
    let (context, queue, loaded, warnings, writer) = prepare(options, state_dir, tenants, handover)?;
    Ok(OwnerSetup { context, policy, remote, queue, loaded, warnings, writer, fresh })
}

type PreparedContext = (Arc<Context>, mpsc::Receiver<Event>, Loaded, Vec<String>, Writer);

/// Probes the machine, opens the store and creates the shared context.
fn prepare(
    options: Options,
    state_dir: PathBuf,
    tenants: Vec<Tenant>,
    handover: Option<&Handover>,
) -> Result<PreparedContext, AppError> {
    let descriptors = descriptors(handover);
    let spool_dir = state_dir.join("spool");
    file(&spool_dir, private_dir(&spool_dir))?;
    let root = options.config.wrapper_root.clone().unwrap_or_else(|| state_dir.join("wrappers"));
    let wrapper_root = WrapperRoot::prepare(&root, &options.wrapper.unwrap_or_else(default_wrapper))?;
    let (store, writer, mut loaded) = Store::open(&state_dir)?;
    let mut startup = match handover {
        Some(handover) => {
            environment::resume_after_exec(handover.head.abilities, handover.head.holding.clone())
        }
        None => environment::probe_and_choose(&options.config, &state_dir, &wrapper_root),
    }?;
    let unlimited = environment::limits_without_effect(
        &startup.sys,
        startup.containment.rung,
        &startup.containment.subtree,
        &startup.abilities,
        &options.config,
    );
    startup.warnings.extend(unlimited);
    for warning in &startup.warnings {
        tracing::warn!(%warning, "startup warning");
    }
    startup.warnings.append(&mut loaded.warnings);
    let spools = SpoolDir::new(&spool_dir, options.config.spool_total_bytes_max);
    let nobodys = spools.scan(loaded.leases.iter().map(|l| (l.gateway, l.lease_id)));
    if handover.is_none() && store.read_only().is_none() {
        startup.warnings.extend(remove_unknown_spools(&loaded, &nobodys));
    }
    let logs = SessionLogs::new(&state_dir.join("logs"), options.config.stderr_bytes_max);
    if handover.is_none() && store.read_only().is_none() && !loaded.fresh && !loaded.unreadable {
        logs.keep_only(loaded.leases.iter().map(|lease| (lease.gateway, &lease.session_key)));
    }
    let (events, queue) = mpsc::channel(EVENTS_QUEUED_MAX);
    let context = Arc::new(Context {
        own_ancestry: startup.sys.own_ancestry(),
        sys: startup.sys,
        abilities: startup.abilities,
        containment: startup.containment,
        store,
        config: options.config,
        tenants,
        wrapper_root,
        state_dir,
        me: startup.me,
        scope: startup.scope,
        roots: Mutex::new(HashSet::new()),
        budgets: Mutex::default(),
        spools,
        logs,
        children: Mutex::default(),
        descriptors,
        refusals: RefusalLog::default(),
        events,
        inspections: Semaphore::new(INSPECTIONS_MAX),
        started: handover.map_or_else(Instant::now, Handover::started),
        wall_at_start_ms: handover.and_then(|h| h.head.wall_at_start_ms).unwrap_or_else(wall_ms),
    });
    Ok((context, queue, loaded, startup.warnings, writer))
}

/// Removes spools of leases that are not in the store. If the store may have lost leases by mistake, the
/// spools are kept and a warning is returned.
fn remove_unknown_spools(loaded: &Loaded, nobodys: &[PathBuf]) -> Option<String> {
    if nobodys.is_empty() {
        return None;
    }
    if loaded.fresh || loaded.unreadable {
        return Some(format!(
            "output of {} leases is kept that are not in the lease store: {}; the next start removes it",
            nobodys.len(),
            nobodys.first().and_then(|path| path.parent()).unwrap_or(Path::new("")).display()
        ));
    }
    tracing::info!(files = nobodys.len(), "removing spools of unknown leases");
    for path in nobodys {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove a spool");
        }
    }
    None
}

/// Marks implausible lease rows as unusable, cleans up launch directories, and returns a warning about
/// unknown ones.
fn quarantine_and_clean_up(context: &Context, loaded: &mut Loaded) -> Vec<String> {
    let own = SupervisorIdentity { scope: &context.scope, ancestry: &context.own_ancestry };
    let now = |pid| context.sys.open(pid).ok()?.record();
    for lease in quarantine::quarantine_invalid(&mut loaded.leases, own, wall_ms(), now) {
        tracing::error!(
            lease_id = %lease.lease_id,
            reason = lease.state_reason,
            "invalid lease record quarantined"
        );
        context.store.post_lease(&lease);
    }
    // A crash may leave launch directories of ended leases behind; they contain environments.
    for lease in loaded.leases.iter().filter(|l| l.state.is_ended() && !l.is_quarantined()) {
        context.wrapper_root.remove(lease.gateway, lease.lease_id);
    }
    context.wrapper_root.remove_helpers();
    context.wrapper_root.remove_empty();
    let known: HashSet<LeaseId> = loaded.leases.iter().map(|l| l.lease_id).collect();
    let forgotten: Vec<String> = context
        .wrapper_root
        .leases()
        .into_iter()
        .filter(|id| !known.contains(id))
        .map(|id| id.to_string())
        .collect();
    if forgotten.is_empty() {
        return Vec::new();
    }
    let how = if loaded.fresh { "a new lease store" } else { "the lease store" };
    let warning = format!(
        "{how} does not contain the leases of {} launch directories; their remaining processes are not \
         signalled, search for them by hand and then remove the directories: {}",
        forgotten.len(),
        forgotten.join(" ")
    );
    tracing::warn!(%warning, "startup warning");
    vec![warning]
}

/// Builds the admission policy. Users that a tenant names are allowed to connect.
fn policy(
    config: &Config,
    tenants: &[Tenant],
    host: Option<Identity>,
    state_dir: &Path,
) -> Result<AccessPolicy, AppError> {
    let secret_file = state_dir.join(SECRET_FILE);
    Ok(AccessPolicy {
        own_uid: rustix::process::geteuid().as_raw(),
        own_gid: rustix::process::getegid().as_raw(),
        host,
        allowed_uids: config
            .allowed_uids
            .iter()
            .copied()
            .chain(tenants.iter().filter_map(|t| t.uid))
            .collect(),
        allowed_gids: config.allowed_gids.clone(),
        admin_gids: config.admin_gids.clone(),
        secret: file(&secret_file, secret::load_or_make(state_dir))?,
        secret_file: secret_file.to_string_lossy().into_owned(),
    })
}

/// Removes the empty cgroups that earlier supervisors of this state directory left for ended leases.
fn remove_empty_cgroups(context: &Context, leases: &[Lease]) {
    let living = leases.iter().filter(|l| !l.state.is_ended()).map(|l| l.lease_id).collect();
    if let Some(tree) = context.sys.groups() {
        tree.remove_empty_groups(&context.containment.subtree, &living);
    }
}

fn remove_cgroup_subtree(context: &Context) {
    if let Some(tree) = context.sys.groups() {
        tree.remove_subtree(&context.containment.subtree);
    }
}

/// Ends the processes that earlier supervisors left behind, and updates their leases.
async fn reap_at_start(context: &Arc<Context>, leases: &mut [Lease]) -> io::Result<()> {
    let mut open: Vec<Lease> = leases.iter().filter(|l| !l.state.is_ended()).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    tracing::info!(leases = open.len(), "reaping leases of earlier supervisor");
    reaper::reap(context, &mut open).await?;
    for lease in &mut open {
        if let Some(end) = context.spools.end(lease.gateway, lease.lease_id) {
            lease.stdout_end = lease.stdout_end.max(end);
            context.store.post_lease(lease);
        }
    }
    for (row, done) in leases.iter_mut().filter(|l| !l.state.is_ended()).zip(open) {
        *row = done;
    }
    Ok(())
}
