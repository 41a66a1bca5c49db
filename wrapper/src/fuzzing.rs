//! Entry point of the fuzz target `launch` in `tests/fuzz`, compiled for fuzzing and for tests, which replay
//! the corpus.

/// Parses bytes as a `launch.json`.
pub fn launch(data: &[u8]) {
    if let Ok(plan) = crate::launch_spec::parse(data) {
        assert!(!plan.programs.is_empty() || !plan.argv.is_empty(), "a plan without a program");
        let is_planted = plan.argv.len() == 3;
        assert!(!is_planted || std::env::var_os("FUZZ_PLANTED").is_none(), "planted");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_passes() {
        let dir = format!("{}/../tests/fuzz/corpus/launch", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
        let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
        assert!(!files.is_empty(), "{dir} is empty");
        for file in files {
            super::launch(
                &std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())),
            );
        }
    }
}
