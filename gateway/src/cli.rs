//! The command line: its commands, and what they print.
//!
//! Not here: what `check` tries (`check`), ending the process (`main`), running (`app`).

mod admin_client;
mod check;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value};
use weir_common::cli::{
    ConfigArgs, EXIT_FAILURE, EXIT_USAGE, completions, fail, print, refuse, runtime,
};
use weir_common::config::document::{Diagnostic, Document, suggestion};
use weir_common::directory::Directory;
use weir_common::identifier::IdForm;
use weir_common::time::Clock;

use crate::app::{self, Environment, RunError};
use crate::cli::admin_client::AdminClient;
use crate::config::active::ActiveConfig;
use crate::config::checked::{CheckedConfig, Config, USUAL};
use crate::limit::key::Seed;
use crate::operations::explain::{Example, explain};

/// A reverse proxy that holds every tenant to its allowance, exactly.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve until SIGTERM; SIGHUP reloads, SIGUSR2 upgrades to the program at its path
    Run(ConfigArgs),
    /// Read the configuration and report every problem; exit code 64 if there is one, or 1 if only
    /// --online finds one
    Check {
        #[command(flatten)]
        from: ConfigArgs,
        /// Also try what it names: addresses, names, servers, keys, files to be written
        #[arg(long)]
        online: bool,
    },
    /// Say which route, limits, keys and plan a request would meet, and why
    Explain(Explain),
    /// Look at, reset or raise what a tenant may use, through the admin listener
    #[command(subcommand)]
    Limits(Limits),
    /// Print the JSON Schema of gateway.toml or directory.toml, for editors
    Schema {
        /// Which file
        #[arg(value_parser = ["gateway", "directory"], default_value = "gateway")]
        file: String,
    },
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// What `operations::explain` is asked.
#[derive(Debug, Args)]
pub struct Explain {
    /// The method, as GET
    pub method: String,
    /// The URL, as a client would call it
    pub url: String,
    /// A header, as 'X-Forwarded-For: 192.0.2.1'
    #[arg(short = 'H', long = "header")]
    pub headers: Vec<String>,
    /// The address the request comes from
    #[arg(long, default_value = "127.0.0.1")]
    pub from: std::net::IpAddr,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Explain {
    fn example(&self) -> Example {
        let Self { method, url, headers, from, .. } = self;
        let (method, url) = (method.clone(), url.clone());
        Example { method, url, headers: headers.clone(), from: *from }
    }
}

#[derive(Debug, Subcommand)]
enum Limits {
    /// What a key has used, and what is left
    Show(Which),
    /// Forget what a key has used
    Reset(Which),
    /// End a boost before its time
    Unboost(Which),
    /// Raise what a key may use for a while
    Boost {
        #[command(flatten)]
        key: KeyArgs,
        /// The limit to raise
        #[arg(long)]
        limit: String,
        /// Requests per window, day or month, or in flight
        #[arg(long)]
        requests: Option<u32>,
        /// Tokens per second, or per period as 5000/h
        #[arg(long)]
        rate: Option<String>,
        /// Tokens of a full bucket
        #[arg(long)]
        burst: Option<u32>,
        /// For how long, as 10m
        #[arg(long = "for", default_value = "10m")]
        ttl: String,
    },
}

#[derive(Debug, Args)]
struct Which {
    #[command(flatten)]
    key: KeyArgs,
    /// Only this limit; without it, every limit that the key has used
    #[arg(long)]
    limit: Option<String>,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// A key as logs show it: a workspace, organisation, instance or address, ws_acme/user_7
    key: String,
    /// The admin listener; without it, the one of the configuration
    #[arg(long)]
    admin: Option<SocketAddr>,
    /// A file whose first line is the admin listener's token
    #[arg(long)]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Command {
    /// Executes the command, and returns the exit code.
    #[must_use]
    pub fn execute(self, around: &Environment) -> u8 {
        match self.action {
            Action::Run(from) => match app::run(config(&from), around) {
                Ok(()) => 0,
                Err(error @ RunError::Configuration(_)) => fail(EXIT_USAGE, &error.to_string()),
                Err(error) => fail(EXIT_FAILURE, &format!("weir-gateway: {error}")),
            },
            Action::Check { from, online } => check::check(&config(&from), online),
            Action::Explain(options) => match load(&config(&options.config)) {
                Ok(checked) => {
                    let clock = Clock::system();
                    let active = ActiveConfig::new(checked, None, &Arc::default(), &clock);
                    let example = options.example();
                    let runtime = match runtime() {
                        Ok(runtime) => runtime,
                        Err(why) => return fail(EXIT_FAILURE, &why),
                    };
                    match runtime.block_on(explain(&active, (&example, clock.now()))) {
                        Ok(explained) if options.json => print(&format!("{:#}", explained.json())),
                        Ok(explained) => print(&explained.to_string()),
                        Err(why) => fail(EXIT_USAGE, &why),
                    }
                }
                Err(diagnostics) => refuse(&diagnostics),
            },
            Action::Limits(limits) => {
                limits.execute().unwrap_or_else(|why| fail(EXIT_FAILURE, &why))
            }
            Action::Schema { file } => {
                let nothing = Document::new("", "");
                let schema = match file.as_str() {
                    "directory" => Directory::read_with_schema(&nothing, &IdForm::workspace()).1,
                    _ => crate::settings::read::read(&nothing).schema,
                };
                print(&format!("{schema:#}"))
            }
            Action::Completions { shell } => completions::<Self>(shell),
        }
    }
}

fn config(from: &ConfigArgs) -> Config {
    Config { file: from.file(USUAL) }
}

/// Reads and checks the configuration. A command has no counters, so any seed works.
fn load(config: &Config) -> Result<CheckedConfig, Vec<Diagnostic>> {
    config.load(Seed::new(*b"command, no keys"))
}

impl Limits {
    fn execute(self) -> Result<u8, String> {
        match self {
            Self::Show(which) => which.each("GET", "", &[]),
            Self::Reset(which) => which.each("DELETE", "", &[]),
            Self::Unboost(which) => which.each("DELETE", "/boost", &[]),
            Self::Boost { key, limit, requests, rate, burst, ttl } => {
                let mut body = Map::from_iter([("ttl".to_owned(), Value::from(ttl))]);
                for (name, value) in [("requests", requests), ("burst", burst)] {
                    if let Some(value) = value {
                        body.insert(name.to_owned(), value.into());
                    }
                }
                if let Some(rate) = rate {
                    let value = rate.parse::<u32>().map_or(Value::from(rate), Value::from);
                    body.insert("rate".to_owned(), value);
                }
                let which = Which { key, limit: Some(limit) };
                which.each("POST", "/boost", Value::Object(body).to_string().as_bytes())
            }
        }
    }
}

impl KeyArgs {
    /// Where the admin listener is, and the file of its token.
    fn server(&self) -> Result<(SocketAddr, Option<PathBuf>), Vec<Diagnostic>> {
        let token_file = self.token_file.clone();
        if let Some(address) = self.admin {
            return Ok((address, token_file));
        }
        let server = load(&config(&self.config))?.settings.server;
        let configured = server.admin_token_file.map(PathBuf::from);
        Ok((server.admin, token_file.or(configured)))
    }
}

impl Which {
    /// Calls the admin listener for the key in each selected limit, and prints a line per value.
    fn each(&self, method: &str, suffix: &str, body: &[u8]) -> Result<u8, String> {
        let server = match self.key.server() {
            Ok(server) => server,
            Err(why) => return Ok(refuse(&why)),
        };
        let admin = AdminClient::of(server)?;
        let limits = admin.limits()?;
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        if let Some(limit) = self.limit.as_ref().filter(|limit| !limits.contains(&limit.as_str())) {
            let hint = suggestion(limit, &limits)
                .unwrap_or_else(|| format!("known: {}", limits.join(", ")));
            return Err(format!("unknown limit `{limit}`; {hint}"));
        }
        let key = percent_encoding::utf8_percent_encode(
            &self.key.key,
            percent_encoding::NON_ALPHANUMERIC,
        );
        let mut found = Vec::new();
        for limit in limits.iter().filter(|own| self.limit.as_ref().is_none_or(|l| l == *own)) {
            let path = format!("/limits/{limit}/{key}");
            match admin.call("GET", &path, b"") {
                Ok(usage) => found.push((path, usage)),
                // This limit cannot have such a key: an error only where the limit was named.
                Err(why) if why.status == 404 && self.limit.is_none() => {}
                Err(why) => return Err(why.into()),
            }
        }
        let is_idle = |state: &Value| state["used"] == 0 && state["boosted_until"].is_null();
        if found.iter().all(|(_, state)| state["known"] == false && is_idle(state)) {
            let of = found.first().filter(|_| self.limit.is_some());
            let kind = of.and_then(|(_, state)| state["kind"].as_str()).unwrap_or("key");
            let what = match kind.contains([':', '/']) {
                true => "it has used nothing".to_owned(),
                false => format!("it is no {kind} of the directory, and has used nothing"),
            };
            let why = format!("unknown key `{}`: {what}", self.key.key);
            // A tenant may be boosted before its first request.
            if method != "POST" {
                return Err(why);
            }
            drop(writeln!(io::stderr(), "warning: {why}"));
        }
        let mut lines = Vec::new();
        for (path, state) in found {
            if self.limit.is_some() || !is_idle(&state) {
                let after = || admin.call(method, &format!("{path}{suffix}"), body);
                shown(&if method == "GET" { state } else { after()? }, &mut lines);
            }
        }
        if lines.is_empty() {
            lines.push(format!("{}: has used nothing", self.key.key));
        }
        Ok(print(&lines.join("\n")))
    }
}

/// Whether an allowance of this algorithm is clear from its values alone.
fn is_evident(algorithm: &Value) -> bool {
    algorithm == "rolling_window" || algorithm == "token_bucket"
}

/// Adds a line for each value that may apply to requests of a key.
fn shown(state: &Value, lines: &mut Vec<String>) {
    let text = |name: &str| state[name].as_str().unwrap_or_default().to_owned();
    let line = |value: &Value, plan: &str| {
        let allowance = value["allowance"].as_object().into_iter().flatten();
        let allowance =
            allowance.filter(|(name, value)| *name != "algorithm" || !is_evident(value));
        let allowance: Vec<String> = allowance
            .map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"')))
            .collect();
        let mut line = format!(
            "{} {}: used {}, remaining {}, reset {} ({}){plan}",
            text("limit"),
            text("key"),
            value["used"],
            value["remaining"],
            value["reset"],
            allowance.join(", "),
        );
        if let Some(until) = state["boosted_until"].as_str() {
            line.push_str(&format!(", boosted until {until}"));
        }
        line
    };
    let Some(values) = state["by_plan"].as_array() else { return lines.push(line(state, "")) };
    for value in values {
        let plan = match value["plan"].as_str() {
            Some(plan) => format!(" for its workspaces on plan {plan}"),
            None => " for all other requests".to_owned(),
        };
        lines.push(line(value, &plan));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boost_requires_its_limit_and_the_other_commands_do_not() {
        for (name, options, is_complete) in [
            ("boost", &[][..], false),
            ("boost", &["--limit", "workspace", "--requests", "9"], true),
            ("show", &[], true),
            ("reset", &["--limit", "workspace"], true),
        ] {
            let words = ["weir-gateway", "limits", name, "ws_acme"];
            let line = words.iter().chain(options);
            assert_eq!(Command::try_parse_from(line).is_ok(), is_complete, "{name} {options:?}");
        }
    }
}
