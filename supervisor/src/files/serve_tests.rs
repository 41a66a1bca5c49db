#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;

#[test]
fn jobs_are_answered_in_order_until_end_of_input() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    let path = format!("{root}/a");
    let frames = [
        FilesOp::Write { path: path.clone(), content: b"one\ntwo\n".to_vec() },
        FilesOp::Read { path: path.clone(), line: Some(2), limit: None, bytes_max: 100 },
        FilesOp::Directory { path: root.clone() },
        FilesOp::Read { path: "/etc/passwd".to_owned(), line: None, limit: None, bytes_max: 100 },
    ]
    .into_iter()
    .flat_map(|op| encode_frame(&HelperJob { roots: vec![root.clone()], op }, FRAME_BYTES_MAX).unwrap());
    let (input, mut output) = (frames.collect::<Vec<u8>>(), Vec::new());
    serve(&mut input.as_slice(), &mut output).unwrap();
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    decoder.push(&output);
    let mut next = || decoder.pop::<Result<FilesReply, FilesError>>().unwrap();
    assert_eq!(next(), Some(Ok(FilesReply::Written)));
    assert_eq!(next(), Some(Ok(FilesReply::Text("two\n".to_owned()))));
    assert_eq!(next(), Some(Ok(FilesReply::Directory { path: root.clone(), roots: vec![root.clone()] })));
    assert_eq!(next(), Some(Err(FilesError::Outside)));
    assert_eq!(next(), None);
    assert!(run(FRAMES_VERSION + 1).is_err(), "another version");
}

#[test]
fn directory_is_listed_by_name_beneath_the_roots() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let root = base.join("root");
    for made in ["root/b/deep", "root/.hidden", "outside"] {
        std::fs::create_dir_all(base.join(made)).unwrap();
    }
    std::fs::write(root.join("a"), "text").unwrap();
    symlink(root.join("b"), root.join("in")).unwrap();
    symlink(base.join("outside"), root.join("out")).unwrap();
    symlink("b", root.join("rel")).unwrap();
    let root = root.to_str().unwrap().to_owned();
    let list = |path: String, entries_max| {
        answer(HelperJob { roots: vec![root.clone()], op: FilesOp::List { path, entries_max } })
    };
    let Ok(FilesReply::List { entries, more }) = list(root.clone(), 100) else { panic!("no list") };
    let found: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.is_directory)).collect();
    // Links with absolute targets leave the root, as for every other operation.
    assert_eq!(
        found,
        [(".hidden", true), ("a", false), ("b", true), ("in", false), ("out", false), ("rel", true)]
    );
    assert!(!more && entries[1].size == 4);
    let Ok(FilesReply::List { entries, more: false }) = list(format!("{root}/b"), 1) else {
        panic!("no list")
    };
    assert!(entries[0].name == "deep" && entries[0].is_directory && entries.len() == 1);
    assert!(
        matches!(list(root.clone(), 2), Ok(FilesReply::List { entries, more: true }) if entries.len() == 2)
    );
    assert_eq!(list(format!("{root}/../outside"), 9), Err(FilesError::Outside));
    assert_eq!(list(format!("{root}/a"), 9), Err(FilesError::NotFound));
}

#[test]
fn programs_and_directories_are_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    let call = |op| answer(HelperJob { roots: vec![], op });
    let found = call(FilesOp::Programs {
        names: ["sh", "none"].map(str::to_owned).to_vec(),
        search: format!("{base}:/bin"),
    });
    assert_eq!(found, Ok(FilesReply::Programs(vec![Some("/bin/sh".to_owned()), None])));
    let found = call(FilesOp::Directories { paths: vec![base.clone(), format!("{base}/none")] });
    assert_eq!(found, Ok(FilesReply::Directories(vec![Ok(base), Err(FilesError::NotFound)])));
}
