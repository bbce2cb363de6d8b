//! Reads the source of the directory of tenants.
//!
//! Not here: its entries (`weir_common::directory`, `identity::directory`).

use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;
use weir_common::directory::settings::HttpDirectory;

use crate::settings::values::plain;

/// What is fetched, for the documentation of `url`.
const REQUESTS: &str = "http: requests are GET {url}/workspaces/{id} and the like.";

/// `[directory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySettings {
    /// Its source.
    pub source: DirectorySource,
    /// What a tenant that the directory does not know is charged to.
    pub unknown: Unknown,
}

impl DirectorySettings {
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        let (file, http) = match &self.source {
            DirectorySource::File(path) => (Some(path), None),
            DirectorySource::Http(http) => (None, Some(http)),
        };
        file.into_iter().chain(http.into_iter().flat_map(HttpDirectory::files))
    }
}

/// The source of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorySource {
    /// A file.
    File(String),
    /// `GET {url}/workspaces/{id}` and the like.
    Http(HttpDirectory),
}

/// What an identifier that the directory does not know is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// To its own key, as a known one.
    OwnKey,
    /// To the client's address.
    ByAddress,
}

/// The default path of the file.
const PATH: &str = "config/directory.toml";

/// Reads the directory's settings, and the limits by address of requests that cannot be charged to
/// a tenant.
pub(super) fn directory(table: &mut Table<'_>) -> (DirectorySettings, Vec<Spanned<String>>) {
    let over_http = table.choice(
        "source",
        &[("file", false), ("http", true)],
        "file: read at start and when it changes; http: one request per tenant, cached.",
    );
    let at = table.at();
    let path = table.text("path", "file: its path, from the working directory.");
    if let Some(path) = path.as_ref().filter(|_| over_http) {
        // An operator who keeps `path` may expect the domains in that file to be served still.
        table.fault_at(
            path.at,
            "`path` is used only with source = \"file\": with \"http\" instances have no domains \
             of their own, and those belong into the hosts of a plane",
        );
    }
    if !over_http {
        table.set_default("path", PATH.into());
    }
    let http = HttpDirectory::read(table, over_http, REQUESTS);
    let unknown = table.choice(
        "unknown",
        &[("own_key", Unknown::OwnKey), ("by_address", Unknown::ByAddress)],
        "Tenants that the directory does not know: own_key, or by_address on a public network.",
    );
    let mut unknown_limits = table.some_texts(
        "unknown_limits",
        "Limits by address for requests that cannot be charged to a tenant.",
    );
    table.set_default("unknown_limits", vec!["address"].into());
    if unknown_limits.is_empty() {
        unknown_limits.push(Spanned { value: "address".to_owned(), at });
    }
    let source = match http {
        Some(http) => DirectorySource::Http(http),
        None => DirectorySource::File(plain(path).unwrap_or_else(|| PATH.to_owned())),
    };
    (DirectorySettings { source, unknown }, unknown_limits)
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use super::*;

    #[test]
    fn a_directory_is_reached_by_tls_or_on_this_machine() {
        let found = |url: &str| {
            let text = format!("source = \"http\"\nurl = \"{url}\"");
            let document = Document::new("g", &text);
            let _ = document.read(directory);
            document.diagnostics().into_iter().map(|found| found.message).collect::<Vec<_>>()
        };
        for url in [
            "https://directory.example.com",
            "https://directory.example.com/v1/",
            "http://127.0.0.1:8000",
            "http://[::1]:8000/x",
            "http://localhost",
        ] {
            assert_eq!(found(url), Vec::<String>::new(), "{url}");
        }
        for (url, why) in [
            ("directory.example.com", "`url` must be a URL"),
            ("ftp://127.0.0.1", "`url` must start with https://, not ftp://"),
            ("http://directory.example.com", "`url` must start with https://, not http://"),
            ("http://127.0.0.1.example.com", "`url` must start with https://, not http://"),
            ("http://localhost.example.com", "`url` must start with https://, not http://"),
            ("https://me:pw@directory.example.com", "`url` must not contain a user"),
            ("https://directory.example.com/?a=b", "`url` must not have a query"),
            ("https://directory.example.com/#a", "`url` must not have a query"),
        ] {
            assert!(found(url)[0].starts_with(why), "{url}: {:?}", found(url));
        }
    }
}
