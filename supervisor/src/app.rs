//! `serve`: takes the lock, reaps, listens, and ends in order.

use crate::config::Config;
use crate::context::Context;
use crate::core::admit::Policy;
use crate::core::lease::{Lease, ProcessRecord, Scope};
use crate::handover::{Ground, Handover, Thawing, plain, program};
use crate::launchdir::{LaunchDirError, WrapperRoot, private_dir};
use crate::owner::{Event, Outcome, Owner};
use crate::reaper;
use crate::relay;
use crate::server;
use crate::store::{Loaded, Store, StoreError};
use crate::strays;
use crate::sys::linux::Linux;
use crate::sys::{Abilities, Sys};
use acp_shared::conn::Listener;
use acp_shared::launch::WRAPPER_FILE;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// File name of the socket inside the state directory.
pub const SOCKET_FILE: &str = "supervisor.sock";
const LOCK_FILE: &str = "lock";
/// Events that wait for the owner; who has more to say waits.
const EVENTS_QUEUED_MAX: usize = 4096;
/// Looks at processes for clients that are taken at the same time.
const LOOKS_MAX: usize = 2;
const TICK: Duration = Duration::from_millis(500);

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
    /// What earlier supervisors left cannot be looked at.
    #[error("cannot look at the processes of this machine")]
    Reap(#[source] io::Error),
    /// What an earlier image handed over is not what it should be.
    #[error("cannot go on where the earlier program was")]
    Resume(#[from] crate::handover::ResumeError),
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

fn default_wrapper() -> PathBuf {
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

/// Everything that stays the same until the program ends.
struct House {
    context: Arc<Context>,
    policy: Policy,
    socket: PathBuf,
    socket_mode: u32,
    /// Numbers connections.
    links: Arc<AtomicU64>,
    program: PathBuf,
}

impl House {
    /// Opens the doors: connections and signals come in.
    fn open(&self, lock: OwnedFd, listener: OwnedFd) -> Result<Ground, AppError> {
        let accepts = file(&self.socket, listener.try_clone().and_then(Listener::from_descriptor))?;
        let server = server::serve(Arc::clone(&self.context), accepts, Arc::clone(&self.links));
        let signals = Signals::new().map_err(AppError::Signals)?.watch(Arc::clone(&self.context));
        Ok(Ground {
            lock,
            listener,
            doors: vec![tokio::spawn(server), tokio::spawn(signals)],
            program: self.program.clone(),
            args: plain(std::env::args_os().skip(1)),
        })
    }

    /// Goes on where an owner was frozen.
    fn thaw(&self, thawing: Thawing) -> Result<Owner, AppError> {
        let thawed = Owner::thaw(&self.context, self.policy.clone(), thawing);
        let (mut owner, lock, listener) = file(&self.context.state_dir, thawed)?;
        owner.stand(self.open(lock, listener)?);
        Ok(owner)
    }

    /// Starts with what the store holds.
    async fn found(
        &self,
        lock: File,
        mut loaded: Loaded,
        warnings: Vec<String>,
    ) -> Result<Owner, AppError> {
        reap_at_start(&self.context, &mut loaded.leases).await?;
        let (leases, installations) = (loaded.leases, loaded.installations);
        let mut owner =
            Owner::new(Arc::clone(&self.context), self.policy.clone(), leases, installations, warnings);
        let listener = file(&self.socket, Listener::bind(&self.socket, self.socket_mode))?;
        let listener = file(&self.socket, listener.descriptor())?;
        owner.stand(self.open(lock.into(), listener)?);
        Ok(owner)
    }
}

/// Runs a supervisor until it is asked to end: from what is on disk, or from what an earlier image of this process
/// handed over (H14). `ready` is called with the socket's path when it accepts for the first time.
///
/// # Errors
/// [`AppError`]; nothing was started.
pub(crate) async fn serve(
    options: Options,
    handover: Option<Handover>,
    ready: impl FnOnce(&Path),
) -> Result<(), AppError> {
    let (state_dir, program) = (options.state_dir, program::own());
    file(&state_dir, private_dir(&state_dir))?;
    let state_dir = file(&state_dir, std::fs::canonicalize(&state_dir))?;
    let lock = if handover.is_some() { None } else { Some(lock(&state_dir)?) };
    let descriptors = descriptors(handover.as_ref());
    let around = look_around(handover.as_ref())?;
    let spool_dir = state_dir.join("spool");
    file(&spool_dir, private_dir(&spool_dir))?;
    let root = options.config.wrapper_root.clone().unwrap_or_else(|| state_dir.join("wrappers"));
    let wrapper_root = WrapperRoot::prepare(&root, &options.wrapper.unwrap_or_else(default_wrapper))?;
    let (store, writer, loaded) = Store::open(&state_dir)?;
    let (events, mut queue) = mpsc::channel(EVENTS_QUEUED_MAX);
    let policy = Policy {
        own_uid: rustix::process::geteuid().as_raw(),
        allowed_uids: options.config.allowed_uids.clone(),
        allowed_gids: options.config.allowed_gids.clone(),
        admin_gids: options.config.admin_gids.clone(),
    };
    let context = Arc::new(Context {
        own_line: around.sys.own_line(),
        sys: around.sys,
        abilities: around.abilities,
        store,
        config: options.config,
        wrapper_root,
        state_dir: state_dir.clone(),
        me: around.me,
        scope: around.scope,
        roots: Mutex::new(HashSet::new()),
        budgets: Mutex::default(),
        children: Mutex::new(HashSet::new()),
        descriptors,
        events,
        looks: Semaphore::new(LOOKS_MAX),
        started: handover.as_ref().map_or_else(Instant::now, Handover::started),
    });
    let house = House {
        socket: options.socket.unwrap_or_else(|| state_dir.join(SOCKET_FILE)),
        socket_mode: socket_mode(&policy),
        context: Arc::clone(&context),
        policy,
        links: Arc::new(AtomicU64::new(1)),
        program,
    };
    let owner = match (handover, lock) {
        (Some(handover), _) => {
            let owner = house.thaw(handover.arrived(loaded.leases))?;
            owner.outlast();
            owner
        }
        (None, Some(lock)) => {
            let owner = house.found(lock, loaded, around.warnings).await?;
            ready(&house.socket);
            owner
        }
        (None, None) => return Ok(()),
    };
    run(&house, owner, &mut queue).await?;
    drop(std::fs::remove_file(&house.socket));
    // What was posted is on disk when this is.
    let flushed = context.store.flush().await;
    drop(writer);
    Ok(flushed?)
}

/// Who may reach the socket at all.
fn socket_mode(policy: &Policy) -> u32 {
    let open_to_groups = !policy.allowed_gids.is_empty() || !policy.admin_gids.is_empty();
    if !policy.allowed_uids.is_empty() {
        0o666
    } else if open_to_groups {
        0o660
    } else {
        0o600
    }
}

/// Lives until the end, however often it fails to leave for another program.
async fn run(house: &House, mut owner: Owner, queue: &mut mpsc::Receiver<Event>) -> Result<(), AppError> {
    let context = &house.context;
    let beside = [
        tokio::spawn(strays::watch(Arc::clone(context))),
        tokio::spawn(tick(Arc::clone(context))),
    ];
    let (socket, rung) = (house.socket.display(), context.abilities.rung());
    tracing::info!(%socket, pid = context.me.pid, rung, "ready");
    while let Outcome::Frozen(frozen) = owner.run(queue).await {
        owner = house.thaw(frozen.leave(context).await)?;
    }
    for task in beside {
        task.abort();
        drop(task.await);
    }
    Ok(())
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

async fn tick(context: Arc<Context>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        context.tell(Event::Tick).await;
    }
}

/// Ends what earlier supervisors left behind, and puts their rows in order.
async fn reap_at_start(context: &Arc<Context>, leases: &mut [Lease]) -> Result<(), AppError> {
    let mut open: Vec<Lease> = leases.iter().filter(|l| !l.state.is_ended()).cloned().collect();
    if open.is_empty() {
        return Ok(());
    }
    tracing::info!(leases = open.len(), "looking at what an earlier supervisor left behind");
    reaper::reap(context, &mut open).await.map_err(AppError::Reap)?;
    for lease in &mut open {
        if let Some(end) = relay::spooled_end(&context.spool_dir(), lease.lease_id) {
            lease.stdout_end = lease.stdout_end.max(end);
            context.store.post_lease(lease);
        }
    }
    for (row, done) in leases.iter_mut().filter(|l| !l.state.is_ended()).zip(open) {
        *row = done;
    }
    Ok(())
}
