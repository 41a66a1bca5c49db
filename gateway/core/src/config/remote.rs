//! `remote.*`: hosts, the machines besides the gateway's own whose supervisors start agents.

use super::Config;
use super::check::{KeyProblems, absolute, bounded, key, owned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Name of the gateway's own machine in lists of hosts and requests.
pub const LOCAL: &str = "local";
/// Maximum length of a host's name, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// `remote.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Remote")]
pub struct RemoteConfig {
    /// PEM file with the gateway's certificate and those above it; its name is `acp://PLANE/cell/ID`. Default: none.
    pub cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate, mode 0600 or 0400. Default: none.
    pub key: Option<PathBuf>,
    /// PEM file with the authorities of the hosts' certificates. Default: none.
    pub ca: Option<PathBuf>,
    /// PEM file with the private key of the CA, with which `acp-gateway hosts enrol` signs. Default: none, `tls/ca.key` in the
    /// state directory.
    pub ca_key: Option<PathBuf>,
    /// Directories that are the same on all hosts, as canonical paths: a session whose directories all lie below them continues at
    /// another host when its host is lost. Default: none, sessions wait for their host.
    pub shared_roots: Vec<PathBuf>,
    /// `remote.hosts.NAME.*`. Default: none, agents run on the gateway's machine.
    pub hosts: BTreeMap<String, HostConfig>,
}

/// `remote.hosts.NAME.*`: a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Host")]
pub struct HostConfig {
    /// Name or address, and port, of the supervisor (its `listen`). Required.
    pub address: String,
    /// Name in the host's certificate. Default: none, `acp://PLANE/host/NAME` with the PLANE of the gateway's.
    pub identity: Option<String>,
    /// Labels, for `agents.NAME.host_labels`. Default: none.
    pub labels: Vec<String>,
    /// Search path of programs, and `PATH` of agents. Default: `/usr/local/bin:/usr/bin:/bin`.
    pub path: String,
    /// Working directory of a spawn without one. Default: none, `acp.default_cwd`.
    pub default_cwd: Option<PathBuf>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            address: String::new(),
            identity: None,
            labels: Vec::new(),
            path: "/usr/local/bin:/usr/bin:/bin".to_owned(),
            default_cwd: None,
        }
    }
}

/// True if this can be the name of a host, or a label: lower-case letters, digits and hyphens.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// True for a host and a port, such as `host1.example:7420` or `[::1]:7420`.
fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && port.parse::<u16>().is_ok_and(|port| port > 0)
            && (!host.contains(':') || host.ends_with(']'))
    })
}

impl RemoteConfig {
    /// True if the reports of this host are recorded: they are used to move sessions from a lost remote host.
    pub fn keeps_reports(&self, host: &str) -> bool {
        host != LOCAL && !self.shared_roots.is_empty()
    }
}

pub(super) fn check(found: &mut KeyProblems, config: &Config) {
    let RemoteConfig { cert, key: secret, ca, ca_key, shared_roots, hosts } = &config.remote;
    for root in shared_roots {
        absolute(found, key("remote.shared_roots"), Some(root));
    }
    absolute(found, key("remote.ca_key"), ca_key.as_deref());
    for (name, path) in [("remote.cert", cert), ("remote.key", secret), ("remote.ca", ca)] {
        absolute(found, key(name), path.as_deref());
        if path.is_none() && !hosts.is_empty() {
            let text = "is required by remote.hosts: gateway and host prove their names to each other with certificates";
            found.push((key(name), text.to_owned()));
        }
    }
    for (name, host) in hosts {
        check_host(found, name, host);
        let is_same = |other: &HostConfig| {
            other.address == host.address || (other.identity.is_some() && other.identity == host.identity)
        };
        if let Some((other, _)) = hosts.range(..name.clone()).find(|(_, other)| is_same(other)) {
            let text = format!("is the same machine as remote.hosts.{other}: remove one of them");
            found.push((owned(&["remote", "hosts", name], &["address"]), text));
        }
    }
    if !config.supervisor.enabled && hosts.is_empty() {
        let text = "without the supervisor of this machine, agents need a host: add remote.hosts.NAME";
        found.push((key("supervisor.enabled"), text.to_owned()));
    }
    for (name, agent) in &config.agents {
        for label in agent.host_labels.iter().filter(|label| !is_name(label)) {
            found.push((owned(&["agents", name.as_str()], &["host_labels"]), bad_name(label, "a label")));
        }
        let has_all = |host: &HostConfig| agent.host_labels.iter().all(|label| host.labels.contains(label));
        if !agent.host_labels.is_empty() && !hosts.values().any(has_all) {
            let text =
                format!("no host in remote.hosts has all of the labels {}", agent.host_labels.join(", "));
            found.push((owned(&["agents", name.as_str()], &["host_labels"]), text));
        }
    }
}

fn check_host(found: &mut KeyProblems, name: &str, host: &HostConfig) {
    let at = |key: &str| owned(&["remote", "hosts", name], &[key]);
    if !is_name(name) {
        found.push((owned(&["remote", "hosts", name], &[]), bad_name(name, "the name of a host")));
    }
    if name == LOCAL {
        let text = "\"local\" is the gateway's own machine: give the host another name".to_owned();
        found.push((owned(&["remote", "hosts", name], &[]), text));
    }
    if !is_address(&host.address) {
        let text = format!("{:?} is not a host with a port, such as host1.example:7420", host.address);
        found.push((at("address"), text));
    }
    if host.identity.as_ref().is_some_and(|identity| !identity.starts_with("acp://")) {
        found.push((at("identity"), "must be a name such as acp://PLANE/host/NAME".to_owned()));
    }
    for label in host.labels.iter().filter(|label| !is_name(label)) {
        found.push((at("labels"), bad_name(label, "a label")));
    }
    absolute(found, at("default_cwd"), host.default_cwd.as_deref());
    bounded(found, at("path"), host.path.len() as u64, 1..=32 * 1024);
}

fn bad_name(name: &str, what: &str) -> String {
    format!("{name:?} is not {what}: use at most {NAME_BYTES_MAX} lower-case letters, digits and hyphens")
}

#[cfg(test)]
mod tests {
    use super::super::load::{Inputs, load};
    use std::path::Path;

    fn read(text: &str) -> Result<(), String> {
        let tls = "[remote]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";
        let text = format!("{tls}{text}\n");
        let loaded = load(Inputs { file: Some((Path::new("/g.toml"), &text)), ..Inputs::default() });
        loaded.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_need_names_addresses_and_certificates() {
        for (text, want) in [
            ("hosts.big1.address = \"10.0.0.1:7420\"", None),
            ("hosts.big1.address = \"[::1]:7420\"", None),
            ("hosts.big1.address = \"host1.example:7420\"\n[agents.codex]\nhost_labels = []", None),
            (
                "hosts.big1 = { address = \"h:1\", labels = [\"gpu\"] }\n[agents.codex]\nhost_labels = [\"gpu\"]",
                None,
            ),
            ("hosts.big1 = { address = \"h:1\" }\n[supervisor]\nenabled = false", None),
            ("hosts.big1 = {}", Some("remote.hosts.big1.address")),
            ("hosts.big1.address = \"h\"", Some("not a host with a port")),
            ("hosts.big1.address = \"::1:7420\"", Some("not a host with a port")),
            ("hosts.big1.address = \"h:0\"", Some("not a host with a port")),
            ("hosts.Big.address = \"h:1\"", Some("not the name of a host")),
            ("hosts.local.address = \"h:1\"", Some("own machine")),
            ("hosts.a = { address = \"h:1\", labels = [\"\"] }", Some("not a label")),
            ("hosts.a = { address = \"h:1\", identity = \"big1\" }", Some("acp://PLANE/host/NAME")),
            ("hosts.a = { address = \"h:1\", default_cwd = \"w\" }", Some("absolute path")),
            ("hosts.a = { address = \"h:1\", path = \"\" }", Some("out of bounds")),
            (
                "hosts.a = { address = \"h:1\" }\n[agents.codex]\nhost_labels = [\"gpu\"]",
                Some("no host in remote.hosts"),
            ),
            (
                "hosts.a = { address = \"h:1\" }\nhosts.b = { address = \"h:1\" }",
                Some("same machine as remote.hosts.a"),
            ),
            ("[supervisor]\nenabled = false", Some("agents need a host")),
        ] {
            match (read(text), want) {
                (Ok(()), None) => {}
                (Err(error), Some(want)) => assert!(error.contains(want), "{text}: {error}"),
                (found, want) => panic!("{text}: {found:?}, not {want:?}"),
            }
        }
        let text = "[remote.hosts.a]\naddress = \"h:1\"\n";
        let loaded = load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() });
        assert!(loaded.is_err_and(|error| error.to_string().contains("is required by remote.hosts")));
    }
}
