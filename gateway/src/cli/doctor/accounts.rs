//! What `doctor` says of each account of a channel that has a service behind it: as the gateway that serves it sees it,
//! or, where none does, what can be told from the configuration. Nothing is asked of the service itself.

use super::{Check, Verdict, check};
use crate::api::AccountView;
use crate::config::Config;
use crate::config::load::Loaded;
use crate::core::policy::{Bind, SPAWN_NOT_ALLOWED, Scope, effective};
use std::collections::BTreeMap;
use std::path::Path;

/// One line for each account. `served` is what a running gateway says of those that it serves; none: none runs.
pub(super) fn look(
    config: Option<&Config>,
    served: Option<&[AccountView]>,
    env: &BTreeMap<String, String>,
) -> Vec<Check> {
    let mut checks: Vec<Check> = served.unwrap_or_default().iter().map(running).collect();
    let is_served = |id: &str| {
        served.unwrap_or_default().iter().any(|view| view.channel == "discord" && view.account == *id)
    };
    let accounts = config.map(|config| &config.channels.discord.accounts).into_iter().flatten();
    for (id, account) in accounts.filter(|(id, _)| !is_served(id)) {
        let (verdict, text) = match (readable(id, account, env), served.is_some()) {
            (Err(why), _) => (Verdict::Failed, why),
            (Ok(text), false) => (Verdict::Ok, format!("{text}; not connected, since no gateway runs")),
            (Ok(text), true) => {
                let then = "the gateway does not serve it: it was added since its configuration was read, or could not \
                            be read there. Reload it (SIGHUP), and look into its log";
                (Verdict::Failed, format!("{text}; {then}"))
            }
        };
        checks.push(check("discord", verdict, format!("{id}: {text}")));
    }
    checks
}

/// One line for each account in which nobody may spawn into a conversation, with the key and the file that say so.
pub(super) fn spawning(loaded: &Loaded, file: &Path) -> Vec<Check> {
    let of = |id: &String| {
        let scope = Scope { channel: Some("discord".to_owned()), account: Some(id.clone()), agent: None };
        let refused = effective(loaded, &scope).may_bind(Bind::Spawn).err()?;
        let is_spawn = refused.detail_code.as_deref() == Some(SPAWN_NOT_ALLOWED);
        let text = format!("{id}: {} The file is {}.", refused.message, file.display());
        is_spawn.then(|| check("discord", Verdict::Note, text))
    };
    loaded.config.channels.discord.accounts.keys().filter_map(of).collect()
}

fn running(view: &AccountView) -> Check {
    let verdict = if view.ok { Verdict::Ok } else { Verdict::Failed };
    let name = if view.channel == "discord" { "discord" } else { "channel" };
    check(name, verdict, format!("{}: {}", view.account, view.details))
}

/// What an account would be served with; never its token.
#[cfg(feature = "discord")]
fn readable(
    id: &str,
    account: &crate::config::DiscordAccount,
    env: &BTreeMap<String, String>,
) -> Result<String, String> {
    let settings = crate::channel::discord::Settings::of(id, account, |name| env.get(name).cloned())?;
    let nobody = settings.door.allowed.is_empty() && settings.door.approvers.is_empty();
    let who =
        if nobody { "; nobody may speak there yet: name them in allowed_users or allowed_roles" } else { "" };
    Ok(format!("token readable, at {}{who}", settings.base.text()))
}

#[cfg(not(feature = "discord"))]
fn readable(
    _id: &str,
    _account: &crate::config::DiscordAccount,
    _env: &BTreeMap<String, String>,
) -> Result<String, String> {
    Err("this program was built without Discord: install one that was built with it".to_owned())
}

#[cfg(all(test, feature = "discord"))]
mod tests {
    use super::*;
    use crate::config::DiscordAccount;

    fn config(account: DiscordAccount) -> Config {
        let mut config = Config::default();
        config.channels.discord.accounts.insert("main".to_owned(), account);
        config
    }

    /// Whoever asks why /acp spawn is refused finds the key, and the file to set it in.
    #[test]
    fn where_nobody_may_spawn_the_key_and_the_file_are_named() {
        use crate::config::load::{Inputs, load};
        let account = "[channels.discord.accounts.main]\ntoken_env = \"T\"\n";
        let on = "[channels.discord.thread_bindings]\nspawn_acp_sessions = true\n";
        let of = |text: String| {
            let loaded = load(Inputs { file: Some((Path::new("/g.toml"), &text)), ..Inputs::default() });
            spawning(&loaded.unwrap_or_else(|error| panic!("{error}")), Path::new("/etc/g.toml"))
        };
        let [check] = &of(account.to_owned())[..] else { panic!() };
        assert_eq!((check.name, check.verdict), ("discord", Verdict::Note));
        let key = "channels.discord.thread_bindings.spawn_acp_sessions = true";
        for part in ["main: ", key, "The file is /etc/g.toml."] {
            assert!(check.detail.contains(part), "{part}: {check:?}");
        }
        assert_eq!((of(on.to_owned() + account).len(), of(on.to_owned()).len()), (0, 0));
    }

    #[test]
    fn each_account_has_a_line_and_no_line_has_a_token() {
        use Verdict::{Failed, Ok};
        let env = BTreeMap::from([("T".to_owned(), "hunter2".to_owned())]);
        let with =
            |name: &str| DiscordAccount { token_env: Some(name.to_owned()), ..DiscordAccount::default() };
        let open = DiscordAccount { allowed_users: vec!["7".to_owned()], ..with("T") };
        let elsewhere = DiscordAccount { base_url: Some("http://127.0.0.1:1".to_owned()), ..open.clone() };
        let view = |ok: bool| AccountView {
            channel: "discord".to_owned(),
            account: "main".to_owned(),
            ok,
            details: "connected".to_owned(),
        };
        for (account, served, verdict, wants) in [
            (open.clone(), None, Ok, vec!["main: token readable, at https://discord.com", "no gateway runs"]),
            (with("T"), None, Ok, vec!["nobody may speak"]),
            (elsewhere, None, Ok, vec!["http://127.0.0.1:1"]),
            (with("GONE"), None, Failed, vec!["token_file", "GONE"]),
            (open.clone(), Some(vec![]), Failed, vec!["does not serve it", "SIGHUP"]),
            (with("GONE"), Some(vec![view(true)]), Ok, vec!["main: connected"]),
            (open, Some(vec![view(false)]), Failed, vec!["main: connected"]),
        ] {
            let checks = look(Some(&config(account)), served.as_deref(), &env);
            let [check] = checks.as_slice() else { panic!("{checks:?}") };
            assert_eq!((check.name, check.verdict), ("discord", verdict), "{check:?}");
            assert!(wants.iter().all(|want| check.detail.contains(want)), "{check:?}");
            assert!(!check.detail.contains("hunter2"), "{check:?}");
        }
        assert!(look(None, None, &env).is_empty());
    }
}
