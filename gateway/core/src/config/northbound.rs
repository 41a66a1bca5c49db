//! `northbound.*`: listeners of the API and what each of them admits, and clients that speak ACP.

use super::Config;
use super::check::{KeyProblems, absolute, key};
use crate::principal::Scope;
use crate::web_request::{is_host, is_origin};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Name of the local socket in `northbound.listen`.
pub const UNIX: &str = "unix";

/// `northbound.*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Northbound")]
pub struct NorthboundConfig {
    /// Addresses of the API: `unix`, the socket in the state directory, and TCP addresses with a port. A request over
    /// TCP needs a token, on loopback too. Default: `unix`.
    pub listen: Vec<String>,
    /// Hosts that a request over TCP may name, besides loopback names and the address itself; each with or without a
    /// port. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the API, e.g. `https://app.example.com`. Pages of other sites are refused.
    /// Default: none.
    pub allowed_origins: Vec<String>,
    /// Allows TCP without TLS on addresses that are not loopback: everyone on the way can read tokens and prompts.
    /// Default: false.
    pub insecure_plaintext: bool,
    /// Serves ACP at `/acp`. Default: true.
    pub acp: bool,
    /// Time after which an ACP connection without open streams ends. Default: 60000.
    pub detach_grace_ms: u64,
    /// Socket of the session tools, for agents that cannot reach the state directory; every user may connect, and a
    /// request needs the token of a lease. Default: none, `agents.sock` in the state directory.
    pub agents_socket: Option<PathBuf>,
    /// `northbound.tls.*`.
    pub tls: TlsConfig,
    /// `northbound.proxy.*`.
    pub proxy: ProxyConfig,
}

impl Default for NorthboundConfig {
    fn default() -> Self {
        Self {
            listen: vec![UNIX.to_owned()],
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            insecure_plaintext: false,
            acp: true,
            detach_grace_ms: 60_000,
            agents_socket: None,
            tls: TlsConfig::default(),
            proxy: ProxyConfig::default(),
        }
    }
}

/// `northbound.tls.*`: TLS of all TCP addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Tls")]
pub struct TlsConfig {
    /// PEM file with the certificate and those above it. Default: none, no TLS.
    pub cert: Option<PathBuf>,
    /// PEM file with the private key. Default: none.
    pub key: Option<PathBuf>,
    /// PEM file with the authorities of client certificates. A client then needs a certificate in addition to its
    /// token. Default: none.
    pub client_ca: Option<PathBuf>,
}

/// `northbound.proxy.*`: a proxy on this machine that signs people in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Proxy")]
pub struct ProxyConfig {
    /// Unix socket for the proxy; every user may connect, and only `uids` are admitted. Default: none.
    pub socket: Option<PathBuf>,
    /// User ids of the proxy. Neither root nor the gateway's own user. Default: none.
    pub uids: Vec<u32>,
    /// Header in which the proxy names the signed-in person. Default: `x-remote-user`.
    pub header: String,
    /// Scope of the people that it names: `read`, `prompt`, `approve` or `admin`. Default: `read`.
    pub scope: Scope,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self { socket: None, uids: Vec::new(), header: "x-remote-user".to_owned(), scope: Scope::Read }
    }
}

impl NorthboundConfig {
    /// Returns the TCP addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listen.iter().filter_map(|at| at.parse().ok()).collect()
    }
}

/// Headers that have a meaning of their own, and so name nobody.
const NOT_A_NAME: [&str; 6] = ["authorization", "cookie", "host", "origin", "connection", "content-length"];

pub(super) fn check(found: &mut KeyProblems, config: &Config) {
    let NorthboundConfig { listen, allowed_hosts, allowed_origins, insecure_plaintext, tls, proxy, .. } =
        &config.northbound;
    let mut add = |path: &str, message: String| found.push((key(path), message));
    if !listen.iter().any(|at| at == UNIX) {
        add("northbound.listen", "must include \"unix\": the command line uses it".to_owned());
    }
    for (number, at) in listen.iter().enumerate().filter(|(_, at)| *at != UNIX) {
        match at.parse::<SocketAddr>() {
            Err(_) => {
                add(
                    "northbound.listen",
                    format!("{at:?} is neither \"unix\" nor an address such as 127.0.0.1:7433"),
                );
            }
            Ok(address)
                if !address.ip().to_canonical().is_loopback()
                    && tls.cert.is_none()
                    && !insecure_plaintext =>
            {
                add(
                    "northbound.listen",
                    format!(
                        "{at} is reachable from other machines and needs TLS: set northbound.tls.cert and \
                         northbound.tls.key, or accept plain text with northbound.insecure_plaintext = true"
                    ),
                );
            }
            Ok(_) => {}
        }
        if listen.iter().take(number).any(|earlier| earlier == at) {
            add("northbound.listen", format!("{at} is listed twice"));
        }
    }
    for host in allowed_hosts.iter().filter(|host| !is_host(host)) {
        add("northbound.allowed_hosts", format!("{host:?} is not a host name with an optional port"));
    }
    for origin in allowed_origins.iter().filter(|origin| !is_origin(origin)) {
        add(
            "northbound.allowed_origins",
            format!("{origin:?} is not an origin such as https://app.example.com"),
        );
    }
    if tls.cert.is_some() != tls.key.is_some() {
        add("northbound.tls", "cert and key are needed together".to_owned());
    }
    if tls.client_ca.is_some() && tls.cert.is_none() {
        add("northbound.tls.client_ca", "needs cert and key".to_owned());
    }
    check_proxy(&mut add, proxy);
    for (path, value) in [
        ("northbound.tls.cert", &tls.cert),
        ("northbound.tls.key", &tls.key),
        ("northbound.tls.client_ca", &tls.client_ca),
        ("northbound.proxy.socket", &proxy.socket),
        ("northbound.agents_socket", &config.northbound.agents_socket),
    ] {
        absolute(found, key(path), value.as_deref());
    }
}

fn check_proxy(add: &mut impl FnMut(&str, String), proxy: &ProxyConfig) {
    if proxy.socket.is_some() == proxy.uids.is_empty() {
        add("northbound.proxy", "socket and uids are needed together".to_owned());
    }
    if proxy.uids.contains(&0) {
        add(
            "northbound.proxy.uids",
            "root is not admitted as a proxy: run it as a user of its own".to_owned(),
        );
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if proxy.header.is_empty()
        || !proxy.header.chars().all(plain)
        || NOT_A_NAME.contains(&proxy.header.as_str())
    {
        add(
            "northbound.proxy.header",
            format!("{:?} cannot name a person; write it in lower case", proxy.header),
        );
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::load::{Inputs, LoadedConfig, load};
    use std::path::Path;

    fn read(text: &str) -> Result<LoadedConfig, String> {
        let text = format!("[northbound]\n{text}\n");
        load(Inputs { file: Some((Path::new("/g.toml"), &text)), ..Inputs::default() })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn listeners_off_loopback_need_tls_or_an_explicit_exception() {
        let tls = "tls = { cert = \"/c.pem\", key = \"/k.pem\" }";
        for (text, want) in [
            ("listen = [\"unix\"]".to_owned(), None),
            ("listen = [\"unix\", \"127.0.0.1:7433\", \"[::1]:7433\"]".to_owned(), None),
            ("listen = [\"unix\", \"[::ffff:127.0.0.1]:7433\"]".to_owned(), None),
            ("listen = [\"127.0.0.1:7433\"]".to_owned(), Some("must include \"unix\"")),
            ("listen = [\"unix\", \"0.0.0.0:7433\"]".to_owned(), Some("needs TLS")),
            ("listen = [\"unix\", \"192.0.2.1:7433\"]".to_owned(), Some("needs TLS")),
            (format!("listen = [\"unix\", \"0.0.0.0:7433\"]\n{tls}"), None),
            ("listen = [\"unix\", \"0.0.0.0:7433\"]\ninsecure_plaintext = true".to_owned(), None),
            ("listen = [\"unix\", \"localhost:7433\"]".to_owned(), Some("neither \"unix\" nor an address")),
            ("listen = [\"unix\", \"127.0.0.1:1\", \"127.0.0.1:1\"]".to_owned(), Some("listed twice")),
            ("tls = { cert = \"/c.pem\" }".to_owned(), Some("needed together")),
            ("tls = { client_ca = \"/c.pem\" }".to_owned(), Some("needs cert and key")),
            ("tls = { cert = \"c.pem\", key = \"/k.pem\" }".to_owned(), Some("absolute path")),
            ("allowed_hosts = [\"a/b\"]".to_owned(), Some("not a host name")),
            ("allowed_origins = [\"*\"]".to_owned(), Some("not an origin")),
            ("allowed_origins = [\"https://a.example/\"]".to_owned(), Some("not an origin")),
            ("proxy = { uids = [33] }".to_owned(), Some("needed together")),
            ("proxy = { socket = \"/run/p.sock\" }".to_owned(), Some("needed together")),
            ("proxy = { socket = \"/run/p.sock\", uids = [0] }".to_owned(), Some("root is not admitted")),
            ("proxy = { header = \"Cookie\" }".to_owned(), Some("cannot name a person")),
            ("proxy = { header = \"authorization\" }".to_owned(), Some("cannot name a person")),
            ("proxy = { socket = \"/run/p.sock\", uids = [33], scope = \"approve\" }".to_owned(), None),
        ] {
            match (read(&text), want) {
                (Ok(_), None) => {}
                (Err(error), Some(want)) => assert!(error.contains(want), "{text}: {error}"),
                (found, want) => panic!("{text}: {:?}, not {want:?}", found.map(|_| "accepted")),
            }
        }
    }

    #[test]
    fn addresses_are_those_of_tcp() {
        let config = read("listen = [\"unix\", \"127.0.0.1:7433\"]").unwrap().config;
        assert_eq!(config.northbound.addresses(), ["127.0.0.1:7433".parse().unwrap()]);
    }
}
