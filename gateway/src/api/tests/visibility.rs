//! The page of the visibility rule is what the rule answers.

use crate::tests::session_row;
use acp_core::config::Config;
use acp_core::config::load::{Inputs, load};
use acp_core::rows::SessionRow;
use acp_core::visibility::{Action, AgentRequester, Visibility};
use acp_shared::ids::{AgentName, GatewayInstanceId, SessionKey};
use std::fmt::Write as _;
use std::path::Path;

const ELSEWHERE: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

fn key(name: &str) -> SessionKey {
    SessionKey::parse(name).unwrap()
}

/// Session that nothing spawned.
fn kin_row(name: &str, agent: &str) -> SessionRow {
    SessionRow { agent: AgentName::parse(agent).unwrap(), ..session_row(&key(name)) }
}

fn configuration(text: &str) -> Config {
    load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() }).unwrap().config
}

/// Sessions by their kinship to session `me` of agent `one`.
fn kin() -> [(&'static str, Option<SessionRow>); 12] {
    let owned = |name: &str, agent: &str, root: &str, parent: &str| {
        Some(SessionRow {
            owner_session_key: Some(key(root)),
            spawned_by: Some(key(parent)),
            parent_session_key: Some(key(parent)),
            ..kin_row(name, agent)
        })
    };
    let child = owned("child", "one", "me", "me");
    let foreign = GatewayInstanceId::parse(ELSEWHERE).unwrap();
    [
        ("itself", Some(kin_row("me", "one"))),
        ("child, same agent", child.clone()),
        ("child, other agent", owned("child", "two", "me", "me")),
        ("child of a tree above, other agent", owned("child", "two", "root", "me")),
        ("grandchild, the requester is the root, other agent", owned("grandchild", "two", "me", "child")),
        ("grandchild, another root, other agent", owned("grandchild", "two", "root", "child")),
        ("no kin, same agent", Some(kin_row("other", "one"))),
        ("no kin, other agent", Some(kin_row("other", "two"))),
        ("parent, other agent", Some(kin_row("parent", "two"))),
        (
            "child, other gateway instance",
            child.clone().map(|row| SessionRow { gateway_instance_id: foreign, ..row }),
        ),
        ("child, unknown owner", child.map(|row| SessionRow { owner_session_key: None, ..row })),
        ("not found", None),
    ]
}

/// The answers of the rule, as tables of Markdown.
fn matrix() -> String {
    let a2a = [
        ("off", "enabled = false\nallow = [\"*\"]"),
        ("on, pair not allowed", "enabled = true\nallow = [\"two\"]\nsend = true"),
        ("on, pair allowed", "enabled = true\nallow = [\"one\", \"two\"]"),
        ("on, pair allowed, `send`", "enabled = true\nallow = [\"one\", \"two\"]\nsend = true"),
    ];
    let mut text = String::new();
    for (title, sandbox) in [
        ("Requester outside a sandbox", String::new()),
        (
            "Requester in a sandbox, `sandbox.session_visibility = \"tree\"`",
            "[agents.one]\nsandboxed = true\n".to_owned(),
        ),
        (
            "Requester in a sandbox, `sandbox.session_visibility = \"self\"`",
            "[agents.one]\nsandboxed = true\n[sandbox]\nsession_visibility = \"self\"\n".to_owned(),
        ),
        (
            "Requester in a sandbox, `sandbox.session_visibility = \"all\"`",
            "[agents.one]\nsandboxed = true\n[sandbox]\nsession_visibility = \"all\"\n".to_owned(),
        ),
    ] {
        let _ = writeln!(
            text,
            "### {title}\n\n| session | agent to agent | self | tree | agent | all |\n|---|---|---|---|---|---|"
        );
        for (name, row) in kin() {
            let mut lines: Vec<(&str, String)> = Vec::new();
            for (label, between) in a2a {
                let cells: String = Visibility::ALL
                    .iter()
                    .map(|visibility| {
                        let config = configuration(&format!(
                            "{sandbox}[tools.sessions]\nvisibility = \"{visibility}\"\n[tools.agent_to_agent]\n{between}\n"
                        ));
                        let me = AgentRequester::of_session(&kin_row("me", "one"), &config);
                        let may: Vec<&str> = Action::ALL
                            .into_iter()
                            .filter(|action| me.sees(row.as_ref(), *action))
                            .map(Action::as_str)
                            .collect();
                        match may.as_slice() {
                            [] => " – |".to_owned(),
                            some => format!(" {} |", some.join(", ")),
                        }
                    })
                    .collect();
                lines.push((label, cells));
            }
            let same = lines.iter().all(|(_, cells)| *cells == lines[0].1);
            for (label, cells) in if same { &lines[..1] } else { &lines[..] } {
                let label = if same { "any" } else { label };
                let _ = writeln!(text, "| {name} | {label} |{cells}");
            }
        }
        text.push('\n');
    }
    text
}

/// F1. With `ACP_WRITE_VISIBILITY=1` the matrix is written into the document.
#[test]
fn documented_matrix_is_what_the_rule_answers() {
    const BEGIN: &str = "<!-- matrix -->\n";
    const END: &str = "<!-- end of the matrix -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/design/visibility.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let wanted = matrix();
    if std::env::var_os("ACP_WRITE_VISIBILITY").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    assert!(found == wanted, "{} differs; write it with ACP_WRITE_VISIBILITY=1", path.display());
}
