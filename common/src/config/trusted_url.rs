//! Checks the URLs of servers that are trusted: identity servers, directories.

use std::net::IpAddr;

use reqwest::Url;

use crate::config::document::Spanned;
use crate::config::document::table::Table;

/// Checks the URL of a trusted server; reports one where another host could impersonate it.
/// `instead` is what to do instead of writing a password into the URL.
pub fn check_url(
    table: &Table<'_>,
    key: &str,
    url: &Spanned<String>,
    instead: &str,
) -> Option<Url> {
    let fault = |why: &str| table.fault_at(url.at, format!("`{key}` {why}"));
    let Some(parsed) = Url::parse(&url.value).ok().filter(Url::has_host) else {
        fault("must be a URL with a host, such as https://id.example.com/keys");
        return None;
    };
    let host = parsed.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_loopback = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    if !(parsed.scheme() == "https" || (parsed.scheme() == "http" && is_loopback)) {
        let found = parsed.scheme();
        fault(&format!(
            "must start with https://, not {found}:// (http:// is allowed on loopback)"
        ));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        fault(&format!("must not contain a user or a password: {instead}"));
    }
    Some(parsed)
}
