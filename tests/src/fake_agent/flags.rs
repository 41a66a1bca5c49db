//! Command line and environment.

use std::path::PathBuf;

/// Flags of the agent. See the parent module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) string_ids: bool,
    pub(crate) no_load: bool,
    pub(crate) no_resume: bool,
    pub(crate) no_list: bool,
    pub(crate) load_replays: u64,
    pub(crate) auth_required: bool,
    pub(crate) modes: bool,
    pub(crate) options: bool,
    pub(crate) delete: bool,
    pub(crate) directories: bool,
    pub(crate) steer: bool,
    pub(crate) cancel_request: bool,
    pub(crate) protocol_version: Option<u64>,
    pub(crate) slow_init_ms: u64,
    pub(crate) usage: Option<u64>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) state: Option<PathBuf>,
}

impl Flags {
    /// Reads the flags of the environment, then those of the command line.
    pub(crate) fn read(
        environment: Option<String>,
        args: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let environment = environment.unwrap_or_default();
        let mut args = environment.split_ascii_whitespace().map(str::to_owned).chain(args);
        let mut flags = Self::default();
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} requires a value"));
            match flag.as_str() {
                "--ids" => {
                    flags.string_ids = match value()?.as_str() {
                        "int0" => false,
                        "string" => true,
                        other => return Err(format!("--ids: {other} is neither int0 nor string")),
                    };
                }
                "--no-load" => flags.no_load = true,
                "--no-resume" => flags.no_resume = true,
                "--no-list" => flags.no_list = true,
                "--load-replays" => flags.load_replays = number(&flag, &value()?)?,
                "--auth-required" => flags.auth_required = true,
                "--modes" => flags.modes = true,
                "--options" => flags.options = true,
                "--delete" => flags.delete = true,
                "--directories" => flags.directories = true,
                "--steer" => flags.steer = true,
                "--cancel-request" => flags.cancel_request = true,
                "--protocol-version" => flags.protocol_version = Some(number(&flag, &value()?)?),
                "--slow-init" => flags.slow_init_ms = number(&flag, &value()?)?,
                "--usage" => flags.usage = Some(number(&flag, &value()?)?),
                "--log" => flags.log = Some(value()?.into()),
                "--state" => flags.state = Some(value()?.into()),
                other => return Err(format!("unknown flag {other}")),
            }
        }
        Ok(flags)
    }
}

fn number(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag}: {text} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &str, args: &str) -> Result<Flags, String> {
        Flags::read(Some(environment.to_owned()), args.split_ascii_whitespace().map(str::to_owned))
    }

    #[test]
    fn environment_first() {
        let want = Flags { string_ids: true, load_replays: 2, modes: true, ..Flags::default() };
        assert_eq!(read("--ids int0 --load-replays 2", "--ids string --modes"), Ok(want));
        assert_eq!(read("", ""), Ok(Flags::default()));
    }

    #[test]
    fn wrong_flags() {
        for args in ["--ids", "--ids uuid", "--load-replays x", "--slow-init -1", "--nope", "x"] {
            assert!(read("", args).is_err(), "{args}");
        }
    }
}
