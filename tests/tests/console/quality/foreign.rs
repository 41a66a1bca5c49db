//! Qualities of the web console in a real browser: hostile text stays text, everything is accessible, long sessions stay
//! small, the first view is light, and the pictures of the manual are those of the pages. Times are printed, not checked.

use super::foreign::{Desk, check, go, hash_of};
use acp_tests::browser::Page;
use acp_tests::cli::RunningCommand;
use acp_tests::wait::{LONG, until};
use acp_tests::world::repository;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Maximum number of elements of a page with a long session.
const ELEMENTS_MAX: u64 = 3_000;
/// Maximum number of bytes that a first visit transfers.
const BYTES_MAX: f64 = 150_000.0;
/// Share of a picture that may differ from the one of the manual: fonts and browsers differ between machines.
const DIFFERENCE_MAX: f64 = 0.06;

pub(crate) fn run(desk: &Desk, key: &str, script: &str) {
    let _ = desk.house.prompt(key, script);
}

/// Starts a turn and waits for its permission request.
pub(crate) fn ask(desk: &Desk, key: &str, script: &str) -> RunningCommand {
    let turn = desk.house.follow(&["prompt", key, script, "--interactive"]);
    until(LONG, "the request", || desk.house.verb(&["permissions", "list", key])[0].is_object());
    turn
}

/// Ends such a turn.
pub(crate) fn cancel(desk: &Desk, key: &str, turn: RunningCommand) {
    let _ = desk.house.verb(&["sessions", "cancel", key]);
    let _ = turn.finish(LONG);
}

/// Text of agents that tries to be more than text.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn hostile_transcript_is_nothing_but_text() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    for script in [
        "say <script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 2\"><svg onload=\"window.hacked = 3\">",
        "say [click](javascript:window.hacked=4) <a href=\"javascript:window.hacked=5\">b</a> [data](data:text/html,<script>1</script>)",
        "say ![picture](http://127.0.0.1:9/leak.png) <style>*{display:none}</style> <iframe src=\"//evil.example\"></iframe>",
        "say \\u001b[31mred\\u001b]0;title\\u0007\\u001b[2Jcleared",
        "say right\\u202eleft\\u2066 half \\ud83d and \\udc4d end",
        "thought <b onclick=\"window.hacked=6\">bold</b>",
        "plan <script>window.hacked=7</script>; javascript:window.hacked=8",
    ] {
        run(&desk, &key, script);
    }
    let asking = ask(&desk, &key, "permission <img src=x onerror=\"window.hacked=9\">");
    let other = desk.house.spawn();
    // One line of 5 MB.
    run(&desk, &other, "chunks 1 size=5242880");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "admin"]));
    for hash in [hash_of(&key), hash_of(&other)] {
        go(&page, &hash);
        page.until("the transcript", "document.querySelector('.item.agent')");
        for _ in 0..12 {
            let _ = page.eval("(() => { const list = document.querySelector('.scroll'); list.scrollTop -= 600; document.querySelectorAll('details').forEach(it => { it.open = true; }); })()");
            let _ = page.eval("new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)))");
        }
        assert_eq!(page.eval("window.hacked ?? null"), Value::Null);
        let bad = "[...document.querySelectorAll('script:not([src]), iframe, object, embed, style, [onclick], [onerror], [onload], a[href^=javascript], a[href^=data], img[src^=http]')].map(it => it.outerHTML)";
        assert_eq!(page.eval(bad), json!([]));
        let halves =
            "/[\\u001b\\u202e\\u2066]|[\\ud800-\\udbff](?![\\udc00-\\udfff])/.test(document.body.innerText)";
        assert_eq!(page.eval(halves), false, "{}", page.text());
        assert!(
            page.eval("document.body.innerText.length").as_u64().unwrap() < 300_000,
            "a long line is cut"
        );
        check(&page);
    }
    go(&page, &hash_of(&key));
    page.until("the tags as text", "document.body.innerText.includes('onerror')");
    drop(page);
    drop(browser);
    cancel(&desk, &key, asking);
    desk.house.end();
}

/// A house with everything that pages show.
pub(crate) fn furnished(flags: &[&str]) -> Option<(Desk, String, RunningCommand)> {
    Desk::new(flags).map(furnish)
}

/// Starts sessions: one with a permission request, one idle and one failed.
pub(crate) fn furnish(desk: Desk) -> (Desk, String, RunningCommand) {
    let key = desk.house.spawn();
    let _ = desk.house.verb(&["sessions", "label", &key, "Fix the parser"]);
    run(
        &desk,
        &key,
        "thought Where is the bug?\nplan Read the code; Fix it; Run the tests\nsay ## Plan\\n\\nI **read** the code first:\\n\\n- `parser.rs`\\n- `lexer.rs`\\n\\n```rust\\nfn main() {}\\n```\ntool write parser.rs fn parse() {}\\n\ntool run echo 12 tests passed",
    );
    let idle = desk.house.world.spawn("gateway", "scripted", "work/website");
    run(&desk, &idle, "say The site builds.");
    let failed = desk.house.world.spawn("gateway", "scripted", "work/broken");
    let _ = desk.house.cli(&["prompt", &failed, "error -32603 the model does not answer"]);
    let asking = ask(&desk, &key, "permission Delete the old files");
    (desk, key, asking)
}

/// Nothing of the page is being loaded.
const SETTLED: &str = "!document.querySelector('main .loading, main [aria-busy=true]')";

/// Goes to a place and waits until it is drawn.
pub(crate) fn visit(page: &Page<'_>, (name, hash, drawn): &(&str, String, &str)) {
    go(page, hash);
    page.until(name, &format!("{drawn} && {SETTLED}"));
}

/// Places of the page, with what tells that they are drawn.
pub(crate) fn places(key: &str) -> Vec<(&'static str, String, &'static str)> {
    let heading = |name: &str| name.to_owned();
    vec![
        ("sessions", heading("#/"), "document.querySelector('.row-link')"),
        ("session", hash_of(key), "document.querySelector('main .permission')"),
        (
            "files",
            format!("{}/files", hash_of(key)),
            "document.querySelector('main h1')?.innerText.startsWith('Files of')",
        ),
        ("new", heading("#/new"), "document.querySelector('form.stack .agent-option')"),
        ("agents", heading("#/agents"), "document.querySelector('main .card')"),
        ("processes", heading("#/processes"), "document.querySelector('main .lease')"),
        ("health", heading("#/health"), "document.querySelectorAll('main .check-row').length > 8"),
        ("answers", heading("#/audit"), "document.querySelector('main h1')?.innerText === 'Answers'"),
        ("more", heading("#/more"), "document.querySelector('main .menu-page')"),
        ("tokens", heading("#/tokens"), "document.querySelector('main h1')?.innerText.startsWith('Tokens')"),
    ]
}

#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn pages_have_no_axe_violations() {
    let Some((desk, key, asking)) = furnished(&[]) else { return };
    let axe = std::fs::read_to_string(desk.dir.join("axe.min.js")).unwrap();
    let console = super::open(&desk.house, &[]);
    let browser = desk.browser();
    let page = browser.page(1280, 900);
    let (mut found, mut looks) = (Vec::new(), 0);
    let mut look = |page: &Page<'_>, name: &str| {
        looks += 1;
        let _ = page.eval(&format!("{axe}\nvoid 0"));
        let violations = page.eval("axe.run(document, { resultTypes: ['violations'] }).then(it => it.violations.map(v => `${v.id}: ${v.nodes.map(n => n.target.join(' ') + ' ' + n.any.map(a => a.message).join('; ')).slice(0, 3).join(' | ')}`))");
        found.extend(violations.as_array().unwrap().iter().map(|it| format!("{name}: {it}")));
    };
    page.open(&format!("http://{}/", desk.at));
    page.until("the sign-in", "document.querySelector('#token')");
    look(&page, "sign-in");
    page.open("about:blank");
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.row-link')");
    for scheme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.call("Emulation.setEmulatedMedia", features);
        for (width, height) in [(1280, 900), (390, 844)] {
            page.resize(width, height);
            for place in places(&key) {
                visit(&page, &place);
                look(&page, &format!("{} {scheme} {width}", place.0));
            }
        }
    }
    println!("figure: axe: {} violations in {looks} looks at pages", found.len());
    assert_eq!(found, Vec::<String>::new());
    drop(page);
    drop(browser);
    drop(console);
    cancel(&desk, &key, asking);
    desk.house.end();
}

/// A session of 10,000 events: however far it scrolls, the page has few elements.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn long_session_scrolls_with_few_elements() {
    let Some(desk) = Desk::new(&[]) else { return };
    let key = desk.house.spawn();
    for turn in 0..10 {
        let lines: Vec<String> =
            (0..500).map(|n| format!("say Line {turn}-{n} of a long answer.\nthought {n}")).collect();
        run(&desk, &key, &lines.join("\n"));
    }
    let last = desk.house.verb(&["sessions", "show", &key])["last_session_seq"].as_u64().unwrap();
    assert!(last >= 10_000, "{last} events");
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    desk.sign_in(&page, &desk.token("ann", &["--scope", "read"]));
    go(&page, &hash_of(&key));
    page.until("the transcript", "document.querySelector('.item')");
    let _ = page.eval("void (window.longTasks.length = 0)");
    let scroll = "(async () => { const list = document.querySelector('.scroll'); let most = 0; \
        for (let step = 0; step < 300; step += 1) { list.scrollTop -= 700; \
        await new Promise(done => requestAnimationFrame(() => setTimeout(done, 8))); \
        most = Math.max(most, document.querySelectorAll('*').length); } return most; })()";
    let most = page.eval(scroll).as_u64().unwrap();
    let tasks = page.eval("window.longTasks");
    let long = tasks.as_array().unwrap();
    let longest = long.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    println!("figure: scrolling {last} events: {} tasks over 50 ms, the longest {longest:.0} ms", long.len());
    println!("figure: scrolling {last} events: at most {most} elements");
    assert!(most <= ELEMENTS_MAX, "{most} elements");
    page.click("button", "Latest");
    let last = "document.querySelector('.scroll').innerText.includes('Line 9-499 of')";
    page.until("the end", &format!("!document.querySelector('.to-end') && {last}"));
    check(&page);
    drop(page);
    drop(browser);
    desk.house.end();
}

/// Bytes on the wire of a first visit, and the time from the navigation to the first painted rows, without any cache.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn first_view_is_light() {
    let Some((desk, key, asking)) = furnished(&[]) else { return };
    let browser = desk.browser();
    let token = desk.token("ann", &["--scope", "approve"]);
    let (mut times, mut most) = (Vec::new(), 0.0_f64);
    for _ in 0..10 {
        let page = browser.page(390, 844);
        desk.sign_in(&page, &token);
        page.call("Network.setCacheDisabled", json!({"cacheDisabled": true}));
        let _ = page.events("Network.loadingFinished");
        let seen = "new MutationObserver((_, watch) => { if (document.querySelector('.row-link')) { watch.disconnect(); \
            requestAnimationFrame(() => requestAnimationFrame(() => { window.rowsAt = performance.now(); })); } })\
            .observe(document, { childList: true, subtree: true });";
        page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": seen}));
        page.call("Page.reload", json!({}));
        page.until("the rows", "window.rowsAt");
        times.push(page.eval("window.rowsAt").as_f64().unwrap());
        let finished = page.events("Network.loadingFinished");
        let bytes: f64 = finished.iter().filter_map(|event| event["encodedDataLength"].as_f64()).sum();
        most = most.max(bytes);
        check(&page);
    }
    times.sort_by(f64::total_cmp);
    println!("figure: first rows: median {:.0} ms of {times:.0?}", f64::midpoint(times[4], times[5]));
    println!("figure: first view: at most {most} bytes");
    assert!(most <= BYTES_MAX, "{most} bytes");
    drop(browser);
    cancel(&desk, &key, asking);
    desk.house.end();
}

fn picture_file(name: &str) -> PathBuf {
    repository().join("docs/manual/pictures").join(format!("console-{name}.png"))
}

/// Makes what differs between machines and runs the same.
const STEADY: &str = include_str!("steady.js");

/// Sizes of the pictures.
const SIZES: &[(&str, u32, u32)] = &[("desktop", 1280, 800), ("phone", 390, 844)];

/// Share of the cells of 8 × 8 pixels whose mean colour differs clearly, compared in the browser.
const COMPARE: &str = "(async (one, two) => { const cells = async data => { const image = new Image(); \
    image.src = `data:image/png;base64,${data}`; await image.decode(); const canvas = document.createElement('canvas'); \
    canvas.width = Math.ceil(image.width / 8); canvas.height = Math.ceil(image.height / 8); \
    const context = canvas.getContext('2d'); context.imageSmoothingQuality = 'high'; \
    context.drawImage(image, 0, 0, canvas.width, canvas.height); \
    return context.getImageData(0, 0, canvas.width, canvas.height); }; \
    const [a, b] = [await cells(one), await cells(two)]; \
    if (a.width !== b.width || a.height !== b.height) return 1; let differing = 0; \
    for (let at = 0; at < a.data.length; at += 4) { \
    const distance = [0, 1, 2].reduce((sum, part) => sum + Math.abs(a.data[at + part] - b.data[at + part]), 0); \
    if (distance > 72) differing += 1; } return differing / (a.data.length / 4); })";

/// With `ACP_WRITE_PICTURES=1` the pictures are written instead.
#[test]
#[ignore = "needs a browser: `make test-browser`"]
fn pictures_of_the_manual_are_those_of_the_pages() {
    let Some((desk, key, asking)) = furnished(&[]) else { return };
    let console = super::open(&desk.house, &[]);
    let browser = desk.browser();
    let page = browser.page(1280, 800);
    let root = desk.house.world.path("");
    let steady = STEADY.replace("__ROOT__", &json!(root.to_str().unwrap().trim_end_matches('/')).to_string());
    page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": steady}));
    let light = json!({"features": [{"name": "prefers-color-scheme", "value": "light"}]});
    page.call("Emulation.setEmulatedMedia", light);
    let plain = browser.page(100, 100);
    let mut differing = Vec::new();
    let mut look = |name: &str, device: &str| {
        // Sizes that were measured late have their frame before the masks, and the masks one before the picture.
        let _ = page.eval("new Promise(done => setTimeout(() => { steady(); requestAnimationFrame(() => requestAnimationFrame(done)); }, 300))");
        let picture = page.picture();
        let file = picture_file(&format!("{name}-{device}"));
        let bytes = BASE64.decode(picture.as_bytes()).unwrap();
        if std::env::var_os("ACP_WRITE_PICTURES").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &bytes).unwrap();
            return;
        }
        let known = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let script = format!("{COMPARE}({}, {})", json!(picture), json!(BASE64.encode(&known)));
        let share = plain.eval(&script).as_f64().unwrap();
        println!("{name}-{device}: {:.2} % differ", share * 100.0);
        if share > DIFFERENCE_MAX {
            std::fs::write(desk.dir.join(format!("{name}-{device}.png")), &bytes).unwrap();
            differing.push(format!("{name}-{device}: {:.1} %", share * 100.0));
        }
    };
    page.open(&format!("http://{}/", console.at));
    page.until("the sign-in", "document.querySelector('#token')");
    for (device, width, height) in SIZES {
        page.resize(*width, *height);
        look("sign-in", device);
    }
    page.open("about:blank");
    page.open(&format!("http://{}/#code={}", console.at, console.code));
    page.until("the list of sessions", "document.querySelector('.row-link')");
    for (device, width, height) in SIZES {
        page.resize(*width, *height);
        for place in places(&key) {
            visit(&page, &place);
            look(place.0, device);
        }
    }
    let hint = "the new pictures are beside the browser; if they are meant, run with ACP_WRITE_PICTURES=1";
    assert_eq!(differing, Vec::<String>::new(), "{hint}");
    drop((page, plain));
    drop(browser);
    drop(console);
    cancel(&desk, &key, asking);
    desk.house.end();
}
