//! The web console in a real browser (`tests/browser/install.sh`): what people see and do, and what it must not do.

use super::{ask, open};
use acp_tests::browser::{Browser, Page, browser_dir};
use acp_tests::house::{House, Plan};
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};

/// A browser and a gateway whose listener keeps its port over restarts.
pub(crate) struct Desk {
    pub(crate) dir: PathBuf,
    pub(crate) house: House,
    pub(crate) at: SocketAddr,
}

impl Desk {
    /// `None`, aloud, without a browser.
    pub(crate) fn new(flags: &[&str]) -> Option<Self> {
        Self::planned(|listen| {
            let plan = Plan::flags(flags).gateway(listen);
            // In its mode `auto` the scripted agent asks for nothing.
            if flags.contains(&"--modes") { plan.mode("ask") } else { plan }.build()
        })
    }

    /// The same with another house, whose gateway has this configuration. `None`, aloud, without a browser.
    pub(crate) fn planned(build: impl FnOnce(&str) -> House) -> Option<Self> {
        let dir = browser_dir()?;
        // Free a moment ago: a gateway that starts again needs the same one. Below those that the kernel gives to the
        // connections of browsers in other tests.
        let port = || u16::try_from(uuid::Uuid::now_v7().as_u128() % 12_000).unwrap() + 20_000;
        let free = std::iter::repeat_with(|| TcpListener::bind(("127.0.0.1", port())));
        let at = free.flatten().next().and_then(|free| free.local_addr().ok()).unwrap();
        let house = build(&format!("[northbound]\nlisten = [\"unix\", \"{at}\"]\n"));
        Some(Self { dir, house, at })
    }

    pub(crate) fn browser(&self) -> Browser {
        Browser::start(&self.dir, &self.house.world)
    }

    pub(crate) fn token(&self, name: &str, more: &[&str]) -> String {
        let created = self.house.verb(&[&["token", "add", name], more].concat());
        created["token"].as_str().unwrap().to_owned()
    }

    /// Signs a page in with a token, as a person on another device does.
    pub(crate) fn sign_in(&self, page: &Page<'_>, token: &str) {
        page.open(&format!("http://{}/", self.at));
        page.fill("textbox", "Token", token);
        page.click("button", "Sign in");
        page.until("the list of sessions", "document.querySelector('.sessions')");
    }

    pub(crate) fn session_url(&self, key: &str) -> String {
        format!("http://{}/#/s/{}", self.at, key.replace(':', "%3A"))
    }
}

/// Goes to a place of the page without loading it again.
pub(crate) fn go(page: &Page<'_>, hash: &str) {
    let _ = page.eval(&format!("void (location.hash = {})", json!(hash)));
}

/// Address of a session within the page.
pub(crate) fn hash_of(key: &str) -> String {
    format!("#/s/{}", key.replace(':', "%3A"))
}

/// Opens a session in the page and waits for its field for prompts.
pub(crate) fn go_to_session(page: &Page<'_>, key: &str) {
    go(page, &hash_of(key));
    page.until("the prompt", "document.querySelector('#prompt')");
}

/// Chooses a value of a list, as a person does.
pub(crate) fn choose(page: &Page<'_>, selector: &str, value: &str) {
    let script = "((list, value) => { list.value = value; list.dispatchEvent(new Event('change', { bubbles: true })); })";
    page.until(selector, &format!("document.querySelector({})", json!(selector)));
    let _ = page.eval(&format!("{script}(document.querySelector({}), {})", json!(selector), json!(value)));
}

/// Sends a prompt from the page.
pub(crate) fn send(page: &Page<'_>, text: &str) {
    page.fill("textbox", "Prompt for scripted", text);
    page.press("Control+Enter");
}

/// Checks that the browser had nothing to complain about.
pub(crate) fn check(page: &Page<'_>) {
    assert_eq!(page.problems(), Vec::<String>::new(), "{}", page.text());
}

fn count(page: &Page<'_>, text: &str) -> u64 {
    let script = format!("document.querySelector('.scroll').innerText.split({}).length - 1", json!(text));
    page.eval(&script).as_u64().unwrap()
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn link_signs_in_without_leaving_a_trace_for_other_servers() {
    let Some(desk) = Desk::new(&[]) else { return };
    let console = open(&desk.house, &[]);
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.sessions')");
    assert!(!page.eval("location.href + JSON.stringify(history.state)").to_string().contains(&console.code));
    assert_eq!(page.eval("document.cookie"), "");
    let login = page.eval("sessionStorage.getItem('acphost.login')");
    let login: Value = serde_json::from_str(login.as_str().unwrap()).unwrap();
    let token = login["token"].as_str().unwrap();
    assert!(!page.eval("JSON.stringify(localStorage)").as_str().unwrap().contains(token));
    check(&page);

    // An agent's development server on another port of the same host: opened beside the console, in the same browser.
    let (other, heard) = development_server();
    page.open(&format!("http://{other}/"));
    let heard = heard.recv_timeout(LONG).unwrap();
    assert!(
        !heard.contains("cookie:") && !heard.contains("authorization:") && !heard.contains("referer:"),
        "{heard}"
    );
    assert_eq!(page.eval("sessionStorage.length + localStorage.length"), 0, "storage belongs to one port");
    let theft = format!("fetch('http://{}/v1/sessions').then(() => 'read', () => 'refused')", console.at);
    assert_eq!(page.eval(&theft), "refused", "a page of another port");
    // The browser reports this refusal of the other page.
    let _ = page.problems();

    page.open(&format!("http://{}/", console.at));
    page.until("the same tab is signed in", "document.querySelector('.sessions')");
    page.click("button", "Sign out");
    page.shows("You are signed out.");
    assert_eq!(ask(console.at, "GET", "/v1/whoami", token, "").0, 401);
    check(&page);
    drop(page);
    drop(browser);
    drop(console);
    desk.house.end();
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn expired_and_revoked_tokens_lead_to_the_sign_in() {
    let Some(desk) = Desk::new(&[]) else { return };
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("phone", &["--scope", "approve"]));
    let _ = desk.house.verb(&["token", "revoke", "phone"]);
    page.shows("the token has expired or was revoked");
    page.fill("textbox", "Token", &desk.token("short", &["--scope", "read", "--expires", "15s"]));
    page.click("button", "Sign in");
    page.until("the list of sessions", "document.querySelector('.sessions')");
    page.shows("the token has expired or was revoked");
    page.fill("textbox", "Token", "acp_wrong");
    page.click("button", "Sign in");
    page.shows("The sign-in failed");
    let console = open(&desk.house, &[]);
    assert_eq!(super::log_in(console.at, &console.code).0, 200);
    page.open("about:blank");
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.shows("The code was not accepted");
    check(&page);
    drop(page);
    drop(browser);
    drop(console);
    desk.house.end();
}

/// A turn with text, thoughts, a plan, tools and a permission request, driven by hand.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn session_is_started_prompted_answered_steered_and_closed() {
    let Some(desk) = Desk::new(&["--steer", "--modes", "--options"]) else { return };
    let browser = desk.browser();
    let page = browser.page(1280, 900);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "admin"]));
    let cwd = desk.house.world.dir("work/project");
    page.click("link", "New");
    page.fill("combobox", "Directory", cwd.to_str().unwrap());
    page.fill("textbox", "Name", "From the page");
    page.fill(
        "textbox",
        "First prompt",
        "thought pondering\nplan look; write\nsay first answer\npermission Delete everything\nsay after it",
    );
    let _ = page.eval("document.querySelector('[name=permission][value=ask]').click()");
    page.click("button", "Start session");
    page.shows("first answer");
    page.shows("Delete everything");
    page.until("the title tells of it", "document.title.startsWith('(1)')");
    // From the list, beside the session.
    page.until("the request is in the list", "document.querySelector('.list-pane .permission')");
    let _ = page.eval("document.querySelector('.list-pane .permission .answers button').click()");
    page.shows("after it");
    page.until(
        "the answer names its person",
        "document.querySelector('.settled')?.innerText.includes('by ann')",
    );

    let prompt = |text: &str| {
        let field = "textbox";
        page.fill(field, "Prompt for scripted", text);
        page.press("Control+Enter");
    };
    prompt("wait_cancel");
    page.until("a running turn", "document.querySelector('.stop')");
    prompt("say queued answer");
    page.until("a queued prompt", "document.querySelector('.queue')?.innerText.includes('queued answer')");
    page.click("switch", "Steer the running turn");
    prompt("say steered");
    eventually(SOON, "the steer", || desk.house.agent_events("steer").into_iter().next());
    page.click("button", "Stop");
    page.until("the queue runs", "document.querySelector('.scroll').innerText.includes('queued answer')");
    page.until(
        "everything has ended",
        "!document.querySelector('.stop') && !document.querySelector('.queue')",
    );

    page.click("button", "Settings of the session");
    page.until("the mode", "document.querySelector('#set-mode')");
    let _ = page.eval("void (s => { s.value = 'auto'; s.dispatchEvent(new Event('change', { bubbles: true })); })(document.querySelector('#set-mode'))");
    let set = |message: &Value| message["params"]["modeId"] == "auto";
    eventually(SOON, "the mode", || desk.house.received("session/set_mode").into_iter().find(set));
    page.click("button", "Done");
    page.click("button", "More actions");
    page.click("menuitem", "Rename");
    page.fill("textbox", "Name", "Renamed here");
    page.click("button", "Save");
    page.until(
        "the new name",
        "document.querySelector('.session-title h1').innerText.includes('Renamed here')",
    );
    page.click("button", "More actions");
    page.click("menuitem", "Close");
    page.until("the question", "document.querySelector('dialog[open] .button.danger')");
    let _ = page.eval("document.querySelector('dialog[open] .button.danger').click()");
    page.shows("This session is closed.");
    check(&page);
    let sessions = desk.house.verb(&["sessions", "list", "--all"]);
    assert_eq!(
        (&sessions[0]["label"], &sessions[0]["state"], &sessions[0]["permission"]),
        (&json!("Renamed here"), &json!("closed"), &json!("ask")),
        "{sessions}"
    );
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Files by paste, and the keys of the page.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn files_are_pasted_and_pages_are_reached_by_keys() {
    let Some(desk) = Desk::new(&[]) else { return };
    let _ = desk.house.spawn();
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "admin"]));
    page.until("the session is listed", "document.querySelector('.row-link')");
    page.press("j");
    page.press("Enter");
    page.until("the session", "document.querySelector('#prompt')");
    page.press("i");
    let paste = "(() => { const data = new DataTransfer(); \
        data.items.add(new File([Uint8Array.from(atob('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='), c => c.charCodeAt(0))], 'dot.png', { type: 'image/png' })); \
        document.querySelector('#prompt').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); })()";
    let _ = page.eval(paste);
    page.shows("dot.png");
    page.fill("textbox", "Prompt for scripted", "say got it");
    page.press("Control+Enter");
    page.shows("got it");
    // The page shows the prompt before the agent has it.
    let first = || desk.house.received("session/prompt").into_iter().next();
    let sent = eventually(SOON, "the prompt", first)["params"]["prompt"].to_string();
    assert!(sent.contains("dot.png"), "{sent}");
    page.press("Escape");
    for (second, place) in [("a", "Agents"), ("p", "Processes"), ("h", "Health")] {
        page.press("g");
        page.press(second);
        page.until(place, &format!("document.querySelector('main h1')?.innerText.includes('{place}')"));
    }
    page.press("?");
    page.shows("Keyboard shortcuts");
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// A server of something else: its address, and the heads of the requests that it gets.
fn development_server() -> (SocketAddr, Receiver<String>) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    // More than the requests of the test; a thread that finds it full waits for the end of the test.
    let (told, heard) = sync_channel(64);
    // A browser may open connections that it does not use.
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let told = told.clone();
            std::thread::spawn(move || told.send(answer(stream)?).ok());
        }
    });
    (at, heard)
}

/// Answers a request with a page; its head in lower case, or `None` if the connection ends before.
fn answer(mut stream: TcpStream) -> Option<String> {
    let (mut head, mut block) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut block).ok()? {
            0 => return None,
            n => head.extend_from_slice(&block[..n]),
        }
    }
    let page = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<p>dev</p>";
    stream.write_all(page).ok()?;
    Some(String::from_utf8_lossy(&head).to_lowercase())
}

/// SIGKILL of the gateway while an answer arrives: the page shows each piece once, and a prompt sent meanwhile runs once.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn killed_gateway_loses_and_doubles_nothing() {
    let Some(mut desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "approve"]));
    go(&page, &format!("#/s/{}", key.replace(':', "%3A")));
    page.until("the prompt", "document.querySelector('#prompt')");
    page.fill("textbox", "Prompt for scripted", "chunks 60 pace_ms=50 size=8");
    page.press("Control+Enter");
    page.shows("000010");
    desk.house.kill_gateway();
    page.shows("Reconnecting");
    page.fill("textbox", "Prompt for scripted", "say sent while it was down");
    page.press("Control+Enter");
    desk.house.start_gateway();
    page.shows("000060");
    page.until(
        "the prompt of the outage was answered",
        "[...document.querySelectorAll('.item.agent')].some(it => it.innerText.includes('sent while it was down'))",
    );
    for piece in ["000001", "000010", "000011", "000030", "000059", "000060"] {
        assert_eq!(count(&page, piece), 1, "{piece}: {}", page.text());
    }
    until(LONG, "the turn ends", || desk.house.verb(&["sessions", "show", &key])["state"] == "idle");
    assert_eq!(desk.house.prompts_received("say sent while it was down"), 1);
    let shown = "[...document.querySelectorAll('.item.user')].filter(it => it.innerText.includes('sent while it was down')).length";
    assert_eq!(page.eval(shown), 1);
    check(&page);
    // A reload shows the same.
    page.open(&desk.session_url(&key));
    page.call("Page.reload", json!({}));
    page.shows("000060");
    assert_eq!((count(&page, "000030"), desk.house.prompts_received("say sent while it was down")), (1, 1));
    drop(page);
    drop(browser);
    desk.house.end();
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn second_browser_sees_who_answered() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    let browser = desk.browser();
    let (ann, bob) = (browser.page(1280, 800), browser.page(400, 800));
    desk.sign_in(&ann, &desk.token("ann", &["--scope", "approve"]));
    desk.sign_in(&bob, &desk.token("bob", &["--scope", "approve"]));
    let hash = format!("#/s/{}", key.replace(':', "%3A"));
    for page in [&ann, &bob] {
        go(page, &hash);
        page.until("the prompt", "document.querySelector('#prompt')");
    }
    ann.fill("textbox", "Prompt for scripted", "permission Delete everything");
    ann.press("Control+Enter");
    let card = "document.querySelector('main .permission .answers button')";
    ann.until("the request", card);
    bob.until("the request", card);
    let _ = bob.eval(&format!("{card}.click()"));
    ann.until("who answered", "document.querySelector('main .settled')?.innerText.includes('by bob')");
    ann.until("the request is gone", "!document.querySelector('.permission')");
    bob.until("the own answer", "document.querySelector('main .settled')?.innerText.includes('by bob')");
    check(&ann);
    check(&bob);
    drop((ann, bob));
    drop(browser);
    desk.house.end();
}
