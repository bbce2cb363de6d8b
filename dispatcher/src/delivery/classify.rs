//! Decides what an error on the way is called, and what a receiver's `Retry-After` asks for.
//!
//! # Invariant
//!
//! What this machine lacks (descriptors, memory, ports, an answer of its resolver) is never the
//! receiver's failure.

use std::error::Error;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use weir_common::time::{UnixTime, micros};

use crate::delivery::egress::AddressError;
use crate::delivery::egress::dns::is_shortage;
use crate::domain::outcome::{Failure, Fault, Outcome};

/// What an attempt that got no answer came to.
#[must_use]
pub fn outcome_of(error: &(dyn Error + 'static), handshaking: bool) -> Outcome {
    let chain = || std::iter::successors(Some(error), |e| cause(*e));
    if let Some(fault) = chain().find_map(fault_of) {
        return Outcome::Internal(fault);
    }
    let failure = chain().find_map(|e| failure_of(e, handshaking));
    Outcome::Failed(failure.unwrap_or(Failure::Connection))
}

/// The error below an error. An `io::Error` that carries one names that one's cause as its own.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match carried {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

/// Which fault of ours an error tells of.
fn fault_of(error: &(dyn Error + 'static)) -> Option<Fault> {
    match error.downcast_ref::<AddressError>() {
        Some(AddressError::Unanswered) => return Some(Fault::Resolver),
        Some(AddressError::Shortage) => return Some(Fault::Resources),
        Some(AddressError::NoAddress) | None => {}
    }
    error.downcast_ref::<io::Error>().filter(|error| is_shortage(error)).map(|_| Fault::Resources)
}

fn failure_of(error: &(dyn Error + 'static), handshaking: bool) -> Option<Failure> {
    if error.is::<AddressError>() {
        return Some(Failure::Dns);
    }
    if error.is::<rustls::Error>() {
        return Some(Failure::Tls);
    }
    use io::ErrorKind as Kind;
    match error.downcast_ref::<io::Error>()?.kind() {
        // Permission is what a firewall of our own denies.
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

/// How long a receiver asks us to wait, in seconds or until a date. Believed of errors alone.
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
    use super::*;

    fn asked(status: u16, text: &str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().expect("a value"));
        // 1994-11-06T08:49:07Z.
        retry_after(status, &headers, UnixTime(784_111_747_000_000)).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date() {
        assert_eq!(asked(429, "120"), Some(120));
        assert_eq!(asked(503, " 0 "), Some(0));
        assert_eq!(asked(404, "7"), Some(7));
        assert_eq!(asked(429, "Sun, 06 Nov 1994 08:49:37 GMT"), Some(30));
        assert_eq!(asked(429, "Sun, 06 Nov 1994 08:49:00 GMT"), Some(0), "it is past");
        assert_eq!(asked(429, "99999999999999999999999"), Some(u64::MAX));
    }

    #[test]
    fn what_is_no_retry_after_asks_for_nothing() {
        for text in ["", "soon", "-1", "+5", "1.5", "1e3", "0x10", "Sun, 06 Nov", "5 seconds"] {
            assert_eq!(asked(429, text), None, "{text}");
        }
        assert_eq!(asked(200, "5"), None);
        assert_eq!(asked(302, "5"), None);
        assert_eq!(retry_after(429, &HeaderMap::new(), UnixTime(0)), None);
    }

    #[test]
    fn a_shortage_of_our_own_is_known_by_its_number() {
        for number in [12, 23, 24, 99, 105] {
            assert!(is_shortage(&io::Error::from_raw_os_error(number)), "{number}");
        }
        for number in [104, 110, 111, 113] {
            assert!(!is_shortage(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }

    #[test]
    fn what_an_io_error_carries_is_found() {
        let carried = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        let outer = io::Error::other(carried);
        let below = cause(&outer).and_then(cause).expect("two lie below");
        assert_eq!(failure_of(below, false), Some(Failure::Tls));
    }
}
