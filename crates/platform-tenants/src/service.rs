use std::sync::{Arc, Mutex};

use platform_core::{Clock, Timestamp};
use platform_db::{Bus, Capacity, Db, InvalidatedCache};

use crate::{
    Quotas,
    quota::Payers,
    tenant::{TENANT, TenantInfo},
};

/// Tenants that are remembered as seen.
const MAX_REMEMBERED: u64 = 100_000;
/// `lastSeenAt` is written at most this often.
const SEEN_MS: i64 = 60_000;

/// Tenants and their usage on PostgreSQL.
pub struct PgTenantService {
    pub(crate) db: Db,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) quotas: Arc<Quotas>,
    /// When a tenant or end user was written last, and with what.
    pub(crate) seen: Arc<InvalidatedCache<Payers, Seen>>,
}

pub(crate) struct Seen(Mutex<(Timestamp, TenantInfo)>);

impl Seen {
    pub fn new(now: Timestamp, info: &TenantInfo) -> Self {
        Self(Mutex::new((now, info.clone())))
    }

    /// Whether it is to be written again; who asks does it.
    pub fn is_due(&self, now: Timestamp, info: &TenantInfo) -> bool {
        let mut last = self.0.lock().expect("lock");
        let due = now.0 - last.0.0 >= SEEN_MS || last.1 != *info;
        if due {
            *last = (now, info.clone());
        }
        due
    }
}

impl PgTenantService {
    /// Tells the quotas, and other processes over the bus, when rules change.
    pub fn new(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, quotas: Arc<Quotas>) -> Self {
        let seen = InvalidatedCache::new(bus, TENANT, Capacity::Entries(MAX_REMEMBERED));
        Self { db: db.clone(), clock, quotas, seen }
    }
}
