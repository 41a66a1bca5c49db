#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::runtime::local_lookup;
use crate::tests::loaded;
use acp_core::config::PermissionMode;
use acp_core::error_messages::error_message;
use std::os::unix::fs::PermissionsExt;

fn agents(text: &str, env: &[(&str, &str)], dir: &Path) -> Agents {
    let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Agents::new(LiveConfig::new(loaded(text)), env, Path::new("/bin/sh"), dir)
}

fn profile(agents: &Agents, agent: &str) -> Result<AgentProfile, Failure> {
    let name = name(agent);
    agents.profile(&name, &local_lookup::look_up(&agents.lookup(&name, None, &[])))
}

fn cwd(agents: &Agents, agent: &str, requested: Option<&str>) -> Result<String, Failure> {
    let name = name(agent);
    agents.cwd(&name, requested, &local_lookup::look_up(&agents.lookup(&name, requested, &[])))
}

fn program(dir: &Path, name: &str, mode: u32) -> String {
    let path = dir.join(name);
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Creates these directories in a temporary one, and returns its canonical path.
fn tree(dirs: &[&str]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let real = std::fs::canonicalize(dir.path()).unwrap();
    dirs.iter().for_each(|sub| std::fs::create_dir_all(real.join(sub)).unwrap());
    (dir, real)
}

fn name(text: &str) -> AgentName {
    AgentName::parse(text).unwrap()
}

#[test]
fn agent_environment_has_allowed_variables_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let qwen = program(dir.path(), "qwen", 0o755);
    let path = dir.path().to_str().unwrap();
    let text = r#"
        [agents.qwen]
        env = { TOKEN = "t", LANG = "C" }
        env_allow = ["QWEN_*", "EXACT"]
        permission = "approve-all"
        config = { model = "m" }
        term_ms = 7
    "#;
    let env = [
        ("PATH", path),
        ("HOME", "/h"),
        ("LC_ALL", "x"),
        ("LANG", "de"),
        ("XDG_STATE_HOME", "/s"),
        ("DISCORD_TOKEN", "secret"),
        ("ACP_HOST_X__Y", "secret"),
        ("OPENCLAW_ACPX_LEASE_ID", "other"),
        ("QWEN_MODEL", "q"),
        ("EXACT", "e"),
        ("EXACTLY", "secret"),
    ];
    let profile = profile(&agents(text, &env, dir.path()), "qwen").unwrap();
    let seen: Vec<String> = profile.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let want = "EXACT=e HOME=/h LANG=C LC_ALL=x PATH={path} QWEN_CODE_NO_RELAUNCH=true QWEN_MODEL=q TOKEN=t \
                XDG_STATE_HOME=/s";
    assert_eq!(seen.join(" "), want.replace("{path}", path));
    assert_eq!(profile.argv, [qwen, "--acp".to_owned()]);
    assert_eq!(profile.graces, Graces { eof_ms: 5_000, term_ms: 7, kill_ms: 5_000 });
    assert_eq!((profile.mode.as_deref(), profile.permission), (Some("default"), PermissionMode::ApproveAll));
    assert_eq!(profile.options, [("model".to_owned(), "m".to_owned())]);
}

#[test]
fn refused_agents_have_reasons() {
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "goose", 0o644);
    let path = dir.path().to_str().unwrap();
    let text =
        "[acp]\nallowed_agents = [\"demo\", \"goose\", \"gosse\", \"bare\"]\n[agents.bare]\nmode = \"x\"\n";
    let agents = agents(text, &[("PATH", path)], dir.path());
    for (agent, want) in [
        ("qwen", "not in acp.allowed_agents"),
        ("goose", "goose is not installed here. Install it: npm install"),
        ("gosse", "Did you mean goose?"),
        ("bare", "Unknown agent bare"),
    ] {
        let failure = profile(&agents, agent).unwrap_err();
        assert_eq!(failure.code, Code::AgentNotAllowed);
        assert!(failure.message.contains(want), "{want:?} is not in {:?}", failure.message);
    }
    assert_eq!(agents.default_agent().unwrap_err().code, Code::AgentNotAllowed);
    assert!(profile(&agents, "demo").unwrap().argv.contains(&"demo-agent".to_owned()));
}

#[test]
fn agent_behind_package_runner_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let npx = program(dir.path(), "npx", 0o755);
    let path = format!("relative:{}", dir.path().display());
    let agents = agents("", &[("PATH", &path)], dir.path());
    let views = agents.list(&local_lookup::look_up(&agents.lookup_all()));
    let view = |agent: &str| views.iter().find(|view| view.name.as_str() == agent).unwrap().clone();
    assert_eq!((view("qwen").installed, view("qwen").path), (false, Some(npx)));
    assert_eq!((view("goose").installed, view("goose").path), (false, None));
    assert!(view("demo").installed && view("demo").allowed);
}

#[test]
fn working_directory_must_be_below_roots() {
    let (dir, real) = tree(&["root/in", "root2", "out"]);
    let at = |rest: &str| real.join(rest).to_str().unwrap().to_owned();
    std::fs::write(real.join("root/file"), "").unwrap();
    std::os::unix::fs::symlink(real.join("out"), real.join("root/link")).unwrap();
    let text = format!("[agents.demo]\ncwd_roots = [\"{}\"]\n", at("root"));
    let agents = agents(&text, &[("HOME", &at("root"))], dir.path());
    for (requested, want) in [
        (Some(at("root/in")), Some(at("root/in"))),
        (Some(at("root/in/..")), Some(at("root"))),
        (None, Some(at("root"))),
        (Some(at("root2")), None),
        (Some(at("out")), None),
        (Some(at("root/link")), None),
        (Some(at("root/../out")), None),
        (Some(at("root/file")), None),
        (Some(at("root/none")), None),
        (Some("root".to_owned()), None),
        (Some(String::new()), None),
    ] {
        let got = cwd(&agents, "demo", requested.as_deref());
        assert_eq!(got.as_ref().ok(), want.as_ref(), "{requested:?}: {got:?}");
        assert!(got.is_ok() || got.is_err_and(|failure| failure.code == Code::CwdNotAllowed));
    }
    assert_eq!(cwd(&agents, "other", Some(&at("out"))).unwrap(), at("out"));
}

/// Roots of the gateway and of the agent both apply. Unresolvable roots permit nothing.
#[test]
fn gateway_and_agent_roots_both_apply() {
    let (dir, real) = tree(&["work/mine/deep", "work/other", "out"]);
    let at = |rest: &str| real.join(rest).to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(real.join("out"), real.join("work/link")).unwrap();
    std::os::unix::fs::symlink(real.join("work"), real.join("alias")).unwrap();
    let acp = |roots: &str| format!("[acp]\nworkspace_roots = [\"{roots}\"]\n");
    let demo = |roots: &str| format!("[agents.demo]\ncwd_roots = [\"{roots}\"]\n");
    for (text, requested, want) in [
        (acp(&at("work")), at("work/other"), Ok(at("work/other"))),
        (acp(&at("alias")), at("work/other"), Ok(at("work/other"))),
        (acp(&at("work")), at("alias/other"), Ok(at("work/other"))),
        (acp(&at("work")), at("out"), Err("acp.workspace_roots")),
        (acp(&at("work")), at("work/link"), Err("acp.workspace_roots")),
        (acp(&at("gone")), at("work/other"), Err("acp.workspace_roots")),
        ([acp(&at("work")), demo(&at("work/mine"))].concat(), at("work/mine/deep"), Ok(at("work/mine/deep"))),
        ([acp(&at("work")), demo(&at("work/mine"))].concat(), at("work/other"), Err("agents.demo.cwd_roots")),
        ([acp(&at("work")), demo(&at("out"))].concat(), at("out"), Err("acp.workspace_roots")),
        ([acp(&at("work")), demo(&at("gone"))].concat(), at("work/other"), Err("agents.demo.cwd_roots")),
    ] {
        let got = cwd(&agents(&text, &[], dir.path()), "demo", Some(&requested));
        match want {
            Ok(want) => assert_eq!(got.unwrap(), want, "{text}"),
            Err(key) => {
                let failure = got.unwrap_err();
                assert_eq!(failure.code, Code::CwdNotAllowed);
                let reason = format!("outside of {key}");
                assert!(failure.message.contains(&reason), "{reason:?} is not in {:?}", failure.message);
                assert!(failure.message.contains("set by /g.toml:"), "{}", failure.message);
            }
        }
    }
    // The default directory is checked in the same way.
    let text = format!("[acp]\ndefault_cwd = \"{}\"\nworkspace_roots = [\"{}\"]\n", at("out"), at("work"));
    assert!(cwd(&agents(&text, &[], dir.path()), "demo", None).is_err());
}

#[test]
fn reload_applies_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let agents = agents("", &[("SECRET", "s")], dir.path());
    assert!(profile(&agents, "demo").unwrap().env.is_empty());
    agents.live.replace(loaded("[acp]\nenv_allow = [\"SEC*\"]\n")).unwrap();
    assert_eq!(profile(&agents, "demo").unwrap().env, [("SECRET".to_owned(), "s".to_owned())]);
    agents.live.replace(loaded("[acp]\nallowed_agents = [\"goose\"]\n")).unwrap();
    let failure = profile(&agents, "demo").unwrap_err();
    assert!(failure.message.contains("not in acp.allowed_agents (goose; set by /g.toml:2)"), "{failure}");
}

#[test]
fn gemini_gets_write_access_only_by_default() {
    use acp_core::config::ClientFs;
    let dir = tempfile::tempdir().unwrap();
    for program_name in ["gemini", "qwen"] {
        program(dir.path(), program_name, 0o755);
    }
    let env = [("PATH", dir.path().to_str().unwrap())];
    for (text, agent, want) in [
        ("", "gemini", ClientFs::Write),
        ("[agents.gemini]\nclient_fs = \"none\"\n", "gemini", ClientFs::None),
        ("", "qwen", ClientFs::Both),
        ("[agents.qwen]\nclient_fs = \"read\"\n", "qwen", ClientFs::Read),
    ] {
        let profile = profile(&agents(text, &env, dir.path()), agent).unwrap();
        assert_eq!(profile.client_fs, want, "{agent} {text}");
    }
}

/// The preset's promise holds for its own command and variables only.
#[test]
fn an_agent_with_a_changed_command_or_decisive_variable_is_not_vouched_for() {
    let dir = tempfile::tempdir().unwrap();
    let programs = ["opencode", "cline", "other"].map(|name| program(dir.path(), name, 0o755));
    let other = &programs[2];
    let env = [("PATH", dir.path().to_str().unwrap())];
    for (agent, text, want) in [
        ("opencode", String::new(), true),
        ("opencode", "env = { OPENCODE_PERMISSION = '{\"edit\":\"allow\"}' }".to_owned(), false),
        ("opencode", "env = { TOKEN = 't' }".to_owned(), true),
        ("opencode", "command = [\"opencode\", \"acp\"]".to_owned(), true),
        ("opencode", format!("command = [\"{}\", \"acp\"]", programs[0]), true),
        ("opencode", format!("command = [\"{other}\", \"acp\"]"), false),
        ("opencode", "command = [\"opencode\", \"acp\", \"--pure\"]".to_owned(), false),
        ("cline", String::new(), true),
        ("cline", "command = [\"cline\", \"--acp\", \"--yolo\"]".to_owned(), false),
        ("cline", "command = [\"cline\", \"--acp\", \"--yolo\"]\nasks = true".to_owned(), true),
        ("cline", "asks = false".to_owned(), false),
        ("demo", String::new(), true),
        ("demo", format!("command = [\"{other}\"]"), false),
        ("other", format!("command = [\"{other}\"]"), false),
    ] {
        let agents = agents(&format!("[agents.{agent}]\n{text}\n"), &env, dir.path());
        if agents.is_known(&name(agent)) {
            assert_eq!(agents.configured(&name(agent)).unwrap().asks, want, "{agent}: {text}");
        }
    }
}

/// The conversation's text shows neither the roots nor the directory nor the place of the configuration.
#[test]
fn refused_directories_and_programs_show_conversations_no_path() {
    let (dir, real) = tree(&["my work/in", "out"]);
    let at = |rest: &str| real.join(rest).to_str().unwrap().to_owned();
    let text = format!(
        "[acp]\nworkspace_roots = [\"/srv\", \"{}\"]\n[agents.gone]\ncommand = [\"{}\"]\n",
        at("my work"),
        at("my work/gone")
    );
    let agents = agents(&text, &[], dir.path());
    let refusals = ["out", "my work/none", "my work/in/none"].map(|it| cwd(&agents, "demo", Some(&at(it))));
    let relative = cwd(&agents, "demo", Some("my work")).unwrap_err();
    let gone = profile(&agents, "gone").unwrap_err();
    for failure in refusals.map(Result::unwrap_err).iter().chain([&relative, &gone]) {
        let shown = error_message(failure);
        for part in [at("").as_str(), "/srv", "my work", "g.toml:2)"] {
            let is_place = part.starts_with("g.toml");
            assert!(is_place || !shown.contains(part), "{part:?} is in {shown:?}");
        }
        assert!(failure.message.contains("my work") || failure.message.contains("/out"), "{failure:?}");
    }
}
