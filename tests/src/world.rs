//! A gateway, and a server for each upstream of its configuration.

use std::io;
use std::ops::Deref;

use crate::authority::Authority;
use crate::client::Client;
use crate::config::{Config, DIRECTORY};
use crate::gateway::Gateway;
use crate::request::{CONTROL, Request, data_host};
use crate::response::Response;
use crate::upstream::Upstream;

/// Everything one test needs.
pub struct World {
    /// The upstream of the control plane.
    pub control: Upstream,
    /// The upstream of the data plane.
    pub data: Upstream,
    /// The upstream of webhooks and the dashboard.
    pub dispatcher: Upstream,
    /// The gateway in front of them.
    pub gateway: Gateway,
    config: Config,
    /// The signer of the gateway's certificate, if clients use TLS.
    authority: Option<Authority>,
}

/// A world whose clients use TLS, for tests whose results must be the same with TLS.
pub struct Secure(World);

impl Secure {
    /// The default configuration as `change` changes it, and the default directory.
    #[track_caller]
    pub fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let authority = Authority::of_server();
        let entry = authority.entry_of("server");
        let mut world = World::with(|config| change(config).with("[[server.https]]", &entry));
        world.authority = Some(authority);
        Self(world)
    }

    /// The default configuration and directory.
    #[track_caller]
    pub fn new() -> Self {
        Self::with(|config| config)
    }
}

impl Default for Secure {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Secure {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl World {
    /// The default configuration and directory.
    #[track_caller]
    pub fn new() -> Self {
        Self::with(|config| config)
    }

    /// The default configuration as `change` changes it, and the default directory.
    #[track_caller]
    pub fn with(change: impl FnOnce(Config) -> Config) -> Self {
        Self::of(change, DIRECTORY)
    }

    /// The default configuration as `change` changes it, and another directory.
    #[track_caller]
    pub fn of(change: impl FnOnce(Config) -> Config, directory: &str) -> Self {
        let [control, data, dispatcher] = [(); 3].map(|()| Upstream::start());
        let servers = |upstream: &Upstream| format!("servers = [\"{}\"]", upstream.address());
        let config = Config::default()
            .with("[upstreams.control]", &servers(&control))
            .with("[upstreams.data]", &servers(&data))
            .with("[upstreams.dispatcher]", &servers(&dispatcher));
        let config = change(config);
        let gateway = Gateway::start(&config.to_string(), directory);
        Self { control, data, dispatcher, gateway, config, authority: None }
    }

    /// The configuration the gateway was started with.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// A new connection to the gateway.
    #[track_caller]
    pub fn client(&self) -> Client {
        self.try_client().unwrap_or_else(|error| panic!("connect to the gateway: {error}"))
    }

    /// A new connection to the gateway, which may close it at once.
    pub fn try_client(&self) -> io::Result<Client> {
        match &self.authority {
            None => Client::try_connect(self.gateway.http()),
            Some(authority) => {
                let client = Client::try_connect(&self.gateway.https())?;
                client.try_secured(&authority.trusted(), CONTROL)
            }
        }
    }

    /// One request, on a new connection.
    #[track_caller]
    pub fn call(&self, request: &Request) -> Response {
        self.client().call(request)
    }

    /// One GET to the control plane, on a new connection.
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        self.call(&Request::get(target))
    }

    /// One GET to an instance, on a new connection.
    #[track_caller]
    pub fn get_from(&self, instance: &str, target: &str) -> Response {
        self.call(&Request::get(target).host(&data_host(instance)))
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
