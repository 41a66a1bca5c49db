//! The checked-in OpenAPI document, which gateways serve.

use acp_tests::house::{GATEWAY, House};
use acp_tests::scrape::get;
use acp_tests::world::repository;
use serde_json::Value;

/// The checked-in document.
pub(crate) fn document() -> Value {
    let text = std::fs::read_to_string(repository().join("docs/manual/openapi.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn gateway_serves_the_checked_in_document() {
    let house = House::new(&[]);
    let served = get(&house.world.path(GATEWAY).join("gateway.sock"), "/v1/openapi.json");
    assert!(served == document(), "the served document differs from docs/manual/openapi.json");
}
