//! Parses the options of the dashboard.

use std::time::Duration;

use url::{Host, Url};
use weir_common::config::document::table::Table;

use crate::config::read::long;
use crate::config::settings::DashboardSettings;

/// The path that the pages have: routes of the gateway lead there.
const PATH: &str = "/dashboard";

pub(super) fn dashboard(table: &mut Table<'_>) -> Option<DashboardSettings> {
    let doc = "Where browsers reach it: https://host/dashboard. Unset: no dashboard.";
    let url = table.text("url", doc);
    let doc = "How long a session lasts.";
    let session_expires = long(table, "session_expires", "12h", doc);
    let doc = "How long a link opens a session, once.";
    let link_expires = long(table, "link_expires", "10m", doc);
    let doc = "Origins whose pages may show it in a frame, such as \"https://app.example.com\".";
    let frames = table.texts("frame_origins", doc);
    table.set_default("frame_origins", Vec::<String>::new().into());
    for one in &frames {
        let is_origin = Url::parse(&one.value)
            .is_ok_and(|url| url.origin().ascii_serialization() == one.value && is_safe(&url));
        if !is_origin {
            let message = "dashboard.frame_origins must list origins: https://host, with :port \
                unless it is 443";
            table.fault_at(one.at, format!("{message}, not `{}`", one.value));
        }
    }
    let url = url?;
    let parsed = Url::parse(&url.value).ok().filter(|parsed| {
        let plain = parsed.query().is_none() && parsed.fragment().is_none();
        let anonymous = parsed.username().is_empty() && parsed.password().is_none();
        plain && anonymous && is_safe(parsed) && parsed.path() == PATH
    });
    let Some(parsed) = parsed else {
        let message = "dashboard.url must be https://host/dashboard, or http:// on this machine";
        table.fault_at(url.at, format!("{message}, not `{}`", url.value));
        return None;
    };
    let origin = parsed.origin().ascii_serialization();
    Some(DashboardSettings {
        url: format!("{origin}{PATH}"),
        origin,
        session_expires: session_expires.max(Duration::from_secs(1)),
        link_expires,
        frame_origins: frames.into_iter().map(|one| one.value).collect(),
    })
}

/// Whether a cookie stays secret on the way: by TLS, or on this machine.
fn is_safe(url: &Url) -> bool {
    let is_local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_local)
}

#[cfg(test)]
mod tests {
    use weir_common::config::document::Document;

    use crate::config::read::read;

    /// The URL and the origin of this `[dashboard]`, or the first error.
    fn check(table: &str) -> String {
        let document = Document::new("t.toml", &format!("[dashboard]\n{table}"));
        let settings = read(&document).made;
        match (document.diagnostics().first(), settings.dashboard) {
            (Some(error), _) => error.to_string(),
            (None, Some(found)) => format!("{} {}", found.url, found.origin),
            (None, None) => "none".to_owned(),
        }
    }

    #[test]
    fn the_url_is_https_or_on_this_machine_and_ends_where_routes_lead() {
        assert_eq!(check(""), "none");
        assert_eq!(
            check("url = \"https://API.example.com:443/dashboard\""),
            "https://api.example.com/dashboard https://api.example.com"
        );
        assert_eq!(
            check("url = \"http://api.localhost:8080/dashboard\""),
            "http://api.localhost:8080/dashboard http://api.localhost:8080"
        );
        for wrong in [
            "http://api.example.com/dashboard",
            "https://api.example.com",
            "https://api.example.com/dashboard/",
            "https://api.example.com/dashboard?a",
            "https://user@api.example.com/dashboard",
            "javascript:alert(1)",
            "/dashboard",
        ] {
            let found = check(&format!("url = \"{wrong}\""));
            assert!(found.contains("dashboard.url must be"), "{wrong}: {found}");
        }
    }

    #[test]
    fn only_origins_may_frame() {
        assert_eq!(check("frame_origins = [\"https://app.example.com\"]"), "none");
        for wrong in ["*", "https://app.example.com/", "http://app.example.com", "app.example.com"]
        {
            let found = check(&format!("frame_origins = [\"{wrong}\"]"));
            assert!(found.contains("must list origins"), "{wrong}: {found}");
        }
    }
}
