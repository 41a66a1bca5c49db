//! Cells: control planes in PostgreSQL, each in a schema of its own. What a cell is opened, owned and inspected by; statements
//! run on the connections of [`crate::postgres`].

pub mod inspect;
pub mod open;
pub(crate) mod ownership;
pub mod plane;

pub use ownership::{CellServer, Tenure, take_lock};
pub(crate) use ownership::{Owner, OwnerId};
