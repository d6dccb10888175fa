use platform_core::{Caller, Checks, Object, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Whose mail anybody can have: no domain of a tenant.
const PUBLIC_MAIL: [&str; 24] = [
    "163.com",
    "aol.com",
    "fastmail.com",
    "gmail.com",
    "gmx.at",
    "gmx.com",
    "gmx.de",
    "gmx.net",
    "googlemail.com",
    "hotmail.com",
    "icloud.com",
    "live.com",
    "mail.com",
    "mail.ru",
    "me.com",
    "msn.com",
    "outlook.com",
    "proton.me",
    "protonmail.com",
    "qq.com",
    "t-online.de",
    "web.de",
    "yahoo.com",
    "yandex.ru",
];

/// A customer of the account: quotas and costs are its own (contract 10 §1).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// Name in requests.
    pub tenant_id: String,
    /// Name for people.
    pub display_name: String,
    /// Address of its mail.
    pub email: String,
    /// Address of its picture.
    pub image_url: String,
    /// `auto` or `manual`.
    pub image_source: &'static str,
    /// Domain of its mail, unless anybody can have one there.
    pub domain: String,
    /// `auto` or `manual`.
    pub domain_source: &'static str,
    /// How it came to be: `auto`, `manual` or `api`.
    pub source: String,
    /// Its tier; absent = the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_id: Option<String>,
    /// Its end users.
    pub subtenants_count: i64,
    /// First seen at, ISO 8601.
    pub first_seen_at: String,
    /// Last seen at, to the minute.
    pub last_seen_at: String,
    /// What clients noted.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// A rule is spent now.
    pub blocked: bool,
}

/// An end user of a tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subtenant {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// Its tenant.
    pub tenant_id: String,
    /// Name in requests.
    pub subtenant_id: String,
    /// Name for people.
    pub display_name: String,
    /// `auto` or `manual`.
    pub display_name_source: &'static str,
    /// Address of their mail.
    pub email: String,
    /// Domain of it.
    pub email_domain: String,
    /// Address of their picture.
    pub image_url: String,
    /// `auto` or `manual`.
    pub image_source: &'static str,
    /// Their own tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_id: Option<String>,
    /// How they came to be: `auto`, `manual` or `api`.
    pub source: String,
    /// First seen at, ISO 8601.
    pub first_seen_at: String,
    /// Last seen at, to the minute.
    pub last_seen_at: String,
}

/// A page of tenants.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TenantPage {
    /// The tenants, newest first.
    pub items: Vec<Tenant>,
    /// How many there are in all.
    pub total: i64,
}

/// A page of end users.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SubtenantPage {
    /// The end users, newest first.
    pub items: Vec<Subtenant>,
    /// How many there are in all.
    pub total: i64,
}

/// Which tenants or end users.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantFilter {
    /// A part of an id, a name, an address or a domain, in any case.
    pub search: Option<String>,
}

/// A tenant to make.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewTenant {
    /// Name in requests.
    pub tenant_id: String,
    /// Name for people.
    pub display_name: Option<String>,
    /// Address of its mail.
    pub email: Option<String>,
    /// Address of its picture.
    pub image_url: Option<String>,
    /// Domain of its mail.
    pub domain: Option<String>,
    /// Its tier.
    pub tier_id: Option<String>,
    /// What the client notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
}

impl NewTenant {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        if self.tenant_id.is_empty() {
            checks.issue("tenantId", "required", "tenantId is required: 1 to 128 characters");
        } else {
            checks.tenants(Some(&self.tenant_id), None);
        }
        let texts = [&self.display_name, &self.email, &self.image_url, &self.domain];
        check_texts(&mut checks, texts.map(Option::as_deref));
        checks.metadata("metadata", &self.metadata);
        checks.finish()
    }
}

/// What can be changed of a tenant; a field that is set is no longer changed by itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantPatch {
    /// Name for people.
    pub display_name: String,
    /// Address of its mail.
    pub email: String,
    /// Address of its picture.
    pub image_url: String,
    /// Domain of its mail.
    pub domain: String,
    /// What the client notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
}

impl TenantPatch {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        let texts = [&self.display_name, &self.email, &self.image_url, &self.domain];
        check_texts(&mut checks, texts.map(|text| Some(text.as_str())));
        checks.metadata("metadata", &self.metadata);
        checks.finish()
    }
}

/// What can be changed of an end user.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubtenantPatch {
    /// Name for people.
    pub display_name: String,
    /// Address of their mail.
    pub email: String,
    /// Address of their picture.
    pub image_url: String,
}

impl SubtenantPatch {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        let texts = [Some(self.display_name.as_str()), Some(&self.email), Some(&self.image_url), None];
        check_texts(&mut checks, texts);
        checks.finish()
    }
}

fn check_texts(checks: &mut Checks, texts: [Option<&str>; 4]) {
    let fields = [("displayName", 200), ("email", 320), ("imageUrl", 4000), ("domain", 253)];
    for ((field, most), text) in fields.into_iter().zip(texts) {
        if let Some(text) = text {
            checks.length(field, text, 0..=most);
        }
    }
}

/// What a request says of its tenant and end user (contract 10 §1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TenantInfo {
    /// The tenant.
    pub tenant_id: String,
    /// Its end user.
    pub subtenant_id: Option<String>,
    pub(crate) tenant: Facts,
    pub(crate) subtenant: Facts,
}

/// What is known of somebody; empty = nothing was said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Facts {
    pub name: String,
    pub email: String,
    pub image_url: String,
}

impl Facts {
    fn of(fields: &Object) -> Self {
        let text = |names: [&str; 2], most: usize| {
            let given = names.iter().find_map(|name| fields.get(*name)?.as_str()).unwrap_or_default();
            given.chars().take(most).collect()
        };
        Self {
            name: text(["name", "displayName"], 200),
            email: text(["email", "email"], 320),
            image_url: text(["imageUrl", "logoUrl"], 4000),
        }
    }

    fn or(self, other: Self) -> Self {
        let pick = |own: String, other: String| if own.is_empty() { other } else { own };
        Self {
            name: pick(self.name, other.name),
            email: pick(self.email, other.email),
            image_url: pick(self.image_url, other.image_url),
        }
    }
}

impl TenantInfo {
    /// The end user whom a request names: in its own field, else in its metadata.
    pub fn subtenant_of(given: Option<String>, metadata: &Object) -> Option<String> {
        let in_metadata = || {
            let named =
                metadata.get("subtenantMetadata").and_then(|of| of.get("id")).or_else(|| metadata.get("userId"));
            named.and_then(Value::as_str).filter(|id| is_id(id)).map(str::to_owned)
        };
        given.or_else(in_metadata)
    }

    /// What the request of a caller says; an end user says nothing of the tenant.
    pub fn by(caller: &Caller, tenant_id: &str, subtenant_id: Option<&str>, metadata: &Object) -> Self {
        let info = Self::of(tenant_id, subtenant_id, metadata, true);
        if caller.session().is_some() { Self { tenant: Facts::default(), ..info } } else { info }
    }

    /// What is said of a tenant; `top`: the keys of `tenantMetadata` count at the top of the metadata, too.
    pub fn of(tenant_id: &str, subtenant_id: Option<&str>, metadata: &Object, top: bool) -> Self {
        let part = |name: &str| metadata.get(name).and_then(Value::as_object).map(Facts::of).unwrap_or_default();
        let tenant = part("tenantMetadata");
        let tenant = if top { tenant.or(Facts::of(metadata)) } else { tenant };
        let subtenant_id = subtenant_id.map(str::to_owned);
        Self { tenant_id: tenant_id.to_owned(), subtenant_id, tenant, subtenant: part("subtenantMetadata") }
    }
}

fn is_id(id: &str) -> bool {
    let mut checks = Checks::default();
    checks.tenants(None, Some(id));
    checks.finish().is_ok()
}

/// The domain of a mail address, unless anybody can have an address there.
pub(crate) fn domain_of(email: &str) -> String {
    let domain = email.rsplit_once('@').map(|(_, domain)| domain.trim().to_lowercase()).unwrap_or_default();
    if PUBLIC_MAIL.contains(&domain.as_str()) { String::new() } else { domain }
}
