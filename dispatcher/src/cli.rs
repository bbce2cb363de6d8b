//! The command line: its commands, and what they print.
//!
//! Not here: the process (`main`), running the dispatcher (`app`).

mod check;
mod database;
mod forecast;
pub mod listen;
mod verify;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use url::Url;
use weir_common::cli::{
    ConfigArgs, EXIT_FAILURE, EXIT_USAGE, completions, fail, print, refuse, report, runtime, secret,
};
use weir_common::config::document::{Diagnostic, Document, lines, span_of};
use weir_common::config::file::ConfigFile;
use weir_common::directory::Directory;
use weir_common::identifier::IdForm;
use weir_common::secret::Secret;
use weir_common::time::Clock;

use crate::app::{self, RunError};
use crate::auth::Scope;
use crate::auth::token_file::{self, Tokens};
use crate::catalogue::Catalogue;
use crate::cli::database::{copy, put_back, recover_key, rotate_key};
use crate::cli::forecast::ForecastArgs;
use crate::cli::listen::{Answering, Listen, TestEvent, TestWebhook};
use crate::cli::verify::{Verify, WithKey};
use crate::config::read;
use crate::config::settings::Settings;
use crate::delivery::client::DeliveryClient;
use crate::delivery::egress::Rules;
use crate::delivery::signature::SECRET_PREFIX;
use crate::domain::event::EventType;
use crate::domain::outcome::Outcome;
use crate::domain::trace::Reason;
use crate::live_config::source::{Config, USUAL};

/// The hint after an error about the form of a workspace identifier.
const PREFIX_REMEDY: &str = "identifiers.workspace_prefix sets another, in the events.toml of \
    the configuration that --config names";

/// Delivers events to webhooks: signed, paced, retried, never lost.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct CliCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve until SIGTERM; SIGHUP reloads
    Run(ConfigArgs),
    /// Check the configuration, and the files and addresses in it, and report every problem;
    /// exit code 64 if there is one, or 1 if only --online finds one
    Check {
        #[command(flatten)]
        from: ConfigArgs,
        /// Also try the directory over HTTP
        #[arg(long)]
        online: bool,
    },
    /// Receive deliveries on this machine: verify each and print it
    Listen(Receive),
    /// Verify a signature
    Verify(Verify),
    /// Send a signed example event to a URL, as the dispatcher would
    SendTest(SendTest),
    /// Print what happens to a webhook if its receiver stays down, and if it answers again
    Forecast(ForecastArgs),
    /// Copy the database while the dispatcher runs
    Backup {
        #[command(flatten)]
        from: ConfigArgs,
        /// The copy, which must not exist yet
        to: PathBuf,
    },
    /// Replace the database by a backup; the dispatcher must not run
    Restore {
        #[command(flatten)]
        from: ConfigArgs,
        /// The backup
        backup: PathBuf,
        /// Move the existing database aside
        #[arg(long)]
        replace: bool,
    },
    /// Seal all secrets with another key and replace the key file; the dispatcher must not run
    RotateKey(KeyArgs),
    /// After the loss of the key file: give the database a new key, keep all that waits, and ask
    /// the owners of webhooks for new secrets; the dispatcher must not run
    RecoverKey(KeyArgs),
    /// Create a token: prints it, and its entry for tokens.toml
    Token(Token),
    /// Print the JSON Schema of a file, for editors
    Schema {
        /// Which file
        #[arg(value_parser = ["dispatcher", "events", "tokens", "directory"],
            default_value = "dispatcher")]
        file: String,
    },
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
struct KeyArgs {
    #[command(flatten)]
    from: ConfigArgs,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WithSecret {
    /// A file whose first line is the webhook's secret
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// The secret itself, with whsec_; visible in the list of processes
    #[arg(long)]
    secret: Option<String>,
}

#[derive(Debug, Args)]
struct Receive {
    #[command(flatten)]
    key: WithKey,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1:9010")]
    address: SocketAddr,
    /// The name of the signature header
    #[arg(long, default_value = "Service-Signature")]
    header: String,
    /// The URL to forward verified deliveries to; its answer is returned
    #[arg(long)]
    forward: Option<Url>,
    /// The status to answer verified deliveries with, to try failures
    #[arg(long, default_value_t = 204, conflicts_with = "forward",
        value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// The time to wait before each answer, such as 3s
    #[arg(long, default_value = "0s", value_parser = delay)]
    delay: Duration,
}

#[derive(Debug, Args)]
struct SendTest {
    /// The receiver
    #[arg(long)]
    url: String,
    #[command(flatten)]
    secret: WithSecret,
    /// The type of the event
    #[arg(long = "type", default_value = "user.created")]
    kind: String,
    /// A configuration with [egress] and [signature]; without it any address may be called
    #[arg(long, short)]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Token {
    /// The token's name
    #[arg(long, value_parser = token_file::name_of)]
    name: String,
    /// A workspace that the token covers, or *; repeat for several
    #[arg(long = "workspace", required = true)]
    workspaces: Vec<String>,
    /// A scope of the token; repeat for several
    #[arg(long = "scope", required = true, value_parser = scope)]
    scopes: Vec<Scope>,
    #[command(flatten)]
    from: ConfigArgs,
}

impl CliCommand {
    /// Runs the command, and returns the exit code.
    #[must_use]
    pub fn execute(self) -> u8 {
        match self.action {
            Action::Run(from) => match app::run(config(&from)) {
                Ok(()) => 0,
                Err(error @ RunError::Configuration(_)) => fail(EXIT_USAGE, &error.to_string()),
                Err(error) => fail(EXIT_FAILURE, &format!("weir-dispatcher: {error}")),
            },
            Action::Check { from, online } => check::check(&config(&from), online),
            Action::Listen(receive) => report(receive.execute()),
            Action::Verify(verify) => report(verify.execute()),
            Action::SendTest(send) => match send.config() {
                Ok((settings, catalogue)) => report(send.execute(&settings, &catalogue)),
                Err(diagnostics) => refuse(&diagnostics),
            },
            Action::Forecast(forecast) => match forecast.api {
                Some(api) => report(forecast.execute(api)),
                None => by_settings(&forecast.from, |read| forecast.execute(read.server.api)),
            },
            Action::Backup { from, to } => by_settings(&from, |settings| copy(settings, &to)),
            Action::Restore { from, backup, replace } => {
                by_settings(&from, |settings| put_back(settings, &backup, replace))
            }
            Action::RotateKey(KeyArgs { from, dry_run }) => {
                by_settings(&from, |settings| rotate_key(settings, dry_run))
            }
            Action::RecoverKey(KeyArgs { from, dry_run }) => {
                match config(&from).load(&Clock::system()) {
                    Ok(active) => report(recover_key(&active, dry_run, &Clock::system())),
                    Err(diagnostics) => refuse(&diagnostics),
                }
            }
            Action::Token(token) => match token.execute() {
                Ok(text) => print(&text),
                Err(why) => fail(EXIT_USAGE, &why),
            },
            Action::Schema { file } => {
                let nothing = Document::new("", "");
                let schema = match file.as_str() {
                    "tokens" => Tokens::read_with_schema(&nothing, &IdForm::workspace()).1,
                    "directory" => Directory::read_with_schema(&nothing, &IdForm::workspace()).1,
                    "events" => Catalogue::read(&nothing).schema,
                    _ => read::read(&nothing).schema,
                };
                print(&format!("{schema:#}"))
            }
            Action::Completions { shell } => completions::<Self>(shell),
        }
    }
}

fn config(from: &ConfigArgs) -> Config {
    Config::new(from.file(USUAL))
}

/// Runs a command that needs the settings, and returns the exit code.
fn by_settings(from: &ConfigArgs, act: impl FnOnce(&Settings) -> Result<String, String>) -> u8 {
    match config(from).load(&Clock::system()) {
        Ok(active) => report(act(&active.settings)),
        Err(diagnostics) => refuse(&diagnostics),
    }
}

impl WithSecret {
    fn secret(self) -> Result<Secret<String>, String> {
        let secret = match (self.secret, self.secret_file) {
            (Some(secret), _) => Secret::new(secret),
            (None, Some(file)) => secret(&file)?,
            (None, None) => return Err("a secret is needed: --secret-file or --secret".to_owned()),
        };
        if !secret.expose().starts_with(SECRET_PREFIX) {
            return Err(format!(
                "a webhook's secret begins with {SECRET_PREFIX}; this one does not"
            ));
        }
        Ok(secret)
    }
}

impl Receive {
    fn execute(self) -> Result<String, String> {
        let listen = Listen {
            address: self.address,
            key: self.key.key()?,
            header: self.header,
            answer: self.forward.map_or(Answering::Status(self.status), Answering::Forward),
            delay: self.delay,
            clock: Clock::system(),
        };
        let ended = runtime()?.block_on(listen.run());
        ended
            .map(|()| String::new())
            .map_err(|why| format!("cannot listen on {}: {why}", self.address))
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    span_of(text).ok_or_else(|| "write a time with its unit, such as 3s or 500ms".to_owned())
}

impl SendTest {
    /// The settings and the catalogue of the named configuration.
    fn config(&self) -> Result<(Settings, Catalogue), Vec<Diagnostic>> {
        let Some(path) = &self.config else { return Ok((anywhere(), Catalogue::shipped())) };
        Config::new(ConfigFile::new(Some(path.clone()), USUAL))
            .load(&Clock::system())
            .map(|active| (active.settings, active.catalogue))
    }

    fn execute(self, settings: &Settings, catalogue: &Catalogue) -> Result<String, String> {
        let event = match catalogue.find(&self.kind) {
            Some(entry) => TestEvent { kind: entry.kind, data: entry.example.clone() },
            None if self.kind == EventType::PING.name() => TestEvent::ping(),
            None => {
                let known = catalogue.names().join(", ");
                return Err(format!("unknown type `{}`; known: {known}", self.kind));
            }
        };
        let clock = Clock::system();
        let rules = Arc::new(Rules::system(settings.egress.clone()));
        let client = DeliveryClient::new(&settings.egress, rules.clone(), clock.clone());
        let client = client.map_err(|why| why.to_string())?;
        let url = rules.canonical(&self.url)?;
        let webhook = TestWebhook { url, secret: self.secret.secret()? };
        let sending = listen::send_test(webhook, &client, &settings.signature, &event, &clock);
        let response = runtime()?.block_on(sending);
        match response.outcome {
            Outcome::Delivered { status } => Ok(format!("delivered: {status}")),
            other => {
                let why = response.trace.reason.map_or(other.in_words(), Reason::in_words);
                Err(format!("not delivered: {other}: {why}"))
            }
        }
    }
}

impl Token {
    fn execute(self) -> Result<String, String> {
        // A token can be created before a configuration exists: then the defaults apply.
        let config = config(&self.from);
        let is_missing = config.file.path().is_some_and(|path| !path.exists());
        let is_missing = self.from.config.is_none() && is_missing;
        let config = if is_missing { Config::built_in() } else { config };
        let form = config.workspaces().map_err(|diagnostics| lines(&diagnostics))?;
        let mut names = self.workspaces.iter();
        if let Some(name) = names.find(|name| *name != "*" && !form.allows(name)) {
            return Err(format!("a workspace is * or {form}, not `{name}`; {PREFIX_REMEDY}"));
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|why| why.to_string())?;
        let (token, entry) = token_file::entry(&self.name, &self.workspaces, &self.scopes, random);
        Ok(format!("{token}\n\n# add to the file of tokens (auth.tokens):\n{entry}"))
    }
}

fn scope(text: &str) -> Result<Scope, String> {
    let found = Scope::ALL.into_iter().find(|scope| scope.name() == text);
    found.ok_or_else(|| format!("known: {}", Scope::ALL.map(Scope::name).join(", ")))
}

/// The default settings with every address allowed: the user of a command line can call any address
/// directly.
fn anywhere() -> Settings {
    let mut settings = read::read(&Document::new("", "")).made;
    settings.egress.allow_http = true;
    settings.egress.ports = Vec::new();
    settings.egress.allow_networks = ["0.0.0.0/0", "::/0"]
        .into_iter()
        .map(|network| network.parse().expect("the text above is a network"))
        .collect();
    settings
}
