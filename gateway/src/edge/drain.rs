//! Waits for a flag that ends connections, on a stop or after an upgrade.

use tokio::sync::watch;

/// Waits until `flag` is true, or its sender is dropped.
pub async fn turned(flag: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = flag.wait_for(|flag| *flag).await;
}
