//! Checks one event, and makes of it what is stored and sent.
//!
//! # Invariants
//!
//! 1. `data` is sent byte for byte as it came: numbers of any size, spaces, escapes.
//! 2. An event that passes fits CONTRACT §2.2 and carries nothing of §6.4.
//! 3. The digest depends on what the sender said and on nothing else: not on time, not on names
//!    that we made.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use weir_common::ids::is_identifier;
use weir_common::reader::suggestion;
use weir_common::time::UnixTime;

use super::batch::Item;
use super::forbidden;
use crate::model::EventType;
use crate::serve::refuse::{Flaws, step};
use crate::store::NewEvent;

/// What a name of ours is made of, beside the time.
pub(crate) const ID_RANDOM_BYTES: usize = 10;

/// The longest part of an identifier after its `evt_`.
const ID_REST_MAX: usize = 60;

/// Digits and lower-case letters that sort as their values do, without i, l, o and u.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

const MEMBERS: [&str; 5] = ["type", "workspace_id", "tenant_id", "data", "id"];

/// What `data` of `user.created` must have (CONTRACT §2.2).
const USER_CREATED: [&str; 4] = ["user_id", "email", "name", "via_idp"];

/// An event that was found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked<'a> {
    /// Its name, where the sender gave one.
    pub(crate) id: Option<String>,
    /// What happened.
    pub(crate) kind: EventType,
    /// Where.
    pub(crate) workspace: String,
    /// To whose users.
    pub(crate) tenant: String,
    /// The payload.
    pub(crate) data: &'a str,
}

/// What came of reading an event.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    /// Whose it says to be, be it good or not.
    pub(crate) workspace: Option<String>,
    /// The event, where nothing is wrong with it.
    pub(crate) event: Option<Checked<'a>>,
}

/// Reads one event; `flaws` then names all that is wrong with it.
pub(crate) fn read<'a>(item: &Item<'a>, flaws: &mut Flaws) -> Reading<'a> {
    let before = flaws.count();
    let mut look = Look { item, flaws };
    let given = match serde_json::from_str::<Given<'a>>(item.text) {
        Ok(given) => given,
        Err(_) if !item.text.starts_with('{') => {
            look.wrong("", "must be an object");
            return Reading { workspace: None, event: None };
        }
        Err(error) => {
            look.wrong("", &error.to_string());
            return Reading { workspace: None, event: None };
        }
    };
    for (name, detail) in &given.wrong {
        look.wrong(&step(name), detail);
    }
    let kind = look.required("type", given.kind).and_then(|name| look.kind(&name));
    let workspace = look.required("workspace_id", given.workspace);
    look.prefixed("/workspace_id", workspace.as_deref(), "ws_");
    let tenant = look.required("tenant_id", given.tenant);
    look.prefixed("/tenant_id", tenant.as_deref(), "tn_");
    let id = given.id.and_then(|raw| look.text("id", raw));
    look.id(id.as_deref());
    let data = look.data(given.data, kind);
    let good = flaws.count() == before;
    let event = match (kind, workspace.clone(), tenant, data) {
        (Some(kind), Some(workspace), Some(tenant), Some(data)) if good => {
            Some(Checked { id, kind, workspace, tenant, data })
        }
        _ => None,
    };
    Reading { workspace, event }
}

struct Look<'l, 'a> {
    item: &'l Item<'a>,
    flaws: &'l mut Flaws,
}

impl<'a> Look<'_, 'a> {
    fn wrong(&mut self, below: &str, detail: &str) {
        self.flaws.at(format!("{}{below}", self.item.pointer), self.item.said(detail));
    }

    fn required(&mut self, name: &str, raw: Option<&'a RawValue>) -> Option<String> {
        if raw.is_none() {
            self.wrong(&step(name), "is missing");
        }
        self.text(name, raw?)
    }

    fn text(&mut self, name: &str, raw: &RawValue) -> Option<String> {
        let text = serde_json::from_str(raw.get()).ok();
        if text.is_none() {
            self.wrong(&step(name), "must be a string");
        }
        text
    }

    fn kind(&mut self, name: &str) -> Option<EventType> {
        let kind = EventType::ALL.into_iter().find(|one| one.name() == name);
        if kind.is_none() {
            let names = EventType::ALL.map(EventType::name);
            // A suggestion compares every letter with every letter.
            let meant = (name.len() <= 64).then(|| suggestion(name, &names)).flatten();
            let hint = meant.unwrap_or_else(|| format!("known: {}", names.join(", ")));
            self.wrong("/type", &format!("is no type of event; {hint}"));
        }
        kind
    }

    fn prefixed(&mut self, pointer: &str, text: Option<&str>, prefix: &str) {
        let fits = |text: &str| {
            is_identifier(text) && text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty())
        };
        if text.is_some_and(|text| !fits(text)) {
            let wanted = format!("must be `{prefix}` and letters, digits, _ or -, 64 at most");
            self.wrong(pointer, &wanted);
        }
    }

    fn id(&mut self, id: Option<&str>) {
        let fits = |id: &str| {
            id.strip_prefix("evt_")
                .is_some_and(|rest| rest.len() <= ID_REST_MAX && is_identifier(rest))
        };
        if id.is_some_and(|id| !fits(id)) {
            self.wrong("/id", "must be `evt_` and 1 to 60 letters, digits, _ or -");
        }
    }

    fn data(&mut self, raw: Option<&'a RawValue>, kind: Option<EventType>) -> Option<&'a str> {
        let Some(raw) = raw else {
            self.wrong("/data", "is missing");
            return None;
        };
        if !raw.get().starts_with('{') {
            self.wrong("/data", "must be an object");
            return None;
        }
        let before = self.flaws.count();
        forbidden::check(raw.get(), &format!("{}/data", self.item.pointer), self.flaws);
        if kind == Some(EventType::UserCreated) && self.flaws.count() == before {
            self.user_created(raw);
        }
        Some(raw.get())
    }

    fn user_created(&mut self, data: &'a RawValue) {
        let Ok(user) = serde_json::from_str::<UserCreated<'a>>(data.get()) else { return };
        let given = [user.user_id, user.email, user.name, user.via_idp];
        for (name, raw) in USER_CREATED.into_iter().zip(given) {
            let pointer = format!("/data/{name}");
            let Some(raw) = raw else {
                self.wrong(&pointer, "is missing");
                continue;
            };
            match serde_json::from_str::<String>(raw.get()) {
                Err(_) => self.wrong(&pointer, "must be a string"),
                Ok(text) if name == "email" && !is_address(&text) => {
                    self.wrong(&pointer, "must be an e-mail address");
                }
                Ok(_) => {}
            }
        }
    }
}

/// Something, an `@`, something: what an address is, its host decides.
fn is_address(text: &str) -> bool {
    text.rsplit_once('@').is_some_and(|(local, host)| !local.is_empty() && !host.is_empty())
}

/// The members of an event, unread.
#[derive(Default)]
struct Given<'a> {
    kind: Option<&'a RawValue>,
    workspace: Option<&'a RawValue>,
    tenant: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    /// Members that are not known, or stand here twice.
    wrong: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct UserCreated<'a> {
    #[serde(borrow)]
    user_id: Option<&'a RawValue>,
    #[serde(borrow)]
    email: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    via_idp: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Given<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Given<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given<'de>, A::Error> {
                let mut given = Given::default();
                while let Some(name) = map.next_key::<String>()? {
                    given.take(name, map.next_value()?);
                }
                Ok(given)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

impl<'a> Given<'a> {
    fn take(&mut self, name: String, raw: &'a RawValue) {
        let member = match name.as_str() {
            "type" => &mut self.kind,
            "workspace_id" => &mut self.workspace,
            "tenant_id" => &mut self.tenant,
            "data" => &mut self.data,
            "id" => &mut self.id,
            _ => {
                let meant = (name.len() <= 64).then(|| suggestion(&name, &MEMBERS)).flatten();
                let hint = meant.unwrap_or_else(|| format!("known: {}", MEMBERS.join(", ")));
                return self.wrong.push((name, format!("is unknown; {hint}")));
            }
        };
        if member.replace(raw).is_some() {
            self.wrong.push((name, "stands here twice".to_owned()));
        }
    }
}

impl Checked<'_> {
    /// The event as it is stored; `random` names it where its sender did not.
    pub(crate) fn stored(self, random: &[u8], now: UnixTime, created_at: &str) -> NewEvent {
        let digest = digest(self.kind, &self.workspace, &self.tenant, self.data);
        let id = self.id.unwrap_or_else(|| new_id(now, random));
        let tenant = Some(self.tenant.as_str());
        let body = envelope(&id, self.kind, &self.workspace, tenant, created_at, self.data);
        NewEvent { id: id.into(), workspace: self.workspace.into(), kind: self.kind, body, digest }
    }
}

/// A test's event: nothing happened, to nobody.
pub(crate) fn ping(workspace: &str, random: &[u8], now: UnixTime) -> NewEvent {
    let (id, data) = (new_id(now, random), "{}");
    NewEvent {
        body: envelope(&id, EventType::Ping, workspace, None, &now.rfc3339(), data),
        digest: digest(EventType::Ping, workspace, "", data),
        id: id.into(),
        workspace: workspace.into(),
        kind: EventType::Ping,
    }
}

/// The body of every delivery. Identifiers and times need no escapes; `data` has its own.
fn envelope(
    id: &str,
    kind: EventType,
    workspace: &str,
    tenant: Option<&str>,
    created_at: &str,
    data: &str,
) -> Bytes {
    let tenant = tenant.map_or_else(|| "null".to_owned(), |tenant| format!("\"{tenant}\""));
    let kind = kind.name();
    Bytes::from(format!(
        "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"workspace_id\":\"{workspace}\",\
         \"tenant_id\":{tenant},\"created_at\":\"{created_at}\",\"data\":{data}}}"
    ))
}

fn digest(kind: EventType, workspace: &str, tenant: &str, data: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [kind.name(), workspace, tenant, data] {
        // Each with its length, so that no two events read alike.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// `evt_` and 26 digits: 48 bits of milliseconds, 80 of luck; sorted by time.
fn new_id(now: UnixTime, random: &[u8]) -> String {
    let luck =
        random.iter().take(ID_RANDOM_BYTES).fold(0_u128, |all, one| all << 8 | u128::from(*one));
    let whole = u128::from(now.0 / 1_000) << 80 | luck;
    let digit = |nth: u32| {
        let value = whole.checked_shr(125 - 5 * nth).unwrap_or(0) & 31;
        DIGITS.get(value as usize).copied().map_or('0', char::from)
    };
    "evt_".chars().chain((0..26).map(digit)).collect()
}
