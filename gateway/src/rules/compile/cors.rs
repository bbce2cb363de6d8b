//! Finds origins and headers that no browser ever sends, and makes of the rest what each plane
//! says to browsers.

use http::HeaderName;

use crate::request::cors::{Cors, OPAQUE, check_origin};
use crate::rules::compile::Checker;
use crate::settings;

impl Checker<'_> {
    /// By plane.
    pub(super) fn cors(&self) -> Vec<Option<Cors>> {
        let planes = self.settings.planes.iter().map(|(_, plane)| plane.cors.as_ref());
        planes
            .map(|cors| {
                let cors = cors?;
                self.origins(cors);
                self.request_headers(cors);
                Some(Cors::new(cors))
            })
            .collect()
    }

    fn origins(&self, cors: &settings::Cors) {
        for origin in &cors.origins {
            let fault = |text: String| self.document.fault(origin.at, text);
            match origin.value.as_str() {
                "*" if cors.origins.len() > 1 => {
                    fault("\"*\" allows every origin: it must be the only one".to_owned());
                }
                "*" => {}
                OPAQUE if cors.credentials => fault(
                    "\"null\" is not allowed with credentials: any page can have that origin"
                        .to_owned(),
                ),
                OPAQUE => {}
                text => {
                    if let Err(why) = check_origin(text) {
                        fault(why);
                    }
                }
            }
        }
    }

    fn request_headers(&self, cors: &settings::Cors) {
        for name in &cors.headers {
            let fault = |text: String| self.document.fault(name.at, text);
            if name.value == "*" {
                fault("\"*\" is not a header: leave `headers` out to allow any".to_owned());
            } else if HeaderName::try_from(name.value.as_str()).is_err() {
                fault(format!("`{}` is not a header's name", name.value));
            }
        }
    }
}
