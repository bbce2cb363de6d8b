//! Mails to the owners of webhooks: the outbox, the SMTP client, the texts.

pub mod outbox;
pub mod smtp;
pub mod templates;
