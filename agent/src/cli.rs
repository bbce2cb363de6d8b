//! The command line: flags, and what they mean together.
//!
//! Not here: serving (`app`), ending the process (`main`).

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use log::LevelFilter;
use weir_client::client::BUDGET;
use weir_common::cli::{EXIT_FAILURE, EXIT_USAGE, completions, fail, print, runtime, secret};
use weir_common::config::document::span_of;
use weir_common::identifier::is_identifier;

use crate::agents::{Agent, Agents};
use crate::app::{Failure, Target, agents_of, install_log, serve_http, serve_streams};
use crate::http::Expected;
use crate::secrets::SecretFolder;

/// Tools for agents: webhooks, deliveries and limits over the Model Context Protocol.
///
/// With --token-file it serves one client on its standard streams; with --http and --agents,
/// several at an address.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Command {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Option<Options>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check the flags and files, and that the tokens are good; exit code 64 or 1 if not
    Check(Box<Options>),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
struct Options {
    /// The gateway, as https://api.example.com
    #[arg(long)]
    url: String,
    /// A file whose first line is the API token
    #[arg(long, required_unless_present = "http", conflicts_with = "http")]
    token_file: Option<PathBuf>,
    /// The workspace of calls that name none
    #[arg(long, conflicts_with = "http")]
    workspace: Option<String>,
    /// PEM of the root that the gateway's certificate has; without it, the system's roots
    #[arg(long)]
    ca: Option<String>,
    /// Offer only tools that change nothing
    #[arg(long)]
    read_only: bool,
    /// A folder for new secrets, each in a file of its own
    #[arg(long)]
    secrets: Option<PathBuf>,
    /// How long a call waits in all when a limit refuses it, as 75s
    #[arg(long)]
    wait_max: Option<String>,
    /// Serve at this address, on /mcp; loopback, unless --host is given
    #[arg(long, requires = "agents")]
    http: Option<SocketAddr>,
    /// A file of the agents that may call, with --http
    #[arg(long, requires = "http")]
    agents: Option<PathBuf>,
    /// A name by which the address is called, with --http; may be repeated
    #[arg(long, requires = "http")]
    host: Vec<String>,
    /// An origin of web pages that may call, as https://app.example.com:443; may be repeated
    #[arg(long, requires = "http")]
    origin: Vec<String>,
    /// What is logged to standard error: error, warn, info or debug
    #[arg(long, default_value = "info")]
    log: LevelFilter,
}

/// What the flags say to serve.
enum Mode {
    Streams,
    Http { address: SocketAddr, agents: Agents, expected: Expected },
}

impl Command {
    /// Executes the command, and returns the exit code.
    #[must_use]
    pub fn execute(self) -> u8 {
        let done = match (self.action, self.options) {
            (Some(Action::Completions { shell }), _) => return completions::<Self>(shell),
            (Some(Action::Check(options)), _) => options.check().map(|text| print(&text)),
            (None, Some(options)) => options.serve().map(|()| 0),
            (None, None) => Err(Failure::Usage("name a server: --url".to_owned())),
        };
        done.unwrap_or_else(|failure| match failure {
            Failure::Usage(why) => fail(EXIT_USAGE, &format!("weir-agent: {why}")),
            Failure::Outside(why) => fail(EXIT_FAILURE, &format!("weir-agent: {why}")),
        })
    }
}

impl Options {
    fn serve(self) -> Result<(), Failure> {
        let (target, mode) = (self.target(SecretFolder::open)?, self.mode()?);
        install_log(self.log);
        let runtime = runtime().map_err(Failure::Outside)?;
        let served = match mode {
            Mode::Streams => {
                let token = self.token()?;
                let caller = target.caller(token, self.workspace.clone(), self.read_only)?;
                runtime.block_on(serve_streams(caller))
            }
            Mode::Http { address, agents, expected } => {
                runtime.block_on(serve_http(&target, address, agents, &expected))
            }
        };
        // A read of standard input cannot be stopped, and must not hold up the end.
        runtime.shutdown_background();
        served
    }

    fn check(self) -> Result<String, Failure> {
        let (target, mode) = (self.target(SecretFolder::check)?, self.mode()?);
        let runtime = runtime().map_err(Failure::Outside)?;
        match mode {
            Mode::Streams => {
                let checked = target.check(self.token()?, self.workspace.as_deref());
                Ok(format!("ok: {}", runtime.block_on(checked)?))
            }
            Mode::Http { agents, .. } => {
                let mut failed = Vec::new();
                let unchecked =
                    |agent: &Agent, why| failed.push(format!("agent {}: {why}", agent.name));
                let count = runtime.block_on(target.check_agents(agents, unchecked))?.len();
                if !failed.is_empty() {
                    return Err(Failure::Outside(failed.join("\nweir-agent: ")));
                }
                Ok(format!("ok: {count} agents, each with a token for its workspace"))
            }
        }
    }

    fn token(&self) -> Result<weir_common::secret::Secret<String>, Failure> {
        let file = self.token_file.as_deref().unwrap_or_else(|| Path::new(""));
        secret(file).map_err(Failure::Usage)
    }

    /// What both modes need; `folder` makes the one of secrets, or checks it.
    fn target(&self, folder: fn(&Path) -> io::Result<SecretFolder>) -> Result<Target, Failure> {
        let budget = self.wait_max.as_deref().map_or(Some(BUDGET), span_of);
        let longest = Duration::from_secs(10 * 60);
        let Some(budget) = budget.filter(|budget| *budget <= longest) else {
            return Err(Failure::Usage(
                "--wait-max must be a time such as 75s, 10m at most".into(),
            ));
        };
        weir_client::transport::base_url(&self.url)
            .map_err(|why| Failure::Usage(format!("--url: {why}")))?;
        let secrets = self.secrets.as_deref().map(folder).transpose();
        let secrets = secrets.map_err(|why| Failure::Usage(format!("--secrets: {why}")))?;
        Ok(Target { url: self.url.clone(), ca: self.ca.clone(), budget, secrets })
    }

    fn mode(&self) -> Result<Mode, Failure> {
        if let Some(workspace) = self.workspace.as_deref().filter(|id| !is_identifier(id)) {
            let why = format!("--workspace {workspace} must be 1 to 64 of A-Z a-z 0-9 _ -");
            return Err(Failure::Usage(why));
        }
        let (Some(address), Some(file)) = (self.http, &self.agents) else {
            // clap demands --http no more where --token-file excludes it.
            return match self.agents {
                Some(_) => Err(Failure::Usage("--agents needs --http".to_owned())),
                None => Ok(Mode::Streams),
            };
        };
        let (mut hosts, mut origins) = (self.host.clone(), self.origin.clone());
        if address.ip().is_loopback() {
            hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
            // The protocol has a server on this machine accept pages of this machine.
            let own = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];
            origins.extend(own.map(str::to_owned));
        } else if hosts.is_empty() {
            let why = format!(
                "--http {address} can be reached from other machines: name the hosts that it is \
                 called by with --host, or use 127.0.0.1"
            );
            return Err(Failure::Usage(why));
        }
        if let Some(origin) = self.origin.iter().find(|origin| !origin.contains("://")) {
            let why =
                format!("--origin {origin} must have a scheme, as https://app.example.com:443");
            return Err(Failure::Usage(why));
        }
        if let Some(host) = self.host.iter().find(|host| host.contains("://")) {
            let why = format!("--host {host} must be a name, as agent.example.com");
            return Err(Failure::Usage(why));
        }
        let expected = Expected { hosts, origins };
        let mut agents = agents_of(file)?;
        agents.values_mut().for_each(|agent| agent.read_only |= self.read_only);
        Ok(Mode::Http { address, agents, expected })
    }
}
