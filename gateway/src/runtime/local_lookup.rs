//! Lookup of programs and directories by this process itself, for commands that run without a gateway. The
//! service never uses it: it asks the supervisor (`lookup`).

use crate::runtime::lookup::{LookupRequest, LookupResults};
use acp_shared::probe::{directory, program};

/// Looks up everything as the user of this process.
pub(crate) fn look_up(lookup: &LookupRequest) -> LookupResults {
    let find = |name: &String| Some((name.clone(), program(name, &lookup.search)?));
    LookupResults {
        programs: lookup.programs.iter().filter_map(find).collect(),
        directories: lookup.directories.iter().map(|path| (path.clone(), directory(path))).collect(),
    }
}
