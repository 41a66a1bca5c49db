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
