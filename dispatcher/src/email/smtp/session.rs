//! One session with an SMTP server, command by command, over TCP or TLS.
//!
//! # Invariants
//!
//! 1. What the server sent before TLS is never read as a reply within it.
//! 2. Of a reply only its code counts: its text may have any bytes, and is in no error, for it may
//!    have the owner's address.
//! 3. A mail is accepted with the first line of the reply to it, whatever becomes of the others.
//!
//! Not here: which commands a mail takes, their deadlines, what a refusal means for the mail
//! (`smtp`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// The longest reply, as Postfix has it.
const REPLY_BYTES_MAX: usize = 100_000;

/// What a session is over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why a command has no good reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SessionError {
    /// The server's code.
    #[error("the server answered {0}")]
    Refused(u16),
    /// No reply, or one that is none.
    #[error("{0}")]
    Broken(String),
}

impl From<std::io::Error> for SessionError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// A session with a server that has greeted.
pub(super) struct Session {
    stream: BufReader<Box<dyn Stream>>,
    /// The lines of its reply to EHLO.
    extensions: Vec<String>,
}

impl Session {
    /// Reads the server's greeting, and sends EHLO.
    pub(super) async fn open(stream: Box<dyn Stream>, name: &str) -> Result<Self, SessionError> {
        let mut session = Self { stream: BufReader::new(stream), extensions: Vec::new() };
        session.reply('2').await?;
        session.hello(name).await?;
        Ok(session)
    }

    /// Sends EHLO on a connection that has become TLS.
    pub(super) async fn reopen(stream: Box<dyn Stream>, name: &str) -> Result<Self, SessionError> {
        let mut session = Self { stream: BufReader::new(stream), extensions: Vec::new() };
        session.hello(name).await?;
        Ok(session)
    }

    async fn hello(&mut self, name: &str) -> Result<(), SessionError> {
        self.extensions = self.command(&format!("EHLO {name}"), '2').await?;
        Ok(())
    }

    /// Sends STARTTLS, and returns the connection for the handshake.
    pub(super) async fn start_tls(mut self) -> Result<Box<dyn Stream>, SessionError> {
        self.command("STARTTLS", '2').await?;
        if !self.stream.buffer().is_empty() {
            let why = "something follows the server's answer to STARTTLS, before TLS";
            return Err(SessionError::Broken(why.to_owned()));
        }
        Ok(self.stream.into_inner())
    }

    /// Logs in.
    pub(super) async fn log_in(&mut self, user: &str, password: &str) -> Result<(), SessionError> {
        if self.offers("AUTH", "PLAIN") {
            let both = STANDARD.encode(format!("\0{user}\0{password}"));
            self.command(&format!("AUTH PLAIN {both}"), '2').await?;
        } else if self.offers("AUTH", "LOGIN") {
            self.command("AUTH LOGIN", '3').await?;
            self.command(&STANDARD.encode(user), '3').await?;
            self.command(&STANDARD.encode(password), '2').await?;
        } else {
            let why = "the server offers neither AUTH PLAIN nor AUTH LOGIN";
            return Err(SessionError::Broken(why.to_owned()));
        }
        Ok(())
    }

    /// Whether the server offers an extension, with this parameter unless it is empty.
    pub(super) fn offers(&self, extension: &str, parameter: &str) -> bool {
        let is = |word: &str, of: &str| word.eq_ignore_ascii_case(of);
        self.extensions.iter().any(|line| {
            let mut words = line.split_ascii_whitespace();
            words.next().is_some_and(|first| is(first, extension))
                && (parameter.is_empty() || words.any(|word| is(word, parameter)))
        })
    }

    /// Sends a command; a reply whose code begins with another digit than `good` is an error.
    pub(super) async fn command(
        &mut self,
        command: &str,
        good: char,
    ) -> Result<Vec<String>, SessionError> {
        self.send(format!("{command}\r\n").as_bytes()).await?;
        self.reply(good).await
    }

    /// Sends a message whose lines end with CRLF, and reads the first line of the reply.
    pub(super) async fn message(&mut self, message: &[u8]) -> Result<(), SessionError> {
        self.send(&with_end(message)).await?;
        let mut left = REPLY_BYTES_MAX;
        self.line(&mut left).await?.check('2')
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// The lines of a reply, without its code.
    async fn reply(&mut self, good: char) -> Result<Vec<String>, SessionError> {
        let (mut lines, mut left) = (Vec::new(), REPLY_BYTES_MAX);
        loop {
            let line = self.line(&mut left).await?;
            let judged = line.is_last.then(|| line.check(good));
            lines.push(line.text);
            if let Some(judged) = judged {
                return judged.map(|()| lines);
            }
        }
    }

    /// The next line of a reply that may have as many bytes more as are `left`.
    async fn line(&mut self, left: &mut usize) -> Result<ReplyLine, SessionError> {
        let broken = |why: &str| Err(SessionError::Broken(why.to_owned()));
        let mut line = Vec::new();
        *left -= (&mut self.stream).take(*left as u64).read_until(b'\n', &mut line).await?;
        if line.last() != Some(&b'\n') {
            return broken(match left {
                0 => "the server's reply is too long",
                _ => "the server closed the connection",
            });
        }
        let line = String::from_utf8_lossy(&line);
        let (code, text) = line.split_at_checked(3).unwrap_or_default();
        let Some(code) = code.parse().ok().filter(|code| (200..600).contains(code)) else {
            return broken("the server's reply has no code");
        };
        let is_last = !text.starts_with('-');
        let text = text.trim_start_matches(['-', ' ']).trim_end().to_owned();
        Ok(ReplyLine { code, text, is_last })
    }
}

/// A line of a reply.
struct ReplyLine {
    code: u16,
    text: String,
    is_last: bool,
}

impl ReplyLine {
    /// An error if the code begins with another digit than `good`.
    fn check(&self, good: char) -> Result<(), SessionError> {
        let is_good = self.code.to_string().starts_with(good);
        if is_good { Ok(()) } else { Err(SessionError::Refused(self.code)) }
    }
}

/// A message with a dot before each line that begins with one, and a dot at the end.
fn with_end(message: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(message.len() + 8);
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            all.push(b'.');
        }
        all.extend_from_slice(line);
    }
    if !all.ends_with(b"\r\n") {
        all.extend_from_slice(b"\r\n");
    }
    all.extend_from_slice(b".\r\n");
    all
}
