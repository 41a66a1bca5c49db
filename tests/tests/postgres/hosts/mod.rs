//! Two gateways with one cell, and three hosts.

mod foreign;
