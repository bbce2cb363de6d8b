//! What is in force: the settings, the tokens and the directory, swapped as one by a reload.

use std::sync::Arc;

use weir_common::directory::Directory;

use crate::auth::Tokens;
use crate::deliver::Courier;
use crate::egress::Rules;
use crate::settings::Settings;

/// Everything that a reload changes.
pub struct Force {
    /// The settings.
    pub settings: Settings,
    /// Who may call.
    pub tokens: Tokens,
    /// Who the owners are.
    pub directory: Directory,
    /// Which URLs and addresses may be called.
    pub egress: Arc<Rules>,
    /// Who calls them.
    pub courier: Arc<Courier>,
}
