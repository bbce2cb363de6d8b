//! Third-party HTTP/2 clients: nghttp, h2load and curl.

use std::process::Command;

use weir_tests::answer::Answer;
use weir_tests::real;

use super::Edge;

#[test]
fn h2load_has_no_request_fail() {
    let edge = Edge::new();
    edge.world.control.always(Answer::ok("hello"));
    for (n, clients, streams) in [("200", "1", "1"), ("2000", "4", "25"), ("2000", "8", "100")] {
        let output = run(&edge, "h2load", &["-n", n, "-c", clients, "-m", streams]);
        let all = format!("{n} total, {n} started, {n} done, {n} succeeded, 0 failed, 0 errored");
        assert!(output.contains(&all), "{output}");
        assert!(output.contains(&format!("{n} 2xx, 0 3xx, 0 4xx, 0 5xx")), "{output}");
    }
}

#[test]
fn h2load_loses_no_request_where_connections_end_after_so_many() {
    let edge = Edge::with(|config| config.with("[server]", "requests_per_connection_max = 150"));
    // As many requests as one connection may have, because h2load opens no second one.
    let output = run(&edge, "h2load", &["-n", "1200", "-c", "8", "-m", "10"]);
    assert!(output.contains("1200 succeeded, 0 failed, 0 errored"), "{output}");
}

#[test]
fn nghttp_and_curl_upload_and_read_their_responses() {
    let edge = Edge::new();
    let body = edge.world.gateway.folder().write("body", &"x".repeat(300_000));
    let body = body.display().to_string();
    let output = run(&edge, "nghttp", &["-v", "-n", "-d", &body, "--trailer", "x-sum: 1"]);
    assert!(output.contains(":status: 405"), "{output}");
    let mut curl = Command::new("curl");
    let url = format!("https://api.localhost:{}/v1/me", port(&edge));
    curl.args(["-sS", "--http2", "--cacert", &edge.authority.path("ca.crt"), "--data-binary"]);
    curl.args([&format!("@{body}"), "-w", " %{http_version} %{http_code}"]);
    curl.args(["--resolve", &format!("api.localhost:{}:127.0.0.1", port(&edge)), &url]);
    assert_eq!(real::run(&mut curl).expect(0).stdout, "hello 2 200");
    assert_eq!(edge.world.control.last().body.len(), 300_000);
}

fn port(edge: &Edge) -> &str {
    edge.address.rsplit(':').next().unwrap()
}

/// The output of a tool for `/healthz`.
#[track_caller]
fn run(edge: &Edge, tool: &str, arguments: &[&str]) -> String {
    let url = format!("https://127.0.0.1:{}/healthz", port(edge));
    let mut command = Command::new(tool);
    command.args(arguments).args(["-H", ":authority: api.localhost", &url]);
    let finished = real::run(&mut command);
    assert_eq!(finished.code, Some(0), "{}", finished.output());
    finished.output()
}
