//! The apps there are, and where they come from.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use include_dir::{Dir, include_dir};
use jsonschema::{Validator, error::ValidationErrorKind};
use platform_core::{Error, Result, sha256_hex};
use platform_vault::Secret;
use serde_json::Value;
use tracing::{info, warn};

use crate::{
    check::read_pack,
    code,
    model::{App, EventType},
    pack::{Pack, PackEventType},
};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/packs");

/// Where apps come from: what is not a file is one more implementation.
pub trait ConnectorSource: Send + Sync {
    /// Who provides them, as apps say it.
    fn provider(&self) -> &str;

    /// Texts of packs, each with its name for the log.
    fn packs(&self) -> Vec<(String, String)>;
}

/// The packs of this program.
struct BuiltIn;

impl ConnectorSource for BuiltIn {
    fn provider(&self) -> &'static str {
        "builtin"
    }

    fn packs(&self) -> Vec<(String, String)> {
        let text =
            |file: &include_dir::File<'_>| Some((file.path().display().to_string(), file.contents_utf8()?.to_owned()));
        BUILT_IN.files().filter_map(text).collect()
    }
}

/// The packs of a directory: its files that end in `.yaml` or `.yml`.
pub struct Directory(pub std::path::PathBuf);

impl ConnectorSource for Directory {
    fn provider(&self) -> &'static str {
        "custom"
    }

    fn packs(&self) -> Vec<(String, String)> {
        let read = |path: &Path| {
            read_pack_file(path)
                .inspect_err(
                    |error| warn!(file = %path.display(), %error, "A connector could not be read; it is left out."),
                )
                .ok()
        };
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) => {
                warn!(directory = %self.0.display(), %error, "The directory of connectors could not be read.");
                return Vec::new();
            }
        };
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let is_pack = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        paths
            .into_iter()
            .filter(|path| is_pack(path))
            .filter_map(|path| Some((path.display().to_string(), read(&path)?)))
            .collect()
    }
}

/// Bytes of a pack.
const MAX_PACK_FILE: u64 = 1 << 20;

/// The text of a pack. A file that is a pipe would be waited for without end.
///
/// # Errors
/// It cannot be read, or has more than 1 MiB.
pub fn read_pack_file(path: &Path) -> std::io::Result<String> {
    let about = std::fs::metadata(path)?;
    if !about.is_file() || about.len() > MAX_PACK_FILE {
        return Err(std::io::Error::other("a connector is a file of at most 1 MiB"));
    }
    std::fs::read_to_string(path)
}

/// An app that was read.
pub struct Connector {
    /// What its pack says.
    pub pack: Pack,
    /// Who provides it.
    pub provider: String,
    /// The client of managed OAuth, by the operator's settings.
    pub managed: Option<AppClient>,
    /// Tells its tools from those of another version of it.
    pub digest: String,
    /// Configs and payloads of its event types, by slug.
    schemas: BTreeMap<String, (Validator, Validator)>,
}

/// How this server stands with an app.
#[derive(Clone)]
pub struct AppClient {
    /// Its id there.
    pub id: String,
    /// Its secret there; a public client has none.
    pub secret: Option<Secret>,
    /// With what the app signs what it sends.
    pub signing_secret: Option<Secret>,
}

impl Connector {
    pub(crate) fn new(pack: Pack, provider: &str, managed: Option<AppClient>) -> Result<Self, String> {
        let mut schemas = BTreeMap::new();
        for event in &pack.event_types {
            let compiled = |schema: &Value| jsonschema::validator_for(schema).map_err(|error| error.to_string());
            schemas.insert(event.slug.clone(), (compiled(&event.config)?, compiled(&event.payload)?));
        }
        // As JSON a value of a header is masked.
        let headers: Vec<&str> =
            pack.tools.iter().flat_map(|tool| &tool.custom_headers).map(|header| header.value.expose()).collect();
        let made = serde_json::to_string(&(&pack.base_url, &pack.tools, headers)).map_err(|error| error.to_string())?;
        Ok(Self { digest: sha256_hex(made), pack, provider: provider.to_owned(), managed, schemas })
    }

    /// The app as it is listed.
    pub fn shown(&self) -> App {
        let pack = &self.pack;
        App {
            slug: pack.slug.clone(),
            name: pack.name.clone(),
            description: pack.description.clone(),
            logo: pack.logo.clone(),
            no_auth: pack.no_auth(),
            categories: pack.categories.clone(),
            tools_count: pack.tools.len(),
            triggers_count: pack.event_types.len(),
            provider: self.provider.clone(),
        }
    }

    /// What is wrong with what a trigger says; nothing when it fits.
    pub fn config_problems(&self, event: &PackEventType, config: &Value) -> Vec<(String, String)> {
        let Some((schema, _)) = self.schemas.get(&event.slug) else { return Vec::new() };
        let problem = |error: jsonschema::ValidationError<'_>| {
            let path = error.instance_path().to_string().trim_start_matches('/').replace('/', ".");
            let ways = match error.kind() {
                ValidationErrorKind::AnyOf { context } => context.iter().filter_map(|way| way.first()).collect(),
                _ => Vec::new(),
            };
            let ways: Vec<String> = ways.into_iter().map(|way| way.masked().to_string()).collect();
            (path, if ways.is_empty() { error.masked().to_string() } else { ways.join(", or ") })
        };
        schema.iter_errors(config).take(10).map(problem).collect()
    }

    /// Whether a payload is one of these events.
    pub fn is_event(&self, event: &PackEventType, payload: &Value) -> bool {
        self.schemas.get(&event.slug).is_none_or(|(_, schema)| schema.is_valid(payload))
    }

    /// `EVENT_TYPE_NOT_FOUND` when it has none by that name.
    pub fn event_type(&self, slug: &str) -> Result<&PackEventType> {
        let missing = || Error::not_found(code::EVENT_TYPE_NOT_FOUND, "event type", slug);
        self.pack.event_type(slug).ok_or_else(missing)
    }

    /// An event type as it is sent.
    pub fn shown_event(&self, event: &PackEventType) -> EventType {
        EventType {
            slug: event.slug.clone(),
            name: event.name.clone(),
            app: self.pack.slug.clone(),
            description: event.description.clone(),
            instructions: event.instructions.clone(),
            r#type: event.r#type,
            config: event.config.clone(),
            payload: event.payload.clone(),
        }
    }

    /// Event types in which a text occurs.
    pub fn event_types(&self, search: Option<&str>) -> Vec<&PackEventType> {
        self.pack.event_types.iter().filter(|of| is_in(search, &[&of.slug, &of.name, &of.description])).collect()
    }
}

/// Every word of a search stands somewhere.
fn is_in(search: Option<&str>, texts: &[&str]) -> bool {
    let texts: Vec<String> = texts.iter().map(|text| text.to_lowercase()).collect();
    let words = search.unwrap_or_default().to_lowercase();
    words.split_whitespace().all(|word| texts.iter().any(|text| text.contains(word)))
}

/// All apps.
pub struct Connectors(BTreeMap<String, Arc<Connector>>);

impl Connectors {
    /// Reads all packs: the built-in ones, then those of a directory, which may replace them. One that is wrong is left
    /// out, with a line in the log. `client`: how this server stands with an app, by its slug.
    pub fn load(directory: Option<&Path>, client: impl Fn(&str) -> Option<AppClient>) -> Self {
        let directory = directory.map(|path| Directory(path.to_owned()));
        let sources = [Some(&BuiltIn as &dyn ConnectorSource), directory.as_ref().map(|of| of as &dyn ConnectorSource)];
        let mut all = BTreeMap::new();
        for source in sources.into_iter().flatten() {
            for (file, text) in source.packs() {
                let pack = match read_pack(&text) {
                    Ok(pack) => pack,
                    Err(problems) => {
                        for problem in problems {
                            let (line, problem) = (problem.line, problem.message);
                            warn!(file, line, problem, "A connector is wrong; it is left out.");
                        }
                        continue;
                    }
                };
                let slug = pack.slug.clone();
                match Connector::new(pack, source.provider(), client(&slug)) {
                    Ok(connector) => {
                        if source.provider() != "builtin" {
                            info!(app = slug, file, "A connector was read.");
                        }
                        let before = all.insert(slug.clone(), Arc::new(connector));
                        if before.is_some_and(|before: Arc<Connector>| before.provider == source.provider()) {
                            warn!(app = slug, file, "Two connectors have this slug; this file counts.");
                        }
                    }
                    Err(problem) => warn!(file, problem, "A connector is wrong; it is left out."),
                }
            }
        }
        Self(all)
    }

    /// An app. `APP_NOT_FOUND`.
    pub fn get(&self, slug: &str) -> Result<&Arc<Connector>> {
        self.0.get(slug).ok_or_else(|| Error::not_found(code::APP_NOT_FOUND, "app", slug))
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Connector>> {
        self.0.values()
    }

    /// Apps in which a text occurs, by name.
    pub fn list(&self, search: Option<&str>, category: Option<&str>) -> Vec<&Arc<Connector>> {
        let is_of =
            |pack: &Pack| category.is_none_or(|of| pack.categories.iter().any(|own| own.eq_ignore_ascii_case(of)));
        let mut found: Vec<&Arc<Connector>> = self
            .0
            .values()
            .filter(|of| is_of(&of.pack) && is_in(search, &[&of.pack.slug, &of.pack.name, &of.pack.description]))
            .collect();
        found.sort_by_key(|of| of.pack.name.to_lowercase());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_built_in_pack_is_read_and_its_samples_are_events() {
        let packs = BuiltIn.packs();
        for (file, text) in &packs {
            assert_eq!(read_pack(text).err(), None, "{file}");
        }
        let apps = Connectors::load(None, |_| None);
        let slugs: Vec<&str> = apps.all().map(|app| app.pack.slug.as_str()).collect();
        let expected =
            ["github", "gmail", "google-drive", "http", "linear", "notion", "rss", "schedule", "slack", "webhook"];
        assert_eq!(slugs, expected);
        for app in apps.all() {
            for event in &app.pack.event_types {
                let sample = crate::sample_of(&event.payload);
                assert!(app.is_event(event, &sample), "{} {}: {sample}", app.pack.slug, event.slug);
            }
        }
        for product in ["github", "slack", "gmail", "google-drive", "notion", "linear"] {
            assert!(apps.get(product).expect("it is built in").pack.tools.len() >= 8, "{product}");
        }
    }

    #[test]
    fn what_is_missing_is_named_also_where_one_of_several_fields_is_enough() {
        let apps = Connectors::load(None, |_| None);
        let linear = apps.get("linear").expect("it is built in");
        let event = linear.event_type("issue_created").expect("it is there");
        let problems = linear.config_problems(event, &serde_json::json!({}));
        let [(path, problem)] = problems.as_slice() else { panic!("{problems:?}") };
        assert_eq!(path, "");
        assert!(problem.contains("\"teamId\"") && problem.contains(", or \"allPublicTeams\""), "{problem}");
        // A pipe would be waited for without end.
        assert!(read_pack_file(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn the_pack_of_the_page_is_good() {
        let page = include_str!("../../../docs/INTEGRATIONS.md");
        let text = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a pack");
        assert_eq!(read_pack(text).err(), None);
        assert!(text.lines().count() <= 22, "twenty lines");
    }

    #[test]
    fn problems_of_a_pack_have_their_lines() {
        let wrong = "slug: servers\nname: X\nbaseUrl: https://a.example\nauth:\n  - mode: API_KEY\n    headers: \
            [{headerName: X-Key, value: \"${key}\"}]\ntools:\n  - function: {name: t}\n    endpoint: /x/${id}\n    \
            colour: red\neventTypes:\n  - slug: e\n    name: E\n    type: poll\n";
        let problems = read_pack(wrong).expect_err("it is wrong");
        let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [1, 6, 8, 10, 12], "{problems:?}");
        let unknown = read_pack("slug: a\nname: A\nbaseUrl: https://a.example\ncolour: red\n").expect_err("a key");
        assert!(unknown[0].message.contains("colour") && unknown[0].line == 4, "{unknown:?}");
    }
}
