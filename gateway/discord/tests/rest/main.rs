//! Tests of the REST client over real sockets, against a scripted server.

mod limits;
mod lost;
mod order;
mod refused;
mod search;
mod secrets;
mod server;
