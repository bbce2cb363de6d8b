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

impl DeliveryId {
    /// Where there is no delivery: only the start of an attempt counts, after a fault of the
    /// dispatcher or once the delivery or webhook was deleted. No delivery has this number.
    pub const NONE: Self = Self(0);
}
