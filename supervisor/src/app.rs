//! `serve`: takes the lock, reaps, listens, and ends in order.

use crate::config::Config;
use crate::context::Context;
use crate::core::admit::Policy;
use crate::core::lease::{Lease, ProcessRecord, Scope};
use crate::launchdir::{LaunchDirError, WrapperRoot, private_dir};
use crate::owner::{Event, Owner};
use crate::reaper;
use crate::relay;
use crate::server;
use crate::store::{Store, StoreError};
use crate::strays;
use crate::sys::linux::Linux;
use crate::sys::{Abilities, Sys};
use acp_shared::conn::Listener;
use acp_shared::launch::WRAPPER_FILE;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
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

struct Ground {
    sys: Arc<Linux>,
    abilities: Abilities,
    me: ProcessRecord,
    scope: Scope,
    warnings: Vec<String>,
}

fn look_around() -> Result<Ground, AppError> {
    let sys = Arc::new(Linux::new());
    let mut abilities = sys.probe();
    let scope = sys.here().ok_or(AppError::Blind("its boot id and pid namespace"))?;
    let me = sys.myself().ok_or(AppError::Blind("when this process started"))?;
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
    Ok(Ground { sys, abilities, me, scope, warnings })
}

/// Runs a supervisor until it is asked to end. `ready` is called once, with the socket's path, when it accepts.
///
/// # Errors
/// [`AppError`]; nothing was started.
pub async fn serve(options: Options, ready: impl FnOnce(&Path)) -> Result<(), AppError> {
    let state_dir = options.state_dir;
    file(&state_dir, private_dir(&state_dir))?;
    let state_dir = file(&state_dir, std::fs::canonicalize(&state_dir))?;
    let lock = lock(&state_dir)?;
    let descriptors = raise_descriptor_limit();
    let ground = look_around()?;
    let spool_dir = state_dir.join("spool");
    file(&spool_dir, private_dir(&spool_dir))?;
    let root = options.config.wrapper_root.clone().unwrap_or_else(|| state_dir.join("wrappers"));
    let wrapper_root = WrapperRoot::prepare(&root, &options.wrapper.unwrap_or_else(default_wrapper))?;
    let (store, writer, mut loaded) = Store::open(&state_dir)?;
    let (events, queue) = mpsc::channel(EVENTS_QUEUED_MAX);
    let policy = Policy {
        own_uid: rustix::process::geteuid().as_raw(),
        allowed_uids: options.config.allowed_uids.clone(),
        allowed_gids: options.config.allowed_gids.clone(),
        admin_gids: options.config.admin_gids.clone(),
    };
    let open_to_groups = !policy.allowed_gids.is_empty() || !policy.admin_gids.is_empty();
    let open_to_users = !policy.allowed_uids.is_empty();
    let context = Arc::new(Context {
        own_line: ground.sys.own_line(),
        sys: ground.sys,
        abilities: ground.abilities,
        store,
        config: options.config,
        wrapper_root,
        state_dir: state_dir.clone(),
        me: ground.me,
        scope: ground.scope,
        roots: Mutex::new(HashSet::new()),
        budgets: Mutex::default(),
        children: Mutex::new(HashSet::new()),
        descriptors,
        events,
        looks: Semaphore::new(LOOKS_MAX),
        started: Instant::now(),
    });
    reap_at_start(&context, &mut loaded.leases).await?;
    let owner =
        Owner::new(Arc::clone(&context), policy, loaded.leases, loaded.installations, ground.warnings);
    let socket = options.socket.unwrap_or_else(|| state_dir.join(SOCKET_FILE));
    let mode = if open_to_users {
        0o666
    } else if open_to_groups {
        0o660
    } else {
        0o600
    };
    let listener = file(&socket, Listener::bind(&socket, mode))?;
    let signals = tokio::spawn(Signals::new().map_err(AppError::Signals)?.watch(Arc::clone(&context)));
    let strays = tokio::spawn(strays::watch(Arc::clone(&context)));
    let ticks = tokio::spawn(tick(Arc::clone(&context)));
    let server = tokio::spawn(server::serve(Arc::clone(&context), listener));
    tracing::info!(socket = %socket.display(), pid = context.me.pid, rung = context.abilities.rung(), "ready");
    ready(&socket);
    owner.run(queue).await;
    for task in [signals, strays, ticks, server] {
        task.abort();
        drop(task.await);
    }
    drop(std::fs::remove_file(&socket));
    // What was posted is on disk when this is.
    let flushed = context.store.flush().await;
    drop((writer, lock));
    Ok(flushed?)
}

/// The signals that end a supervisor.
struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn watch(mut self, context: Arc<Context>) {
        loop {
            let more = tokio::select! {
                more = self.term.recv() => more,
                more = self.int.recv() => more,
                more = self.hangup.recv() => more,
            };
            if more.is_none() {
                return;
            }
            context.tell(Event::Stop).await;
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
