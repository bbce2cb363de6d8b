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
use tokio::task::JoinSet;
use weir_client::call::CallError;
use weir_client::client::{CACHE_BYTES, Client};
use weir_client::methods::Paging;
use weir_common::config::document::{Document, lines};
use weir_common::config::files;
use weir_common::http_server::listeners::{Listeners, bind};
use weir_common::http_server::{Bounds, ConnectionBounds, HEAD_BYTES_MAX, Listening};
use weir_common::log::events;
use weir_common::rlimit;
use weir_common::secret::Secret;
use weir_common::signals::Signals;
use weir_common::time::Clock;

use crate::agents::{self, Agent, Agents};
use crate::caller::{Caller, server};
use crate::http::{BODIES_BYTES_MAX, CONNECTIONS_MAX, Expected, Front, REQUEST_TIMEOUT, share_of};
use crate::reach::{NotServed, TokenReach};
use crate::secrets::SecretFolder;
use crate::server::AgentServer;
use crate::streams;

/// Calls of a client on the standard streams in flight: each waits for minutes at worst.
const CALLS_MAX: usize = 64;

/// The longest wait of the calls that only check a token.
const CHECK_BUDGET: Duration = Duration::from_secs(5);

/// Bytes of kept lists of all agents together: each has its share.
const CACHES_BYTES: u64 = 16 * CACHE_BYTES;

/// The kept lists of the calls that only check a token: two of one entry each.
const CHECK_CACHE_BYTES: u64 = 1 << 20;

/// File descriptors: a connection of an agent, its call to the gateway, and some of its own.
const DESCRIPTORS: u64 = 2 * CONNECTIONS_MAX as u64 + 512;

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
    /// A client of the gateway with this token.
    fn client(
        &self,
        token: Secret<String>,
        budget: Duration,
        cache_bytes: u64,
    ) -> Result<Client, Failure> {
        let server = server(&self.url, token, self.ca.as_deref()).map_err(Failure::Usage)?;
        Ok(Client::new(server, budget, cache_bytes))
    }

    /// A client that only checks a token.
    fn checking_client(&self, token: &Secret<String>) -> Result<Client, Failure> {
        self.client(token.clone(), CHECK_BUDGET, CHECK_CACHE_BYTES)
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
            client: self.client(token, self.budget, CACHE_BYTES)?,
            workspace: workspace.map(Into::into),
            is_bound: false,
            read_only,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            secrets: self.secrets.clone(),
        })
    }

    /// The caller of one of so many agents.
    fn caller_of(&self, agent: &Agent, count: usize) -> Result<Caller, Failure> {
        let Agent { name, workspace, token, read_only } = agent;
        let secrets = self.secrets.as_ref().map(|folder| folder.within(name)).transpose();
        let secrets =
            secrets.map_err(|why| Failure::Outside(format!("secrets of {name}: {why}")))?;
        let cache_bytes = CACHE_BYTES.min(CACHES_BYTES / count.max(1) as u64);
        Ok(Caller {
            name: name.as_str().into(),
            client: self.client(token.clone(), self.budget, cache_bytes)?,
            workspace: Some(workspace.as_str().into()),
            is_bound: true,
            read_only: *read_only,
            calls: Arc::new(Semaphore::new(share_of(count))),
            secrets,
        })
    }

    fn reach_of(&self, agent: &Agent) -> Result<TokenReach, Failure> {
        let nonce = getrandom::u64().map_err(no_chance)?;
        Ok(TokenReach::new(self.checking_client(&agent.token)?, &agent.workspace, nonce))
    }

    /// Checks that a token reaches its workspace, and returns what it reaches, in words.
    pub(crate) async fn check(
        &self,
        token: Secret<String>,
        workspace: Option<&str>,
    ) -> Result<String, Failure> {
        let client = self.checking_client(&token)?;
        let outside = |why: CallError| Failure::Outside(why.to_string());
        match workspace {
            Some(id) => {
                let workspace = client.workspace(id).map_err(outside)?;
                let first = Paging { limit: Some(1), cursor: None };
                workspace.webhooks(&first).await.map_err(outside)?;
                Ok(format!("the token reads the webhooks of {id}"))
            }
            None => {
                let types = client.event_types().await.map_err(outside)?;
                Ok(format!("the token reads {} event types", types.data.len()))
            }
        }
    }

    /// Checks the tokens of all agents at one time, and returns them. A token that reaches other
    /// workspaces is an error; why another cannot be served yet goes to `unchecked`.
    pub(crate) async fn check_agents(
        &self,
        agents: Agents,
        mut unchecked: impl FnMut(&Agent, String),
    ) -> Result<Vec<([u8; 32], Agent, TokenReach)>, Failure> {
        let mut checks = JoinSet::new();
        for (bearer, agent) in agents {
            let reach = self.reach_of(&agent)?;
            checks.spawn(async move {
                let checked = reach.check().await;
                (bearer, agent, reach, checked)
            });
        }
        let mut ready = Vec::with_capacity(checks.len());
        for (bearer, agent, reach, checked) in checks.join_all().await {
            match checked {
                Ok(()) => {}
                Err(NotServed::Unchecked(why)) => unchecked(&agent, why),
                Err(NotServed::Others(why)) => {
                    return Err(Failure::Usage(format!("agent {}: {why}", agent.name)));
                }
            }
            ready.push((bearer, agent, reach));
        }
        Ok(ready)
    }
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
    filled.map_err(no_chance)?;
    Ok(key)
}

fn no_chance(why: getrandom::Error) -> Failure {
    Failure::Outside(format!("no random numbers: {why}"))
}

/// Serves one client on the standard streams, until it closes them or a signal comes.
pub(crate) async fn serve_streams(caller: Caller) -> Result<(), Failure> {
    let outside = |why: String| Failure::Outside(why);
    let signals = Signals::install().map_err(|why| outside(why.to_string()))?;
    let server = AgentServer::new(caller, Clock::system(), key()?);
    events::event(Level::Info, "ready", &[("listener", json!("stdio"))]);
    let served = async {
        let (input, output) = stdio_pipes();
        let running = server.serve(streams::paired(input, output)).await;
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
) -> Result<(), Failure> {
    let outside = |why: String| Failure::Outside(why);
    let signals = Signals::install().map_err(|why| outside(why.to_string()))?;
    rlimit::raise_or_warn(DESCRIPTORS, "raise LimitNOFILE or ulimit -n");
    let listener = bind(address).map_err(|why| outside(why.to_string()))?;
    let not_yet = |agent: &Agent, why: String| {
        let fields = [("agent", json!(agent.name)), ("error", json!(why))];
        events::event(Level::Warn, "agent not served yet", &fields);
    };
    let checked = target.check_agents(agents, not_yet).await?;
    let (mut served, count) = (Vec::with_capacity(checked.len()), checked.len());
    for (bearer, agent, reach) in checked {
        let caller = target.caller_of(&agent, count)?;
        served.push((bearer, AgentServer::new(caller, Clock::system(), key()?), reach));
    }
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let front = Front::new(served, expected, Arc::clone(&connections));
    let connection = ConnectionBounds {
        head_bytes_max: HEAD_BYTES_MAX,
        head_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        body_timeout: Duration::from_secs(30),
    };
    let bounds = Bounds {
        connection: Arc::new(move || connection),
        connections,
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
