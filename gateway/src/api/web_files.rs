//! Files of the web console, embedded in the program. They need no token: what they show comes from `/v1`, which does.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::GzEncoder;
use include_dir::{Dir, include_dir};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::LazyLock;

static SOURCE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/console");
/// The page of the console.
const INDEX: &str = "index.html";
/// Prefix of the paths that are answered with the page.
const PAGES: &str = "s/";

/// What the page may load and do: its own files and this gateway's API. Text that becomes code is refused twice, by the
/// list of sources and by trusted types.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
    manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";
/// Headers of every file.
static HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A file as it is served.
pub(super) struct WebFile {
    kind: &'static str,
    plain: Bytes,
    /// Compressed content; `None` if compression does not reduce the size.
    compressed: Option<Bytes>,
    etag: HeaderValue,
}

/// All files.
struct WebFiles {
    by_path: BTreeMap<String, WebFile>,
    /// Directory of this build's files, with a slash. Their names stay the same while their content does, so that a browser
    /// keeps them without asking again.
    version: String,
}

static FILES: LazyLock<WebFiles> = LazyLock::new(|| {
    let mut sources = BTreeMap::new();
    collect(&SOURCE, &mut sources);
    let all = sources.iter().fold(Sha256::new(), |all, (path, content)| {
        all.chain_update(path).chain_update([0]).chain_update(Sha256::digest(content))
    });
    let version = format!("static-{}/", short(&all.finalize()));
    let mut by_path = BTreeMap::new();
    for (path, content) in &sources {
        let Some(kind) = kind_of(path) else { continue };
        let content = if *path == INDEX { versioned(content, &sources, &version) } else { content.to_vec() };
        by_path.insert((*path).to_owned(), WebFile::new(kind, content));
    }
    WebFiles { by_path, version }
});

fn collect(dir: &'static Dir<'static>, found: &mut BTreeMap<&'static str, &'static [u8]>) {
    found.extend(dir.files().filter_map(|file| Some((file.path().to_str()?, file.contents()))));
    dir.dirs().for_each(|dir| collect(dir, found));
}

/// Lets the page load the files of this build: `"/app.js"` becomes `"/static-…/app.js"`.
fn versioned(page: &[u8], sources: &BTreeMap<&str, &[u8]>, version: &str) -> Vec<u8> {
    let page = String::from_utf8_lossy(page).into_owned();
    let paths = sources.keys().filter(|path| **path != INDEX);
    paths
        .fold(page, |page, path| page.replace(&format!("\"/{path}\""), &format!("\"/{version}{path}\"")))
        .into()
}

fn short(digest: &[u8]) -> String {
    HEXLOWER.encode(digest.get(..8).unwrap_or(digest))
}

/// Returns the media type of a file; `None` for what is not served.
fn kind_of(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "webmanifest" => "application/manifest+json",
        _ => return None,
    })
}

impl WebFile {
    /// Compresses a file, once.
    pub(super) fn new(kind: &'static str, content: Vec<u8>) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing into memory does not fail.
        let compressed = encoder.write_all(&content).and_then(|()| encoder.finish()).ok();
        let compressed = compressed.filter(|compressed| compressed.len() < content.len()).map(Bytes::from);
        // Weak: both encodings have it.
        let etag = HeaderValue::try_from(format!("W/\"{}\"", short(&Sha256::digest(&content))));
        let etag = etag.unwrap_or_else(|_| HeaderValue::from_static("W/\"\""));
        Self { kind, plain: Bytes::from(content), compressed, etag }
    }
}

impl WebFiles {
    /// Returns the file at a path, and true if the path names one build's content.
    fn find(&self, path: &str) -> Option<(&WebFile, bool)> {
        let path = path.strip_prefix('/')?;
        let of_build = path.strip_prefix(self.version.as_str());
        let name = match of_build.unwrap_or(path) {
            "" => INDEX,
            name => name,
        };
        let file =
            self.by_path.get(name).or_else(|| self.by_path.get(INDEX).filter(|_| name.starts_with(PAGES)));
        file.map(|file| (file, of_build.is_some()))
    }
}

/// True if the request reads a file of the console, which needs no token.
pub(super) fn is_file(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD) && FILES.find(request.uri().path()).is_some()
}

/// Returns the response to a request for a file; `None` if it is for something else.
pub(super) fn answer(request: &Request) -> Option<Response> {
    if !is_file(request) {
        return None;
    }
    let (file, is_fixed) = FILES.find(request.uri().path())?;
    let caching = if is_fixed { "public, max-age=31536000, immutable" } else { "no-cache" };
    Some(respond(file, request, caching))
}

/// Returns the response with a file.
pub(super) fn respond(file: &WebFile, request: &Request, caching: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    for (name, value) in &HEADERS {
        headers.insert(name.clone(), HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(header::ETAG, file.etag.clone());
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    if names(request.headers(), &header::IF_NONE_MATCH, file.etag.to_str().unwrap_or_default()) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    let compressed =
        file.compressed.as_ref().filter(|_| names(request.headers(), &header::ACCEPT_ENCODING, "gzip"));
    if compressed.is_some() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if *request.method() == Method::GET {
        *response.body_mut() = Body::from(compressed.unwrap_or(&file.plain).clone());
    }
    response
}

/// True if a header that is a list has this item. An encoding with a weight is not taken: it may be refused.
fn names(headers: &HeaderMap, name: &HeaderName, item: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|found| found.trim() == item)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn ask(method: Method, path: &str, headers: &[(HeaderName, &str)]) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        answer(&request.body(Body::empty()).unwrap())
    }

    fn header_of(response: &Response, name: HeaderName) -> &str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn page_and_files_are_found_by_path() {
        let fixed = format!("/{}app.js", FILES.version);
        for (path, kind) in [
            ("/", "text/html; charset=utf-8"),
            ("/s/agent:demo:acp:1", "text/html; charset=utf-8"),
            ("/app.js", "text/javascript; charset=utf-8"),
            (fixed.as_str(), "text/javascript; charset=utf-8"),
            ("/nothing", ""),
            ("/static-0123456789abcdef/app.js", ""),
            ("/../Cargo.toml", ""),
            ("//app.js", ""),
        ] {
            let found = ask(Method::GET, path, &[]);
            assert_eq!(found.as_ref().map_or("", |it| header_of(it, header::CONTENT_TYPE)), kind, "{path}");
        }
        assert!(ask(Method::POST, "/", &[]).is_none() && ask(Method::HEAD, "/", &[]).is_some());
    }

    #[test]
    fn page_loads_the_files_of_its_build() {
        let (page, is_fixed) = FILES.find("/").unwrap();
        let text = String::from_utf8(page.plain.to_vec()).unwrap();
        assert!(!is_fixed && text.contains(&format!("\"/{}app.js\"", FILES.version)), "{text}");
        assert!(!text.contains("\"/app.js\""), "{text}");
        let fixed = ask(Method::GET, &format!("/{}app.js", FILES.version), &[]).unwrap();
        assert!(header_of(&fixed, header::CACHE_CONTROL).contains("immutable"));
        assert_eq!(header_of(&ask(Method::GET, "/app.js", &[]).unwrap(), header::CACHE_CONTROL), "no-cache");
    }

    #[test]
    fn known_content_is_not_sent_again_and_other_content_is_compressed() {
        let first = ask(Method::GET, "/", &[(header::ACCEPT_ENCODING, "gzip, deflate, br")]).unwrap();
        assert_eq!(header_of(&first, header::CONTENT_ENCODING), "gzip");
        let plain = ask(Method::GET, "/", &[(header::ACCEPT_ENCODING, "gzip;q=0, br")]).unwrap();
        assert_eq!(header_of(&plain, header::CONTENT_ENCODING), "");
        let etag = header_of(&first, header::ETAG).to_owned();
        for (known, want) in [(etag.as_str(), StatusCode::NOT_MODIFIED), ("W/\"other\"", StatusCode::OK)] {
            let again = ask(Method::GET, "/", &[(header::IF_NONE_MATCH, known)]).unwrap();
            assert_eq!(again.status(), want);
            assert_eq!(header_of(&again, header::CONTENT_SECURITY_POLICY), POLICY);
        }
    }

    /// Files import each other by relative paths: an absolute one would load a module twice, once from the directory of the
    /// build. Nothing is inline, and nothing comes from another host.
    #[test]
    fn files_need_no_exception_from_the_policy() {
        for (path, file) in &FILES.by_path {
            let Ok(text) = std::str::from_utf8(&file.plain) else { continue };
            if path == INDEX {
                for inline in ["<style", " style=", " onclick=", " onload=", "javascript:", "://"] {
                    assert!(!text.contains(inline), "{path}: {inline}");
                }
                assert_eq!(text.matches("<script").count(), text.matches(" src=\"/").count(), "{path}");
            } else if kind_of(path).is_some_and(|kind| kind.starts_with("text/javascript")) {
                for absolute in
                    ["from \"/", "from '/", "import(\"/", "import('/", "from \"http", "from 'http"]
                {
                    assert!(!text.contains(absolute), "{path}: {absolute}");
                }
            }
        }
    }

    /// What a first visit transfers: everything, compressed.
    #[test]
    fn all_files_together_have_at_most_150_kb() {
        let bytes: usize =
            FILES.by_path.values().map(|file| file.compressed.as_ref().unwrap_or(&file.plain).len()).sum();
        assert!(bytes <= 150_000, "{bytes} bytes");
    }
}
