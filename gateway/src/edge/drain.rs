//! The flags that end connections: a stop, or another process that has taken over.

use tokio::sync::watch;

/// Waits until `flag` is true, or its sender is gone.
pub async fn turned(flag: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone.
    let _ = flag.wait_for(|flag| *flag).await;
}
