//! Alerts and board in Debian's Prometheus: the rules are accepted, each alert fires, and each panel has data.

use crate::metrics_address;
use crate::rules::{RULE_TESTS, RULES, board_queries};
use acp_testkit::processes::KillOnDrop;
use acp_tests::house::Plan;
use acp_tests::wait::{LONG, eventually};
use acp_tests::world::repository;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs promtool, which must succeed.
fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).current_dir(repository()).output();
    let output = output.unwrap_or_else(|e| panic!("promtool: {e}: run `make test-foreign`"));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {text}");
}

#[test]
#[ignore = "needs Debian's prometheus: make test-foreign"]
fn promtool_accepts_rules_and_each_alert_fires() {
    promtool(&["check", "rules", RULES]);
    promtool(&["test", "rules", RULE_TESTS]);
}

/// A Prometheus server that scrapes one address every second.
struct Prometheus {
    _process: KillOnDrop,
    address: String,
}

impl Prometheus {
    fn start(dir: &std::path::Path, target: &str) -> Self {
        let config = dir.join("prometheus.yml");
        let rules = repository().join(RULES);
        let text = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files:\n  - {}\nscrape_configs:\n  - \
             job_name: acp\n    static_configs:\n      - targets: [\"{target}\"]\n",
            rules.display()
        );
        std::fs::write(&config, text).unwrap();
        let log: PathBuf = dir.join("prometheus.log");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap_or_else(|e| panic!("prometheus: {e}: run `make test-foreign`"));
        let process = KillOnDrop(process);
        let address = eventually(LONG, "Prometheus listens", || {
            let text = std::fs::read_to_string(&log).unwrap();
            let line = text.lines().find(|line| line.contains("msg=\"Listening on\""))?.to_owned();
            Some(line.split("address=").nth(1)?.split_whitespace().next()?.to_owned())
        });
        Self { _process: process, address }
    }

    /// Number of results of a query.
    fn results(&self, query: &str) -> usize {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        // It reads its database first.
        if head.starts_with("HTTP/1.0 503") {
            return 0;
        }
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().map_or(0, Vec::len)
    }
}

#[test]
#[ignore = "needs Debian's prometheus: make test-foreign"]
fn every_panel_has_data_after_a_run() {
    // Nothing answers for this account: its series exist all the same.
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "discord-token").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!(
        "[metrics]\nlisten = \"127.0.0.1:0\"\n[channels.discord.accounts.main]\ntoken_file = \"{}\"\n\
         base_url = \"http://127.0.0.1:9\"\nallowed_users = [\"1\"]\n",
        token.display()
    );
    let (house, key) = Plan::flags(&[]).gateway(&config).build().with_session();
    let _ = house.prompt(&key, "say a");
    let _ = house.cli(&["prompt", &key, "error -32603 no"]);
    let _ = house.say("room", "1", "hello");
    let target = metrics_address(&house);
    let prometheus = Prometheus::start(dir.path(), &target);
    eventually(LONG, "two scrapes", || {
        (prometheus.results("rate(acp_store_commits_total[5m])") > 0).then_some(())
    });
    let empty: Vec<(String, String)> =
        board_queries().into_iter().filter(|(_, query)| prometheus.results(query) == 0).collect();
    assert_eq!(empty, [], "panels without data");
    let firing =
        prometheus.results("ALERTS{alertname!=\"AcpChannelDisconnected\",alertname!=\"AcpDiskAlmostFull\"}");
    assert_eq!(firing, 0, "an alert about a sound system");
}
