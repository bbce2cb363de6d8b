//! Reads which origins may read a plane's responses in a browser (CORS, WHATWG Fetch).

use std::time::Duration;

use weir_common::config::document::table::Table;
use weir_common::config::document::{Spanned, WAIT};

/// `[planes.<name>.cors]`
#[derive(Clone, Debug)]
pub struct RawCors {
    /// Origins, as `https://app.example.com`, or `*`.
    pub origins: Vec<Spanned<String>>,
    /// Whether they may send cookies and read the response.
    pub credentials: bool,
    /// Request headers that they may send; any where empty.
    pub headers: Vec<Spanned<String>>,
    /// How long a browser may cache the response to a preflight.
    pub max_age: Duration,
}

pub(super) fn cors(table: &mut Table<'_>) -> Option<RawCors> {
    let origins = table.texts("origins", "Origins, as https://app.example.com, or \"*\".");
    let cors = RawCors {
        credentials: table.flag("credentials", false, "Whether requests may have cookies."),
        headers: table
            .some_texts("headers", "Request headers that origins may send; any where not given."),
        max_age: table.span_or(
            "max_age",
            WAIT,
            Duration::from_secs(600),
            "How long a browser may cache the response to a preflight.",
        ),
        origins,
    };
    if !table.is_given() {
        return None;
    }
    if cors.origins.is_empty() {
        table.fault("`origins` is missing or empty: list them, as [\"https://app.example.com\"]");
    }
    if cors.credentials && cors.origins.iter().any(|origin| origin.value == "*") {
        table.fault("with credentials = true browsers refuse \"*\": name the origins");
    }
    Some(cors)
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use crate::settings::read::read;

    #[test]
    fn an_empty_list_of_headers_is_refused_since_it_would_allow_any() {
        let found = |headers: &str| {
            let text = format!("[planes.a.cors]\norigins = [\"*\"]\n{headers}");
            let document = Document::new("g", &text);
            let _ = read(&document);
            let diagnostics = document.diagnostics();
            let of_headers = diagnostics.iter().map(ToString::to_string);
            of_headers.filter(|text| text.contains("headers")).collect::<Vec<_>>()
        };
        let expected = "g:3:11: `headers` is empty: name at least one, or leave it out";
        assert_eq!(found("headers = []"), [expected]);
        for other in ["", "headers = [\"Authorization\"]", "headers = 5"] {
            let is_refused = found(other).iter().any(|text| text.contains("leave it out"));
            assert!(!is_refused, "{other}");
        }
    }
}
