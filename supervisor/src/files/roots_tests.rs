#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

struct RootsFixture {
    _dir: tempfile::TempDir,
    /// The root, without links.
    root: PathBuf,
    /// A directory outside of the root, with a secret.
    outside: PathBuf,
    roots: Roots,
}

impl RootsFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        let roots = Roots::open(std::slice::from_ref(&root)).unwrap();
        Self { _dir: dir, root, outside, roots }
    }

    fn path(&self, below: &str) -> String {
        self.root.join(below).to_str().unwrap().to_owned()
    }

    fn read(&self, below: &str) -> Result<String, FilesError> {
        self.roots.read(&self.path(below), None, None, u64::MAX)
    }

    fn write(&self, below: &str, content: &str) -> Result<(), FilesError> {
        self.roots.write(&self.path(below), content.as_bytes())
    }

    fn inspect(&self, below: &str) -> Result<Inspection, FilesError> {
        self.roots.inspect(&self.path(below), 5)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.root)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn written_files_are_read_back() {
    let fixture = RootsFixture::new();
    assert_eq!(fixture.write("a.txt", "\u{e9}\n"), Ok(()));
    assert_eq!(fixture.read("a.txt"), Ok("\u{e9}\n".to_owned()));
    assert_eq!(fixture.write("new/deep/er/b.txt", "b"), Ok(()));
    assert_eq!(fixture.read("new/deep/er/b.txt"), Ok("b".to_owned()));
    assert_eq!(fixture.read("new/../a.txt"), Ok("\u{e9}\n".to_owned()), "path inside of the root");
    assert_eq!(fixture.read("none.txt"), Err(FilesError::NotFound));
    assert_eq!(fixture.names(), ["a.txt", "new"], "temporary files");
}

#[test]
fn lines_count_from_one() {
    let text = "one\ntwo\r\nthree";
    for (line, limit, want) in [
        (None, None, text),
        (Some(0), None, text),
        (Some(1), Some(1), "one\n"),
        (Some(2), Some(1), "two\r\n"),
        (Some(2), None, "two\r\nthree"),
        (Some(3), Some(9), "three"),
        (Some(4), None, ""),
        (Some(u64::MAX), Some(u64::MAX), ""),
        (None, Some(0), ""),
        (None, Some(2), "one\ntwo\r\n"),
    ] {
        assert_eq!(slice(text, line, limit), want, "{line:?} {limit:?}");
    }
}

#[test]
fn write_keeps_file_mode_and_respects_read_only() {
    let fixture = RootsFixture::new();
    fixture.write("run.sh", "old").unwrap();
    let path = fixture.root.join("run.sh");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    fixture.write("run.sh", "new").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o440)).unwrap();
    let written = fixture.write("run.sh", "newer");
    if rustix::process::geteuid().is_root() {
        assert_eq!(written, Ok(()), "root ignores the mode");
    } else {
        assert_eq!(written, Err(FilesError::Denied));
        assert_eq!(fixture.read("run.sh"), Ok("new".to_owned()));
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o440);
    assert_eq!(fixture.names(), ["run.sh"]);
}

#[test]
fn unsynced_rename_is_uncertain() {
    for (synced, want) in [
        (Ok(()), Ok(())),
        (Err(Errno::INVAL), Ok(())),
        (Err(Errno::NOTSUP), Ok(())),
        (Err(Errno::IO), Err(true)),
        (Err(Errno::NOSPC), Err(true)),
    ] {
        let outcome = check_sync(synced).map_err(|error| error.0.is_uncertain());
        assert_eq!(outcome, want, "{synced:?}");
    }
}

#[test]
fn paths_outside_roots_are_refused() {
    let fixture = RootsFixture::new();
    let (root, outside) = (&fixture.root, &fixture.outside);
    let secret = outside.join("secret");
    symlink(&secret, root.join("absolute")).unwrap();
    symlink("../outside/secret", root.join("relative")).unwrap();
    symlink(outside, root.join("dir")).unwrap();
    symlink("../outside", root.join("dir2")).unwrap();
    symlink("/proc/self/cwd", root.join("magic")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    symlink("../outside/none", root.join("dangling")).unwrap();
    let names = [
        "absolute",
        "relative",
        "dir/secret",
        "dir2/secret",
        "magic/secret",
        "loop",
        "dangling",
        "dir/new/x",
        "../outside/secret",
        "a/../../outside/secret",
        "../root2",
        "..",
    ];
    std::fs::create_dir(root.join("a")).unwrap();
    for name in names {
        assert!(fixture.read(name).is_err(), "{name}");
        assert!(fixture.write(name, "x").is_err(), "{name}");
        let seen = fixture.inspect(name).unwrap_or_default();
        assert_eq!((seen.sha256, seen.text), (None, None), "{name}");
        assert!(!seen.exists || name == "..", "{name}");
    }
    for path in [
        secret.to_str().unwrap(),
        "/etc/passwd",
        "/",
        "",
        "secret",
        "root/../x",
        "/proc/self/environ",
        "/a\0b",
    ] {
        assert!(fixture.roots.read(path, None, None, 9).is_err(), "{path}");
        assert!(fixture.roots.write(path, b"x").is_err(), "{path}");
        assert!(fixture.roots.directory(path).is_err(), "{path}");
    }
    // A sibling of the root with the same prefix.
    let sibling = format!("{}2/x", root.display());
    assert_eq!(fixture.roots.write(&sibling, b"x"), Err(FilesError::Outside));
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
}

#[test]
fn links_that_stay_inside_are_followed() {
    let fixture = RootsFixture::new();
    fixture.write("real/file", "old").unwrap();
    symlink("real/file", fixture.root.join("link")).unwrap();
    symlink("real", fixture.root.join("dir")).unwrap();
    assert_eq!(fixture.read("link"), Ok("old".to_owned()));
    fixture.write("link", "new").unwrap();
    fixture.write("dir/other", "o").unwrap();
    assert!(fixture.root.join("link").is_symlink(), "the link was replaced");
    assert_eq!((fixture.read("real/file"), fixture.read("real/other")), (Ok("new".into()), Ok("o".into())));
}

/// The agent may own the parent of a root and replace the root by a link.
#[test]
fn root_replaced_by_link_is_refused() {
    let fixture = RootsFixture::new();
    let base = fixture.root.parent().unwrap();
    std::fs::create_dir(fixture.outside.join("below")).unwrap();
    std::fs::create_dir(fixture.root.join("below")).unwrap();
    std::fs::rename(&fixture.root, base.join("moved")).unwrap();
    symlink(&fixture.outside, &fixture.root).unwrap();
    for root in [fixture.root.clone(), fixture.root.join("below")] {
        assert_eq!(Roots::open(std::slice::from_ref(&root)).map(drop), Err(FilesError::Outside), "{root:?}");
    }
    assert_eq!(Roots::open(&["/proc/self/cwd".into()]).map(drop), Err(FilesError::Outside));
}

#[test]
fn root_is_matched_by_both_names_and_innermost_root_wins() {
    let fixture = RootsFixture::new();
    let named = fixture.outside.join("../root");
    std::fs::create_dir(fixture.root.join("inner")).unwrap();
    let roots = Roots::open(&[named.clone(), fixture.root.join("inner")]).unwrap();
    roots.write(named.join("x").to_str().unwrap(), b"x").unwrap();
    roots.write(&fixture.path("y"), b"y").unwrap();
    roots.write(&fixture.path("inner/z"), b"z").unwrap();
    assert_eq!(fixture.names(), ["inner", "x", "y"]);
    assert_eq!(roots.directory(named.to_str().unwrap()).unwrap(), fixture.root.to_str().unwrap());
    for bad in [PathBuf::from("relative"), fixture.root.join("x"), fixture.root.join("none")] {
        assert!(Roots::open(std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn unusable_additional_root_is_left_out() {
    let fixture = RootsFixture::new();
    std::fs::write(fixture.root.join("file"), "x").unwrap();
    let (missing, file) = (fixture.outside.join("none"), fixture.root.join("file"));
    let roots = Roots::open(&[fixture.root.clone(), missing.clone(), file, fixture.outside.clone()]).unwrap();
    let real = |path: &Path| path.to_str().unwrap().to_owned();
    assert_eq!(roots.paths(), Ok(vec![real(&fixture.root), real(&fixture.outside)]));
    let secret = real(&fixture.outside.join("secret"));
    assert_eq!(roots.read(&secret, None, None, 100), Ok("secret".to_owned()));
    assert!(Roots::open(&[missing, fixture.root]).is_err(), "missing working directory");
}

#[test]
fn only_regular_text_files_within_size_limit_are_read() {
    let fixture = RootsFixture::new();
    std::fs::create_dir(fixture.root.join("dir")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, fixture.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.root.join("socket")).unwrap();
    for name in ["dir", "fifo", "socket", ".", "dir/"] {
        assert_eq!(fixture.read(name), Err(FilesError::NotRegular), "{name}");
        assert_eq!(fixture.write(name, "x"), Err(FilesError::NotRegular), "{name}");
        let seen = fixture.inspect(name).unwrap();
        assert_eq!((seen.exists, seen.is_regular, seen.sha256), (true, false, None), "{name}");
    }
    assert_eq!(fixture.read("fifo/x"), Err(FilesError::NotFound));
    std::fs::write(fixture.root.join("latin1"), b"\xe9").unwrap();
    assert_eq!(fixture.read("latin1"), Err(FilesError::NotUtf8));
    assert_eq!(fixture.inspect("latin1").unwrap().text, None);
    let huge = File::create(fixture.root.join("huge")).unwrap();
    huge.set_len(READ_BYTES_MAX).unwrap();
    assert_eq!(fixture.read("huge").unwrap().len() as u64, READ_BYTES_MAX);
    huge.set_len(READ_BYTES_MAX + 1).unwrap();
    assert_eq!(fixture.read("huge"), Err(FilesError::TooLarge { bytes_max: READ_BYTES_MAX }));
    assert_eq!(
        fixture.roots.read(&fixture.path("huge"), None, None, 7),
        Err(FilesError::TooLarge { bytes_max: 7 })
    );
    let (most, over) = (fixture.roots.write(&fixture.path("x"), b"x"), vec![b'x'; 32 * 1024 * 1024 + 1]);
    assert_eq!(most, Ok(()));
    assert!(matches!(fixture.roots.write(&fixture.path("x"), &over), Err(FilesError::TooLarge { .. })));
    huge.set_len(WRITE_BYTES_MAX + 1).unwrap();
    assert_eq!(fixture.inspect("huge").unwrap().sha256, None);
}

#[test]
fn inspection_returns_path_hash_and_short_text() {
    let fixture = RootsFixture::new();
    let hash = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    fixture.write("a", "x").unwrap();
    symlink("a", fixture.root.join("link")).unwrap();
    for name in ["a", "./a", "link"] {
        let want = Inspection {
            canonical: Some(fixture.path("a")),
            exists: true,
            is_regular: true,
            size: 1,
            sha256: Some(hash.to_owned()),
            text: Some("x".to_owned()),
        };
        assert_eq!(fixture.inspect(name), Ok(want), "{name}");
    }
    fixture.write("long", "longer").unwrap();
    let long = fixture.inspect("long").unwrap();
    assert_eq!((long.size, long.text), (6, None));
    for name in ["none", "none/deep"] {
        let canonical = Some(fixture.path(name));
        assert_eq!(fixture.inspect(name), Ok(Inspection { canonical, ..Inspection::default() }), "{name}");
    }
}

/// Exchanges `dir` atomically with a link to the outside directory until `stop` is set.
fn swap_dir(root: &Path, outside: &Path, stop: &AtomicBool) {
    let (name, spare) = (root.join("dir"), root.join("spare"));
    symlink(outside, &spare).unwrap();
    let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    while !stop.load(Ordering::Relaxed) {
        rustix::fs::renameat_with(cwd, &name, cwd, &spare, flags).unwrap();
    }
}

/// Exchanges `file` with a link to the secret until `stop` is set. Both are created in each round, since a write may
/// replace either.
fn swap_file(root: &Path, secret: &Path, stop: &AtomicBool) {
    let (name, spare) = (root.join("file"), root.join("spare"));
    while !stop.load(Ordering::Relaxed) {
        symlink(secret, &spare).unwrap();
        std::fs::rename(&spare, &name).unwrap();
        std::fs::write(&spare, "inside").unwrap();
        std::fs::rename(&spare, &name).unwrap();
    }
}

#[test]
fn link_swapped_between_check_and_open_stays_inside() {
    for (swapped, target) in [("dir", "dir/secret"), ("file", "file")] {
        let fixture = RootsFixture::new();
        std::fs::create_dir(fixture.root.join("dir")).unwrap();
        std::fs::write(fixture.root.join("dir/secret"), "inside").unwrap();
        std::fs::write(fixture.root.join("file"), "inside").unwrap();
        let secret = fixture.outside.join("secret");
        let stop = AtomicBool::new(false);
        let (mut reads, mut writes, mut refused, mut leaked) = (0, 0, 0, false);
        std::thread::scope(|scope| {
            scope.spawn(|| match swapped {
                "dir" => swap_dir(&fixture.root, &fixture.outside, &stop),
                _ => swap_file(&fixture.root, &secret, &stop),
            });
            // Minimum number of attempts, then until both sides of the race were met or the deadline.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            for attempt in 0.. {
                let got = if attempt % 10 == 0 {
                    fixture.write(target, "inside").map(|()| writes += 1)
                } else {
                    fixture.read(target).map(|text| {
                        // A failed assertion here would leave the other thread running.
                        leaked |= text != "inside";
                        reads += 1;
                    })
                };
                refused += i32::from(got.is_err());
                let met = attempt > 2_000 && reads > 0 && writes > 0 && refused > 0;
                if met || std::time::Instant::now() > deadline {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!leaked, "{swapped}: an outside file was read");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(std::fs::read_dir(&fixture.outside).unwrap().count(), 1, "files outside");
        assert!(reads + writes > 0 && refused > 0, "{swapped}: {reads} {writes} {refused}");
    }
}
