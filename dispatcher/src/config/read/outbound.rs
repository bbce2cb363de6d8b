//! Parses the options of deliveries: signature, egress, retry schedule, health, operators.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use url::Url;
use weir_common::config::document::span_of;
use weir_common::config::document::table::Table;
use weir_common::limit::rolling;

use crate::config::read::{count, long, span, wait};
use crate::config::settings::{
    AttemptSettings, Egress, KeptAnswers, OperatorSettings, ProxyAddress, Signature,
};
use crate::domain::health::Policy;
use crate::domain::port::is_blocked;
use crate::domain::retry::{Mode, Schedule};
use crate::domain::transcript::BODY_BYTES_MAX;

/// Headers that deliveries already have, or that HTTP itself uses.
const RESERVED_HEADERS: [&str; 19] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

const HEADER: &str = "service-signature";

/// The default schedule, as the documents write it.
const DELAYS: [&str; 8] = ["1m", "5m", "30m", "2h", "6h", "12h", "24h", "48h"];

/// The range of a delay; more than a year is a typing error.
const DELAY: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(365 * 86_400);

pub(super) fn signature(table: &mut Table<'_>) -> Signature {
    let name = table.text("header", "The name of the signature header.");
    table.set_default("header", "Service-Signature".into());
    let header = name.and_then(|name| {
        let header = HeaderName::from_bytes(name.value.as_bytes());
        let header = header
            .map_err(|_| format!("signature.header must be a header name, not `{}`", name.value));
        let free = header.and_then(|header| {
            let reserved = RESERVED_HEADERS.contains(&header.as_str());
            let message = || {
                let used = "deliveries already use this header for something else";
                format!("signature.header cannot be `{}`: {used}", name.value)
            };
            if reserved { Err(message()) } else { Ok(header) }
        });
        free.map_err(|message| table.fault_at(name.at, message)).ok()
    });
    Signature {
        header: header.unwrap_or(HeaderName::from_static(HEADER)),
        standard_webhooks: table.flag(
            "standard_webhooks",
            true,
            "Also send the headers of Standard Webhooks: webhook-id, -timestamp, -signature.",
        ),
    }
}

pub(super) fn egress(table: &mut Table<'_>) -> Egress {
    let window = Duration::from_millis(1)..=rolling::WINDOW_MAX;
    let requests = table.number_or(
        "requests",
        1..=rolling::EXACT_MAX.into(),
        100,
        "Rate limit: requests that an endpoint gets at most within any window.",
    );
    let egress = Egress {
        deadline: wait(
            table,
            "deadline",
            "10s",
            "Timeout of an attempt, from its start to the response headers.",
        ),
        requests: u32::try_from(requests).unwrap_or(rolling::EXACT_MAX),
        window: span(table, "window", window, "1m", "The sliding window of the rate limit."),
        host_multiple: u32::try_from(table.number_or(
            "host_multiple",
            1..=1_000_000,
            10,
            "A workspace's attempts per host: this many times `requests`, 65536 at most.",
        ))
        .unwrap_or(u32::MAX),
        in_flight_max: count(
            table,
            "in_flight_max",
            1..=1_000_000,
            4_096,
            "Attempts in flight, in total; each uses a socket.",
        ),
        allow_http: table.flag("allow_http", false, "Also allow http://, which is not encrypted."),
        allow_networks: networks(table),
        ports: ports(table),
        extra_ca: table
            .text("extra_ca", "A file of CA certificates, trusted in addition to the system's."),
        source: sources(table),
        proxy: proxy(table),
        proxy_credentials: None,
        proxy_credentials_file: table.text(
            "proxy_credentials_file",
            "A file whose first line is `user:password` for the proxy.",
        ),
        client_certificate: table.text(
            "client_certificate",
            "A PEM file with the certificates that receivers verify, the leaf first.",
        ),
        client_key: table.text("client_key", "A PEM file with the private key of it."),
    };
    if egress.client_certificate.is_some() != egress.client_key.is_some() {
        table.fault("egress.client_certificate and egress.client_key belong together: give both");
    }
    if let (None, Some(file)) = (&egress.proxy, &egress.proxy_credentials_file) {
        table.fault_at(file.at, "egress.proxy_credentials_file needs egress.proxy");
    }
    let one = egress.in_flight_per_endpoint();
    if egress.in_flight_max < one {
        table.fault(format!(
            "egress.in_flight_max is {}; it must be at least {one}, the most that one endpoint \
             that never answers can use (requests \u{d7} deadline \u{f7} window)",
            egress.in_flight_max
        ));
    }
    egress
}

fn sources(table: &mut Table<'_>) -> Vec<IpAddr> {
    let doc = "The local addresses to call from, one of each family; empty lets the system choose.";
    let texts = table.texts("source", doc);
    table.set_default("source", Vec::<String>::new().into());
    let mut sources: Vec<IpAddr> = Vec::new();
    for text in texts {
        match text.value.parse::<IpAddr>() {
            Err(_) => table.fault_at(text.at, format!("`{}` is not an address", text.value)),
            Ok(one) if one.is_unspecified() || one.is_multicast() || one.to_canonical() != one => {
                table.fault_at(text.at, format!("`{}` is no address to call from", text.value));
            }
            Ok(one) if sources.iter().any(|other| other.is_ipv4() == one.is_ipv4()) => table
                .fault_at(text.at, "egress.source has a second address of its family: give one"),
            Ok(one) => sources.push(one),
        }
    }
    sources
}

fn proxy(table: &mut Table<'_>) -> Option<ProxyAddress> {
    let text =
        table.text("proxy", "host:port of an HTTP proxy; every receiver is called by it.")?;
    let url = Url::parse(&format!("http://{}", text.value)).ok();
    let parsed = url.as_ref().and_then(|url| {
        let plain = url.username().is_empty() && url.password().is_none() && url.path() == "/";
        let (_, port) = text.value.rsplit_once(':').filter(|_| plain)?;
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        Some(ProxyAddress { host, port: port.parse().ok().filter(|port| *port > 0)? })
    });
    if parsed.is_none() {
        table.fault_at(text.at, "egress.proxy must be host:port, as \"proxy.internal:3128\"");
    }
    parsed
}

fn networks(table: &mut Table<'_>) -> Vec<IpNet> {
    let networks = table.networks("allow_networks", "Private networks that may be called.");
    table.set_default("allow_networks", Vec::<String>::new().into());
    networks
}

fn ports(table: &mut Table<'_>) -> Vec<u16> {
    let doc = "Ports that may be called; empty allows any but those that browsers block.";
    let given = table.numbers("ports", 1..=65_535, doc);
    table.set_default("ports", Vec::<u16>::new().into());
    let ports: Vec<u16> = given.iter().filter_map(|port| u16::try_from(port.value).ok()).collect();
    for port in ports.iter().filter(|port| is_blocked(**port)) {
        table.fault(format!("egress.ports has {port}, which browsers block and nothing can allow"));
    }
    ports
}

pub(super) fn retry(table: &mut Table<'_>) -> Schedule {
    let mode = table.choice(
        "mode",
        &[("delay", Mode::Delay), ("offset", Mode::Offset)],
        "What delays count from. delay: the previous failure; offset: the first attempt.",
    );
    let given = table.spans("delays", DELAY, "The delay after each failure; the last one repeats.");
    table.set_default("delays", DELAYS.to_vec().into());
    let give_up_after = long(
        table,
        "give_up_after",
        "48h",
        "Time from the first attempt to the last; pauses do not count.",
    );
    let retry_after_max = long(
        table,
        "retry_after_max",
        "1h",
        "The longest Retry-After of a receiver that is honoured.",
    );
    if table.has("delays") && given.is_empty() {
        table.fault("retry.delays must list at least one time, such as [\"1m\"]");
    }
    if mode == Mode::Offset {
        for (one, next) in given.iter().zip(given.iter().skip(1)) {
            if next.value <= one.value {
                let message =
                    "retry.mode is \"offset\": each delay must be longer than the one before";
                table.fault_at(next.at, message);
            }
        }
    }
    let contract = || DELAYS.into_iter().filter_map(span_of).collect();
    let delays: Vec<_> = given.into_iter().map(|delay| delay.value).collect();
    let delays = if delays.is_empty() { contract() } else { delays };
    Schedule { mode, delays, give_up_after, retry_after_max }
}

pub(super) fn attempts(table: &mut Table<'_>) -> AttemptSettings {
    let default = AttemptSettings::default();
    let answers = [("failed", KeptAnswers::Failed), ("all", KeptAnswers::All)];
    let bytes = table.bytes_or(
        "answer_bytes_max",
        0..=BODY_BYTES_MAX as u64,
        default.answer_bytes_max as u64,
        "The most of an answer's body that is kept.",
    );
    AttemptSettings {
        answers: table.choice(
            "answers",
            &answers,
            "Whose headers and answers are kept. failed: failed attempts; all: every attempt.",
        ),
        answer_bytes_max: usize::try_from(bytes).unwrap_or(BODY_BYTES_MAX),
        private_answers: table.flag(
            "private_answers",
            default.private_answers,
            "Also keep those of egress.allow_networks: owners can then read what answers there.",
        ),
    }
}

pub(super) fn health(table: &mut Table<'_>) -> Policy {
    Policy {
        warn_share: table.share_or(
            "warn_share",
            0.05,
            "A share of failures above this warns the owners.",
        ),
        warn_for: wait(
            table,
            "warn_for",
            "30m",
            "How long the share must stay above it, and the period that it is measured over.",
        ),
        pause_after: long(
            table,
            "pause_after",
            "24h",
            "Deliveries pause after this long without a 2xx.",
        ),
    }
}

pub(super) fn operator(table: &mut Table<'_>) -> Option<OperatorSettings> {
    let url = table.text("url", "The URL that events for operators are sent to. Unset: none.");
    table.hide("url");
    let doc = "A file whose first line is the key that signs them; reloaded when it changes.";
    let secret_file = table.text("secret_file", doc);
    let opt_out = table.texts("opt_out", "Workspaces that no event is about.");
    table.set_default("opt_out", Vec::<String>::new().into());
    if let (Some(url), Some(secret_file)) = (&url, &secret_file) {
        let (url, secret_file) = (url.clone(), secret_file.clone());
        return Some(OperatorSettings { url, endpoint: None, secret_file, opt_out });
    }
    if url.is_some() || secret_file.is_some() {
        table.fault("operator.url and operator.secret_file must both be set, or neither");
    }
    None
}

#[cfg(test)]
mod tests {
    use weir_common::limit::rolling;

    use crate::config::read::tests::check;

    #[test]
    fn a_reserved_or_invalid_signature_header_is_refused() {
        let settings = check("[signature]\nheader = \"Acme-Signature\"", &[]);
        assert_eq!(settings.signature.header, "acme-signature");
        let used = "deliveries already use this header for something else";
        for name in ["Content-Type", "host", "Webhook-Id", "webhook-signature"] {
            check(
                &format!("[signature]\nheader = \"{name}\""),
                &[&format!("d:2:10: signature.header cannot be `{name}`: {used}")],
            );
        }
        let message = "d:2:10: signature.header must be a header name, not `a b`";
        check("[signature]\nheader = \"a b\"", &[message]);
    }

    #[test]
    fn networks_are_ranges_or_addresses() {
        let text = "[egress]\nallow_networks = [\"10.0.0.0/8\", \"::1\", \"lan\"]";
        let expected = ["d:2:40: `lan` is not a network, such as \"10.0.0.0/8\""];
        let shown: Vec<_> =
            check(text, &expected).egress.allow_networks.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.0/8", "::1/128"]);
    }

    #[test]
    fn ports_are_listed_to_allow_fewer_and_none_that_browsers_block() {
        assert!(check("", &[]).egress.ports.is_empty());
        assert_eq!(check("[egress]\nports = [443, 8443]", &[]).egress.ports, [443, 8443]);
        let blocked = "egress.ports has 25, which browsers block and nothing can allow";
        check("[egress]\nports = [443, 25]", &[&format!("d:1:1: {blocked}")]);
        let wrong = "d:2:10: egress.ports must be a list of whole numbers from 1 to 65535, not 0";
        check("[egress]\nports = [0]", &[wrong]);
    }

    #[test]
    fn a_workspaces_limit_at_a_host_is_one_that_can_be_counted() {
        let most = |text| check(text, &[]).egress.per_host().requests;
        assert_eq!(most("[egress]\nrequests = 6553"), 65_530);
        assert_eq!(most("[egress]\nrequests = 6554"), rolling::EXACT_MAX);
        assert_eq!(most("[egress]\nhost_multiple = 1000000"), rolling::EXACT_MAX);
    }

    #[test]
    fn one_endpoint_cannot_use_every_slot() {
        let full = "egress.in_flight_max is 16; it must be at least 17, the most that one endpoint \
            that never answers can use (requests × deadline ÷ window)";
        check("[egress]\nin_flight_max = 16", &[&format!("d:1:1: {full}")]);
        check("[egress]\nin_flight_max = 17", &[]);
    }

    #[test]
    fn an_endpoint_has_as_many_in_flight_as_start_within_a_deadline() {
        let most = |text| check(text, &[]).egress.in_flight_per_endpoint();
        assert_eq!(most(""), 17);
        assert_eq!(most("[egress]\nrequests = 10\nwindow = \"1s\""), 100);
        assert_eq!(most("[egress]\nrequests = 1000\nwindow = \"1s\""), 4_096, "and no more");
        assert_eq!(most("[egress]\nwindow = \"1h\""), 1);
    }

    #[test]
    fn delays_are_not_empty_and_offsets_grow() {
        let none = "d:1:1: retry.delays must list at least one time, such as [\"1m\"]";
        check("[retry]\ndelays = []", &[none]);
        check("[retry]\nmode = \"delay\"\ndelays = [\"2m\", \"1m\"]", &[]);
        check(
            "[retry]\nmode = \"offset\"\ndelays = [\"2m\", \"1m\"]",
            &["d:3:17: retry.mode is \"offset\": each delay must be longer than the one before"],
        );
    }

    #[test]
    fn events_for_operators_need_a_url_and_a_secret() {
        let all = "[operator]\nurl = \"https://ops.example.com/\"\nsecret_file = \"secret\"\n\
                   opt_out = [\"ws_test\"]";
        let operator = check(all, &[]).operator.expect("all of it is there");
        assert_eq!(
            (&*operator.secret_file.value, &*operator.opt_out[0].value),
            ("secret", "ws_test")
        );
        assert_eq!(check("[operator]", &[]).operator, None);
        let both = "d:1:1: operator.url and operator.secret_file must both be set, or neither";
        for half in all.lines().skip(1).take(2) {
            check(&format!("[operator]\n{half}"), &[both]);
        }
        assert_eq!(check("[operator]\nopt_out = [\"ws_test\"]", &[]).operator, None);
    }

    #[test]
    fn retry_after_is_honoured_up_to_an_hour_by_default() {
        let hour = std::time::Duration::from_secs(3_600);
        assert_eq!(check("", &[]).retry.retry_after_max, hour);
        let text = "[retry]\nretry_after_max = \"1d\"";
        assert_eq!(check(text, &[]).retry.retry_after_max, 24 * hour);
    }
}
