//! `[[notify]]`: webhooks, signed requests about events of sessions.

use super::Config;
use super::check::{KeyProblems, absolute, bounded, owned};
use crate::event::EventKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use url::{Host, Url};

/// Maximum number of targets.
const TARGETS_MAX: usize = 32;
/// Maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 100;
/// Bounds of the time limit of one request, in milliseconds.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=120_000;

/// Event that is sent to webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotifyEvent {
    /// An agent asks for a permission that a person has to give.
    Permission,
    /// A run ended with an answer, or was cancelled.
    Done,
    /// A run failed.
    Error,
}

impl NotifyEvent {
    /// Returns the kind of the event's journal rows.
    pub const fn kind(self) -> EventKind {
        match self {
            Self::Permission => EventKind::Permission,
            Self::Done => EventKind::Done,
            Self::Error => EventKind::Error,
        }
    }
}

/// One entry of `[[notify]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotifyTarget {
    /// Name of the target: its position in the journal is kept under it. Required.
    pub name: String,
    /// Address that the requests are sent to. Required.
    pub url: String,
    /// File with the secret that signs the requests, readable by its owner alone. Required.
    pub secret_file: PathBuf,
    /// Events to send. Default: all of `permission`, `done` and `error`.
    pub events: Vec<NotifyEvent>,
    /// Allows an `http` address that is not a loopback one. Default: false.
    pub insecure: bool,
    /// Time limit of one request, in milliseconds. Default: 10000.
    pub timeout_ms: u64,
}

impl Default for NotifyTarget {
    fn default() -> Self {
        Self {
            name: String::new(),
            url: String::new(),
            secret_file: PathBuf::new(),
            events: vec![NotifyEvent::Permission, NotifyEvent::Done, NotifyEvent::Error],
            insecure: false,
            timeout_ms: 10_000,
        }
    }
}

impl NotifyTarget {
    /// True if the address names this machine.
    pub fn is_loopback(&self) -> bool {
        Url::parse(&self.url).is_ok_and(|url| is_loopback(&url))
    }

    /// Mistakes of the entry, as key within the entry and message.
    fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut add = |key, text: &str| found.push((key, text.to_owned()));
        if self.name.trim().is_empty() || self.name.chars().any(char::is_control) {
            add("name", "is required, on one line");
        }
        if self.name.chars().count() > NAME_CHARS_MAX {
            add("name", &format!("must have at most {NAME_CHARS_MAX} characters"));
        }
        match Url::parse(&self.url) {
            Err(error) => {
                add("url", &format!("is required, an address such as https://example.com/hook: {error}"))
            }
            Ok(url) => match url.scheme() {
                "https" => {}
                "http" if self.insecure || is_loopback(&url) => {}
                "http" => add("url", "must be https; for another machine without TLS set insecure = true"),
                _ => add("url", "must be an https or http address"),
            },
        }
        if Url::parse(&self.url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some()) {
            add("url", "must not have a user or password; requests are signed");
        }
        if self.secret_file.as_os_str().is_empty() {
            add("secret_file", "is required");
        }
        if self.events.is_empty() {
            add("events", "must not be empty");
        }
        found
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// Checks the targets, and adds their mistakes to `found`.
pub(super) fn check(found: &mut KeyProblems, config: &Config) {
    let mut names = BTreeSet::new();
    for (index, target) in config.notify.iter().enumerate() {
        let at = |key: &str| owned(&["notify", &index.to_string()], &[key]);
        found.extend(target.mistakes().into_iter().map(|(key, text)| (at(key), text)));
        if !names.insert(&target.name) {
            found.push((at("name"), format!("{:?} appears twice in this list", target.name)));
        }
        if !target.secret_file.as_os_str().is_empty() {
            absolute(found, at("secret_file"), Some(&target.secret_file));
        }
        bounded(found, at("timeout_ms"), target.timeout_ms, TIMEOUT_MS);
        if index == TARGETS_MAX {
            found.push((at("name"), format!("a list must have at most {TARGETS_MAX} targets")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_for_loopback_or_insecure_targets() {
        let target = |url: &str, insecure: bool| NotifyTarget {
            name: "a".to_owned(),
            url: url.to_owned(),
            secret_file: "/s".into(),
            insecure,
            ..NotifyTarget::default()
        };
        for (url, insecure, good) in [
            ("https://example.com/hook", false, true),
            ("http://127.0.0.1:8000/", false, true),
            ("http://[::1]:8000/", false, true),
            ("http://localhost/", false, true),
            ("http://localhost.example.com/", false, false),
            ("http://10.0.0.1/", false, false),
            ("http://10.0.0.1/", true, true),
            ("ftp://127.0.0.1/", true, false),
            ("https://user:secret@example.com/", false, false),
            ("", false, false),
        ] {
            assert_eq!(target(url, insecure).mistakes().is_empty(), good, "{url} {insecure}");
        }
    }

    #[test]
    fn mistakes_name_their_key() {
        let twice = NotifyTarget { timeout_ms: 1, events: Vec::new(), ..NotifyTarget::default() };
        let config = Config { notify: vec![twice.clone(), twice], ..Config::default() };
        let mut found = KeyProblems::new();
        check(&mut found, &config);
        let keys: BTreeSet<String> = found.into_iter().map(|(key, _)| key.join(".")).collect();
        let of = |index: usize| {
            ["name", "url", "secret_file", "events", "timeout_ms"].map(|key| format!("notify.{index}.{key}"))
        };
        assert_eq!(keys, of(0).into_iter().chain(of(1)).collect());
    }
}
