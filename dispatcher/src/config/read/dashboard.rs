//! Parses the options of the dashboard.
//!
//! Invariant: text in the operator's accent is as readable as the other text of the pages.

use std::time::Duration;

use url::{Host, Url};
use weir_common::config::document::table::Table;
use weir_common::config::trusted_url::check_url;

use crate::config::read::long;
use crate::config::settings::{DashboardSettings, LIMITS_WORKSPACE, LimitsSettings};
use crate::domain::contrast::{Color, TEXT_MIN};

/// The path that the pages have: routes of the gateway lead there.
const PATH: &str = "/dashboard";

/// What accents are written on: a page and a card, light and dark, as the stylesheet has them.
const LIGHT: [Color; 2] = [Color::new([0xff, 0xff, 0xff]), Color::new([0xf6, 0xf7, 0xf9])];
const DARK: [Color; 2] = [Color::new([0x10, 0x14, 0x18]), Color::new([0x17, 0x1c, 0x22])];

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
        // `*` is valid in a host, and stands for all hosts in the policy of a page.
        let is_origin = is_origin && !one.value.contains('*');
        if !is_origin {
            let message = "dashboard.frame_origins must list origins: https://host, with :port \
                unless it is 443";
            table.fault_at(one.at, format!("{message}, not `{}`", one.value));
        }
    }
    let doc = "The colour of links and buttons: #rrggbb.";
    let accent = accent(table, "accent", "#1f5fbf", LIGHT, doc);
    let doc = "The same where readers prefer dark pages.";
    let accent_dark = self::accent(table, "accent_dark", "#7fb2ff", DARK, doc);
    let doc = "An SVG or PNG file of at most 32 KiB, shown above each page.";
    let logo = table.text("logo", doc);
    let limits = limits(table);
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
        accent,
        accent_dark,
        logo,
        limits,
    })
}

/// A colour that can be read on all of `under`.
fn accent(
    table: &mut Table<'_>,
    key: &'static str,
    default: &'static str,
    under: [Color; 2],
    doc: &'static str,
) -> Color {
    let usual = Color::read(default).expect("the defaults are colours");
    let given = table.text(key, doc);
    table.set_default(key, default.into());
    let Some(given) = given else { return usual };
    let Some(color) = Color::read(&given.value) else {
        let message = format!("dashboard.{key} must be #rrggbb, not `{}`", given.value);
        table.fault_at(given.at, message);
        return usual;
    };
    let hard = under.into_iter().find(|under| color.contrast(*under) < TEXT_MIN);
    if let Some(under) = hard {
        let contrast = color.contrast(under);
        let message = format!(
            "dashboard.{key}: text in {color} cannot be read well on {under}: its contrast is \
             {contrast:.1}, and must be {TEXT_MIN} or more"
        );
        table.fault_at(given.at, message);
    }
    color
}

/// Where the limits of a workspace are read.
fn limits(table: &mut Table<'_>) -> Option<LimitsSettings> {
    let doc = "A route of the gateway with answer = \"limits\", with {workspace} in its path: \
        pages show what it says.";
    let url = table.text("limits_url", doc);
    let doc = "The token for `limits_url`: the file's first line.";
    let token_file = table.text("limits_token_file", doc);
    let Some(url) = url else {
        if let Some(file) = token_file {
            table.fault_at(file.at, "dashboard.limits_token_file needs dashboard.limits_url");
        }
        return None;
    };
    let is_url = Url::parse(&url.value)
        .is_ok_and(|parsed| matches!(parsed.scheme(), "http" | "https") && parsed.has_host());
    if !is_url || url.value.matches(LIMITS_WORKSPACE).count() != 1 {
        let message = "dashboard.limits_url must be a URL with {workspace} in its path";
        table.fault_at(url.at, format!("{message}, not `{}`", url.value));
    } else if token_file.is_some() {
        check_url(table, "limits_url", &url, "name a file with the token in limits_token_file");
    }
    Some(LimitsSettings { url: url.value, token_file, token: None })
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
    fn an_accent_is_a_color_that_can_be_read() {
        let check = |lines: &str| check(&format!("{lines}\nurl = \"https://a.test/dashboard\""));
        assert!(check("accent = \"#7a1fa2\"\naccent_dark = \"#e0b0ff\"").starts_with("https:"));
        for (wrong, message) in [
            ("accent = \"red\"", "dashboard.accent must be #rrggbb, not `red`"),
            ("accent = \"#ffcc00\"", "cannot be read well on #ffffff: its contrast is 1.5"),
            ("accent_dark = \"#1f5fbf\"", "dashboard.accent_dark: text in #1f5fbf cannot be read"),
        ] {
            let found = check(wrong);
            assert!(found.contains(message), "{found}");
        }
    }

    #[test]
    fn limits_are_read_at_a_url_with_a_place_for_the_workspace() {
        let check = |lines: &str| check(&format!("{lines}\nurl = \"https://a.test/dashboard\""));
        assert!(
            check("limits_url = \"http://gw:1/v1/workspaces/{workspace}/limits\"")
                .starts_with("https:")
        );
        for wrong in ["http://gw/limits", "gw/{workspace}", "ftp://gw/{workspace}"] {
            let found = check(&format!("limits_url = \"{wrong}\""));
            assert!(found.contains("dashboard.limits_url must be a URL"), "{found}");
        }
        let sent = check("limits_url = \"http://gw:1/{workspace}\"\nlimits_token_file = \"token\"");
        assert!(sent.contains("`limits_url` must start with https://"), "{sent}");
        let alone = check("limits_token_file = \"token\"");
        assert!(alone.contains("needs dashboard.limits_url"), "{alone}");
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
