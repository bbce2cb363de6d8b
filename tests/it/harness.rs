//! Tests of the harness itself: it sends and records exactly the bytes that cross the wire.

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::mailbox::Mailbox;
use weir_tests::process::Process;
use weir_tests::receiver::{Receiver, generous, hostile, sign, sign_standard};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::{timestamp, wait};

#[test]
fn an_upstream_keeps_every_byte_and_the_connection() {
    let upstream = Upstream::start();
    let mut client = Client::connect(&upstream.address());
    assert_eq!(client.exchange("GET /%2F  HTTP/1.1\r\nhOST:  x \r\n\r\n").body, b"hello");
    let chunked = Request::post("/b", "").chunks(&["ab", "cde"]);
    assert_eq!(client.call(&chunked).status, 200);

    let seen = upstream.seen();
    assert_eq!(seen.connections.len(), 1);
    assert!(seen.connections[0].starts_with(b"GET /%2F  HTTP/1.1\r\nhOST:  x \r\n\r\nPOST"));
    assert_eq!(seen.requests[0].target(), b"/%2F ");
    assert_eq!(seen.requests[1].body, b"abcde");
    assert!(seen.requests[1].complete);
}

#[test]
fn an_upstream_waits_at_a_gate_and_shows_what_it_received() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let begun = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
    upstream.always(begun.wait(&gate).send("cd"));
    let mut client = Client::connect(&upstream.address());
    client.send("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nx");
    let so_far = upstream.wait("a byte of the body", |seen| {
        seen.requests.first().filter(|request| !request.body.is_empty()).cloned()
    });
    assert_eq!((so_far.body.as_slice(), so_far.complete), (b"x".as_slice(), false));
    client.send("y");
    assert!(client.read_until("ab").starts_with(b"HTTP/1.1 200"));
    gate.open();
    client.read_until("cd");
}

#[test]
fn an_upstream_hangs_up_resets_stops_and_restarts_on_its_port() {
    let mut upstream = Upstream::start();
    let address = upstream.address();
    upstream.always(Answer::script().close());
    let mut client = Client::connect(&address);
    client.send("GET / HTTP/1.1\r\n\r\n");
    client.expect_end();

    upstream.always(Answer::script().reset());
    let mut client = Client::connect(&address);
    client.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.try_read().unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);

    upstream.stop();
    assert!(Client::try_connect(&address).is_err());
    upstream.start_again();
    upstream.always(Answer::status(204));
    assert_eq!(Client::connect(&address).get("/").status, 204);
}

#[test]
fn a_client_reads_one_answer_at_a_time_however_it_is_framed() {
    let upstream = Upstream::start();
    upstream.answer(|request| match request.target().as_slice() {
        b"/interim" => Answer::status(103).field("Link", "</a>").and(Answer::ok("late")),
        b"/chunked" => Answer::script()
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        b"/close" => Answer::script().send("HTTP/1.1 200 OK\r\n\r\nto the end").close(),
        _ => Answer::status(404),
    });
    let mut client = Client::connect(&upstream.address());
    let interim = client.get("/interim");
    assert_eq!((interim.interim.len(), interim.body.as_slice()), (1, b"late".as_slice()));
    assert_eq!(client.call(&Request::new("HEAD", "/x")).status, 404);
    assert_eq!(client.get("/chunked").body, b"abc");
    assert_eq!(client.get("/close").body, b"to the end");
    client.expect_end();
}

#[test]
fn a_configuration_is_changed_line_by_line() {
    let config = Config::default()
        .with("[limits.workspace]", "requests = 3\nmode = \"observe\"")
        .with("[limits.extra]", "key = \"address\"")
        .without("[identity]");
    let text = config.to_string();
    let section = "[limits.workspace]\nkey = \"workspace\"\nalgorithm = \"rolling_window\"\n\
        requests = 3\nwindow = \"1m\"\nmode = \"observe\"\n[limits.organisation]";
    assert!(text.contains(section), "{text}");
    assert!(text.ends_with("[limits.extra]\nkey = \"address\"\n"), "{text}");
    assert!(!text.contains("[identity]"), "{text}");
}

#[test]
fn a_timestamp_is_read_without_the_code_under_test() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T23:59:59.000Z", 951_868_799),
        ("2026-11-20T17:30:00.5Z", 1_795_195_800),
    ] {
        assert_eq!(timestamp::millis(text) / 1_000, seconds, "{text}");
    }
    assert_eq!(timestamp::millis("2026-11-20T17:30:00.25Z") % 1_000, 250);
    for text in ["", "2026-11-20", "2026-13-01T00:00:00Z", "2026-11-20T17:30:00+00:00"] {
        assert_eq!(timestamp::read(text), None, "{text}");
    }
}

#[test]
fn a_receiver_verifies_what_is_signed_and_refuses_the_rest() {
    let receiver = Receiver::start();
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let body = r#"{"id":"evt_1"}"#;
    let t = wait::unix_seconds();
    let mut client = Client::connect(&receiver.upstream().address());
    let request = Request::post("/hook", body)
        .field("service-signature", &format!("t={t},v1={}", sign(secret, t, body.as_bytes())))
        .field("webhook-id", "evt_1")
        .field("webhook-timestamp", &t.to_string())
        .field("webhook-signature", &sign_standard(secret, "evt_1", t, body.as_bytes()));
    client.call(&request).expect(200);
    let delivered = receiver.wait(1).remove(0);
    assert_eq!((delivered.path(), delivered.id().as_str()), ("/hook", "evt_1"));
    delivered.verify(secret);
    delivered.verify_standard(secret);
    let forged = std::panic::catch_unwind(|| delivered.verify("whsec_another"));
    assert!(forged.is_err(), "another secret does not verify");
}

#[test]
fn a_receiver_is_as_hostile_as_its_script() {
    let receiver = Receiver::start();
    for (name, answer) in hostile().into_iter().chain(generous()) {
        receiver.upstream().always(answer);
        let mut client = Client::connect(&receiver.upstream().address());
        client.send(Request::post("/", "x").head_bytes());
        client.send("x");
        match name {
            "hangs" | "drips a head" => {}
            "hangs up" => client.expect_end(),
            "resets" => assert!(client.read_to_end().is_empty()),
            "speaks no HTTP" => drop(client.read_until("SSH")),
            "never ends a head" => drop(client.read_until("~~~~")),
            "sends fields for ever" => drop(client.read_until("X-100000: y")),
            "redirects" => assert_eq!(client.read().status, 302),
            "is busy" => assert_eq!(client.read().field("retry-after"), Some("0")),
            "sends no body at all" => assert_eq!(client.read().status, 204),
            "breaks a body off" => drop(client.read_until("half")),
            _ => drop(client.read_until("200 OK")),
        }
    }
}

#[test]
fn a_process_is_any_program_with_its_output_and_its_end() {
    let mut shell = Process::spawn(
        "a shell",
        std::process::Command::new("sh").args(["-c", "echo '{\"a\":1}'; echo no >&2; exit 3"]),
    );
    shell.stdout().wait("a line", |line| line["a"] == 1);
    assert_eq!(shell.wait_for_exit(), Some(3));
    assert_eq!(shell.stderr().to_end(), "no");
}

#[test]
fn a_mailbox_keeps_accepted_mails_and_defers_as_scripted() {
    let mailbox = Mailbox::start_with(&["--refuse", "1"]);
    let send = || {
        let mut client = Client::connect(&mailbox.address());
        client.read_until("\n");
        client.send("HELO x\r\n");
        client.read_until("\n");
        client.send("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n");
        client.read_until("354");
        client.read_until("\n");
        client.send("Subject: paused\r\n\r\nyour webhook\r\n.\r\n");
        String::from_utf8(client.read_until("\n")).unwrap()
    };
    assert!(send().starts_with("451"));
    wait::until("a line of the mail put off", || (mailbox.refused() == 1).then_some(()));
    assert_eq!(mailbox.mails().len(), 0);
    assert!(send().starts_with("250"));
    let mail = mailbox.wait(1).remove(0);
    assert_eq!(mail["to"], serde_json::json!(["b@example.com"]));
    assert_eq!(mail["headers"]["Subject"], "paused");
    assert_eq!(mail["text"].as_str().unwrap().trim(), "your webhook");
    assert_eq!((&mail["tls"], &mail["user"]), (&false.into(), &serde_json::Value::Null));
}
