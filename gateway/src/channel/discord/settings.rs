//! Settings of a Discord account from the configuration.

use crate::channel::discord::allow_list::{AccessRules, Principals};
use acp_core::config::DiscordAccount;
use acp_discord::core::base_url::BaseUrl;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::PER_SECOND;
use acp_shared::redact::Secret;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4_096;

/// Settings of an account.
#[derive(Debug, Clone)]
pub(crate) struct AccountSettings {
    /// Token of the bot.
    pub(crate) token: Secret,
    /// Address of Discord.
    pub(crate) base: BaseUrl,
    /// Authorization rules.
    pub(crate) access: AccessRules,
    /// Conversations bound by the configuration: messages there, and in threads below, are for agents.
    pub(crate) static_bindings: BTreeSet<Snowflake>,
    /// Channels of projects: messages there open threads. True if only a message that mentions the bot does.
    pub(crate) projects: BTreeMap<Snowflake, bool>,
    /// True if only messages that mention the bot are passed to agents, in servers.
    pub(crate) require_mention: bool,
    /// True if answers of agents are sent through webhooks, under the agents' names.
    pub(crate) personas: bool,
}

impl AccountSettings {
    /// Creates the settings of an account; `env` returns the value of an environment variable.
    ///
    /// # Errors
    /// A sentence with the problem and the remedy.
    pub(crate) fn of(
        id: &str,
        account: &DiscordAccount,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let key = |name: &str| format!("channels.discord.accounts.{id}.{name}");
        let base = match &account.base_url {
            None => BaseUrl::discord(),
            Some(url) => BaseUrl::parse(url),
        };
        let base = base.map_err(|why| format!("{}: {why}", key("base_url")))?;
        let ids =
            |name: &str, ids: &[String]| -> Result<BTreeSet<Snowflake>, String> {
                let read =
                    |text: &String| {
                        text.parse().map_err(|_| {
                    format!("{}: {text:?} is not an id. Turn on Developer Mode in Discord, right-click, and \
                             copy the id.", key(name))
                })
                    };
                ids.iter().map(read).collect()
            };
        let access = AccessRules {
            shards: account.shards,
            guilds: ids("guilds", &account.guilds)?,
            channels: ids("allowed_channels", &account.allowed_channels)?,
            allowed: Principals {
                users: ids("allowed_users", &account.allowed_users)?,
                roles: ids("allowed_roles", &account.allowed_roles)?,
            },
            approvers: Principals {
                users: ids("approver_users", &account.approver_users)?,
                roles: ids("approver_roles", &account.approver_roles)?,
            },
        };
        let token = token(account, env).map_err(|why| format!("{}: {why}", key("token_file")))?;
        Ok(Self {
            token,
            base,
            access,
            static_bindings: BTreeSet::new(),
            projects: BTreeMap::new(),
            require_mention: account.require_mention,
            personas: false,
        })
    }
}

impl AccountSettings {
    /// Requests per second: the part of the application's that belongs to the account's shards.
    pub(crate) fn per_second(&self) -> u32 {
        self.access.shards.map_or(PER_SECOND, |shards| shards.part_of(PER_SECOND))
    }
}

fn token(account: &DiscordAccount, env: impl Fn(&str) -> Option<String>) -> Result<Secret, String> {
    let how = "Put the bot's token (Discord's Developer Portal, Bot, Reset Token) into a file of mode 0600 and name \
               it here, or name an environment variable in `token_env`.";
    let text = match (&account.token_file, &account.token_env) {
        (Some(file), _) => {
            std::fs::read_to_string(file).map_err(|why| format!("{file} cannot be read: {why}. {how}"))?
        }
        (None, Some(name)) => {
            env(name).ok_or_else(|| format!("the environment variable {name} is not set. {how}"))?
        }
        (None, None) => return Err(format!("no token is configured. {how}")),
    };
    let text = text.trim();
    if text.is_empty() || text.len() > TOKEN_BYTES_MAX || text.contains(char::is_whitespace) {
        return Err(format!("the configured value is not a token. {how}"));
    }
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_core::shards::ShardRange;
    use std::path::Path;

    fn account() -> DiscordAccount {
        DiscordAccount { token_env: Some("T".to_owned()), ..DiscordAccount::default() }
    }

    fn parse_account(account: &DiscordAccount) -> Result<AccountSettings, String> {
        AccountSettings::of("main", account, |name| (name == "T").then(|| " secret\n".to_owned()))
    }

    #[test]
    fn token_is_read_from_file_or_environment_and_not_shown() {
        let from_env = parse_account(&account()).unwrap();
        assert_eq!(from_env.token.expose(), "secret");
        assert!(!format!("{from_env:?}").contains("secret"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let with_file =
            |file: &Path| DiscordAccount { token_file: Some(file.display().to_string()), ..account() };
        std::fs::write(&file, "other\n").unwrap();
        assert_eq!(parse_account(&with_file(&file)).unwrap().token.expose(), "other");
        std::fs::write(&file, "two words").unwrap();
        for (account, want) in [
            (with_file(&file), "is not a token"),
            (with_file(&dir.path().join("none")), "cannot be read"),
            (DiscordAccount { token_env: Some("X".to_owned()), ..account() }, "X is not set"),
            (DiscordAccount::default(), "no token is configured"),
        ] {
            let why = parse_account(&account).unwrap_err();
            let parts = [want, "channels.discord.accounts.main.token_file", "Developer Portal"];
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
            assert!(!why.contains("two words"), "{why}");
        }
    }

    #[test]
    fn base_url_selects_another_service() {
        let at_url =
            |url: &str| parse_account(&DiscordAccount { base_url: Some(url.to_owned()), ..account() });
        assert!(!at_url("http://127.0.0.1:9").unwrap().base.is_official());
        assert!(parse_account(&account()).unwrap().base.is_official());
        assert!(
            at_url("http://discord.com").unwrap_err().contains("channels.discord.accounts.main.base_url")
        );
    }

    #[test]
    fn shards_limit_servers_and_requests() {
        let per_second =
            |shards| parse_account(&DiscordAccount { shards, ..account() }).unwrap().per_second();
        assert_eq!(per_second(None), 40);
        let shards = ShardRange { from: 16, to: 32, of: 64 };
        assert_eq!(per_second(Some(shards)), 10);
        let settings = parse_account(&DiscordAccount { shards: Some(shards), ..account() }).unwrap();
        let guild = |shard: u64| Some(Snowflake(shard << 22));
        assert!(settings.access.is_guild_allowed(guild(31)) && !settings.access.is_guild_allowed(guild(32)));
    }

    #[test]
    fn users_roles_and_servers_must_be_ids() {
        let list = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let named = DiscordAccount {
            guilds: list(&["1"]),
            allowed_channels: list(&["6"]),
            allowed_users: list(&["2"]),
            allowed_roles: list(&["3"]),
            approver_users: list(&["4"]),
            approver_roles: list(&["5"]),
            ..account()
        };
        let set = |id: u64| BTreeSet::from([Snowflake(id)]);
        let want = AccessRules {
            shards: None,
            guilds: set(1),
            channels: set(6),
            allowed: Principals { users: set(2), roles: set(3) },
            approvers: Principals { users: set(4), roles: set(5) },
        };
        assert_eq!(parse_account(&named).unwrap().access, want);
        let wrong = DiscordAccount { allowed_users: list(&["ann"]), ..account() };
        assert!(parse_account(&wrong).unwrap_err().contains("\"ann\" is not an id"));
    }
}
