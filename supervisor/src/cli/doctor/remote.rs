//! Checks of the address for gateways on other machines: certificate, tenants, port.

use super::Check;
use crate::config::Config;
use crate::context::wall_ms;
use crate::server::remote::RemoteAddress;
use acp_shared::identity::Identity;
use acp_shared::report::with_causes;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Rest of a certificate's validity below which it should be renewed, in seconds.
const RENEW_SECONDS: u64 = 14 * 24 * 3_600;
/// Maximum time to connect to an address of this machine.
const CONNECT: Duration = Duration::from_secs(2);

/// Returns no check if no address is configured.
pub(super) fn checks(config: &Config, running: bool) -> Vec<Check> {
    let Some(listen) = config.listen else { return Vec::new() };
    let name = "certificate";
    let (remote, host) = match RemoteAddress::load(config) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Vec::new(),
        Err(error) => {
            let means = "the supervisor does not start with it";
            return vec![Check::fail(
                name,
                with_causes(&error),
                means,
                "correct the file or its key in the configuration; for a new certificate, run `acp-gateway hosts enrol NAME` at \
                 the gateway and `acp-supervisor enrol` here",
            )];
        }
    };
    vec![certificate(name, &remote, &host, wall_ms() / 1_000), cells(config, &host), address(listen, running)]
}

/// Formats a day.
fn day(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.strftime("%Y-%m-%d").to_string())
}

fn certificate(name: &'static str, remote: &RemoteAddress, host: &Identity, now_seconds: u64) -> Check {
    match remote.tls.check(now_seconds) {
        Err(error) => Check::fail(
            name,
            format!("tls_{error}"),
            "gateways refuse this host",
            "have it signed again by the CA of tls_ca, or run `acp-supervisor enrol`; it is read again without a restart",
        ),
        Ok(end) if end < now_seconds.saturating_add(RENEW_SECONDS) => Check::warn(
            name,
            format!("{host}, valid until {}", day(end)),
            "gateways refuse this host after that",
            "renew it, for example with `acp-supervisor enrol`; it is read again without a restart",
        ),
        Ok(end) => {
            Check::ok(name, format!("{host}, valid until {}", day(end)), "gateways of its plane trust it")
        }
    }
}

fn cells(config: &Config, host: &Identity) -> Check {
    let name = "cells";
    let all: Vec<&str> = config.tenant.iter().filter_map(|tenant| tenant.cell.as_deref()).collect();
    let is_foreign = |cell: &&&str| cell.parse::<Identity>().is_ok_and(|cell| cell.plane != host.plane);
    let next = format!(
        "name a cell of plane {} in a [[tenant]]: cell = \"acp://{}/cell/ID\"",
        host.plane, host.plane
    );
    if let Some(cell) = all.iter().find(is_foreign) {
        return Check::fail(name, format!("{cell} is of another plane than {host}"), "it is refused", next);
    }
    match all.as_slice() {
        [] => {
            Check::warn(name, "no [[tenant]] has cell", "every gateway on another machine is refused", next)
        }
        all => Check::ok(name, all.join(", "), "their gateways may connect"),
    }
}

fn address(listen: SocketAddr, running: bool) -> Check {
    let name = "address";
    if !running {
        return match TcpListener::bind(listen) {
            Ok(_) => Check::ok(name, format!("{listen} is free"), "the supervisor can listen there"),
            Err(error) => {
                let next = "correct `listen`, or end the program that uses it";
                Check::fail(name, format!("{listen}: {error}"), "the supervisor does not start with it", next)
            }
        };
    }
    let mut there = listen;
    if there.ip().is_unspecified() {
        there.set_ip(if there.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    if there.port() == 0 {
        return Check::ok(name, listen.to_string(), "any free port, which is in the log of the supervisor");
    }
    match TcpStream::connect_timeout(&there, CONNECT) {
        Ok(_) => Check::ok(name, format!("{listen} answers"), "gateways on other machines can connect"),
        Err(error) => Check::fail(
            name,
            format!("{listen}: {error}"),
            "gateways on other machines cannot connect",
            "see the log of the supervisor; it reads `listen` at its start only",
        ),
    }
}
