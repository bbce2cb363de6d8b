//! The clients in `docs/clients/` wait as docs/clients.md says: for the gateway, and for a server
//! that answers by script.
//!
//! If one of their languages is missing, the tests fail and name the command.

use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::folder::Folder;
use weir_tests::process::{Process, finish};
use weir_tests::real;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

const CLIENTS: [&str; 4] = ["retry.rs", "retry.py", "retry.mjs", "retry.go"];

/// Where a newer Go ships without its compiled library, it compiles all of HTTP first.
const BUILD_PATIENCE: Duration = Duration::from_secs(180);

/// The requests of a client on a limit of three in two seconds; it is refused at 4 and at 7.
const REQUESTS: usize = 7;

#[test]
fn a_client_alone_on_a_limit_is_refused_at_most_once_per_request() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 3\nwindow = \"2s\"")
            .with("[planes.control]", "hosts = [\"127.0.0.1\"]")
    });
    let url = |name: &str| {
        let workspace = format!("ws_{}", name.replace('.', "_"));
        format!("http://{}/v1/workspaces/{workspace}", world.gateway.http())
    };
    let mut refused = 0;
    for (name, lines) in Clients::new().run(|name| vec![url(name), REQUESTS.to_string()]) {
        assert_eq!(lines.len(), REQUESTS, "{name}: {lines:?}");
        for line in &lines {
            let Printed { status, tries, waits } = Printed::of(line);
            assert_eq!(status, 200, "{name}: {lines:?}");
            assert_eq!(tries, waits.len() + 1, "{name}: {lines:?}");
            assert!(tries <= 2, "{name} is refused twice: {lines:?}");
            // `Retry-After` is one or two seconds.
            assert!(waits.iter().all(|wait| (1.0..=2.0).contains(wait)), "{name}: {lines:?}");
            refused += waits.len();
        }
    }
    assert!(refused >= CLIENTS.len(), "only {refused} of all requests were refused");
    assert_eq!(world.control.requests().len(), CLIENTS.len() * REQUESTS);
}

#[test]
fn a_client_waits_for_retry_after_and_without_one_about_a_second() {
    let refused = Answer::status(429);
    let retried = json!({"status": 200, "tries": 2});
    let clients = Clients::new();
    clients.check(&refused.clone().field("Retry-After", "3"), "6", &retried, 3.0..=3.0);
    clients.check(&refused, "6", &retried, 0.8..=1.2);
    // What is no number of seconds is not read.
    let dated = refused.field("Retry-After", "Mon, 05 Aug 2019 09:27:05 GMT");
    clients.check(&dated, "6", &retried, 0.8..=1.2);
}

#[test]
fn a_client_stops_at_its_last_try_at_a_long_wait_and_at_any_other_status() {
    let refused = Answer::status(429);
    let clients = Clients::new();
    let once = |status: u16| json!({"status": status, "tries": 1});
    clients.check(&refused, "1", &once(429), 0.0..=0.0);
    clients.check(&refused.field("Retry-After", "86400"), "6", &once(429), 0.0..=0.0);
    for status in [404, 500, 502, 503, 504] {
        let answer = Answer::status(status).field("Retry-After", "1");
        clients.check(&answer, "6", &once(status), 0.0..=0.0);
    }
}

#[test]
fn delays_double_from_one_second_to_thirty() {
    for (name, lines) in Clients::new().run(|_| vec!["--delays".to_owned()]) {
        let delays: Vec<f64> = serde_json::from_value(lines[0].clone()).unwrap();
        assert_eq!(delays, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], "{name}");
    }
}

/// The clients, of which two were compiled into a folder.
struct Clients {
    folder: Folder,
}

/// A line that a client prints for one request.
struct Printed {
    status: u64,
    tries: usize,
    waits: Vec<f64>,
}

impl Printed {
    #[track_caller]
    fn of(line: &Value) -> Self {
        let waits = line["waits"].as_array().unwrap();
        Self {
            status: line["status"].as_u64().unwrap(),
            tries: usize::try_from(line["tries"].as_u64().unwrap()).unwrap(),
            waits: waits.iter().map(|wait| wait.as_f64().unwrap()).collect(),
        }
    }
}

impl Clients {
    #[track_caller]
    fn new() -> Self {
        let folder = Folder::new();
        for (compiler, arguments, name) in [
            ("rustc", &["--edition=2024", "-Dwarnings"][..], "retry.rs"),
            ("go", &["build"], "retry.go"),
        ] {
            let mut command = Command::new(compiler);
            command.args(arguments).arg("-o").arg(folder.path(&format!("{name}.program")));
            command.arg(format!("docs/clients/{name}")).current_dir(real::root());
            let mut build = Process::spawn(compiler, &mut command);
            let code = build.wait_for_exit_within(BUILD_PATIENCE);
            assert_eq!(code, Some(0), "{name}:\n{}", build.stderr().to_end());
        }
        Self { folder }
    }

    /// Runs all at the same time, with these arguments of each, and returns what each printed.
    #[track_caller]
    fn run(&self, arguments: impl Fn(&str) -> Vec<String>) -> Vec<(&'static str, Vec<Value>)> {
        let started = CLIENTS.map(|name| {
            let mut command = self.command(name);
            (name, Process::spawn(name, command.args(arguments(name))))
        });
        let lines = started.into_iter().map(|(name, process)| {
            let text = finish(process).expect(0).stdout;
            (name, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
        });
        lines.collect()
    }

    /// One request of each to a server that answers first with `answer` and then with 200: what it
    /// prints but for its waits, and each wait, which the server must see too.
    #[track_caller]
    fn check(&self, answer: &Answer, tries: &str, printed: &Value, waits: RangeInclusive<f64>) {
        let servers = CLIENTS.map(|name| (name, server(answer.clone())));
        let address = |name: &str| servers.iter().find(|one| one.0 == name).unwrap().1.address();
        let arguments =
            |name: &str| vec![format!("http://{}/", address(name)), "1".into(), tries.into()];
        for ((name, lines), (_, server)) in self.run(arguments).iter().zip(&servers) {
            let line = Printed::of(&lines[0]);
            let short = json!({"status": line.status, "tries": line.tries});
            assert_eq!((lines.len(), &short), (1, printed), "{name}: {lines:?}");
            assert!(line.waits.iter().all(|wait| waits.contains(wait)), "{name}: {lines:?}");
            let seen = server.requests();
            assert_eq!(seen.len(), line.tries, "{name}: {lines:?}");
            for (pair, wait) in seen.windows(2).zip(&line.waits) {
                let gap = Duration::from_millis(pair[1].at_ms - pair[0].at_ms).as_secs_f64();
                // The printed wait is rounded, and a millisecond may begin between two readings.
                assert!(gap >= wait - 0.01, "{name} came after {gap} s: {lines:?}");
            }
        }
    }

    fn command(&self, name: &str) -> Command {
        let source = real::root().join("docs/clients").join(name);
        let interpreter = match name.rsplit('.').next() {
            Some("py") => "python3",
            Some("mjs") => "node",
            _ => return Command::new(self.folder.path(&format!("{name}.program"))),
        };
        let mut command = Command::new(interpreter);
        command.arg(source);
        command
    }
}

/// A server that answers its first request with `first` and every other with 200, and closes the
/// connection after each, since `retry.rs` reads until then.
fn server(first: Answer) -> Upstream {
    let server = Upstream::start();
    let asked = AtomicUsize::new(0);
    server.answer(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => first.clone().close(),
        _ => Answer::ok("hello").close(),
    });
    server
}
