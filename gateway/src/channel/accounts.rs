//! Discord bots of the configuration, one per account: starts them, applies reloaded settings (above all new
//! tokens, D7), and stops a bot when its account is removed. A bot that cannot be served is logged and does
//! not affect the others.

use crate::channel::discord::{AccountSettings, DISCORD, Discord};
use crate::channel::{ChannelAdapter, Channels, InboundPort};
use crate::config::LiveConfig;
use acp_core::config::load::LoadedConfig;
use acp_core::config::{self, Config};
use acp_shared::clock::Clock;
use acp_store::Store;
use acp_store::cell::plane::Plane;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Settings of every configured account, or the reason why the account cannot be served.
type DesiredAccounts = BTreeMap<String, Result<AccountSettings, String>>;

/// Running bots, kept in line with the live configuration.
pub(crate) struct DiscordAccounts {
    channels: Channels,
    changes: watch::Receiver<Arc<LoadedConfig>>,
    clock: Clock,
    /// Plane of the cell's database; `None` for a control plane in a file.
    plane: Option<Plane>,
    stop: CancellationToken,
    bots: BTreeMap<String, RunningAccount>,
}

struct RunningAccount {
    adapter: Discord,
    /// The adapter as it is registered.
    channel: Arc<dyn ChannelAdapter>,
    cancel: CancellationToken,
    is_listening: bool,
}

impl DiscordAccounts {
    /// Starts the bots of the configuration. Incoming events are read only once [`DiscordAccounts::serve`] runs.
    pub(crate) fn new(live: &LiveConfig, channels: Channels, store: &Store, stop: CancellationToken) -> Self {
        let (changes, clock, plane) = (live.changes(), store.clock(), store.plane());
        let mut bots = Self { channels, changes, clock, plane, stop, bots: BTreeMap::new() };
        bots.follow(desired_accounts(live.at_start()));
        bots
    }

    /// Reads incoming events and applies configuration changes until shutdown.
    pub(crate) async fn serve(mut self, inbox: Arc<dyn InboundPort>) {
        loop {
            for bot in self.bots.values_mut().filter(|bot| !bot.is_listening) {
                bot.is_listening = true;
                tokio::spawn(listen(Arc::clone(&bot.channel), Arc::clone(&inbox), bot.cancel.clone()));
            }
            let changed = tokio::select! {
                biased;
                () = self.stop.cancelled() => false,
                changed = self.changes.changed() => changed.is_ok(),
            };
            if !changed {
                break;
            }
            let now = Arc::clone(&self.changes.borrow_and_update());
            // Blocking: tokens are read from files.
            match tokio::task::spawn_blocking(move || desired_accounts(&now.config)).await {
                Ok(wanted) => self.follow(wanted),
                Err(error) => tracing::error!(%error, "reading Discord accounts failed; accounts unchanged"),
            }
        }
    }

    /// Starts, updates and stops bots to match `wanted`. A bot with unusable new settings keeps its old ones.
    fn follow(&mut self, wanted: DesiredAccounts) {
        let gone: Vec<String> = self.bots.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        for id in gone {
            tracing::info!(account = id, "Discord account stopped; no longer configured");
            if let Some(bot) = self.bots.remove(&id) {
                bot.cancel.cancel();
                self.channels.unregister(&bot.channel);
            }
        }
        for (id, settings) in wanted {
            let done = settings.and_then(|settings| self.start_account(&id, settings));
            if let Err(why) = done {
                let is_served = self.bots.contains_key(&id);
                let result = if is_served { "old settings kept" } else { "account not served" };
                tracing::error!(account = id, why, result, "Discord account settings rejected");
            }
        }
    }

    fn start_account(&mut self, id: &str, settings: AccountSettings) -> Result<(), String> {
        if let Some(shards) =
            settings.access.shards.filter(|shards| !shards.is_whole() && self.plane.is_none())
        {
            return Err(format!(
                "channels.discord.accounts.{id}.shards: {shards} need a control plane in PostgreSQL, and this gateway was \
                 started with one in a file: set acp.control_plane.store = \"postgres\", and restart it"
            ));
        }
        let before = self.bots.get(id);
        if let Some(bot) = before.filter(|bot| *bot.adapter.base() == settings.base) {
            bot.adapter.apply_settings(settings).map_err(|error| error.to_string())?;
            tracing::info!(account = id, "Discord account settings applied");
            return Ok(());
        }
        // The replacement is created before the old bot is stopped.
        let adapter = Discord::new(id.to_owned(), settings, self.clock, self.plane.clone())
            .map_err(|error| error.to_string())?;
        let channel = Arc::new(adapter.clone()) as Arc<dyn ChannelAdapter>;
        let registered = match before {
            Some(bot) => self.channels.replace(&bot.channel, Arc::clone(&channel)),
            None => self.channels.register(Arc::clone(&channel)),
        };
        registered.map_err(|error| error.to_string())?;
        let cancel = self.stop.child_token();
        let old =
            self.bots.insert(id.to_owned(), RunningAccount { adapter, channel, cancel, is_listening: false });
        if let Some(old) = old {
            old.cancel.cancel();
        }
        Ok(())
    }
}

async fn listen(channel: Arc<dyn ChannelAdapter>, inbox: Arc<dyn InboundPort>, cancel: CancellationToken) {
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = channel.listen(inbox) => {}
    }
}

fn desired_accounts(config: &Config) -> DesiredAccounts {
    let of = |(id, account): (&String, &config::DiscordAccount)| {
        let of_account = |binding: &&config::Binding| {
            binding.channel == DISCORD && (binding.account == *id || binding.account == "*")
        };
        let bound = config.bindings.iter().filter(of_account);
        let static_bindings = bound.filter_map(|binding| binding.conversation.parse().ok()).collect();
        let settings = AccountSettings::of(id, account, |name| std::env::var(name).ok());
        let discord = &config.channels.discord;
        let personas = discord.personas_of(id);
        let projects = discord.projects.iter().filter(|project| discord.is_served_by(project, id));
        let projects =
            projects.filter_map(|it| Some((it.channel.parse().ok()?, it.require_mention))).collect();
        let with = |settings| AccountSettings { static_bindings, projects, personas, ..settings };
        (id.clone(), settings.map(with))
    };
    config.channels.discord.accounts.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::loaded;
    use acp_core::rows::ConversationRef;
    use acp_store::Durability;
    use std::path::Path;

    fn account(id: &str, token: &Path, more: &str) -> String {
        let file = token.display();
        format!("[channels.discord.accounts.{id}]\ntoken_file = \"{file}\"\n{more}\n")
    }

    #[test]
    fn personas_setting_of_account_overrides_channel() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "t").unwrap();
        for (channel, of_account, want) in [
            ("", "", false),
            ("", "personas = true", true),
            ("personas = true", "", true),
            ("personas = true", "personas = false", false),
            ("personas = false", "personas = true", true),
        ] {
            let text = format!("[channels.discord]\n{channel}\n{}", account("main", &token, of_account));
            let wanted = desired_accounts(&loaded(&text).config);
            assert_eq!(wanted["main"].as_ref().map(|settings| settings.personas), Ok(want), "{text}");
        }
    }

    /// Accounts are added, changed and removed with the configuration; an invalid one keeps its old settings
    /// and affects no other.
    #[tokio::test]
    async fn reload_changes_only_edited_accounts() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let (one, two, none) = (file("one", "t1"), file("two", "t2"), dir.path().join("none"));
        let (live, channels) = (LiveConfig::new(loaded("")), Channels::default());
        let store = Store::open(&dir.path().join("state"), Durability::Normal).unwrap();
        let mut bots = DiscordAccounts::new(&live, channels.clone(), &store, CancellationToken::new());
        let mut apply_config = |text: &str, want: &[&str]| {
            bots.follow(desired_accounts(&loaded(text).config));
            let ids: Vec<String> = bots.bots.keys().cloned().collect();
            assert_eq!(ids, want, "{text}");
            for id in ["a", "b"] {
                let at = ConversationRef::new(DISCORD, id, "1");
                assert_eq!(channels.has_adapter(&at), want.contains(&id), "{id}: {text}");
            }
            let of = |id: &str| bots.bots.get(id).map(|bot| (bot.channel.clone(), bot.cancel.clone()));
            (of("a"), of("b"))
        };
        let (a, _) = apply_config(&(account("a", &one, "") + &account("b", &none, "")), &["a"]);
        let (a, cancel) = a.unwrap();
        // The same adapter takes a new token, and keeps the old one if the new one cannot be read.
        let (unchanged, b) = apply_config(&(account("a", &two, "") + &account("b", &one, "")), &["a", "b"]);
        let (b, b_cancel) = b.unwrap();
        assert!(Arc::ptr_eq(&a, &unchanged.unwrap().0));
        let (unchanged, _) = apply_config(&(account("a", &none, "") + &account("b", &one, "")), &["a", "b"]);
        assert!(Arc::ptr_eq(&a, &unchanged.unwrap().0) && !cancel.is_cancelled());
        // Another service needs a new adapter; one that cannot be created replaces nothing.
        let invalid_token = file("odd", "\u{7f}");
        let invalid = account("a", &invalid_token, "base_url = \"http://127.0.0.1:9\"");
        let (unchanged, _) = apply_config(&(invalid + &account("b", &one, "")), &["a", "b"]);
        assert!(Arc::ptr_eq(&a, &unchanged.unwrap().0) && !cancel.is_cancelled());
        let elsewhere = account("a", &two, "base_url = \"http://127.0.0.1:9\"");
        let (other, unchanged) = apply_config(&(elsewhere.clone() + &account("b", &one, "")), &["a", "b"]);
        assert!(!Arc::ptr_eq(&a, &other.unwrap().0) && cancel.is_cancelled());
        assert!(Arc::ptr_eq(&b, &unchanged.unwrap().0) && !b_cancel.is_cancelled());
        apply_config(&elsewhere, &["a"]);
        assert!(b_cancel.is_cancelled());
        // A part of the shards needs a plane, which this gateway was not started with.
        let plane = "[acp.control_plane]\nstore = \"postgres\"\npostgres.address_file = \"/a\"\n";
        let part = account("b", &one, "shards = { from = 1, to = 2, of = 2 }");
        apply_config(&(plane.to_owned() + &elsewhere + &part), &["a"]);
        apply_config(
            &(elsewhere + &account("b", &one, "shards = { from = 0, to = 2, of = 2 }")),
            &["a", "b"],
        );
    }
}
