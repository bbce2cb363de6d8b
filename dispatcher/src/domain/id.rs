//! Numbers that the store gives: each kind is a type of its own.

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);
    )+};
}

ids! {
    /// A webhook's number in the store.
    WebhookId;
    /// A delivery's number in the store; a later one is larger.
    DeliveryId;
    /// An endpoint's number in the store.
    EndpointId;
    /// The number of a job that redelivers by filter.
    JobId;
    /// A mail's number in the store.
    MailId;
}
