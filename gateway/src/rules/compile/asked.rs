//! Finds what is wrong with the way to a directory that is asked over HTTP.

use std::net::IpAddr;

use reqwest::Url;
use weir_common::config::document::Spanned;

use crate::rules::compile::Checker;
use crate::settings::Source;

impl Checker<'_> {
    pub(super) fn lookups(&self) {
        let Source::Http(lookups) = &self.settings.directory.source else { return };
        let Spanned { value: url, at } = &lookups.url;
        // Left out, which is reported where it is read.
        if url.is_empty() {
            return;
        }
        if let Some(why) = unfit(url) {
            self.document.fault(*at, format!("`url` {why}"));
        }
    }
}

/// Why nothing can be asked at `url`, where nothing can.
fn unfit(url: &str) -> Option<&'static str> {
    let Ok(url) = Url::parse(url) else {
        return Some("must be a URL, such as https://directory.example.com");
    };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let is_loopback = host == "localhost" || address.is_some_and(|a| a.is_loopback());
    match url.scheme() {
        "https" => {}
        "http" if is_loopback => {}
        "http" => return Some("must start with https://: http:// is allowed on loopback"),
        _ => return Some("must start with https:// (on loopback, http:// is allowed too)"),
    }
    let plain = url.query().is_none() && url.fragment().is_none();
    if !url.username().is_empty() || url.password().is_some() {
        return Some("must not contain a user or a password: use token_file");
    }
    (!plain).then_some("must not have a query or a fragment: paths are appended to it")
}

#[cfg(test)]
mod tests {
    use super::unfit;

    #[test]
    fn a_directory_is_asked_by_tls_or_on_this_machine() {
        for url in [
            "https://directory.example.com",
            "https://directory.example.com/v1/",
            "http://127.0.0.1:8000",
            "http://[::1]:8000/x",
            "http://localhost",
        ] {
            assert_eq!(unfit(url), None, "{url}");
        }
        for (url, why) in [
            ("directory.example.com", "must be a URL"),
            ("ftp://127.0.0.1", "must start with https:// ("),
            ("http://directory.example.com", "must start with https://:"),
            ("http://127.0.0.1.example.com", "must start with https://:"),
            ("http://localhost.example.com", "must start with https://:"),
            ("https://me:pw@directory.example.com", "must not contain a user"),
            ("https://directory.example.com/?a=b", "must not have a query"),
            ("https://directory.example.com/#a", "must not have a query"),
        ] {
            assert!(unfit(url).is_some_and(|found| found.starts_with(why)), "{url}");
        }
    }
}
