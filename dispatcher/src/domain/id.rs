//! Row numbers of the store, each kind a type of its own. (core)

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);
    )+};
}

ids! {
    /// A webhook's row.
    WebhookId;
    /// A delivery's row; later deliveries have larger numbers.
    DeliveryId;
    /// An endpoint's row.
    EndpointId;
    /// The row of a redelivery job.
    JobId;
    /// A mail's row.
    MailId;
}
