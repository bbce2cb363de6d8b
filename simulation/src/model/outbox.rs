//! All mails that were ever to be sent.

use std::collections::BTreeMap;

use weir_common::time::UnixTime;

/// A mail, as its server knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Letter {
    pub(crate) tries: u32,
    /// Not before then.
    pub(crate) next: UnixTime,
    pub(crate) over: bool,
    pub(crate) lost: bool,
}

/// All mails that were ever to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) letters: BTreeMap<String, Letter>,
    /// Some of them may be lost by now.
    pub(crate) doubt: bool,
}

impl Outbox {
    pub(crate) fn written(&mut self, key: String) {
        self.letters.entry(key).or_default();
    }
}
