//! Who is let in: the owner's part of the handshake. What is decided about it stands in [`crate::core::admit`].

use crate::core::admit::{Admitted, Living, admit, other_user};
use crate::core::tenant::tenant_of;
use crate::link::{Link, LinkId};
use crate::owner::{Connected, Owner, Who};
use crate::sys::Sys;
use acp_shared::conn::Peer;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{Hello, Home, Refusal, RefusalCode, Role, Welcome};
use std::pin::Pin;

/// The longest machine id; systemd's have 33 bytes.
const MACHINE_ID_BYTES_MAX: usize = 256;

/// Ends when what was learnt of a gateway is on disk, or when waiting for the disk is over.
pub(crate) type OnRecord = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Owner {
    /// Lets a client in, or says why not. The welcome is for after what is returned beside it: when it is said, it is on
    /// record whose gateway this is, and a copy of it is told apart whatever befalls the supervisor (H15).
    pub(crate) fn hello(
        &mut self,
        hello: &Hello,
        version: u16,
        peer: Peer,
        link: Link,
    ) -> Result<(Welcome, Option<OnRecord>), Refusal> {
        if self.stopping || self.leaving {
            return Err(Refusal::new(RefusalCode::ShuttingDown, "the supervisor is ending"));
        }
        // Whom the lists do not name is not looked at any further: that takes time.
        match &hello.role {
            Role::Admin => self.policy.admin(peer.uid, peer.gid)?,
            Role::Gateway { .. } => self.policy.gateway(peer.uid, peer.gid)?,
        }
        if peer.pid.is_some_and(|pid| self.context.is_under_care(pid)) {
            // An agent has its supervisor's user, but must not end or drive what is supervised here (H9).
            return Err(Refusal::new(
                RefusalCode::NotAuthorised,
                "the supervisor does not take orders from the trees in its care",
            ));
        }
        let (who, epoch, on_record) = match &hello.role {
            Role::Admin => {
                self.policy.admin_knows(peer.uid, peer.gid, hello.secret.as_ref())?;
                (Who::Admin, 0, None)
            }
            Role::Gateway { instance_id, epoch, home } => {
                let tenant = tenant_of(&self.context.tenants, peer.uid, *instance_id);
                self.policy.gateway_knows(peer.uid, tenant, hello.secret.as_ref())?;
                if home.machine_id.len() > MACHINE_ID_BYTES_MAX {
                    return Err(Refusal::new(RefusalCode::BadRequest, "the machine id is no machine id"));
                }
                let on_record = self.admit_gateway(*instance_id, *epoch, home, peer)?;
                (Who::Gateway(*instance_id), *epoch, Some(on_record))
            }
        };
        tracing::info!(?who, uid = peer.uid, pid = peer.pid, epoch, "connected");
        // Opened after the peer connected: should its number be another's by now, the connection has ended.
        let process = peer.pid.and_then(|pid| Some((pid, self.context.sys.open(pid).ok()?)));
        self.links.insert(link.id(), Connected { link, who, peer, epoch, process });
        let welcome = Welcome {
            version,
            features: Vec::new(),
            pid: self.context.me.pid,
            supervisor_id: self.supervisor_id.clone(),
            credit_bytes: self.context.config.credit_bytes,
        };
        Ok((welcome, on_record))
    }

    fn admit_gateway(
        &mut self,
        gateway: GatewayInstanceId,
        epoch: u64,
        home: &Home,
        peer: Peer,
    ) -> Result<OnRecord, Refusal> {
        let uid = peer.uid;
        let living = self.links.values().find(|c| c.who == Who::Gateway(gateway));
        let living = living.filter(|c| !c.link.end().is_cancelled()).map(|c| {
            let other = c.process.as_ref().filter(|(pid, _)| Some(*pid) != peer.pid);
            let elsewhere = other.is_some_and(|(_, process)| self.context.sys.holds_number(process));
            Living { epoch: c.epoch, elsewhere }
        });
        let known = self.installations.get(&gateway);
        let Admitted { installation, supersedes } = admit(known, living, gateway, uid, home, epoch)
            .inspect_err(|refusal| {
                if self.context.may_log(uid, "a gateway is not admitted") {
                    tracing::warn!(%gateway, uid, epoch, refusal = refusal.message, "refused");
                }
            })?;
        if known.is_none() {
            // What is known of it may not have been written down; its leases were.
            if self.leases.values().any(|e| e.lease.gateway == gateway && e.lease.owner_uid != uid) {
                if self.context.may_log(uid, "leases of another user") {
                    tracing::warn!(%gateway, uid, "refused: there are leases of another user's under this id");
                }
                return Err(other_user(gateway));
            }
            self.make_room_for_gateway(uid)?;
        }
        // Also when it is known already: the last time it may not have been written.
        let on_record: OnRecord = Box::pin(self.context.store.record_installation(&installation));
        self.installations.insert(gateway, installation);
        self.detached_at_ms.remove(&gateway);
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
            }
        }
        Ok(on_record)
    }
}
