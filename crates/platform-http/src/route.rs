//! Routes as data: who may call them, what they read, and what answers.

use std::sync::Arc;

use actix_web::http::Method;
use futures_util::future::{FutureExt, LocalBoxFuture};
use platform_access::{Kind, ReferenceField, Right};
use platform_core::{AccountId, Code, Result};

use crate::{
    answer::Answer,
    gate::SMALL_BODY,
    openapi::{Operation, TypeDoc},
    request::Request,
};

/// Whose credential opens a route (contract 01 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenTo {
    /// Everybody; no credential is looked at.
    Public,
    /// A full key, or a restricted key whose lists permit the route; `session`: a tenant session, too.
    Key {
        /// Sessions as well.
        session: bool,
        /// The scope that opens it to an access token.
        scope: &'static str,
    },
    /// A full key only.
    FullKey {
        /// The scope that opens it to an access token; `None` = no token can.
        scope: Option<&'static str>,
        /// And one that is bound to no project.
        account_wide: bool,
    },
    /// Any key of a backend, a signed one too: here sessions are made.
    Minting {
        /// The scope that opens it to an access token.
        scope: &'static str,
    },
}

impl OpenTo {
    /// A full key that is bound to no project; no access token.
    pub const ADMIN: Self = Self::FullKey { scope: None, account_wide: true };
}

/// A full key, or a restricted one; an access token with the scope.
pub const fn key(scope: &'static str) -> OpenTo {
    OpenTo::Key { session: false, scope }
}

/// The same, and tenant sessions.
pub const fn session(scope: &'static str) -> OpenTo {
    OpenTo::Key { session: true, scope }
}

/// A full key; an access token with the scope.
pub const fn full_key(scope: &'static str) -> OpenTo {
    OpenTo::FullKey { scope: Some(scope), account_wide: false }
}

/// A full key that is bound to no project; an access token with the scope.
pub const fn account_key(scope: &'static str) -> OpenTo {
    OpenTo::FullKey { scope: Some(scope), account_wide: true }
}

type Handler = Box<dyn Fn(Request) -> LocalBoxFuture<'static, Result<Answer>> + Send + Sync>;
/// Whether the `{token}` of a path is one that we gave out.
type IsKnown = Box<dyn Fn(String) -> LocalBoxFuture<'static, Result<()>> + Send + Sync>;
/// The answer of a run, by its reference, to who sent the same `Idempotency-Key` before.
type Replay = Box<dyn Fn(AccountId, String) -> LocalBoxFuture<'static, Result<Option<Answer>>> + Send + Sync>;

/// A body with files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upload {
    /// Of all files; 0 = no bound.
    pub most_bytes: usize,
    /// It may come as JSON, too.
    pub or_json: bool,
}

/// One line of the table.
#[expect(clippy::struct_excessive_bools, reason = "a line of the table has these flags")]
pub struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Where it is, too: a beginning of its path, and what may stand there instead.
    pub(crate) alias: Option<(&'static str, &'static str)>,
    /// The `OpenAPI` document has both paths.
    pub(crate) describes_alias: bool,
    pub(crate) tag: &'static str,
    pub(crate) open_to: OpenTo,
    pub(crate) handler: Handler,
    /// Names a query may have.
    pub(crate) query_fields: Vec<String>,
    /// Of a list: how large a page is when nothing is said, and at most.
    pub(crate) page_sizes: Option<(i64, i64)>,
    /// Names a body may have at its top; `None` = the route reads no body.
    pub(crate) body_fields: Option<Vec<String>>,
    /// Names of the record that it makes or changes: what was read may be sent back whole.
    pub(crate) record_fields: Vec<String>,
    /// It takes any text as its body.
    pub(crate) is_raw: bool,
    /// Bytes that a body may have; `None` = as many as the setting says.
    pub(crate) most_bytes: Option<usize>,
    /// It has an effect although it is a GET.
    pub(crate) has_effect: bool,
    /// Its body has files, of so many bytes together; 0 = no bound.
    pub(crate) upload: Option<Upload>,
    /// Tokens may be good for it alone; its 401 says where they come from (RFC 9728).
    pub(crate) is_resource: bool,
    /// Keys of the preset `ui` reach it, though sessions do not.
    pub(crate) is_of_ui: bool,
    /// Asked before a body is read for which nobody vouches but the token in its path.
    pub(crate) is_known: Option<IsKnown>,
    /// Answers whoever repeats a request whose run is kept under its idempotency key.
    pub(crate) replay: Option<Replay>,
    /// It makes messages or threads, which have a rate of their own.
    pub(crate) creates: bool,
    /// It ends when its client goes.
    pub(crate) is_cancellable: bool,
    /// What it takes in the project of what its path names.
    pub(crate) right: Right,
    /// What it does is done before its answer is kept: meanwhile no other process does it under the same key.
    pub(crate) claims_key: bool,
    /// Asked before any record is looked at.
    pub(crate) precondition: Option<fn(&Request) -> Result<()>>,
    /// It has effects, though whoever may read may ask for it: headers that say what they are, beside the body.
    pub(crate) acts_by: Option<&'static [&'static str]>,
    /// What a number in its body that is too large is refused with, where it is not `VALIDATION_ERROR`.
    pub(crate) too_large: Option<Code>,
    /// What each placeholder of the path stands for; `None` = nobody has said it.
    pub(crate) named: Vec<(&'static str, Option<Kind>)>,
    /// Fields of the body that refer to records.
    pub(crate) references: Vec<ReferenceField>,
    /// Makes what stands of it in the `OpenAPI` document; `None` = it does not.
    pub(crate) operation: Option<fn() -> Operation>,
}

impl Route {
    /// Describes it; what the description names is what the route accepts.
    pub fn with(&mut self, describe: fn() -> Operation) -> &mut Self {
        let operation = describe();
        self.query_fields = operation.query_names();
        // What the path says, the query does not say once more.
        self.query_fields.retain(|name| placeholders(self.path).all(|placeholder| placeholder != name));
        self.body_fields = operation.body.as_ref().map(TypeDoc::names);
        self.page_sizes = operation.page_sizes;
        if self.method == Method::PATCH || self.method == Method::PUT || operation.makes_record() {
            self.record_fields = operation.record;
        }
        self.operation = Some(describe);
        self
    }

    /// Tokens may be good for it alone; its 401 says where they come from (RFC 9728).
    pub fn resource(&mut self) -> &mut Self {
        self.is_resource = true;
        self
    }

    /// Keys of the preset `ui` reach it, though sessions do not.
    pub fn of_ui(&mut self) -> &mut Self {
        self.is_of_ui = true;
        self
    }

    /// It takes any text as its body: a form, or what a standard says.
    pub fn raw(&mut self) -> &mut Self {
        self.is_raw = true;
        self
    }

    /// Its body has at most so many bytes, whatever the setting says.
    pub fn at_most(&mut self, bytes: usize) -> &mut Self {
        self.most_bytes = Some(bytes);
        self
    }

    /// Its body is `multipart/form-data`, its files of so many bytes together; 0 = no bound.
    pub fn uploading(&mut self, most_bytes: usize) -> &mut Self {
        self.upload = Some(Upload { most_bytes, or_json: false });
        self
    }

    /// The same body may come as JSON, when no file is in it.
    pub fn or_json(&mut self) -> &mut Self {
        self.upload = self.upload.map(|upload| Upload { or_json: true, ..upload });
        self
    }

    /// The `{token}` of its path is looked up before its body of so many bytes is read.
    pub fn with_token<Fut>(
        &mut self,
        is_known: impl Fn(String) -> Fut + Send + Sync + 'static,
        most_bytes: usize,
    ) -> &mut Self
    where
        Fut: Future<Output = Result<()>> + 'static,
    {
        self.is_known = Some(Box::new(move |token| is_known(token).boxed_local()));
        self.most_bytes = Some(most_bytes);
        self
    }

    /// Answers who repeats a request by the run that it began, as long as there is one.
    pub fn replaying<Fut>(&mut self, replay: impl Fn(AccountId, String) -> Fut + Send + Sync + 'static) -> &mut Self
    where
        Fut: Future<Output = Result<Option<Answer>>> + 'static,
    {
        self.replay = Some(Box::new(move |account, reference| replay(account, reference).boxed_local()));
        self
    }

    /// It ends when its client goes, where another that has an effect goes on to its end: it waits for what goes on by
    /// itself, or what was asked for is of no use to anybody else. Under an `Idempotency-Key` it goes on, too.
    pub fn cancellable(&mut self) -> &mut Self {
        self.is_cancellable = true;
        self
    }

    /// What it does is not done in the transaction in which its answer is kept: its `Idempotency-Key` is claimed before, so that
    /// no other process does it at the same time.
    pub fn claiming_key(&mut self) -> &mut Self {
        self.claims_key = true;
        self
    }

    /// What must hold of a request before any record is looked at: who may not ask learns nothing of what there is.
    pub fn provided(&mut self, precondition: fn(&Request) -> Result<()>) -> &mut Self {
        self.precondition = Some(precondition);
        self
    }

    /// It makes messages or threads.
    pub fn creating(&mut self) -> &mut Self {
        self.creates = true;
        self
    }

    /// It has effects, though whoever may read may ask for it. What these headers say is as much a part of a request as
    /// its body: another one under the same idempotency key is another request.
    pub fn acting(&mut self, headers: &'static [&'static str]) -> &mut Self {
        self.acts_by = Some(headers);
        self
    }

    /// What it counts has an error of its own, also for a number that is too large.
    pub fn counting(&mut self, too_large: Code) -> &mut Self {
        self.too_large = Some(too_large);
        self
    }

    /// It takes no editor, for it changes what is the caller's own.
    pub fn using(&mut self) -> &mut Self {
        self.right = Right::Use;
        self
    }

    /// It has an effect although it is a GET: HEAD is none of it, and it goes on to its end without its client.
    pub fn with_effect(&mut self) -> &mut Self {
        self.has_effect = true;
        self
    }

    /// It takes an editor of the project.
    pub fn changing(&mut self) -> &mut Self {
        self.right = Right::Change;
        self
    }

    /// It takes an editor of the project, and of those of the tools.
    pub fn approving(&mut self) -> &mut Self {
        self.right = Right::Approve;
        self
    }

    /// It changes nothing: a GET, or a search by POST.
    pub(crate) fn only_reads(&self) -> bool {
        let reads = matches!(self.open_to, OpenTo::Key { scope, .. } if scope.ends_with(":read"));
        (self.method == Method::GET && !self.has_effect) || (reads && self.acts_by.is_none())
    }

    /// A request to it may be repeated under an `Idempotency-Key`.
    pub(crate) fn takes_idempotency_key(&self) -> bool {
        self.method == Method::POST && self.open_to != OpenTo::Public && !self.only_reads()
    }

    /// A path as it would be without aliases.
    pub(crate) fn main_path(&self, path: &str) -> String {
        match self.alias {
            Some((main, alias)) if path.contains(alias) => path.replacen(alias, main, 1),
            _ => path.to_owned(),
        }
    }

    /// Its paths in the `OpenAPI` document.
    pub(crate) fn described_paths(&self) -> impl Iterator<Item = String> {
        let alias = self.alias.filter(|_| self.describes_alias);
        let other = alias.map(|(main, alias)| self.path.replacen(main, alias, 1));
        std::iter::once(self.path.to_owned()).chain(other)
    }

    /// HEAD works wherever GET only reads.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &Method> {
        let has_head = self.method == Method::GET && !self.has_effect;
        std::iter::once(&self.method).chain(has_head.then_some(&Method::HEAD))
    }

    /// The header `WWW-Authenticate` of its 401 (contract 01 §1); `was_sent`: there was a credential.
    pub(crate) fn challenge(was_sent: bool) -> &'static str {
        if was_sent { "Bearer realm=\"api\", error=\"invalid_token\"" } else { "Bearer realm=\"api\"" }
    }
}

/// Names of the placeholders in a path.
pub(crate) fn placeholders(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

/// The URLs of one group of resources.
pub struct Group {
    pub(crate) tag: &'static str,
    pub(crate) description: &'static str,
    pub(crate) routes: Vec<Route>,
    /// Fields that are said to refer to records, and that no route reads.
    pub(crate) unread: Vec<&'static str>,
}

impl Group {
    /// Begins a group whose handlers are given `services`; tag and description stand in the `OpenAPI` document.
    pub fn of<S: ?Sized>(tag: &'static str, description: &'static str, services: Arc<S>) -> GroupBuilder<S> {
        let group = Self { tag, description, routes: Vec::new(), unread: Vec::new() };
        GroupBuilder { group, services, kinds: Vec::new(), references: Vec::new(), alias: None, describes_alias: false }
    }
}

/// A group that is being declared.
pub struct GroupBuilder<S: ?Sized> {
    group: Group,
    services: Arc<S>,
    kinds: Vec<(&'static str, Kind)>,
    references: Vec<ReferenceField>,
    alias: Option<(&'static str, &'static str)>,
    describes_alias: bool,
}

impl<S: ?Sized + Send + Sync + 'static> GroupBuilder<S> {
    /// Says what records a placeholder of its paths stands for.
    #[must_use]
    pub fn naming(mut self, placeholder: &'static str, kind: Kind) -> Self {
        self.kinds.push((placeholder, kind));
        self
    }

    /// Says which fields of its bodies refer to records.
    #[must_use]
    pub fn referring(mut self, fields: &[ReferenceField]) -> Self {
        self.references.extend_from_slice(fields);
        self
    }

    /// Says where its routes are, too: below another beginning of their paths. What is said of the one holds for the
    /// other (contract 00 §1.1).
    #[must_use]
    pub fn also_at(mut self, path: &'static str, alias: &'static str) -> Self {
        self.alias = Some((path, alias));
        self
    }

    /// Has the `OpenAPI` document describe its routes at both places.
    #[must_use]
    pub fn describing_both(mut self) -> Self {
        self.describes_alias = true;
        self
    }

    /// A line of the table: changing methods take the right to change, all others the right to use.
    pub fn on<F, Fut>(&mut self, method: Method, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        let services = Arc::clone(&self.services);
        let handler: Handler = Box::new(move |request| handler(Arc::clone(&services), request).boxed_local());
        let changes = [Method::PUT, Method::PATCH, Method::DELETE].contains(&method);
        let kind = |name| self.kinds.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        self.group.routes.push(Route {
            method,
            path,
            alias: self.alias,
            describes_alias: self.describes_alias,
            tag: self.group.tag,
            open_to,
            handler,
            query_fields: Vec::new(),
            page_sizes: None,
            body_fields: None,
            record_fields: Vec::new(),
            is_raw: false,
            acts_by: None,
            too_large: None,
            most_bytes: (open_to == OpenTo::Public).then_some(SMALL_BODY),
            upload: None,
            is_resource: false,
            has_effect: false,
            is_of_ui: false,
            is_known: None,
            replay: None,
            creates: false,
            is_cancellable: false,
            claims_key: false,
            precondition: None,
            right: if changes { Right::Change } else { Right::Use },
            named: placeholders(path).map(|name| (name, kind(name))).collect(),
            references: Vec::new(),
            operation: None,
        });
        self.group.routes.last_mut().expect("it was pushed")
    }

    /// `GET path`.
    pub fn get<F, Fut>(&mut self, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        self.on(Method::GET, path, open_to, handler)
    }

    /// `POST path`.
    pub fn post<F, Fut>(&mut self, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        self.on(Method::POST, path, open_to, handler)
    }

    /// `PUT path`.
    pub fn put<F, Fut>(&mut self, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        self.on(Method::PUT, path, open_to, handler)
    }

    /// `PATCH path`.
    pub fn patch<F, Fut>(&mut self, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        self.on(Method::PATCH, path, open_to, handler)
    }

    /// `DELETE path`.
    pub fn delete<F, Fut>(&mut self, path: &'static str, open_to: OpenTo, handler: F) -> &mut Route
    where
        F: Fn(Arc<S>, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Answer>> + 'static,
    {
        self.on(Method::DELETE, path, open_to, handler)
    }

    /// The group, complete.
    pub fn build(self) -> Group {
        let Self { mut group, references, .. } = self;
        for route in &mut group.routes {
            let fields = route.body_fields.as_deref().unwrap_or_default();
            let is_read = |path: &str| fields.iter().any(|field| *field == path.split('/').next().unwrap_or_default());
            route.references = references.iter().filter(|(path, _)| is_read(path)).copied().collect();
        }
        let is_used =
            |path: &str| group.routes.iter().any(|route| route.references.iter().any(|(read, _)| *read == path));
        group.unread = references.iter().map(|(path, _)| *path).filter(|path| !is_used(path)).collect();
        group
    }
}
