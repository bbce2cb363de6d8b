//! The flags that end connections, on a stop or after an upgrade.

use tokio::sync::watch;

/// The flags that end connections.
#[derive(Clone)]
pub struct Drain {
    /// When true, they close after their next response; an idle one may still send one request.
    pub close_after_response: watch::Receiver<bool>,
    /// When true, idle ones close at once.
    pub close_idle: watch::Receiver<bool>,
    /// When true, tunnels get a close frame.
    pub close_tunnels: watch::Receiver<bool>,
}

/// Waits until `flag` is true, or its sender is dropped.
pub async fn wait_until_true(flag: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = flag.wait_for(|flag| *flag).await;
}
