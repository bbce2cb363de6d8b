//! A directory over HTTP: slow, broken, down, changing, and flooded with unknown keys.

mod failures;
mod requests;
mod turns;

use weir_tests::directory::Directory;
use weir_tests::response::Response;
use weir_tests::world::World;

/// A directory, and a world that uses it.
struct Setup {
    directory: Directory,
    world: World,
}

impl Setup {
    /// With these additional lines in `[directory]`.
    #[track_caller]
    fn with(lines: &str) -> Self {
        let directory = Directory::start();
        let world = World::with(|config| directory.within(config, lines));
        Self { directory, world }
    }

    /// A call for a workspace.
    #[track_caller]
    fn get(&self, workspace: &str) -> Response {
        self.world.get(&format!("/v1/workspaces/{workspace}/users"))
    }

    /// The allowance in the headers of such a call.
    #[track_caller]
    fn limit(&self, workspace: &str) -> u64 {
        self.get(workspace).expect(200).allowance().limit
    }

    /// The value of a metric.
    #[track_caller]
    fn metric(&self, name: &str) -> f64 {
        self.world.gateway.metric(name)
    }
}

/// The address of all clients.
const ADDRESS: &str = "127.0.0.1";
