//! The OpenAPI 3.1 document, made from the route table.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    slice,
};

use actix_web::http::Method;
use platform_auth::SCOPES;
use platform_core::Issue;
use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, LicenseBuilder, OpenApiBuilder, PathItem,
        PathsBuilder, Ref, RefOr, Required, ResponseBuilder, Schema, Server,
        extensions::Extensions,
        path::{OperationBuilder, ParameterBuilder, ParameterIn},
        request_body::RequestBodyBuilder,
        schema::{AnyOfBuilder, ObjectBuilder, Type},
        security::{
            AuthorizationCode, Flow, HttpAuthScheme, HttpBuilder, OAuth2, Scopes, SecurityRequirement, SecurityScheme,
        },
        tag::TagBuilder,
    },
};

use crate::{
    route::{OpenTo, Route, placeholders},
    table::TableError,
};

/// Version of the API, in the document and in every answer of it.
pub(crate) const API_VERSION: &str = "1.0.0";

type Named = (String, RefOr<Schema>);

/// A type as the document needs it.
#[derive(Clone)]
pub(crate) struct TypeDoc {
    name: String,
    schema: RefOr<Schema>,
    others: Vec<Named>,
    aliases: &'static [&'static str],
}

impl TypeDoc {
    fn of<T: ToSchema>() -> Self {
        let mut others = Vec::new();
        T::schemas(&mut others);
        Self { name: T::name().into_owned(), schema: T::schema(), others, aliases: &[] }
    }

    /// Names of its fields, aliases too.
    pub fn names(&self) -> Vec<String> {
        let own = self.fields().into_iter().map(|(name, _)| name);
        own.chain(self.aliases.iter().map(|alias| (*alias).to_owned())).collect()
    }

    /// Names of its fields, those of what it is made of too.
    fn all_names(&self) -> Vec<String> {
        fn names(schema: &RefOr<Schema>, others: &[Named]) -> Vec<String> {
            match schema {
                RefOr::T(Schema::Object(object)) => object.properties.keys().cloned().collect(),
                RefOr::T(Schema::AllOf(parts)) => parts.items.iter().flat_map(|part| names(part, others)).collect(),
                RefOr::Ref(part) => {
                    let name = part.ref_location.rsplit('/').next().unwrap_or_default();
                    let part = others.iter().find(|(other, _)| other == name);
                    part.map_or_else(Vec::new, |(_, schema)| names(schema, others))
                }
                RefOr::T(_) => Vec::new(),
            }
        }
        names(&self.schema, &self.others)
    }

    /// Whether some of its fields must be given.
    fn has_required(&self) -> bool {
        matches!(&self.schema, RefOr::T(Schema::Object(object)) if !object.required.is_empty())
    }

    fn fields(&self) -> Vec<Named> {
        match &self.schema {
            RefOr::T(Schema::Object(object)) => {
                object.properties.iter().map(|(name, schema)| (name.clone(), schema.clone())).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What the document says of a route.
#[derive(Clone)]
pub struct Operation {
    summary: &'static str,
    query: Option<TypeDoc>,
    /// How large a page is when nothing is said, and at most.
    pub(crate) page_sizes: Option<(i64, i64)>,
    pub(crate) body: Option<TypeDoc>,
    /// Fields that its body must have, though others of the same type need not.
    required: &'static [&'static str],
    /// The same of its query.
    required_query: &'static [&'static str],
    /// Media type of its body.
    body_kind: &'static str,
    /// What it fails with, where that is not the error object.
    failure: Option<RefOr<Schema>>,
    /// HEAD is asked for, too.
    has_head: bool,
    /// By status; `None` = every other.
    responses: Vec<(Option<u16>, &'static str, RefOr<Schema>)>,
    others: Vec<Named>,
    /// Names of the fields of the record that it answers with.
    pub(crate) record: Vec<String>,
}

impl Operation {
    /// `summary`: what it does, in an imperative line.
    pub fn new(summary: &'static str) -> Self {
        Self {
            summary,
            query: None,
            page_sizes: None,
            body: None,
            required: &[],
            required_query: &[],
            body_kind: "application/json",
            failure: None,
            has_head: false,
            responses: Vec::new(),
            others: Vec::new(),
            record: Vec::new(),
        }
    }

    /// It is asked by HEAD, too, how large the answer is; that works for each GET, and is said of few.
    #[must_use]
    pub fn with_head(mut self) -> Self {
        self.has_head = true;
        self
    }

    /// What its query may have.
    #[must_use]
    pub fn query<T: ToSchema>(mut self) -> Self {
        self.query = Some(TypeDoc::of::<T>());
        self
    }

    /// Of its query these have no effect here.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        if let Some(RefOr::T(Schema::Object(object))) = self.query.as_mut().map(|query| &mut query.schema) {
            debug_assert!(names.iter().all(|name| object.properties.contains_key(*name)), "{names:?}");
            object.properties.retain(|name, _| !names.contains(&name.as_str()));
        }
        self
    }

    /// It has `limit` and `offset` (or `skip`): a page is so large when nothing is said, and at most.
    #[must_use]
    pub fn paged(mut self, default: i64, most: i64) -> Self {
        self.page_sizes = Some((default, most));
        self
    }

    /// What its body may have.
    #[must_use]
    pub fn body<T: ToSchema>(mut self) -> Self {
        self.body = Some(TypeDoc::of::<T>());
        self
    }

    /// What its body of parts may have.
    #[must_use]
    pub fn form<T: ToSchema>(self) -> Self {
        Self { body_kind: "multipart/form-data", ..self.body::<T>() }
    }

    /// What its body of a form without files may have.
    #[must_use]
    pub fn url_encoded<T: ToSchema>(self) -> Self {
        Self { body_kind: "application/x-www-form-urlencoded", ..self.body::<T>() }
    }

    /// It fails with this, and not with the error object.
    #[must_use]
    pub fn fails_with<T: ToSchema>(mut self) -> Self {
        let doc = TypeDoc::of::<T>();
        self.failure = Some(RefOr::Ref(Ref::from_schema_name(&doc.name)));
        self.others.push((doc.name, doc.schema));
        self
    }

    /// Names that its query must have.
    #[must_use]
    pub fn requires_query(mut self, required: &'static [&'static str]) -> Self {
        self.required_query = required;
        self
    }

    /// Fields that its body must have, though its type does not say so.
    #[must_use]
    pub fn requires(mut self, required: &'static [&'static str]) -> Self {
        self.required = required;
        self
    }

    /// Other names the body's fields go by.
    #[must_use]
    pub fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        if let Some(body) = &mut self.body {
            body.aliases = aliases;
        }
        self
    }

    /// What it answers with holds this record, which may be sent back as it was read.
    #[must_use]
    pub fn holding<T: ToSchema>(mut self) -> Self {
        self.record.extend(TypeDoc::of::<T>().all_names());
        self
    }

    /// It answers with a record under a status.
    #[must_use]
    pub fn answers<T: ToSchema>(mut self, status: u16) -> Self {
        let doc = TypeDoc::of::<T>();
        self.record.extend(doc.all_names());
        // Lists and maps stand where they are used, records by name.
        let schema = match &doc.schema {
            RefOr::T(Schema::Object(_) | Schema::AllOf(_)) => {
                self.others.push((doc.name.clone(), doc.schema));
                RefOr::Ref(Ref::from_schema_name(doc.name))
            }
            other => other.clone(),
        };
        self.others.extend(doc.others);
        self.responses.push((Some(status), "application/json", schema));
        self
    }

    /// One of two shapes under the same status, or both at once.
    #[must_use]
    pub fn any_of<A: ToSchema, B: ToSchema>(self, status: u16) -> Self {
        let mut both = self.answers::<A>(status).answers::<B>(status);
        let (second, first) = (both.responses.pop(), both.responses.pop());
        let mut either = AnyOfBuilder::new();
        for (_, _, schema) in first.into_iter().chain(second) {
            either = either.item(schema);
        }
        both.responses.push((Some(status), "application/json", RefOr::T(Schema::AnyOf(either.build()))));
        both
    }

    /// It answers with text of a media type under a status.
    #[must_use]
    pub fn answers_text(mut self, status: u16, kind: &'static str) -> Self {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        self.responses.push((Some(status), kind, RefOr::T(Schema::Object(text))));
        self
    }

    /// Text of a media type, whatever the status is.
    #[must_use]
    pub fn answers_otherwise(mut self, kind: &'static str) -> Self {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        self.responses.push((None, kind, RefOr::T(Schema::Object(text))));
        self
    }

    /// Whether it answers with a record that was made, which has an id or a time of its making.
    pub(crate) fn makes_record(&self) -> bool {
        let is_record = |name: &String| ["_id", "createdAt", "creationTimestampMs"].contains(&name.as_str());
        self.responses.iter().any(|(status, ..)| *status == Some(201)) && self.record.iter().any(is_record)
    }

    /// An answer that says no more than its status and headers.
    #[must_use]
    pub fn answers_empty(mut self, status: u16) -> Self {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        self.responses.push((Some(status), "text/plain", RefOr::T(Schema::Object(text))));
        self
    }

    /// An object that a standard describes.
    #[must_use]
    pub fn answers_object(mut self, status: u16) -> Self {
        let object = ObjectBuilder::new().schema_type(Type::Object).build();
        self.responses.push((Some(status), "application/json", RefOr::T(Schema::Object(object))));
        self
    }

    /// Names a query may have.
    pub(crate) fn query_names(&self) -> Vec<String> {
        let page = if self.page_sizes.is_some() { &["limit", "offset", "skip"][..] } else { &[] };
        let page = page.iter().map(|name| (*name).to_owned());
        page.chain(self.query.iter().flat_map(TypeDoc::names)).collect()
    }
}

/// The answer of a deletion.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what Answer::deleted builds")]
#[schema(rename_all = "camelCase")]
pub struct Deleted {
    success: bool,
    message: String,
    deleted_id: String,
}

/// The error object (specification, error object).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs builds")]
#[schema(rename_all = "camelCase")]
struct ErrorObject {
    /// Stable code.
    error: String,
    /// What to do, for a person.
    message: String,
    /// Particulars, by code.
    details: ErrorDetails,
    /// The HTTP status again.
    status_code: u16,
    /// Finds the request in the log.
    request_id: String,
    /// Seconds to wait, with 429 and 503.
    retry_after: Option<u64>,
}

/// Particulars of an error; more of them by its code.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs builds")]
struct ErrorDetails {
    /// Fields that broke their rules, with `VALIDATION_ERROR`.
    #[schema(nullable = false)]
    issues: Option<Vec<Issue>>,
}

/// The whole document as JSON; `tags` of groups, each with its description.
///
/// # Errors
/// Two types of one name.
pub(crate) fn document<'a>(
    tags: &[(&str, &str)],
    routes: impl Iterator<Item = &'a Route>,
) -> Result<String, TableError> {
    let scopes = SCOPES.iter().map(|scope| (scope.clone(), scope.replace([':', '-'], " "))).collect::<Scopes>();
    let code = AuthorizationCode::new("/oauth/authorize", "/oauth/token", scopes);
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Error"))).build();
    let failure = ResponseBuilder::new().description("The error object").content("application/json", content).build();
    let mut components = ComponentsBuilder::new()
        .schema("Error", ErrorObject::schema())
        .schema("ErrorDetails", ErrorDetails::schema())
        .schema("Issue", Issue::schema())
        .response("Error", failure)
        .security_scheme(
            "bearer",
            SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build()),
        )
        .security_scheme("oauth", SecurityScheme::OAuth2(OAuth2::new([Flow::AuthorizationCode(code)])));
    let (mut paths, mut types, mut required) = (PathsBuilder::new(), BTreeMap::new(), Vec::new());
    for route in routes {
        let Some(operation) = route.operation.map(|make| make()) else { continue };
        let queried = operation.query.iter().flat_map(|query| query.others.clone());
        let body = operation
            .body
            .iter()
            .flat_map(|body| body.others.iter().cloned().chain([(body.name.clone(), body.schema.clone())]));
        for (name, schema) in queried.chain(body).chain(operation.others.iter().cloned()) {
            match types.entry(name) {
                Entry::Vacant(new) => {
                    new.insert(schema);
                }
                Entry::Occupied(known) if *known.get() == schema => {}
                Entry::Occupied(known) => {
                    return Err(TableError(format!("There are two types named {}.", known.key())));
                }
            }
        }
        let methods: &[Method] =
            if operation.has_head { &[Method::GET, Method::HEAD] } else { slice::from_ref(&route.method) };
        for path in route.described_paths() {
            if !operation.required.is_empty() {
                required.push((path.clone(), route.method.as_str().to_lowercase(), operation.clone()));
            }
            for method in methods {
                let described = describe(route, method, &path, &operation);
                paths = paths.path(path.clone(), PathItem::new(described_method(method), described));
            }
        }
    }
    for (name, schema) in types {
        components = components.schema(name, schema);
    }
    let info = InfoBuilder::new()
        .title("AI Agent and Assistant Platform API")
        .version(API_VERSION)
        .description(Some("Assistants over HTTP: send messages, watch replies arrive, read everything back."))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    let tag = |(tag, description): &(&str, &str)| TagBuilder::new().name(*tag).description(Some(*description)).build();
    let tags: Vec<_> = tags.iter().map(tag).collect();
    // Where the document is, the API is.
    let document = OpenApiBuilder::new()
        .info(info)
        .servers(Some([Server::new("/")]))
        .paths(paths.build())
        .components(Some(components.build()))
        .tags(Some(tags))
        .build();
    let mut document = serde_json::to_value(document).expect("the document is JSON");
    tidy(&mut document);
    // Beside a reference, which its builder cannot say.
    for (path, method, Operation { body_kind, required, .. }) in required {
        document["paths"][path][method]["requestBody"]["content"][body_kind]["schema"]["required"] = json!(required);
    }
    Ok(document.to_string())
}

/// What is absent by default has no default, and where a rule stands in our own specification helps no reader.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "default" || !value.is_null());
            if let Some(Value::String(text)) = fields.get_mut("description") {
                while let Some((before, rest)) = text.split_once(" (contract ")
                    && let Some((_, after)) = rest.split_once(')')
                {
                    *text = format!("{before}{after}");
                }
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn describe(route: &Route, method: &Method, path: &str, operation: &Operation) -> utoipa::openapi::path::Operation {
    let mut described = OperationBuilder::new().summary(Some(operation.summary));
    described = described.operation_id(Some(id(method, path)));
    described = described.tag(route.tag);
    for name in placeholders(route.path) {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(text));
        described = described.parameter(parameter.build());
    }
    let whole = |least: i64, default: i64| {
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).default(Some(json!(default)))
    };
    let mut query: Vec<Named> = Vec::new();
    if let Some((default, most)) = operation.page_sizes {
        let limit = whole(1, default).description(Some(format!("How many; more than {most} are {most}.")));
        query.push(("limit".to_owned(), limit.build().into()));
        query.push(("offset".to_owned(), whole(0, 0).description(Some("After so many.")).build().into()));
    }
    let fields = operation.query.iter().flat_map(TypeDoc::fields);
    query.extend(fields.filter(|(name, _)| placeholders(route.path).all(|placeholder| placeholder != name)));
    for (name, schema) in query {
        let required = if operation.required_query.contains(&&*name) { Required::True } else { Required::False };
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).schema(Some(schema));
        described = described.parameter(parameter.required(required).build());
    }
    if route.takes_idempotency_key() {
        let key = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(255));
        let key =
            key.description(Some("A request with the same key is answered again, and not done again, for a day."));
        let parameter = ParameterBuilder::new().name("Idempotency-Key").parameter_in(ParameterIn::Header);
        let parameter = parameter.required(Required::False).schema(Some(key.build()));
        described = described.parameter(parameter.build());
    }
    if let Some(body) = &operation.body {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(&body.name))).build();
        let is_required = !operation.required.is_empty() || body.has_required();
        let required = if is_required { Required::True } else { Required::False };
        let body = RequestBodyBuilder::new().content(operation.body_kind, content).required(Some(required));
        described = described.request_body(Some(body.build()));
    }
    let mut responses = BTreeMap::<String, ResponseBuilder>::new();
    for (status, kind, schema) in &operation.responses {
        let content = ContentBuilder::new().schema(Some(schema.clone())).build();
        let status = status.map_or_else(|| "default".to_owned(), |status| status.to_string());
        let response = responses.remove(&status).unwrap_or_else(|| ResponseBuilder::new().description("Done"));
        responses.insert(status, response.content(*kind, content));
    }
    for (status, response) in responses {
        described = described.response(status, response.build());
    }
    for statuses in ["4XX", "5XX"] {
        described = match &operation.failure {
            None => described.response(statuses, Ref::from_response_name("Error")),
            Some(failure) => {
                let content = ContentBuilder::new().schema(Some(failure.clone())).build();
                let response = ResponseBuilder::new().description("What went wrong");
                described.response(statuses, response.content("application/json", content).build())
            }
        };
    }
    let (keys, session, scope) = match route.open_to {
        OpenTo::Public => ("public", false, None),
        OpenTo::Key { session, scope } => ("key", session, Some(scope)),
        OpenTo::FullKey { scope, .. } => ("full", false, scope),
        OpenTo::Minting { scope } => ("key, signed", false, Some(scope)),
    };
    let bearer = (route.open_to != OpenTo::Public).then(|| SecurityRequirement::new("bearer", Vec::<String>::new()));
    described = described.securities(Some(bearer));
    if let Some(scope) = scope {
        described = described.security(SecurityRequirement::new("oauth", [scope]));
    }
    let access = json!({"keys": keys, "session": session, "scope": scope, "right": route.right.as_str()});
    described.extensions(Some(Extensions::builder().add("x-access", access).build())).build()
}

fn described_method(method: &Method) -> HttpMethod {
    match method.as_str() {
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "PATCH" => HttpMethod::Patch,
        "DELETE" => HttpMethod::Delete,
        "HEAD" => HttpMethod::Head,
        _ => HttpMethod::Get,
    }
}

/// `POST /v1/assistants/{identifier}/messages` → `postAssistantsByIdentifierMessages`.
fn id(method: &Method, path: &str) -> String {
    let mut id = method.as_str().to_lowercase();
    for segment in path.trim_start_matches("/v1").split('/').skip(1) {
        let (by, segment) = match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => ("By", name),
            None => ("", segment),
        };
        id.push_str(by);
        for word in segment.split(['-', '.', '_']) {
            let (first, rest) = word.split_at(word.len().min(1));
            id.push_str(&first.to_uppercase());
            id.push_str(rest);
        }
    }
    id
}
