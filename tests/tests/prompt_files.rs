//! Files of prompts over the command line and the API.

use acp_tests::house::House;

#[test]
fn files_reach_the_agent_or_are_named_as_left_out() {
    let (house, key) = House::new(&[]).with_session();
    let dir = house.cwd();
    std::fs::write(dir.join("notes.txt"), "remember the milk").unwrap();
    std::fs::write(dir.join("screen.png"), [0x89, b'P', b'N', b'G', 0xff]).unwrap();
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (text, image) = (path("notes.txt"), path("screen.png"));
    let _ = house.cli(&["prompt", &key, "look at these", "--file", &text, "--file", &image]).ok();
    let received = house.received("session/prompt").pop().unwrap_or_default().to_string();
    assert!(received.contains("remember the milk"), "{received}");
    let left_out = "The file screen.png was left out: 5 bytes, and this agent does not take image/png";
    assert!(received.contains(left_out), "{received}");
    std::fs::write(dir.join("big"), vec![0; 8 * 1024 * 1024 + 1]).unwrap();
    for (file, words) in [("absent", "No such file"), ("big", "8388608 bytes")] {
        let refused = house.cli(&["prompt", &key, "not these", "--file", &path(file)]);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(2), "USAGE"));
        assert!(refused.error()["message"].to_string().contains(words), "{refused:?}");
    }
    assert_eq!(house.prompts_received("not these"), 0);
    house.end();
}
