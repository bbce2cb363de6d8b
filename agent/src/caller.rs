//! For whom a call is made: the client with its token, the workspace, what it may do.

use std::sync::Arc;

use weir_client::client::Client;
use weir_client::transport::Server;

use crate::output::Output;
use crate::secrets::SecretFolder;

/// For whom calls are made. Clones share the client, and with it the cache.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Its name in the log.
    pub name: Arc<str>,
    /// The client with its token.
    pub client: Client,
    /// The workspace of calls that name none.
    pub workspace: Option<Arc<str>>,
    /// Whether a call may name another workspace.
    pub is_bound: bool,
    /// Whether it changes nothing.
    pub read_only: bool,
    /// Permits of calls that may be in flight.
    pub calls: Arc<tokio::sync::Semaphore>,
    /// Where new secrets go.
    pub secrets: Option<SecretFolder>,
}

impl Caller {
    /// The workspace that a call is about.
    pub(crate) fn workspace(&self, named: Option<&str>) -> Result<Arc<str>, Output> {
        let refuse = |why: String| {
            Err(Output::error(
                why,
                serde_json::json!({"error": {
                    "detail": "workspace"
                }}),
            ))
        };
        match (named, &self.workspace) {
            (None, Some(own)) => Ok(Arc::clone(own)),
            (Some(named), Some(own)) if self.is_bound && named != &**own => {
                refuse(format!("Only the workspace {own} can be reached here; nothing was sent."))
            }
            (Some(named), _) => Ok(named.into()),
            (None, None) => refuse(
                "Name the `workspace`: weir-agent was started without --workspace.".to_owned(),
            ),
        }
    }
}

/// A client of the server at `url` with this token.
///
/// # Errors
///
/// If the URL or the file of roots cannot be used.
pub(crate) fn server(
    url: &str,
    token: weir_common::secret::Secret<String>,
    ca: Option<&str>,
) -> Result<Server, String> {
    Server::new(weir_client::transport::base_url(url)?, token, ca)
}
