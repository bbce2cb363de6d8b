//! Classifies transport errors into outcomes and reasons, and parses `Retry-After`.
//!
//! Invariant: a shortage of this machine (descriptors, memory, ports, no reply of its resolver) is
//! never the receiver's failure.

use std::error::Error;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use rustls::{AlertDescription as Alert, CertificateError, InvalidMessage, PeerIncompatible};
use weir_common::time::{UnixTime, micros};

use crate::delivery::connection::ConnectError;
use crate::delivery::egress::AddressError;
use crate::delivery::egress::dns::is_shortage;
use crate::delivery::proxy::ProxyError;
use crate::delivery::read_limit::OverLimit;
use crate::domain::outcome::{Failure, Fault, Outcome};
use crate::domain::trace::Reason;

/// The outcome of an attempt that ended in an error.
#[must_use]
pub fn outcome_of(error: &(dyn Error + 'static), handshaking: bool) -> Outcome {
    let chain = || std::iter::successors(Some(error), |e| cause(*e));
    if let Some(fault) = chain().find_map(fault_of) {
        return Outcome::Internal(match error.downcast_ref() {
            // The receiver may have the request.
            Some(ConnectError::Http(_)) => Fault::Stalled,
            _ => fault,
        });
    }
    let failure = chain().find_map(|e| failure_of(e, handshaking));
    Outcome::Failed(failure.unwrap_or(Failure::Connection))
}

/// Why a handshake or an exchange failed; `received` counts the bytes of the response. `None` for
/// other errors, whose outcome is all that is shown.
pub(crate) fn reason_of(error: &ConnectError, received: u64) -> Option<Reason> {
    let handshaking = match error {
        ConnectError::Handshake(_) => true,
        ConnectError::Http(_) => false,
        ConnectError::Address(_) | ConnectError::Connect(_) | ConnectError::Proxy(_) => {
            return None;
        }
    };
    let chain = std::iter::successors(Some(error as &(dyn Error + 'static)), |e| cause(*e));
    let found = chain.filter_map(|error| {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(tls_reason(error));
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return http_reason(error);
        }
        use io::ErrorKind as Kind;
        let error = error.downcast_ref::<io::Error>()?;
        match error.kind() {
            Kind::InvalidData if error.get_ref().is_some_and(|e| e.is::<OverLimit>()) => {
                Some(Reason::TooLong)
            }
            Kind::ConnectionReset | Kind::ConnectionAborted if !handshaking => {
                Some(Reason::Reset(received))
            }
            _ => None,
        }
    });
    let ended = if handshaking { Reason::HandshakeBroken } else { Reason::Closed(received) };
    Some(found.last().unwrap_or(ended))
}

/// The reason of an attempt whose webhook has a certificate that expires at `expires`.
pub(crate) fn of_certificate(reason: Reason, expires: UnixTime, now: UnixTime) -> Reason {
    match reason {
        Reason::HandshakeRefused | Reason::TlsAlgorithm if expires <= now => {
            Reason::ClientCertificateExpired(expires)
        }
        reason => reason,
    }
}

/// Whether closing idle connections helps against a shortage: they hold descriptors and memory; a
/// local port that is closed is not free at once.
pub(crate) fn is_eased_by_closing(error: &ConnectError) -> bool {
    let mut chain =
        std::iter::successors(Some(error as &(dyn Error + 'static)), |error| cause(*error));
    !chain.any(|error| {
        let error = error.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
    })
}

fn http_reason(error: &hyper::Error) -> Option<Reason> {
    if error.is_parse_too_large() {
        Some(Reason::TooLong)
    } else if error.is_parse() {
        Some(Reason::NotHttp)
    } else {
        None
    }
}

fn tls_reason(error: &rustls::Error) -> Reason {
    match error {
        rustls::Error::InvalidCertificate(error) => certificate_reason(error),
        rustls::Error::NoCertificatesPresented => Reason::CertificateInvalid,
        rustls::Error::AlertReceived(Alert::ProtocolVersion)
        | rustls::Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            Reason::TlsVersion
        }
        rustls::Error::AlertReceived(Alert::HandshakeFailure | Alert::InsufficientSecurity) => {
            Reason::TlsAlgorithm
        }
        rustls::Error::AlertReceived(_) => Reason::HandshakeRefused,
        rustls::Error::InvalidMessage(
            InvalidMessage::HandshakePayloadTooLarge | InvalidMessage::CertificatePayloadTooLarge,
        ) => Reason::CertificateTooLarge,
        // What arrived was no handshake.
        _ => Reason::NoTls,
    }
}

fn certificate_reason(error: &CertificateError) -> Reason {
    let time =
        |time: &rustls::pki_types::UnixTime| UnixTime(time.as_secs().saturating_mul(1_000_000));
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            Reason::CertificateExpired(time(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            Reason::CertificateNotYetValid(time(not_before))
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Reason::CertificateForOtherHost
        }
        CertificateError::UnknownIssuer => Reason::CertificateUnknownIssuer,
        CertificateError::Revoked => Reason::CertificateRevoked,
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            Reason::CertificateAlgorithm
        }
        // What plain `openssl req -x509` makes; rustls has no variant for this error of webpki.
        CertificateError::Other(error) if error.to_string() == "CaUsedAsEndEntity" => {
            Reason::CertificateSelfSigned
        }
        _ => Reason::CertificateInvalid,
    }
}

/// The cause of an error. An `io::Error` that wraps an error reports that error's cause as its own.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match carried {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

/// The fault of the dispatcher that an error shows, if any.
fn fault_of(error: &(dyn Error + 'static)) -> Option<Fault> {
    match error.downcast_ref::<ProxyError>() {
        Some(ProxyError::Unusable(error)) if is_shortage(error) => return Some(Fault::Resources),
        // A status that says nothing of the receiver.
        Some(ProxyError::Unusable(_)) => return Some(Fault::Proxy),
        Some(ProxyError::Refused(status)) if failure_by_proxy(*status).is_none() => {
            return Some(Fault::Proxy);
        }
        Some(ProxyError::Refused(_)) | None => {}
    }
    match error.downcast_ref::<AddressError>() {
        Some(AddressError::Unanswered) => return Some(Fault::Resolver),
        Some(AddressError::Shortage) => return Some(Fault::Resources),
        Some(AddressError::NoAddress) | None => {}
    }
    error.downcast_ref::<io::Error>().filter(|error| is_shortage(error)).map(|_| Fault::Resources)
}

fn failure_of(error: &(dyn Error + 'static), handshaking: bool) -> Option<Failure> {
    if let Some(ProxyError::Refused(status)) = error.downcast_ref() {
        return failure_by_proxy(*status);
    }
    if error.is::<AddressError>() {
        return Some(Failure::Dns);
    }
    if error.is::<rustls::Error>() {
        return Some(Failure::Tls);
    }
    use io::ErrorKind as Kind;
    match error.downcast_ref::<io::Error>()?.kind() {
        // A local firewall denies permission.
        Kind::ConnectionRefused
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::PermissionDenied => Some(Failure::Refused),
        Kind::TimedOut => Some(Failure::Timeout),
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::BrokenPipe
        | Kind::UnexpectedEof
            if handshaking =>
        {
            Some(Failure::Tls)
        }
        _ => None,
    }
}

/// What a proxy's refusal says of the receiver, if anything: its own troubles are not a failure of
/// the receiver.
fn failure_by_proxy(status: u16) -> Option<Failure> {
    match status {
        403 => Some(Failure::BlockedAddress),
        502 | 503 => Some(Failure::Connection),
        504 => Some(Failure::Timeout),
        _ => None,
    }
}

/// The receiver's `Retry-After`, in seconds or as a date; of errors only.
#[must_use]
pub fn retry_after(status: u16, headers: &HeaderMap, now: UnixTime) -> Option<Duration> {
    if !(400..600).contains(&status) {
        return None;
    }
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(UnixTime(micros(date)).since(now))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncRead, ReadBuf, join, sink};

    use super::*;

    fn seconds(status: u16, text: &str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().expect("a value"));
        // 1994-11-06T08:49:07Z.
        retry_after(status, &headers, UnixTime(784_111_747_000_000)).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_parsed_in_seconds_and_as_a_date() {
        assert_eq!(seconds(429, "120"), Some(120));
        assert_eq!(seconds(503, " 0 "), Some(0));
        assert_eq!(seconds(404, "7"), Some(7));
        assert_eq!(seconds(429, "Sun, 06 Nov 1994 08:49:37 GMT"), Some(30));
        assert_eq!(seconds(429, "Sun, 06 Nov 1994 08:49:00 GMT"), Some(0), "it is past");
        assert_eq!(seconds(429, "99999999999999999999999"), Some(u64::MAX));
    }

    #[test]
    fn an_expired_client_certificate_explains_a_refused_handshake_and_nothing_else() {
        let (expires, later) = (UnixTime(7), UnixTime(8));
        let expired = Reason::ClientCertificateExpired(expires);
        assert_eq!(of_certificate(Reason::HandshakeRefused, expires, later), expired);
        assert_eq!(of_certificate(Reason::TlsAlgorithm, expires, later), expired);
        let valid = of_certificate(Reason::HandshakeRefused, later, expires);
        assert_eq!(valid, Reason::HandshakeRefused);
        assert_eq!(of_certificate(Reason::NoTls, expires, later), Reason::NoTls);
    }

    #[test]
    fn an_algorithm_that_is_not_accepted_has_a_reason_of_its_own() {
        let refused = CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: Vec::new(),
            supported_algorithms: Vec::new(),
        };
        assert_eq!(certificate_reason(&refused), Reason::CertificateAlgorithm);
        assert_eq!(certificate_reason(&CertificateError::BadEncoding), Reason::CertificateInvalid);
    }

    #[test]
    fn what_two_sides_of_a_handshake_lack_in_common_is_named() {
        let alert = rustls::Error::AlertReceived;
        for (error, words) in [
            (alert(Alert::ProtocolVersion), "the server speaks no TLS version that we"),
            (PeerIncompatible::ServerDoesNotSupportTls12Or13.into(), "the server speaks no TLS v"),
            (alert(Alert::HandshakeFailure), "the server found no TLS algorithm in c"),
            (alert(Alert::InsufficientSecurity), "the server found no TLS algorithm "),
            (alert(Alert::CertificateRequired), "the server refused the TLS handshake"),
            (InvalidMessage::HandshakePayloadTooLarge.into(), "the TLS certificate and its chain"),
            (InvalidMessage::CertificatePayloadTooLarge.into(), "the TLS certificate and its ch"),
            (InvalidMessage::InvalidContentType.into(), "the server speaks no TLS on this port"),
        ] {
            let found = tls_reason(&error).in_words();
            assert!(found.starts_with(words), "{error:?}: {found}");
        }
    }

    /// A connection on which there is no memory to read.
    struct NoMemory;

    impl AsyncRead for NoMemory {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::from_raw_os_error(12)))
        }
    }

    #[tokio::test]
    async fn a_shortage_after_the_request_leaves_the_reply_unknown() {
        let stream = TokioIo::new(join(NoMemory, sink()));
        let (mut sender, connection) = http1::handshake(stream).await.expect("a connection");
        let request = Request::post("/").body(Full::new(Bytes::new())).expect("a request");
        let (sent, _) = tokio::join!(sender.send_request(request), connection);
        let error = ConnectError::Http(sent.expect_err("no memory"));
        let outcome = outcome_of(&error, false);
        assert_eq!(outcome, Outcome::Internal(Fault::Stalled), "the receiver may have it");
        let before = ConnectError::Connect(io::Error::from_raw_os_error(12));
        assert_eq!(outcome_of(&before, false), Outcome::Internal(Fault::Resources));
    }

    #[test]
    fn an_invalid_retry_after_is_ignored() {
        for text in ["", "soon", "-1", "+5", "1.5", "1e3", "0x10", "Sun, 06 Nov", "5 seconds"] {
            assert_eq!(seconds(429, text), None, "{text}");
        }
        assert_eq!(seconds(200, "5"), None);
        assert_eq!(seconds(302, "5"), None);
        assert_eq!(retry_after(429, &HeaderMap::new(), UnixTime(0)), None);
    }

    #[test]
    fn a_shortage_of_this_machine_is_found_by_its_error_number() {
        for number in [12, 23, 24, 98, 99, 105] {
            assert!(is_shortage(&io::Error::from_raw_os_error(number)), "{number}");
        }
        for number in [104, 110, 111, 113] {
            assert!(!is_shortage(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }

    #[test]
    fn the_cause_inside_of_an_io_error_is_found() {
        let carried = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        let outer = io::Error::other(carried);
        let below = cause(&outer).and_then(cause).expect("two lie below");
        assert_eq!(failure_of(below, false), Some(Failure::Tls));
    }
}
