//! A Redis server for the tests of one process, and the little of its protocol that they need.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

/// A server with an empty memory on a socket in a directory of its own. Both end with the process
/// of the tests: the shell that started them waits for the end of its input.
pub(super) struct Server {
    directory: PathBuf,
    _shell: Child,
}

const SHELL: &str = "redis-server --port 0 --unixsocket \"$1/socket\" --save '' --appendonly no \
    --dir \"$1\" >\"$1/log\" 2>&1 & read -r _; kill -9 $!; wait; rm -rf \"$1\"";

/// The server that most tests share: each test has keys of its own.
pub(super) fn shared() -> &'static Server {
    static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start("shared"));
    &SHARED
}

impl Server {
    pub(super) fn start(name: &str) -> Self {
        let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        assert!(
            found.is_ok_and(|status| status.success()),
            "redis-server is needed: apt-get install redis-server"
        );
        let directory = format!("weir-script-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let server = Self { directory, _shell: shell };
        // It listens within some milliseconds; a busy machine may need seconds.
        for _ in 0..2_000 {
            if UnixStream::connect(server.socket()).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let log = std::fs::read_to_string(server.directory.join("log"));
        panic!("redis-server does not listen: {log:?}");
    }

    fn socket(&self) -> PathBuf {
        Path::new(&self.directory).join("socket")
    }

    pub(super) fn connect(&self) -> Connection {
        Connection(BufReader::new(UnixStream::connect(self.socket()).unwrap()))
    }
}

/// What a server replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(Vec<u8>),
    Number(i64),
    Error(String),
    Nothing,
    List(Vec<Value>),
}

impl Value {
    #[track_caller]
    pub(super) fn text(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) struct Connection(BufReader<UnixStream>);

impl Connection {
    pub(super) fn call<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> Value {
        let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            bytes.extend_from_slice(part);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).unwrap();
        self.value()
    }

    /// Loads a script and returns its name.
    pub(super) fn load(&mut self, script: &str) -> Vec<u8> {
        self.call(&["SCRIPT", "LOAD", script]).text()
    }

    fn value(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        let number = rest.parse::<i64>();
        match (kind, number) {
            ("+", _) => Value::Text(rest.as_bytes().to_vec()),
            ("-", _) => Value::Error(rest.to_owned()),
            (":", Ok(number)) => Value::Number(number),
            ("$" | "*", Ok(-1)) => Value::Nothing,
            ("$", Ok(length)) => {
                let mut text = vec![0; usize::try_from(length).unwrap() + 2];
                self.0.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                Value::Text(text)
            }
            ("*", Ok(length)) => Value::List((0..length).map(|_| self.value()).collect()),
            _ => panic!("{line:?}"),
        }
    }
}
