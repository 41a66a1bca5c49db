//! Gateways whose control plane is in a cell.

mod foreign;
