//! A wrapper in the faked kernel that speaks the real protocol over a real socket, with scripted behaviour.

use crate::kernel::{Kernel, TaskState, TermAction, lock};
use acp_shared::ids::LeaseId;
use acp_shared::launch::{CONTROL_BYTES_MAX, ENV_LEASE_ID, ExitStatus, FromWrapper};
use acp_shared::wire;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixDatagram;

/// Interval of its polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time from SIGTERM to SIGKILL.
const TERM_GRACE: Duration = Duration::from_millis(100);

/// First message of a wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Hello {
    #[default]
    Correct,
    /// Reports this pid as the adapter.
    Adapter(i32),
    /// Reports this pid as the wrapper.
    Wrapper(i32),
    /// Sends nothing.
    Silent,
    /// Exits before the message.
    Exits,
    /// Sends the message after a delay.
    Delayed,
}

/// Behaviour of wrappers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Behavior {
    /// The fork fails.
    pub(crate) cannot_fork: bool,
    /// The child cannot be opened for lack of descriptors.
    pub(crate) no_descriptors: bool,
    pub(crate) hello: Hello,
    /// Ignores SIGTERM and the end of its adapter.
    pub(crate) ignores_stop: bool,
    /// The adapter ignores SIGTERM.
    pub(crate) adapter_ignores_sigterm: bool,
}

struct FakeWrapper {
    kernel: Arc<Mutex<Kernel>>,
    script: Behavior,
    pid: i32,
    lease: LeaseId,
    socket: UnixDatagram,
    adapter: i32,
    adapter_status: Option<ExitStatus>,
}

/// Forks a wrapper for a lease and runs it.
pub(crate) fn start(
    kernel: &Arc<Mutex<Kernel>>,
    script: Behavior,
    command: &Command,
    control: &OwnedFd,
) -> io::Result<i32> {
    if script.cannot_fork {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error()));
    }
    let mut environ = Vec::new();
    let mut lease = None;
    for (name, value) in command.get_envs() {
        let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
        environ.extend_from_slice(format!("{name}={value}\0").as_bytes());
        if name == ENV_LEASE_ID {
            lease = LeaseId::parse(&value).ok();
        }
    }
    let lease = lease.ok_or(io::ErrorKind::InvalidInput)?;
    let socket = std::os::unix::net::UnixDatagram::from(control.try_clone()?);
    socket.set_nonblocking(true)?;
    let socket = UnixDatagram::from_std(socket)?;
    let mut table = lock(kernel);
    let pid = table.fork(crate::kernel::SUPERVISOR, "acp-wrapper");
    table.setsid(pid);
    table.edit(pid, |t| {
        (t.on_term, t.subreaper, t.reaps) = (TermAction::Caught, true, false);
        (t.environ, t.tree) = (environ, Some(lease));
        t.exe = command.get_program().to_string_lossy().into_owned();
    });
    table.owned.insert(lease);
    drop(table);
    let kernel = Arc::clone(kernel);
    let wrapper = FakeWrapper { kernel, script, pid, lease, socket, adapter: 0, adapter_status: None };
    tokio::spawn(wrapper.run());
    Ok(pid)
}

impl FakeWrapper {
    /// Runs until its process dies or its last message is sent. The socket is closed then.
    async fn run(mut self) {
        if self.start().await.is_none() {
            let mut kernel = lock(&self.kernel);
            for pid in kernel.alive(self.lease) {
                kernel.exit(pid, ExitStatus::Signaled(9));
            }
            return;
        }
        while self.is_alive() {
            self.collect();
            let stops = lock(&self.kernel).task(self.pid).caught > 0 || self.is_disconnected();
            if (stops || self.adapter_status.is_some()) && !self.script.ignores_stop {
                return self.clean_up().await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Runs until the adapter runs; `None` if the wrapper failed or was killed.
    async fn start(&mut self) -> Option<()> {
        self.receive().await?;
        let (pid, mut adapter) = (self.pid, 0);
        {
            let mut kernel = lock(&self.kernel);
            if !kernel.is_running(pid) || self.script.hello == Hello::Exits {
                return None;
            }
            adapter += kernel.fork(pid, "acp-wrapper");
            kernel.setpgid(adapter);
            kernel.edit(adapter, |t| t.dies_with_parent = true);
        }
        self.adapter = adapter;
        let hello = |wrapper_pid, adapter_pid| FromWrapper::Hello { wrapper_pid, adapter_pid };
        match self.script.hello {
            Hello::Correct | Hello::Exits => self.send(&hello(pid, adapter)).await?,
            Hello::Delayed => {
                tokio::time::sleep(TERM_GRACE).await;
                self.send(&hello(pid, adapter)).await?;
            }
            Hello::Adapter(other) => self.send(&hello(pid, other)).await?,
            Hello::Wrapper(other) => self.send(&hello(other, adapter)).await?,
            Hello::Silent => {}
        }
        self.receive().await?;
        let unresponsive = self.script.adapter_ignores_sigterm;
        {
            let mut kernel = lock(&self.kernel);
            if !kernel.is_running(pid) {
                return None;
            }
            kernel.edit(adapter, |t| {
                (t.name, t.exe) = ("agent".into(), "/usr/bin/agent".into());
                t.on_term = if unresponsive { TermAction::Ignores } else { TermAction::Dies };
            });
            kernel.releases += 1;
        }
        self.send(&FromWrapper::Running).await
    }

    fn is_alive(&self) -> bool {
        lock(&self.kernel).is_running(self.pid)
    }

    /// True if the supervisor has closed its end.
    fn is_disconnected(&self) -> bool {
        matches!(self.socket.try_recv(&mut [0; 16]), Ok(0))
    }

    async fn receive(&self) -> Option<()> {
        let mut packet = vec![0; CONTROL_BYTES_MAX];
        tokio::select! {
            received = self.socket.recv(&mut packet) => received.ok().filter(|count| *count > 0).map(|_| ()),
            () = self.killed() => None,
        }
    }

    async fn killed(&self) {
        while self.is_alive() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn send(&self, message: &FromWrapper) -> Option<()> {
        let packet = wire::encode(message, CONTROL_BYTES_MAX).ok()?;
        self.socket.send(&packet).await.ok().map(|_| ())
    }

    /// Reaps dead children.
    fn collect(&mut self) {
        let mut kernel = lock(&self.kernel);
        let dead = |t: &&crate::kernel::Task| t.ppid == self.pid && t.state == TaskState::Zombie && !t.traced;
        let dead: Vec<(i32, ExitStatus)> = kernel.tasks().filter(dead).map(|t| (t.pid, t.status)).collect();
        for (pid, status) in dead {
            kernel.reap(pid);
            if pid == self.adapter {
                self.adapter_status = Some(status);
            }
        }
    }

    async fn clean_up(mut self) {
        if let Some(status) = self.adapter_status {
            self.send(&FromWrapper::AdapterExited { status }).await;
        }
        for signal in [acp_supervisor::sys::Signal::Term, acp_supervisor::sys::Signal::Kill] {
            {
                let mut kernel = lock(&self.kernel);
                for pid in kernel.alive(self.lease).into_iter().filter(|pid| *pid != self.pid) {
                    kernel.deliver(pid, signal);
                }
            }
            tokio::time::sleep(TERM_GRACE).await;
            if !self.is_alive() {
                return;
            }
            self.collect();
        }
        let mut survivors = lock(&self.kernel).alive(self.lease);
        survivors.retain(|pid| *pid != self.pid);
        let status = self.adapter_status.unwrap_or(ExitStatus::Unknown);
        self.send(&FromWrapper::Done { status, survivors }).await;
        lock(&self.kernel).exit(self.pid, ExitStatus::Exited(0));
    }
}
