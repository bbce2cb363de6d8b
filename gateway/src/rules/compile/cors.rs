//! Compiles planes and their CORS settings, and reports origins and headers that no browser sends.

use http::HeaderName;

use crate::request::cors::{Cors, OPAQUE, check_origin};
use crate::rules::Plane;
use crate::rules::compile::Checker;
use crate::settings::cors::RawCors;

impl Checker<'_> {
    pub(super) fn planes(&self) -> Vec<Plane> {
        for cors in self.raw.planes.iter().filter_map(|(_, plane)| plane.cors.as_ref()) {
            self.origins(cors);
            self.request_headers(cors);
        }
        let planes = self.raw.planes.iter();
        planes
            .map(|(name, plane)| Plane {
                name: name.value.clone(),
                cors: plane.cors.as_ref().map(Cors::new),
            })
            .collect()
    }

    fn origins(&self, cors: &RawCors) {
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

    fn request_headers(&self, cors: &RawCors) {
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
