//! Owner of the lease table and of the connections. Each [`Event`] is one input of its loop. The owner never
//! blocks: work is sent to the tasks of leases and relays, and their results come back as events.

pub(crate) mod admission;
pub(crate) mod gateway_progress;
pub(crate) mod handover;
pub(crate) mod lease_entry;
pub(crate) mod maintenance;
pub(crate) mod requests;

use crate::context::Context;
use crate::context::event::{Denial, Event};
use crate::core::admission::{AccessPolicy, ClientUser, Installation};
use crate::core::backoff::{self, AgentKey, CrashBackoff, RunOutcome};
use crate::core::deadlines::Absence;
use crate::core::lease::Lease;
use crate::core::verify::SignalGuard;
use crate::files::FileQueues;
use crate::lease::task::LeaseCmd;
use crate::owner::gateway_progress::PendingProgress;
use crate::owner::handover::{ExportedState, HandoverResources, InheritableResources, Upgrade};
use crate::owner::lease_entry::LeaseEntry;
use crate::relay::connection::{ConnectionHandle, ConnectionId, Responder};
use crate::relay::{self, Relay};
use crate::sys::linux::ProcessHandle;
use crate::sys::systemd::Manager;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{
    LastUpgrade, LeaseState, Notice, Refusal, RefusalCode, Reply, Request, ToClient, VERSION_MARKS,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Gateway(GatewayInstanceId),
    Admin,
}

impl ClientKind {
    /// Returns the gateway; `None` for an admin, who may see the leases of all gateways.
    pub(crate) const fn gateway(self) -> Option<GatewayInstanceId> {
        match self {
            Self::Gateway(gateway) => Some(gateway),
            Self::Admin => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConnectedClient {
    pub(crate) link: ConnectionHandle,
    pub(crate) who: ClientKind,
    /// User at the time of connecting.
    pub(crate) user: ClientUser,
    pub(crate) epoch: u64,
    /// Negotiated protocol version.
    pub(crate) version: u16,
    /// Process of the client, if the kernel reports it.
    pub(crate) process: Option<(i32, Arc<ProcessHandle>)>,
}

/// Maximum time for connections to read the last message.
pub(crate) const LAST_MESSAGES_WAIT: Duration = Duration::from_secs(1);
/// Sentinel deadline: the lease task has taken over closing, and the owner does nothing more.
pub(crate) const CLOSE_SENT: u64 = u64::MAX;
/// Time that an agent's end waits for its terminals beyond their own graces, in milliseconds.
pub(crate) const TERMINALS_SLACK_MS: u64 = 1_000;

/// Owner of the lease table and of the connections.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) context: Arc<Context>,
    pub(crate) supervisor_id: String,
    pub(crate) policy: AccessPolicy,
    pub(crate) leases: BTreeMap<LeaseId, LeaseEntry>,
    pub(crate) links: HashMap<ConnectionId, ConnectedClient>,
    pub(crate) installations: HashMap<GatewayInstanceId, Installation>,
    /// Gateways that have leases and no connection, and remote cells that have sent no request on theirs.
    pub(crate) absences: HashMap<GatewayInstanceId, Absence>,
    /// Suspended time of the machine since its boot, up to the part counted in `absences`.
    pub(crate) suspended_ms: u64,
    pub(crate) pending: PendingProgress,
    pub(crate) stopping: bool,
    pub(crate) hurried: bool,
    /// Time of the next sweep over leases without a task.
    pub(crate) sweep_at_ms: u64,
    /// Time of the last sweep, milliseconds since the Unix epoch.
    pub(crate) swept_at_ms: Option<u64>,
    pub(crate) sweeping: Arc<AtomicBool>,
    /// Time of the next wake-up, at the first deadline; `None` without deadlines, 0 to recompute them now.
    pub(crate) wake_at_ms: Option<u64>,
    pub(crate) manager: Manager,
    /// Queues of file requests.
    pub(crate) files: FileQueues,
    pub(crate) warnings: Vec<String>,
    /// Restart delays of agents that crashed recently.
    pub(crate) backoff: CrashBackoff,
    /// Process-level resources, needed for a handover.
    pub(crate) resources: Option<HandoverResources>,
    /// Upgrade in progress; `leaving` is true once no client is admitted.
    pub(crate) upgrade: Option<Upgrade>,
    pub(crate) leaving: bool,
    pub(crate) last_upgrade: Option<LastUpgrade>,
}

/// Reason for the end of the owner's loop.
#[derive(Debug)]
pub(crate) enum OwnerExit {
    /// All trees are gone or reported as survivors. The resources are held until all writes are on disk.
    Ended(Option<InheritableResources>),
    /// The state is exported, for another program to resume.
    Exported(Box<ExportedState>),
}

impl Owner {
    /// Creates an owner from the leases of the store. All of them have ended, or are not controlled by this
    /// supervisor.
    #[must_use]
    pub(crate) fn new(
        context: Arc<Context>,
        policy: AccessPolicy,
        leases: Vec<Lease>,
        installations: Vec<Installation>,
        warnings: Vec<String>,
    ) -> Self {
        let entry = |lease: Lease| (lease.lease_id, LeaseEntry::of(lease));
        Self {
            backoff: CrashBackoff::new(backoff::CrashLimits::of(&context.config)),
            context,
            supervisor_id: uuid::Uuid::now_v7().to_string(),
            policy,
            leases: leases.into_iter().map(entry).collect(),
            links: HashMap::new(),
            installations: installations.into_iter().map(|i| (i.gateway, i)).collect(),
            absences: HashMap::new(),
            suspended_ms: crate::sys::suspended_ms(),
            pending: PendingProgress::default(),
            stopping: false,
            hurried: false,
            sweep_at_ms: 0,
            swept_at_ms: None,
            sweeping: Arc::default(),
            wake_at_ms: Some(0),
            manager: Manager::default(),
            files: FileQueues::default(),
            warnings,
            resources: None,
            upgrade: None,
            leaving: false,
            last_upgrade: None,
        }
    }

    /// Handles events until the supervisor has ended (stop requested, and all trees gone or reported), or
    /// until its state is exported for another program.
    pub(crate) async fn run(mut self, events: &mut mpsc::Receiver<Event>) -> OwnerExit {
        loop {
            let event = match tokio::time::timeout_at(self.wake_at(), events.recv()).await {
                Ok(Some(event)) => Some(event),
                Ok(None) => break,
                Err(_) => None,
            };
            // A flood of events must not delay the deadlines.
            if self.is_due() {
                self.tick();
            }
            if let Some(event) = event {
                self.on(event);
            }
            if self.stopping && self.leases.values().all(|e| e.commands.is_none() || e.stuck) {
                break;
            }
            if self.may_export()
                && let Some(exported) = self.export(events).await
            {
                return OwnerExit::Exported(Box::new(exported));
            }
        }
        drop(std::mem::take(&mut self.files).stop().await);
        let ending = Refusal::new(RefusalCode::ShuttingDown, "the supervisor has ended");
        for connected in self.links.values() {
            connected.link.refuse(ending.clone());
        }
        // The last messages, including the answer to a Shutdown, are written before the program ends.
        let said = all_ended(self.links.values().map(|c| c.link.end().clone()));
        drop(tokio::time::timeout(LAST_MESSAGES_WAIT, said).await);
        let resources = self.resources.take();
        for task in resources.iter().flat_map(|resources| &resources.server_tasks) {
            task.abort();
        }
        OwnerExit::Ended(resources.map(|resources| resources.inheritable))
    }

    pub(crate) fn on(&mut self, event: Event) {
        match event {
            // A client that disconnected in the meantime is handled by its own task.
            Event::Hello { hello, version, marks, peer, link, answer } => {
                match self.hello(&hello, version, marks, peer, link) {
                    Ok((welcome, Some(on_record))) => {
                        tokio::spawn(async move {
                            let recorded = on_record.await;
                            let _ = answer.send(recorded.map(|()| welcome).map_err(Denial::from));
                        });
                    }
                    Ok((welcome, None)) => drop(answer.send(Ok(welcome))),
                    Err(denial) => drop(answer.send(Err(denial))),
                }
            }
            Event::Request { body, epoch, to } => self.request(body, epoch, to),
            Event::Unlinked(id) => self.unlink(id),
            Event::Spawned { lease, result, crashed } => self.spawned(lease, result, crashed),
            Event::Changed { lease, stuck } => self.changed(lease, stuck),
            Event::LostFindings(lost_findings) => self.record_findings(lost_findings),
            Event::Notice { gateway, notice } => self.notify_gateway(gateway, notice),
            Event::TrialFinished(tried) => self.finish_trial(tried),
            Event::Stop => self.stop(),
        }
    }

    fn request(&mut self, body: Request, epoch: Option<u64>, to: Responder) {
        let Some(connected) = self.links.get(&to.link().id()) else {
            to.refuse(RefusalCode::EpochStale, "a newer connection of this gateway replaced this one");
            return;
        };
        let (who, user) = (connected.who, connected.user.clone());
        if let Err(refusal) = self.check_epoch(connected, &body, epoch) {
            to.answer(Err(refusal));
            return;
        }
        if let Some(gateway) = who.gateway() {
            // The absence of a remote cell ends here: this gateway has got its welcome.
            self.absences.remove(&gateway);
        }
        requests::dispatch(self, who, user, body, to);
    }

    /// Refuses requests of an older start of a gateway, and requests without a required epoch.
    fn check_epoch(
        &self,
        connected: &ConnectedClient,
        body: &Request,
        epoch: Option<u64>,
    ) -> Result<(), Refusal> {
        let ClientKind::Gateway(gateway) = connected.who else { return Ok(()) };
        let needs = connected.version >= VERSION_MARKS && body.changes_lease();
        let Some(epoch) = epoch else {
            let why = "a gateway of protocol 2 must send its epoch with requests that change leases";
            return if needs { Err(Refusal::new(RefusalCode::BadRequest, why)) } else { Ok(()) };
        };
        let newest = self.installations.get(&gateway).map_or(connected.epoch, |known| known.epoch_max);
        if epoch < newest {
            let why = format!("epoch {epoch} of gateway {gateway} is outdated: the newest is {newest}");
            return Err(Refusal::new(RefusalCode::EpochStale, why));
        }
        if epoch > connected.epoch {
            let why = format!("epoch {epoch} was not announced: the Hello named {}", connected.epoch);
            return Err(Refusal::new(RefusalCode::BadRequest, why));
        }
        Ok(())
    }

    fn unlink(&mut self, id: ConnectionId) {
        let Some(connected) = self.links.remove(&id) else { return };
        tracing::info!(client = ?connected.who, "client disconnected");
        if let ClientKind::Gateway(gateway) = connected.who {
            self.save_progress(Some(gateway));
            self.detach(gateway, &connected);
        }
    }

    /// Starts the detached grace of a gateway whose connection ended. A gateway without living leases has none, and an
    /// absence that a remote cell has not ended with a request continues.
    ///
    /// The absence of a remote cell begins with its last message: it counts its own from there, while this machine may
    /// notice the cut much later, for example after a suspension.
    pub(crate) fn detach(&mut self, gateway: GatewayInstanceId, connected: &ConnectedClient) {
        if self.leases.values().any(|e| e.lease.gateway == gateway && !e.lease.state.is_ended()) {
            self.count_suspension();
            let ago_ms = connected.user.cell.as_ref().map_or(0, |_| connected.link.silent_ms());
            let grace_ms = self.context.config.detached_grace_ms;
            let absence = Absence::begun(self.context.now_ms(), ago_ms, grace_ms);
            self.absences.entry(gateway).or_insert(absence);
            self.rearm_timer();
        }
    }

    fn spawned(&mut self, lease: Lease, result: Result<Relay, Refusal>, crashed: bool) {
        let id = lease.lease_id;
        self.rearm_timer();
        let now = self.context.now_ms();
        let Some(entry) = self.leases.get_mut(&id) else { return };
        let waiting = std::mem::take(&mut entry.waiting);
        entry.take(lease, now);
        let answer = match result {
            Ok(relay) => {
                entry.relay = Some(relay);
                entry.open_since_ms = now;
                Ok(Reply::Spawned(entry.info()))
            }
            Err(refusal) => {
                entry.commands = None;
                if let Some(agent) = AgentKey::of(&entry.lease)
                    && crashed
                {
                    self.backoff.record_run(now, &agent, RunOutcome::StartFailed);
                }
                if refusal.code == RefusalCode::StoreUnavailable && entry.lease.bound.is_none() {
                    // Nothing was done or recorded: the same spawn may be repeated.
                    self.leases.remove(&id);
                }
                Err(refusal)
            }
        };
        for to in waiting {
            to.answer(answer.clone());
        }
    }

    fn changed(&mut self, lease: Lease, stuck: bool) {
        let (id, gateway, state) = (lease.lease_id, lease.gateway, lease.state);
        let reason = lease.state_reason.clone();
        let Some(entry) = self.leases.get_mut(&id) else { return };
        let found_again = entry.lease.state == LeaseState::Lost
            && matches!(state, LeaseState::Closing | LeaseState::Closed);
        if entry.lease.state.is_ended() && !found_again {
            // An end is final: this change was read before the end.
            return;
        }
        let news = entry.lease.state != state;
        if news
            && entry.lease.state == LeaseState::Open
            && let Some(agent) = AgentKey::of(&lease)
        {
            let now = self.context.now_ms();
            let ran_ms = now.saturating_sub(entry.open_since_ms);
            let asked = entry.close_at_ms.is_some() || self.stopping;
            let outcome = if asked { RunOutcome::Closed { ran_ms } } else { RunOutcome::Died { ran_ms } };
            self.backoff.record_run(now, &agent, outcome);
        }
        entry.take(lease, self.context.now_ms());
        entry.stuck = stuck;
        if state.is_ended() {
            entry.commands = None;
            self.rearm_timer();
        }
        let Some(entry) = self.leases.get(&id) else { return };
        let parent = entry.lease.parent();
        if parent.is_some() && state.is_ended() {
            self.trim_tails(gateway);
        }
        if news {
            if matches!(state, LeaseState::Closing | LeaseState::Closed | LeaseState::Lost) {
                self.files.end(id);
            }
            self.notify_gateway(gateway, Notice::LeaseChanged { lease_id: id, state, reason });
            self.close_terminals(id, "its agent is ending");
        }
        if let Some(parent) = parent {
            self.close_after_terminals(parent);
        }
    }

    /// Sends a notice to a gateway, if it is connected.
    fn notify_gateway(&self, gateway: GatewayInstanceId, notice: Notice) {
        for connected in self.links.values().filter(|c| c.who == ClientKind::Gateway(gateway)) {
            connected.link.send(ToClient::Notice(notice.clone()));
        }
    }

    pub(crate) fn terminals(&self, of: LeaseId) -> impl Iterator<Item = (&LeaseId, &LeaseEntry)> {
        self.leases.iter().filter(move |(_, e)| e.lease.parent() == Some(of) && e.commands.is_some())
    }

    fn close_terminals(&mut self, of: LeaseId, reason: &str) {
        if self.leases.get(&of).is_some_and(LeaseEntry::is_ending) {
            let ids: Vec<LeaseId> = self.terminals(of).map(|(id, _)| *id).collect();
            for id in ids {
                self.close(id, reason);
            }
        }
    }

    /// Ends a lease, its terminals first.
    pub(crate) fn close(&mut self, id: LeaseId, reason: &str) {
        let now = self.context.now_ms();
        let wait =
            self.terminals(id).map(|(_, e)| e.lease.graces.total_ms().saturating_add(TERMINALS_SLACK_MS));
        let until = now.saturating_add(wait.max().unwrap_or(0));
        let Some(entry) = self.leases.get_mut(&id) else { return };
        if entry.is_ending() || entry.commands.is_none() {
            return;
        }
        entry.close_at_ms = Some((until, reason.to_owned()));
        self.rearm_timer();
        self.close_terminals(id, "its agent is ending");
        self.close_after_terminals(id);
    }

    /// Ends an agent after its terminals have ended, or at the deadline.
    pub(crate) fn close_after_terminals(&mut self, id: LeaseId) {
        let now = self.context.now_ms();
        let asked = self.leases.get(&id).and_then(|entry| entry.close_at_ms.clone());
        let Some((until, reason)) = asked.filter(|(until, _)| *until != CLOSE_SENT) else { return };
        if now < until && self.terminals(id).next().is_some() {
            return;
        }
        let Some(entry) = self.leases.get_mut(&id) else { return };
        let command = LeaseCmd::Close { reason };
        // A full queue means that the task has a close command already.
        if let Some(commands) = &entry.commands
            && commands.try_send(command).is_ok()
        {
            entry.close_at_ms = Some((CLOSE_SENT, String::new()));
            self.rearm_timer();
        }
    }

    pub(crate) fn close_all(&mut self, which: impl Fn(&Lease) -> bool, reason: &str) {
        let ids: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(_, e)| e.commands.is_some() && which(&e.lease))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.close(id, reason);
        }
    }

    /// Starts the shutdown; the second call skips the grace periods.
    pub(crate) fn stop(&mut self) {
        if self.stopping && !self.hurried {
            self.hurried = true;
            tracing::warn!("second stop request; grace periods skipped");
            for commands in self.leases.values().filter_map(|e| e.commands.as_ref()) {
                // A full queue means that the lease is ending already.
                drop(commands.try_send(LeaseCmd::Hurry));
            }
            return;
        }
        if !self.stopping {
            tracing::info!("supervisor stopping; closing all leases");
            self.manager.notify("STOPPING=1\nSTATUS=closing all leases");
        }
        self.stopping = true;
        self.save_progress(None);
        self.cancel_upgrade("a shutdown was requested");
        self.close_all(|_| true, "the supervisor ends");
    }

    /// Returns the lease, if this client may see it.
    pub(crate) fn visible_lease(&mut self, who: ClientKind, id: LeaseId) -> Result<&mut LeaseEntry, Refusal> {
        let gateway = who.gateway();
        let may_see = |entry: &&mut LeaseEntry| gateway.is_none_or(|gateway| entry.lease.gateway == gateway);
        let uid = self.uid_of(who);
        let found = self.leases.get_mut(&id);
        if let (Some(entry), Some(gateway)) = (&found, gateway)
            && entry.lease.gateway != gateway
            && self.context.may_log(uid, "a lease of another gateway")
        {
            tracing::warn!(
                lease_id = %id,
                %gateway,
                owner = %entry.lease.gateway,
                "request refused; lease of another gateway"
            );
        }
        found
            .filter(may_see)
            .ok_or_else(|| Refusal::new(RefusalCode::LeaseUnknown, format!("unknown lease {id}")))
    }

    /// Returns the user id of a client, for the log.
    pub(crate) fn uid_of(&self, who: ClientKind) -> u32 {
        self.links
            .values()
            .find(|connected| connected.who == who)
            .map_or(u32::MAX, |connected| connected.user.uid)
    }

    /// Returns the relay of a lease: of living streams, or of kept output.
    pub(crate) fn relay_of(&mut self, who: ClientKind, id: LeaseId) -> Result<Relay, Refusal> {
        let context = Arc::clone(&self.context);
        let entry = self.visible_lease(who, id)?;
        if let Some(relay) = &entry.relay {
            return Ok(relay.clone());
        }
        let ended = |what: &str| Err(Refusal::new(RefusalCode::LeaseEnded, format!("lease {id} {what}")));
        if !entry.lease.state.is_ended() {
            if entry.commands.is_none() {
                return Err(entry.left_over_refusal());
            }
            return Err(
                Refusal::new(RefusalCode::Busy, format!("lease {id} is being spawned")).retry_after(50)
            );
        }
        if entry.lease.released || entry.lease.parent().is_some() {
            return ended("has ended and its streams are no longer stored");
        }
        if entry.lease.exit.is_none() {
            // The exit was not observed, so it is unknown how much input was written. Reporting zero bytes
            // could make a gateway send a prompt twice (H6).
            return ended("lost its streams when its supervisor died; how much input was written is unknown");
        }
        let log = context.logs.log(entry.lease.gateway, &entry.lease.session_key);
        let relay = relay::agent::archive(&entry.lease, context.limits(entry.lease.gateway), log);
        entry.relay = Some(relay.clone());
        Ok(relay)
    }

    /// Returns the processes that must not be signalled for a lease.
    pub(crate) fn guard(&self, lease: &Lease) -> SignalGuard {
        self.context.guard(lease.bound.map(|b| b.wrapper.pid))
    }
}

async fn all_ended(ends: impl Iterator<Item = CancellationToken>) {
    for end in ends {
        end.cancelled().await;
    }
}
