//! A Redis server for one test, on a free port: stopped, killed, paused and started again as the
//! test needs.
//!
//! Its own commands go over a Unix socket, so that they work whatever its port accepts.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::folder::Folder;
use crate::process::signal;
use crate::real;
use crate::upstream::Upstream;
use crate::wait::{self, PATIENCE};

/// The program of a Redis server.
const REDIS: &str = "redis-server";

/// The socket in the server's folder.
const SOCKET: &str = "redis.sock";

/// A Redis server; killed on drop.
pub struct Redis {
    child: Child,
    program: PathBuf,
    options: Vec<String>,
    folder: Folder,
    port: Upstream,
}

/// What a server replied to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A string, or a status.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Several replies.
    List(Vec<Reply>),
    /// No value.
    Nothing,
    /// It has not executed the command.
    Error(String),
}

impl Redis {
    /// Starts a server without persistence, with these options.
    #[track_caller]
    pub fn start(options: &[&str]) -> Self {
        Self::run_by(Path::new(REDIS), options)
    }

    /// Starts a Valkey server without persistence, with these options.
    #[track_caller]
    pub fn start_valkey(options: &[&str]) -> Self {
        Self::run_by(&real::valkey(), options)
    }

    #[track_caller]
    fn run_by(program: &Path, options: &[&str]) -> Self {
        // The port stays reserved: no other server gets it while this one is stopped.
        let port = Upstream::refusing();
        let number = port.address().rsplit(':').next().unwrap_or_default().to_owned();
        let at = match options.contains(&"--tls-cert-file") {
            true => vec!["--port", "0", "--tls-port", &number],
            false => vec!["--port", &number],
        };
        let options: Vec<String> =
            at.iter().chain(options).map(|&option| option.to_owned()).collect();
        Self::started(program, Folder::new(), (options, port))
    }

    /// Starts a Sentinel that watches nothing yet.
    #[track_caller]
    pub fn start_sentinel() -> Self {
        let port = Upstream::refusing();
        let number = port.address().rsplit(':').next().unwrap_or_default().to_owned();
        let folder = Folder::new();
        // It writes what it learns into its configuration.
        let file = folder.write("sentinel.conf", "");
        let file = file.display().to_string();
        let options = [&*file, "--sentinel", "--port", &number].map(str::to_owned);
        Self::started(Path::new(REDIS), folder, (options.to_vec(), port))
    }

    #[track_caller]
    fn started(program: &Path, folder: Folder, (options, port): (Vec<String>, Upstream)) -> Self {
        let child = spawn(program, &folder, &options);
        let started = Self { child, program: program.to_owned(), options, folder, port };
        started.wait_until_ready();
        started
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// Its port.
    pub fn port(&self) -> String {
        self.address().rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// Its URL, without TLS.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Stops it as an operator does.
    pub fn stop(&mut self) {
        assert!(signal(self.child.id(), "TERM"));
        self.child.wait().unwrap();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, without data, after it was stopped or killed.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.child = spawn(&self.program, &self.folder, &self.options);
        self.wait_until_ready();
    }

    /// Lets it stand still: its connections stay open, and nothing is answered.
    pub fn pause(&self) {
        assert!(signal(self.child.id(), "STOP"));
        // The signal is sent, and may not have arrived: a process that stands still is in state T.
        wait::until("redis-server to stand still", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            stat.contains(") T ").then_some(())
        });
    }

    /// Lets it continue after a pause.
    pub fn resume(&self) {
        assert!(signal(self.child.id(), "CONT"));
    }

    /// Runs one command, which must succeed.
    #[track_caller]
    pub fn run(&self, command: &str) -> Reply {
        match self.try_run(command) {
            Ok(Reply::Error(error)) => panic!("{command}: {error}"),
            Ok(reply) => reply,
            Err(error) => panic!("{command}: {error}"),
        }
    }

    /// Runs one command of these words, which must succeed.
    #[track_caller]
    pub fn run_words(&self, words: &[&str]) -> Reply {
        match self.try_words(words) {
            Ok(Reply::Error(error)) => panic!("{words:?}: {error}"),
            Ok(reply) => reply,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    /// Runs one command, its words separated by spaces.
    pub fn try_run(&self, command: &str) -> io::Result<Reply> {
        self.try_words(&command.split(' ').collect::<Vec<_>>())
    }

    fn try_words(&self, words: &[&str]) -> io::Result<Reply> {
        let socket = UnixStream::connect(self.folder.path(SOCKET))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut connection = BufReader::new(socket);
        let password = self.options.iter().skip_while(|option| *option != "--requirepass").nth(1);
        if let Some(password) = password {
            let _ = call(&mut connection, &["AUTH", password])?;
        }
        call(&mut connection, words)
    }

    /// How often it has run commands of this name since it started.
    #[track_caller]
    pub fn calls(&self, name: &str) -> u64 {
        let Reply::Text(stats) = self.run("INFO commandstats") else { panic!("no text") };
        let start = format!("cmdstat_{name}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |line| line.split(',').next().unwrap_or_default().parse().unwrap())
    }

    #[track_caller]
    fn wait_until_ready(&self) {
        wait::until("redis-server to be ready", || {
            self.try_run("PING").ok().filter(|reply| *reply == Reply::Text("PONG".to_owned()))
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn spawn(program: &Path, folder: &Folder, options: &[String]) -> Child {
    let mut command = Command::new(program);
    // A file comes before all other options.
    let files = usize::from(options.first().is_some_and(|first| !first.starts_with("--")));
    let (file, options) = options.split_at(files);
    command.args(file).args(["--bind", "127.0.0.1"]);
    if file.is_empty() {
        command.args(["--save", "", "--appendonly", "no"]);
    }
    command
        .args(["--unixsocket", SOCKET, "--dir"])
        .arg(folder.root())
        .args(options)
        .current_dir(folder.root())
        .stdout(Stdio::null());
    command
        .spawn()
        .unwrap_or_else(|_| panic!("redis-server is needed: apt-get install redis-server"))
}

fn call(connection: &mut BufReader<UnixStream>, words: &[&str]) -> io::Result<Reply> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    connection.get_mut().write_all(text.as_bytes())?;
    read(connection)
}

fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
    let number = || rest.parse::<i64>().map_err(io::Error::other);
    Ok(match kind {
        "+" => Reply::Text(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Number(number()?),
        "$" => match usize::try_from(number()?) {
            Err(_) => Reply::Nothing,
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
        },
        "*" => match usize::try_from(number()?) {
            Err(_) => Reply::Nothing,
            Ok(length) => Reply::List((0..length).map(|_| read(from)).collect::<io::Result<_>>()?),
        },
        _ => return Err(io::Error::other(format!("{line:?} is no reply"))),
    })
}
