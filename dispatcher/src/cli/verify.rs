//! The command `verify`, and the keys with which it and `listen` verify.
//!
//! Not here: the signatures (`delivery::signature`).

use std::path::PathBuf;

use clap::Args;
use weir_common::time::Clock;

use crate::cli::WithSecret;
use crate::cli::listen::ReceiverKey;
use crate::delivery::signature::{self, StandardHeaders};
use crate::domain::webhook::signing_key::PublicKey;

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct WithKey {
    /// A file whose first line is the webhook's secret
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// The secret itself, with whsec_; visible in the list of processes
    #[arg(long)]
    secret: Option<String>,
    /// The webhook's public_key, whpk_…: verifies v1a of webhook-signature instead
    #[arg(long, value_parser = public_key)]
    public_key: Option<PublicKey>,
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    key: WithKey,
    /// The header's value, as t=…,v1=…; with --public-key that of webhook-signature
    #[arg(long)]
    header: String,
    /// The value of webhook-id, with --public-key
    #[arg(long, requires = "public_key")]
    id: Option<String>,
    /// The value of webhook-timestamp, with --public-key
    #[arg(long, requires = "public_key")]
    timestamp: Option<String>,
    /// The file of the body, byte for byte
    #[arg(long)]
    body_file: PathBuf,
    /// Tolerated difference of the signature's time from now, in seconds; 0: any
    #[arg(long, default_value_t = 300)]
    tolerance: u64,
}

impl WithKey {
    pub(super) fn key(self) -> Result<ReceiverKey, String> {
        let Self { secret_file, secret, public_key } = self;
        match public_key {
            Some(key) => Ok(ReceiverKey::Public(key)),
            None => WithSecret { secret_file, secret }.secret().map(ReceiverKey::Secret),
        }
    }
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::of_text(text).ok_or_else(|| "write whpk_ and the base64 of 32 bytes".to_owned())
}

impl Verify {
    pub(super) fn execute(self) -> Result<String, String> {
        let body = std::fs::read(&self.body_file)
            .map_err(|why| format!("cannot read {}: {why}", self.body_file.display()))?;
        let now = Clock::system().now().unix.0 / 1_000_000;
        let tolerance = Some(self.tolerance).filter(|seconds| *seconds > 0).unwrap_or(u64::MAX);
        // The header may be pasted with its name, as logs show it.
        let value = self.header.split_once(": ").map_or(self.header.as_str(), |(_, value)| value);
        let verified = match (self.key.key()?, &self.id, &self.timestamp) {
            (ReceiverKey::Secret(secret), ..) => {
                signature::verify(secret.expose(), value, &body, now, tolerance)
            }
            (ReceiverKey::Public(key), Some(id), Some(timestamp)) => {
                let received = StandardHeaders { id, timestamp, signatures: value, body: &body };
                signature::verify_ed25519(&key, received, now, tolerance)
            }
            (ReceiverKey::Public(_), ..) => {
                let needed = "--id and --timestamp, the values of webhook-id and webhook-timestamp";
                return Err(format!("--public-key needs {needed}"));
            }
        };
        verified
            .map(|()| "the signature is good".to_owned())
            .map_err(|why| format!("the signature is not good: {why}"))
    }
}
