//! Every statement of the store on a server.

use super::of_store;
use acp_shared::clock::Clock;
use acp_store::cell::open::open_reader;
use acp_store::{GroupBounds, PgAddress, Store, StoreError};
use acp_testkit::postgres::Postgres;

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn every_statement_can_be_prepared() {
    let Some(server) = Postgres::start() else { return };
    let address = PgAddress::parse(&server.create_database("plane"), "main").unwrap();
    let dir = tempfile::tempdir().unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
    let clock = Clock::start();
    drop(Store::open_cell(dir.path(), &address, true, GroupBounds::default(), clock).unwrap());
    let db = open_reader(&address).unwrap();
    let statements = of_store();
    assert!(statements.len() > 120, "statements are found: {}", statements.len());
    let mut refused = Vec::new();
    for sql in &statements {
        let result = match db.run_named(sql, &[]) {
            // Prepared, but without its parameters, or on a connection that does not write.
            Err(StoreError::Refused(_) | StoreError::ReadOnly) | Ok(_) => continue,
            Err(error) => error.whole(),
        };
        // NULL in the place of each named parameter.
        if !result.contains("null value in column") {
            refused.push(format!("{sql}\n  {result}"));
        }
    }
    assert!(refused.is_empty(), "{} of {}: {}", refused.len(), statements.len(), refused.join("\n"));
}
