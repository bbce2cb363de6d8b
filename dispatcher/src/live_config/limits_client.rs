//! Reads a workspace's limits at the gateway, which counts them.
//!
//! Invariant: each read has a deadline and a bound.

use std::time::Duration;

use http::header::RETRY_AFTER;
use reqwest::Client;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_common::http_client::{self, RequestError};

use crate::config::settings::LimitsSettings;

/// A page waits for the gateway no longer; it answers from memory, or from its store.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The limits of a workspace, as the gateway writes them.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkspaceLimits {
    /// Each limit that the gateway shows.
    pub limits: Vec<LimitUsage>,
}

/// What a workspace, or its organisation, has used of a limit.
#[derive(Clone, Debug, Deserialize)]
pub struct LimitUsage {
    /// The name of the limit.
    pub limit: String,
    /// Who is counted.
    pub key: String,
    /// The plan whose values apply.
    pub plan: Option<String>,
    /// The values of the limit.
    pub allowance: Map<String, Value>,
    /// How much is used; null if the gateway cannot tell at the moment.
    pub used: Option<u64>,
    /// How much is left.
    pub remaining: Option<u64>,
    /// When all of it is back, in seconds since 1970.
    pub reset: Option<u64>,
}

/// Why the limits are not known.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// The gateway did not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The allowance of the read itself is used up.
    #[error("the gateway answered with 429")]
    UsedUp {
        /// In how many seconds it would pass, if the gateway said.
        retry_after: Option<u64>,
    },
    /// It refused.
    #[error("the gateway answered with {0}")]
    Status(u16),
    /// It answered something else.
    #[error("the gateway's answer cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Asks a gateway.
#[derive(Clone, Debug)]
pub struct LimitsClient {
    client: Client,
    settings: LimitsSettings,
}

impl LimitsClient {
    /// With these settings.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub fn new(settings: LimitsSettings) -> Result<Self, String> {
        Ok(Self { client: http_client::client(None, TIMEOUT)?, settings })
    }

    /// The limits of a workspace, as of now.
    ///
    /// # Errors
    ///
    /// If the gateway does not say.
    pub async fn read(&self, workspace: &str) -> Result<WorkspaceLimits, LimitsError> {
        let mut request = self.client.get(self.settings.url_of(workspace));
        if let Some(token) = &self.settings.token {
            request = request.bearer_auth(token.expose());
        }
        let response = http_client::send(request).await?;
        match response.status {
            200 => Ok(serde_json::from_slice(&response.body)?),
            429 => {
                let field = response.headers.get(RETRY_AFTER);
                let retry_after = field.and_then(|field| field.to_str().ok()?.parse().ok());
                Err(LimitsError::UsedUp { retry_after })
            }
            status => Err(LimitsError::Status(status)),
        }
    }
}
