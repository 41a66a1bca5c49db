//! Request bodies: JSON, or `multipart/form-data` with `payload_json` and `files[n]`.

use super::core::rest::{Body, Upload};
use bytes::Bytes;
use serde_json::Value;

/// Reads a body.
pub async fn read(content_type: Option<&str>, bytes: Bytes) -> Body {
    let size = bytes.len() as u64;
    if bytes.is_empty() {
        return Body::default();
    }
    let boundary = content_type.and_then(|of| multer::parse_boundary(of).ok());
    let mut body = match boundary {
        Some(boundary) => parts(boundary, bytes).await.unwrap_or(Body { broken: true, ..Body::default() }),
        None => json(&bytes),
    };
    body.size = size;
    body
}

fn json(bytes: &[u8]) -> Body {
    let json: Option<Value> = serde_json::from_slice(bytes).ok();
    Body { broken: json.is_none(), json, ..Body::default() }
}

async fn parts(boundary: String, bytes: Bytes) -> Result<Body, multer::Error> {
    let stream = futures_util::stream::once(async move { Ok::<_, std::io::Error>(bytes) });
    let mut parts = multer::Multipart::new(stream, boundary);
    let mut body = Body::default();
    while let Some(part) = parts.next_field().await? {
        let name = part.name().unwrap_or_default().to_owned();
        let n =
            name.strip_prefix("files[").and_then(|rest| rest.strip_suffix(']')).and_then(|n| n.parse().ok());
        let filename = part.file_name().map(str::to_owned);
        let content_type = part.content_type().map(ToString::to_string);
        let bytes = part.bytes().await?.to_vec();
        match (name.as_str(), n, filename) {
            ("payload_json", ..) => {
                let read = json(&bytes);
                body.json = read.json;
                body.broken |= read.broken;
            }
            (_, Some(n), Some(filename)) => body.files.push(Upload { n, filename, content_type, bytes }),
            _ => body.broken = true,
        }
    }
    Ok(body)
}
