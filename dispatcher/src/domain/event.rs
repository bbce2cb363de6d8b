//! The event types, and sets of them. (core)

/// The type of an event: what happened, or a test of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventType {
    /// A new user completed signup.
    UserCreated,
    /// A user's e-mail, name or attributes changed.
    UserUpdated,
    /// A user was deleted.
    UserDeleted,
    /// A login succeeded.
    SessionStarted,
    /// A logout or an expiry.
    SessionEnded,
    /// A tenant was created.
    TenantCreated,
    /// A tenant was deleted.
    TenantDeleted,
    /// The workspace changed plan.
    PlanChanged,
    /// A payment failed.
    SubscriptionPastDue,
    /// Usage crossed 80, 95 or 100 %.
    MauThresholdWarning,
    /// The spending cap was reached.
    SignupsBlocked,
    /// A test that the webhook's owner requested; no webhook subscribes to it.
    Ping,
}

impl EventType {
    /// The types that a webhook may subscribe to and a backend may send.
    pub const ALL: [Self; 11] = [
        Self::UserCreated,
        Self::UserUpdated,
        Self::UserDeleted,
        Self::SessionStarted,
        Self::SessionEnded,
        Self::TenantCreated,
        Self::TenantDeleted,
        Self::PlanChanged,
        Self::SubscriptionPastDue,
        Self::MauThresholdWarning,
        Self::SignupsBlocked,
    ];

    /// The name in envelopes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UserCreated => "user.created",
            Self::UserUpdated => "user.updated",
            Self::UserDeleted => "user.deleted",
            Self::SessionStarted => "session.started",
            Self::SessionEnded => "session.ended",
            Self::TenantCreated => "tenant.created",
            Self::TenantDeleted => "tenant.deleted",
            Self::PlanChanged => "plan.changed",
            Self::SubscriptionPastDue => "subscription.past_due",
            Self::MauThresholdWarning => "mau.threshold_warning",
            Self::SignupsBlocked => "signups_blocked",
            Self::Ping => "webhook.ping",
        }
    }

    /// The type with this name, pings included.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Ping]).find(|one| one.name() == name)
    }

    /// The type with this [`EventType::code`].
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Ping]).find(|one| one.code() == code)
    }

    /// The stored code. A code never changes its meaning.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The event types that a webhook subscribes to, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSet(pub u16);

impl EventSet {
    /// The set of these types.
    #[must_use]
    pub fn of(types: impl IntoIterator<Item = EventType>) -> Self {
        Self(types.into_iter().fold(0, |set, one| set | 1 << one.code()))
    }

    /// Whether the set contains `one`.
    #[must_use]
    pub fn has(self, one: EventType) -> bool {
        self.0 & 1 << one.code() != 0
    }

    /// The types in the set, in the order of [`EventType::ALL`].
    pub fn types(self) -> impl Iterator<Item = EventType> {
        EventType::ALL.into_iter().filter(move |one| self.has(*one))
    }
}
