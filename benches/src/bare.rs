//! A minimal proxy with Pingora: the baseline that Weir is compared with.
//!
//! It has no limits, checks or deadlines, so it shows what Pingora itself costs. Not here: the
//! allocator, which each binary chooses.

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::ResponseHeader;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

use crate::flags::fail;

const USAGE: &str = "usage: bare-pingora LISTEN_ADDRESS UPSTREAM_ADDRESS [--refuse] \
    [--tls CERTIFICATE KEY]";
const REFUSAL: &str = r#"{"title":"Too Many Requests","status":429}"#;

struct Bare {
    upstream: String,
    refuse: bool,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn request_filter(&self, session: &mut Session, (): &mut ()) -> Result<bool> {
        if !self.refuse {
            return Ok(false);
        }
        let mut header = ResponseHeader::build(429, Some(2))?;
        header.insert_header("content-type", "application/problem+json")?;
        header.insert_header("content-length", REFUSAL.len())?;
        session.write_response_header(Box::new(header), false).await?;
        session.write_response_body(Some(REFUSAL.into()), true).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(&self.upstream, false, String::new())))
    }
}

/// Serves on one thread until the process is killed.
pub fn serve() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, rest @ ..] = args.as_slice() else {
        eprintln!("{USAGE}");
        std::process::exit(64);
    };
    let conf = ServerConf { threads: 1, work_stealing: false, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    let refuse = rest.iter().any(|flag| flag == "--refuse");
    let bare = Bare { upstream: upstream.clone(), refuse };
    let mut service = http_proxy_service(&server.configuration, bare);
    let tls = rest.iter().skip_while(|flag| *flag != "--tls").skip(1).collect::<Vec<_>>();
    match tls.as_slice() {
        [certificate, key, ..] => {
            let settings = TlsSettings::intermediate(certificate, key);
            let mut settings = settings.unwrap_or_else(|error| fail(&error.to_string()));
            settings.enable_h2();
            service.add_tls_with_settings(listen, None, settings);
        }
        _ => service.add_tcp(listen),
    }
    server.add_service(service);
    server.run_forever();
}
