//! Builds a server and owns its tasks: on the standard streams, or behind a listener.
//!
//! Not here: the flags (`cli`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use log::{Level, LevelFilter};
use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;
use serde_json::json;
use tokio::sync::Semaphore;
use weir_client::call::CallError;
use weir_client::client::Client;
use weir_client::methods::Paging;
use weir_common::config::document::{Document, lines};
use weir_common::config::files;
use weir_common::http_server::listeners::{Listeners, bind};
use weir_common::http_server::{Bounds, ConnectionBounds, HEAD_BYTES_MAX, Listening};
use weir_common::log::events;
use weir_common::secret::Secret;
use weir_common::signals::Signals;
use weir_common::time::Clock;

use crate::agents::{self, Agent, Agents};
use crate::caller::{Caller, server};
use crate::http::{Expected, Front, REQUEST_TIMEOUT};
use crate::secrets::SecretFolder;
use crate::server::AgentServer;

/// Calls of one agent in flight: each waits for minutes at worst.
const CALLS_MAX: usize = 64;

/// The longest wait of the calls that only check a token.
const CHECK_BUDGET: Duration = Duration::from_secs(5);

/// Connections of all agents together.
const CONNECTIONS_MAX: usize = 1_024;

/// Bytes of messages in memory at one time.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How long a stop waits for calls in progress.
const GRACE: Duration = Duration::from_secs(10);

/// What both modes need.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) ca: Option<String>,
    pub(crate) budget: Duration,
    pub(crate) secrets: Option<SecretFolder>,
}

/// Why it does not run: the flags and files are wrong, or something outside failed.
pub(crate) enum Failure {
    Usage(String),
    Outside(String),
}

impl Target {
    fn client(&self, token: Secret<String>, budget: Duration) -> Result<Client, Failure> {
        let server = server(&self.url, token, self.ca.as_deref()).map_err(Failure::Usage)?;
        Ok(Client::new(server, budget))
    }

    /// The caller of the standard streams.
    pub(crate) fn caller(
        &self,
        token: Secret<String>,
        workspace: Option<String>,
        read_only: bool,
    ) -> Result<Caller, Failure> {
        Ok(Caller {
            name: "stdio".into(),
            client: self.client(token, self.budget)?,
            workspace: workspace.map(Into::into),
            is_bound: false,
            read_only,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            secrets: self.secrets.clone(),
        })
    }

    fn caller_of(&self, agent: &Agent, read_only: bool) -> Result<Caller, Failure> {
        let Agent { name, workspace, token, .. } = agent;
        let secrets = self.secrets.as_ref().map(|folder| folder.within(name)).transpose();
        let secrets =
            secrets.map_err(|why| Failure::Outside(format!("secrets of {name}: {why}")))?;
        let caller =
            self.caller(token.clone(), Some(workspace.clone()), agent.read_only || read_only)?;
        Ok(Caller { name: name.as_str().into(), is_bound: true, secrets, ..caller })
    }

    /// Checks that a token reaches its workspace, and returns what it reaches, in words.
    pub(crate) async fn check(
        &self,
        token: Secret<String>,
        workspace: Option<&str>,
    ) -> Result<String, Failure> {
        let client = self.client(token, CHECK_BUDGET)?;
        let outside = |why: CallError| Failure::Outside(why.to_string());
        match workspace {
            Some(id) => {
                let workspace = client.workspace(id).map_err(outside)?;
                workspace.webhooks(&first_page()).await.map_err(outside)?;
                Ok(format!("the token reads the webhooks of {id}"))
            }
            None => {
                let types = client.event_types().await.map_err(outside)?;
                Ok(format!("the token reads {} event types", types.data.len()))
            }
        }
    }

    /// Checks that an agent's token reaches its workspace, and no workspace that it should not: a
    /// token for all workspaces would let one agent act for every customer.
    pub(crate) async fn check_agent(&self, agent: &Agent) -> Result<(), Failure> {
        let named = |why: &str| format!("agent {}: {why}", agent.name);
        let own = self.check(agent.token.clone(), Some(&agent.workspace)).await;
        own.map_err(|failure| match failure {
            Failure::Outside(why) => Failure::Outside(named(&why)),
            Failure::Usage(why) => Failure::Usage(why),
        })?;
        let prefix = agent.workspace.split_once('_').map_or("ws", |(prefix, _)| prefix);
        let other = format!("{prefix}_{:016x}", getrandom::u64().unwrap_or_default());
        let client = self.client(agent.token.clone(), CHECK_BUDGET)?;
        let workspace =
            client.workspace(&other).map_err(|why| Failure::Outside(why.to_string()))?;
        match workspace.webhooks(&first_page()).await {
            Err(CallError::Refused(problem)) if [401, 403, 404].contains(&problem.status) => Ok(()),
            Ok(_) => Err(Failure::Usage(named(&format!(
                "its token reaches workspaces other than {}: give it one for that workspace alone",
                agent.workspace
            )))),
            Err(why) => {
                let why = format!("cannot tell whether its token is for one workspace: {why}");
                Err(Failure::Outside(named(&why)))
            }
        }
    }
}

fn first_page() -> Paging {
    Paging { limit: Some(1), cursor: None }
}

/// The agents of a file.
pub(crate) fn agents_of(path: &Path) -> Result<Agents, Failure> {
    let name = path.display().to_string();
    let text = files::read(path);
    let text = text.map_err(|why| Failure::Usage(files::unreadable(&name, &why).to_string()))?;
    let document = Document::new(&name, &text);
    let agents = agents::read(&document);
    let faults = document.diagnostics();
    if faults.is_empty() { Ok(agents) } else { Err(Failure::Usage(lines(&faults))) }
}

/// Begins the log.
pub(crate) fn install_log(level: LevelFilter) {
    events::install(Clock::system(), level);
}

fn key() -> Result<[u8; 32], Failure> {
    let mut key = [0; 32];
    let filled = getrandom::fill(&mut key);
    filled.map_err(|why| Failure::Outside(format!("no random numbers: {why}")))?;
    Ok(key)
}

/// Serves one client on the standard streams, until it closes them or a signal comes.
pub(crate) async fn serve_streams(caller: Caller) -> Result<(), Failure> {
    let outside = |why: String| Failure::Outside(why);
    let signals = Signals::install().map_err(|why| outside(why.to_string()))?;
    let server = AgentServer::new(caller, Clock::system(), key()?);
    events::event(Level::Info, "ready", &[("listener", json!("stdio"))]);
    let served = async {
        let running = server.serve(stdio_pipes()).await;
        let running = running.map_err(|why| outside(format!("no client: {why}")))?;
        running.waiting().await.map(drop).map_err(|why| outside(why.to_string()))
    };
    tokio::select! {
        ended = served => ended,
        () = signals.until_stop(|| std::future::ready(())) => Ok(()),
    }
}

/// Serves agents over HTTP until a signal comes.
pub(crate) async fn serve_http(
    target: &Target,
    address: SocketAddr,
    agents: Agents,
    expected: &Expected,
    read_only: bool,
) -> Result<(), Failure> {
    let outside = |why: String| Failure::Outside(why);
    let signals = Signals::install().map_err(|why| outside(why.to_string()))?;
    let listener = bind(address).map_err(|why| outside(why.to_string()))?;
    let mut servers = Vec::with_capacity(agents.len());
    for (bearer, agent) in agents {
        target.check_agent(&agent).await?;
        let caller = target.caller_of(&agent, read_only)?;
        servers.push((bearer, AgentServer::new(caller, Clock::system(), key()?)));
    }
    let front = Front::new(servers, expected);
    let connection = ConnectionBounds {
        head_bytes_max: HEAD_BYTES_MAX,
        head_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Duration::from_secs(30),
    };
    let bounds = Bounds {
        connection: Arc::new(move || connection),
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        bodies_bytes_max: BODIES_BYTES_MAX,
    };
    let mut listeners = Listeners::default();
    let added = listeners.add("mcp", listener, Arc::new(front), bounds);
    added.map_err(|why| outside(why.to_string()))?;
    events::event(Level::Info, "ready", &[]);
    signals.until_stop(|| std::future::ready(())).await;
    listeners.set(Listening::Closing);
    listeners.ended(GRACE.min(REQUEST_TIMEOUT)).await;
    Ok(())
}
