//! Sends one mail through an SMTP server, within one deadline.
//!
//! # Invariants
//!
//! 1. No header field of a mail holds a line break, whatever its parts hold: lettre encodes it.
//! 2. User, password and addresses are in no error's text.
//! 3. With `smtps://` and `smtp+starttls://` nothing is sent before TLS with a server whose
//!    certificate holds. `smtp://` takes TLS where it is offered, by any certificate: settings
//!    allow it no password but on this machine.
//!
//! Not here: what a mail says (`templates`), when it is tried again (`outbox`).

use std::time::Duration;

use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Category;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use url::Url;

use crate::config::settings;
use crate::store::NewMail;

/// From the connection to the server's last word.
const DEADLINE: Duration = Duration::from_secs(30);

/// The ports that the schemes stand for.
const SMTP_PORT: u16 = 25;
const SUBMISSION_PORT: u16 = 587;
const SMTPS_PORT: u16 = 465;

/// Whoever reads a log needs no more of what a server says.
const WHY_CHARS_MAX: usize = 200;

/// What came of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posting {
    /// The server took it.
    Sent,
    /// Trying again would change nothing.
    GivenUp(String),
    /// Trying again may help.
    Failed(String),
}

/// Why no mail can be sent under these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostmanError {
    /// The URL has another scheme, or no host. It may hold a password: not shown.
    #[error("mail.smtp must be smtps://, smtp+starttls:// or smtp://, and a host")]
    Url,
    /// The sender is no mail address.
    #[error("mail.from must be an address, as weir@example.com or Weir <weir@example.com>")]
    From,
    /// No trusted certificates, or a host that no certificate could name.
    #[error("cannot set up TLS for mail.smtp: {0}")]
    Tls(String),
}

/// Sends mails through one server.
pub struct SmtpSender {
    from: Mailbox,
    server: AsyncSmtpTransport<Tokio1Executor>,
    deadline: Duration,
}

impl SmtpSender {
    /// As these settings have it. Connects to nobody yet.
    pub fn new(mail: &settings::Mail) -> Result<Self, PostmanError> {
        Self::with_deadline(mail, DEADLINE)
    }

    fn with_deadline(mail: &settings::Mail, deadline: Duration) -> Result<Self, PostmanError> {
        let from: Mailbox = mail.from.parse().map_err(|_| PostmanError::From)?;
        let url = Url::parse(mail.smtp.expose()).map_err(|_| PostmanError::Url)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(PostmanError::Url)?;
        // An IPv6 address stands in brackets in a URL and nowhere else.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let parameters = TlsParameters::builder(host.clone());
        let (port, parameters, tls): (_, _, fn(TlsParameters) -> Tls) = match url.scheme() {
            "smtps" => (SMTPS_PORT, parameters, Tls::Wrapper),
            "smtp+starttls" => (SUBMISSION_PORT, parameters, Tls::Required),
            // Who could show a wrong certificate here could as well offer no STARTTLS: refusing
            // one would protect nothing, and most servers on a machine of one's own have such.
            "smtp" => {
                (SMTP_PORT, parameters.dangerous_accept_invalid_certs(true), Tls::Opportunistic)
            }
            _ => return Err(PostmanError::Url),
        };
        let parameters = parameters.build().map_err(|e| PostmanError::Tls(e.to_string()))?;
        let mut server = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(url.port().unwrap_or(port))
            .tls(tls(parameters))
            .hello_name(ClientId::Domain(from.email.domain().to_owned()))
            .timeout(Some(deadline));
        if !url.username().is_empty() {
            let user = plain(url.username())?;
            let password = match &mail.password {
                Some(password) => password.expose().clone(),
                None => plain(url.password().unwrap_or_default())?,
            };
            server = server.credentials(Credentials::new(user, password));
        }
        Ok(Self { from, server: server.build(), deadline })
    }

    /// Sends one mail.
    pub async fn post(&self, mail: &NewMail) -> Posting {
        let message = match self.message(mail) {
            Ok(message) => message,
            Err(why) => return Posting::GivenUp(why),
        };
        match timeout(self.deadline, self.server.send(message)).await {
            Ok(Ok(_)) => Posting::Sent,
            Ok(Err(error)) => posting_of(&error),
            Err(_) => Posting::Failed(format!("no end within {:?}", self.deadline)),
        }
    }

    fn message(&self, mail: &NewMail) -> Result<Message, String> {
        let to: Address = mail.to.parse().map_err(|_| "the owner's address is none".to_owned())?;
        let id = hex::encode(Sha256::digest(&mail.key));
        // RFC 3834: nobody's holiday is to answer this.
        let automatic = HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        );
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(mail.subject.clone())
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())))
            .raw_header(automatic)
            .header(ContentType::TEXT_PLAIN)
            .body(mail.text.clone())
            .map_err(|e| format!("the mail cannot be written: {e}"))
    }
}

/// A part of a URL as it was before it was percent-encoded.
fn plain(text: &str) -> Result<String, PostmanError> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| PostmanError::Url)?;
    Ok(decoded.into_owned())
}

fn posting_of(error: &lettre::transport::smtp::Error) -> Posting {
    // What a server says may name the owner's address: the code says enough.
    let Some(code) = error.status() else {
        let text = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
        let text: Vec<String> = text.map(ToString::to_string).collect();
        return Posting::Failed(text.join(": ").chars().take(WHY_CHARS_MAX).collect());
    };
    let why = format!("the server answered {code}");
    // 53x speaks of user and password, which the operator can put right.
    if error.is_permanent() && code.category != Category::Unspecified3 {
        Posting::GivenUp(why)
    } else {
        Posting::Failed(why)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use weir_common::secret::Secret;

    use super::*;

    /// An SMTP server that answers one command in its own way, and all it was told.
    struct Server {
        port: u16,
        heard: Arc<Mutex<Vec<String>>>,
        _task: JoinSet<()>,
    }

    async fn server(command: &'static str, answer: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (lines, mut task) = (heard.clone(), JoinSet::new());
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (reading, mut writing) = stream.into_split();
                let _ = writing.write_all(b"220 ready\r\n").await;
                let mut reading = BufReader::new(reading).lines();
                let mut in_message = false;
                while let Ok(Some(line)) = reading.next_line().await {
                    lines.lock().expect("no test panics here").push(line.clone());
                    let verb = line.get(..4).unwrap_or(&line);
                    let say = match verb {
                        "." => "250 taken",
                        _ if in_message => continue,
                        _ if verb == command => answer,
                        "EHLO" => "250-here\r\n250 AUTH PLAIN",
                        "AUTH" => "235 welcome",
                        "DATA" => "354 go on",
                        "QUIT" => "221 bye",
                        _ => "250 fine",
                    };
                    in_message = verb == "DATA" && say.starts_with('3');
                    if writing.write_all(format!("{say}\r\n").as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        Server { port, heard, _task: task }
    }

    impl Server {
        fn heard(&self) -> Vec<String> {
            self.heard.lock().expect("no test panics here").clone()
        }
    }

    fn settings(smtp: &str) -> settings::Mail {
        let smtp = Secret::new(smtp.to_owned());
        settings::Mail {
            smtp,
            password: None,
            password_file: None,
            from: "Weir <weir@example.com>".to_owned(),
            link: None,
            retry_after: DEADLINE,
        }
    }

    fn mail() -> NewMail {
        NewMail {
            to: "owner@example.org".to_owned(),
            subject: "Webhook".to_owned(),
            text: "First line.\n.\nLast line.\n".to_owned(),
            key: "warning:wh_1:1:owner@example.org".to_owned(),
        }
    }

    async fn posting(command: &'static str, answer: &'static str) -> Posting {
        let server = server(command, answer).await;
        let url = format!("smtp://us%40er:p%3Aw@127.0.0.1:{}", server.port);
        SmtpSender::new(&settings(&url)).expect("it is one").post(&mail()).await
    }

    #[tokio::test]
    async fn a_mail_arrives_as_it_was_written_signed_in_as_the_url_says() {
        let server = server("", "").await;
        let url = format!("smtp://us%40er:p%3Aw@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("it is one");
        assert_eq!(sender.post(&mail()).await, Posting::Sent);
        let heard = server.heard();
        let has = |line: &str| heard.iter().any(|one| one == line);
        assert!(has(&format!("AUTH PLAIN {}", STANDARD.encode("\0us@er\0p:w"))), "{heard:?}");
        assert!(has("EHLO example.com") && has("RCPT TO:<owner@example.org>"), "{heard:?}");
        for line in ["From: Weir <weir@example.com>", "To: owner@example.org", "Subject: Webhook"] {
            assert!(has(line), "{line} in {heard:?}");
        }
        assert!(has("Auto-Submitted: auto-generated"), "{heard:?}");
        assert!(has("First line.") && has("..") && has("Last line."), "{heard:?}");
    }

    #[tokio::test]
    async fn nothing_is_told_to_a_server_that_offers_no_starttls_where_it_is_required() {
        let server = server("", "").await;
        let url = format!("smtp+starttls://user:hunter2@127.0.0.1:{}", server.port);
        let sender = SmtpSender::new(&settings(&url)).expect("it is one");
        let posting = sender.post(&mail()).await;
        assert!(matches!(posting, Posting::Failed(_)), "{posting:?}");
        let heard = server.heard();
        let told = |line: &String| !line.starts_with("EHLO") && !line.starts_with("QUIT");
        assert!(!heard.iter().any(told), "{heard:?}");
    }

    #[tokio::test]
    async fn a_password_from_a_file_signs_in_like_one_in_the_url() {
        let server = server("", "").await;
        let url = format!("smtp://us%40er@127.0.0.1:{}", server.port);
        let password = Some(Secret::new("p:%w".to_owned()));
        let sender = SmtpSender::new(&settings::Mail { password, ..settings(&url) });
        assert_eq!(sender.expect("it is one").post(&mail()).await, Posting::Sent);
        let expected = format!("AUTH PLAIN {}", STANDARD.encode("\0us@er\0p:%w"));
        assert!(server.heard().contains(&expected), "{:?}", server.heard());
    }

    #[tokio::test]
    async fn only_what_the_server_refuses_for_good_is_given_up() {
        let given_up = |code: &str| Posting::GivenUp(format!("the server answered {code}"));
        let failed = |code: &str| Posting::Failed(format!("the server answered {code}"));
        assert_eq!(posting("RCPT", "550 owner@example.org is nobody").await, given_up("550"));
        assert_eq!(posting("DATA", "554 no").await, given_up("554"));
        assert_eq!(posting("RCPT", "451 later").await, failed("451"));
        assert_eq!(posting("MAIL", "421 busy").await, failed("421"));
        assert_eq!(posting("AUTH", "535 who are you").await, failed("535"));
        assert!(matches!(posting("MAIL", "what").await, Posting::Failed(_)));
    }

    #[tokio::test]
    async fn a_server_that_is_silent_or_gone_is_a_failure_within_the_deadline() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = silent.local_addr().expect("it is bound").port();
        for scheme in ["smtp", "smtps"] {
            let settings = settings(&format!("{scheme}://127.0.0.1:{port}"));
            let sender = SmtpSender::with_deadline(&settings, Duration::from_millis(200));
            let mail = mail();
            let posting = sender.expect("it is one");
            let posting = timeout(Duration::from_secs(5), posting.post(&mail)).await;
            assert!(matches!(posting, Ok(Posting::Failed(_))), "{scheme}: {posting:?}");
        }
        drop(silent);
        let gone = SmtpSender::new(&settings(&format!("smtp://127.0.0.1:{port}")));
        let posting = gone.expect("it is one").post(&mail()).await;
        assert!(matches!(posting, Posting::Failed(_)), "{posting:?}");
    }

    #[test]
    fn no_part_of_a_mail_breaks_out_of_its_header_field() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("it is one");
        let plain = sender.message(&mail()).expect("it is one").formatted();
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
        let evil = sender.message(&evil).expect("it is one").formatted();
        assert_eq!(fields(&evil), fields(&plain));
        let to = "a@example.org\r\nBcc: all@example.org";
        assert!(sender.message(&NewMail { to: to.to_owned(), ..mail() }).is_err());
    }

    #[test]
    fn the_message_id_is_the_keys() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("it is one");
        let id = |key: &str| {
            let mail = NewMail { key: key.to_owned(), ..mail() };
            let message = sender.message(&mail).expect("it is one");
            message.headers().get_raw("Message-ID").expect("it has one").to_owned()
        };
        assert_eq!(id("one"), id("one"));
        assert_ne!(id("one"), id("two"));
    }

    #[test]
    fn settings_that_cannot_send_say_why_without_the_password() {
        for url in ["http://u:hunter2@host", "smtp:", "smtp://", "hunter2", "smtps://u:%ff@h"] {
            let error = SmtpSender::new(&settings(url)).err().expect(url);
            assert_eq!(error, PostmanError::Url, "{url}");
            assert!(!error.to_string().contains("hunter2"));
        }
        let from = settings::Mail { from: "nobody".to_owned(), ..settings("smtp://host") };
        assert_eq!(SmtpSender::new(&from).err(), Some(PostmanError::From));
    }
}
