//! Reads the files of the configuration, and checks them together.
//!
//! # Not here
//!
//! What their keys mean (`config`), what is done with them (`live_config`).

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;

use weir_common::config::document::{Diagnostic, Document, Parsed, Spanned};
use weir_common::config::file::ConfigFile;
use weir_common::config::shown_certificate::ShownCertificate;
use weir_common::config::{files, watch};
use weir_common::identifier::IdForm;
use weir_common::identity::verifier::IdentityFiles;
use weir_common::time::Clock;

use super::directory::LoadedDirectory;
use super::limits_client::LimitsClient;
use super::theme::Theme;
use super::{ActiveConfig, ConfigOrigin};
use crate::auth::Callers;
use crate::auth::token_file::Tokens;
use crate::catalogue::{self, Catalogue};
use crate::config::read;
use crate::config::settings::{OperatorEndpoint, OperatorSettings, Settings};
use crate::delivery::client::DeliveryClient;
use crate::delivery::egress::Rules;
use crate::delivery::egress::resolver::Names;
use crate::delivery::http_client::ClientError;
use crate::delivery::signature::{SECRET_FORM, is_secret};

/// The example configuration (`--demo`): the files that ship.
const SHIPPED: &str = include_str!("../../../config/dispatcher.toml");
const SHIPPED_TOKENS: &str = include_str!("../../../config/tokens.toml");

/// The default of `--config`.
pub const USUAL: &str = "config/dispatcher.toml";

/// The location of the configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings file, which names the others.
    pub file: ConfigFile,
    /// The cache of resolved names, which survives a reload.
    names: Arc<Names>,
}

impl Config {
    /// The configuration in `file`, with an empty cache of names.
    #[must_use]
    pub fn new(file: ConfigFile) -> Self {
        Self { file, names: Names::system() }
    }

    /// The built-in example.
    #[must_use]
    pub fn built_in() -> Self {
        Self::new(ConfigFile::built_in(USUAL))
    }

    /// The form of workspace identifiers; or the errors of the files that lead to it.
    pub fn workspaces(&self) -> Result<IdForm, Vec<Diagnostic>> {
        let text = self.file.read(SHIPPED).map_err(|diagnostic| vec![diagnostic])?;
        let document = Document::new(&self.file.name(), &text);
        let settings = read::read(&document).made;
        let (of_events, _) = self.events(&document, &settings);
        let catalogue = Catalogue::read(&of_events).made;
        let diagnostics: Vec<_> =
            [&document, &of_events].into_iter().flat_map(Document::diagnostics).collect();
        if diagnostics.is_empty() { Ok(catalogue.identifiers.workspaces) } else { Err(diagnostics) }
    }

    /// The event catalogue's document, and its text.
    fn events(&self, document: &Document, settings: &Settings) -> (Document, String) {
        let (name, text) = match &settings.events.file {
            Some(file) => {
                let text = self.file.beside(document, file, "events.file", catalogue::SHIPPED);
                // One that cannot be read is an error of the settings, and has none of its own.
                (file.value.as_str(), text.unwrap_or_else(|| catalogue::SHIPPED.to_owned()))
            }
            None => ("built-in events.toml", catalogue::SHIPPED.to_owned()),
        };
        (Document::new(name, &text), text)
    }

    /// Reads and checks all files; or returns every error.
    pub fn load(&self, clock: &Clock) -> Result<ActiveConfig, Vec<Diagnostic>> {
        let text = self.file.read(SHIPPED).map_err(|diagnostic| vec![diagnostic])?;
        let document = Document::new(&self.file.name(), &text);
        let Parsed { made: mut settings, effective, .. } = read::read(&document);
        // Before the files are read: the next reload reads one again that is replaced meanwhile.
        let stamp = |file: Option<&Spanned<String>>| {
            file.and_then(|file| watch::stamp(Path::new(&file.value)))
        };
        let egress_files = settings.egress.files().map(|(_, file)| stamp(Some(file))).collect();
        let password = stamp(settings.password_file());
        let dashboard_files = settings.dashboard_files().map(stamp);
        let (of_events, events_text) = self.events(&document, &settings);
        let catalogue = Catalogue::read(&of_events).made;
        let workspaces = &catalogue.identifiers.workspaces;
        let tokens_text =
            self.file.beside(&document, &settings.auth.tokens, "auth.tokens", SHIPPED_TOKENS);
        let LoadedDirectory { document: of_directory, text: directory_text, entries, client } =
            LoadedDirectory::new(&settings.directory, &self.file, &document, workspaces);
        let key = "server.admin_token_file";
        let token = settings.server.admin_token_file.as_ref();
        let admin_token = token.and_then(|file| files::bearer_token(&file.value, key, &document));
        read_passwords(&mut settings, &document);
        let tokens_text = tokens_text.unwrap_or_default();
        let of_tokens = Document::new(&settings.auth.tokens.value, &tokens_text);
        let tokens = Tokens::read(&of_tokens, workspaces);
        let egress = Arc::new(Rules::new(settings.egress.clone(), self.names.clone()));
        if let Some(operator) = &mut settings.operator {
            operator.endpoint = operator_endpoint(operator, &egress, workspaces, &document);
        }
        let deliveries = delivery_client(&settings, &egress, clock, &document);
        let limits = limits_client(&settings, &document);
        let theme = settings.dashboard.as_ref().map(|pages| Theme::read(pages, &document));
        let identity = IdentityFiles::read(&settings.identity.settings, &document);
        let diagnostics = [&document, &of_events, &of_tokens, &of_directory];
        let diagnostics: Vec<Diagnostic> =
            diagnostics.into_iter().flat_map(Document::diagnostics).collect();
        let operator = settings.operator_endpoint().cloned();
        let texts = [text, events_text, tokens_text, directory_text];
        let origin = ConfigOrigin {
            texts,
            admin_token,
            egress_files,
            password,
            dashboard_files,
            operator,
            identity,
            directory: client,
            effective,
        };
        match deliveries {
            Some(client) if diagnostics.is_empty() => {
                let client = Arc::new(client);
                let callers = Callers::new(tokens, entries);
                let certificate = settings.egress.client_certificate.as_ref();
                Ok(ActiveConfig {
                    certificate: certificate.and_then(|file| ShownCertificate::read(&file.value)),
                    settings,
                    catalogue,
                    callers,
                    egress,
                    client,
                    remote_owners: None,
                    limits,
                    theme,
                    origin,
                })
            }
            _ => Err(diagnostics),
        }
    }
}

/// The client of attempts; or the errors of `[egress]` that only a try shows.
fn delivery_client(
    settings: &Settings,
    egress: &Arc<Rules>,
    clock: &Clock,
    document: &Document,
) -> Option<DeliveryClient> {
    for source in &settings.egress.source {
        if let Err(why) = UdpSocket::bind((*source, 0)) {
            document.fault(0, format!("egress.source: cannot call from {source}: {why}"));
        }
    }
    let client = DeliveryClient::new(&settings.egress, Arc::clone(egress), clock.clone());
    let report = |why: ClientError| {
        let (at, what) = match &why {
            ClientError::File { key, .. } => (settings.egress.place_of(key), *key),
            ClientError::Tls(_) | ClientError::Build(_) => (0, "cannot set up TLS"),
        };
        document.fault(at, format!("{what}: {why}"));
    };
    client.map_err(report).ok()
}

/// Reads limits at the gateway, if pages show them.
fn limits_client(settings: &Settings, document: &Document) -> Option<LimitsClient> {
    let client = LimitsClient::new(settings.limits()?.clone());
    client.map_err(|why| document.fault(0, format!("cannot set up TLS: {why}"))).ok()
}

/// Reads the passwords of the mail server and of the proxy, and the token for the gateway.
fn read_passwords(settings: &mut Settings, document: &Document) {
    if let Some(mail) = &mut settings.mail
        && let Some(file) = &mail.password_file
    {
        mail.password = files::secret(&file.value, "mail.password_file", document);
    }
    let limits = settings.dashboard.as_mut().and_then(|dashboard| dashboard.limits.as_mut());
    if let Some(limits) = limits
        && let Some(file) = &limits.token_file
    {
        limits.token = files::bearer_token(&file.value, "dashboard.limits_token_file", document);
    }
    if let Some(file) = &settings.egress.proxy_credentials_file {
        let key = "egress.proxy_credentials_file";
        let credentials = files::secret(&file.value, key, document);
        if credentials.as_ref().is_some_and(|text| !text.expose().contains(':')) {
            document.fault(file.at, format!("{key}: the first line must be user:password"));
        }
        settings.egress.proxy_credentials = credentials;
    }
}

/// Where events for operators are sent; or the errors of `[operator]`.
fn operator_endpoint(
    operator: &OperatorSettings,
    egress: &Rules,
    workspaces: &IdForm,
    document: &Document,
) -> Option<OperatorEndpoint> {
    for id in operator.opt_out.iter().filter(|id| !workspaces.allows(&id.value)) {
        let why = format!("operator.opt_out: `{}` must be {workspaces}", id.value);
        document.fault(id.at, why);
    }
    let refused = |why| document.fault(operator.url.at, format!("operator.url: {why}"));
    let url = egress.canonical(&operator.url.value).map_err(refused).ok();
    let (file, key) = (&operator.secret_file, "operator.secret_file");
    let secret = files::secret(&file.value, key, document)?;
    if !is_secret(secret.expose()) {
        document.fault(file.at, format!("the first line of `{}` {SECRET_FORM}", file.value));
        return None;
    }
    Some(OperatorEndpoint { url: url?.as_str().into(), secret })
}
