//! What handlers see of a request: strictly typed path, query and body.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, sync::Arc};

use actix_web::http::{
    Method,
    header::{HeaderMap, HeaderName, IF_MATCH, ORIGIN, REFERER},
};
use bytes::Bytes;
use platform_access::{Access, Demand, Kind, Reach, Reference, Right, allowed};
use platform_auth::{Identity, KeyRules, Rights};
use platform_core::{
    AccountId, Caller, Checks, Code, Error, FairPermit, Id, MAX_NULLS, Object, Page, Precondition, Result, Session,
    Strict, check_size, drop_null, memory_of, misfit, run_sized,
};
use platform_db::{Db, Idempotency};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IntoDeserializer, Visitor, value::MapDeserializer},
    forward_to_deserialize_any,
};
use serde_json::{Value, error::Category, value::RawValue};
use tokio::{sync::watch, time::Instant};

use crate::{
    access,
    bearer::Bearer,
    body::{is_json_or_none, wrong_kind},
    code,
    gate::{Gate, Place, StreamPlace, Whose},
    http::Http,
    multipart::Part,
    route::Route,
    sse::Follower,
};

/// Whole numbers above this not every client can hold.
const LARGEST: u64 = (1 << 53) - 1;
/// Bytes of a body that is read again without a `null` that did not fit.
const MAX_READ_AGAIN: usize = 64 * 1024;

/// A request whose credential was admitted.
pub struct Request {
    pub(crate) http: Arc<Http>,
    pub(crate) bearer: Option<Bearer>,
    pub(crate) identity: Option<Arc<Identity>>,
    /// The path as it was asked for, decoded.
    pub asked: String,
    /// Placeholder → what stands in the path for it.
    pub path: BTreeMap<&'static str, String>,
    /// What the path names, the outermost first.
    pub(crate) named: Vec<Reference>,
    /// Name → value; of one that was given twice the last.
    pub query: BTreeMap<String, String>,
    /// Names of the query in the order they were given.
    pub query_names: Vec<String>,
    /// As they were sent.
    pub headers: HeaderMap,
    /// Who is at the other end.
    pub client: Option<IpAddr>,
    /// The body as it was sent; of one with files their names and digests.
    pub body: Bytes,
    /// The top level of the body.
    pub(crate) fields: Arc<Fields>,
    pub(crate) whose: Whose,
    /// The files of a body that has some.
    pub parts: Vec<Part>,
    pub(crate) method: Method,
    /// The idempotency key, where the request has one and an effect.
    pub once: Option<Idempotency>,
    /// While it is held, whoever repeats the request is told that it is in progress.
    pub(crate) first: Option<Arc<FairPermit<String>>>,
    /// Room for a body that takes much memory.
    pub(crate) _room: Option<FairPermit<String>>,
    /// How large a page is when nothing is said, and at most.
    pub(crate) page_sizes: Option<(i64, i64)>,
}

impl Request {
    /// Who calls; only on routes that want a credential.
    pub fn caller(&self) -> Result<&Caller> {
        let identity = self.identity.as_ref().ok_or_else(|| Error::internal("a public route asked for its caller"))?;
        Ok(&identity.caller)
    }

    /// The account of who calls; only on routes that want a credential.
    pub fn account(&self) -> Result<&AccountId> {
        Ok(&self.caller()?.account)
    }

    /// The session that calls, if one does.
    pub fn session(&self) -> Option<&Session> {
        self.identity.as_ref()?.caller.session()
    }

    /// The tenant and end user that a request is about: those it names, of a session its own. `TENANT_ID_REQUIRED`.
    pub fn tenant_and_user(
        &self,
        tenant: Option<String>,
        subtenant: Option<String>,
    ) -> Result<(String, Option<String>)> {
        let own = self.session();
        let tenant = tenant.or_else(|| own.map(|session| session.tenant_id.clone()));
        let subtenant = subtenant.or_else(|| own.and_then(|session| session.subtenant_id.clone()));
        let Some(tenant) = tenant.filter(|tenant| !tenant.is_empty()) else {
            return Err(Error::new(Code::TENANT_ID_REQUIRED, "tenantId is required: say whom this is about."));
        };
        let mut checks = Checks::default();
        checks.tenants(Some(&tenant), subtenant.as_deref());
        checks.finish()?;
        Ok((tenant, subtenant))
    }

    /// What the access token says beside whom it stands for, name and value.
    pub fn claims(&self) -> &[(String, String)] {
        self.identity.as_ref().map_or(&[], |identity| identity.claims())
    }

    /// A member's token calls: no key that it makes reaches more than itself. Administrators make full keys.
    pub fn bounds_keys(&self) -> bool {
        let is_token = self.identity.as_ref().is_some_and(|of| matches!(of.rights, Rights::Token { .. }));
        is_token && self.caller().is_ok_and(|caller| caller.member().is_some())
    }

    /// Refuses what would be a key that reaches more than the token that makes it: `FORBIDDEN`.
    pub fn check_key(&self, rules: &KeyRules) -> Result<()> {
        let Some(identity) = &self.identity else { return Ok(()) };
        access::check_key(identity, rules, self.http.table.routes())
    }

    /// Projects whose objects the caller sees in lists; `None` = all.
    pub async fn within(&self) -> Result<Option<Vec<String>>> {
        Ok(self.reach().await?.readable())
    }

    /// What the caller reaches of the projects of its account.
    pub async fn reach(&self) -> Result<Reach<'_>> {
        self.http.access.reach(self.caller()?).await
    }

    /// Refuses a caller who may not have the tools called of what the path names.
    pub async fn check_approval(&self) -> Result<()> {
        self.http.access.check_approval(self.caller()?, &self.named).await
    }

    /// Refuses a caller who may not change a record.
    pub async fn check_change(&self, kind: Kind, id: &str) -> Result<()> {
        let named = [(kind, id.to_owned())];
        let demand = Demand { named: &named, right: Right::Change, ..Demand::default() };
        self.http.access.check(self.caller()?, demand).await
    }

    /// Refuses a caller who may not put a copy of what the path names beside it.
    pub async fn check_copy(&self) -> Result<()> {
        self.http.access.check_copy(self.caller()?, &self.named).await
    }

    /// Whether there is or was a record that the caller must not know of.
    pub async fn hides(&self, kind: Kind, id: &str) -> Result<bool> {
        self.http.access.hides(self.caller()?, kind, id).await
    }

    /// Whether the caller may know of a record, by the name of its kind.
    pub async fn sees(&self, record: (&str, &str)) -> Result<bool> {
        self.http.access.sees(self.caller()?, record).await
    }

    /// Refuses a caller who may not use a record.
    pub async fn check_use(&self, kind: Kind, id: &str) -> Result<()> {
        let named = [(kind, id.to_owned())];
        let demand = Demand { named: &named, ..Demand::default() };
        self.http.access.check(self.caller()?, demand).await
    }

    /// Who reaches which record, for callers that are not this one.
    pub fn access(&self) -> &Arc<Access> {
        &self.http.access
    }

    /// Whether the caller may use a record.
    pub async fn may_use(&self, kind: Kind, id: &str) -> Result<bool> {
        allowed(self.check_use(kind, id).await)
    }

    /// Whether the caller may change a record.
    pub async fn may_change(&self, kind: Kind, id: &str) -> Result<bool> {
        allowed(self.check_change(kind, id).await)
    }

    /// Whether the credential opens another route of the table, whatever record that names.
    pub fn opens(&self, method: &Method, path: &str) -> bool {
        let route = self.http.table.routes().find(|route| route.method == *method && route.path == path);
        let permitted = |identity: &Arc<Identity>, route| access::permit(identity, route, path, &self.headers).is_ok();
        self.identity.as_ref().zip(route).is_some_and(|(identity, route)| permitted(identity, route))
    }

    /// Counts a message or thread that is made beside what the route says.
    pub async fn count_creation(&self) -> Result<()> {
        self.http.gate.creation(self.caller()?).await
    }

    /// Whether whoever asks has read enough of earlier answers to be given another large one, for what is looked at when an
    /// effect is about to be had.
    pub fn room_for_answers(&self) -> impl Fn() -> Result<()> + Send + Sync + use<> {
        let (http, whose) = (Arc::clone(&self.http), self.whose.clone());
        move || http.gate.expects_effect(&whose)
    }

    /// Who follows a stream that this request opens.
    pub fn follower(&self) -> Follower {
        let of = |name: HeaderName| Some((name.clone(), self.headers.get(name)?.clone()));
        Follower {
            http: Arc::clone(&self.http),
            bearer: self.bearer.clone(),
            whose: self.whose.clone(),
            identity: watch::Sender::new(self.identity.clone()),
            named: self.named.clone(),
            method: self.method.clone(),
            asked: self.asked.clone(),
            origin: [ORIGIN, REFERER].into_iter().filter_map(of).collect(),
            looked: Instant::now(),
        }
    }

    /// A place for one more stream of the caller.
    pub fn stream_place(&self) -> Result<StreamPlace> {
        self.http.gate.stream(self.caller()?)
    }

    /// What counts tries to log in.
    pub fn gate(&self) -> &Gate {
        &self.http.gate
    }

    /// What keeps the end of an effect whose answer is a stream, where the request has an idempotency key.
    pub fn kept_key(&self) -> Option<KeptKey> {
        let (once, first) = (self.once.clone()?, self.first.clone()?);
        Some(KeptKey { db: self.http.db.clone(), once, _first: first })
    }

    /// The `OpenAPI` document as JSON.
    pub fn document(&self) -> Result<&str> {
        self.http.document().map_err(Error::internal)
    }

    /// Sets a field of the body.
    pub(crate) fn set_field(&mut self, name: &str, value: &str) -> Result<()> {
        let json = serde_json::value::to_raw_value(value).map_err(Error::internal)?;
        let fields = Arc::make_mut(&mut self.fields);
        fields.0.insert(name.to_owned(), json);
        self.body = serde_json::to_vec(&fields.0).map_err(Error::internal)?.into();
        Ok(())
    }

    /// A path parameter that names a record.
    pub fn id<K>(&self, name: &str) -> Id<K> {
        Id::named(self.path(name))
    }

    /// A path parameter.
    pub fn path(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// The query as a type: booleans `true|1|false|0`, integers in decimal.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T> {
        typed(&self.query)
    }

    /// The body as a type; an empty body is `{}`, and what is `null` counts as absent (contract 00 §2.9).
    pub async fn body<T: DeserializeOwned + Send + 'static>(&self) -> Result<T> {
        let (fields, body) = (Arc::clone(&self.fields), self.body.clone());
        let read = move || {
            let given = fields.without_nulls()?;
            Self::read(given.as_deref().unwrap_or(&body))
        };
        run_sized(self.body.len(), read).await
    }

    fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
        let mut json = Cow::Borrowed(if json.is_empty() { b"{}".as_slice() } else { json });
        let mut nulls = 0..if json.len() > MAX_READ_AGAIN { 0 } else { MAX_NULLS };
        loop {
            let mut reader = serde_json::Deserializer::from_slice(&json);
            let error = match serde_path_to_error::deserialize(Strict(&mut reader)) {
                Ok(value) => return reader.end().map(|()| value).map_err(|error| refuse(&error, "")),
                Err(error) => error,
            };
            let mut given = Value::Null;
            if nulls.next().is_some() {
                given = serde_json::from_slice(&json).unwrap_or_default();
            }
            if !drop_null(&mut given, &error) {
                return Err(refuse(error.inner(), &error.path().to_string()));
            }
            json = serde_json::to_vec(&given).map_err(Error::internal)?.into();
        }
    }

    /// The fields of a body with files as a type, converted as those of a query are. A body that came as JSON instead is
    /// read as such.
    pub async fn form<T: DeserializeOwned + Send + 'static>(&self) -> Result<T> {
        if is_json_or_none(&self.headers) {
            return self.body().await;
        }
        let fields = self.fields.names().filter_map(|name| Some((name.clone(), self.fields.text(name)?)));
        typed(&fields.collect())
    }

    /// Refuses a body that is not said to be JSON, where nothing else has: `UNSUPPORTED_MEDIA_TYPE`.
    pub fn check_json(&self) -> Result<()> {
        if is_json_or_none(&self.headers) { Ok(()) } else { Err(wrong_kind()) }
    }

    /// The one file that a field of the body has.
    pub fn file(&self, field: &str) -> Result<&Part> {
        let mut files = self.parts.iter().filter(|part| part.field == field);
        match (files.next(), files.next()) {
            (Some(file), None) => Ok(file),
            (None, _) => {
                Err(Error::new(Code::BAD_REQUEST, format!("Send a file as the part `{field}`, with a file name.")))
            }
            (Some(_), Some(_)) => Err(Error::new(Code::BAD_REQUEST, format!("Send one file as the part `{field}`."))),
        }
    }

    /// The body of a PATCH, in which `null` has a meaning.
    pub async fn patch(&self) -> Result<Object> {
        let body = self.body.clone();
        run_sized(body.len(), move || Self::read(&body)).await
    }

    /// The slice of a collection (contract 00 §4), as large as its route says.
    pub fn page(&self) -> Result<Page> {
        let (default, most) = self.page_sizes.ok_or_else(|| Error::internal("a route without pages asked for one"))?;
        Ok(Page { limit: self.limit(default, most)?, offset: self.number(&["offset", "skip"], 0, 0)? })
    }

    /// How much of a collection is asked for: a larger limit is capped.
    pub fn limit(&self, default: i64, most: i64) -> Result<i64> {
        Ok(self.number(&["limit"], default, 1)?.min(most))
    }

    fn number(&self, names: &[&str], default: i64, least: i64) -> Result<i64> {
        let Some((name, value)) = names.iter().find_map(|name| self.query.get_key_value(*name)) else {
            return Ok(default);
        };
        let is_good = |number: &i64| *number >= least && number.unsigned_abs() <= LARGEST;
        value.parse::<i64>().ok().filter(is_good).ok_or_else(|| {
            Error::new(Code::INVALID_PAGINATION, format!("{name} must be a whole number of {least} or more."))
                .with("parameter", name)
        })
    }

    /// Which version a change expects (contract 00 §6).
    pub fn if_match(&self) -> Result<Precondition> {
        let Some(header) = self.headers.get(IF_MATCH) else { return Ok(Precondition::None) };
        Precondition::parse(header.to_str().unwrap_or_default())
    }

    /// `X-Api-Source`, or a header that ends in `-api-source` (contract 00 §1.7).
    pub fn api_source(&self) -> Option<String> {
        let exact = self.headers.get("x-api-source");
        let alias = || self.headers.iter().find(|(name, _)| name.as_str().ends_with("-api-source")).map(|(_, v)| v);
        let value = exact.or_else(alias)?.to_str().ok()?;
        let good = (1..=32).contains(&value.len())
            && value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
        good.then(|| value.to_owned())
    }
}

/// Holds the idempotency key of a request whose answer is a stream, until its effect has ended.
pub struct KeptKey {
    db: Db,
    once: Idempotency,
    _first: Arc<FairPermit<String>>,
}

impl KeptKey {
    /// Nothing came of it: the key is free.
    pub async fn release(&self) -> Result<()> {
        self.once.release_claim(&self.db).await
    }

    /// Does something under the key, which is in use meanwhile.
    pub async fn renewed<T>(&self, work: impl Future<Output = T>) -> T {
        self.once.renewed(&self.db, work).await
    }

    /// Whoever repeats the request is told this, with status 200.
    pub async fn keep(&self, end: &Value) -> Result<()> {
        self.once.keep(&self.db, 200, &end.to_string()).await
    }
}

/// Text that becomes what each field wants.
fn typed<T: DeserializeOwned>(given: &BTreeMap<String, String>) -> Result<T> {
    let fields = given.iter().map(|(name, value)| (name.as_str(), QueryValue(value)));
    let fields: MapDeserializer<'_, _, serde::de::value::Error> = MapDeserializer::new(fields);
    let mut at = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(Strict(fields), &mut at))
        .map_err(|error| misfit(&at.path().to_string(), &error))
}

/// What serde found wrong: a misfit of a field, or no JSON that we read at all.
fn refuse(error: &serde_json::Error, path: &str) -> Error {
    match error.classify() {
        Category::Data if !error.to_string().starts_with("duplicate field") => misfit(path, error),
        // Its names were told apart already: two of them mean one field.
        Category::Data if path == "." || !path.contains(['.', '[']) => {
            let said = error.to_string();
            let field = said.split('`').nth(1).unwrap_or_default();
            Error::invalid(field, "conflict", format!("{field} is given under two of its names; send one."))
        }
        _ => Error::new(code::INVALID_JSON, format!("The body is not the JSON we read: {error}.")),
    }
}

/// A value of a query: text that becomes what the field wants.
struct QueryValue<'a>(&'a str);

impl IntoDeserializer<'_, serde::de::value::Error> for QueryValue<'_> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> serde::Deserializer<'de> for QueryValue<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_str(self.0)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            "true" | "1" => visitor.visit_bool(true),
            "false" | "0" => visitor.visit_bool(false),
            _ => Err(serde::de::Error::custom("expected true, 1, false or 0")),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0.parse::<i64>() {
            Ok(number) if number.unsigned_abs() <= LARGEST => visitor.visit_i64(number),
            _ => Err(serde::de::Error::custom(format!("expected a whole number within ±{LARGEST}"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Text as it was before it was put into an address.
pub fn percent_decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Whether that is text at all.
pub(crate) fn is_utf8(text: &str) -> bool {
    percent_encoding::percent_decode_str(text).decode_utf8().is_ok()
}

/// The top level of a body: an object, each name once.
#[derive(Clone, Default)]
pub(crate) struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    /// Reads the top level; everything below it must be JSON, too.
    pub fn of(body: &[u8]) -> Result<Self> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(body)
            .map_err(|error| Error::new(code::INVALID_JSON, format!("The body is not the JSON we read: {error}.")))
    }

    /// The same of a body that came from outside, unless it is for its route to read; the bytes of memory that it takes
    /// while it is answered; and the place that it came in by.
    pub async fn checked(body: &Bytes, route: &Route, place: Option<Place>) -> Result<(Self, usize, Option<Place>)> {
        let (body, is_raw, too_large) = (body.clone(), route.is_raw, route.too_large);
        run_sized(body.len(), move || {
            if is_raw {
                return Ok((Self::default(), body.len() + memory_of(&body), place));
            }
            check_json(&body, too_large)?;
            // Its text is there twice: as it came, and by fields.
            Ok((Self::of(&body)?, 2 * body.len() + memory_of(&body), place))
        })
        .await
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// A field as it is; `null` when it is not there.
    pub fn value(&self, name: &str) -> Value {
        self.0.get(name).and_then(|json| serde_json::from_str(json.get()).ok()).unwrap_or_default()
    }

    /// A field that is text.
    pub fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.0.get(name)?.get()).ok()
    }

    /// The body as text without its nulls, if it has any.
    fn without_nulls(&self) -> Result<Option<Vec<u8>>> {
        if !self.0.values().any(|value| value.get() == "null") {
            return Ok(None);
        }
        let given: BTreeMap<_, _> = self.0.iter().filter(|(_, value)| value.get() != "null").collect();
        serde_json::to_vec(&given).map(Some).map_err(Error::internal)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if fields.contains_key(&name) {
                        return Err(serde::de::Error::custom(format!("duplicate field `{name}`")));
                    }
                    fields.insert(name, value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Once)
    }
}

/// Structure that must hold before any field is read: size, depth, text without NUL, integers that every
/// client can hold (contract 00 §2.7). `too_large`: what one that is not is refused with, where it is not `VALIDATION_ERROR`.
fn check_json(body: &[u8], too_large: Option<Code>) -> Result<()> {
    check_values(body, "", too_large).map_err(|error| {
        let Ok(Fields(fields)) = Fields::of(body) else { return error };
        // Which field it was is only asked when there is something to say of it.
        let of_field = |name: &str, value: &RawValue| check_values(value.get().as_bytes(), name, too_large);
        fields.iter().find_map(|(name, value)| of_field(name, value).err()).unwrap_or(error)
    })
}

/// The UTF-16 code unit that a text begins with as an escape.
fn escaped(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn check_values(body: &[u8], path: &str, too_large: Option<Code>) -> Result<()> {
    const DEEPEST: usize = 64;
    let too_many = |reason| Error::new(code::INVALID_JSON, format!("The body is not the JSON we read: {reason}."));
    check_size(body).map_err(too_many)?;
    let (mut depth, mut in_text, mut at) = (0_usize, false, 0);
    while at < body.len() {
        match (in_text, body[at]) {
            (true, b'\\') => {
                if body[at + 1..].starts_with(b"u0000") {
                    return Err(Error::invalid(path, "format", "Text must not contain the character NUL."));
                }
                if let Some(unit @ 0xd800..0xe000) = escaped(&body[at..]) {
                    let is_paired = unit < 0xdc00 && matches!(escaped(&body[at + 6..]), Some(0xdc00..0xe000));
                    if !is_paired {
                        return Err(too_many("a text holds half of a character"));
                    }
                    at += 6;
                }
                at += 1;
            }
            (_, b'"') => in_text = !in_text,
            (false, b'{' | b'[') => {
                depth += 1;
                if depth > DEEPEST {
                    return Err(Error::new(code::INVALID_JSON, format!("The body is nested deeper than {DEEPEST}.")));
                }
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (false, b'0'..=b'9') => {
                let rest = &body[at..];
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let whole = !rest.get(digits).is_some_and(|byte| matches!(byte, b'.' | b'e' | b'E'));
                let number = std::str::from_utf8(&rest[..digits]).ok().and_then(|text| text.parse::<u64>().ok());
                if whole && number.is_none_or(|number| number > LARGEST) {
                    let message = format!("Integers must lie within ±{LARGEST}.");
                    return Err(match too_large {
                        Some(code) => Error::new(code, message),
                        None => Error::invalid(path, "range", message),
                    });
                }
                // A fraction or exponent is skipped with what follows it.
                at += rest
                    .iter()
                    .take_while(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
                    .count();
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_nul_are_found_outside_and_inside_of_text() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(check_json(&nested(64), None).is_ok());
        assert_eq!(check_json(&nested(65), None).expect_err("too deep").code(), code::INVALID_JSON);
        assert!(check_json(br#"{"a":"[[[\"{{{"}"#, None).is_ok());
        assert_eq!(check_json(br#"{"a":"x\u0000"}"#, None).expect_err("NUL").code(), Code::VALIDATION_ERROR);
        assert!(check_json(br#"{"a":"x\\u0000"}"#, None).is_ok(), "an escaped backslash is no escape");
        for good in ["9007199254740991", "-9007199254740991", "1e300", "0.12345678901234567890", "[1,2]"] {
            assert!(check_json(good.as_bytes(), None).is_ok(), "{good}");
        }
        for bad in ["9007199254740992", "-9007199254740992", "[1,123456789012345678901234567890]"] {
            assert_eq!(check_json(bad.as_bytes(), None).expect_err(bad).code(), Code::VALIDATION_ERROR);
        }
    }
}
