//! Which URLs and addresses we may call.

use crate::settings::Egress;

/// What an operator allows.
#[derive(Clone, Debug)]
pub struct Rules {
    egress: Egress,
}

impl Rules {
    /// As these settings have it.
    #[must_use]
    pub fn new(egress: Egress) -> Self {
        Self { egress }
    }

    /// The canonical form of a URL that may be called, or why it may not.
    pub fn canonical(&self, text: &str) -> Result<url::Url, String> {
        let _ = (&self.egress, text);
        unimplemented!()
    }

    /// Refuses a URL whose host has an address that may not be called; one that does not resolve
    /// yet is let in.
    pub async fn admit(&self, url: &url::Url) -> Result<(), String> {
        let _ = (&self.egress, url);
        unimplemented!()
    }
}
