//! Tests of the CORS headers of responses and preflights, and of invalid origins.

use std::time::Duration;

use weir_common::config::document::Spanned;

use crate::request::cors::*;

const APP: &str = "https://app.example.com";

fn cors(origins: &[&str], credentials: bool, headers: &[&str]) -> Cors {
    let texts = |texts: &[&str]| {
        texts.iter().map(|text| Spanned { value: (*text).to_owned(), at: 0 }).collect()
    };
    Cors::new(&RawCors {
        origins: texts(origins),
        credentials,
        headers: texts(headers),
        max_age: Duration::from_secs(600),
    })
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(*name, value.parse().unwrap());
    }
    map
}

/// The CORS header lines of a response of the gateway to a request with these origins.
fn answered(cors: &Cors, origins: &[&str]) -> String {
    let fields: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
    cors.lines(&headers(&fields), &[])
}

/// The response to a preflight, for a path that accepts GET and PUT.
fn preflight(cors: &Cors, fields: &[(&'static str, &str)]) -> Option<String> {
    let map = headers(fields);
    let requested = Preflight::read(&Method::OPTIONS, &map)?;
    cors.preflight(&requested, &[Method::GET, Method::PUT])
}

#[test]
fn an_allowed_origin_is_echoed_with_the_headers_it_may_read() {
    assert_eq!(
        answered(&cors(&["https://b.test", APP], true, &[]), &[APP]),
        format!(
            "Vary: Origin\r\nAccess-Control-Allow-Origin: {APP}\r\n\
             Access-Control-Allow-Credentials: true\r\n\
             Access-Control-Expose-Headers: {EXPOSED}\r\n"
        )
    );
}

#[test]
fn any_other_origin_gets_nothing_but_vary() {
    let cors = cors(&[APP], true, &[]);
    for origins in [
        vec![],
        vec!["null"],
        vec!["https://evil.test"],
        vec!["https://app.example.com.evil.test"],
        vec!["http://app.example.com"],
        vec!["https://app.example.com:8443"],
        vec!["https://APP.example.com"],
        vec!["https://app.example.co"],
        vec!["https://app.example.com "],
        vec![APP, "https://evil.test"],
        vec![APP, APP],
    ] {
        assert_eq!(answered(&cors, &origins), "Vary: Origin\r\n", "{origins:?}");
    }
}

#[test]
fn where_all_may_read_the_response_depends_on_no_origin() {
    let cors = cors(&["*"], false, &[]);
    let same =
        format!("Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: {EXPOSED}\r\n");
    for origins in [vec![], vec!["null"], vec![APP]] {
        assert_eq!(answered(&cors, &origins), same, "{origins:?}");
    }
}

#[test]
fn a_preflight_gets_the_methods_of_the_path_and_the_headers_allowed() {
    let requested = [
        ("origin", APP),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "authorization,x-own"),
    ];
    let answer = |headers: &str| {
        format!(
            "Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n\
             Access-Control-Allow-Origin: {APP}\r\n\
             Access-Control-Allow-Methods: GET, PUT\r\n\
             Access-Control-Allow-Headers: {headers}\r\n\
             Access-Control-Max-Age: 600\r\n"
        )
    };
    let any = cors(&[APP], false, &[]);
    let some = cors(&[APP], false, &["Authorization", "Content-Type"]);
    assert_eq!(preflight(&any, &requested).unwrap(), answer("authorization,x-own"));
    assert_eq!(preflight(&some, &requested).unwrap(), answer("Authorization, Content-Type"));
    assert!(!preflight(&any, &requested[..2]).unwrap().contains("Allow-Headers"));
}

#[test]
fn what_is_no_preflight_of_an_allowed_origin_is_not_answered() {
    let cors = cors(&[APP], false, &[]);
    let method = ("access-control-request-method", "PUT");
    let names = "access-control-request-headers";
    assert!(preflight(&cors, &[("origin", APP), method]).is_some());
    for fields in [
        vec![method],
        vec![("origin", APP)],
        vec![("origin", "null"), method],
        vec![("origin", "https://evil.test"), method],
        vec![("origin", APP), method, method],
        vec![("origin", APP), ("access-control-request-method", "P UT")],
        vec![("origin", APP), method, (names, "a b")],
        vec![("origin", APP), method, (names, "")],
        vec![("origin", APP), method, (names, "a"), (names, "b")],
    ] {
        assert_eq!(preflight(&cors, &fields), None, "{fields:?}");
    }
    let map = headers(&[("origin", APP), method]);
    assert_eq!(Preflight::read(&Method::GET, &map), None);
}

#[test]
fn an_origin_that_no_browser_sends_is_reported() {
    for good in [
        APP,
        "http://localhost:3000",
        "http://127.0.0.1:5173",
        "http://[::1]:3000",
        "https://[2001:db8::1]",
        "capacitor://localhost",
        "chrome-extension://abcdefghijklmnopabcdefghijklmnop",
        "https://xn--bcher-kva.example",
        "http://app.example.com:443",
    ] {
        assert_eq!(check_origin(good), Ok(()), "{good}");
    }
    for (bad, word) in [
        ("app.example.com", "scheme"),
        ("https://", "scheme"),
        ("https:///", "path"),
        ("https://app.example.com/", "slash"),
        ("https://app.example.com/a", "path"),
        ("https://user@app.example.com", "host"),
        ("https://App.example.com", "lower case"),
        ("HTTPS://app.example.com", "lower case"),
        ("https://app.example.com:443", "leave the port out"),
        ("http://app.example.com:80", "leave the port out"),
        ("https://app.example.com:", "port"),
        ("https://app.example.com:0", "port"),
        ("https://app.example.com:08443", "port"),
        ("https://app.example.com:65536", "port"),
        ("https://*.example.com", "scheme"),
        ("https://bücher.example", "scheme"),
        ("https://[::0001]", "scheme"),
        ("https://::1", "scheme"),
        ("https://999.1.1.1", "scheme"),
        ("1https://a.test", "scheme"),
    ] {
        let why = check_origin(bad).unwrap_err();
        assert!(why.contains(word), "{bad}: {why}");
    }
}
