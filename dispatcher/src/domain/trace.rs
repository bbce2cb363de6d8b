//! What an attempt came across: its address, the duration of each phase, why it failed. (core)
//!
//! # Invariants
//!
//! 1. A trace is a few bytes: every attempt stores one.
//! 2. Neither it nor its words differ between a name without an address and one whose addresses may
//!    not be called: those attempts have an empty trace.
//!
//! Not here: headers and bodies (`transcript`), what an outcome means (`outcome`).

use std::net::IpAddr;
use std::time::Duration;

use weir_common::time::{UnixTime, micros};

use crate::domain::compact::{Reader, Writer};

/// What an attempt came across.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The address that it called.
    pub address: Option<IpAddr>,
    /// Whether it used a connection of an earlier attempt.
    pub reused: bool,
    /// The lookup of the name, if it found an allowed address.
    pub dns: Option<Duration>,
    /// The TCP handshake.
    pub connect: Option<Duration>,
    /// The TLS handshake.
    pub tls: Option<Duration>,
    /// From the request to the end of the response's headers.
    pub first_byte: Option<Duration>,
    /// Why it failed, if more is known than its outcome.
    pub reason: Option<Reason>,
}

/// Why an attempt failed, in more detail than `Failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The certificate was valid until this time.
    CertificateExpired(UnixTime),
    /// The certificate is valid from this time on.
    CertificateNotYetValid(UnixTime),
    /// The certificate names other hosts.
    CertificateForOtherHost,
    /// No trusted authority issued the certificate, or the chain is incomplete.
    CertificateUnknownIssuer,
    /// The certificate is self-signed, or an authority's own.
    CertificateSelfSigned,
    /// The certificate was revoked.
    CertificateRevoked,
    /// The certificate is signed by an algorithm, or with a key, that is not accepted.
    CertificateAlgorithm,
    /// The certificate and its chain are longer than a handshake's message may be.
    CertificateTooLarge,
    /// The certificate is invalid for another reason.
    CertificateInvalid,
    /// The receiver refused the handshake.
    HandshakeRefused,
    /// The same, with a certificate of the webhook that was valid until this time.
    ClientCertificateExpired(UnixTime),
    /// The connection ended during the handshake.
    HandshakeBroken,
    /// The receiver does not speak TLS, or breaks its rules.
    NoTls,
    /// The receiver speaks no version of TLS that is accepted.
    TlsVersion,
    /// The receiver found no algorithm in common: of the key exchange, the cipher, or its
    /// certificate. Of TLS 1.2, some refuse a client without a certificate in the same way.
    TlsAlgorithm,
    /// The connection was reset after as many bytes of the response.
    Reset(u64),
    /// The connection was closed after as many bytes of the response.
    Closed(u64),
    /// The response was not HTTP.
    NotHttp,
    /// The response had no final header within its limit.
    TooLong,
    /// The deadline came before a connection.
    NoConnection,
    /// The deadline came before the end of the TLS handshake.
    NoHandshake,
    /// The deadline came before the end of the response's headers, after as many bytes of them.
    NoAnswer(u64),
}

impl Reason {
    /// The reason in words, to follow `Last attempt:` or `failed:`.
    #[must_use]
    pub fn in_words(self) -> String {
        let words = match self {
            Self::CertificateExpired(at) => {
                return format!("the TLS certificate expired on {}", at.rfc3339());
            }
            Self::CertificateNotYetValid(from) => {
                return format!("the TLS certificate is not valid before {}", from.rfc3339());
            }
            Self::ClientCertificateExpired(at) => {
                let at = at.rfc3339();
                return format!(
                    "the server refused the TLS handshake, and the webhook's client certificate \
                     expired on {at}"
                );
            }
            Self::Reset(bytes) => return broken("was reset", bytes),
            Self::Closed(bytes) => return broken("was closed", bytes),
            Self::NoAnswer(0) => "the request was sent, and no answer came in time",
            Self::NoAnswer(bytes) => {
                return format!("the answer's headers did not end in time, after {bytes} bytes");
            }
            Self::CertificateForOtherHost => "the TLS certificate is for another host name",
            Self::CertificateUnknownIssuer => {
                "the TLS certificate was not issued by a trusted authority, or the server does not \
                 send the whole chain"
            }
            Self::CertificateSelfSigned => {
                "the TLS certificate is self-signed, or an authority's own: the server needs one \
                 that a trusted authority issued for the host"
            }
            Self::CertificateAlgorithm => {
                "the TLS certificate is signed by an algorithm or with a key that is not accepted"
            }
            Self::CertificateTooLarge => {
                "the TLS certificate and its chain are too large: 64 KiB is the most"
            }
            Self::CertificateRevoked => "the TLS certificate was revoked",
            Self::CertificateInvalid => "the TLS certificate is not valid",
            Self::HandshakeRefused => "the server refused the TLS handshake",
            Self::HandshakeBroken => "the connection broke during the TLS handshake",
            Self::NoTls => "the server speaks no TLS on this port, or none that we understand",
            Self::TlsVersion => "the server speaks no TLS version that we do: 1.2 and 1.3",
            Self::TlsAlgorithm => {
                "the server found no TLS algorithm in common, of the key exchange, the cipher or \
                 its certificate's key, or it needs a client certificate"
            }
            Self::NotHttp => "the answer was no HTTP",
            Self::TooLong => "the answer's headers were too long",
            Self::NoConnection => "no connection in time",
            Self::NoHandshake => "the TLS handshake did not end in time",
        };
        words.to_owned()
    }

    /// The stored code and its number. A code never changes its meaning.
    fn code(self) -> (u8, u64) {
        match self {
            Self::CertificateExpired(at) => (1, at.0),
            Self::CertificateNotYetValid(from) => (2, from.0),
            Self::CertificateForOtherHost => (3, 0),
            Self::CertificateUnknownIssuer => (4, 0),
            Self::CertificateRevoked => (5, 0),
            Self::CertificateInvalid => (6, 0),
            Self::HandshakeRefused => (7, 0),
            Self::HandshakeBroken => (8, 0),
            Self::NoTls => (9, 0),
            Self::Reset(bytes) => (10, bytes),
            Self::Closed(bytes) => (11, bytes),
            Self::NotHttp => (12, 0),
            Self::TooLong => (13, 0),
            Self::NoConnection => (14, 0),
            Self::NoHandshake => (15, 0),
            Self::NoAnswer(bytes) => (16, bytes),
            Self::ClientCertificateExpired(at) => (17, at.0),
            Self::CertificateSelfSigned => (18, 0),
            Self::CertificateAlgorithm => (19, 0),
            Self::TlsVersion => (20, 0),
            Self::TlsAlgorithm => (21, 0),
            Self::CertificateTooLarge => (22, 0),
        }
    }

    fn of_code(code: u8, number: u64) -> Option<Self> {
        Some(match code {
            1 => Self::CertificateExpired(UnixTime(number)),
            2 => Self::CertificateNotYetValid(UnixTime(number)),
            3 => Self::CertificateForOtherHost,
            4 => Self::CertificateUnknownIssuer,
            5 => Self::CertificateRevoked,
            6 => Self::CertificateInvalid,
            7 => Self::HandshakeRefused,
            8 => Self::HandshakeBroken,
            9 => Self::NoTls,
            10 => Self::Reset(number),
            11 => Self::Closed(number),
            12 => Self::NotHttp,
            13 => Self::TooLong,
            14 => Self::NoConnection,
            15 => Self::NoHandshake,
            16 => Self::NoAnswer(number),
            17 => Self::ClientCertificateExpired(UnixTime(number)),
            18 => Self::CertificateSelfSigned,
            19 => Self::CertificateAlgorithm,
            20 => Self::TlsVersion,
            21 => Self::TlsAlgorithm,
            22 => Self::CertificateTooLarge,
            _ => return None,
        })
    }
}

fn broken(how: &str, bytes: u64) -> String {
    match bytes {
        0 => format!("the connection {how} before the first byte of an answer"),
        bytes => format!("the connection {how} after {bytes} bytes of the answer"),
    }
}

/// The bits of the first stored byte; the fields follow in this order.
const REUSED: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 4;
const DNS: u8 = 8;
const CONNECT: u8 = 16;
const TLS: u8 = 32;
const FIRST_BYTE: u8 = 64;
const REASON: u8 = 128;

impl Trace {
    /// Whether the request was sent, to a receiver that speaks TLS or not.
    #[must_use]
    pub fn is_sent(&self, tls: bool) -> bool {
        self.reused || (self.connect.is_some() && (!tls || self.tls.is_some()))
    }

    /// From the start of an attempt that `took` so long to the latest time at which its request can
    /// have been sent: without a response that is its end.
    #[must_use]
    pub fn sent_within(&self, took: Duration) -> Duration {
        took.saturating_sub(self.first_byte.unwrap_or_default())
    }

    /// Why the deadline came first: the phase that had not ended. `received` counts the bytes of
    /// the response.
    #[must_use]
    pub fn timed_out(&self, tls: bool, received: u64) -> Reason {
        if self.is_sent(tls) {
            Reason::NoAnswer(received)
        } else if self.connect.is_some() {
            Reason::NoHandshake
        } else {
            Reason::NoConnection
        }
    }

    /// The stored form; `None` if there is nothing to store.
    #[must_use]
    pub fn stored(&self) -> Option<Vec<u8>> {
        if *self == Self::default() {
            return None;
        }
        let (mut flags, mut rest) = (0, Writer::default());
        if self.reused {
            flags |= REUSED;
        }
        match self.address {
            Some(IpAddr::V4(four)) => {
                flags |= IPV4;
                rest.bytes(&four.octets());
            }
            Some(IpAddr::V6(six)) => {
                flags |= IPV6;
                rest.bytes(&six.octets());
            }
            None => {}
        }
        for (bit, phase) in self.phases() {
            if let Some(took) = phase {
                flags |= bit;
                rest.number(micros(took));
            }
        }
        if let Some(reason) = self.reason {
            let (code, number) = reason.code();
            flags |= REASON;
            rest.bytes(&[code]);
            rest.number(number);
        }
        let mut stored = Writer::default();
        stored.bytes(&[flags]);
        stored.bytes(&rest.written);
        Some(stored.written)
    }

    /// The trace of its stored form; `None` if that is damaged.
    #[must_use]
    pub fn of_stored(stored: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(stored);
        let flags = reader.byte()?;
        let mut trace = Self { reused: flags & REUSED != 0, ..Self::default() };
        if flags & IPV4 != 0 {
            trace.address = Some(IpAddr::from(reader.array::<4>()?));
        }
        if flags & IPV6 != 0 {
            trace.address = Some(IpAddr::from(reader.array::<16>()?));
        }
        for (bit, phase) in [
            (DNS, &mut trace.dns),
            (CONNECT, &mut trace.connect),
            (TLS, &mut trace.tls),
            (FIRST_BYTE, &mut trace.first_byte),
        ] {
            if flags & bit != 0 {
                *phase = Some(Duration::from_micros(reader.number()?));
            }
        }
        if flags & REASON != 0 {
            let code = reader.byte()?;
            trace.reason = Reason::of_code(code, reader.number()?);
        }
        Some(trace)
    }

    fn phases(&self) -> [(u8, Option<Duration>); 4] {
        [(DNS, self.dns), (CONNECT, self.connect), (TLS, self.tls), (FIRST_BYTE, self.first_byte)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-02-03T04:05:06Z.
    const TIME: UnixTime = UnixTime(1_770_091_506_000_000);

    #[test]
    fn every_reason_has_words_of_its_own_and_is_read_back() {
        let table = [
            (Reason::CertificateExpired(TIME), "the TLS certificate expired on 2026-02-03T04:05"),
            (Reason::CertificateNotYetValid(TIME), "the TLS certificate is not valid before 2026-"),
            (Reason::CertificateForOtherHost, "the TLS certificate is for another host name"),
            (Reason::CertificateUnknownIssuer, "the TLS certificate was not issued by a trusted"),
            (Reason::CertificateRevoked, "the TLS certificate was revoked"),
            (Reason::CertificateInvalid, "the TLS certificate is not valid"),
            (Reason::HandshakeRefused, "the server refused the TLS handshake"),
            (Reason::HandshakeBroken, "the connection broke during the TLS handshake"),
            (Reason::NoTls, "the server speaks no TLS on this port"),
            (Reason::Reset(0), "the connection was reset before the first byte of an answer"),
            (Reason::Reset(17), "the connection was reset after 17 bytes of the answer"),
            (Reason::Closed(0), "the connection was closed before the first byte of an answer"),
            (Reason::Closed(9), "the connection was closed after 9 bytes of the answer"),
            (Reason::NotHttp, "the answer was no HTTP"),
            (Reason::TooLong, "the answer's headers were too long"),
            (Reason::NoConnection, "no connection in time"),
            (Reason::NoHandshake, "the TLS handshake did not end in time"),
            (Reason::NoAnswer(0), "the request was sent, and no answer came in time"),
            (Reason::NoAnswer(5), "the answer's headers did not end in time, after 5 bytes"),
            (
                Reason::ClientCertificateExpired(TIME),
                "the server refused the TLS handshake, and the webhook's client certificate \
                 expired on 2026-02-03T04:05",
            ),
            (Reason::CertificateSelfSigned, "the TLS certificate is self-signed, or an authority"),
            (Reason::CertificateAlgorithm, "the TLS certificate is signed by an algorithm or with"),
            (Reason::TlsVersion, "the server speaks no TLS version that we do: 1.2 and 1.3"),
            (Reason::TlsAlgorithm, "the server found no TLS algorithm in common, of the key"),
            (Reason::CertificateTooLarge, "the TLS certificate and its chain are too large"),
        ];
        let mut codes = Vec::new();
        for (reason, words) in table {
            assert!(reason.in_words().starts_with(words), "{}", reason.in_words());
            let trace = Trace { reason: Some(reason), ..Trace::default() };
            assert_eq!(trace.stored().and_then(|stored| Trace::of_stored(&stored)), Some(trace));
            codes.push(reason.code().0);
        }
        codes.dedup();
        assert_eq!(codes, (1..=22).collect::<Vec<_>>());
    }

    #[test]
    fn a_trace_is_read_back_and_a_usual_one_is_small() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let reused = Trace {
            address: Some([203, 0, 113, 7].into()),
            reused: true,
            first_byte: ms(12),
            ..Trace::default()
        };
        let all = Trace {
            address: Some([7; 16].into()),
            reused: false,
            dns: ms(0),
            connect: ms(20),
            tls: ms(40),
            first_byte: ms(9_999),
            reason: Some(Reason::Closed(64 * 1024)),
        };
        for (trace, bytes) in [(reused, 7), (all, 32)] {
            let stored = trace.stored().expect("it is not empty");
            assert!(stored.len() <= bytes, "{} bytes", stored.len());
            assert_eq!(Trace::of_stored(&stored), Some(trace));
            for end in 0..stored.len() {
                assert_eq!(Trace::of_stored(&stored[..end]), None, "{end} bytes of it");
            }
        }
        assert_eq!(Trace::default().stored(), None);
    }

    #[test]
    fn a_deadline_names_the_phase_that_had_not_ended() {
        let took = Some(Duration::ZERO);
        let looked_up = Trace { dns: took, ..Trace::default() };
        let connected = Trace { connect: took, ..looked_up };
        let secured = Trace { tls: took, ..connected };
        let reused = Trace { reused: true, ..Trace::default() };
        for (trace, tls, expected) in [
            (looked_up, true, Reason::NoConnection),
            (connected, true, Reason::NoHandshake),
            (connected, false, Reason::NoAnswer(3)),
            (secured, true, Reason::NoAnswer(3)),
            (reused, true, Reason::NoAnswer(3)),
        ] {
            assert_eq!(trace.timed_out(tls, 3), expected, "{trace:?}");
        }
    }
}
