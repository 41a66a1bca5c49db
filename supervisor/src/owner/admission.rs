//! Admission of clients: the owner's part of the handshake. The decision itself is made in
//! [`crate::core::admission`].

use crate::config::size;
use crate::context::event::Denial;
use crate::context::wall_ms;
use crate::core::admission::{
    Admitted, ClaimedProgress, ClientUser, Installation, LiveConnection, admit, home_of, other_user,
};
use crate::core::tenant::tenant_of;
use crate::owner::{ClientKind, ConnectedClient, LAST_MESSAGES_WAIT, Owner};
use crate::relay::connection::ConnectionHandle;
use crate::sys::Sys;
use acp_shared::conn::Peer;
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{Hello, Home, Marks, Refusal, RefusalCode, Role, Welcome};
use acp_shared::{figures, files, private_home};
use std::pin::Pin;

/// Maximum number of admin connections; they are counted separately from gateways.
const ADMINS_MAX: usize = 64;
/// Retry delay for a client that found the connection limit reached, in milliseconds.
const CONNECTION_RETRY_MS: u64 = 1_000;
/// Retry delay for a remote cell whose record could not be written, in milliseconds.
const RECORD_RETRY_MS: u64 = 1_000;

/// Future that completes when the gateway's record is on disk, or when waiting for the disk times out. A remote cell is
/// refused then: a lower epoch could be admitted after a crash of the supervisor.
pub(crate) type RecordedFuture = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>;

fn too_many(why: String) -> Refusal {
    Refusal::new(RefusalCode::QuotaExceeded, why).retry_after(CONNECTION_RETRY_MS)
}

impl Owner {
    /// Admits a client or denies it. Send the welcome only after the returned future completes: then the
    /// gateway's record is durable, and a copy of the gateway is detected even after a crash of the
    /// supervisor (H15).
    pub(crate) fn hello(
        &mut self,
        hello: &Hello,
        version: u16,
        marks: Option<Marks>,
        peer: Peer,
        link: ConnectionHandle,
    ) -> Result<(Welcome, Option<RecordedFuture>), Denial> {
        if self.stopping || self.leaving {
            return Err(Refusal::new(RefusalCode::ShuttingDown, "the supervisor is shutting down").into());
        }
        let (pid, local) = match &peer {
            Peer::Local { pid, uid, gid } => (*pid, Some((*uid, *gid))),
            Peer::Remote { .. } => (None, None),
        };
        let (who, user, epoch, on_record) = match &hello.role {
            Role::Admin => {
                let Some((uid, gid)) = local else {
                    let why = "only clients of this machine may administer this supervisor";
                    return Err(Refusal::new(RefusalCode::NotAuthorised, why).into());
                };
                self.policy.authorize_admin(uid, gid)?;
                self.policy.check_admin_secret(uid, gid, hello.secret.as_ref())?;
                let admins = self.links.values().filter(|c| c.who == ClientKind::Admin).count();
                if admins >= ADMINS_MAX {
                    return Err(too_many(format!("{admins} admin connections are open")).into());
                }
                (ClientKind::Admin, ClientUser { uid, gid, cell: None }, 0, None)
            }
            Role::Gateway { instance_id, epoch, home } => {
                let user = self.gateway_user(*instance_id, &peer, hello)?;
                let home = home_of(&user, home)?;
                let on_record =
                    self.admit_gateway(*instance_id, *epoch, marks.as_ref(), &home, &user, pid)?;
                (ClientKind::Gateway(*instance_id), user, *epoch, Some(on_record))
            }
        };
        tracing::info!(client = ?who, uid = user.uid, cell = user.cell.as_deref(), pid, epoch, "client connected");
        // The pid may have been reused since the peer connected; in that case the connection has ended.
        let process = pid.and_then(|pid| Some((pid, self.context.sys.open(pid).ok()?)));
        self.links.insert(link.id(), ConnectedClient { link, who, user, epoch, version, process });
        let welcome = Welcome {
            version,
            features: [figures::FEATURE, files::LIST_FEATURE, private_home::FEATURE]
                .map(str::to_owned)
                .to_vec(),
            pid: self.context.me.pid,
            supervisor_id: self.supervisor_id.clone(),
            credit_bytes: self.context.config.credit_bytes,
        };
        Ok((welcome, on_record))
    }

    /// Determines the tenant of a gateway and checks the gateway's secret.
    fn gateway_user(
        &self,
        gateway: GatewayInstanceId,
        peer: &Peer,
        hello: &Hello,
    ) -> Result<ClientUser, Refusal> {
        let tenants = &self.context.tenants;
        let user = match peer {
            Peer::Local { uid, gid, .. } => {
                self.policy.authorize_gateway(*uid, *gid)?;
                ClientUser { uid: *uid, gid: *gid, cell: None }
            }
            // The certificate takes the place of the secret.
            Peer::Remote { name } => return self.policy.authorize_remote(tenants, name, gateway),
        };
        let tenant = tenant_of(tenants, &user, gateway);
        self.policy.check_gateway_secret(user.uid, tenant, hello.secret.as_ref())?;
        Ok(user)
    }

    /// Refuses a gateway without a record if too many are connected. Gateways with a record need no check:
    /// each has one connection, and `gateways_per_user_max` bounds the records.
    fn has_room_for_new(&self, user: &ClientUser) -> Result<(), Refusal> {
        let gateways = || self.links.values().filter(|c| c.who != ClientKind::Admin);
        let config = &self.context.config;
        let of_user = gateways().filter(|c| c.user.uid == user.uid && c.user.cell == user.cell).count();
        if of_user >= size(config.connections_per_user_max) {
            return Err(too_many(format!(
                "{of_user} gateways of {} are connected, which is the limit (connections_per_user_max)",
                user.name()
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
        epoch: u64,
        marks: Option<&Marks>,
        home: &Home,
        user: &ClientUser,
        pid: Option<i32>,
    ) -> Result<RecordedFuture, Denial> {
        let uid = user.uid;
        let client = ClientKind::Gateway(gateway);
        let living = self.links.values().find(|c| c.who == client);
        let living = living.filter(|c| !c.link.end().is_cancelled()).map(|c| {
            let other = c.process.as_ref().filter(|(other, _)| Some(*other) != pid);
            let elsewhere = other.is_some_and(|(_, process)| self.context.sys.is_unreaped(process));
            LiveConnection { epoch: c.epoch, elsewhere }
        });
        let known = self.installations.get(&gateway);
        let acked = if marks.is_some() { self.acked_outputs(gateway) } else { Vec::new() };
        let claimed = marks.map(|marks| ClaimedProgress { marks, acked: &acked, now_ms: wall_ms() });
        let admitted = admit(known, living, gateway, user, home, epoch, claimed);
        let Admitted { installation, supersedes } = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                if self.context.may_log(uid, "a gateway is not admitted") {
                    tracing::warn!(%gateway, uid, cell = user.cell.as_deref(), epoch, refusal = refusal.message, "gateway refused");
                }
                if refusal.code == RefusalCode::RolledBack {
                    let rollback = if user.cell.is_some() {
                        self.describe_rollback(gateway, refusal)
                    } else {
                        self.hold_agents(gateway, refusal)
                    };
                    return Err(Denial::RolledBack(Box::new(rollback)));
                }
                return Err(refusal.into());
            }
        };
        if marks.is_some_and(|marks| marks.accepts_loss) {
            tracing::warn!(%gateway, epoch, event_id = installation.progress.event_id, "loss accepted");
        }
        if known.is_none() {
            // The record of a gateway of this machine may not have been written although its leases were. That of a
            // remote cell is written first, so such leases are not its own.
            let is_foreign = |uid_of_lease| user.cell.is_some() || uid_of_lease != uid;
            if self.leases.values().any(|e| e.lease.gateway == gateway && is_foreign(e.lease.owner_uid)) {
                if self.context.may_log(uid, "leases of another user") {
                    tracing::warn!(%gateway, uid, "gateway refused; its id has leases of another user");
                }
                return Err(other_user(gateway).into());
            }
            self.has_room_for_new(user)?;
            self.make_room_for_gateway(user)?;
        }
        // Also written for a known gateway: the last write may have failed.
        let on_record = self.record(&installation);
        self.installations.insert(gateway, installation);
        if user.cell.is_none() {
            self.absences.remove(&gateway);
        }
        self.pending.kept_until_ms.remove(&gateway);
        self.disconnect_older(client, supersedes);
        Ok(on_record)
    }

    /// Writes the record of a gateway.
    fn record(&self, installation: &Installation) -> RecordedFuture {
        let (gateway, is_remote) = (installation.gateway, installation.cell().is_some());
        let recorded = self.context.store.record_installation(installation);
        Box::pin(async move {
            match recorded.await {
                Err(why) if is_remote => {
                    let why = format!("the epoch of gateway {gateway} cannot be recorded: {why}");
                    Err(Refusal::new(RefusalCode::StoreUnavailable, why).retry_after(RECORD_RETRY_MS))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }

    /// Ends the older connections of a gateway. Superseded ones get a refusal first.
    fn disconnect_older(&mut self, client: ClientKind, supersedes: bool) {
        let old: Vec<_> = self.links.iter().filter(|(_, c)| c.who == client).map(|(id, _)| *id).collect();
        for id in old {
            // Frames still unread on the old connection are ignored: the link is no longer known (H5).
            let Some(connected) = self.links.remove(&id) else { continue };
            if let Some(gateway) = client.gateway().filter(|_| connected.user.cell.is_some()) {
                self.detach(gateway, &connected);
            }
            if supersedes {
                connected.link.refuse(Refusal::new(
                    RefusalCode::EpochStale,
                    "a newer connection of this gateway replaced this one",
                ));
                // An unread last message must not delay the end of the old connection any further.
                let end = connected.link.end().clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LAST_MESSAGES_WAIT).await;
                    end.cancel();
                });
            }
        }
    }
}
