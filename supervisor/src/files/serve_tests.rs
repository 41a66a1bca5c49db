#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn jobs_are_answered_in_order_until_the_input_ends() {
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
    assert!(run(FRAMES_VERSION + 1).is_err(), "another version is refused");
}

#[test]
fn programs_and_directories_are_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (tool, plain, link) = (base.join("tool"), base.join("plain"), base.join("link"));
    std::fs::write(&tool, "").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&plain, "").unwrap();
    std::os::unix::fs::symlink(&base, &link).unwrap();
    let search = format!("relative:/nonexistent:{}", text(&base));
    let found = |name: &str| program(name, &search);
    assert_eq!(found("tool"), Some(text(&tool)));
    assert_eq!(found(&text(&tool)), Some(text(&tool)));
    for name in ["plain", "link", "./tool", "", "none", &text(&plain)] {
        assert_eq!(found(name), None, "{name}");
    }
    let paths = vec![text(&link), text(&plain), text(&base.join("none")), "relative".to_owned()];
    let answer = answer(HelperJob { roots: vec![], op: FilesOp::Directories { paths } });
    let want = vec![
        Ok(text(&base)),
        Err(FilesError::NotDirectory),
        Err(FilesError::NotFound),
        Err(FilesError::BadPath),
    ];
    assert_eq!(answer, Ok(FilesReply::Directories(want)));
}
