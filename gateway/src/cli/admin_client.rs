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
        let Ok(value) = serde_json::from_slice::<Value>(&answer.body) else {
            return Err(self.foreign(answer.status));
        };
        if answer.status >= 300 {
            let Some(detail) = value.get("detail").and_then(Value::as_str) else {
                return Err(self.foreign(answer.status));
            };
            let text = format!("the admin listener answered {}: {detail}", answer.status);
            return Err(NoAnswer { status: answer.status, text });
        }
        Ok(value)
    }

    /// The names of all limits.
    pub(super) fn limits(&self) -> Result<Vec<String>, NoAnswer> {
        let listed = match self.call("GET", "/limits", b"") {
            // A gateway has this page; a dispatcher's admin listener has not.
            Err(why) if why.status == 404 => return Err(self.foreign(404)),
            listed => listed?,
        };
        let Some(limits) = listed.get("limits").and_then(Value::as_array) else {
            return Err(self.foreign(200));
        };
        Ok(limits.iter().filter_map(|limit| Some(limit["limit"].as_str()?.to_owned())).collect())
    }

    /// The error of an answer that no gateway's admin listener gives.
    fn foreign(&self, status: u16) -> NoAnswer {
        let text = format!(
            "what answers at {} is not the admin listener of a weir-gateway (status {status}): \
             give the address of its server.admin, as --admin or by --config",
            self.address
        );
        NoAnswer { status: 0, text }
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
