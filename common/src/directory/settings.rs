//! Reads where a directory over HTTP is, and how long its entries are valid.
//!
//! Not here: whether the directory is a file instead (the settings of each program).

use std::time::Duration;

use crate::config::document::WAIT;
use crate::config::document::table::Table;
use crate::config::trusted_url::check_url;

/// A directory over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpDirectory {
    /// The prefix of the URL of every request.
    pub url: String,
    /// A file with a bearer token for it.
    pub token_file: Option<String>,
    /// A file with the root of its certificate, PEM.
    pub ca: Option<String>,
    /// How long a request may take.
    pub timeout: Duration,
    /// How long a cached entry is fresh.
    pub ttl: Duration,
    /// How long a 404 is cached.
    pub negative_ttl: Duration,
    /// How much longer an entry is used while the directory is unavailable.
    pub stale_for: Duration,
    /// The most entries in the cache.
    pub entries_max: usize,
}

impl HttpDirectory {
    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        [&self.token_file, &self.ca].into_iter().flatten()
    }

    /// Reads its keys of `[directory]`, which are in use if `over_http`. `requests` says in its
    /// documentation what is fetched.
    pub fn read(table: &mut Table<'_>, over_http: bool, requests: &str) -> Option<Self> {
        let seconds = Duration::from_secs;
        if over_http {
            table.need("url");
        }
        let url = table.text("url", requests);
        let token_file = table.text("token_file", "http: a file with a bearer token.");
        let ca = table.text("ca", "http: a PEM file with the root of its certificate.");
        for (key, given) in [("url", &url), ("token_file", &token_file), ("ca", &ca)] {
            if let Some(given) = given.as_ref().filter(|_| !over_http) {
                table.fault_at(given.at, format!("`{key}` is used only with source = \"http\""));
            }
        }
        if let Some(url) = url.as_ref().filter(|_| over_http)
            && let Some(parsed) = check_url(table, "url", url, "use token_file")
            && (parsed.query().is_some() || parsed.fragment().is_some())
        {
            let why = "`url` must not have a query or a fragment: paths are appended to it";
            table.fault_at(url.at, why);
        }
        let http = Self {
            url: url.map(|url| url.value).unwrap_or_default(),
            token_file: token_file.map(|file| file.value),
            ca: ca.map(|file| file.value),
            timeout: table.span_or(
                "timeout",
                WAIT,
                seconds(1),
                "http: how long a request may take.",
            ),
            ttl: table.span_or("ttl", WAIT, seconds(60), "http: how long a cached entry is fresh."),
            negative_ttl: table.span_or(
                "negative_ttl",
                WAIT,
                seconds(10),
                "http: how long a 404 is cached.",
            ),
            stale_for: table.span_or(
                "stale_for",
                WAIT,
                seconds(3_600),
                "http: how much longer an entry is used while the directory is unavailable.",
            ),
            entries_max: usize::try_from(table.number_or(
                "entries_max",
                1..=100_000_000,
                100_000,
                "http: entries in the cache.",
            ))
            .unwrap_or(usize::MAX),
        };
        over_http.then_some(http)
    }
}
