//! The configuration that a test's program starts with, and a test's changes to it.
//!
//! It is kept as text, so that a test can also write invalid configuration.

use std::fmt;

/// The directory most tests use: two organisations, each plan, one instance of each.
pub const DIRECTORY: &str = r#"
[organisations.org_acme]
[organisations.org_globex]

[workspaces.ws_acme]
organisation = "org_acme"
plan = "free"
owners = ["owner@acme.example"]
[workspaces.ws_quiet]
organisation = "org_acme"
plan = "free"
[workspaces.ws_big]
organisation = "org_globex"
plan = "enterprise"
[workspaces.ws_special]
organisation = "org_globex"
plan = "enterprise"
limits.workspace = { requests = 7 }

[instances.in_acme]
workspace = "ws_acme"
[instances.in_special]
workspace = "ws_special"
domains = ["login.special.example"]
limits.instance = { rate = 1, burst = 9 }
"#;

const SECTIONS: &[(&str, &str)] = &[
    (
        "[server]",
        r#"
        http = ["127.0.0.1:0"]
        admin = "127.0.0.1:0"
        threads = 2
        trusted_proxies = []
        head_timeout = "10s"
        body_timeout = "30s"
        idle_timeout = "60s"
        connections_max = 20_000
        shutdown_grace = "30s"
        "#,
    ),
    ("[store]", "kind = \"memory\"\nmax_keys = 1_000_000"),
    ("[planes.control]", r#"hosts = ["api.localhost"]"#),
    ("[planes.data]", r#"hosts = ["{instance}.auth.localhost"]"#),
    ("[directory]", "source = \"file\"\npath = \"directory.toml\"\nunknown = \"own_key\""),
    ("[identity]", r#"verify = "none""#),
    // Port 9 is the discard service, usually closed; `World` replaces it with real addresses.
    ("[upstreams.control]", r#"servers = ["127.0.0.1:9"]"#),
    ("[upstreams.data]", r#"servers = ["127.0.0.1:9"]"#),
    ("[upstreams.dispatcher]", r#"servers = ["127.0.0.1:9"]"#),
    (
        "[limits.workspace]",
        "key = \"workspace\"\nalgorithm = \"rolling_window\"\nrequests = 60\nwindow = \"1m\"",
    ),
    (
        "[limits.organisation]",
        "key = \"organisation\"\nalgorithm = \"rolling_window\"\nrequests = 600\nwindow = \"1m\"",
    ),
    (
        "[limits.instance]",
        "key = \"instance\"\nalgorithm = \"token_bucket\"\nrate = 50\nburst = 200",
    ),
    (
        "[limits.batch]",
        "key = \"workspace\"\nalgorithm = \"rolling_window\"\nrequests = 5\nwindow = \"1m\"",
    ),
    (
        "[limits.address]",
        "key = \"address\"\nalgorithm = \"rolling_window\"\nrequests = 60\nwindow = \"1m\"",
    ),
    (
        "[limits.refused]",
        "key = \"address\"\nalgorithm = \"rolling_window\"\nrequests = 600\nwindow = \"1m\"",
    ),
    ("[plans.free]", ""),
    ("[plans.pro]", "per_instance_limits = true"),
    ("[plans.enterprise]", "per_instance_limits = true\nlimits.workspace = { requests = 600 }"),
    (
        "[[routes]]",
        r#"
        plane = "control"
        methods = ["GET", "HEAD"]
        path = "/healthz"
        exempt = true
        upstream = "control"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        methods = ["GET", "HEAD"]
        path = "/assets/{*rest}"
        exempt = true
        upstream = "dispatcher"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        methods = ["POST"]
        path = "/v1/workspaces/{workspace}/tenants:batch"
        limits = ["batch"]
        batch_items_max = 100
        body_bytes_max = "1MiB"
        upstream = "control"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        path = "/v1/workspaces/{workspace}/webhooks/{*rest}"
        limits = ["workspace", "organisation"]
        upstream = "dispatcher"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        path = "/v1/workspaces/{workspace}/deliveries/{*rest}"
        limits = ["workspace", "organisation"]
        upstream = "dispatcher"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        path = "/v1/workspaces/{workspace}/{*rest}"
        limits = ["workspace", "organisation"]
        upstream = "control"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        path = "/v1/organisations/{organisation}/{*rest}"
        limits = ["organisation"]
        upstream = "control"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "control"
        path = "/v1/{*rest}"
        limits = ["address"]
        upstream = "control"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "data"
        methods = ["GET", "HEAD"]
        path = "/.well-known/openid-configuration"
        exempt = true
        upstream = "data"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "data"
        methods = ["GET", "HEAD"]
        path = "/oauth/v2/keys"
        exempt = true
        upstream = "data"
        "#,
    ),
    (
        "[[routes]]",
        r#"
        plane = "data"
        path = "/{*rest}"
        limits = ["instance"]
        upstream = "data"
        "#,
    ),
];

/// A configuration file, section by section.
#[derive(Clone, Debug)]
pub struct Config {
    sections: Vec<Section>,
}

#[derive(Clone, Debug)]
struct Section {
    header: String,
    lines: Vec<String>,
}

impl Config {
    /// These sections, each a header and its lines.
    pub fn of(sections: &[(&str, &str)]) -> Self {
        let section = |(header, lines): &(&str, &str)| Section::new(header, lines);
        Self { sections: sections.iter().map(section).collect() }
    }

    /// Sets lines of a section, each `key = value`. A missing section is added; a `[[section]]` is
    /// always added.
    pub fn with(mut self, header: &str, lines: &str) -> Self {
        let known = self.sections.iter().position(|section| section.header == header);
        let Some(at) = known.filter(|_| !header.starts_with("[[")) else {
            self.sections.push(Section::new(header, lines));
            return self;
        };
        for line in Section::new(header, lines).lines {
            self.sections[at].set(line);
        }
        self
    }

    /// Replaces a line in all sections; for routes, which share one header.
    #[track_caller]
    pub fn replacing(mut self, line: &str, by: &str) -> Self {
        let lines = self.sections.iter_mut().flat_map(|section| &mut section.lines);
        let found: Vec<&mut String> = lines.filter(|known| *known == line).collect();
        assert!(!found.is_empty(), "no line reads {line}");
        for known in found {
            by.clone_into(known);
        }
        self
    }

    /// Removes a section.
    pub fn without(mut self, header: &str) -> Self {
        self.sections.retain(|section| section.header != header);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::of(SECTIONS)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(out, "{}", section.header)?;
            for line in &section.lines {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}

impl Section {
    fn new(header: &str, lines: &str) -> Self {
        let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
        Self { header: header.to_owned(), lines: lines.map(str::to_owned).collect() }
    }

    fn set(&mut self, line: String) {
        let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        match self.lines.iter_mut().find(|old| key(old) == key(&line)) {
            Some(old) => *old = line,
            None => self.lines.push(line),
        }
    }
}
