//! Gateways of a cell: one takes it, renews its time, and ends; the server loses answers and fails over.

use super::{CellScheduler, MACHINES, RENEW_MS};
use crate::sim::gateway::{self, SimGateway, SimPorts};
use crate::sim::invariants::{self, violated};
use crate::sim::log_capture;
use crate::sim::scheduler::Violation;
use crate::sim::seeded_bugs::SeededBug;
use crate::sim::server::{LostAnswer, SimSession};
use crate::sim::supervisor::HOSTS;
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_shared::clock::Clock;
use acp_shared::figures;
use acp_store::cell::{Tenure, take_lock};
use acp_store::{StoreError, StoreHealth};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A running gateway.
pub(super) struct SimNode {
    pub(super) epoch: u64,
    pub(super) machine: usize,
    pub(super) session: SimSession,
    pub(super) tenure: Tenure,
    pub(super) renews_at_ms: u64,
    pub(super) is_frozen: bool,
    pub(super) is_cut: bool,
    /// Step of its start.
    pub(super) since: usize,
    pub(super) gateway: SimGateway,
    pub(super) ports: Arc<OnceLock<SimPorts>>,
    pub(super) runtime: Runtime,
}

impl SimNode {
    pub(super) fn ports(&self) -> Result<SimPorts, Violation> {
        self.ports.get().cloned().ok_or_else(|| Violation("a gateway has no interfaces".to_owned()))
    }

    pub(super) fn now_ms(&self) -> u64 {
        let _context = self.runtime.enter();
        self.gateway.clock.now_ms()
    }

    /// Sets its clock, at once for a gateway that was frozen.
    pub(super) fn advance_to(&self, now_ms: u64, at_once: bool) {
        let lag = Duration::from_millis(now_ms.saturating_sub(self.now_ms()));
        self.runtime.block_on(async {
            if at_once { tokio::time::advance(lag).await } else { tokio::time::sleep(lag).await }
        });
    }

    pub(super) fn is_lost(&self) -> bool {
        self.ports.get().is_some_and(|ports| ports.pump.lock().health().is_lost())
    }
}

impl CellScheduler<'_> {
    /// A gateway that stands by asks for the cell, as a start of the product does.
    pub(super) fn take(&mut self) -> Result<(), Violation> {
        let is_free = |machine: &usize| self.nodes.iter().all(|node| node.machine != *machine);
        let Some(machine) = (0..MACHINES).find(is_free) else { return Ok(()) };
        let session = self.server.connect();
        match take_lock(&session) {
            Ok(()) => self.start(machine, session),
            Err(StoreError::CellTaken { .. }) => {
                session.end(false);
                Ok(())
            }
            Err(error) => violated!("the cell cannot be taken: {error}"),
        }
    }

    pub(super) fn start(&mut self, machine: usize, session: SimSession) -> Result<(), Violation> {
        if !self.stage.calm && !self.of_hosts && self.stage.chance.one_in(10) {
            self.lose_answer();
            self.reach("the begin of an owner is lost");
        }
        session.enter();
        session.answer_early(self.stage.plant == Some(SeededBug::ReadBeforeCommit));
        let slot = Arc::new(OnceLock::new());
        let runtime = gateway::runtime(Arc::clone(&slot), self.stage.chance.next())
            .map_err(|error| Violation(error.to_string()))?;
        let dir = self.stage.hand.dir().join(format!("machine-{machine}"));
        let started = runtime.block_on(async {
            let stage = &mut self.stage;
            let (store, pump) = stage.hand.start_in_cell(machine, Clock::at(stage.now_ms))?;
            let (supervisors, wires): (Vec<_>, Vec<_>) = (0..HOSTS)
                .map(|_| {
                    let (supervisor, mut wire) = SimSupervisorConnection::new();
                    wire.features = &[figures::FEATURE];
                    (supervisor, wire)
                })
                .unzip();
            let epoch = store.identity().epoch;
            let ports = slot.get_or_init(|| SimPorts::with_hosts(pump, wires, stage.room.of(epoch)));
            Ok((epoch, gateway::start(&store, ports, &supervisors, stage.config, &dir)))
        });
        self.server.answer_again();
        let (epoch, gateway) = match started {
            Ok(started) => started,
            Err(StoreError::OutcomeUnknown) => return Ok(()),
            Err(error) => violated!("the gateway does not start: {error}"),
        };
        log_capture::note(|| format!("  epoch {epoch} begins on machine {machine}"));
        if epoch <= self.epoch_started {
            violated!("O2: epoch {epoch} after {}", self.epoch_started);
        }
        self.epoch_started = epoch;
        self.stage.tally.lives += 1;
        if !self.nodes.is_empty() {
            self.reach("a former owner runs beside the owner");
        }
        self.nodes.push(SimNode {
            epoch,
            machine,
            session,
            tenure: Tenure::from(Duration::from_millis(self.stage.now_ms)),
            renews_at_ms: self.stage.now_ms + RENEW_MS,
            is_frozen: false,
            is_cut: false,
            since: self.stage.steps,
            gateway,
            ports: slot,
            runtime,
        });
        Ok(())
    }

    /// Renews the time of an owner, as the product's thread does.
    pub(super) fn renew(&mut self, at: usize) -> Result<(), Violation> {
        let now = Duration::from_millis(self.stage.now_ms);
        let Some(node) = self.nodes.get_mut(at).filter(|node| !node.is_lost()) else { return Ok(()) };
        node.renews_at_ms = self.stage.now_ms + RENEW_MS;
        let lost = match node.tenure.left(now) {
            None => "an owner gives up",
            Some(_) if node.is_cut => return Ok(()),
            Some(_) if node.session.renew() => {
                node.tenure.renew(now);
                return Ok(());
            }
            Some(_) => "an owner learns that it is none",
        };
        let _context = node.runtime.enter();
        node.ports()?.pump.lock().health().set(StoreHealth::Lost);
        self.reach(lost);
        Ok(())
    }

    /// Loses the answer to the next commit.
    pub(super) fn lose_answer(&mut self) {
        let (lost, what) = *self
            .stage
            .chance
            .pick(&[
                (LostAnswer::Undone, "a lost commit was not made"),
                (LostAnswer::Done, "a lost commit was made"),
                (LostAnswer::Unproved, "a lost commit is unproved"),
            ])
            .unwrap_or(&(LostAnswer::Done, ""));
        let lost = match self.stage.plant {
            Some(SeededBug::CommitRepeated) => LostAnswer::Done,
            Some(SeededBug::ReadBeforeCommit) => LostAnswer::Unproved,
            _ => lost,
        };
        self.reach(what);
        if lost == LostAnswer::Unproved && !self.server.is_unproved() {
            invariants::keep(self.stage.hand.db());
            self.kept = Some((self.stage.hand.copy(), self.stage.read.clone()));
        }
        let goes_unnoticed = self.stage.chance.one_in(3);
        self.server.lose_answer(lost, goes_unnoticed);
    }

    /// The standby takes the place of the server: what it does not have is gone.
    pub(super) fn fail_over(&mut self) {
        self.server.restart();
        let kept = self.kept.take().filter(|_| self.server.is_unproved());
        let Some((rows, read)) = kept else { return };
        self.stage.hand.replace(&rows);
        self.stage.read = read;
        invariants::bring_back(self.stage.hand.db());
        self.server.forget_unproved();
        self.reach("a failover takes a commit back");
    }

    pub(super) fn kill(&mut self, at: usize) -> Result<(), Violation> {
        let goes_unnoticed = self.stage.chance.one_in(3);
        if goes_unnoticed {
            self.reach("the server keeps the lock of a process that is gone");
        }
        self.end(at, goes_unnoticed)
    }

    /// Ends a gateway at once; the database keeps the last commit.
    pub(super) fn end(&mut self, at: usize, goes_unnoticed: bool) -> Result<(), Violation> {
        let SimNode { epoch, session, gateway, ports, runtime, .. } = self.nodes.remove(at);
        session.end(goes_unnoticed);
        drop(runtime);
        drop(gateway);
        for host in 0..HOSTS {
            if self.hosts.get(host).is_some_and(|link| link.served == Some(epoch)) {
                self.disconnect(host)?;
            }
        }
        log_capture::note(|| format!("  epoch {epoch} has ended"));
        self.stage.serving = epoch;
        self.stage.connected = false;
        self.stage.forsake(ports)
    }
}
