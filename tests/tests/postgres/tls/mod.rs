//! Connections with TLS to a server on loopback.

mod foreign;
