//! Calls the admin listener of a running gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use weir_common::cli;

use crate::upstream::single_request::{self, Request};

/// How long the admin listener may take to respond.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The admin listener of a running gateway.
pub(super) struct AdminClient {
    address: SocketAddr,
    token: Option<String>,
}

impl AdminClient {
    pub(super) fn of((address, token_file): (SocketAddr, Option<PathBuf>)) -> Result<Self, String> {
        let read = |file: PathBuf| cli::secret(&file).map(|token| token.expose().clone());
        Ok(Self { address, token: token_file.map(read).transpose()? })
    }

    pub(super) fn call(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, NoAnswer> {
        let no_answer = |text| NoAnswer { status: 0, text };
        let runtime = cli::runtime().map_err(no_answer)?;
        let request =
            Request { method, path, body, token: self.token.as_deref(), ..single_request::GET };
        let answer = runtime.block_on(single_request::call(self.address, &request, ADMIN_TIMEOUT));
        let answer = answer.map_err(|why| {
            let why = why.etype();
            no_answer(format!("no answer from the admin listener at {}: {why:?}", self.address))
        })?;
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status >= 300 {
            let detail = value.get("detail").and_then(Value::as_str).unwrap_or_default();
            let text = format!("the admin listener answered {}: {detail}", answer.status);
            return Err(NoAnswer { status: answer.status, text });
        }
        Ok(value)
    }
}

/// Why a call returned no value.
pub(super) struct NoAnswer {
    /// The status of the response; 0 where there was none.
    pub(super) status: u16,
    text: String,
}

impl From<NoAnswer> for String {
    fn from(why: NoAnswer) -> Self {
        why.text
    }
}
