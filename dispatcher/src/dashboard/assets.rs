//! Files that pages refer to: their names have a hash of their content, so that browsers keep them.

use std::sync::LazyLock;

use http::Method;
use sha2::{Digest, Sha256};
use weir_common::http_server::problems::method_not_allowed;
use weir_common::http_server::reply::Reply;

use crate::http_errors;

/// A file.
pub(super) struct Asset {
    /// Its path, with the hash.
    pub(super) path: String,
    media_type: &'static str,
    content: &'static str,
}

impl Asset {
    fn new(name: &str, extension: &str, media_type: &'static str, content: &'static str) -> Self {
        let hash = hex::encode(Sha256::digest(content));
        let hash = hash.get(..16).unwrap_or_default();
        Self { path: format!("/assets/{name}-{hash}.{extension}"), media_type, content }
    }
}

pub(super) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/dashboard.css");
    Asset::new("dashboard", "css", "text/css; charset=utf-8", content)
});

pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/dashboard.js");
    Asset::new("dashboard", "js", "text/javascript; charset=utf-8", content)
});

pub(super) static ICON: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_str!("../../assets/icon.svg");
    Asset::new("icon", "svg", "image/svg+xml", content)
});

/// The file with this name.
pub(super) fn reply(method: &Method, name: &str) -> Reply {
    if method != Method::GET {
        return method_not_allowed("GET, HEAD");
    }
    let all = [&*STYLE, &*SCRIPT, &*ICON];
    let found = all.into_iter().find(|asset| asset.path.strip_prefix("/assets/") == Some(name));
    match found {
        Some(asset) => Reply::new(200, asset.media_type, asset.content)
            .with("cache-control", "public, max-age=31536000, immutable")
            .with("content-security-policy", "default-src 'none'"),
        None => http_errors::not_found(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_hashed_name_only() {
        for asset in [&*STYLE, &*SCRIPT, &*ICON] {
            let name = asset.path.strip_prefix("/assets/").unwrap();
            let found = reply(&Method::GET, name);
            assert_eq!((found.status, found.body.as_ref()), (200, asset.content.as_bytes()));
            assert_eq!(reply(&Method::POST, name).status, 405);
        }
        for name in ["", "dashboard.css", "dashboard-0000000000000000.css", "../dashboard.css"] {
            assert_eq!(reply(&Method::GET, name).status, 404, "{name}");
        }
    }

    #[test]
    fn files_are_small() {
        assert!(STYLE.content.len() <= 12 * 1024, "{} bytes of style", STYLE.content.len());
        assert!(SCRIPT.content.len() <= 8 * 1024, "{} bytes of script", SCRIPT.content.len());
    }
}
