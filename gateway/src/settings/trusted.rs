//! Reads which headers trusted proxies alone may send: names, and beginnings of names.
//!
//! # Invariants
//!
//! 1. A name matches in every spelling: CGI and similar interfaces map `X-Forwarded-Port` and
//!    `X_Forwarded_Port` to one variable, and some treat every byte but letters and digits alike.
//! 2. Headers that frame a request or name its host cannot be listed.
//!
//! # Not here
//!
//! Who is trusted (`server.trusted_proxies`), removing the headers, and the headers that the
//! gateway itself writes (`proxy::forwarding`).

use std::borrow::Cow;

use http::HeaderName;
use weir_common::config::document::table::Table;

/// The certificate of a client (RFC 9440): the gateway sets it for trusted proxies alone, or drops
/// it.
pub const CLIENT_CERT: &str = "client-cert";

/// The certificates that lead from it to its authority.
pub const CLIENT_CERT_CHAIN: &str = "client-cert-chain";

/// The default. Common servers or frameworks trust each of these, as written by a proxy.
const DEFAULT: [&str; 42] = [
    // The client's address, and the scheme, host, port and path that it used.
    "Client-IP",
    "CF-Connecting-IP*",
    "CF-Visitor",
    "Fastly-Client-IP",
    "Fastly-SSL",
    "Fly-Client-IP",
    "Forwarded-For",
    "Front-End-Https",
    "Proxy-Client-IP",
    "True-Client-IP",
    "WL-Proxy-*",
    "X-AppEngine-*",
    "X-ARR-*",
    "X-Azure-*",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "X-Envoy-*",
    "X-Forwarded",
    "X-Forwarded-*",
    "X-Forwarder-For",
    "X-Host",
    "X-HTTP-Host-Override",
    "X-Original-*",
    "X-Originating-IP",
    "X-ProxyUser-IP",
    "X-Rewrite-URL",
    "X-Scheme",
    "X-URL-Scheme",
    // Which user a password or a certificate has authenticated.
    "CF-Cert-*",
    "CF-Client-Cert-*",
    "CloudFront-Viewer-Cert-*",
    "Remote-User",
    "SSL-Client-*",
    "X-Amzn-Mtls-*",
    "X-Authenticated-*",
    "X-Client-Cert*",
    "X-Remote-*",
    "X-SSL-*",
    // Another method than the one that route and limits were chosen by.
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "X-Override-Method",
];

/// Headers that every request needs: without its framing, the next request would be misread.
const KEPT: [&str; 8] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The headers that trusted proxies alone may send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedHeaders {
    /// Whole names, normalised and sorted.
    names: Vec<String>,
    /// Prefixes of names, normalised.
    beginnings: Vec<String>,
}

impl TrustedHeaders {
    fn new<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut all = Self::default();
        for text in texts.into_iter().map(str::to_ascii_lowercase) {
            match text.strip_suffix('*') {
                Some(beginning) => all.beginnings.push(folded(beginning).into_owned()),
                None => all.names.push(folded(&text).into_owned()),
            }
        }
        all.names.sort_unstable();
        all
    }

    /// Whether a name in lower case matches.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let name = folded(name);
        self.names.binary_search_by(|one| one.as_str().cmp(&name)).is_ok()
            || self.beginnings.iter().any(|beginning| name.starts_with(beginning.as_str()))
    }
}

/// Normalises a name like servers that map it to a variable: `-` for each character but ASCII
/// letters and digits.
#[must_use]
pub fn folded(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.bytes().all(is_plain) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"))
}

pub(super) fn trusted_headers(table: &mut Table<'_>) -> TrustedHeaders {
    const KEY: &str = "trusted_headers";
    let is_given = table.has(KEY);
    let texts = table.texts(
        KEY,
        "Headers that trusted_proxies alone may send; from others they are dropped. NAME, or \
         BEGINNING*.",
    );
    table.set_default(KEY, DEFAULT.to_vec().into());
    if !is_given {
        return TrustedHeaders::new(DEFAULT);
    }
    for text in &texts {
        let bare = text.value.strip_suffix('*').unwrap_or(&text.value);
        if HeaderName::from_bytes(bare.as_bytes()).is_err() {
            let message =
                format!("`{}` is not a header name, such as X-Real-IP or X-Auth-*", text.value);
            table.fault_at(text.at, message);
            continue;
        }
        let one = TrustedHeaders::new([text.value.as_str()]);
        if let Some(kept) = KEPT.into_iter().find(|kept| one.has(kept)) {
            let message =
                format!("`{}` would drop `{kept}`, which every request needs", text.value);
            table.fault_at(text.at, message);
        }
    }
    TrustedHeaders::new(texts.iter().map(|text| text.value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_however_it_is_spelt() {
        let headers = TrustedHeaders::new(["True-Client-IP", "X-Forwarded-*"]);
        for name in
            ["true-client-ip", "true_client-ip", "true.client.ip", "x-forwarded-", "x_forwarded_a"]
        {
            assert!(headers.has(name), "{name}");
        }
        for name in ["true-client-ipv6", "true-client", "x-forwarded", "xx-forwarded-a", "host"] {
            assert!(!headers.has(name), "{name}");
        }
    }

    #[test]
    fn what_every_request_needs_is_not_among_the_defaults() {
        let headers = TrustedHeaders::new(DEFAULT);
        for name in KEPT.into_iter().chain(["authorization", "cookie", "accept", "x-request-id"]) {
            assert!(!headers.has(name), "{name}");
        }
    }
}
