//! Validates a URL, and converts its spellings to one canonical form.
//!
//! # Invariants
//!
//! 1. The canonical form of a canonical form is itself.
//! 2. A URL that the parser would silently repair (tabs, backslashes, missing or extra slashes,
//!    escapes in a host) is refused: another parser might read it differently.
//! 3. Path and query stay byte for byte as they were sent, except for dot segments, which are
//!    resolved, and for characters not allowed in HTTP, which are percent-encoded.
//!
//! Not here: which addresses may be called (`address`), name resolution (`egress`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::config::settings::Egress;
use crate::delivery::egress::address;
use crate::domain::port;

/// Longer than real URLs, shorter than what servers refuse.
pub(crate) const URL_BYTES_MAX: usize = 2 * 1024;

/// The longest DNS name, and its longest label.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// The canonical form of an allowed URL, or the error with its remedy.
pub fn canonical(text: &str, egress: &Egress) -> Result<Url, String> {
    check_spelling(text, egress)?;
    let mut url = Url::parse(text).map_err(|e| format!("The URL cannot be parsed: {e}."))?;
    // One spelling per endpoint: its rate limit is counted by URL.
    let plain = match url.host() {
        Some(Host::Ipv6(six)) => six.to_ipv4_mapped().map(|four| four.to_string()),
        Some(Host::Domain(name)) => {
            name.strip_suffix('.').filter(|plain| !plain.is_empty()).map(str::to_owned)
        }
        Some(Host::Ipv4(_)) | None => None,
    };
    if let Some(host) = plain {
        url.set_host(Some(&host)).map_err(|e| format!("The host cannot be parsed: {e}."))?;
    }
    check(&url, egress)?;
    check_length(url.as_str())?;
    Ok(url)
}

/// Whether a canonical URL may be called: its scheme, host and port.
pub(super) fn check(url: &Url, egress: &Egress) -> Result<(), String> {
    check_scheme(url.scheme(), egress)?;
    match url.host() {
        None => return Err("The URL has no host.".to_owned()),
        Some(Host::Ipv4(four)) => check_address(four.into(), egress)?,
        Some(Host::Ipv6(six)) => check_address(six.into(), egress)?,
        Some(Host::Domain(name)) => check_name(name, egress)?,
    }
    port::check(url.port_or_known_default().unwrap_or_default(), &egress.ports)
}

fn check_scheme(scheme: &str, egress: &Egress) -> Result<(), String> {
    let allowed: &[&str] = if egress.allow_http { &["https", "http"] } else { &["https"] };
    if allowed.iter().any(|one| one.eq_ignore_ascii_case(scheme)) {
        return Ok(());
    }
    Err(format!("The URL must begin with {}://.", allowed.join(":// or ")))
}

fn check_spelling(text: &str, egress: &Egress) -> Result<(), String> {
    check_length(text)?;
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if let Some(odd) = text.chars().find(|c| odd(*c)) {
        return Err(format!("The URL contains {odd:?}; percent-encode it, or remove it."));
    }
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    check_scheme(scheme, egress)?;
    if rest.contains('#') {
        return Err("The URL has a fragment, which is never sent; remove it.".to_owned());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        let what = "The URL has a user or a password (@); remove them: deliveries are signed.";
        return Err(what.to_owned());
    }
    if authority.contains('%') {
        return Err("The host is percent-encoded; write it plainly.".to_owned());
    }
    if authority.is_empty() || authority.starts_with(':') {
        return Err("The URL has no host.".to_owned());
    }
    Ok(())
}

fn check_length(text: &str) -> Result<(), String> {
    if text.len() > URL_BYTES_MAX {
        let bytes = text.len();
        return Err(format!("The URL has {bytes} bytes; at most {URL_BYTES_MAX} are allowed."));
    }
    Ok(())
}

/// Whether an address in a URL may be called.
pub(super) fn check_address(address: IpAddr, egress: &Egress) -> Result<(), String> {
    match address::forbidden(address, &egress.allow_networks) {
        None => Ok(()),
        Some(why) => {
            Err(format!("The host {address} is {why}; deliveries go to public addresses only."))
        }
    }
}

fn check_name(name: &str, egress: &Egress) -> Result<(), String> {
    let is_valid = |label: &str| !label.is_empty() && label.len() <= LABEL_BYTES_MAX;
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(is_valid) {
        return Err("The host is not a valid DNS name; check its dots.".to_owned());
    }
    // RFC 6761: these names are this machine, whatever a resolver returns.
    if name == "localhost" || name.ends_with(".localhost") {
        return check_address(Ipv4Addr::LOCALHOST.into(), egress)
            .or_else(|_| check_address(Ipv6Addr::LOCALHOST.into(), egress))
            .map_err(|_| {
                "The host is this machine; deliveries go to public addresses only.".to_owned()
            });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn egress() -> Egress {
        crate::delivery::egress::tests::egress(&[])
    }

    fn read(text: &str) -> Result<String, String> {
        canonical(text, &egress()).map(String::from)
    }

    #[test]
    fn every_spelling_of_an_allowed_url_has_one_canonical_form() {
        let spellings = [
            ("https://example.com", "https://example.com/"),
            ("https://example.com/", "https://example.com/"),
            ("HTTPS://EXAMPLE.com/Path", "https://example.com/Path"),
            ("https://example.com:443/x", "https://example.com/x"),
            ("https://example.com:0443/x", "https://example.com/x"),
            ("https://example.com:/x", "https://example.com/x"),
            ("https://example.com:8443/x", "https://example.com:8443/x"),
            ("https://example.com./x", "https://example.com/x"),
            ("https://example.com.:8443/x", "https://example.com:8443/x"),
            ("https://example.com/a/../b/./c", "https://example.com/b/c"),
            ("https://example.com/a/%2e%2E/b", "https://example.com/b"),
            ("https://example.com/%7Ea%2fb%2F", "https://example.com/%7Ea%2fb%2F"),
            ("https://example.com/a//b;c=d", "https://example.com/a//b;c=d"),
            ("https://example.com?a=b&a=%20+@", "https://example.com/?a=b&a=%20+@"),
            ("https://example.com/?", "https://example.com/?"),
            ("https://example.com/@user:x", "https://example.com/@user:x"),
            (
                "https://example.com/a:b?c=https://[::1]/",
                "https://example.com/a:b?c=https://[::1]/",
            ),
            ("https://example.com/ä", "https://example.com/%C3%A4"),
            ("https://example.com/{id}", "https://example.com/%7Bid%7D"),
            ("https://bücher.example/", "https://xn--bcher-kva.example/"),
            ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
            ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
            ("https://ｅｘａｍｐｌｅ。com/", "https://example.com/"),
            ("https://example｡com/", "https://example.com/"),
            ("https://exa\u{ad}mple.com/", "https://example.com/"),
            ("https://a_b.example.com/", "https://a_b.example.com/"),
            ("https://8.8.8.8/", "https://8.8.8.8/"),
            ("https://134744072/", "https://8.8.8.8/"),
            ("https://0x8080808/", "https://8.8.8.8/"),
            ("https://010.010.010.010/", "https://8.8.8.8/"),
            ("https://8.8.2056/", "https://8.8.8.8/"),
            ("https://8.8.8.8./", "https://8.8.8.8/"),
            ("https://[::ffff:8.8.8.8]/", "https://8.8.8.8/"),
            ("https://[0:0:0:0:0:ffff:808:808]/", "https://8.8.8.8/"),
            ("https://[2606:4700:4700:0:0:0:0:1111]/", "https://[2606:4700:4700::1111]/"),
            ("https://[64:ff9b::8.8.8.8]/", "https://[64:ff9b::808:808]/"),
        ];
        for (text, expected) in spellings {
            let once = read(text);
            assert_eq!(once.as_deref(), Ok(expected), "{text}");
            assert_eq!(read(expected).as_deref(), Ok(expected), "again: {text}");
        }
    }

    fn check_refused(reason: &str, hosts: &[&str]) {
        for host in hosts {
            let text = format!("https://{host}/hook");
            let why = read(&text).expect_err(&text);
            assert!(why.contains(reason), "{text}: {why}");
        }
    }

    #[test]
    fn no_spelling_of_a_private_v4_address_is_accepted() {
        check_refused(
            "public addresses only",
            &[
                "127.0.0.1",
                "127.1",
                "127.0.1",
                "127.255.255.254",
                "2130706433",
                "0x7f000001",
                "0x7F.0x0.0x0.0x1",
                "0x7f.1",
                "017700000001",
                "0177.0.0.1",
                "0177.0.0.01",
                "00000177.0.0.1",
                "127.0.0.1.",
                "127.1.",
                "0x7f.1.",
                "0",
                "0x",
                "0.0.0.0",
                "00",
                "10.0.0.1",
                "10.1",
                "0xa.0.0.1",
                "012.0.0.1",
                "167772161",
                "100.64.0.1",
                "169.254.169.254",
                "169.254.43518",
                "2852039166",
                "0xa9fea9fe",
                "0xA9.0xFE.0xA9.0xFE",
                "0251.0376.0251.0376",
                "0251.254.169.254",
                "172.16.0.1",
                "172.31.255.255",
                "192.168.1.1",
                "192.168.257",
                "3232235777",
                "192.0.0.192",
                "198.18.0.1",
                "203.0.113.7",
                "224.0.0.1",
                "255.255.255.255",
                "4294967295",
                "168.63.129.16",
                "１２７.０.０.１",
                "①②⑦.⓪.⓪.①",
                "127。0。0。1",
                "127．0．0．1",
                "127｡0｡0｡1",
                "１６９。２５４。１６９。２５４",
                "0Ｘ7f.1",
                "127.0.0.\u{ad}1",
                "127.0.0.1:443",
                "127.0.0.1:8443",
                "127.0.0.1:22",
            ],
        );
    }

    #[test]
    fn no_spelling_of_a_private_v6_address_is_accepted() {
        check_refused(
            "public addresses only",
            &[
                "[::]",
                "[0:0:0:0:0:0:0:0]",
                "[::1]",
                "[0:0:0:0:0:0:0:1]",
                "[0000:0000:0000:0000:0000:0000:0000:0001]",
                "[::0.0.0.1]",
                "[::127.0.0.1]",
                "[::7f00:1]",
                "[::ffff:127.0.0.1]",
                "[::FFFF:7f00:1]",
                "[0:0:0:0:0:ffff:7f00:0001]",
                "[::ffff:10.0.0.1]",
                "[::ffff:169.254.169.254]",
                "[::ffff:a9fe:a9fe]",
                "[::ffff:0:127.0.0.1]",
                "[64:ff9b::127.0.0.1]",
                "[64:ff9b::a9fe:a9fe]",
                "[64:ff9b::0a00:1]",
                "[64:ff9b:1::8.8.8.8]",
                "[2002:7f00:1::]",
                "[2002:a9fe:a9fe::1]",
                "[2002:808:808::1]",
                "[2001::1]",
                "[2001:0:53aa:64c:0:0:80ff:fffe]",
                "[2001:db8::1]",
                "[2001:10::1]",
                "[3fff::1]",
                "[5f00::1]",
                "[100::1]",
                "[fc00::1]",
                "[fd00:ec2::254]",
                "[fe80::1]",
                "[fe80::5efe:192.168.0.1]",
                "[2a00::5efe:192.168.0.1]",
                "[2a00::200:5efe:7f00:1]",
                "[fec0::1]",
                "[ff02::1]",
                "[::1]:8443",
                "[4000::1]",
            ],
        );
    }

    #[test]
    fn this_machine_and_invalid_names_are_refused() {
        let here = ["localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost:8443"];
        check_refused("this machine", &here);
        check_refused("this machine", &["ｌｏｃａｌｈｏｓｔ", "ⓛocalhost", "local\u{ad}host"]);
        check_refused("valid DNS name", &["example..com", ".example.com", "example.com..", "."]);
        let long = format!("{}example.com", "abcdefghi.".repeat(25));
        check_refused("valid DNS name", &[&"a".repeat(64), &long]);
        check_refused("has no host", &["", ":443"]);
    }

    #[test]
    fn urls_that_two_parsers_could_read_differently_are_refused() {
        let at = ["user@example.com", "user:pw@example.com", "@example.com", ":@example.com"];
        check_refused("user or a password", &at);
        let at = ["example.com@127.0.0.1", "127.0.0.1@example.com", "a@b@c", "x:443@[::1]"];
        check_refused("user or a password", &at);
        check_refused("percent-encoded", &["%31%32%37.0.0.1", "example%2ecom", "%6cocalhost"]);
        check_refused("percent-encoded", &["[fe80::1%25eth0]", "[::1%1]", "example.com%00.x"]);
        check_refused(
            "The URL contains",
            &["exa\tmple.com", "127.0.0.1\n", "a b", "a\r\n", "a\0b"],
        );
        check_refused(
            "The URL contains",
            &["example.com\\@127.0.0.1", "\\\\127.0.0.1", "a\u{a0}b"],
        );
        check_refused("The URL contains", &["example.com/\u{7f}", "a\u{2028}", "a\u{85}b"]);
        check_refused("fragment", &["example.com#", "example.com/#@x", "127.0.0.1#.example.com"]);
        check_refused("cannot be parsed", &["[::1", "[::1]x", "[1.2.3.4]", "1.2.3.4.5", "0x1g.1"]);
        check_refused("cannot be parsed", &["256.256.256.256", "4294967296", "1::1", "[:::1]"]);
        check_refused("has no host", &["::1"]);
        check_refused("cannot be parsed", &["example.com:x", "example.com:65536", "＠127.0.0.1"]);
    }

    #[test]
    fn only_the_schemes_and_ports_of_the_settings_are_accepted() {
        for text in [
            "http://example.com/",
            "http:/\\example.com",
            "https:example.com",
            "https:/example.com",
            "https//example.com",
            "//example.com",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com/",
            "javascript://example.com/",
            " https://example.com/",
            "https ://example.com/",
            "",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("https:///example.com/").is_err());
        assert!(read("https:////127.0.0.1/").is_err());
        let ports = ["example.com:80", "example.com:8080"];
        check_refused("use one of 443, 8443", &ports);
        check_refused("browsers block", &["example.com:0", "example.com:22"]);

        let free = Egress { allow_http: true, ports: vec![], ..egress() };
        assert!(canonical("http://example.com:8080/", &free).is_ok());
        for port in [0, 25, 6000] {
            assert!(canonical(&format!("http://example.com:{port}/"), &free).is_err(), "{port}");
        }
        let plain = canonical("http://example.com:80/", &free).map(String::from);
        assert_eq!(plain.as_deref(), Ok("http://example.com/"));
        let http = Egress { allow_http: true, ..egress() };
        let why = canonical("http://example.com/", &http).expect_err("80 is not among them");
        assert!(why.contains("port 80"), "{why}");
    }

    #[test]
    fn a_url_is_at_most_two_kibibytes_long_in_either_form() {
        let long = |bytes: usize, with: &str| {
            format!("https://example.com/{}", with.repeat((bytes - 20) / with.len()))
        };
        assert!(read(&long(2048, "a")).is_ok());
        assert!(read(&long(2049, "a")).is_err());
        assert!(read(&long(1000, "ä")).is_err(), "it is three times as long once encoded");
    }

    #[test]
    fn an_allowed_network_is_allowed_by_host_name_as_well() {
        let here = crate::delivery::egress::tests::egress(&["127.0.0.0/8"]);
        for text in ["https://127.0.0.1/", "https://localhost/", "https://0x7f.1/"] {
            assert!(canonical(text, &here).is_ok(), "{text}");
        }
        assert!(canonical("https://10.0.0.1/", &here).is_err());
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_its_own(
            host in "[a-zA-Z0-9.x-]{1,12}|\\[[0-9a-f:.]{2,12}\\]",
            rest in "(:[0-9]{1,4})?[/?][ -~äß]{0,20}",
        ) {
            let open = Egress {
                ports: vec![],
                allow_networks: vec!["0.0.0.0/0".parse().expect("a network")],
                ..egress()
            };
            if let Ok(once) = canonical(&format!("https://{host}{rest}"), &open) {
                prop_assert_eq!(canonical(once.as_str(), &open), Ok(once));
            }
        }
    }
}
