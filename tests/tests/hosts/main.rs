//! Hosts: agents on other machines, here processes of this one on loopback addresses.

mod gateway;
mod plane;
