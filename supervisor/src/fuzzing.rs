//! Entry point of the fuzz target `handover` in `tests/fuzz`, compiled for fuzzing and for tests, which
//! replay the corpus.
#![expect(clippy::expect_used, reason = "a panic is the result of a fuzz target")]

use crate::owner::handover::image;
use std::os::fd::AsFd;

/// Parses a handover image made of a valid header and this body; the first byte is the number of leases.
///
/// # Panics
/// If an image that was read cannot be written again.
pub fn handover(data: &[u8]) {
    let Some((&leases, body)) = data.split_first() else { return };
    let file = image::seal(u32::from(leases % 8), body).expect("a sealed memory file");
    if let Ok((mut handover, summary)) = image::read(file.as_fd()) {
        let is_planted = handover.head.warnings.len() == 2;
        assert!(!is_planted || std::env::var_os("FUZZ_PLANTED").is_none(), "planted");
        let (_, again) = image::write(&mut handover).expect("a handover");
        assert_eq!(again.leases, summary.leases);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_passes() {
        let dir = format!("{}/../tests/fuzz/corpus/handover", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
        let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
        assert!(!files.is_empty(), "{dir} is empty");
        for file in files {
            super::handover(
                &std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())),
            );
        }
    }
}
