//! Prints what happens to a webhook next, as the API of a running dispatcher forecasts it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use weir_common::cli::{ConfigArgs, runtime, secret};
use weir_common::http_client;
use weir_common::secret::Secret;

/// How long the API may take: it waits for the worker at most a second.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct ForecastArgs {
    /// The webhook's id
    webhook: String,
    /// Its workspace
    #[arg(long)]
    workspace: String,
    /// A file whose first line is a token that may read the workspace's webhooks
    #[arg(long)]
    token_file: PathBuf,
    /// The address of the API; without it that of the configuration
    #[arg(long)]
    pub(super) api: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) from: ConfigArgs,
}

impl ForecastArgs {
    /// Reads the forecast from the API at this address.
    pub(super) fn execute(&self, api: SocketAddr) -> Result<String, String> {
        let token = secret(&self.token_file)?;
        let (status, body) = runtime()?.block_on(self.read(api, &token))?;
        if status == 200 {
            return Ok(printed(&body));
        }
        let said = ["detail", "title"].into_iter().find_map(|member| body.get(member)?.as_str());
        let detail = said.unwrap_or_default();
        Err(format!("the API at {api} answers {status}: {detail}"))
    }

    async fn read(&self, api: SocketAddr, token: &Secret<String>) -> Result<(u16, Value), String> {
        let Self { workspace, webhook, .. } = self;
        let url = format!("http://{api}/v1/workspaces/{workspace}/webhooks/{webhook}");
        let client = http_client::client(None, TIMEOUT)?;
        let request = client.get(url).bearer_auth(token.expose());
        let response = http_client::send(request).await;
        let response = response.map_err(|why| format!("cannot reach the API at {api}: {why}"))?;
        let body = serde_json::from_slice(&response.body).unwrap_or_default();
        Ok((response.status, body))
    }
}

/// A webhook with its forecast, a line for each.
fn printed(webhook: &Value) -> String {
    let at = |path: &str| webhook.pointer(path).unwrap_or(&Value::Null);
    let text = |path: &str| at(path).as_str().unwrap_or("-").to_owned();
    let more = if *at("/waiting/at_least") == true { " or more" } else { "" };
    [
        ("state", text("/state")),
        ("down since", text("/health/down_since")),
        ("last 2xx", text("/health/last_success_at")),
        ("last outcome", text("/health/last_outcome")),
        ("waiting", format!("{}{more}", at("/waiting/count"))),
        ("if down", text("/forecast/if_down/text")),
        ("if up", text("/forecast/if_up/text")),
    ]
    .map(|(name, value)| format!("{name:<14}{value}"))
    .join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_forecast_is_printed_a_line_for_each_part() {
        let webhook = json!({
            "state": "failing",
            "health": {"down_since": "2026-01-01T00:00:00.000Z", "last_success_at": null,
                "last_outcome": "status_503"},
            "waiting": {"count": 10_000, "at_least": true},
            "forecast": {"if_down": {"text": "If it stays down: …"}, "if_up": null},
        });
        let expected = "state         failing\n\
            down since    2026-01-01T00:00:00.000Z\n\
            last 2xx      -\n\
            last outcome  status_503\n\
            waiting       10000 or more\n\
            if down       If it stays down: …\n\
            if up         -";
        assert_eq!(printed(&webhook), expected);
    }
}
