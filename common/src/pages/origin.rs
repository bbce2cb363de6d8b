//! Whether a page of ours sent a form, and which cookies came with it. (core)

use http::header::{COOKIE, ORIGIN};
use http::{HeaderMap, HeaderValue};

/// Whether a page of ours sent the form. Browsers name the site in every such request; older ones,
/// and all over plain HTTP, name the origin alone.
#[must_use]
pub fn is_ours(headers: &HeaderMap, is_our_origin: impl FnOnce(&[u8]) -> bool) -> bool {
    match headers.get("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => headers.get(ORIGIN).map(HeaderValue::as_bytes).is_some_and(is_our_origin),
    }
}

/// The values of a cookie; another site on the same host may have set one of that name.
pub fn cookies<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h str> {
    let fields = headers.get_all(COOKIE).iter().filter_map(|field| field.to_str().ok());
    let pairs = fields.flat_map(|field| field.split(';'));
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_once('=')?;
        (found.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; weir_session=x; weir_session=y"));
        headers.append(COOKIE, HeaderValue::from_static("not_weir_session=n;weir_session=z"));
        assert_eq!(cookies(&headers, "weir_session").collect::<Vec<_>>(), ["x", "y", "z"]);
    }

    #[test]
    fn only_a_page_of_ours_sends_a_form() {
        let sent = |site: Option<&'static str>, origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            let fields = [("sec-fetch-site", site), ("origin", origin)];
            for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
            {
                headers.insert(name, HeaderValue::from_static(value));
            }
            is_ours(&headers, |origin| origin == b"https://a.example")
        };
        assert!(sent(Some("same-origin"), None));
        assert!(sent(None, Some("https://a.example")));
        for site in ["same-site", "cross-site", "none", ""] {
            assert!(!sent(Some(site), Some("https://a.example")), "{site}");
        }
        for origin in ["null", "https://b.example", "https://a.example.b.example", ""] {
            assert!(!sent(None, Some(origin)), "{origin}");
        }
        assert!(!sent(None, None));
    }
}
