//! Who is let in: the owner's part of the handshake. What is decided about it stands in [`crate::core::admit`].

use crate::config::size;
use crate::context::wall_ms;
use crate::core::admit::{Admitted, ClaimedProgress, Living, admit, other_user};
use crate::core::tenant::tenant_of;
use crate::link::{Link, LinkId};
use crate::owner::{Connected, LAST_WORDS, Owner, Who};
use crate::sys::Sys;
use acp_shared::conn::Peer;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{Hello, Home, Marks, Refusal, RefusalCode, Role, Rollback, ToClient, Welcome};
use std::pin::Pin;

/// Admin connections at one time; gateways take none of their places.
const ADMINS_MAX: usize = 64;
/// When a client that found no place may try again, in milliseconds.
const PLACE_RETRY_MS: u64 = 1_000;
/// The longest machine id; systemd's have 33 bytes.
const MACHINE_ID_BYTES_MAX: usize = 256;

/// Why a client is not let in.
#[derive(Debug)]
pub enum Denial {
    /// For a reason that every client understands.
    Refused(Refusal),
    /// Its database went back in time.
    RolledBack(Box<Rollback>),
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Denial {
    /// Code and text.
    pub(crate) const fn refusal(&self) -> &Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::RolledBack(rollback) => &rollback.refusal,
        }
    }

    /// The last message of the connection.
    pub(crate) fn message(self) -> ToClient {
        match self {
            Self::Refused(refusal) => ToClient::Refused(refusal),
            Self::RolledBack(rollback) => ToClient::RolledBack(*rollback),
        }
    }
}

/// Ends when what was learnt of a gateway is on disk, or when waiting for the disk is over.
pub(crate) type OnRecord = Pin<Box<dyn Future<Output = ()> + Send>>;

fn too_many(why: String) -> Refusal {
    Refusal::new(RefusalCode::QuotaExceeded, why).retry_after(PLACE_RETRY_MS)
}

impl Owner {
    /// Lets a client in, or says why not. The welcome is for after what is returned beside it: when it is said, it is on
    /// record whose gateway this is, and a copy of it is told apart whatever befalls the supervisor (H15).
    pub(crate) fn hello(
        &mut self,
        hello: &Hello,
        (version, marks): (u16, Option<Marks>),
        peer: Peer,
        link: Link,
    ) -> Result<(Welcome, Option<OnRecord>), Denial> {
        if self.stopping || self.leaving {
            return Err(Refusal::new(RefusalCode::ShuttingDown, "the supervisor is ending").into());
        }
        match &hello.role {
            Role::Admin => self.policy.admin(peer.uid, peer.gid)?,
            Role::Gateway { .. } => self.policy.gateway(peer.uid, peer.gid)?,
        }
        let (who, epoch, on_record) = match &hello.role {
            Role::Admin => {
                self.policy.admin_knows(peer.uid, peer.gid, hello.secret.as_ref())?;
                let admins = self.links.values().filter(|c| c.who == Who::Admin).count();
                if admins >= ADMINS_MAX {
                    return Err(too_many(format!("{admins} admin connections are open")).into());
                }
                (Who::Admin, 0, None)
            }
            Role::Gateway { instance_id, epoch, home } => {
                let tenant = tenant_of(&self.context.tenants, peer.uid, *instance_id);
                self.policy.gateway_knows(peer.uid, tenant, hello.secret.as_ref())?;
                if home.machine_id.len() > MACHINE_ID_BYTES_MAX {
                    let why = "the machine id is no machine id";
                    return Err(Refusal::new(RefusalCode::BadRequest, why).into());
                }
                let on_record = self.admit_gateway(*instance_id, (*epoch, marks.as_ref()), home, peer)?;
                (Who::Gateway(*instance_id), *epoch, Some(on_record))
            }
        };
        tracing::info!(?who, uid = peer.uid, pid = peer.pid, epoch, "connected");
        // Opened after the peer connected: should its number be another's by now, the connection has ended.
        let process = peer.pid.and_then(|pid| Some((pid, self.context.sys.open(pid).ok()?)));
        self.links.insert(link.id(), Connected { link, who, peer, epoch, version, process });
        let welcome = Welcome {
            version,
            features: Vec::new(),
            pid: self.context.me.pid,
            supervisor_id: self.supervisor_id.clone(),
            credit_bytes: self.context.config.credit_bytes,
        };
        Ok((welcome, on_record))
    }

    /// Refuses a gateway without a record here when too many are connected. Gateways with a record need no check: each
    /// has one connection, and `gateways_per_user_max` bounds the records.
    fn has_room_for_new(&self, uid: u32) -> Result<(), Refusal> {
        let gateways = || self.links.values().filter(|c| c.who != Who::Admin);
        let config = &self.context.config;
        let of_user = gateways().filter(|c| c.peer.uid == uid).count();
        if of_user >= size(config.connections_per_user_max) {
            return Err(too_many(format!(
                "{of_user} gateways of user {uid} are connected, which is the limit (connections_per_user_max)"
            )));
        }
        let all = gateways().count();
        if all >= size(config.connections_max) {
            return Err(too_many(format!(
                "{all} gateways are connected, which is the limit (connections_max)"
            )));
        }
        Ok(())
    }

    fn admit_gateway(
        &mut self,
        gateway: GatewayInstanceId,
        (epoch, marks): (u64, Option<&Marks>),
        home: &Home,
        peer: Peer,
    ) -> Result<OnRecord, Denial> {
        let uid = peer.uid;
        let living = self.links.values().find(|c| c.who == Who::Gateway(gateway));
        let living = living.filter(|c| !c.link.end().is_cancelled()).map(|c| {
            let other = c.process.as_ref().filter(|(pid, _)| Some(*pid) != peer.pid);
            let elsewhere = other.is_some_and(|(_, process)| self.context.sys.holds_number(process));
            Living { epoch: c.epoch, elsewhere }
        });
        let known = self.installations.get(&gateway);
        let acked = if marks.is_some() { self.acked(gateway) } else { Vec::new() };
        let claimed = marks.map(|marks| ClaimedProgress { marks, acked: &acked, now_ms: wall_ms() });
        let admitted = admit(known, living, (gateway, uid), home, epoch, claimed);
        let Admitted { installation, supersedes } = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                if self.context.may_log(uid, "a gateway is not admitted") {
                    tracing::warn!(%gateway, uid, epoch, refusal = refusal.message, "refused");
                }
                if refusal.code == RefusalCode::RolledBack {
                    return Err(Denial::RolledBack(Box::new(self.hold_agents(gateway, refusal))));
                }
                return Err(refusal.into());
            }
        };
        if marks.is_some_and(|marks| marks.accepts_loss) {
            tracing::warn!(%gateway, epoch, event_id = installation.progress.event_id, "loss accepted");
        }
        if known.is_none() {
            // What is known of it may not have been written down; its leases were.
            if self.leases.values().any(|e| e.lease.gateway == gateway && e.lease.owner_uid != uid) {
                if self.context.may_log(uid, "leases of another user") {
                    tracing::warn!(%gateway, uid, "refused: there are leases of another user's under this id");
                }
                return Err(other_user(gateway).into());
            }
            self.has_room_for_new(uid)?;
            self.make_room_for_gateway(uid)?;
        }
        // Also when it is known already: the last time it may not have been written.
        let on_record: OnRecord = Box::pin(self.context.store.record_installation(&installation));
        self.installations.insert(gateway, installation);
        self.detached_at_ms.remove(&gateway);
        self.pending.kept_until_ms.remove(&gateway);
        let old: Vec<LinkId> =
            self.links.iter().filter(|(_, c)| c.who == Who::Gateway(gateway)).map(|(id, _)| *id).collect();
        for id in old {
            // Its unread frames are nobody's any more: the link is no longer known (H5).
            if let Some(connected) = self.links.remove(&id)
                && supersedes
            {
                connected.link.refuse(Refusal::new(
                    RefusalCode::EpochStale,
                    "a newer connection of this gateway took over",
                ));
                // Unread last words delay the end of the old connection no further.
                let end = connected.link.end().clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LAST_WORDS).await;
                    end.cancel();
                });
            }
        }
        Ok(on_record)
    }
}
