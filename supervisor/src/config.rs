//! Configuration file: flat TOML. Every value has a default and bounds; unknown keys are refused.

mod span;
mod tenant;

pub use span::{ConfigLocation, Origin};
pub use tenant::{ResourceLimitValue, Switch, TenantConfig, Unlimited, UserOrGroup};

use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: std::io::Error,
    },
    /// An error of a configuration that was read from a file.
    #[error(
        "{place} is not valid; correct it, and check it with `acp-supervisor doctor --config {}`",
        place.file.display()
    )]
    At {
        /// File and line of the error.
        place: ConfigLocation,
        /// The error.
        #[source]
        source: Box<ConfigError>,
    },
    /// The file is not TOML, or a value has another type.
    #[error("the configuration is not valid: {what}")]
    Parse {
        /// Error text of the parser.
        what: String,
        /// Line number, from 1, if known.
        line: Option<usize>,
    },
    /// A value is not valid.
    #[error("the configuration is not valid: {key} = {value:?} {why}")]
    Value {
        /// Key of the value.
        key: &'static str,
        /// The value.
        value: String,
        /// Reason and remedy.
        why: &'static str,
    },
    /// A key does not exist.
    #[error("the configuration has no key {key:?}{hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Hint with the most similar existing key; may be empty.
        hint: String,
    },
    /// A value is outside of its bounds.
    #[error("{key} = {value} is outside of {min} to {max}")]
    OutOfBounds {
        /// Key of the value.
        key: &'static str,
        /// The value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A `[[tenant]]` is not valid.
    #[error("[[tenant]] number {number} {why}")]
    Tenant {
        /// Number of the tenant in the file, from 1.
        number: usize,
        /// Reason and remedy.
        why: String,
    },
}

/// Configured containment level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainmentSetting {
    /// The best level that this machine supports.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// A cgroup for each lease.
    R1,
    /// A process walk with pidfds.
    R2,
    /// A process walk through `/proc` directories.
    R3,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// Defines the configuration: the keys that are numbers, each with its default and its bounds, and the keys whose
/// default is that of their type.
macro_rules! config {
    (
        $(#[$meta:meta])+
        pub struct Config {
            $($(#[$doc:meta])+ $number:ident = $default:expr, in $min:literal..=$max:expr;)+
        } with {
            $($(#[$other_doc:meta])+ $other:ident: $type:ty;)+
        }
    ) => {
        $(#[$meta])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[$doc])+ pub $number: u64,)+
            $($(#[$other_doc])+ pub $other: $type,)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($number: $default,)+ $($other: Default::default(),)+ }
            }
        }

        impl Config {
            /// Fails if a number is outside of its bounds.
            fn check_bounds(&self) -> Result<(), ConfigError> {
                for (key, value, min, max) in [$((stringify!($number), self.$number, $min, $max)),+] {
                    if value < min || value > max {
                        return Err(ConfigError::OutOfBounds { key, value, min, max });
                    }
                }
                Ok(())
            }
        }
    };
}

config! {
    /// Configuration of the supervisor. Times are in milliseconds, sizes in bytes.
    pub struct Config {
        /// Maximum number of living leases. Default 2048.
        leases_max = 2048, in 1..=100_000;
        /// Maximum number of living leases of one gateway. Default 512.
        leases_per_gateway_max = 512, in 1..=100_000;
        /// Maximum number of living leases of all gateways of one user. Default 1024.
        leases_per_user_max = 1024, in 1..=100_000;
        /// Maximum number of running terminals of one agent. Default 16.
        terminals_per_agent_max = 16, in 0..=100_000;
        /// Maximum number of recorded gateways of one user; the oldest without lease and connection is removed
        /// first. Default 256.
        gateways_per_user_max = 256, in 1..=100_000;
        /// Maximum number of connected gateways, not enforced for admins and for gateways with a record. Default
        /// 256.
        connections_max = 256, in 1..=10_000;
        /// Maximum number of connected gateways of one user, with the same exceptions. Default 128.
        connections_per_user_max = 128, in 1..=10_000;
        /// Maximum time until the first message of a client. Default 5 s.
        handshake_ms = 5_000, in 10..=60_000;
        /// Maximum silence of a gateway on another machine, after which its connection is closed. Gateways send
        /// something every few seconds. Default 30 s.
        remote_silence_ms = 30_000, in 100..=10 * 60_000;
        /// Maximum number of unanswered requests of one connection; one more ends it. Default 1024.
        requests_in_flight_max = 1024, in 1..=65_536;
        /// Maximum output of one agent kept in memory; when it is full the agent blocks. Default 8 MiB.
        ring_bytes_max = 8 * MIB, in 4_096..=GIB;
        /// Maximum output of one agent sent beyond the acknowledged offset. Default 4 MiB.
        credit_bytes = 4 * MIB, in 4_096..=GIB;
        /// Maximum output of one ending agent kept on disk. Default 256 MiB.
        spool_bytes_max = 256 * MIB, in 0..=64 * GIB;
        /// Maximum output of all ended agents of one gateway kept on disk, until acknowledged or retention.
        /// Default 2 GiB.
        spool_total_bytes_max = 2048 * MIB, in 0..=64 * 1024 * GIB;
        /// Maximum buffered input of one agent. Default 64 MiB.
        stdin_bytes_max = 64 * MIB, in 4_096..=GIB;
        /// Number of input messages whose hash is kept, for each agent. Default 65536.
        stdin_hashes_max = 65_536, in 16..=16_777_216;
        /// Maximum output and input of all agents of one gateway in memory; when it is full they block. Default 1
        /// GiB.
        gateway_bytes_max = 1024 * MIB, in 65_536..=1024 * GIB;
        /// Maximum output size that a terminal may request to keep. Default 16 MiB.
        // The output must fit into one frame.
        terminal_bytes_max = 16 * MIB, in 4_096..=32 * 1024 * 1024;
        /// Maximum kept output of one gateway's ended, unreleased terminals; the oldest is removed first. Default
        /// 256 MiB.
        tails_bytes_max = 256 * MIB, in 4_096..=64 * GIB;
        /// Maximum size of a session log file (standard error of agents); two files are kept. Default 1 MiB.
        stderr_bytes_max = MIB, in 256..=16 * 1024 * 1024;
        /// Maximum time from the start of a wrapper until its adapter runs. Default 15 s.
        spawn_ms = 15_000, in 100..=10 * 60_000;
        /// Maximum time of a file request, after which its helper is ended. Default 30 s.
        files_request_ms = 30_000, in 100..=10 * 60_000;
        /// Idle time after which the file helper of a lease ends. Default 60 s.
        files_idle_ms = 60_000, in 0..=DAY_MS;
        /// Time for which leases stay open after their gateway disconnected. Default 15 min.
        detached_grace_ms = 15 * 60 * 1_000, in 0..=30 * DAY_MS;
        /// Time for which agents are kept while their gateway is refused because its database is rolled back.
        /// Default 24 h.
        rollback_grace_ms = 24 * 3_600 * 1_000, in 0..=30 * DAY_MS;
        /// Retention of ended leases and their output. Default 7 days.
        retention_ms = 7 * 24 * 3_600 * 1_000, in 0..=3_650 * DAY_MS;
        /// Maximum number of ended leases kept for one gateway; the oldest are removed first. Default 10000.
        ended_per_gateway_max = 10_000, in 1..=1_000_000;
        /// Time from SIGTERM to SIGKILL for processes that an earlier supervisor left behind. Default 2 s.
        reap_term_ms = 2_000, in 0..=10 * 60_000;
        /// Time from SIGKILL to reporting their survivors. Default 5 s.
        reap_kill_ms = 5_000, in 0..=10 * 60_000;
        /// Interval of the sweep over leases that could not be settled at start. Default 30 s.
        reap_every_ms = 30_000, in 100..=DAY_MS;
        /// Maximum grace period in a spawn request. Default 5 min.
        grace_max_ms = 5 * 60 * 1_000, in 0..=DAY_MS;
        /// Delay before a restart after two crashes in a row; it doubles with each crash. Default 1 s.
        crash_backoff_ms = 1_000, in 0..=DAY_MS;
        /// Maximum restart delay. Default 1 min.
        crash_backoff_max_ms = 60_000, in 0..=DAY_MS;
        /// Time window in which crashes of an agent are counted. Default 5 min.
        crash_window_ms = 5 * 60 * 1_000, in 0..=DAY_MS;
        /// Number of crashes in the window that blocks starts until the first one leaves the window. 0: never.
        /// Default 10.
        crashes_max = 10, in 0..=4_096;
        /// Run time after which earlier crashes of an agent no longer count. Default 1 min.
        stable_after_ms = 60_000, in 0..=DAY_MS;
        /// Memory limit for all processes of one lease together; 0 is no limit. Default 0.
        memory_max_bytes = 0, in 0..=1 << 50;
        /// Maximum number of processes and threads of one lease; 0 is no limit. Default 0.
        pids_max = 0, in 0..=1 << 22;
        /// CPU weight of one lease, 1 to 10000 (the kernel's default is 100); 0 leaves it unchanged. Default 0.
        cpu_weight = 0, in 0..=10_000;
    } with {
        /// Users, besides root and the supervisor's own, whose gateways may connect. Default: none.
        allowed_uids: Vec<u32>;
        /// Groups whose gateways may connect. Default: none.
        allowed_gids: Vec<u32>;
        /// Groups that may use the admin CLI. Default: none.
        admin_gids: Vec<u32>;
        /// Group of the socket, by name or number. Its members can open the socket if the mode permits access by
        /// the group. Default: the group that the supervisor runs as.
        socket_group: Option<String>;
        /// Mode of the socket, in octal. Default: 0600; 0660 if the lists above name groups, 0666 if they name
        /// users.
        socket_mode: Option<String>;
        /// Directory under which wrappers are started; it must allow exec. Default: `wrappers` in the state directory.
        wrapper_root: Option<PathBuf>;
        /// Address and port where gateways on other machines connect, over TCP with mutual TLS. Default: none.
        listen: Option<SocketAddr>;
        /// PEM file with the certificate of this host, and intermediate ones. Its URI name is
        /// `acp://PLANE/host/NAME`. Read again when it changes, as the two next ones. Required with `listen`.
        tls_cert: Option<PathBuf>;
        /// PEM file with its private key, which other users must not be able to read. Required with `listen`.
        tls_key: Option<PathBuf>;
        /// PEM file with the CA that signs the certificates of the plane's cells and hosts. Required with `listen`.
        tls_ca: Option<PathBuf>;
        /// Containment level: "auto" (the best one that this machine supports), "R1" (a cgroup for each lease),
        /// "R2" (a process walk with pidfds) or "R3" (a process walk through /proc). The start fails if the
        /// configured level is not available. Default "auto".
        rung: ContainmentSetting;
        /// Directory of the cgroup that contains the cgroups of leases. Default: the supervisor's own cgroup.
        cgroup_root: Option<PathBuf>;
        /// Settings for the agents of some gateways. Default: none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tenant: Vec<TenantConfig>;
        /// File that the configuration was read from.
        #[serde(skip)]
        file: Option<Origin>;
    }
}

/// Keys whose default is "not set", which are missing in the TOML of the default.
const OPTIONAL_KEYS: &[&str] = &[
    "cgroup_root",
    "listen",
    "socket_group",
    "socket_mode",
    "tenant",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "wrapper_root",
];

impl Config {
    /// Reads the file, or returns the defaults if there is no path.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let read = || {
            let mut file = std::fs::File::open(path)?;
            check_trusted(&file.metadata()?, rustix::process::geteuid().as_raw())?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse_in(&text, Some(path)).map_err(|error| error.with_location(path, &text))
    }

    /// Parses TOML text.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_in(text, None)
    }

    fn parse_in(text: &str, path: Option<&Path>) -> Result<Self, ConfigError> {
        let wrong = |error: toml::de::Error| {
            let line = error.span().map(|span| span::line_at(text, span.start));
            ConfigError::Parse { what: error.message().to_owned(), line }
        };
        let table: toml::Table = text.parse().map_err(wrong)?;
        let known = Self::keys();
        if let Some(key) = table.keys().find(|key| !known.contains(key)) {
            let hint = nearest(key, known.iter().map(String::as_str));
            return Err(ConfigError::UnknownKey { key: key.clone(), hint });
        }
        tenant::check_keys(&table)?;
        let mut config: Self = toml::from_str(text).map_err(wrong)?;
        config.file = path.map(|path| Origin::new(path, text));
        config.check()?;
        Ok(config)
    }

    /// Returns all keys.
    #[must_use]
    pub fn keys() -> Vec<String> {
        let table = toml::Table::try_from(Self::default()).unwrap_or_default();
        let optional = OPTIONAL_KEYS.iter().map(|key| (*key).to_owned());
        table.into_iter().map(|(key, _)| key).chain(optional).collect()
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.check_bounds()?;
        self.remote()?;
        match (&self.socket_mode, self.mode()) {
            (Some(text), None) => {
                let why = "is not a file mode; use \"0660\", for example";
                Err(ConfigError::Value { key: "socket_mode", value: text.clone(), why })
            }
            _ => self.each_tenant(TenantConfig::check).map(drop),
        }
    }

    /// Returns the address for gateways on other machines, with the files of certificate, key and CA.
    ///
    /// # Errors
    /// [`ConfigError::Value`]: a file is not set.
    pub fn remote(&self) -> Result<Option<(SocketAddr, [&Path; 3])>, ConfigError> {
        let Some(listen) = self.listen else { return Ok(None) };
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => Ok(Some((listen, [cert, key, ca]))),
            _ => {
                let why = "needs tls_cert, tls_key and tls_ca; set all three";
                Err(ConfigError::Value { key: "listen", value: listen.to_string(), why })
            }
        }
    }

    /// Returns the mode of the socket, if it is set and valid.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        let text = self.socket_mode.as_deref()?;
        u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok().filter(|mode| *mode <= 0o777)
    }

    /// Calls `f` for each tenant; an error gets the number of the tenant.
    pub(crate) fn each_tenant<T>(
        &self,
        f: impl Fn(&TenantConfig) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let numbered = self.tenant.iter().enumerate();
        numbered.map(|(at, tenant)| f(tenant).map_err(|why| self.of_tenant(at, why))).collect()
    }

    /// Creates an error for a tenant, with its position in the file.
    pub(crate) fn of_tenant(&self, at: usize, why: String) -> ConfigError {
        let error = ConfigError::Tenant { number: at + 1, why };
        match &self.file {
            Some(file) => ConfigError::At { place: file.of_tenant(at), source: Box::new(error) },
            None => error,
        }
    }
}

/// Fails if other users can change the file. It decides about the users that may connect and that agents run
/// as. If the supervisor is root, even the file's group must not have write access.
fn check_trusted(meta: &std::fs::Metadata, own_uid: u32) -> io::Result<()> {
    let writers = if own_uid == 0 { 0o022 } else { 0o002 };
    if meta.is_file() && (meta.mode() & writers != 0 || ![0, own_uid].contains(&meta.uid())) {
        let why = "other users can change it; give it to this user or to root, and remove their write \
                   permission (chmod go-w)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Returns a hint with the most similar key, or an empty text.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    let likely = known.map(|k| (strsim::jaro_winkler(k, key), k)).filter(|(likeness, _)| *likeness > 0.7);
    let nearest = likely.max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map_or_else(String::new, |(_, k)| format!("; did you mean {k:?}?"))
}

/// Converts a size to `usize`. Bounds are checked in [`Config::parse`]; all values fit.
#[must_use]
pub fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn empty_file_is_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        Config::default().check().unwrap();
    }

    #[test]
    fn serialized_default_is_default() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(Config::parse(&text).unwrap(), Config::default());
    }

    const EXAMPLE: &str = include_str!("../../packaging/supervisor.example.toml");

    fn named_keys(text: &str) -> Vec<String> {
        let key_of = |line: &str| Some(line.trim_start_matches("# ").split_once(" = ")?.0.to_owned());
        let mut keys: Vec<String> = text.lines().filter_map(key_of).collect();
        keys.sort();
        keys
    }

    /// The installed example documents the defaults.
    #[test]
    fn example_names_every_key_with_its_default() {
        assert_eq!(Config::parse(EXAMPLE).unwrap(), Config::default());
        let (flat, _) = EXAMPLE.split_once("# [[tenant]]").unwrap();
        let mut keys = Config::keys();
        keys.retain(|key| key != "tenant");
        keys.sort();
        assert_eq!(named_keys(flat), keys);
    }

    #[test]
    fn example_tenant_has_every_key() {
        let (_, tenant) = EXAMPLE.split_once("# [[tenant]]").unwrap();
        let setting = |line: &&str| line.starts_with("# ") && line.contains(" = ");
        let lines = tenant.lines().filter(setting).map(|line| line.trim_start_matches("# "));
        let text = lines.fold("[[tenant]]\n".to_owned(), |text, line| text + line + "\n");
        // uid, user and cell are alternatives.
        let alternatives = |line: &&str| !line.starts_with("user = ") && !line.starts_with("cell = ");
        let text: Vec<&str> = text.lines().filter(alternatives).collect();
        let config = Config::parse(&text.join("\n")).unwrap();
        assert_eq!(config.tenant.len(), 1);
        let mut keys: Vec<&str> = tenant::KEYS.to_vec();
        keys.sort_unstable();
        assert_eq!(named_keys(tenant), keys);
        let written = toml::Table::try_from(&config.tenant[0]).unwrap();
        let missing: Vec<&&str> = tenant::KEYS.iter().filter(|key| !written.contains_key(**key)).collect();
        assert_eq!(missing, [&"user", &"cell"]);
    }

    #[test]
    fn invalid_values_are_refused_with_hints() {
        for (text, want) in [
            ("leases_maxx = 1", r#"the configuration has no key "leases_maxx"; did you mean "leases_max"?"#),
            ("zzz = 1", r#"the configuration has no key "zzz""#),
            ("leases_max = 0", "leases_max = 0 is outside of 1 to 100000"),
            ("cpu_weight = 10001", "cpu_weight = 10001 is outside of 0 to 10000"),
            (
                "listen = \"127.0.0.1:0\"\ntls_cert = \"/c\"\ntls_key = \"/k\"",
                "the configuration is not valid: listen = \"127.0.0.1:0\" needs tls_cert, tls_key and tls_ca; set all three",
            ),
            (
                "socket_mode = \"888\"",
                r#"the configuration is not valid: socket_mode = "888" is not a file mode; use "0660", for example"#,
            ),
        ] {
            assert_eq!(Config::parse(text).unwrap_err().to_string(), want);
        }
        for (text, at) in [
            ("\nleases_max = \"x\"", 2),
            ("rung = \"R4\"", 1),
            ("rung = \"r1\"", 1),
            ("leases_max = -1", 1),
            ("=", 1),
            ("leases_max = 1\n\nleases_max = 2", 3),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(
                matches!(error, ConfigError::Parse { line: Some(line), .. } if line == at),
                "{text}: {error:?}"
            );
            assert!(!error.to_string().contains('\n'), "more than one line: {error}");
        }
    }

    #[test]
    fn configuration_errors_name_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.toml");
        let load_error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let error = Config::load(Some(&path)).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(error.to_string().contains("doctor --config"), "{error}");
            (error.to_string(), cause)
        };
        let tenant = "[[tenant]]\nuid = 1\n\n";
        for (text, line, want) in [
            ("# x\nleases_max = ", 2, "not valid"),
            ("# x\n\nleases_max = \"x\"", 3, "invalid type: string \"x\", expected u64"),
            ("rung = \"R4\"", 1, "R4"),
            ("rung = \"R2\"\nleases_mx = 1", 2, "did you mean \"leases_max\"?"),
            ("rung = \"R2\"\n\n  leases_max = 0", 3, "leases_max = 0 is outside"),
            ("\nsocket_mode = \"888\"", 2, "not a file mode"),
            (&format!("{tenant}[[tenant]]\nuid = 2\nleases_mx = 1"), 6, "did you mean \"leases_max\"?"),
            (&format!("{tenant}[[tenant]]\nuid = \"x\""), 5, "expected u32"),
            (&format!("{tenant}[[tenant]]\nuid = 2\numask = 0o1000"), 4, "[[tenant]] number 2 has an umask"),
        ] {
            let (message, cause) = load_error(text);
            let location = format!("{}, line {line}, is not valid", path.display());
            assert!(message.contains(&location) && cause.contains(want), "{text}: {message}: {cause}");
        }
    }

    #[test]
    fn file_writable_by_others_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, own, other) in
            [(0o600, true, true), (0o644, true, true), (0o664, false, true), (0o646, false, false)]
        {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            let meta = file.as_file().metadata().unwrap();
            let owned_by_root = meta.uid() == 0;
            assert_eq!(check_trusted(&meta, 0).is_ok(), own && owned_by_root, "{mode:o}");
            assert_eq!(
                check_trusted(&meta, meta.uid()).is_ok(),
                if owned_by_root { own } else { other },
                "{mode:o}"
            );
            assert_eq!(check_trusted(&meta, 4242).is_ok(), other && owned_by_root, "{mode:o}");
        }
    }
}
