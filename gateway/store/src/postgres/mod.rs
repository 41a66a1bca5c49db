//! Connections to PostgreSQL 15 and later: the dialect of its SQL and its values. Source: the PostgreSQL manual,
//! "Frontend/Backend Protocol".

mod address;
mod connection;
mod dialect;
mod tls;
mod values;

pub use address::PgAddress;
pub(crate) use connection::{PgAppender, PgConnection};
pub(crate) use values::PgRow;
