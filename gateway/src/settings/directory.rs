//! Reads where it is known who belongs to whom.
//!
//! Not here: what a directory says (`weir_common::directory`, `identity::directory`).

use std::time::Duration;

use weir_common::config::document::{Spanned, Table};

use crate::settings::values::{WAIT, number};

/// `[directory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySource {
    /// Where it is.
    pub source: Source,
    /// What a tenant that the directory does not know is charged to.
    pub unknown: Unknown,
    /// Limits by address, for requests that no tenant can be charged with.
    pub unknown_limits: Vec<Spanned<String>>,
}

impl DirectorySource {
    /// The file, where it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Spanned<String>> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::Http(_) => None,
        }
    }

    /// Every file that it is made of.
    pub fn files(&self) -> impl Iterator<Item = &Spanned<String>> {
        let files = match &self.source {
            Source::File(path) => [Some(path), None],
            Source::Http(lookups) => [lookups.token_file.as_ref(), lookups.ca.as_ref()],
        };
        files.into_iter().flatten()
    }
}

/// Where the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a file.
    File(Spanned<String>),
    /// Behind `GET {url}/workspaces/{id}` and the like.
    Http(Lookups),
}

/// A directory that is asked about each tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookups {
    /// What every request to it begins with.
    pub url: Spanned<String>,
    /// A file with a bearer token for it.
    pub token_file: Option<Spanned<String>>,
    /// A file with the root that signs its certificate, PEM.
    pub ca: Option<Spanned<String>>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How long an entry is good for.
    pub ttl: Duration,
    /// How long it is good for that there is none.
    pub negative_ttl: Duration,
    /// How much longer an entry is used while the directory cannot be asked.
    pub stale_for: Duration,
    /// Entries that are remembered.
    pub entries_max: usize,
}

/// What an identifier that the directory does not know is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// To itself, as if it were known.
    OwnKey,
    /// To the client's address.
    ByAddress,
}

/// The file, where none is named.
const PATH: &str = "config/directory.toml";

pub(super) fn directory(table: &mut Table<'_>) -> DirectorySource {
    let over_http = table.choice(
        "source",
        &[("file", false), ("http", true)],
        "file: read at start and when it changes; http: asked about each tenant.",
    );
    let at = table.at();
    let path = table.text("path", "The file, from the directory the program runs in.");
    if let Some(path) = path.as_ref().filter(|_| over_http) {
        // Whoever leaves it there may think that its domains are still served.
        table.fault_at(
            path.at,
            "`path` is used only with source = \"file\": with \"http\" instances have no domains \
             of their own, and those belong into the hosts of a plane",
        );
    }
    if !over_http {
        table.set_default("path", PATH.into());
    }
    let lookups = lookups(table, over_http);
    let unknown = table.choice(
        "unknown",
        &[("own_key", Unknown::OwnKey), ("by_address", Unknown::ByAddress)],
        "Tenants not in the directory: own_key, or by_address where strangers can reach us.",
    );
    let unknown_limits = table.texts(
        "unknown_limits",
        "Limits by address for requests that no tenant can be charged with.",
    );
    table.set_default("unknown_limits", vec!["address"].into());
    DirectorySource {
        source: match lookups {
            Some(lookups) => Source::Http(lookups),
            None => Source::File(path.unwrap_or(Spanned { value: PATH.to_owned(), at })),
        },
        unknown,
        unknown_limits: if unknown_limits.is_empty() {
            vec![Spanned { value: "address".to_owned(), at }]
        } else {
            unknown_limits
        },
    }
}

fn lookups(table: &mut Table<'_>, over_http: bool) -> Option<Lookups> {
    let seconds = Duration::from_secs;
    if over_http {
        table.need("url");
    }
    let url = table.text("url", "http: what GET {url}/workspaces/{id} begins with.");
    let token_file = table.text("token_file", "http: a file with a bearer token for it.");
    let ca = table.text("ca", "http: a PEM file of the root that its certificate has.");
    for (key, given) in [("url", &url), ("token_file", &token_file), ("ca", &ca)] {
        if let Some(given) = given.as_ref().filter(|_| !over_http) {
            table.fault_at(given.at, format!("`{key}` is used only with source = \"http\""));
        }
    }
    let lookups = Lookups {
        url: url.unwrap_or(Spanned { value: String::new(), at: table.at() }),
        token_file,
        ca,
        timeout: table.span_or("timeout", WAIT, seconds(1), "http: how long it may take."),
        ttl: table.span_or("ttl", WAIT, seconds(60), "http: how long an entry is good for."),
        negative_ttl: table.span_or(
            "negative_ttl",
            WAIT,
            seconds(10),
            "http: how long it is good for that there is none.",
        ),
        stale_for: table.span_or(
            "stale_for",
            WAIT,
            seconds(3_600),
            "http: how much longer an entry is used while the directory cannot be asked.",
        ),
        entries_max: number(table.number_or(
            "entries_max",
            1..=100_000_000,
            100_000,
            "http: entries that are remembered.",
        )),
    };
    over_http.then_some(lookups)
}
