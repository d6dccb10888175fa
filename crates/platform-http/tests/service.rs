//! A group of resources is served from its own files and the lines that name it: credentials, access, errors, rates and
//! the document come with it.

mod labels;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use platform_auth::{AuthConfig, AuthService, KeyService, NewApiKey, PgAuthService, TokenAlgorithm};
use platform_core::{AccountId, Caller, Credential, Origin, SystemClock};
use platform_db::Bus;
use platform_http::{Http, HttpConfig, Needs, Rates, listen, serve};
use platform_limits::{Rate, RateLimits};
use platform_projects::{NewProject, PgProjectService, ProjectService};
use platform_testing::TestDb;
use platform_vault::{MasterKey, Vault};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn config() -> HttpConfig {
    let rate = Rate { count: 6000, minutes: 1, burst: 6000 };
    HttpConfig {
        public_url: "http://localhost".to_owned(),
        max_json_bytes: 1 << 20,
        upload_dir: std::env::temp_dir(),
        stream_lifetime: Duration::from_mins(1),
        stream_keepalive: Duration::from_secs(15),
        cors_origins: vec!["*".to_owned()],
        trusted_proxies: Vec::new(),
        rates: Rates {
            full: rate,
            restricted: rate,
            session: rate,
            oauth: rate,
            create_full: rate,
            create_key: rate,
            create_session: rate,
            bad_credential: rate,
        },
        connections: 0,
        connections_per_address: 0,
        bodies_per_address: 0,
        streams_per_key: 0,
        streams_per_session: 0,
    }
}

struct Fixture {
    _db: TestDb,
    url: String,
    client: reqwest::Client,
    auth: Arc<PgAuthService>,
    projects: Arc<PgProjectService>,
}

async fn fixture() -> Fixture {
    let test = TestDb::new().await;
    let (db, bus, clock) = (test.connect(), Bus::local(), Arc::new(SystemClock));
    let vault = Arc::new(Vault::new(MasterKey::generate(), Vec::new()));
    let of_server = AuthConfig {
        key_prefix: "pk".to_owned(),
        issuer: "http://localhost".to_owned(),
        token_algorithm: TokenAlgorithm::EdDsa,
        access_ttl: Duration::from_mins(1),
        refresh_ttl: Duration::from_mins(1),
        trusted: None,
        registration: true,
        documents: None,
    };
    let auth = Arc::new(PgAuthService::new(&db, &bus, clock.clone(), vault, of_server).expect("a service"));
    let projects = Arc::new(PgProjectService::new(&db, &bus, clock, auth.clone()));
    let labels = Arc::new(labels::MemoryLabels::default());
    let needs = Needs {
        auth: auth.clone(),
        projects: projects.clone(),
        resources: vec![(labels::LABEL, labels.clone())],
        db,
        rates: RateLimits::new(None),
        observer: None,
        proxied: None,
        closing: CancellationToken::new(),
    };
    let http = Http::new(config(), needs, vec![labels::group(labels)]).expect("a table");
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    // It serves until the test ends.
    std::mem::forget(serve(&Arc::new(http), listener, Duration::from_secs(1)).expect("a server"));
    let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client");
    Fixture { _db: test, url, client, auth, projects }
}

impl Fixture {
    /// A caller of an account that may do everything there.
    async fn operator(&self, name: &str) -> Caller {
        let account = self.auth.create_account(name).await.expect("an account").id;
        operator(account)
    }

    async fn key(&self, operator: &Caller, projects: Option<Vec<String>>) -> String {
        let new = NewApiKey { name: "test".to_owned(), project_ids: projects, ..NewApiKey::default() };
        let made = self.auth.create_key(operator, new, None).await.expect("a key");
        serde_json::to_value(&made).expect("JSON")["key"].as_str().expect("its value").to_owned()
    }

    async fn send(&self, request: reqwest::RequestBuilder, key: &str) -> (u16, Value) {
        let answer = request.bearer_auth(key).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    async fn create(&self, key: &str, label: Value) -> (u16, Value) {
        self.send(self.client.post(format!("{}/labels", self.url)).json(&label), key).await
    }

    async fn get(&self, key: &str, id: &str) -> (u16, Value) {
        self.send(self.client.get(format!("{}/labels/{id}", self.url)), key).await
    }
}

fn operator(account: AccountId) -> Caller {
    let credential = Credential::FullKey("server".to_owned());
    Caller { account, credential, user_uid: "server".to_owned(), projects: None, origin: Origin::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_served_with_all_that_the_house_gives_it() {
    let fixture = fixture().await;
    let (ours, theirs) = (fixture.operator("ours").await, fixture.operator("theirs").await);
    let (key, foreign) = (fixture.key(&ours, None).await, fixture.key(&theirs, None).await);
    let (status, label) = fixture.create(&key, json!({"name": "urgent"})).await;
    assert_eq!((status, &label["name"]), (201, &json!("urgent")), "{label}");
    let id = label["_id"].as_str().expect("an id");
    assert_eq!(fixture.get(&key, id).await, (200, label.clone()));
    let refused = |(status, body): (u16, Value)| (status, body["error"].as_str().unwrap_or_default().to_owned());
    let not = |status, code: &str| (status, code.to_owned());
    assert_eq!(refused(fixture.get(&foreign, id).await), not(404, "LABEL_NOT_FOUND"), "another account's");
    assert_eq!(refused(fixture.get("pk-nonsense", id).await), not(401, "UNAUTHENTICATED"));
    assert_eq!(refused(fixture.create(&key, json!({"name": ""})).await), not(400, "VALIDATION_ERROR"));
    assert_eq!(refused(fixture.create(&key, json!({"name": 7})).await), not(400, "VALIDATION_ERROR"));
    let strict = fixture.client.post(format!("{}/labels?strict=true", fixture.url));
    let typo = fixture.send(strict.json(&json!({"nmae": "x"})), &key).await;
    assert_eq!(typo.1["details"]["fields"][0], json!({"name": "nmae", "suggestion": "name"}));
    let wrong = fixture.client.delete(format!("{}/labels/{id}", fixture.url));
    assert_eq!(refused(fixture.send(wrong, &key).await), not(405, "METHOD_NOT_ALLOWED"));

    // A label of a private project, and keys that are bound to it and to another.
    let mut projects = Vec::new();
    for name in ["one", "two"] {
        let new = NewProject { name: name.to_owned(), identifier: name.to_owned(), ..NewProject::default() };
        projects.push(fixture.projects.create(&ours, new, None).await.expect("a project").id);
    }
    let (one, two) = (
        fixture.key(&ours, Some(vec![projects[0].clone()])).await,
        fixture.key(&ours, Some(vec![projects[1].clone()])).await,
    );
    let within = json!({"name": "inside", "projectId": projects[0]});
    assert_eq!(refused(fixture.create(&two, within.clone()).await), not(403, "PROJECT_FORBIDDEN"));
    let (status, inside) = fixture.create(&one, within).await;
    assert_eq!(status, 201, "{inside}");
    let inside = inside["_id"].as_str().expect("an id");
    assert_eq!(fixture.get(&one, inside).await.0, 200);
    assert_eq!(refused(fixture.get(&two, inside).await), not(403, "PROJECT_FORBIDDEN"));
}
