//! Steps of the Makefile that run after cargo.

use acp_tests::world::repository;
use std::path::Path;
use std::process::Command;

const PROGRAMS: [&str; 3] = ["acp-gateway", "acp-supervisor", "acp-acpx-bridge"];

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn has_debug_info(program: &Path) -> bool {
    run(Command::new("readelf").arg("-SW").arg(program)).contains(".debug_info")
}

/// A second `make build` compiles nothing, and cargo links its file to the program's name again.
#[test]
fn second_build_keeps_the_debug_files() {
    let target = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let (release, deps) = (target.path().join("release"), target.path().join("release/deps"));
    std::fs::create_dir_all(&deps).unwrap_or_else(|e| panic!("{e}"));
    let source = target.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap_or_else(|e| panic!("{e}"));
    for program in PROGRAMS {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        run(Command::new(compiler).arg("-g").arg(&source).arg("-o").arg(deps.join(program)));
    }
    for build in ["first", "second"] {
        for program in PROGRAMS {
            // As cargo does after each build, a fresh one too.
            drop(std::fs::remove_file(release.join(program)));
            std::fs::hard_link(deps.join(program), release.join(program)).unwrap_or_else(|e| panic!("{e}"));
        }
        let mut make = Command::new("make");
        make.arg("--silent").arg("strip").arg(format!("TARGET_DIR={}", target.path().display()));
        run(make.current_dir(repository()));
        for program in PROGRAMS {
            let path = release.join(program);
            assert!(!has_debug_info(&path), "{program} is stripped by the {build} build");
            assert!(has_debug_info(&path.with_extension("debug")), "debug file of {program}, {build} build");
        }
    }
}
