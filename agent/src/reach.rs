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
use weir_common::identifier::LENGTH_MAX;

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
        let elsewhere = other_than(workspace, nonce);
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

/// An identifier that is not `workspace`, and begins as it does: what a gateway requires to be in
/// front (`identifiers.workspace_prefix`) leaves it one character at least.
fn other_than(workspace: &str, nonce: u64) -> String {
    let mut other = workspace.to_owned();
    let last = other.pop();
    other.push(if last == Some('0') { '1' } else { '0' });
    other.push_str(&format!("{nonce:016x}"));
    other.truncate(LENGTH_MAX);
    other
}

#[cfg(test)]
mod tests {
    use weir_common::identifier::IdForm;

    use super::*;

    #[test]
    fn the_workspace_that_does_not_exist_has_any_prefix_that_the_agents_own_has() {
        let long = "x".repeat(LENGTH_MAX - 1);
        for (prefix, rest) in
            [("ws_", "acme"), ("my_ws_", "acme"), ("ws-", "a_b"), ("", "0"), (&*long, "0")]
        {
            let own = format!("{prefix}{rest}");
            let other = other_than(&own, 7);
            assert!(IdForm::new(prefix).unwrap().allows(&other), "{prefix}: {other}");
            assert_ne!(other, own);
        }
        assert_eq!(other_than("ws_acme", 0xab), "ws_acm000000000000000ab");
    }
}
