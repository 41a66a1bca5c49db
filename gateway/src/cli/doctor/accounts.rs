//! Checks of `doctor` for each Discord account: as the running gateway reports it, or, without a gateway,
//! from the configuration alone. Discord itself is not contacted.

use super::{Check, CheckStatus, check};
#[cfg(feature = "discord")]
use crate::channel::discord::setup::{TOKEN_FORM, is_token};
use acp_core::api::AccountView;
use acp_core::config::load::LoadedConfig;
use acp_core::config::{Binding, Config};
use acp_core::policy::{BindOrigin, PolicyScope, SPAWN_NOT_ALLOWED, effective_policy};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the checks of all accounts. `served` is the report of a running gateway; `None` if no gateway
/// runs.
pub(super) fn check_accounts(
    config: Option<&Config>,
    served: Option<&[AccountView]>,
    env: &BTreeMap<String, String>,
) -> Vec<Check> {
    let mut checks: Vec<Check> = served.unwrap_or_default().iter().map(running).collect();
    let is_served = |id: &str| {
        served.unwrap_or_default().iter().any(|view| view.channel == "discord" && view.account == *id)
    };
    let accounts = config.map(|config| &config.channels.discord.accounts).into_iter().flatten();
    for (id, account) in accounts {
        let bindings = config.map_or(&[][..], |config| &config.bindings);
        let oddities = account_issues(id, account, bindings, env).into_iter();
        checks.extend(oddities.map(|(verdict, text)| check("discord", verdict, format!("{id}: {text}"))));
        if is_served(id) {
            continue;
        }
        let (verdict, text) = match (readable(id, account, env), served.is_some()) {
            (Err(why), _) => (CheckStatus::Failed, why),
            (Ok(text), false) => (CheckStatus::Ok, format!("{text}; not connected, because no gateway runs")),
            (Ok(text), true) => {
                let then = "the gateway does not serve it: the account was added after the gateway loaded its \
                            configuration, or the gateway could not read its settings. Send SIGHUP to reload, \
                            and read the gateway's log";
                (CheckStatus::Failed, format!("{text}; {then}"))
            }
        };
        checks.push(check("discord", verdict, format!("{id}: {text}")));
    }
    checks
}

/// Returns a note for each account that may not spawn into conversations, with the deciding key and file.
pub(super) fn spawning(loaded: &LoadedConfig, file: &Path) -> Vec<Check> {
    let of = |id: &String| {
        let scope =
            PolicyScope { channel: Some("discord".to_owned()), account: Some(id.clone()), agent: None };
        let refused = effective_policy(loaded, &scope).may_bind(BindOrigin::Spawn).err()?;
        let is_spawn = refused.detail_code.as_deref() == Some(SPAWN_NOT_ALLOWED);
        let text = format!("{id}: {} The file is {}.", refused.message, file.display());
        is_spawn.then(|| check("discord", CheckStatus::Note, text))
    };
    loaded.config.channels.discord.accounts.keys().filter_map(of).collect()
}

fn running(view: &AccountView) -> Check {
    let verdict = if view.ok { CheckStatus::Ok } else { CheckStatus::Failed };
    let name = if view.channel == "discord" { "discord" } else { "channel" };
    check(name, verdict, format!("{}: {}", view.account, view.details))
}

/// Summarizes the settings of an account, without its token.
#[cfg(feature = "discord")]
fn readable(
    id: &str,
    account: &acp_core::config::DiscordAccount,
    env: &BTreeMap<String, String>,
) -> Result<String, String> {
    let settings = crate::channel::discord::AccountSettings::of(id, account, |name| env.get(name).cloned())?;
    let nobody = settings.access.allowed.is_empty() && settings.access.approvers.is_empty();
    let who = if nobody { "; no user may talk to it yet: set allowed_users or allowed_roles" } else { "" };
    Ok(format!("token readable, at {}{who}", settings.base.as_str()))
}

/// Lists settings that Discord rejects (form of token and ids), and a token file that other users can read.
#[cfg(feature = "discord")]
fn account_issues(
    id: &str,
    account: &acp_core::config::DiscordAccount,
    bindings: &[Binding],
    env: &BTreeMap<String, String>,
) -> Vec<(CheckStatus, String)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = Vec::new();
    if let Some((file, meta)) =
        account.token_file.as_ref().and_then(|f| Some((f, std::fs::metadata(f).ok()?)))
    {
        let mode = meta.permissions().mode() & 0o777;
        let verdict = if mode & 0o007 == 0 { CheckStatus::Note } else { CheckStatus::Failed };
        if mode & 0o077 != 0 {
            found.push((
                verdict,
                format!(
                    "token_file {file} has mode {mode:04o}: other users can read it; run chmod 600 on it"
                ),
            ));
        }
    }
    let is_discords = account.base_url.is_none();
    let settings = crate::channel::discord::AccountSettings::of(id, account, |name| env.get(name).cloned());
    if is_discords && settings.is_ok_and(|settings| !is_token(settings.token.expose())) {
        found.push((CheckStatus::Failed, TOKEN_FORM.to_owned()));
    }
    let lists = [
        ("guilds", &account.guilds),
        ("allowed_channels", &account.allowed_channels),
        ("allowed_users", &account.allowed_users),
        ("allowed_roles", &account.allowed_roles),
        ("approver_users", &account.approver_users),
        ("approver_roles", &account.approver_roles),
    ];
    let ids = lists.into_iter().flat_map(|(name, ids)| ids.iter().map(move |it| (name.to_owned(), it)));
    let is_of_account = |entry: &Binding| {
        entry.channel == "discord"
            && (entry.account == *id || entry.account == acp_core::config::bindings::ANY_ACCOUNT)
    };
    let bound = bindings.iter().enumerate().filter(|(_, entry)| is_of_account(entry));
    let bound = bound.map(|(index, entry)| (format!("bindings.{index}.conversation"), &entry.conversation));
    let is_id = |text: &str| (17..=20).contains(&text.len()) && text.parse::<u64>().is_ok();
    for (name, wrong) in ids.chain(bound).filter(|(_, text)| is_discords && !is_id(text)) {
        let text = format!("{name}: {wrong:?} is not a Discord id, which has 17 to 20 digits");
        found.push((CheckStatus::Failed, text));
    }
    found
}

#[cfg(not(feature = "discord"))]
fn account_issues(
    _id: &str,
    _account: &acp_core::config::DiscordAccount,
    _bindings: &[Binding],
    _env: &BTreeMap<String, String>,
) -> Vec<(CheckStatus, String)> {
    Vec::new()
}

#[cfg(not(feature = "discord"))]
fn readable(
    _id: &str,
    _account: &acp_core::config::DiscordAccount,
    _env: &BTreeMap<String, String>,
) -> Result<String, String> {
    Err("this program was built without Discord support: install a build that has it".to_owned())
}

#[cfg(all(test, feature = "discord"))]
mod tests {
    use super::*;
    use acp_core::config::DiscordAccount;

    fn config(account: DiscordAccount) -> Config {
        let mut config = Config::default();
        config.channels.discord.accounts.insert("main".to_owned(), account);
        config
    }

    #[test]
    fn spawn_hint_names_key_and_file() {
        use acp_core::config::load::{Inputs, load};
        let account = "[channels.discord.accounts.main]\ntoken_env = \"T\"\n";
        let on = "[channels.discord.thread_bindings]\nspawn_acp_sessions = true\n";
        let of = |text: String| {
            let loaded = load(Inputs { file: Some((Path::new("/g.toml"), &text)), ..Inputs::default() });
            spawning(&loaded.unwrap_or_else(|error| panic!("{error}")), Path::new("/etc/g.toml"))
        };
        let [check] = &of(account.to_owned())[..] else { panic!() };
        assert_eq!((check.name, check.verdict), ("discord", CheckStatus::Note));
        let key = "channels.discord.thread_bindings.spawn_acp_sessions = true";
        for part in ["main: ", key, "The file is /etc/g.toml."] {
            assert!(check.detail.contains(part), "{part}: {check:?}");
        }
        assert_eq!((of(on.to_owned() + account).len(), of(on.to_owned()).len()), (0, 0));
    }

    #[test]
    fn accounts_are_checked_without_showing_tokens() {
        use CheckStatus::{Failed, Ok};
        let env = BTreeMap::from([("T".to_owned(), "hunter2hunter2.hunter2.hunter2-hunter2".to_owned())]);
        let with =
            |name: &str| DiscordAccount { token_env: Some(name.to_owned()), ..DiscordAccount::default() };
        let open = DiscordAccount { allowed_users: vec!["184467440737095516".to_owned()], ..with("T") };
        let elsewhere = DiscordAccount { base_url: Some("http://127.0.0.1:1".to_owned()), ..open.clone() };
        let view = |ok: bool| AccountView {
            channel: "discord".to_owned(),
            account: "main".to_owned(),
            ok,
            details: "connected".to_owned(),
        };
        for (account, served, verdict, wants) in [
            (open.clone(), None, Ok, vec!["main: token readable, at https://discord.com", "no gateway runs"]),
            (with("T"), None, Ok, vec!["no user may talk to it"]),
            (elsewhere, None, Ok, vec!["http://127.0.0.1:1"]),
            (with("GONE"), None, Failed, vec!["token_file", "GONE"]),
            (open.clone(), Some(vec![]), Failed, vec!["does not serve it", "SIGHUP"]),
            (with("GONE"), Some(vec![view(true)]), Ok, vec!["main: connected"]),
            (open, Some(vec![view(false)]), Failed, vec!["main: connected"]),
        ] {
            let checks = check_accounts(Some(&config(account)), served.as_deref(), &env);
            let [check] = checks.as_slice() else { panic!("{checks:?}") };
            assert_eq!((check.name, check.verdict), ("discord", verdict), "{check:?}");
            assert!(wants.iter().all(|want| check.detail.contains(want)), "{check:?}");
            assert!(!check.detail.contains("hunter2"), "{check:?}");
        }
        assert!(check_accounts(None, None, &env).is_empty());
    }

    /// Lists tokens and ids of a wrong form, and token files with a wrong mode.
    #[test]
    fn malformed_tokens_and_ids_are_reported() {
        use CheckStatus::{Failed, Note};
        use std::os::unix::fs::PermissionsExt as _;
        let good = "hunter2hunter2.hunter2.hunter2-hunter2";
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = dir.path().join("token");
        let write = |text: &str, mode: u32| {
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))
        };
        let none: &[(CheckStatus, &str)] = &[];
        let elsewhere = Some("http://127.0.0.1:1");
        for (text, mode, base_url, ids, want) in [
            (good, 0o600, None, &["184467440737095516"][..], none),
            (good, 0o400, None, &[], none),
            ("hunter2", 0o600, elsewhere, &["7"], none),
            ("hunter2", 0o600, None, &[], &[(Failed, "form of a bot token")][..]),
            ("Bot.hunter2", 0o600, None, &[], &[(Failed, "form of a bot token")]),
            (good, 0o640, None, &[], &[(Note, "mode 0640")]),
            (good, 0o644, None, &[], &[(Failed, "mode 0644")]),
            ("hunter2", 0o644, None, &[], &[(Failed, "mode 0644"), (Failed, "form of a bot token")]),
            (good, 0o600, None, &["7"], &[(Failed, "allowed_users: \"7\"")]),
            (good, 0o600, None, &["ann", "12345678901234567x"], &[(Failed, "\"ann\""), (Failed, "7x\"")]),
        ] {
            write(text, mode).unwrap_or_else(|error| panic!("{error}"));
            let account = DiscordAccount {
                token_file: Some(file.display().to_string()),
                base_url: base_url.map(str::to_owned),
                allowed_users: ids.iter().map(|&id| id.to_owned()).collect(),
                ..DiscordAccount::default()
            };
            let found = account_issues("main", &account, &[], &BTreeMap::new());
            let is_as_wanted = found.len() == want.len()
                && found.iter().zip(want).all(|(found, want)| found.0 == want.0 && found.1.contains(want.1));
            assert!(is_as_wanted, "{found:?} {want:?}");
            assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        }
    }

    /// Ids of conversations in `[[bindings]]`, for the accounts that they apply to.
    #[test]
    fn static_bindings_of_wrong_ids_are_named() {
        let env = BTreeMap::from([("T".to_owned(), "hunter2hunter2.hunter2.hunter2-hunter2".to_owned())]);
        let entry = |channel: &str, account: &str, conversation: &str| Binding {
            channel: channel.to_owned(),
            account: account.to_owned(),
            conversation: conversation.to_owned(),
            ..Binding::default()
        };
        let elsewhere = Some("http://127.0.0.1:1".to_owned());
        for (bindings, base_url, want) in [
            (vec![entry("discord", "*", "184467440737095516")], None, &[][..]),
            (vec![entry("console", "*", "general")], None, &[]),
            (vec![entry("discord", "other", "general")], None, &[]),
            (vec![entry("discord", "main", "7")], elsewhere, &[]),
            (
                vec![entry("discord", "main", "general"), entry("discord", "*", "12345678901234567x")],
                None,
                &["bindings.0.conversation: \"general\"", "bindings.1.conversation: \"12345678901234567x\""],
            ),
        ] {
            let account =
                DiscordAccount { token_env: Some("T".to_owned()), base_url, ..DiscordAccount::default() };
            let config = Config { bindings, ..config(account) };
            let checks = check_accounts(Some(&config), None, &env);
            let failed = checks.iter().filter(|check| check.verdict == CheckStatus::Failed);
            let failed: Vec<&str> = failed.map(|check| check.detail.as_str()).collect();
            assert_eq!(failed.len(), want.len(), "{failed:?}");
            for (found, want) in failed.iter().zip(want) {
                assert!(found.contains(want) && found.contains("17 to 20 digits"), "{found}");
            }
        }
    }
}
