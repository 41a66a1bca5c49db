//! Hosts of a cell: connections, cuts, and agents that a host ends as it promised.

use super::CellScheduler;
use crate::sim::gateway::OTHER_HOSTS;
use crate::sim::invariants::{self, violated};
use crate::sim::scheduler::Violation;
use crate::sim::supervisor::GRACE_SECONDS;
use acp_shared::ids::SessionKey;
use std::collections::BTreeMap;

/// Connection of a host.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostLink {
    /// Epoch of the gateway that the supervisor serves, and the highest one that it has seen.
    pub(super) served: Option<u64>,
    pub(super) epoch_seen: u64,
    pub(super) is_cut: bool,
    /// Beginning of the time without a gateway.
    pub(super) away_since_ms: u64,
}

impl CellScheduler<'_> {
    pub(super) fn one_agent_for_a_session(&mut self) -> Result<(), Violation> {
        let mut living = BTreeMap::new();
        for lease in self.stage.host.leases.values().filter(|lease| lease.lives() && lease.agent.is_some()) {
            let session = &lease.spawn.session_key;
            if let Some(other) = living.insert(session.clone(), lease.host) {
                violated!("O7: session {session} has agents on the hosts {other} and {}", lease.host);
            }
        }
        for (session, host) in living {
            let before = self.host_of.insert(session.clone(), host);
            let Some(before) = before.filter(|before| *before != host) else { continue };
            self.reach("a session has moved");
            if self.hosts.get(before).is_some_and(|link| link.served.is_none()) {
                self.reach("a session has moved from a host that is away");
            }
        }
        Ok(())
    }

    /// Looks for sessions that a commit has moved from a host that is away.
    pub(super) fn find_moves(&mut self) {
        const SQL: &str = "SELECT session_key, json_extract(options_json, '$.host') FROM acp_sessions";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?));
        for (session, name) in invariants::query(self.stage.hand.db(), SQL, [], read) {
            let Ok(session) = SessionKey::parse(&session) else { continue };
            let host = name
                .map_or(0, |name| OTHER_HOSTS.iter().position(|host| *host == name).map_or(0, |at| at + 1));
            let before = self.home_of.insert(session.clone(), host).filter(|before| *before != host);
            let Some(before) = before else { continue };
            if self.hosts.get(before).is_some_and(|link| link.served.is_none()) {
                self.leave_behind(&session, before);
            }
        }
    }

    /// Marks the last agent of a session on a host that is away: what the gateway has not read of its output is lost. Earlier ones
    /// had been read whole before the last one started.
    fn leave_behind(&mut self, session: &SessionKey, host: usize) {
        let leases = self.stage.host.leases.values_mut();
        let of_session = leases.filter(|lease| lease.host == host && lease.spawn.session_key == *session);
        if let Some(last) = of_session.filter(|lease| lease.agent.is_some()).max_by_key(|lease| lease.no) {
            last.left_behind = true;
        }
    }

    /// Connects a gateway to a supervisor, which serves the highest epoch that it has seen.
    pub(super) fn connect(&mut self, at: usize, host: usize) -> Result<(), Violation> {
        let epoch = self.stage.serving;
        if self.hosts.get(host).is_some_and(|link| link.served.is_some()) {
            self.reach("a stale gateway is refused");
        }
        self.disconnect(host)?;
        if let Some(link) = self.hosts.get_mut(host) {
            link.served = Some(epoch);
            link.epoch_seen = epoch;
        }
        self.enter(at, host);
        Ok(())
    }

    /// Ends the connection of a host.
    pub(super) fn disconnect(&mut self, host: usize) -> Result<(), Violation> {
        self.stage.host.select(host);
        self.stage.host.hang_up();
        let now_ms = self.stage.now_ms;
        let Some(link) = self.hosts.get_mut(host) else { return Ok(()) };
        let Some(served) = link.served.take() else { return Ok(()) };
        link.away_since_ms = now_ms;
        for node in self.nodes.iter().filter(|node| node.epoch == served) {
            let _context = node.runtime.enter();
            node.ports()?.on(host).wire.lock().down();
        }
        Ok(())
    }

    pub(super) fn cut_host(&mut self, host: usize) -> Result<(), Violation> {
        let Some(link) = self.hosts.get_mut(host) else { return Ok(()) };
        link.is_cut = !link.is_cut;
        self.stage.away = (link.is_cut && self.of_hosts).then_some(host);
        self.disconnect(host)
    }

    /// Ends the agents of hosts that have had no gateway for so long.
    pub(super) fn keep_promises(&mut self) {
        for (host, link) in self.hosts.iter().enumerate() {
            let away_ms = self.stage.now_ms.saturating_sub(link.away_since_ms);
            if link.served.is_none() && away_ms >= GRACE_SECONDS * 1_000 {
                self.stage.host.select(host);
                self.stage.host.keep_promise();
            }
        }
    }
}
