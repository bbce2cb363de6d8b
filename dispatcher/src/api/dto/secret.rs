//! The bodies of calls about secrets.
//!
//! Invariant: a type with a secret implements no `Debug`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::dto::Time;
use crate::delivery::signature::SECRET_CHARS_MAX;

/// A secret to add.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "NewSecret")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewSecretBody {
    /// The key, brought along from another system: `whsec_` and the base64 of 24 to 64 bytes.
    /// Default: a new one.
    #[schemars(length(max = SECRET_CHARS_MAX))]
    pub(in crate::api) secret: Option<String>,
}

/// A secret just added, which is shown only here.
#[derive(Serialize, JsonSchema)]
pub(in crate::api) struct AddedSecret {
    /// The key that signs deliveries, as the others do, from now on. Keep it.
    pub(in crate::api) secret: String,
    #[serde(flatten)]
    pub(in crate::api) view: SecretView,
}

/// A secret, without itself.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Secret")]
pub(in crate::api) struct SecretView {
    /// Names it: the first 16 digits of the SHA-256 of the whole secret, in hex.
    pub(in crate::api) fingerprint: String,
    /// When it was made; null if an earlier version made it.
    pub(in crate::api) created_at: Option<Time>,
    /// Until when it signs; null: until it is removed or replaced.
    pub(in crate::api) until: Option<Time>,
}

/// The secrets that sign, the current one first.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct SecretList {
    /// The secrets.
    pub(in crate::api) data: Vec<SecretView>,
}

/// A new secret, which is shown only here.
#[derive(Serialize, JsonSchema)]
pub(in crate::api) struct RotatedSecret {
    /// The webhook's identifier.
    pub(in crate::api) id: String,
    /// The key that signs deliveries from now on. Keep it.
    pub(in crate::api) secret: String,
    /// Until when the previous secret signs as well; null if there is none.
    pub(in crate::api) previous_valid_until: Option<Time>,
}
