//! One helper process: this program under the wrapper, spoken to over its standard streams.

use super::{FRAMES_VERSION, HelperJob, HelperKey};
use crate::confine::{self, confine};
use crate::context::Context;
use crate::core::tenant::Places;
use crate::handover::program;
use crate::spawn::{SpawnError, Wrapper, fork, release, start_wrapper};
use crate::sys::OpenProcess;
use crate::sys::watch::{Child, Control};
use acp_shared::files::{FilesError, FilesReply};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::{LAUNCH_VERSION, Launch};
use acp_shared::protocol::FRAME_BYTES_MAX;
use acp_shared::wire::{Decoder, encode_frame};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

/// Time for which the wrapper of a killed helper waits for its end: a process in an uninterruptible wait ends only
/// when its file system answers.
const SWEEP_MS: u64 = 3_600_000;
/// After this time the end of a helper is called overdue in the log.
const OVERDUE: Duration = Duration::from_secs(5);
/// The verb of this program that a helper runs.
pub(super) const VERB: &str = "files-helper";

/// A running helper.
#[derive(Debug)]
pub(super) struct Helper {
    /// Name of its launch directory; no lease has this id.
    id: LeaseId,
    gateway: GatewayInstanceId,
    pid: i32,
    child: Child,
    control: Control,
    to: pipe::Sender,
    from: pipe::Receiver,
    decoder: Decoder,
}

impl Helper {
    /// Starts a helper as the user and within the bounds of the tenant.
    pub(super) async fn start(context: Arc<Context>, key: HelperKey) -> Result<Self, FilesError> {
        let (id, gateway) = (LeaseId::mint(), key.customer.gateway);
        let started = Self::try_start(&context, id, key).await;
        if started.is_err() {
            remove(&context, gateway, id).await;
        }
        started.map_err(|error| match error {
            SpawnError::Place { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                FilesError::NotFound
            }
            SpawnError::Place { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                FilesError::Denied
            }
            SpawnError::Exec { program, stage, error } => FilesError::NoHelper {
                message: format!(
                    "{program} ({stage}: {error}); the user that agents run as must be able to execute it"
                ),
            },
            error => FilesError::NoHelper { message: error.refusal().message },
        })
    }

    async fn try_start(context: &Arc<Context>, id: LeaseId, key: HelperKey) -> Result<Self, SpawnError> {
        let places = Places { cwd: None, roots: key.roots };
        let confined = confine(context, key.customer, confine::Start { env: Vec::new(), places }).await?;
        let program = program::own().to_string_lossy().into_owned();
        let launch = Launch {
            version: LAUNCH_VERSION,
            lease_id: id,
            gateway_instance_id: key.customer.gateway,
            argv: vec![program.clone(), VERB.to_owned(), FRAMES_VERSION.to_string()],
            env: Vec::new(),
            cwd: "/".to_owned(),
            term_grace_ms: 0,
            sweep_ms: SWEEP_MS,
            confine: confined.confine,
        };
        let cannot = |source| SpawnError::Io { what: "make the pipes of a file helper", source };
        let (stdio, to, from) = streams().map_err(cannot)?;
        let root = context.wrapper_root.helpers();
        let Wrapper { child, control, .. } = start_wrapper(context, root, launch, None).await?;
        let within = Duration::from_millis(context.config.spawn_ms);
        let steps = async {
            let bound = fork(context, &child, &control, &stdio).await?;
            context.add_root(bound.wrapper.pid);
            release(context, &child, &control, &program).await?;
            Ok(bound.adapter.pid)
        };
        let pid = tokio::time::timeout(within, steps).await.unwrap_or(Err(SpawnError::Timeout));
        let (pid, failed) = match pid {
            Ok(pid) => (pid, None),
            Err(error) => (child.handle().pid(), Some(error)),
        };
        let decoder = Decoder::new(FRAME_BYTES_MAX);
        let helper = Self { id, gateway: key.customer.gateway, pid, child, control, to, from, decoder };
        match failed {
            None => Ok(helper),
            Some(error) => {
                tokio::spawn(helper.end(Arc::clone(context)));
                Err(error)
            }
        }
    }

    /// Pid of the helper, for logs.
    pub(super) const fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a job and waits for its answer. Not safe to cancel: the helper is of no use afterwards.
    ///
    /// # Errors
    /// The helper has ended, or does not speak this version.
    pub(super) async fn exchange(&mut self, job: &HelperJob) -> io::Result<Result<FilesReply, FilesError>> {
        let frame = encode_frame(job, FRAME_BYTES_MAX).map_err(io::Error::other)?;
        self.to.write_all(&frame).await?;
        let mut block = vec![0; 64 * 1024];
        loop {
            if let Some(answer) = self.decoder.pop().map_err(io::Error::other)? {
                return Ok(answer);
            }
            let count = self.from.read(&mut block).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.decoder.push(block.get(..count).unwrap_or_default());
        }
    }

    /// Ends the helper: its pipes and its control socket are closed, upon which the wrapper kills it. Returns when it is gone.
    pub(super) async fn end(self, context: Arc<Context>) {
        let Self { id, gateway, pid, mut child, control, to, from, .. } = self;
        drop((control, to, from));
        let wrapper = child.handle().pid();
        if tokio::time::timeout(OVERDUE, child.ended()).await.is_err() {
            tracing::error!(pid, wrapper, "file helper does not end; its file system does not answer");
            child.ended().await;
        }
        context.forget_child(wrapper);
        context.remove_root(wrapper);
        remove(&context, gateway, id).await;
    }
}

/// Removes the launch directory.
async fn remove(context: &Context, gateway: GatewayInstanceId, id: LeaseId) {
    let root = context.wrapper_root.helpers();
    let removed = context.wrapper_root.disk().run(move || root.remove(gateway, id)).await;
    if let Err(error) = removed {
        tracing::debug!(%error, "the launch directory of a file helper stays until the next start");
    }
}

/// Standard streams of a helper, and the supervisor's ends of the first two.
fn streams() -> io::Result<([OwnedFd; 3], pipe::Sender, pipe::Receiver)> {
    let pair = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(io::Error::from);
    let ((in_read, in_write), (out_read, out_write)) = (pair()?, pair()?);
    let nothing = OwnedFd::from(std::fs::OpenOptions::new().write(true).open("/dev/null")?);
    let (to, from) = (pipe::Sender::from_owned_fd(in_write)?, pipe::Receiver::from_owned_fd(out_read)?);
    Ok(([in_read, out_write, nothing], to, from))
}
