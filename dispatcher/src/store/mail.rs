//! Mails to owners, as the outbox has them.
//!
//! Not here: their texts (`email::templates`).

use std::collections::BTreeSet;

use weir_common::time::UnixTime;

use crate::domain::id::{MailId, WebhookId};

/// What a mail reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailKind {
    /// Deliveries fail.
    Warning,
    /// Deliveries are paused.
    Paused,
    /// A new secret is needed.
    SecretLost,
}

impl MailKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Warning, Self::Paused, Self::SecretLost];

    /// Those about a webhook's health.
    pub const OF_HEALTH: [Self; 2] = [Self::Warning, Self::Paused];

    /// What a mail's key begins with, before a colon.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Paused => "paused",
            Self::SecretLost => "secret-lost",
        }
    }

    /// The kind of the mail with this key.
    #[must_use]
    pub fn of(key: &str) -> Option<Self> {
        let (name, _) = key.split_once(':')?;
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kinds of earlier mails that are no longer true, or no news, once there is this one. A
    /// webhook without a secret may still be paused, and the other way round.
    #[must_use]
    pub fn replaces(self) -> &'static [Self] {
        match self {
            Self::Warning | Self::Paused => &Self::OF_HEALTH,
            Self::SecretLost => &[Self::Warning, Self::SecretLost],
        }
    }
}

/// A mail to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMail {
    /// The webhook it is about.
    pub webhook: WebhookId,
    /// One address.
    pub to: String,
    /// The subject.
    pub subject: String,
    /// Plain text.
    pub text: String,
    /// Its kind and more. Unique: a second mail with this key is not stored until a month after
    /// the first one's end.
    pub key: String,
}

/// A mail to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuedMail {
    /// To its address.
    Addressed(NewMail),
    /// To the owners of a workspace, who are found when it is due. It has no address, and each
    /// owner's mail has its key with the address behind it.
    ToOwners(Box<str>, NewMail),
    /// None: what waits to be sent about this webhook's health is no longer true.
    Withdrawn(WebhookId),
}

impl QueuedMail {
    /// The webhook it is about.
    #[must_use]
    pub fn webhook(&self) -> WebhookId {
        match self {
            Self::Addressed(mail) | Self::ToOwners(_, mail) => mail.webhook,
            Self::Withdrawn(webhook) => *webhook,
        }
    }
}

impl From<NewMail> for QueuedMail {
    fn from(mail: NewMail) -> Self {
        Self::Addressed(mail)
    }
}

/// A mail that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Its number.
    pub id: MailId,
    /// The content.
    pub mail: NewMail,
    /// The webhook's workspace; unknown for a mail that an earlier version stored.
    pub workspace: Option<Box<str>>,
    /// The number of failed attempts.
    pub failures: u32,
}

/// The result of sending a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The server accepted it.
    Sent,
    /// It failed permanently, or too often.
    Abandoned,
    /// Not sent; retry at this time.
    Again(UnixTime),
}

/// A mail whose recipients are to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnaddressedMail {
    /// Its number.
    pub id: MailId,
    /// The workspace whose owners get it.
    pub workspace: String,
    /// How often they were not found.
    pub failures: u32,
}

/// The result of looking for a mail's recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// One mail for each of these addresses; none if there are none.
    To(BTreeSet<String>),
    /// They were sought too often.
    Abandoned,
    /// Not found now; look again at this time.
    Again(UnixTime),
}
