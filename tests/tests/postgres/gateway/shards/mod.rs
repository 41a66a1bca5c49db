//! Gateways that serve shards of one Discord application, each for a cell of its own.

mod foreign;
