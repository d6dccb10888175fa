use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use actix_web::HttpRequest;
use ipnet::IpNet;
use platform_access::{Access, Kind, Projects, Resources};
use platform_auth::AuthService;
use platform_db::Db;
use platform_limits::RateLimits;
use tokio_util::sync::CancellationToken;

use crate::{
    cors::Cors,
    gate::{Gate, Rates},
    proxy::ProxiedHosts,
    route::Group,
    table::{Table, TableError},
};

/// Bounds of the HTTP side (contract 00 §14); `connections`: at once, as far as files may be open; 0 = no bound.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each field is the setting of its name")]
pub struct HttpConfig {
    pub public_url: String,
    pub max_json_bytes: usize,
    pub upload_dir: PathBuf,
    pub stream_lifetime: Duration,
    pub stream_keepalive: Duration,
    pub cors_origins: Vec<String>,
    pub trusted_proxies: Vec<IpNet>,
    pub rates: Rates,
    pub connections: usize,
    pub connections_per_address: usize,
    pub bodies_per_address: usize,
    pub streams_per_key: usize,
    pub streams_per_session: usize,
}

/// Told of every request that was answered.
pub trait Observer: Send + Sync {
    /// `route`: the path with its placeholders; `took`: until the head of the answer.
    fn answered(&self, method: &str, route: &'static str, status: u16, took: Duration);
}

/// What the way of a request asks others for.
pub struct Needs {
    /// Whose a credential is.
    pub auth: Arc<dyn AuthService>,
    /// What a caller reaches of the projects of its account.
    pub projects: Arc<dyn Projects>,
    /// Where the records of each kind are.
    pub resources: Vec<(Kind, Arc<dyn Resources>)>,
    /// Where idempotency keys are kept.
    pub db: Db,
    /// How often somebody asked, over all processes.
    pub rates: RateLimits,
    /// Counts what happens, when somebody wants to know.
    pub observer: Option<Arc<dyn Observer>>,
    /// Hosts whose requests are not for the table.
    pub proxied: Option<ProxiedHosts>,
    /// Cancelled when the process shuts down: streams say `reconnect`.
    pub closing: CancellationToken,
}

/// The routes, and what all of them need.
pub struct Http {
    pub(crate) auth: Arc<dyn AuthService>,
    pub(crate) access: Arc<Access>,
    pub(crate) db: Db,
    pub(crate) cors: Cors,
    pub(crate) config: HttpConfig,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) proxied: Option<ProxiedHosts>,
    pub(crate) closing: CancellationToken,
    pub(crate) table: Table,
    pub(crate) gate: Gate,
}

impl Http {
    /// Every route of the groups at `/v1` and `/api/v1`, the root ones at the root.
    ///
    /// # Errors
    /// A route that is not declared whole: a placeholder of no kind, or a kind whose records nobody can place.
    pub fn new(config: HttpConfig, needs: Needs, groups: Vec<Group>) -> Result<Self, TableError> {
        let Needs { auth, projects, resources, db, rates, observer, proxied, closing } = needs;
        let table = Table::new(groups)?;
        let access = Access::new(projects, resources, &table.kinds).map_err(|unknown| {
            let names: Vec<&str> = unknown.iter().map(|kind| kind.name()).collect();
            TableError(format!("Nobody can say where these are, which routes name: {}.", names.join(", ")))
        })?;
        let access = Arc::new(access);
        let (cors, gate) = (Cors::new(config.cors_origins.clone()), Gate::new(rates, &config));
        Ok(Self { auth, access, db, cors, config, observer, proxied, closing, table, gate })
    }

    /// How often and how much at once somebody may ask.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The `OpenAPI` 3.1 document as JSON.
    ///
    /// # Errors
    /// Two types of one name.
    pub fn document(&self) -> Result<&str, TableError> {
        self.table.document()
    }

    /// Who is at the other end of a connection.
    pub(crate) fn client(&self, request: &HttpRequest) -> Option<IpAddr> {
        self.gate.client(request)
    }
}
