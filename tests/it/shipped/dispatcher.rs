//! What is shipped of the dispatcher holds: its files, the receivers in the README, and the event
//! that is delivered there.
//!
//! A block of the README has lines `$ …`, each with what it prints below it. They are run one
//! after another, as somebody would who copies them; names that are made up on the way, such as
//! `dlv_…`, take the place of those in the README from then on. What comes must be what stands
//! there, but for digits and names.

use std::net::Ipv4Addr;
use std::process::Command;

use weir_tests::dispatcher::{self, PROGRAM, run};
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::process::{Process, program};
use weir_tests::wait;

use super::{section, shipped, shipped_gateway};

const CONFIG: &str = "config/dispatcher.toml";
const TOKENS: &str = "config/tokens.toml";
const DIRECTORY: &str = "config/directory.toml";
const TOKEN: &str = "hidden-token-of-a-reader-of-the-readme";

/// What names that are made up begin with.
const MADE_UP: [&str; 4] = ["wh_", "evt_", "dlv_", "whsec_"];

#[test]
fn the_shipped_files_of_the_dispatcher_are_found_good() {
    let folder = Folder::new();
    for name in [CONFIG, TOKENS, DIRECTORY] {
        folder.write(name, &shipped(name));
    }
    run(&folder, &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn the_link_in_a_mail_leads_to_a_page_that_takes_none_of_the_workspaces_allowance() {
    let config = shipped(CONFIG);
    let link = config.lines().find_map(|line| line.strip_prefix("# link = \"")?.split('"').next());
    let link =
        link.expect("it shows a link").replace("https://api.example.com", "http://api.localhost");
    let folder = Folder::new();
    for name in ["config/gateway.toml", DIRECTORY] {
        folder.write(name, &shipped(name));
    }
    let page = format!("{link}/workspaces/ws_acme/webhooks/wh_1");
    let arguments = ["explain", "GET", &page, "--config", "config/gateway.toml"];
    let said = weir_tests::gateway::run(&folder, &arguments).expect(0).stdout;
    assert!(said.contains("/dashboard/{*rest}") && !said.contains("workspace for"), "{said}");
}

#[test]
fn who_sets_it_up_as_the_readme_says_has_a_good_configuration() {
    let folder = Folder::new();
    let text = section("Behind your backend");
    let mut tokens = shipped(TOKENS);
    let mut made = 0;
    folder.write("my-config/dispatcher.toml", &shipped("config/dispatcher.toml"));
    for command in commands(block(&text, "sh")).iter().filter(|one| one.contains(" token ")) {
        let arguments: Vec<String> = command.replace('\'', "").split(' ').map(Into::into).collect();
        let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
        let printed = run(&folder, &arguments).expect(0).stdout;
        let (token, entry) = printed.split_once("\n\n").unwrap();
        assert!(token.starts_with("weir_") && !entry.contains(token), "{printed}");
        assert_eq!(entry.lines().filter(|line| !line.starts_with('#')).count(), 5, "{entry}");
        tokens.push_str(entry);
        tokens.push('\n');
        made += 1;
    }
    assert_eq!(made, 2, "the README makes a token for a backend and one for an owner");
    folder.write("my-config/tokens.toml", &tokens);
    folder.write("my-config/directory.toml", &shipped(DIRECTORY));
    folder.write("my-config/dispatcher.toml", block(&text, "toml"));
    run(&folder, &["check", "--config", "my-config/dispatcher.toml"]).expect(0);
}

#[test]
fn the_receivers_in_the_readme_are_those_that_are_tested() {
    let text = section("Verify a delivery");
    for (language, name) in [
        ("rust", "verify.rs"),
        ("python", "verify.py"),
        ("javascript", "verify.mjs"),
        ("go", "verify.go"),
    ] {
        let tested = shipped(&format!("docs/verify/{name}"));
        assert_eq!(block(&text, language), tested, "docs/verify/{name}");
    }
}

#[test]
fn the_event_in_the_readme_is_delivered_as_it_says() {
    let text = section("An event, delivered");
    let mut stage = Stage::new();
    let mut listening = None;
    let mut played = 0;
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        for step in block.split("$ ").filter(|step| !step.is_empty()) {
            let (command, promised) = apart(step);
            if command.contains(" listen ") {
                listening = Some((stage.listen(&command), promised));
            } else {
                stage.play(&command, &promised);
            }
            played += 1;
        }
    }
    assert_eq!(played, 7, "the README registers, sends, looks, listens, redelivers, reactivates");
    let (receiver, promised) = listening.unwrap();
    let promised = plain(promised.trim_end());
    wait::within(wait::PATIENCE, || (plain(&receiver.stdout().text()) == promised).then_some(()))
        .unwrap_or_else(|| panic!("{promised}\nis not\n{}", receiver.stdout().text()));
}

/// Both programs on the shipped files, and where the README's receiver listens.
struct Stage {
    folder: Folder,
    gateway: Gateway,
    dispatcher: Process,
    receiver: String,
    /// What is in the README, and what it is here.
    names: Vec<(String, String)>,
}

impl Stage {
    #[track_caller]
    fn new() -> Self {
        let folder = Folder::new();
        let token = format!("header = \"Authorization: Bearer {TOKEN}\"\n");
        folder.write("target/run/data/token", &token);
        let scopes = r#"["webhooks:read", "webhooks:write", "events:write"]"#;
        folder.write(dispatcher::TOKENS, &dispatcher::entry("reader", TOKEN, "*", scopes));
        folder.write(dispatcher::DIRECTORY, &shipped(DIRECTORY));
        let mut config = shipped(CONFIG);
        for (shipped, here) in [
            ("127.0.0.1:9003", "127.0.0.1:0"),
            ("127.0.0.1:9004", "127.0.0.1:0"),
            ("127.0.0.1:9005", "127.0.0.1:0"),
            (TOKENS, dispatcher::TOKENS),
            (DIRECTORY, dispatcher::DIRECTORY),
            // A receiver on this machine, without TLS, as ./run has it.
            ("allow_http = false", "allow_http = true"),
            ("allow_networks = []", "allow_networks = [\"127.0.0.0/8\"]"),
            ("ports = [443, 8443]", "ports = []"),
        ] {
            assert!(config.contains(shipped), "{CONFIG} has no {shipped}");
            config = config.replace(shipped, here);
        }
        folder.write(dispatcher::CONFIG, &config);
        let dispatcher = Process::start(PROGRAM, &folder, &["run", "--config", dispatcher::CONFIG]);
        dispatcher.stderr().wait("that it is ready", |line| line["message"] == "ready");
        let nobody = "127.0.0.1:9".to_owned();
        let gateway = shipped_gateway(&[nobody.clone(), nobody, dispatcher.listening("api")]);
        // An address of this process alone: the port is free there until the receiver takes it.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let receiver = format!("{}:9011", Ipv4Addr::new(127, high.max(1), middle, low));
        Self { folder, gateway, dispatcher, receiver, names: Vec::new() }
    }

    /// The README's command as it is here.
    fn here(&self, command: &str) -> String {
        let port = self.gateway.http().rsplit(':').next().unwrap_or_default();
        let program = program(PROGRAM);
        let mut command = command
            .replace(":8080", &format!(":{port}"))
            .replace("127.0.0.1:9004", &self.dispatcher.listening("ingest"))
            .replace("127.0.0.1:9011", &self.receiver)
            .replace("target/demo/weir-dispatcher", &program.display().to_string());
        for (there, here) in &self.names {
            command = command.replace(there, here);
        }
        command
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(self.folder.root());
        shell
    }

    #[track_caller]
    fn listen(&self, command: &str) -> Process {
        let command = format!("exec {}", self.here(command));
        let receiver = Process::spawn("listen", &mut self.shell(&command));
        wait::until("the receiver", || {
            receiver.stdout().text().starts_with("listening on ").then_some(())
        });
        receiver
    }

    /// Runs a command and checks what it prints. One that only looks may look until it sees.
    #[track_caller]
    fn play(&mut self, command: &str, promised: &str) {
        let here = self.here(command);
        let only_looks = !["-d ", "-X ", "echo "].iter().any(|word| command.contains(word));
        let mut said = String::new();
        let mut look = || {
            let finished = self.shell(&here).output().unwrap();
            assert!(finished.status.success(), "{here}: {}", finished.status);
            said = String::from_utf8_lossy(&finished.stdout).replace('\r', "");
            is_as_promised(promised, &said).then_some(())
        };
        let came = if only_looks { wait::within(wait::PATIENCE, look) } else { look() };
        assert!(came.is_some(), "$ {here}\nprints\n{said}\nand the README has\n{promised}");
        let made_up = names(promised).into_iter().zip(names(&said));
        self.names.extend(made_up.map(|(there, here)| (there.to_owned(), here.to_owned())));
    }
}

/// A command, its lines made one, and what stands below it.
fn apart(step: &str) -> (String, String) {
    let (mut command, mut rest) = (String::new(), step);
    while let Some((line, below)) = rest.split_once('\n') {
        rest = below;
        command.push_str(line.trim_start().trim_end_matches('\\'));
        if !line.ends_with('\\') {
            break;
        }
    }
    (command, rest.to_owned())
}

/// The commands of a block without answers.
fn commands(block: &str) -> Vec<String> {
    block.replace("\\\n    ", "").lines().map(str::to_owned).collect()
}

/// The first block of a language.
#[track_caller]
fn block<'t>(text: &'t str, language: &str) -> &'t str {
    let from = text.split_once(&format!("```{language}\n"));
    let (_, rest) = from.unwrap_or_else(|| panic!("no block of {language}"));
    rest.split("```").next().unwrap_or_default()
}

/// Whether an answer has the promised status, the promised fields, whatever their values, and,
/// where one is promised, the body.
fn is_as_promised(promised: &str, said: &str) -> bool {
    let parts = |text: &str| -> (String, String) {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        (head.trim_end().to_lowercase(), plain(body.trim_end()))
    };
    let ((promised, promised_body), (head, body)) = (parts(promised), parts(said));
    let starts = |line: &str| line.split_once(": ").map_or(line, |(name, _)| name).to_owned();
    let said: Vec<String> = head.lines().map(starts).collect();
    promised.lines().map(starts).all(|line| said.contains(&line))
        && (promised_body.is_empty() || promised_body == body)
}

/// Names that were made up, in the order in which they stand.
fn names(text: &str) -> Vec<&str> {
    let mut found: Vec<(usize, &str)> = Vec::new();
    for prefix in MADE_UP {
        let of_name = |one: char| one.is_ascii_alphanumeric() || "_+/=".contains(one);
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at..];
            let name = rest.split(|one| !of_name(one)).next().unwrap_or_default();
            found.push((at, name));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

/// A text whose names are all one, and so are its numbers.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for name in names(&text.clone()) {
        let prefix = MADE_UP.iter().find(|prefix| name.starts_with(**prefix)).unwrap_or(&"");
        text = text.replace(name, prefix);
    }
    let mut plain = String::with_capacity(text.len());
    for one in text.chars().map(|one| if one.is_ascii_digit() { '0' } else { one }) {
        if one != '0' || !plain.ends_with('0') {
            plain.push(one);
        }
    }
    plain
}

#[test]
fn names_and_numbers_are_told_from_what_must_come_so() {
    assert_eq!(names("/wh_1:x dlv_2, 'whsec_a+/='"), ["wh_1", "dlv_2", "whsec_a+/="]);
    assert_eq!(
        plain(r#"{"id":"evt_01x","n":12,"s":"waiting"}"#),
        plain(r#"{"id":"evt_9","n":3,"s":"waiting"}"#)
    );
    assert!(is_as_promised("HTTP/1.1 200 OK\nX: 1\n\n{}\n", "HTTP/1.1 200 OK\nx: 2\n\n{}"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\n", "HTTP/1.1 202 Accepted\n"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\nX: 1\n", "HTTP/1.1 200 OK\n"));
    assert!(!is_as_promised("HTTP/1.1 200 OK\n\n{\"a\":\"b\"}", "HTTP/1.1 200 OK\n\n{}"));
}
