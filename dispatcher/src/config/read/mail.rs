//! Parses the options of mails to owners: the server, the sender.
//!
//! Invariant: a server and a sender that are read here are ones that mails can be sent with.

use lettre::message::Mailbox;
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use url::{Host, Url};
use weir_common::config::document::table::Table;
use weir_common::secret::Secret;

use crate::config::read::wait;
use crate::config::settings::{MailServer, MailSettings, StartOfTls};
use crate::domain::mail_address::with_a_labels;

/// The default ports of the schemes.
const SMTP_PORT: u16 = 25;
const SUBMISSION_PORT: u16 = 587;
const SMTPS_PORT: u16 = 465;

pub(super) fn mail(table: &mut Table<'_>) -> Option<MailSettings> {
    let smtp =
        table.text("smtp", "smtps://user@host, smtp+starttls:// or smtp://. Unset: no mail.");
    table.hide("smtp");
    let doc = "A file whose first line is the SMTP password; reloaded when it changes.";
    let password_file = table.text("password_file", doc);
    let from = table.text("from", "The sender of mails.");
    let link = table.text("link", "The dashboard's URL, prefix of the links in mails.");
    let retry_after = wait(
        table,
        "retry_after",
        "1m",
        "The wait after a mail's first failure; doubled after each further one, up to 1h.",
    );
    if let Some(link) = &link {
        let scheme = Url::parse(&link.value).ok().filter(Url::has_host);
        if scheme.is_none_or(|url| !["http", "https"].contains(&url.scheme())) {
            let message = "mail.link must be an http:// or https:// URL";
            table.fault_at(link.at, format!("{message}, not `{}`", link.value));
        }
    }
    let (has_smtp, has_from) = (smtp.is_some(), from.is_some());
    let sender = from.and_then(|from| {
        let read = sender(&from.value);
        if read.is_none() {
            let message = "mail.from must be a mail address, such as \"weir@example.com\"";
            table.fault_at(from.at, format!("{message}, not `{}`", from.value));
        }
        read
    });
    // The value may contain a password, so errors do not quote it.
    let server = smtp.and_then(|smtp| {
        let read = server(&smtp.value, password_file.is_some());
        read.map_err(|why| table.fault_at(smtp.at, why)).ok()
    });
    if has_smtp != has_from || !has_smtp && (link.is_some() || password_file.is_some()) {
        table.fault("mail.smtp and mail.from must both be set, or neither");
    }
    Some(MailSettings {
        server: server?,
        password: None,
        password_file,
        from: sender?,
        link: link.map(|link| link.value),
        retry_after,
    })
}

/// The sender of a text.
fn sender(text: &str) -> Option<Mailbox> {
    let sender: Mailbox = text.parse().ok()?;
    let email = with_a_labels(sender.email)?;
    Some(Mailbox { email, ..sender })
}

/// The server of a URL. Requires verified TLS, or loopback, for a user and a password.
fn server(text: &str, has_password_file: bool) -> Result<MailServer, &'static str> {
    const FORM: &str = "mail.smtp must be smtps://user@host, smtp+starttls://user@host or \
                        smtp://host, each with :port unless it is the default";
    let url = Url::parse(text).ok().filter(|url| url.port() != Some(0)).ok_or(FORM)?;
    let (port, start_of_tls) = match url.scheme() {
        "smtps" => (SMTPS_PORT, StartOfTls::AtOnce),
        "smtp+starttls" => (SUBMISSION_PORT, StartOfTls::BeforeAll),
        "smtp" => (SMTP_PORT, StartOfTls::IfOffered),
        _ => return Err(FORM),
    };
    let host = url.host_str().and_then(|host| Host::parse(host).ok()).ok_or(FORM)?;
    let is_loopback = match &host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    // Only URLs write an IPv6 address in brackets.
    let host = host.to_string().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|_| FORM)?;
    if !matches!(url.path(), "" | "/") || url.query().or(url.fragment()).is_some() {
        return Err("mail.smtp has a path or a query: remove it; for TLS, write \
                    smtp+starttls:// (port 587) or smtps:// (port 465)");
    }
    let has_user = !url.username().is_empty();
    let has_password = url.password().is_some() || has_password_file;
    let is_plain = start_of_tls == StartOfTls::IfOffered;
    if is_plain && (has_user || has_password) && !is_loopback {
        return Err("mail.smtp has a user, and smtp:// may send the password in the clear: write \
                    smtp+starttls:// (port 587) or smtps:// (port 465)");
    }
    if has_password_file && url.password().is_some() {
        return Err("mail.smtp and mail.password_file both give a password: leave it out of one");
    }
    if has_password_file && !has_user {
        return Err("mail.password_file needs a user in mail.smtp: smtps://user@host");
    }
    let decoded = |text| percent_decode_str(text).decode_utf8().map_err(|_| FORM);
    let (user, password) = (decoded(url.username())?, decoded(url.password().unwrap_or_default())?);
    let login = has_user.then(|| Secret::new((user.into_owned(), password.into_owned())));
    Ok(MailServer { host, name, port: url.port().unwrap_or(port), start_of_tls, login })
}

#[cfg(test)]
mod tests {

    use crate::config::read::tests::check;

    #[test]
    fn mail_needs_a_server_and_a_sender() {
        let good = "[mail]\nsmtp = \"smtps://weir:pass@mail.example.com\"\n\
            from = \"Weir <weir@example.com>\"\nlink = \"https://api.example.com\"";
        let mail = check(good, &[]).mail.expect("all of it is there");
        assert!(!format!("{mail:?}").contains("weir:"), "{mail:?}");
        assert_eq!(mail.link.as_deref(), Some("https://api.example.com"));
        assert_eq!(check("[mail]", &[]).mail, None);
        let both = "d:1:1: mail.smtp and mail.from must both be set, or neither";
        for half in ["smtp = \"smtp://localhost\"", "from = \"a@b.example\""] {
            check(&format!("[mail]\n{half}"), &[both]);
        }
    }

    #[test]
    fn an_error_in_a_mail_server_does_not_quote_its_password() {
        for smtp in [
            "https://u:hunter2@host",
            "smtp:hunter2",
            "hunter2",
            "smtps://u:hunter2@",
            "smtps://u:hunter2%ff@host",
            "smtp://mail.example.com:0",
        ] {
            check(
                &format!("[mail]\nsmtp = \"{smtp}\"\nfrom = \"owner\"\nlink = \"ftp://a\""),
                &[
                    "d:2:8: mail.smtp must be smtps://user@host, smtp+starttls://user@host or \
                     smtp://host, each with :port unless it is the default",
                    "d:3:8: mail.from must be a mail address, such as \"weir@example.com\", \
                     not `owner`",
                    "d:4:8: mail.link must be an http:// or https:// URL, not `ftp://a`",
                ],
            );
        }
    }

    #[test]
    fn a_password_is_never_sent_in_the_clear() {
        let clear = "mail.smtp has a user, and smtp:// may send the password in the clear: write \
            smtp+starttls:// (port 587) or smtps:// (port 465)";
        let twice = "mail.smtp and mail.password_file both give a password: leave it out of one";
        let no_user = "mail.password_file needs a user in mail.smtp: smtps://user@host";
        for (smtp, file, expected) in [
            ("smtps://u:p@mail.example.com", false, None),
            ("smtp+starttls://u:p@mail.example.com:2525", false, None),
            ("smtp://mail.example.com", false, None),
            ("smtp://u:p@localhost", false, None),
            ("smtp://u:p@127.0.0.1:25", false, None),
            ("smtp://u:p@[::1]", false, None),
            ("smtps://u@mail.example.com", true, None),
            ("smtp://u:p@mail.example.com", false, Some(clear)),
            ("smtp://u@mail.example.com", false, Some(clear)),
            ("smtp://u@mail.example.com", true, Some(clear)),
            ("smtp://u:p@10.0.0.1", false, Some(clear)),
            ("smtp://u:p@localhost.example.com", false, Some(clear)),
            ("smtp://u:p@127.0.0.1.example.com", false, Some(clear)),
            ("smtps://u:p@mail.example.com", true, Some(twice)),
            ("smtps://mail.example.com", true, Some(no_user)),
        ] {
            let file = if file { "\npassword_file = \"f\"" } else { "" };
            let text = format!("[mail]\nsmtp = \"{smtp}\"\nfrom = \"a@b.example\"{file}");
            let expected = expected.map(|why| format!("d:2:8: {why}"));
            check(&text, &expected.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_path_or_query_of_a_mail_server_is_refused() {
        let why = "d:2:8: mail.smtp has a path or a query: remove it; for TLS, \
            write smtp+starttls:// (port 587) or smtps:// (port 465)";
        for (end, expected) in [
            ("", None),
            ("/", None),
            ("?tls=required", Some(why)),
            (":25/?tls=required", Some(why)),
            ("/relay", Some(why)),
            ("#tls", Some(why)),
        ] {
            let text = format!("[mail]\nsmtp = \"smtp://localhost{end}\"\nfrom = \"a@b.example\"");
            check(&text, &expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_domain_in_another_script_is_read_as_its_a_labels() {
        let read = |smtp: &str, from: &str, expected: &[&str]| {
            let mail =
                check(&format!("[mail]\nsmtp = \"{smtp}\"\nfrom = \"{from}\""), expected).mail;
            mail.map(|mail| (mail.server.host, mail.from.to_string()))
        };
        let (host, from) = ("xn--bcher-kva.example", "Weir <weir@xn--bcher-kva.example>");
        let found = read("smtp://b\u{fc}cher.example", "Weir <weir@b\u{fc}cher.example>", &[]);
        assert_eq!(found, Some((host.to_owned(), from.to_owned())));
        let form = "d:2:8: mail.smtp must be smtps://user@host, smtp+starttls://user@host or \
            smtp://host, each with :port unless it is the default";
        let no_address = "d:3:8: mail.from must be a mail address, such as \"weir@example.com\", \
            not `weir@xn--a.\u{fc}.example`";
        read("smtps://xn--a.\u{fc}.example", "weir@xn--a.\u{fc}.example", &[form, no_address]);
    }
}
