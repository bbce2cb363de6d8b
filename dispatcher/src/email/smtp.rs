//! Sends one mail through an SMTP server.
//!
//! # Invariants
//!
//! 1. No header field contains a line break, whatever the input: lettre encodes it.
//! 2. No error contains the user, the password or an address.
//! 3. With `smtps://` and `smtp+starttls://` nothing is sent before TLS with a valid certificate.
//!    `smtp://` uses TLS if the server offers it, with any certificate; the settings allow a
//!    password there only on loopback.
//! 4. A mail that the server accepted is sent, whatever follows; one that waits for the answer to
//!    its end waits for long.
//!
//! Not here: the texts (`templates`), retries (`outbox`), how a command is sent and a reply read
//! (`session`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lettre::Address;
use lettre::message::header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0};
use lettre::message::{Mailbox, Message};
use sha2::{Digest, Sha256};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use weir_common::secret::Secret;

use crate::config::settings::{self, MailServer, StartOfTls};
use crate::domain::mail_address::with_a_labels;
use crate::email::smtp::session::{Session, SessionError, Stream};
use crate::store::mail::NewMail;

mod session;
mod tls;

/// From connecting to the server's consent to the text of the mail.
const DEADLINE: Duration = Duration::from_secs(30);

/// From the text of the mail to the server's answer. A server may take that long to accept a mail
/// (RFC 5321, 4.5.3.2.6), and a client that waits for less sends it twice.
const ANSWER_DEADLINE: Duration = Duration::from_secs(600);

/// For QUIT, which changes nothing.
const QUIT_DEADLINE: Duration = Duration::from_secs(1);

/// The longest error in a log line.
const ERROR_CHARS_MAX: usize = 200;

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// The server accepted the mail.
    Sent,
    /// A permanent error: no retry.
    Abandoned(String),
    /// A temporary error: retry.
    Failed(String),
}

/// Sends mails through one server.
pub struct SmtpSender {
    from: Mailbox,
    server: MailServer,
    connector: TlsConnector,
    login: Option<(String, Secret<String>)>,
    deadline: Duration,
}

impl SmtpSender {
    /// A sender for these settings; connects with each mail. An error means that no certificates
    /// are trusted here.
    pub fn new(mail: &settings::MailSettings) -> Result<Self, rustls::Error> {
        let server = mail.server.clone();
        // An attacker with a wrong certificate could as well not offer STARTTLS, so refusing
        // the certificate protects nothing; local servers often have a self-signed one.
        let any_certificate = server.start_of_tls == StartOfTls::IfOffered;
        let connector = tls::connector(any_certificate)?;
        let login = server.login.as_ref().map(|login| {
            let (user, password) = login.expose();
            let of_file = mail.password.as_ref().map(Secret::expose);
            (user.clone(), Secret::new(of_file.unwrap_or(password).clone()))
        });
        let from = mail.from.clone();
        Ok(Self { from, server, connector, login, deadline: DEADLINE })
    }

    /// Sends one mail.
    pub async fn send(&self, mail: &NewMail) -> SendResult {
        let (to, message) = match self.message(mail) {
            Ok(message) => message,
            Err(why) => return SendResult::Abandoned(why),
        };
        let mut session = match timeout(self.deadline, self.begin(&to)).await {
            Ok(Ok(session)) => session,
            Ok(Err(result)) => return result,
            Err(_) => return SendResult::Failed(format!("not sent within {:?}", self.deadline)),
        };
        let text = message.formatted();
        match timeout(ANSWER_DEADLINE, session.message(&text)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return result_of(&error),
            Err(_) => return SendResult::Failed(format!("no answer within {ANSWER_DEADLINE:?}")),
        }
        // The mail is sent, whether or not the server answers.
        let _ = timeout(QUIT_DEADLINE, session.command("QUIT", '2')).await;
        SendResult::Sent
    }

    /// A session whose server waits for the text of a mail.
    async fn begin(&self, to: &Address) -> Result<Session, SendResult> {
        let failed = |error: SessionError| SendResult::Failed(shown(&error));
        let addresses = lookup_host((self.server.host.as_str(), self.server.port)).await;
        let addresses: Vec<SocketAddr> = addresses.map_err(|e| failed(e.into()))?.collect();
        let mut session = self.connect(&addresses).await.map_err(failed)?;
        if let Some((user, password)) = &self.login {
            session.log_in(user, password.expose()).await.map_err(failed)?;
        }
        let (from, to): (&str, &str) = (self.from.email.as_ref(), to.as_ref());
        let mut utf8 = "";
        if !(from.is_ascii() && to.is_ascii()) {
            if !session.offers("SMTPUTF8", "") {
                let why = "the address is not ASCII, and the server has no SMTPUTF8";
                return Err(SendResult::Failed(why.to_owned()));
            }
            utf8 = " SMTPUTF8";
        }
        session.command(&format!("MAIL FROM:<{from}>{utf8}"), '2').await.map_err(failed)?;
        session.command(&format!("RCPT TO:<{to}>"), '2').await.map_err(|e| result_of(&e))?;
        session.command("DATA", '3').await.map_err(|e| result_of(&e))?;
        Ok(session)
    }

    /// A session with the first address, in order, that has a server which greets and speaks TLS as
    /// the settings want it. A faulty one leaves time for the others, and for the mail.
    async fn connect(&self, addresses: &[SocketAddr]) -> Result<Session, SessionError> {
        let Some((last, others)) = addresses.split_last() else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let each = share_of(self.deadline, others.len());
        for address in others {
            if let Ok(Ok(session)) = timeout(each, self.open(*address)).await {
                return Ok(session);
            }
        }
        self.open(*last).await
    }

    /// A session over TLS, where the settings or the server want it.
    async fn open(&self, address: SocketAddr) -> Result<Session, SessionError> {
        let hello = self.from.email.domain();
        let stream = TcpStream::connect(address).await?;
        if self.server.start_of_tls == StartOfTls::AtOnce {
            return Session::open(self.over_tls(Box::new(stream)).await?, hello).await;
        }
        let session = Session::open(Box::new(stream), hello).await?;
        if session.offers("STARTTLS", "") {
            let stream = session.start_tls().await?;
            return Session::reopen(self.over_tls(stream).await?, hello).await;
        }
        if self.server.start_of_tls == StartOfTls::BeforeAll {
            return Err(SessionError::Broken("the server does not offer STARTTLS".to_owned()));
        }
        Ok(session)
    }

    async fn over_tls(&self, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, SessionError> {
        Ok(Box::new(self.connector.connect(self.server.name.clone(), stream).await?))
    }

    /// The address of a mail, and its text with the header.
    fn message(&self, mail: &NewMail) -> Result<(Address, Message), String> {
        let to = mail.to.parse().ok().and_then(with_a_labels);
        let to: Address = to.ok_or("the owner's address is invalid")?;
        let id = hex::encode(Sha256::digest(&mail.key));
        // RFC 3834: suppresses automatic replies.
        let automatic = HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        );
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to.clone()))
            .subject(mail.subject.clone())
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())))
            .raw_header(automatic)
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN)
            .body(mail.text.clone())
            .map_err(|e| format!("the mail cannot be built: {e}"))?;
        Ok((to, message))
    }
}

/// How long a server may take to greet and to begin TLS before the next of `others` is tried: half
/// of the time between them, and a sixth at least, which a slow one needs.
fn share_of(deadline: Duration, others: usize) -> Duration {
    deadline / 2 / u32::try_from(others.clamp(1, 3)).unwrap_or(1)
}

/// What the reply to a command about a mail means for it.
fn result_of(error: &SessionError) -> SendResult {
    match error {
        // 53x is about user and password, which the operator can correct: retry.
        SessionError::Refused(500..530 | 540..) => SendResult::Abandoned(shown(error)),
        _ => SendResult::Failed(shown(error)),
    }
}

fn shown(error: &SessionError) -> String {
    error.to_string().chars().take(ERROR_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use weir_common::config::document::Document;
    use weir_common::directory::is_mail_address;

    use crate::config::read::read;
    use crate::domain::id::WebhookId;

    use super::*;

    /// A reply that takes longer than [`SHORT`].
    const LATE: &str = "250 accepted at last";
    const SHORT: Duration = Duration::from_millis(300);

    /// An SMTP server that records every line and replies to one command as given, in Latin-1; with
    /// an empty reply it is silent.
    struct Server {
        port: u16,
        received: Arc<Mutex<Vec<String>>>,
        /// The reply to EHLO, if it is not the usual one.
        offers: Arc<Mutex<Option<&'static str>>>,
        _task: JoinSet<()>,
    }

    async fn server(command: &'static str, answer: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let offers = Arc::new(Mutex::new(None));
        let (lines, offered, mut task) = (received.clone(), offers.clone(), JoinSet::new());
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (reading, mut writing) = stream.into_split();
                let greeting =
                    if command.is_empty() && !answer.is_empty() { answer } else { "220 ready" };
                let _ = writing.write_all(format!("{greeting}\r\n").as_bytes()).await;
                let mut reading = BufReader::new(reading).lines();
                let mut in_message = false;
                while let Ok(Some(line)) = reading.next_line().await {
                    lines.lock().expect("no test panics here").push(line.clone());
                    let verb = line.get(..4).unwrap_or(&line);
                    let reply = match verb {
                        "." if verb != command => "250 accepted",
                        _ if in_message && verb != "." => continue,
                        _ if verb == command => answer,
                        "EHLO" => offered
                            .lock()
                            .expect("no test panics here")
                            .unwrap_or("250-here\r\n250 AUTH PLAIN"),
                        "AUTH" => "235 welcome",
                        "DATA" => "354 go on",
                        "QUIT" => "221 bye",
                        _ => "250 fine",
                    };
                    in_message = verb == "DATA" && reply.starts_with('3');
                    if reply == LATE {
                        sleep(SHORT * 2).await;
                    }
                    let mut reply: Vec<u8> = reply.chars().map(|char| char as u8).collect();
                    if !reply.is_empty() {
                        reply.extend_from_slice(b"\r\n");
                    }
                    if writing.write_all(&reply).await.is_err() {
                        break;
                    }
                }
            }
        });
        Server { port, received, offers, _task: task }
    }

    impl Server {
        fn received(&self) -> Vec<String> {
            self.received.lock().expect("no test panics here").clone()
        }
    }

    fn settings(smtp: &str) -> settings::MailSettings {
        settings_from(smtp, "Weir <weir@example.com>")
    }

    fn settings_from(smtp: &str, from: &str) -> settings::MailSettings {
        let text = format!("[mail]\nsmtp = \"{smtp}\"\nfrom = \"{from}\"");
        read(&Document::new("d", &text)).made.mail.expect("valid settings")
    }

    fn mail() -> NewMail {
        NewMail {
            webhook: WebhookId(1),
            to: "owner@example.org".to_owned(),
            subject: "Webhook".to_owned(),
            text: "First line.\n.\nLast line.\n".to_owned(),
            key: "warning:wh_1:1:owner@example.org".to_owned(),
        }
    }

    async fn result(command: &'static str, answer: &'static str) -> SendResult {
        let server = server(command, answer).await;
        let url = format!("smtp://us%40er:p%3Aw@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("valid settings");
        SmtpSender { deadline: SHORT, ..sender }.send(&mail()).await
    }

    #[tokio::test]
    async fn a_mail_arrives_as_written_with_the_urls_credentials() {
        let server = server("", "").await;
        let url = format!("smtp://us%40er:p%3Aw@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("valid settings");
        assert_eq!(sender.send(&mail()).await, SendResult::Sent);
        let received = server.received();
        let has = |line: &str| received.iter().any(|one| one == line);
        assert!(has(&format!("AUTH PLAIN {}", STANDARD.encode("\0us@er\0p:w"))), "{received:?}");
        assert!(has("EHLO example.com") && has("RCPT TO:<owner@example.org>"), "{received:?}");
        for line in ["From: Weir <weir@example.com>", "To: owner@example.org", "Subject: Webhook"] {
            assert!(has(line), "{line} in {received:?}");
        }
        for line in ["Auto-Submitted: auto-generated", "MIME-Version: 1.0"] {
            assert!(has(line), "{line} in {received:?}");
        }
        assert!(has("First line.") && has("..") && has("Last line."), "{received:?}");
    }

    #[tokio::test]
    async fn a_domain_in_any_script_needs_no_extension_of_the_server_and_a_name_does() {
        let server = server("", "").await;
        let url = format!("smtp://127.0.0.1:{}", server.port);
        let settings = settings_from(&url, "Weir <weir@b\u{fc}cher.example>");
        let sender = SmtpSender::new(&settings).expect("trusted certificates");
        let to = |to: &str| NewMail { to: to.to_owned(), ..mail() };
        assert_eq!(sender.send(&to("info@b\u{fc}cher.example")).await, SendResult::Sent);
        let received = server.received();
        for line in [
            "EHLO xn--bcher-kva.example",
            "MAIL FROM:<weir@xn--bcher-kva.example>",
            "RCPT TO:<info@xn--bcher-kva.example>",
            "To: info@xn--bcher-kva.example",
        ] {
            assert!(received.iter().any(|one| one == line), "{line} in {received:?}");
        }
        assert!(received.iter().all(|line| line.is_ascii()), "{received:?}");
        let result = sender.send(&to("j\u{fc}rgen@b\u{fc}cher.example")).await;
        assert!(matches!(result, SendResult::Failed(_)), "{result:?}");
    }

    #[tokio::test]
    async fn an_accepted_mail_is_sent_whatever_the_text_of_the_reply_and_what_follows() {
        let lines = ["250-two\r\n250 lines", "250-two\r\nbroken lines"];
        for reply in lines.into_iter().chain(["250 Nachricht \u{fc}bernommen", "250", LATE]) {
            assert_eq!(result(".", reply).await, SendResult::Sent, "{reply}");
        }
        for reply in ["", "421 no", "\u{ff}"] {
            assert_eq!(result("QUIT", reply).await, SendResult::Sent, "{reply}");
        }
        let long = Box::leak(format!("250 {}", "x".repeat(50_000)).into_boxed_str());
        assert_eq!(result(".", long).await, SendResult::Sent);
        let endless = Box::leak(format!("250 {}", "x".repeat(150_000)).into_boxed_str());
        assert!(matches!(result("MAIL", endless).await, SendResult::Failed(_)));
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_server_without_the_required_starttls() {
        let server = server("", "").await;
        let url = format!("smtp+starttls://user:hunter2@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("valid settings");
        let result = sender.send(&mail()).await;
        assert!(matches!(result, SendResult::Failed(_)), "{result:?}");
        let received = server.received();
        let sent = |line: &String| !line.starts_with("EHLO") && !line.starts_with("QUIT");
        assert!(!received.iter().any(sent), "{received:?}");
    }

    #[tokio::test]
    async fn what_follows_the_answer_to_starttls_before_tls_is_no_reply() {
        let server = server("STAR", "220 go\r\n250 AUTH PLAIN\r\n550 not from the server").await;
        let offering = "250-here\r\n250 STARTTLS";
        let url = format!("smtp+starttls://user:hunter2@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("valid settings");
        server.offers.lock().expect("no test panics here").replace(offering);
        let why = "something follows the server's answer to STARTTLS, before TLS";
        assert_eq!(sender.send(&mail()).await, SendResult::Failed(why.to_owned()));
        assert_eq!(server.received(), ["EHLO example.com", "STARTTLS"]);
    }

    #[tokio::test]
    async fn a_password_from_a_file_is_used_like_one_in_the_url() {
        let server = server("", "").await;
        let url = format!("smtp://us%40er@127.0.0.1:{}", server.port);
        let password = Some(Secret::new("p:%w".to_owned()));
        let sender = SmtpSender::new(&settings::MailSettings { password, ..settings(&url) });
        assert_eq!(sender.expect("valid settings").send(&mail()).await, SendResult::Sent);
        let expected = format!("AUTH PLAIN {}", STANDARD.encode("\0us@er\0p:%w"));
        assert!(server.received().contains(&expected), "{:?}", server.received());
    }

    #[tokio::test]
    async fn only_a_permanent_error_about_the_mail_abandons_it() {
        let abandoned = |code: &str| SendResult::Abandoned(format!("the server answered {code}"));
        let failed = |code: &str| SendResult::Failed(format!("the server answered {code}"));
        assert_eq!(result("RCPT", "550 owner@example.org is unknown").await, abandoned("550"));
        assert_eq!(result("DATA", "554 no").await, abandoned("554"));
        assert_eq!(result(".", "554 spam").await, abandoned("554"));
        // About the connection and the sender: the operator can correct it.
        for command in ["", "EHLO", "AUTH", "MAIL"] {
            assert_eq!(result(command, "550 no").await, failed("550"), "{command}");
        }
        assert_eq!(result("RCPT", "530 who are you").await, failed("530"));
        assert_eq!(result("RCPT", "451 later").await, failed("451"));
        assert_eq!(result("MAIL", "421 busy").await, failed("421"));
        assert_eq!(result("AUTH", "535 who are you").await, failed("535"));
        assert!(matches!(result("MAIL", "what").await, SendResult::Failed(_)));
    }

    #[tokio::test]
    async fn a_silent_or_absent_server_is_a_failure_within_the_deadline() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = silent.local_addr().expect("it is bound").port();
        for scheme in ["smtp", "smtps"] {
            let settings = settings(&format!("{scheme}://127.0.0.1:{port}"));
            let sender = SmtpSender::new(&settings).expect("valid settings");
            let (sender, mail) = (SmtpSender { deadline: SHORT, ..sender }, mail());
            let result = timeout(Duration::from_secs(5), sender.send(&mail)).await;
            assert!(matches!(result, Ok(SendResult::Failed(_))), "{scheme}: {result:?}");
        }
        drop(silent);
        let absent = SmtpSender::new(&settings(&format!("smtp://127.0.0.1:{port}")));
        let result = absent.expect("valid settings").send(&mail()).await;
        assert!(matches!(result, SendResult::Failed(_)), "{result:?}");
    }

    #[test]
    fn one_of_many_addresses_has_five_seconds_to_greet() {
        let share = |others| share_of(Duration::from_secs(30), others).as_secs();
        assert_eq!([0, 1, 2, 3, 7].map(share), [15, 15, 7, 5, 5]);
    }

    #[tokio::test]
    async fn a_faulty_address_leaves_time_for_the_next_one() {
        let silent = TcpSocket::new_v4().expect("a socket");
        silent.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let silent = silent.listen(0).expect("it listens");
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let [silent, mute] = [&silent, &mute].map(|one| one.local_addr().expect("it is bound"));
        // Its queue is full, so that it answers no further connection.
        let _queued = TcpStream::connect(silent).await.expect("it has room for one");
        let [busy, unwilling, good] =
            [server("", "421 busy").await, server("EHLO", "550 no").await, server("", "").await];
        let [busy, unwilling, whole] =
            [&busy, &unwilling, &good].map(|one| SocketAddr::from(([127, 0, 0, 1], one.port)));
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        let sender = SmtpSender { deadline: SHORT, ..sender };
        for faulty in [silent, mute, busy, unwilling] {
            let session = sender.connect(&[faulty, whole]).await;
            assert!(session.is_ok(), "{faulty}: {:?}", session.err());
        }
        assert_eq!(good.received(), ["EHLO example.com"; 4]);
        let refused = sender.connect(&[mute, busy]).await.err();
        assert_eq!(refused, Some(SessionError::Refused(421)));
    }

    #[test]
    fn no_input_breaks_out_of_its_header_field() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        let plain = sender.message(&mail()).expect("valid settings").1.formatted();
        let fields = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let head = text.split("\r\n\r\n").next().unwrap_or_default().to_owned();
            head.lines().filter(|line| !line.starts_with([' ', '\t'])).count()
        };
        let evil = NewMail {
            subject: "x\r\nBcc: all@example.org\r\n\r\nbody".to_owned(),
            key: "k\r\nBcc: all@example.org".to_owned(),
            ..mail()
        };
        let evil = sender.message(&evil).expect("valid settings").1.formatted();
        assert_eq!(fields(&evil), fields(&plain));
        let to = "a@example.org\r\nBcc: all@example.org";
        assert!(sender.message(&NewMail { to: to.to_owned(), ..mail() }).is_err());
    }

    #[test]
    fn a_mail_can_be_sent_to_every_owner_that_the_directory_accepts() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        for to in ["x+y.z@localhost", "info@b\u{fc}cher.example", "o'n@1_2.example", "a@1.2.3.4"] {
            assert!(is_mail_address(to), "{to}");
            let found = sender.message(&NewMail { to: to.to_owned(), ..mail() });
            assert!(found.is_ok(), "{to}: {:?}", found.err());
        }
    }

    #[test]
    fn the_message_id_depends_on_the_key_alone() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        let id = |key: &str| {
            let mail = NewMail { key: key.to_owned(), ..mail() };
            let (_, message) = sender.message(&mail).expect("valid settings");
            message.headers().get_raw("Message-ID").expect("it has one").to_owned()
        };
        assert_eq!(id("one"), id("one"));
        assert_ne!(id("one"), id("two"));
    }
}
