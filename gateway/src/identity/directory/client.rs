//! Builds the requests to a directory: where to, and with which token.
//!
//! Not here: when they are sent, what a response means.

use std::path::Path;

use http::HeaderValue;
use http::header::{ACCEPT, AUTHORIZATION};
use reqwest::{Client, RequestBuilder};
use weir_common::config::document::Spanned;
use weir_common::config::files;
use weir_common::config::watch::{Stamp, stamp};
use weir_common::secret::Secret;

use crate::identity::directory::response::TenantKind;
use crate::identity::http_client;
use crate::settings::Lookups;

/// What builds requests to a directory.
#[derive(Clone, Debug)]
pub struct DirectoryClient {
    client: Client,
    url: String,
    bearer: Option<HeaderValue>,
    /// What it was made of: a token or a root that has changed makes another.
    origin: (Lookups, Option<Secret<String>>, Stamp),
}

impl DirectoryClient {
    /// A client by these settings; or what is wrong with them, and where.
    pub fn new(settings: &Lookups) -> Result<Self, (usize, String)> {
        let read = |file: &Spanned<String>| {
            let unreadable =
                |why| (file.at, format!("cannot read a token in `{}`: {why}", file.value));
            let token = files::first_line(Path::new(&file.value)).map_err(unreadable)?;
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|_| (file.at, format!("`{}` holds no token", file.value)))?;
            bearer.set_sensitive(true);
            Ok((token, bearer))
        };
        let (token, bearer) = settings.token_file.as_ref().map(read).transpose()?.unzip();
        let ca = settings.ca.as_ref();
        let root = ca.and_then(|ca| stamp(Path::new(&ca.value)));
        let client = http_client::client(ca.map(|ca| ca.value.as_str()), settings.timeout)
            .map_err(|why| (ca.map_or(settings.url.at, |ca| ca.at), why))?;
        let url = settings.url.value.trim_end_matches('/').to_owned();
        Ok(Self { client, url, bearer, origin: (placeless(settings), token, root) })
    }

    /// The settings, without their places.
    #[must_use]
    pub fn settings(&self) -> &Lookups {
        &self.origin.0
    }

    /// What the URL of every request begins with.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The request for one tenant's entry. Its name is an identifier, which needs no escape.
    pub fn request(&self, kind: TenantKind, name: &str) -> RequestBuilder {
        let url = [&self.url, "/", kind.plural(), "/", name].concat();
        let request = self.client.get(url).header(ACCEPT, "application/json");
        match &self.bearer {
            Some(bearer) => request.header(AUTHORIZATION, bearer),
            None => request,
        }
    }
}

impl PartialEq for DirectoryClient {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
    }
}

impl Eq for DirectoryClient {}

/// Settings without their places: a line more before them changes nothing.
fn placeless(settings: &Lookups) -> Lookups {
    let mut settings = settings.clone();
    settings.url.at = 0;
    for file in [&mut settings.token_file, &mut settings.ca].into_iter().flatten() {
        file.at = 0;
    }
    settings
}
