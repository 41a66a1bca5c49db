//! Connects to the supervisors of all hosts.

use super::StartOptions;
use super::rollback;
use crate::config::LiveConfig;
use crate::runtime::agents::Agents;
use crate::runtime::hosts::{Host, Hosts};
use crate::supervisor::{SupervisorClient, gateway_role, hello};
use acp_core::config::remote::LOCAL;
use acp_core::config::{Config, HostConfig, RemoteConfig};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::conn::{Endpoint, TlsEndpoint};
use acp_shared::identity::{Holder, Identity};
use acp_shared::tls::ClientTls;
use acp_store::Store;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Returns the names of all hosts.
pub(super) fn names(config: &Config) -> Vec<String> {
    let local = config.supervisor.enabled.then(|| LOCAL.to_owned());
    local.into_iter().chain(config.remote.hosts.keys().cloned()).collect()
}

/// Connects to the supervisor of this machine, unless it is disabled, and to those of `remote.hosts`. `agents` are the agents
/// of this machine.
///
/// # Errors
/// `ACP_CONFIG_INVALID` if a certificate cannot be read or has no name.
pub(super) fn connect(
    settings: &StartOptions,
    live: &LiveConfig,
    store: &Store,
    agents: &Arc<Agents>,
    stop: &CancellationToken,
) -> Result<Hosts, Failure> {
    let config = live.at_start();
    let start = |name: &str, endpoint: Endpoint| {
        let progress = rollback::progress(store, name, config.remote.keeps_reports(name));
        let secret = match endpoint {
            Endpoint::Socket(_) => Some(settings.supervisor_secret.clone()),
            Endpoint::Tls(_) => None,
        };
        let hello = hello(gateway_role(store.identity()));
        SupervisorClient::start(endpoint, secret, hello, progress, stop.clone())
    };
    let mut all = Vec::new();
    if config.supervisor.enabled {
        let endpoint = Endpoint::Socket(settings.supervisor_socket.clone());
        let address = endpoint.to_string();
        all.push(Host::new(LOCAL, address, start(LOCAL, endpoint), Arc::clone(agents) as _));
    }
    for (name, endpoint) in remote_endpoints(&config.remote)? {
        let address = endpoint.to_string();
        let there = Arc::new(agents.on_host(&name));
        all.push(Host::new(&name, address, start(&name, endpoint), there));
    }
    let others = all.split_off(1.min(all.len()));
    // The configuration is refused without any host.
    let first = all.pop().ok_or_else(|| Failure::of(Code::ConfigInvalid))?;
    Ok(Hosts::new(live.clone(), first, others))
}

/// Returns the hosts of `remote.hosts`, with their certificates' names.
///
/// # Errors
/// `ACP_CONFIG_INVALID` if a certificate cannot be read or has no name.
pub(crate) fn remote_endpoints(config: &RemoteConfig) -> Result<Vec<(String, Endpoint)>, Failure> {
    let RemoteConfig { cert: Some(cert), key: Some(key), ca: Some(ca), hosts, .. } = config else {
        return Ok(Vec::new());
    };
    let invalid = |text: String| Failure::new(Code::ConfigInvalid, text).origin("gateway");
    let tls = ClientTls::load(cert, key, ca).map_err(|error| invalid(format!("remote.{error}")))?;
    let own = tls.identity().parse().ok().filter(|own: &Identity| own.holder == Holder::Cell);
    let Some(Identity { plane, .. }) = own else {
        let (path, name) = (cert.display(), tls.identity());
        return Err(invalid(format!("remote.cert = {path}: its name {name} is not acp://PLANE/cell/ID")));
    };
    let tls = Arc::new(tls);
    let endpoint = |(name, host): (&String, &HostConfig)| {
        let named = Identity { plane: plane.clone(), holder: Holder::Host, name: name.clone() };
        let identity = host.identity.clone().unwrap_or_else(|| named.to_string());
        let endpoint = TlsEndpoint { address: host.address.clone(), identity, config: Arc::clone(&tls) };
        (name.clone(), Endpoint::Tls(endpoint))
    };
    Ok(hosts.iter().map(endpoint).collect())
}
