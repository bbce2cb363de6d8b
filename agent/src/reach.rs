//! Whether an agent's token reaches its workspace and no other: a token for all workspaces would
//! let one agent act for every customer.
//!
//! # Invariants
//!
//! 1. An agent is served only once its token was refused for a workspace that is not its own.
//! 2. A token that cannot be checked now, or is no longer valid, holds up its own agent alone.
//!
//! Not here: what is answered meanwhile (`http`), the first check of all agents (`app`).

use tokio::sync::OnceCell;
use weir_client::call::CallError;
use weir_client::client::Client;
use weir_client::methods::Paging;

/// The token of an agent, until it is known what it reaches.
#[derive(Debug)]
pub(crate) struct TokenReach {
    client: Client,
    workspace: String,
    /// A workspace that does not exist.
    elsewhere: String,
    is_own: OnceCell<()>,
}

/// Why an agent is not served.
#[derive(Debug)]
pub(crate) enum NotServed {
    /// Its token reaches other workspaces.
    Others(String),
    /// The token cannot be checked, or is refused.
    Unchecked(String),
}

impl TokenReach {
    /// The token of `client`, which is for `workspace`; `nonce` is a random number.
    pub(crate) fn new(client: Client, workspace: &str, nonce: u64) -> Self {
        let prefix = workspace.split_once('_').map_or("ws", |(prefix, _)| prefix);
        let elsewhere = format!("{prefix}_{nonce:016x}");
        let workspace = workspace.to_owned();
        Self { client, workspace, elsewhere, is_own: OnceCell::new() }
    }

    /// Checks the token unless it was found good. Lists are kept for five seconds, so that calls
    /// meanwhile cost the API two requests in that time.
    pub(crate) async fn check(&self) -> Result<(), NotServed> {
        self.is_own.get_or_try_init(|| self.first()).await.copied()
    }

    async fn first(&self) -> Result<(), NotServed> {
        let unchecked = |why: CallError| NotServed::Unchecked(why.to_string());
        let list = async |workspace: &str| {
            let first = Paging { limit: Some(1), cursor: None };
            self.client.workspace(workspace)?.webhooks(&first).await
        };
        list(&self.workspace).await.map_err(unchecked)?;
        match list(&self.elsewhere).await {
            Err(CallError::Refused(problem)) if [401, 403, 404].contains(&problem.status) => Ok(()),
            Ok(_) => Err(NotServed::Others(format!(
                "its token reaches workspaces other than {}: give it one for that workspace alone",
                self.workspace
            ))),
            Err(why) => Err(NotServed::Unchecked(format!(
                "it is not known whether its token is for one workspace: {why}"
            ))),
        }
    }
}
