//! Proxies that count limits in one Redis server, and the server.
//!
//! The peer is nginx with a script of two fixed windows (INCR and PEXPIRE), which is what most
//! gateways with shared limits do; it admits up to twice its limit across the end of a window.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use crate::flags::fail;
use crate::lab::{Folder, Process, free_address};
use crate::targets::{Limits, Plane, Target, run_nginx_with, weir_of};

/// A Redis server without persistence.
pub struct RedisServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub process: Process,
}

impl RedisServer {
    /// Starts a server.
    #[must_use]
    pub fn start(folder: &Folder) -> Self {
        let address = free_address();
        let port = address.port().to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let mut process = Process::start(folder, "redis", Path::new("redis-server"), &args);
        process.wait_for(address);
        Self { address, process }
    }

    /// How many scripts it has run, and for how many microseconds.
    #[must_use]
    pub fn scripts(&self) -> [f64; 2] {
        let stats = self.info("commandstats");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let of = |name: &str| {
            let mut fields = line?.split(',');
            fields.find_map(|field| field.strip_prefix(name)?.parse().ok())
        };
        ["calls=", "usec="].map(|name| of(name).unwrap_or(0.0))
    }

    fn info(&self, section: &str) -> String {
        let exchange = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.write_all(format!("INFO {section}\r\nQUIT\r\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        exchange().unwrap_or_else(|error| fail(&format!("redis-server: {error}")))
    }
}

/// weir-gateway with rolling windows on the control plane and a token bucket on the data plane;
/// `redis`: the server and the database that it counts in, or none where it counts in memory.
#[must_use]
pub fn weir(
    folder: &Folder,
    gateway: &Path,
    (upstream, redis): (SocketAddr, Option<(SocketAddr, u8)>),
    (plane, limits): (Plane, Limits),
) -> Target {
    let quota = match (limits, plane) {
        (Limits::Refuse, _) => "algorithm = \"rolling_window\"\nrequests = 1\nwindow = \"1h\"",
        (_, Plane::Data) => "algorithm = \"token_bucket\"\nrate = 1_000_000\nburst = 1_000_000",
        _ => "algorithm = \"rolling_window\"\nrequests = 60_000\nwindow = \"1s\"",
    };
    let (mut name, mut store) = ("weir, memory".to_owned(), String::new());
    if let Some((address, database)) = redis {
        let secret = folder.write("secret", "a secret for benches, of 32 characters or more");
        "weir, Redis".clone_into(&mut name);
        store = format!(
            "[store]\nkind = \"redis\"\nurl = \"redis://{address}/{database}\"\n\
            secret_file = \"{}\"\ntimeout = \"1s\"\n",
            secret.display()
        );
    }
    name += if plane == Plane::Data { ", one bucket" } else { ", two windows" };
    name += if limits == Limits::Refuse { ", refusing" } else { "" };
    weir_of(folder, gateway, upstream, (plane, limits, false), (&name, quota, &store))
}

/// A target that is asked by so many workspaces in turn.
#[must_use]
pub fn many(folder: &Folder, workspaces: u32, mut target: Target) -> Target {
    let script = format!(
        "local all, nth = {{}}, 0
        function init()
            for i = 1, {workspaces} do
                all[i] = wrk.format('GET', '/v1/workspaces/ws_' .. i .. '/users')
            end
        end
        function request() nth = nth % {workspaces} + 1 return all[nth] end"
    );
    target.aim.script = Some(folder.write("many.lua", &script));
    target.name += &format!(", {workspaces} workspaces");
    target
}

/// nginx with two fixed windows in Redis, by workspace and by address.
#[must_use]
pub fn nginx_lua(
    folder: &Folder,
    upstream: SocketAddr,
    redis: SocketAddr,
    limits: Limits,
) -> Target {
    let address = free_address();
    let (name, most) = match limits {
        Limits::Refuse => ("nginx + Lua + Redis, refusing", 1),
        _ => ("nginx + Lua + Redis", 100_000_000),
    };
    let script = "local a = redis.call('INCR', KEYS[1]) if a == 1 then redis.call('PEXPIRE', \
        KEYS[1], ARGV[2]) end local b = redis.call('INCR', KEYS[2]) if b == 1 then \
        redis.call('PEXPIRE', KEYS[2], ARGV[2]) end local most = tonumber(ARGV[1]) if a > most or \
        b > most then return 0 end return 1";
    let http = format!(
        "access_log off;
        lua_package_path '/usr/share/lua/5.1/?.lua;;';
        upstream up {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}
        init_worker_by_lua_block {{ script = [[{script}]] digest = nil }}"
    );
    let (host, port) = (redis.ip(), redis.port());
    let server = format!(
        "listen {address};
        location / {{
            access_by_lua_block {{
                local redis = require('nginx.redis'):new()
                redis:set_timeout(1000)
                local ok, why = redis:connect('{host}', {port})
                if not ok then ngx.log(ngx.ERR, why) return ngx.exit(500) end
                if not digest then digest = redis:script('load', script) end
                local workspace = ngx.var.uri:match('^/v1/workspaces/([^/]+)')
                local admitted = redis:evalsha(digest, 2, 'ws:' .. workspace,
                    'addr:' .. ngx.var.binary_remote_addr, {most}, 60000)
                redis:set_keepalive(60000, 256)
                if admitted == 0 then return ngx.exit(429) end
                if admitted ~= 1 then return ngx.exit(500) end
            }}
            proxy_pass http://up; proxy_http_version 1.1;
            proxy_set_header Connection ''; proxy_set_header Host $host;
        }}"
    );
    let modules = "load_module /usr/lib/nginx/modules/ndk_http_module.so;
        load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;";
    let file = format!("nginx-lua-{most}");
    let process = run_nginx_with(folder, &file, modules, (&http, &server));
    Target::new(name, limits, address, process)
}
