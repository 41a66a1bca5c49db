//! Requests that schemathesis makes from the OpenAPI document (`.ci/openapi-fuzz` installs it): no answer is an internal
//! error or undocumented.

use acp_tests::house::{House, Plan};
use acp_tests::wait::{SOON, eventually};
use acp_tests::world::repository;
use serde_json::Value;
use std::process::Command;

/// Operations after which a session tells little more.
const ENDINGS: [&str; 3] = ["close", "delete", "archive"];

/// Address of the gateway's TCP listener, as `doctor` reports it.
fn address(house: &House) -> String {
    eventually(SOON, "a listener", || {
        let checks: Value = house.cli(&["doctor"]).lines().into_iter().next()?;
        let line = checks.as_array()?.iter().find(|check| check["name"] == "listener")?;
        Some(line["detail"].as_str()?.split(": ").nth(1)?.to_owned())
    })
}

/// `ACP_OPENAPI_SECONDS` tells how long, 60 by default; `ACP_TEST_SEED` which requests. They reach a gateway of this test
/// only, whose agents work below its directory.
#[test]
#[ignore = "installs schemathesis: `make nightly`"]
fn nightly_schemathesis_finds_no_undocumented_answer() {
    let seconds = std::env::var("ACP_OPENAPI_SECONDS").map_or(60, |text| text.parse::<u64>().unwrap());
    let house = Plan::flags(&[])
        .permission("approve-all")
        .gateway("[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n")
        .build();
    let token = house.verb(&["token", "add", "fuzz", "--scope", "admin"]);
    let token = token["token"].as_str().unwrap();
    let url = format!("http://{}", address(&house));
    let exclude = ENDINGS.map(|id| format!("--exclude-operation-id={id}"));
    for (seconds, exclude) in [(seconds * 3 / 4, &exclude[..]), (seconds / 4, &[])] {
        let key = house.spawn();
        let mut command = Command::new(repository().join(".ci/openapi-fuzz"));
        let status = command.args([&url, token, &seconds.to_string(), &key]).args(exclude).status().unwrap();
        assert!(status.success(), "see the output: {status}");
    }
    house.end();
}
