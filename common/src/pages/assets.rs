//! Files that pages refer to: their names have a hash of their content, so that browsers keep them.

use std::sync::LazyLock;

use http::Method;
use ring::digest::{SHA256, digest};

use crate::http_server::problems::method_not_allowed;
use crate::http_server::reply::Reply;

/// A file.
pub struct Asset {
    /// Its path, with the hash.
    pub path: String,
    media_type: &'static str,
    content: &'static str,
}

impl Asset {
    fn new(name: &str, extension: &str, media_type: &'static str, content: &'static str) -> Self {
        let hash = digest(&SHA256, content.as_bytes());
        let hash: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { path: format!("/assets/{name}-{hash}.{extension}"), media_type, content }
    }
}

/// The style.
pub static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/dashboard.css");
    Asset::new("dashboard", "css", "text/css; charset=utf-8", content)
});

/// The script.
pub static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/dashboard.js");
    Asset::new("dashboard", "js", "text/javascript; charset=utf-8", content)
});

/// The icon.
pub static ICON: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/icon.svg");
    Asset::new("icon", "svg", "image/svg+xml", content)
});

/// The file with this name, if there is one.
#[must_use]
pub fn reply(method: &Method, name: &str) -> Option<Reply> {
    let all = [&*STYLE, &*SCRIPT, &*ICON];
    let found = all.into_iter().find(|asset| asset.path.strip_prefix("/assets/") == Some(name));
    let asset = found?;
    if method != Method::GET {
        return Some(method_not_allowed("GET, HEAD"));
    }
    let reply = Reply::new(200, asset.media_type, asset.content)
        .with("cache-control", "public, max-age=31536000, immutable")
        .with("content-security-policy", "default-src 'none'");
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_hashed_name_only() {
        for asset in [&*STYLE, &*SCRIPT, &*ICON] {
            let name = asset.path.strip_prefix("/assets/").unwrap();
            let found = reply(&Method::GET, name).unwrap();
            assert_eq!((found.status, found.body.as_ref()), (200, asset.content.as_bytes()));
            assert_eq!(reply(&Method::POST, name).map(|reply| reply.status), Some(405));
        }
        for name in ["", "dashboard.css", "dashboard-0000000000000000.css", "../dashboard.css"] {
            assert!(reply(&Method::GET, name).is_none(), "{name}");
        }
    }

    #[test]
    fn files_are_small() {
        assert!(STYLE.content.len() <= 12 * 1024, "{} bytes of style", STYLE.content.len());
        assert!(SCRIPT.content.len() <= 8 * 1024, "{} bytes of script", SCRIPT.content.len());
    }
}
