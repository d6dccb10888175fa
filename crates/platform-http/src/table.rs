//! The table of all routes: which one answers a path.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, OnceLock},
};

use actix_web::http::Method;
use matchit::Router;
use platform_access::Kind;

use crate::{
    openapi,
    route::{Group, Route},
};

/// Why a table does not start.
#[derive(Debug, PartialEq, Eq)]
pub struct TableError(pub(crate) String);

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TableError {}

/// All methods of one path.
pub(crate) struct Resource {
    routes: Vec<Route>,
    /// The methods as the header `Allow` names them.
    pub allow: String,
}

impl Resource {
    fn new(routes: Vec<Route>) -> Self {
        let methods: Vec<&str> = routes.iter().flat_map(Route::methods).map(Method::as_str).collect();
        let allow = methods.join(", ");
        Self { routes, allow }
    }

    /// The route of a method.
    pub fn route(&self, method: &Method) -> Option<&Route> {
        self.routes.iter().find(|route| route.methods().any(|of| of == method))
    }
}

/// The routes by path, literal segments before placeholders.
pub struct Table {
    router: Router<Arc<Resource>>,
    resources: Vec<Arc<Resource>>,
    /// Tags of the groups, each with its description.
    tags: Vec<(&'static str, &'static str)>,
    /// Made when somebody asks for it: descriptions of all routes are large.
    document: OnceLock<String>,
    /// The kinds of records that they name.
    pub(crate) kinds: Vec<Kind>,
}

impl Table {
    /// Every route at `/v1` and `/api/v1`, the root ones at the root.
    ///
    /// # Errors
    /// A path with a placeholder of which nobody has said what it stands for, or two routes that are one.
    pub fn new(groups: Vec<Group>) -> Result<Self, TableError> {
        // Several groups may share a tag.
        let mut tags: Vec<(&str, &str)> = Vec::new();
        for group in &groups {
            if !tags.iter().any(|(tag, _)| *tag == group.tag) {
                tags.push((group.tag, group.description));
            }
        }
        let (mut by_path, mut kinds) = (BTreeMap::<&str, Vec<Route>>::new(), BTreeSet::new());
        if let Some(field) = groups.iter().find_map(|group| group.unread.first()) {
            return Err(TableError(format!("No route of its group reads the field `{field}`.")));
        }
        for route in groups.into_iter().flat_map(|group| group.routes) {
            for (name, kind) in &route.named {
                let unknown = || TableError(format!("{}: nobody has said what `{{{name}}}` stands for.", route.path));
                kinds.insert(kind.ok_or_else(unknown)?);
            }
            kinds.extend(route.references.iter().map(|(_, kind)| *kind));
            let of_path = by_path.entry(route.path).or_default();
            if of_path.iter().any(|other| other.method == route.method) {
                return Err(TableError(format!("{} {} is declared twice.", route.method, route.path)));
            }
            of_path.push(route);
        }
        let twice = |kind: &&Kind| !kind.is_placed() && kinds.contains(&Kind::placed(kind.name()));
        if let Some(kind) = kinds.iter().find(twice) {
            return Err(TableError(format!("The kind `{}` is declared in two ways.", kind.name())));
        }
        let (mut router, mut resources) = (Router::new(), Vec::new());
        for (path, routes) in by_path {
            let alias = routes.iter().find_map(|route| route.alias).map(|(main, alias)| path.replacen(main, alias, 1));
            let resource = Arc::new(Resource::new(routes));
            let patterns = [Some(pattern(path)), alias.as_deref().map(pattern)];
            let below_api = |pattern: &String| pattern.starts_with("/v1/").then(|| format!("/api{pattern}"));
            for pattern in
                patterns.into_iter().flatten().flat_map(|pattern| [below_api(&pattern), Some(pattern)]).flatten()
            {
                let inserted = router.insert(pattern, Arc::clone(&resource));
                inserted.map_err(|error| TableError(format!("{path}: {error}.")))?;
            }
            resources.push(resource);
        }
        let kinds = kinds.into_iter().collect();
        Ok(Self { router, resources, tags, document: OnceLock::new(), kinds })
    }

    /// The `OpenAPI` 3.1 document of all of them as JSON.
    ///
    /// # Errors
    /// Two types of one name.
    pub fn document(&self) -> Result<&str, TableError> {
        if let Some(document) = self.document.get() {
            return Ok(document);
        }
        let routes = self.resources.iter().flat_map(|resource| &resource.routes);
        let document = openapi::document(&self.tags, routes)?;
        Ok(self.document.get_or_init(|| document))
    }

    /// All routes.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.resources.iter().flat_map(|resource| &resource.routes)
    }

    /// What is at a path that is decoded.
    pub(crate) fn find(&self, path: &str) -> Option<&Resource> {
        self.router.at(path).ok().map(|found| found.value.as_ref())
    }
}

/// A path as the router takes it: one placeholder at one place has one name there.
fn pattern(path: &str) -> String {
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "{id}" } else { segment });
    let segments = segments.enumerate().map(|(place, segment)| segment.replace("{id}", &format!("{{{place}}}")));
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{answer::Answer, request::Request, route::OpenTo};

    const LABEL: Kind = Kind::of_account("label");

    async fn nothing(_: Arc<()>, _: Request) -> platform_core::Result<Answer> {
        Ok(Answer::empty(204))
    }

    fn table(names: &[&'static str], paths: &[&'static str]) -> Result<Table, TableError> {
        let mut group = Group::of("labels", "Labels", Arc::new(()));
        for name in names {
            group = group.naming(name, LABEL);
        }
        for path in paths {
            group.get(path, OpenTo::Public, nothing);
        }
        Table::new(vec![group.build()])
    }

    #[test]
    fn a_route_whose_placeholder_stands_for_nothing_known_does_not_start() {
        let refused = table(&[], &["/v1/labels/{labelId}"]).err().expect("refused").to_string();
        assert_eq!(refused, "/v1/labels/{labelId}: nobody has said what `{labelId}` stands for.");
        let table = table(&["labelId"], &["/v1/labels/{labelId}"]).expect("a table");
        assert_eq!(table.kinds, [LABEL]);
    }

    #[test]
    fn a_reference_that_no_route_reads_and_a_kind_of_two_sorts_do_not_start() {
        let group = || Group::of("labels", "Labels", Arc::new(()));
        let refused = Table::new(vec![group().referring(&[("labelId", LABEL)]).build()]).err().expect("refused");
        assert_eq!(refused.to_string(), "No route of its group reads the field `labelId`.");
        let mut one = group().naming("id", LABEL);
        one.get("/v1/a/{id}", OpenTo::Public, nothing);
        let mut other = group().naming("id", Kind::placed("label"));
        other.get("/v1/b/{id}", OpenTo::Public, nothing);
        let refused = Table::new(vec![one.build(), other.build()]).err().expect("refused").to_string();
        assert_eq!(refused, "The kind `label` is declared in two ways.");
    }

    #[test]
    fn a_route_that_is_declared_twice_does_not_start() {
        let refused = table(&[], &["/v1/labels", "/v1/labels"]).err().expect("refused").to_string();
        assert_eq!(refused, "GET /v1/labels is declared twice.");
    }

    #[test]
    fn literal_segments_win_over_placeholders_and_both_mounts_are_alike() {
        let paths = [
            "/v1/agents/threads/tags",
            "/v1/agents/threads/{threadId}",
            "/v1/agents/{agentId}/threads",
            "/v1/agents/agents/{agentId}/costs",
            "/livez",
        ];
        let table = table(&["agentId", "threadId"], &paths).expect("a table");
        let found = |path: &str, method: &Method| Some(table.find(path)?.route(method)?.path);
        for (path, route) in [
            ("agents/threads/tags", paths[0]),
            ("agents/threads/threads", paths[1]),
            ("agents/agents/threads", paths[2]),
            ("agents/agents/a/costs", paths[3]),
        ] {
            for mount in ["/v1/", "/api/v1/"] {
                assert_eq!(found(&format!("{mount}{path}"), &Method::HEAD), Some(route), "{mount}{path}");
            }
        }
        assert_eq!((found("/v1/agents/", &Method::GET), found("/api/livez", &Method::GET)), (None, None));
    }
}
