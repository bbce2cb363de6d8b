//! All mails that were ever queued.

use std::collections::BTreeMap;

use weir_common::time::UnixTime;

/// A mail, as the mail server saw it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Letter {
    pub(crate) tries: u32,
    /// The earliest next try.
    pub(crate) next: UnixTime,
    pub(crate) over: bool,
    pub(crate) lost: bool,
    /// Something newer of its webhook has withdrawn it.
    pub(crate) withdrawn: bool,
}

/// All mails that were ever queued.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) letters: BTreeMap<String, Letter>,
    /// Some of them may have been lost.
    pub(crate) doubt: bool,
}

impl Outbox {
    pub(crate) fn written(&mut self, key: String) {
        self.letters.entry(key).or_default();
    }
}
