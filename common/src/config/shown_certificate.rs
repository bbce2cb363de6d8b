//! Certificates that a program shows to others, and their end.
//!
//! # Invariant
//!
//! A certificate that expires is logged, once.
//!
//! Not here: how one is read (`certificates`).

use std::time::Duration;

use log::Level;
use rustls::pki_types::CertificateDer;
use serde_json::json;

use crate::config::{certificates, files};
use crate::log::events;
use crate::time::{Clock, UnixTime};

/// How often the clock is compared with their ends.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A certificate that a program shows to others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShownCertificate {
    /// The file that it was read from.
    pub file: String,
    /// When it expires.
    pub expires: UnixTime,
}

impl ShownCertificate {
    /// The first certificate of a chain, which was read from `file`.
    #[must_use]
    pub fn of(file: &str, chain: &[CertificateDer<'_>]) -> Option<Self> {
        let expires = certificates::expires(chain.first()?)?;
        Some(Self { file: file.to_owned(), expires })
    }

    /// The first certificate of a file, where there is one.
    #[must_use]
    pub fn read(file: &str) -> Option<Self> {
        Self::of(file, &files::read_as(file, certificates::chain).ok()?)
    }

    /// A sentence about it, if it has expired at `now`.
    #[must_use]
    pub fn expired(&self, now: UnixTime) -> Option<String> {
        // It is valid throughout its last second.
        let has_expired = now.since(self.expires) >= Duration::from_secs(1);
        let at = self.expires.rfc3339_shown();
        has_expired.then(|| format!("the certificate `{}` expired at {at}", self.file))
    }

    /// Logs that it has expired at `now`, if so.
    pub fn log_expired(&self, now: UnixTime) {
        if let Some(expired) = self.expired(now) {
            events::event(Level::Warn, "certificate expired", &[("detail", json!(expired))]);
        }
    }
}

/// Logs each of the `active` certificates when it expires, without end. Those that have expired
/// before they become active are the caller's.
pub async fn log_expiring(clock: &Clock, active: impl Fn() -> Vec<ShownCertificate>) {
    let mut looked = clock.now().unix;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = clock.now().unix;
        for certificate in newly_expired(active(), looked, now) {
            certificate.log_expired(now);
        }
        looked = now;
    }
}

fn newly_expired(
    all: Vec<ShownCertificate>,
    looked: UnixTime,
    now: UnixTime,
) -> impl Iterator<Item = ShownCertificate> {
    let is_new =
        move |one: &ShownCertificate| one.expired(looked).is_none() && one.expired(now).is_some();
    all.into_iter().filter(is_new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> UnixTime {
        UnixTime(1_800_000_000_000_000).plus(Duration::from_millis(millis))
    }

    fn one(millis: u64) -> ShownCertificate {
        ShownCertificate { file: "own.pem".to_owned(), expires: at(millis) }
    }

    #[test]
    fn a_certificate_has_expired_after_its_last_second() {
        assert_eq!(one(0).expired(at(999)), None);
        let expected = "the certificate `own.pem` expired at 2027-01-15T08:00:00.000Z";
        assert_eq!(one(0).expired(at(1_000)).as_deref(), Some(expected));
    }

    #[test]
    fn a_certificate_expires_in_one_look() {
        let counts = (0..6_000).step_by(700).map(|looked| {
            newly_expired(vec![one(0), one(3_000)], at(looked), at(looked + 700)).count()
        });
        assert_eq!(counts.collect::<Vec<_>>(), [0, 1, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_file_without_a_certificate_has_no_end() {
        assert_eq!(ShownCertificate::read("Cargo.toml"), None);
        let read = ShownCertificate::read("../dispatcher/src/delivery/fixtures/ca.pem");
        assert!(read.is_some_and(|one| one.expires > at(0)));
    }
}
