//! Tests of the REST client over real sockets, against a scripted server.

mod limits;
mod lost_responses;
mod order;
mod rejections;
mod search;
mod secrets;
mod server;
