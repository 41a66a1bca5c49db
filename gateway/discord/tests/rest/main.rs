//! Requests over real sockets, against a server that answers as it is told.

mod limits;
mod lost;
mod order;
mod refused;
mod search;
mod secrets;
mod server;
