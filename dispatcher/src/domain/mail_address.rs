//! Addresses of mails, in ASCII as far as their server needs no extension. (core)

use lettre::Address;
use url::Host;

/// An address whose domain has its ASCII form: only the part before it may need SMTPUTF8.
#[must_use]
pub fn with_a_labels(address: Address) -> Option<Address> {
    if address.domain().is_ascii() {
        return Some(address);
    }
    let domain = Host::parse(address.domain()).ok()?;
    Address::new(address.user(), domain.to_string()).ok()
}
