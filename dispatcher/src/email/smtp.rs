//! Sends one mail through an SMTP server, within one deadline.
//!
//! # Invariants
//!
//! 1. No header field contains a line break, whatever the input: lettre encodes it.
//! 2. No error contains the user, the password or an address.
//! 3. With `smtps://` and `smtp+starttls://` nothing is sent before TLS with a valid certificate.
//!    `smtp://` uses TLS if the server offers it, with any certificate; the settings allow a
//!    password there only on loopback.
//!
//! Not here: the texts (`templates`), retries (`outbox`).

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
use crate::store::mail::NewMail;

/// From connecting to the server's last reply.
const DEADLINE: Duration = Duration::from_secs(30);

/// The default ports of the schemes.
const SMTP_PORT: u16 = 25;
const SUBMISSION_PORT: u16 = 587;
const SMTPS_PORT: u16 = 465;

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

/// Why mail settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmtpError {
    /// The URL has another scheme, or no host. It may contain a password, so it is not shown.
    #[error("mail.smtp must be smtps://, smtp+starttls:// or smtp://, and a host")]
    Url,
    /// The sender is not a mail address.
    #[error("mail.from must be an address, such as weir@example.com or Weir <weir@example.com>")]
    From,
    /// No trusted certificates, or a host name that no certificate can have.
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
    /// A sender for these settings; connects with the first mail.
    pub fn new(mail: &settings::MailSettings) -> Result<Self, SmtpError> {
        Self::with_deadline(mail, DEADLINE)
    }

    fn with_deadline(mail: &settings::MailSettings, deadline: Duration) -> Result<Self, SmtpError> {
        let from: Mailbox = mail.from.parse().map_err(|_| SmtpError::From)?;
        let url = Url::parse(mail.smtp.expose()).map_err(|_| SmtpError::Url)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(SmtpError::Url)?;
        // Only URLs write an IPv6 address in brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let parameters = TlsParameters::builder(host.clone());
        let (port, parameters, tls): (_, _, fn(TlsParameters) -> Tls) = match url.scheme() {
            "smtps" => (SMTPS_PORT, parameters, Tls::Wrapper),
            "smtp+starttls" => (SUBMISSION_PORT, parameters, Tls::Required),
            // An attacker with a wrong certificate could as well not offer STARTTLS, so refusing
            // the certificate protects nothing; local servers often have a self-signed one.
            "smtp" => {
                (SMTP_PORT, parameters.dangerous_accept_invalid_certs(true), Tls::Opportunistic)
            }
            _ => return Err(SmtpError::Url),
        };
        let parameters = parameters.build().map_err(|e| SmtpError::Tls(e.to_string()))?;
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
    pub async fn send(&self, mail: &NewMail) -> SendResult {
        let message = match self.message(mail) {
            Ok(message) => message,
            Err(why) => return SendResult::Abandoned(why),
        };
        match timeout(self.deadline, self.server.send(message)).await {
            Ok(Ok(_)) => SendResult::Sent,
            Ok(Err(error)) => result_of(&error),
            Err(_) => SendResult::Failed(format!("not sent within {:?}", self.deadline)),
        }
    }

    fn message(&self, mail: &NewMail) -> Result<Message, String> {
        let to: Address =
            mail.to.parse().map_err(|_| "the owner's address is invalid".to_owned())?;
        let id = hex::encode(Sha256::digest(&mail.key));
        // RFC 3834: suppresses automatic replies.
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
            .map_err(|e| format!("the mail cannot be built: {e}"))
    }
}

/// Decodes a percent-encoded part of a URL.
fn plain(text: &str) -> Result<String, SmtpError> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| SmtpError::Url)?;
    Ok(decoded.into_owned())
}

fn result_of(error: &lettre::transport::smtp::Error) -> SendResult {
    // The server's text may contain the owner's address, so only the code is kept.
    let Some(code) = error.status() else {
        let text = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
        let text: Vec<String> = text.map(ToString::to_string).collect();
        return SendResult::Failed(text.join(": ").chars().take(ERROR_CHARS_MAX).collect());
    };
    let why = format!("the server answered {code}");
    // 53x is about user and password, which the operator can correct: retry.
    if error.is_permanent() && code.category != Category::Unspecified3 {
        SendResult::Abandoned(why)
    } else {
        SendResult::Failed(why)
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

    /// An SMTP server that records every line and replies to one command as given.
    struct Server {
        port: u16,
        received: Arc<Mutex<Vec<String>>>,
        _task: JoinSet<()>,
    }

    async fn server(command: &'static str, answer: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (lines, mut task) = (received.clone(), JoinSet::new());
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (reading, mut writing) = stream.into_split();
                let _ = writing.write_all(b"220 ready\r\n").await;
                let mut reading = BufReader::new(reading).lines();
                let mut in_message = false;
                while let Ok(Some(line)) = reading.next_line().await {
                    lines.lock().expect("no test panics here").push(line.clone());
                    let verb = line.get(..4).unwrap_or(&line);
                    let reply = match verb {
                        "." => "250 accepted",
                        _ if in_message => continue,
                        _ if verb == command => answer,
                        "EHLO" => "250-here\r\n250 AUTH PLAIN",
                        "AUTH" => "235 welcome",
                        "DATA" => "354 go on",
                        "QUIT" => "221 bye",
                        _ => "250 fine",
                    };
                    in_message = verb == "DATA" && reply.starts_with('3');
                    if writing.write_all(format!("{reply}\r\n").as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        Server { port, received, _task: task }
    }

    impl Server {
        fn received(&self) -> Vec<String> {
            self.received.lock().expect("no test panics here").clone()
        }
    }

    fn settings(smtp: &str) -> settings::MailSettings {
        let smtp = Secret::new(smtp.to_owned());
        settings::MailSettings {
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

    async fn result(command: &'static str, answer: &'static str) -> SendResult {
        let server = server(command, answer).await;
        let url = format!("smtp://us%40er:p%3Aw@127.0.0.1:{}", server.port);
        SmtpSender::new(&settings(&url)).expect("valid settings").send(&mail()).await
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
        assert!(has("Auto-Submitted: auto-generated"), "{received:?}");
        assert!(has("First line.") && has("..") && has("Last line."), "{received:?}");
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
    async fn only_a_permanent_error_abandons_a_mail() {
        let abandoned = |code: &str| SendResult::Abandoned(format!("the server answered {code}"));
        let failed = |code: &str| SendResult::Failed(format!("the server answered {code}"));
        assert_eq!(result("RCPT", "550 owner@example.org is unknown").await, abandoned("550"));
        assert_eq!(result("DATA", "554 no").await, abandoned("554"));
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
            let sender = SmtpSender::with_deadline(&settings, Duration::from_millis(200));
            let mail = mail();
            let sender = sender.expect("valid settings");
            let result = timeout(Duration::from_secs(5), sender.send(&mail)).await;
            assert!(matches!(result, Ok(SendResult::Failed(_))), "{scheme}: {result:?}");
        }
        drop(silent);
        let absent = SmtpSender::new(&settings(&format!("smtp://127.0.0.1:{port}")));
        let result = absent.expect("valid settings").send(&mail()).await;
        assert!(matches!(result, SendResult::Failed(_)), "{result:?}");
    }

    #[test]
    fn no_input_breaks_out_of_its_header_field() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        let plain = sender.message(&mail()).expect("valid settings").formatted();
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
        let evil = sender.message(&evil).expect("valid settings").formatted();
        assert_eq!(fields(&evil), fields(&plain));
        let to = "a@example.org\r\nBcc: all@example.org";
        assert!(sender.message(&NewMail { to: to.to_owned(), ..mail() }).is_err());
    }

    #[test]
    fn the_message_id_depends_on_the_key_alone() {
        let sender = SmtpSender::new(&settings("smtp://localhost")).expect("valid settings");
        let id = |key: &str| {
            let mail = NewMail { key: key.to_owned(), ..mail() };
            let message = sender.message(&mail).expect("valid settings");
            message.headers().get_raw("Message-ID").expect("it has one").to_owned()
        };
        assert_eq!(id("one"), id("one"));
        assert_ne!(id("one"), id("two"));
    }

    #[test]
    fn invalid_settings_are_reported_without_the_password() {
        for url in ["http://u:hunter2@host", "smtp:", "smtp://", "hunter2", "smtps://u:%ff@h"] {
            let error = SmtpSender::new(&settings(url)).err().expect(url);
            assert_eq!(error, SmtpError::Url, "{url}");
            assert!(!error.to_string().contains("hunter2"));
        }
        let from = settings::MailSettings { from: "owner".to_owned(), ..settings("smtp://host") };
        assert_eq!(SmtpSender::new(&from).err(), Some(SmtpError::From));
    }
}
