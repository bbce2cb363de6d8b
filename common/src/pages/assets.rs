//! Files that pages refer to: their names have a hash of their content, so that browsers keep them.

use std::sync::LazyLock;

use bytes::Bytes;
use http::Method;
use ring::digest::{SHA256, digest};

use crate::http_server::problems::method_not_allowed;
use crate::http_server::reply::Reply;

/// A file.
#[derive(Clone, Debug)]
pub struct Asset {
    /// Its path, with the hash.
    pub path: String,
    media_type: &'static str,
    content: Bytes,
}

impl Asset {
    /// A file of this content.
    #[must_use]
    pub fn new(
        name: &str,
        extension: &str,
        media_type: &'static str,
        content: impl Into<Bytes>,
    ) -> Self {
        let content = content.into();
        let hash = digest(&SHA256, &content);
        let hash: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { path: format!("/assets/{name}-{hash}.{extension}"), media_type, content }
    }

    /// The file, for a request of its path.
    #[must_use]
    pub fn reply(&self, method: &Method) -> Reply {
        if method != Method::GET {
            return method_not_allowed("GET, HEAD");
        }
        Reply::new(200, self.media_type, self.content.clone())
            .with("cache-control", "public, max-age=31536000, immutable")
            .with("content-security-policy", "default-src 'none'")
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

/// The file with this name among those of every page and `more`, if there is one.
#[must_use]
pub fn reply<'a>(
    method: &Method,
    name: &str,
    more: impl IntoIterator<Item = &'a Asset>,
) -> Option<Reply> {
    let mut all = [&*STYLE, &*SCRIPT, &*ICON].into_iter().chain(more);
    let found = all.find(|asset| asset.path.strip_prefix("/assets/") == Some(name));
    found.map(|asset| asset.reply(method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_hashed_name_only() {
        for asset in [&*STYLE, &*SCRIPT, &*ICON] {
            let name = asset.path.strip_prefix("/assets/").unwrap();
            let found = reply(&Method::GET, name, []).unwrap();
            assert_eq!((found.status, &found.body), (200, &asset.content));
            assert_eq!(reply(&Method::POST, name, []).map(|reply| reply.status), Some(405));
        }
        for name in ["", "dashboard.css", "dashboard-0000000000000000.css", "../dashboard.css"] {
            assert!(reply(&Method::GET, name, []).is_none(), "{name}");
        }
    }

    #[test]
    fn another_content_has_another_path() {
        let of = |content: &'static str| Asset::new("theme", "css", "text/css", content);
        let one = of("a");
        let name = one.path.strip_prefix("/assets/").unwrap();
        assert_eq!(reply(&Method::GET, name, [&one]).map(|reply| reply.status), Some(200));
        assert!(reply(&Method::GET, name, [&of("b")]).is_none());
    }

    #[test]
    fn files_are_small() {
        assert!(STYLE.content.len() <= 12 * 1024, "{} bytes of style", STYLE.content.len());
        assert!(SCRIPT.content.len() <= 8 * 1024, "{} bytes of script", SCRIPT.content.len());
    }
}
