//! `serve`: takes the lock, reaps, listens, and ends in order.

use crate::config::Config;
use crate::context::{Context, wall_ms};
use crate::core::admit::Policy;
use crate::core::lease::{Lease, ProcessRecord, Scope};
use crate::core::load::{self, Own};
use crate::handover::{Ground, Handover, Standing, Thawing, go_back, plain, program};
use crate::launchdir::{LaunchDirError, WrapperRoot, private_dir};
use crate::owner::{Event, Outcome, Owner};
use crate::reaper;
use crate::relay::spools::Spools;
use crate::server;
use crate::socket::Socket;
use crate::store::{Loaded, Store, StoreError, Writer};
use crate::strays;
use crate::sys::linux::Linux;
use crate::sys::{Abilities, OpenProcess, Sys};
use crate::systemd::Manager;
use acp_shared::conn::Listener;
use acp_shared::ids::LeaseId;
use acp_shared::launch::WRAPPER_FILE;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// File name of the socket inside the state directory.
pub const SOCKET_FILE: &str = "supervisor.sock";
/// File name of the exclusive lock inside the state directory.
pub(crate) const LOCK_FILE: &str = "lock";
/// Events that wait for the owner; who has more to say waits.
const EVENTS_QUEUED_MAX: usize = 4096;
/// Looks at processes for clients that are taken at the same time.
const LOOKS_MAX: usize = 2;

/// Why the supervisor does not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Another supervisor holds the state directory.
    #[error("another supervisor runs on {state_dir}{who}; end it first, or choose another --state-dir")]
    Locked {
        /// The state directory.
        state_dir: PathBuf,
        /// Its pid, in words, if it says.
        who: String,
    },
    /// A file or directory cannot be made or read.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The lease store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no usable wrapper.
    #[error(transparent)]
    Wrapper(#[from] LaunchDirError),
    /// The system does not say what a supervisor must know about itself.
    #[error("this system does not say {0}; is /proc mounted?")]
    Blind(&'static str),
    /// What an earlier image handed over is not what it should be.
    #[error("cannot go on where the earlier program was")]
    Resume(#[from] crate::handover::ResumeError),
    /// The service manager cannot be told anything.
    #[error("cannot use what the service manager put into the environment")]
    Manager(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

/// How `serve` was asked to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The state directory.
    pub state_dir: PathBuf,
    /// The socket; by default in the state directory.
    pub socket: Option<PathBuf>,
    /// The wrapper; by default beside this program.
    pub wrapper: Option<PathBuf>,
    /// The configuration.
    pub config: Config,
}

fn file<T>(path: &Path, result: io::Result<T>) -> Result<T, AppError> {
    result.map_err(|source| AppError::File { path: path.to_owned(), source })
}

/// Takes the exclusive lock of a state directory. It is held for as long as the file is open, and a process that
/// dies lets go of it.
fn lock(state_dir: &Path) -> Result<File, AppError> {
    let path = state_dir.join(LOCK_FILE);
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let held = file(&path, open)?;
    match rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
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

/// The wrapper beside this program.
pub(crate) fn default_wrapper() -> PathBuf {
    std::env::current_exe()
        .map_or_else(|_| PathBuf::from(WRAPPER_FILE), |exe| exe.with_file_name(WRAPPER_FILE))
}

/// Each lease holds about eight descriptors: the soft limit is raised to the hard one. Returns the limit as it was,
/// which is what wrappers and adapters get.
fn raise_descriptor_limit() -> rustix::process::Rlimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    now
}

struct Around {
    sys: Arc<Linux>,
    abilities: Abilities,
    me: ProcessRecord,
    scope: Scope,
    warnings: Vec<String>,
}

fn look_around(handover: Option<&Handover>) -> Result<Around, AppError> {
    let sys = Arc::new(Linux::new());
    let mut abilities = sys.probe();
    let scope = sys.here().ok_or(AppError::Blind("its boot id and pid namespace"))?;
    let me = sys.myself().ok_or(AppError::Blind("when this process started"))?;
    if let Some(handover) = handover {
        // The part of the subreaper stays over execve, and so do all children, which are in the handover.
        abilities.subreaper = handover.head.subreaper;
        return Ok(Around { sys, abilities, me, scope, warnings: Vec::new() });
    }
    let mut warnings = Vec::new();
    let children = sys.snapshot().unwrap_or_default().into_iter().filter(|p| p.ppid == me.pid).count();
    if children > 0 {
        // Orphans of strangers would come to us, and could not be told from those of our own trees.
        warnings.push(
            "started with children of another program: orphans of dead wrappers are found by marker only"
                .into(),
        );
    } else {
        abilities.subreaper =
            rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(me.pid)).is_ok();
    }
    if !abilities.pidfs_inode {
        warnings.push("this kernel has no pidfs: identities rest on start time and environment".into());
    }
    Ok(Around { sys, abilities, me, scope, warnings })
}

/// The limit on open files as wrappers get it: an earlier image has raised its own already.
fn descriptors(handover: Option<&Handover>) -> rustix::process::Rlimit {
    let Some(handover) = handover else { return raise_descriptor_limit() };
    let (current, maximum) = handover.head.descriptors;
    rustix::process::Rlimit { current, maximum }
}

/// Everything that stays the same until this image ends.
struct House {
    context: Arc<Context>,
    policy: Policy,
    /// Numbers connections.
    links: Arc<AtomicU64>,
    program: PathBuf,
}

impl House {
    /// Opens the doors: connections and signals come in.
    fn open(&self, owner: &mut Owner, standing: Standing) -> Result<(), AppError> {
        let accepts = standing.listener.try_clone().and_then(Listener::inherited);
        let accepts = file(&self.context.state_dir.join(SOCKET_FILE), accepts)?;
        let server = server::serve(Arc::clone(&self.context), accepts, Arc::clone(&self.links));
        let signals = Signals::new().map_err(AppError::Signals)?.watch(Arc::clone(&self.context));
        owner.manager = Manager::from_env().map_err(AppError::Manager)?;
        let read_only = self.context.store.read_only().is_some();
        owner.manager.say(if read_only { "READY=1\nSTATUS=reading only" } else { "READY=1\nSTATUS=serving" });
        owner.stand(Ground {
            standing,
            doors: vec![tokio::spawn(server), tokio::spawn(signals)],
            program: self.program.clone(),
            args: plain(std::env::args_os().skip(1)),
        });
        Ok(())
    }

    /// Goes on where an owner was frozen.
    fn thaw(&self, thawing: Thawing) -> Result<Owner, AppError> {
        let thawed = Owner::thaw(&self.context, self.policy.clone(), thawing);
        let (mut owner, standing) = file(&self.context.state_dir, thawed)?;
        self.open(&mut owner, standing)?;
        Ok(owner)
    }

    /// Starts with what the store holds.
    async fn found(
        &self,
        lock: File,
        socket: PathBuf,
        (mut loaded, mut warnings): (Loaded, Vec<String>),
        ready: impl FnOnce(&Path),
    ) -> Result<Owner, AppError> {
        let context = &self.context;
        if let Some(why) = context.store.read_only() {
            tracing::error!(why, "nothing is signalled and nothing is started");
        } else {
            warnings.extend(put_in_order(context, &mut loaded));
            let manager = Manager::from_env().map_err(AppError::Manager)?;
            manager.say("STATUS=looking at what an earlier supervisor left behind");
            if let Err(error) = reap_at_start(context, &mut loaded.leases).await {
                tracing::error!(%error, "what an earlier supervisor left behind cannot be looked at; it is tried again");
                warnings.push(format!("leases of an earlier supervisor are not looked at yet: {error}"));
            }
        }
        let (leases, installations) = (loaded.leases, loaded.installations);
        let mut owner = Owner::new(Arc::clone(context), self.policy.clone(), leases, installations, warnings);
        let socket = file(&socket, Socket::open(socket.clone(), &context.config, &self.policy))?;
        let listener = file(&socket.path, socket.listener.descriptor())?;
        let standing = Standing { lock: lock.into(), listener, to_remove: socket.to_remove() };
        tracing::info!(socket = %socket.path.display(), pid = context.me.pid, rung = context.abilities.rung(), "ready");
        self.open(&mut owner, standing)?;
        ready(&socket.path);
        Ok(owner)
    }

    /// Lives until the end, however often it fails to leave for another program. Returns what it stood on.
    async fn live(
        &self,
        mut owner: Owner,
        queue: &mut mpsc::Receiver<Event>,
    ) -> Result<Option<Standing>, AppError> {
        let watches = self.context.store.read_only().is_none();
        let strays = watches.then(|| tokio::spawn(strays::watch(Arc::clone(&self.context))));
        let standing = loop {
            match owner.run(queue).await {
                Outcome::Ended(standing) => break standing,
                Outcome::Frozen(frozen) => owner = self.thaw(frozen.leave(&self.context).await)?,
            }
        };
        if let Some(task) = strays {
            task.abort();
            drop(task.await);
        }
        Ok(standing)
    }
}

/// Runs a supervisor until it is asked to end: from what is on disk, or from what an earlier image of this process
/// handed over (H14). `ready` is called with the socket's path when the first image accepts.
///
/// # Errors
/// [`AppError`]; nothing was started.
pub(crate) async fn serve(
    options: Options,
    handover: Option<Handover>,
    ready: impl FnOnce(&Path),
) -> Result<(), AppError> {
    let (state_dir, program) = (options.state_dir.clone(), program::own());
    file(&state_dir, private_dir(&state_dir))?;
    let state_dir = file(&state_dir, std::fs::canonicalize(&state_dir))?;
    let lock = if handover.is_some() { None } else { Some(lock(&state_dir)?) };
    let socket = options.socket.clone().unwrap_or_else(|| state_dir.join(SOCKET_FILE));
    let policy = policy(&options.config);
    let (context, mut queue, loaded, warnings, writer) =
        match (prepare(options, state_dir, handover.as_ref()), &handover) {
            (Err(error), Some(_)) => return Err(give_back(handover, error)),
            (prepared, _) => prepared?,
        };
    let links = Arc::new(AtomicU64::new(1));
    let house = House { context: Arc::clone(&context), policy, links, program };
    let owner = match (handover, lock) {
        (Some(handover), _) => {
            let mut owner = house.thaw(handover.arrived(loaded.leases))?;
            owner.warnings.extend(warnings);
            owner.outlast();
            owner
        }
        (None, Some(lock)) => house.found(lock, socket, (loaded, warnings), ready).await?,
        (None, None) => return Ok(()),
    };
    let standing = house.live(owner, &mut queue).await?;
    drop(standing.as_ref().and_then(|standing| standing.to_remove.as_ref()).map(std::fs::remove_file));
    // What was posted is on disk when this is.
    let flushed = context.store.flush().await;
    drop((writer, standing));
    Ok(flushed?)
}

/// Has the program before go on, when this one cannot begin.
fn give_back(handover: Option<Handover>, error: AppError) -> AppError {
    if let Some(handover) = handover {
        let failed = go_back(handover, &error);
        tracing::error!(error = %failed, "nor does the program before");
    }
    error
}

fn policy(config: &Config) -> Policy {
    Policy {
        own_uid: rustix::process::geteuid().as_raw(),
        allowed_uids: config.allowed_uids.clone(),
        allowed_gids: config.allowed_gids.clone(),
        admin_gids: config.admin_gids.clone(),
    }
}

type Prepared = (Arc<Context>, mpsc::Receiver<Event>, Loaded, Vec<String>, Writer);

/// Looks around, opens the store and makes what everything else needs.
fn prepare(options: Options, state_dir: PathBuf, handover: Option<&Handover>) -> Result<Prepared, AppError> {
    let descriptors = descriptors(handover);
    let mut around = look_around(handover)?;
    let spool_dir = state_dir.join("spool");
    file(&spool_dir, private_dir(&spool_dir))?;
    let root = options.config.wrapper_root.clone().unwrap_or_else(|| state_dir.join("wrappers"));
    let wrapper_root = WrapperRoot::prepare(&root, &options.wrapper.unwrap_or_else(default_wrapper))?;
    let (store, writer, mut loaded) = Store::open(&state_dir)?;
    around.warnings.append(&mut loaded.warnings);
    let spools = Spools::new(spool_dir, options.config.spool_total_bytes_max);
    spools.count(loaded.leases.iter().map(|l| (l.gateway, l.lease_id)));
    let (events, queue) = mpsc::channel(EVENTS_QUEUED_MAX);
    let context = Arc::new(Context {
        own_line: around.sys.own_line(),
        sys: around.sys,
        abilities: around.abilities,
        store,
        config: options.config,
        wrapper_root,
        state_dir,
        me: around.me,
        scope: around.scope,
        roots: Mutex::new(HashSet::new()),
        budgets: Mutex::default(),
        spools,
        children: Mutex::new(HashSet::new()),
        descriptors,
        events,
        looks: Semaphore::new(LOOKS_MAX),
        started: handover.map_or_else(Instant::now, Handover::started),
    });
    Ok((context, queue, loaded, around.warnings, writer))
}

/// Puts rows out of use that cannot be believed, and says what the rows do not say.
fn put_in_order(context: &Context, loaded: &mut Loaded) -> Vec<String> {
    let own = Own { scope: &context.scope, line: &context.own_line };
    let now = |pid| context.sys.open(pid).ok()?.record();
    for lease in load::settle(&mut loaded.leases, own, wall_ms(), now) {
        tracing::error!(lease_id = %lease.lease_id, reason = lease.state_reason, "a lease");
        context.store.post_lease(&lease);
    }
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
        "{how} does not know the leases of {} launch directories; what may be left of their processes is not \
         signalled, look for it by hand and then remove the directories: {}",
        forgotten.len(),
        forgotten.join(" ")
    );
    tracing::warn!("{warning}");
    vec![warning]
}

/// The signals that end a supervisor. They are blocked and read from a descriptor: one that comes while an image
/// leaves waits for the next one.
struct Signals {
    /// A signalfd, which is read as a pipe is.
    pending: pipe::Receiver,
}

/// Which they are.
fn ending() -> SigSet {
    [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP].into_iter().collect()
}

/// Blocks the signals that end a supervisor, before there is a thread that could take one.
///
/// # Errors
/// [`AppError::Signals`].
pub(crate) fn hold_signals() -> Result<(), AppError> {
    ending().thread_block().map_err(|errno| AppError::Signals(errno.into()))
}

impl Signals {
    fn new() -> io::Result<Self> {
        let made = SignalFd::with_flags(&ending(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { pending: pipe::Receiver::from_owned_fd_unchecked(made.as_fd().try_clone_to_owned()?)? })
    }

    async fn watch(self, context: Arc<Context>) {
        // One signal is one record of this size.
        let mut record = [0; 128];
        while self.pending.readable().await.is_ok() {
            match self.pending.try_read(&mut record) {
                Ok(_) => context.tell(Event::Stop).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::error!(%error, "signals can no longer be received");
                    return;
                }
            }
        }
    }
}

/// Ends what earlier supervisors left behind, and puts their rows in order.
async fn reap_at_start(context: &Arc<Context>, leases: &mut [Lease]) -> io::Result<()> {
    let mut open: Vec<Lease> = leases.iter().filter(|l| !l.state.is_ended()).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    tracing::info!(leases = open.len(), "looking at what an earlier supervisor left behind");
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
