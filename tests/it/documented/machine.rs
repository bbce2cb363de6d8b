//! A machine that follows a document: a temporary folder replaces its file paths, and an unused
//! loopback address replaces 127.0.0.1.
//!
//! A command that serves (`run`, `listen`, `./run`) keeps running during those that follow. A
//! command that only reads may be repeated until it prints the expected output.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_tests::dispatcher::entry;
use weir_tests::folder::Folder;
use weir_tests::process::{self, Process, program};
use weir_tests::upstream::Upstream;
use weir_tests::wait;

use super::printed;
use crate::tidy::root;

const PROGRAMS: [&str; 2] = ["weir-gateway", "weir-dispatcher"];
const TOKEN: &str = "hidden-token-of-a-reader-of-the-documents";
/// Folders that documents name.
const FOLDERS: [&str; 2] = ["/var/lib/weir-dispatcher", "/backup"];
/// The working directory in the documents' transcripts.
const HERE: &str = "/srv/weir";

static MADE: AtomicU32 = AtomicU32::new(0);

pub(super) struct Machine {
    folder: Folder,
    address: Ipv4Addr,
    running: Vec<Process>,
    /// A `listen` process, and its expected output at the end of the document.
    receiver: Option<(Process, String)>,
    backends: [Upstream; 2],
    /// Generated names: the document's, and the actual one.
    names: Vec<(String, String)>,
}

impl Machine {
    #[track_caller]
    pub(super) fn new() -> Self {
        let folder = Folder::new();
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let made = u8::try_from(MADE.fetch_add(1, Ordering::Relaxed)).unwrap();
        let address = Ipv4Addr::new(127, high.wrapping_add(made).max(1), middle, low.max(1));
        for name in FOLDERS {
            fs::create_dir_all(folder.path(&format!("machine{name}"))).unwrap();
        }
        for name in PROGRAMS {
            for profile in ["release", "debug"] {
                let link = folder.path(&format!("target/{profile}/{name}"));
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                symlink(program(name), link).unwrap();
            }
        }
        let backends = [(); 2].map(|()| Upstream::start());
        let machine = Self {
            folder,
            address,
            running: Vec::new(),
            receiver: None,
            backends,
            names: Vec::new(),
        };
        machine.copy_config();
        let hosts = format!("resolve = \"api.localhost:8080:{address}\"\n");
        machine.folder.write(".curlrc", &hosts);
        machine
    }

    /// Copies the shipped files, with this machine's address and backends.
    fn copy_config(&self) {
        for entry in fs::read_dir(root().join("config")).unwrap().map(Result::unwrap) {
            let mut text = self.here(&fs::read_to_string(entry.path()).unwrap());
            for (port, backend) in [9001, 9002].into_iter().zip(&self.backends) {
                let shipped = format!("{}:{port}", self.address);
                text = text.replace(&shipped, &backend.address());
            }
            self.folder.write(&format!("config/{}", entry.file_name().to_str().unwrap()), &text);
        }
    }

    /// A text with the document's names replaced by this machine's.
    fn here(&self, text: &str) -> String {
        let address = self.address.to_string();
        let mut text = text.replace("127.0.0.1", &address).replace("0.0.0.0", &address);
        text = text.replace(HERE, &self.folder.root().display().to_string());
        for name in FOLDERS {
            let here = self.folder.path(&format!("machine{name}")).display().to_string();
            for before in [" ", "\""] {
                text = text.replace(&format!("{before}{name}"), &format!("{before}{here}"));
            }
        }
        for (there, here) in &self.names {
            text = text.replace(there, here);
        }
        text
    }

    #[track_caller]
    pub(super) fn run(&mut self, command: &str, printed: Option<&str>) {
        let here = self.here(command);
        match printed {
            None if command == "./run" => self.demo(),
            Some(printed) if command.contains(" listen ") => self.listen(&here, printed),
            None if command.contains(" run ") => self.serve(&here),
            None => {
                let text = self.finish(&here);
                if command.contains(" token ") {
                    self.enter(&text);
                }
            }
            Some(printed) => self.compare(command, &here, printed),
        }
    }

    /// Changes settings in a file as a reader would, and runs `check` on it.
    #[track_caller]
    pub(super) fn change(&mut self, file: &str, lines: &str) {
        let path = self.folder.path(file);
        let before = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{file}: {why}"));
        self.folder.write(file, &changed(&before, &self.here(lines)));
        let name = PROGRAMS[usize::from(file.contains("dispatcher"))];
        self.finish(&format!("target/release/{name} check --config {file}"));
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        let programs = self.folder.path("target/release");
        let script = format!("PATH={}:$PATH\n{command}", programs.display());
        shell.args(["-ec", &script]).current_dir(self.folder.root());
        shell.env("CURL_HOME", self.folder.root());
        shell
    }

    /// Runs a command to its end, and returns its standard output.
    #[track_caller]
    fn finish(&mut self, command: &str) -> String {
        if [" restore ", " rotate-key ", " recover-key "].iter().any(|it| command.contains(it)) {
            // The document tells the reader to stop the program first.
            self.stop();
        }
        let finished = process::finish(Process::spawn(command, &mut self.shell(command)));
        let everything = finished.output();
        assert_eq!(finished.code, Some(0), "$ {command}\n{everything}");
        finished.stdout
    }

    /// Runs a command and compares its output. A command that only reads may be repeated.
    #[track_caller]
    fn compare(&mut self, command: &str, here: &str, promised: &str) {
        let only_reads =
            !["-d ", "-X ", "echo ", "weir-"].iter().any(|word| command.contains(word));
        let expected = self.here(promised);
        let mut text = String::new();
        let mut look = || {
            text = self.finish(here).replace('\r', "");
            printed::is_as_promised(&expected, &text).then_some(())
        };
        let matched = if only_reads { wait::within(wait::PATIENCE, look) } else { look() };
        assert!(matched.is_some(), "$ {here}\nprints\n{text}\nand the document has\n{promised}");
        let made_up = printed::names(promised).into_iter().zip(printed::names(&text));
        self.names.extend(made_up.map(|(there, here)| (there.to_owned(), here.to_owned())));
    }

    #[track_caller]
    fn listen(&mut self, command: &str, promised: &str) {
        let receiver = Process::spawn("listen", &mut self.shell(&format!("exec {command}")));
        wait::until("the receiver", || {
            receiver.stdout().text().starts_with("listening on ").then_some(())
        });
        self.receiver = Some((receiver, promised.to_owned()));
    }

    /// Ends the document: waits for the expected output of `listen`, and stops the programs.
    #[track_caller]
    pub(super) fn end(mut self) {
        if let Some((receiver, promised)) = self.receiver.take() {
            let text = || receiver.stdout().text();
            wait::within(wait::PATIENCE, || {
                printed::is_as_promised(&promised, &text()).then_some(())
            })
            .unwrap_or_else(|| panic!("{promised}\nis not\n{}", text()));
        }
        self.stop();
    }

    /// Starts a program that serves, and waits until it is ready.
    #[track_caller]
    fn serve(&mut self, command: &str) {
        let served = Process::spawn(command, &mut self.shell(&format!("exec {command}")));
        served.stderr().wait("that it is ready", |line| line["message"] == "ready");
        self.running.push(served);
    }

    /// Starts what `./run` starts, without its output.
    #[track_caller]
    fn demo(&mut self) {
        self.stop();
        let token = format!("header = \"Authorization: Bearer {TOKEN}\"\n");
        self.folder.write("target/run/data/token", &token);
        let scopes = r#"["webhooks:read", "webhooks:write", "events:write"]"#;
        self.folder.write("target/run/data/tokens.toml", &entry("reader", TOKEN, "*", scopes));
        let mut config = fs::read_to_string(self.folder.path("config/dispatcher.toml")).unwrap();
        for (shipped, here) in [
            ("config/tokens.toml", "target/run/data/tokens.toml"),
            ("\"data/", "\"target/run/data/"),
            ("allow_http = false", "allow_http = true"),
            ("allow_networks = []", "allow_networks = [\"127.0.0.0/8\"]"),
        ] {
            assert!(config.contains(shipped), "config/dispatcher.toml has no {shipped}");
            config = config.replace(shipped, here);
        }
        self.folder.write("target/run/data/dispatcher.toml", &config);
        self.serve("target/debug/weir-gateway run --config config/gateway.toml");
        self.serve("target/debug/weir-dispatcher run --config target/run/data/dispatcher.toml");
    }

    /// Stops the serving programs with SIGTERM.
    #[track_caller]
    fn stop(&mut self) {
        for mut process in self.running.drain(..) {
            process.signal("TERM");
            process.wait_for_exit();
        }
    }

    /// Adds the entry of a generated token to the file of tokens.
    #[track_caller]
    fn enter(&self, text: &str) {
        let (token, entry) = text.split_once("\n\n").unwrap();
        assert!(token.starts_with("weir_") && !entry.contains(token), "{text}");
        // The lines of one entry, apart from comments.
        assert_eq!(entry.lines().filter(|line| !line.starts_with('#')).count(), 5, "{entry}");
        let file = "my-config/tokens.toml";
        let before = fs::read_to_string(self.folder.path(file)).unwrap();
        self.folder.write(file, &format!("{before}\n{entry}"));
    }
}

/// A file of settings with these lines replaced, table by table; missing tables are appended.
fn changed(file: &str, lines: &str) -> String {
    let mut text: Vec<String> = file.lines().map(str::to_owned).collect();
    let mut at = None;
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with('[') {
            let is_there = !line.starts_with("[[");
            let name = |line: &str| line.split(']').next().unwrap_or_default().to_owned();
            at = text.iter().position(|own| is_there && name(own) == name(line));
            if at.is_none() {
                text.push(line.to_owned());
            }
            continue;
        }
        let key = line.split(" = ").next().unwrap_or_default();
        let Some(table) = at else {
            text.push(line.to_owned());
            continue;
        };
        let end = text.iter().skip(table + 1).position(|own| own.starts_with('['));
        let end = end.map_or(text.len(), |end| table + 1 + end);
        let own = (table + 1..end).find(|at| text[*at].split(" = ").next() == Some(key));
        match own {
            Some(own) => text[own] = line.to_owned(),
            None => text.insert(table + 1, line.to_owned()),
        }
    }
    text.join("\n") + "\n"
}

#[test]
fn lines_replace_those_of_their_table() {
    assert_eq!(
        changed("[a] # a\nx = 1\n[b]\nx = 1\n", "[b]\nx = 2\ny = 3\n[c]\nz = 4\n[[b]]\nx = 5\n"),
        "[a] # a\nx = 1\n[b]\ny = 3\nx = 2\n[c]\nz = 4\n[[b]]\nx = 5\n"
    );
}
