//! Admission of gateway and admin connections, and detection of copied or duplicate gateways.

use crate::core::marks::{self, AckedOutput, Progress};
use crate::core::tenant::{Tenant, tenant_of};
use acp_shared::identity::{Holder, Identity, SCHEME};
use acp_shared::ids::GatewayInstanceId;
use acp_shared::protocol::{Home, Marks, Refusal, RefusalCode};
use acp_shared::redact::Secret;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Access policy: allowed users and groups, and the shared secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessPolicy {
    /// User id of the supervisor.
    pub own_uid: u32,
    /// Group id of the supervisor.
    pub own_gid: u32,
    /// Identity of this host, if it listens for remote cells.
    pub host: Option<Identity>,
    /// Additional users whose gateways may connect.
    pub allowed_uids: Vec<u32>,
    /// Groups whose gateways may connect.
    pub allowed_gids: Vec<u32>,
    /// Groups with access to the admin CLI.
    pub admin_gids: Vec<u32>,
    /// Secret that gateways and admins with the supervisor's own user id must present (H9).
    pub secret: Secret,
    /// Path of the file that holds the secret, for error messages.
    pub secret_file: String,
}

impl AccessPolicy {
    /// Checks that a user may connect a gateway: root, the supervisor's own user, listed users and groups.
    ///
    /// # Errors
    /// [`RefusalCode::NotAuthorised`].
    pub fn authorize_gateway(&self, uid: u32, gid: u32) -> Result<(), Refusal> {
        let listed = self.allowed_uids.contains(&uid) || self.allowed_gids.contains(&gid);
        if self.is_owner(uid) || listed {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::NotAuthorised,
            format!(
                "user {uid} may not connect a gateway here; add it to allowed_uids in the supervisor's configuration"
            ),
        ))
    }

    /// Checks that a user may list and end every lease: root, the supervisor's own user and admin groups may.
    ///
    /// # Errors
    /// [`RefusalCode::NotAuthorised`].
    pub fn authorize_admin(&self, uid: u32, gid: u32) -> Result<(), Refusal> {
        if self.is_owner(uid) || self.admin_gids.contains(&gid) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::NotAuthorised,
            format!(
                "user {uid} may not administer this supervisor; root, its own user and the admin group may"
            ),
        ))
    }

    /// Checks the secret of a gateway: the tenant's if one is configured, otherwise the supervisor's for its
    /// own user.
    ///
    /// # Errors
    /// [`RefusalCode::NotAuthorised`].
    pub fn check_gateway_secret(
        &self,
        uid: u32,
        tenant: Option<&Tenant>,
        said: Option<&Secret>,
    ) -> Result<(), Refusal> {
        match tenant.and_then(|tenant| tenant.secret.as_ref()) {
            Some(secret) => check_secret(secret, said, "the secret_file of its [[tenant]]"),
            None if uid == self.own_uid => check_secret(&self.secret, said, &self.secret_file),
            None => Ok(()),
        }
    }

    /// Checks the secret of an admin. Root needs none because root can read the secret file; members of the
    /// admin groups are authorised by their membership.
    ///
    /// # Errors
    /// [`RefusalCode::NotAuthorised`].
    pub fn check_admin_secret(&self, uid: u32, gid: u32, said: Option<&Secret>) -> Result<(), Refusal> {
        if uid == 0 || uid != self.own_uid || self.admin_gids.contains(&gid) {
            return Ok(());
        }
        check_secret(&self.secret, said, &self.secret_file)
    }

    /// True if this user may connect as a gateway or as an admin.
    #[must_use]
    pub fn is_known_user(&self, uid: u32, gid: u32) -> bool {
        self.authorize_gateway(uid, gid).is_ok() || self.authorize_admin(uid, gid).is_ok()
    }

    /// Decides as which user a remote cell acts: the one that its tenant runs agents as, or the supervisor's own.
    ///
    /// # Errors
    /// [`RefusalCode::NotAuthorised`]: the certificate is not that of a cell of this host's plane, or no tenant names
    /// the cell.
    pub fn authorize_remote(
        &self,
        tenants: &[Tenant],
        name: &str,
        gateway: GatewayInstanceId,
    ) -> Result<ClientUser, Refusal> {
        let refuse = |why: String| Err(Refusal::new(RefusalCode::NotAuthorised, why));
        let own = ClientUser { uid: self.own_uid, gid: self.own_gid, cell: Some(name.into()) };
        let Some(host) = &self.host else {
            return refuse("this supervisor does not serve other machines".to_owned());
        };
        match name.parse::<Identity>() {
            Ok(peer) if peer.plane != host.plane => {
                refuse(format!("{name} is of another plane than this host, {host}"))
            }
            Ok(Identity { holder: Holder::Host, .. }) => {
                refuse(format!("{name} is a host; only cells, acp://{}/cell/ID, may connect", host.plane))
            }
            Ok(Identity { holder: Holder::Cell, .. }) => match tenant_of(tenants, &own, gateway) {
                Some(Tenant { run_as: Some(account), .. }) => {
                    Ok(ClientUser { uid: account.uid, gid: account.gid, ..own })
                }
                Some(_) if self.own_uid != 0 => Ok(own),
                Some(_) => refuse(format!("the [[tenant]] of {name} has no run_as_user; give it one")),
                None => refuse(format!(
                    "no [[tenant]] of this supervisor has cell = \"{name}\"; add one to its configuration and restart it"
                )),
            },
            Err(error) => refuse(error.to_string()),
        }
    }

    const fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }
}

fn check_secret(secret: &Secret, said: Option<&Secret>, file: &str) -> Result<(), Refusal> {
    if said.is_some_and(|said| is_equal(secret, said)) {
        return Ok(());
    }
    let what = if said.is_some() { "a wrong secret" } else { "no secret" };
    Err(Refusal::new(
        RefusalCode::NotAuthorised,
        format!(
            "the client sent {what} instead of the one in {file}; let it read that file (a gateway: \
             supervisor.secret_file in its configuration), or run it as a separate user"
        ),
    ))
}

/// Compares two secrets without revealing by timing at which byte they differ.
fn is_equal(one: &Secret, other: &Secret) -> bool {
    let (one, other) = (one.expose().as_bytes(), other.expose().as_bytes());
    let differ = one.iter().zip(other).fold(0u8, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    one.len() == other.len() && differ == 0
}

/// User on whose behalf a client acts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientUser {
    /// User id: of the client's process, or of the agents of a remote cell.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
    /// URI name of a remote cell; `None` for a process of this machine.
    pub cell: Option<Arc<str>>,
}

impl ClientUser {
    /// Returns the name for messages: the cell, or the user.
    #[must_use]
    pub fn name(&self) -> String {
        self.cell.as_ref().map_or_else(|| format!("user {}", self.uid), |cell| format!("cell {cell}"))
    }
}

/// Record of one gateway installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Installation {
    /// Gateway instance id.
    pub gateway: GatewayInstanceId,
    /// First user that connected with this id.
    pub uid: u32,
    /// Location of the gateway's state directory.
    pub home: Home,
    /// Highest epoch that the gateway has presented.
    pub epoch_max: u64,
    /// Recorded progress of the gateway's database.
    #[serde(default)]
    pub progress: Progress,
    /// Reason why the stored record cannot be read. If set, the other fields are not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

impl Installation {
    /// Returns the URI name of the remote cell that the gateway belongs to; `None` for a gateway of this machine, whose
    /// machine id never begins so.
    #[must_use]
    pub fn cell(&self) -> Option<&str> {
        Some(self.home.machine_id.as_str()).filter(|id| id.starts_with(SCHEME))
    }

    /// Returns the error message for an unreadable record; `None` if the record is intact.
    #[must_use]
    pub fn damage_message(&self) -> Option<String> {
        let (why, gateway) = (self.damaged.as_ref()?, self.gateway);
        Some(format!(
            "the record of gateway {gateway} is damaged ({why}); the gateway is refused because it may be a \
             copy or belong to another user. If it is the expected gateway, stop the supervisor, remove the \
             row (sqlite3 supervisor.db \"DELETE FROM homes WHERE gateway_instance_id = '{gateway}'\") and \
             start it again"
        ))
    }
}

/// Result of a successful admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Updated record to store.
    pub installation: Installation,
    /// True if an older connection of the same gateway must be closed.
    pub supersedes: bool,
}

/// Open connection of a gateway at the time that another connection with the same id asks for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveConnection {
    /// Epoch of the open connection.
    pub epoch: u64,
    /// True if the peer process is alive and differs from the process of the new connection.
    pub elsewhere: bool,
}

/// Progress claimed by a gateway of protocol 2, with the facts to compare to the record.
#[derive(Debug, Clone, Copy)]
pub struct ClaimedProgress<'a> {
    /// Marks sent by the gateway.
    pub marks: &'a Marks,
    /// Acknowledged output of the gateway's running agents.
    pub acked: &'a [AckedOutput],
    /// Current time, milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Maximum length of a machine id, in bytes; systemd's have 33.
const MACHINE_ID_BYTES_MAX: usize = 256;

/// Retry delay for a refused second connection, in milliseconds. The supervisor detects a closed connection
/// well within this time.
pub const BUSY_RETRY_MS: u64 = 250;

/// Builds the refusal of an id that belongs to another user.
#[must_use]
pub fn other_user(gateway: GatewayInstanceId) -> Refusal {
    let why =
        format!("gateway {gateway} belongs to another user; give this gateway a state directory of its own");
    Refusal::new(RefusalCode::InstanceOfOtherUser, why)
}

/// Returns the location of a gateway's state directory as it is recorded: as claimed by a gateway of this machine, and
/// made of the certificate for a remote cell, whose claim is not asked.
///
/// # Errors
/// [`RefusalCode::BadRequest`] for a claim that is too long, or that looks like that of a remote cell.
pub fn home_of(user: &ClientUser, claimed: &Home) -> Result<Home, Refusal> {
    if let Some(cell) = &user.cell {
        return Ok(Home { machine_id: cell.to_string(), dev: 0, ino: 0 });
    }
    if claimed.machine_id.len() > MACHINE_ID_BYTES_MAX {
        return Err(Refusal::new(RefusalCode::BadRequest, "the machine id is too long"));
    }
    if claimed.machine_id.starts_with(SCHEME) {
        return Err(Refusal::new(RefusalCode::BadRequest, "a machine id cannot be that of a remote cell"));
    }
    Ok(claimed.clone())
}

/// Decides whether a gateway is admitted. A newer epoch replaces a connection whose process is dead or is the
/// same process. A connection of another living process is never replaced, whatever epoch is claimed.
///
/// Processes of another machine cannot be seen: for a remote cell the epoch decides alone. A newer one, and another
/// connection of the same start, replace a connection.
///
/// # Errors
/// [`RefusalCode::InstanceOfOtherUser`], [`RefusalCode::CloneDetected`], [`RefusalCode::InstanceBusy`],
/// [`RefusalCode::EpochStale`], [`RefusalCode::RolledBack`], [`RefusalCode::VersionUnsupported`].
pub fn admit(
    known: Option<&Installation>,
    live: Option<LiveConnection>,
    gateway: GatewayInstanceId,
    user: &ClientUser,
    home: &Home,
    epoch: u64,
    claimed: Option<ClaimedProgress<'_>>,
) -> Result<Admitted, Refusal> {
    let (uid, is_remote) = (user.uid, user.cell.is_some());
    if let Some(why) = known.and_then(Installation::damage_message) {
        return Err(Refusal::new(RefusalCode::StoreUnavailable, why));
    }
    let mut installation = known.cloned().unwrap_or_else(|| Installation {
        gateway,
        uid,
        home: home.clone(),
        epoch_max: 0,
        progress: Progress::default(),
        damaged: None,
    });
    if installation.cell() != user.cell.as_deref() || (installation.uid != uid && !is_remote) {
        return Err(other_user(gateway));
    }
    // The tenant of a cell may name another user than before.
    installation.uid = uid;
    if installation.home != *home {
        return Err(Refusal::new(
            RefusalCode::CloneDetected,
            format!(
                "the state directory of gateway {gateway} is a copy: its leases belong to the original; \
                 start this one with a fresh state directory, or let it adopt the id after the original is gone"
            ),
        ));
    }
    if is_remote && claimed.is_none() {
        let why = "a gateway on another machine must speak protocol 2: upgrade the gateway";
        return Err(Refusal::new(RefusalCode::VersionUnsupported, why));
    }
    if let Some(live) = live.filter(|live| is_remote && live.epoch > epoch) {
        let why = format!("gateway {gateway} is connected with epoch {}, this one is {epoch}", live.epoch);
        return Err(Refusal::new(RefusalCode::EpochStale, why));
    }
    if let Some(live) = live.filter(|live| !is_remote && (live.elsewhere || live.epoch >= epoch)) {
        return Err(Refusal::new(
            RefusalCode::InstanceBusy,
            format!("gateway {gateway} is connected already (epoch {}, this one is {epoch})", live.epoch),
        )
        .retry_after(BUSY_RETRY_MS));
    }
    if let Some(ClaimedProgress { marks, acked, now_ms }) = claimed {
        installation.progress = marks::advance(&installation, epoch, marks, acked, now_ms)?;
    } else if epoch > installation.epoch_max {
        installation.progress.start_id = None;
    }
    installation.epoch_max = installation.epoch_max.max(epoch);
    Ok(Admitted { installation, supersedes: live.is_some() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn policy() -> AccessPolicy {
        AccessPolicy {
            own_uid: 10,
            own_gid: 100,
            host: None,
            allowed_uids: vec![20],
            allowed_gids: vec![200],
            admin_gids: vec![300],
            secret: Secret::new("right".into()),
            secret_file: "/s/secret".into(),
        }
    }

    fn local(uid: u32) -> ClientUser {
        ClientUser { uid, gid: uid, cell: None }
    }

    fn known() -> Installation {
        Installation {
            gateway: GatewayInstanceId::mint(),
            uid: 5,
            home: Home { machine_id: "m".into(), dev: 1, ino: 2 },
            epoch_max: 7,
            progress: Progress::default(),
            damaged: None,
        }
    }

    #[test]
    fn secret_is_required_for_own_user_and_tenants() {
        let tenant =
            Tenant { uid: Some(20), secret: Some(Secret::new("theirs".into())), ..Tenant::default() };
        for (name, uid, tenant, sent, gateway, admin) in [
            ("own user", 10, None, Some("right"), true, true),
            ("own user, no secret", 10, None, None, false, false),
            ("own user, wrong secret", 10, None, Some("wrong"), false, false),
            ("own user, prefix", 10, None, Some("righ"), false, false),
            ("own user, too long", 10, None, Some("right!"), false, false),
            ("root", 0, None, None, true, true),
            ("allowed user", 20, None, None, true, true),
            ("a tenant with a secret", 20, Some(&tenant), Some("theirs"), true, true),
            ("a tenant without its secret", 20, Some(&tenant), None, false, true),
            ("a tenant with the supervisor's secret", 20, Some(&tenant), Some("right"), false, true),
        ] {
            let sent = sent.map(|sent| Secret::new(sent.into()));
            let got = policy().check_gateway_secret(uid, tenant, sent.as_ref());
            assert_eq!(got.is_ok(), gateway, "{name}");
            assert_eq!(policy().check_admin_secret(uid, 1, sent.as_ref()).is_ok(), admin, "{name}");
            let texts = got.err().map(|refusal| format!("{refusal:?}"));
            assert!(texts.is_none_or(|text| !text.contains("right") && !text.contains("theirs")), "{name}");
        }
        assert_eq!(policy().check_admin_secret(10, 300, None), Ok(()), "in the admin group");
    }

    #[test]
    fn connections_are_authorized_by_uid_and_gid() {
        let policy = policy();
        for (uid, gid, gateway, admin) in [
            (0, 0, true, true),
            (10, 1, true, true),
            (20, 1, true, false),
            (21, 200, true, false),
            (22, 300, false, true),
            (23, 1, false, false),
        ] {
            assert_eq!(policy.authorize_gateway(uid, gid).is_ok(), gateway, "{uid}:{gid}");
            assert_eq!(policy.authorize_admin(uid, gid).is_ok(), admin, "{uid}:{gid}");
        }
    }

    #[test]
    fn installation_has_one_living_connection() {
        use RefusalCode::{CloneDetected, InstanceBusy, InstanceOfOtherUser};
        let known = known();
        let (gateway, home) = (known.gateway, known.home.clone());
        let copy = Home { ino: 3, ..home.clone() };
        let dead = |epoch| Some(LiveConnection { epoch, elsewhere: false });
        let alive = |epoch| Some(LiveConnection { epoch, elsewhere: true });
        let ok = |epoch_max, supersedes| {
            Ok(Admitted { installation: Installation { epoch_max, ..known.clone() }, supersedes })
        };
        for (name, known, live, uid, home, epoch, want) in [
            ("first time", None, None, 5, &home, 7, ok(7, false)),
            ("reconnection", Some(&known), None, 5, &home, 8, ok(8, false)),
            ("older epoch of protocol 1 (H7)", Some(&known), None, 5, &home, 3, ok(7, false)),
            ("takeover", Some(&known), dead(7), 5, &home, 8, ok(8, true)),
            ("another process connected", Some(&known), alive(7), 5, &home, 8, Err(InstanceBusy)),
            ("maximal epoch", Some(&known), alive(7), 5, &home, u64::MAX, Err(InstanceBusy)),
            ("same epoch", Some(&known), dead(7), 5, &home, 7, Err(InstanceBusy)),
            ("replayed epoch", Some(&known), dead(7), 5, &home, 6, Err(InstanceBusy)),
            ("other user", Some(&known), None, 6, &home, 9, Err(InstanceOfOtherUser)),
            ("copied state directory (H15)", Some(&known), None, 5, &copy, 9, Err(CloneDetected)),
        ] {
            let got =
                admit(known, live, gateway, &local(uid), home, epoch, None).map_err(|refusal| refusal.code);
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn installation_with_damaged_record_is_refused_with_reason() {
        let known = Installation { damaged: Some("uid is out of range".to_owned()), ..known() };
        let gateway = known.gateway;
        let refusal = admit(Some(&known), None, gateway, &local(5), &known.home, 8, None).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::StoreUnavailable);
        for part in ["out of range", "DELETE FROM homes", &gateway.to_string()] {
            assert!(refusal.message.contains(part), "{part}: {refusal:?}");
        }
    }
}

#[cfg(test)]
#[path = "remote_admission_tests.rs"]
mod remote_tests;
