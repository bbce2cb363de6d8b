//! What an attempt needs of its webhook. (core)
//!
//! Not here: the webhook itself (`webhooks`), the attempt (`attempts`).

use std::sync::Arc;

use url::Url;

use crate::domain::webhook::client_certificate::ClientCertificate;
use crate::domain::webhook::headers::CustomHeaders;
use crate::domain::webhook::secrets::Secrets;

/// The part of a webhook that an attempt needs.
#[derive(Debug)]
pub struct Target {
    /// The workspace.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Url,
    /// The signing keys.
    pub secrets: Arc<Secrets>,
    /// The headers that its owner adds.
    pub headers: CustomHeaders,
    /// Whether the answers of successful attempts are kept, whatever the setting.
    pub all_answers: bool,
    /// Shown to receivers that verify their clients, instead of the platform's.
    pub client_certificate: Option<ClientCertificate>,
}
