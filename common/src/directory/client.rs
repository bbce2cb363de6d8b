//! Builds the requests to a directory: their URL and token; tries whether it responds.
//!
//! Not here: when they are sent (`server`), what a response means (`response`).

use std::path::Path;

use http::HeaderValue;
use http::header::{ACCEPT, AUTHORIZATION};
use reqwest::{Client, RequestBuilder};

use crate::config::files;
use crate::config::watch::{Stamp, stamp};
use crate::directory::response::TenantKind;
use crate::directory::settings::HttpDirectory;
use crate::http_client;
use crate::secret::Secret;

/// Builds requests to a directory.
#[derive(Clone, Debug)]
pub struct DirectoryClient {
    client: Client,
    url: String,
    bearer: Option<HeaderValue>,
    /// What it was built from, for comparison: a changed token or `ca` file makes it another.
    origin: (HttpDirectory, Option<Secret<String>>, Stamp),
}

impl DirectoryClient {
    /// A client by these settings.
    ///
    /// # Errors
    ///
    /// The invalid key, and why.
    pub fn new(settings: &HttpDirectory) -> Result<Self, (&'static str, String)> {
        let read = |file: &String| {
            let wrong = |why: String| ("token_file", format!("`{file}` has no token: {why}"));
            let token = files::first_line(Path::new(file)).map_err(|why| wrong(why.to_string()))?;
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|why| wrong(why.to_string()))?;
            bearer.set_sensitive(true);
            Ok((token, bearer))
        };
        let (token, bearer) = settings.token_file.as_ref().map(read).transpose()?.unzip();
        let ca = settings.ca.as_deref();
        let root = ca.and_then(|ca| stamp(Path::new(ca)));
        let client = http_client::client(ca, settings.timeout)
            .map_err(|why| (ca.map_or("url", |_| "ca"), why))?;
        let url = settings.url.trim_end_matches('/').to_owned();
        Ok(Self { client, url, bearer, origin: (settings.clone(), token, root) })
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &HttpDirectory {
        &self.origin.0
    }

    /// The prefix of every request's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Tries whether the directory responds, with the name of a tenant that need not exist.
    ///
    /// # Errors
    ///
    /// What is wrong, with the URL.
    pub async fn try_out(&self, name: &str) -> Result<(), String> {
        let request = self.request(TenantKind::Workspace, name);
        let why = match http_client::send(request).await {
            Ok(answer) if answer.status == 200 || answer.status == 404 => return Ok(()),
            Ok(answer) => format!("it answers {}, where 200 or 404 is expected", answer.status),
            Err(why) => why.to_string(),
        };
        let url = http_client::shown(&self.settings().url);
        Err(format!("the directory at `{url}` is unavailable: {why}"))
    }

    /// The request for one tenant's entry. Its name is an identifier, which needs no escape.
    pub fn request(&self, kind: TenantKind, name: &str) -> RequestBuilder {
        let url = [&self.url, "/", &kind.path(name)].concat();
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
