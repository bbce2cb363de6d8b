//! Cookies that come in several fields. (core)

use http::{HeaderMap, header};

/// The cookies of several fields in one, as HTTP/1.1 sends them: HTTP/2 may split them (RFC 9113,
/// 8.2.3; cloudflare/pingora#189). None where there is one field, or none.
#[must_use]
pub fn joined(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut fields = headers.get_all(header::COOKIE).iter();
    fields.nth(1)?;
    let crumbs: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(|crumb| crumb.as_bytes()).collect();
    Some(crumbs.join(&b"; "[..]))
}
