//! References between records, and who reaches what, on a real PostgreSQL.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use diesel_async::SimpleAsyncConnection;
use platform_access::{
    Access, Demand, Kind, KnownProject, KnownProjects, Place, ProjectRole, Projects, Reach, RecordRef, Referrer,
    Referrers, Resources, Right, Visibility, code, use_in, users_in,
};
use platform_core::{AccountId, Caller, Code, Credential, Origin, Owner, Result, Session};
use platform_db::Conn;
use platform_testing::TestDb;

const LABEL: Kind = Kind::placed("label");
const BOX: Kind = Kind::placed("box");

/// Boxes that note what was taken out of them.
#[derive(Default)]
struct Boxes(Mutex<Vec<String>>);

#[async_trait]
impl Referrer for Boxes {
    fn kind(&self) -> Kind {
        BOX
    }

    async fn lock_in(&self, _: &mut Conn, _: &AccountId, name: &str) -> Result<String> {
        Ok(name.trim_start_matches("the ").to_owned())
    }

    async fn refer_in(&self, _: &mut Conn, _: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        self.0.lock().expect("lock").push(format!("{} to {id}", target.1));
        Ok(())
    }

    async fn describe_in(&self, _: &mut Conn, _: &AccountId, id: &str) -> Result<Option<(String, String)>> {
        Ok(Some((id.to_owned(), format!("Box {id}"))))
    }

    async fn forget_in(&self, _: &mut Conn, _: &AccountId, id: &str, target: RecordRef<'_>) -> Result<()> {
        self.0.lock().expect("lock").push(format!("{} of {id}", target.1));
        Ok(())
    }
}

#[tokio::test]
async fn a_record_is_taken_out_of_all_that_refer_to_it_and_of_nothing_else() {
    let test = TestDb::new().await;
    let db = test.connect();
    let (ours, theirs) = (AccountId::generate(), AccountId::generate());
    let mut conn = db.conn().await.expect("a connection");
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    for account in [&ours, &theirs] {
        use_in(&mut conn, account, (BOX, "b1"), LABEL, &ids(&["l1", "l2"])).await.expect("stored");
        use_in(&mut conn, account, (BOX, "b2"), LABEL, &ids(&["l1"])).await.expect("stored");
    }
    use_in(&mut conn, &ours, (BOX, "b2"), LABEL, &ids(&["l2", "l1", "l1"])).await.expect("stored");
    use_in(&mut conn, &ours, (BOX, "b1"), LABEL, &ids(&["l2"])).await.expect("stored");
    let boxes = Arc::new(Boxes::default());
    let referrers = Referrers::new([boxes.clone() as Arc<dyn Referrer>]);
    let users = referrers.forget_in(&mut conn, &ours, &[LABEL], &ids(&["l1"])).await.expect("forgotten");
    assert_eq!((users.len(), boxes.0.lock().expect("lock").clone()), (1, vec!["l1 of b2".to_owned()]));
    assert_eq!(users_in(&mut conn, &ours, (LABEL, "l1")).await.expect("read"), []);
    assert_eq!(users_in(&mut conn, &ours, (LABEL, "l2")).await.expect("read").len(), 2);
    assert_eq!(users_in(&mut conn, &theirs, (LABEL, "l1")).await.expect("read").len(), 2, "another account's");
    let nobody = Referrers::new([]).forget_in(&mut conn, &ours, &[LABEL], &ids(&["l2"])).await;
    assert_eq!(nobody.expect_err("who changes the boxes?").code(), Code::INTERNAL_ERROR);
}

#[tokio::test]
async fn what_referred_to_tool_servers_before_there_was_one_table_still_does() {
    let test = TestDb::new().await;
    let db = test.connect();
    let mut conn = db.conn().await.expect("a connection");
    let (up, down) = (
        include_str!("../../../migrations/2026-11-22-230100_toolservers_uses/up.sql"),
        include_str!("../../../migrations/2026-11-22-230100_toolservers_uses/down.sql"),
    );
    let (newer_up, newer_down) = (
        include_str!("../../../migrations/2026-11-26-112500_toolservers_uses_in_one_table/up.sql"),
        include_str!("../../../migrations/2026-11-26-112500_toolservers_uses_in_one_table/down.sql"),
    );
    let account = AccountId::generate();
    conn.batch_execute(newer_down).await.expect("as it was");
    conn.batch_execute(down).await.expect("and before");
    let before = format!(
        "INSERT INTO tool_servers (account_id, id, identifier, kind, name, description, enabled, settings, tools, \
         tool_count, created_ms, edited_ms) VALUES ('{account}', 's1', 's', 'http', 'S', '', true, '{{}}', '[]', 0, 0, 0); \
         INSERT INTO tool_server_uses VALUES ('{account}', 's1', 'assistants', 'a1'), ('{account}', 's1', 'agents', 'g1')",
        account = account.as_str()
    );
    conn.batch_execute(&before).await.expect("stored");
    conn.batch_execute(up).await.expect("carried over");
    let users = users_in(&mut conn, &account, (Kind::placed("tool-server"), "s1")).await.expect("read");
    assert_eq!(users, [("agent".to_owned(), "g1".to_owned()), ("assistant".to_owned(), "a1".to_owned())]);
    // A process of the version before writes to the old table still.
    let later = format!(
        "INSERT INTO tool_server_uses VALUES ('{account}', 's1', 'agents', 'g2'); \
         DELETE FROM tool_server_uses WHERE user_id = 'g1'",
        account = account.as_str()
    );
    conn.batch_execute(&later).await.expect("stored");
    let users = users_in(&mut conn, &account, (Kind::placed("tool-server"), "s1")).await.expect("read");
    assert_eq!(users, [("agent".to_owned(), "g2".to_owned()), ("assistant".to_owned(), "a1".to_owned())]);
    conn.batch_execute(down).await.expect("and back");
    conn.batch_execute(up).await.expect("and again");
    for newer in [newer_up, newer_down, newer_up] {
        conn.batch_execute(newer).await.expect("carried over");
    }
    assert_eq!(users_in(&mut conn, &account, (Kind::placed("tool-server"), "s1")).await.expect("read"), users);
}

/// Two projects: `open` for all, `closed` for its editor `ed` and viewer `vi`.
struct TwoProjects;

#[async_trait]
impl Projects for TwoProjects {
    async fn reach<'a>(&self, caller: &'a Caller) -> Result<Reach<'a>> {
        let project = |visibility| KnownProject { identifier: String::new(), visibility, archived: false };
        let role = |role| [("closed".to_owned(), role)].into();
        let known = KnownProjects {
            projects: [
                ("open".to_owned(), project(Visibility::Public)),
                ("closed".to_owned(), project(Visibility::Private)),
            ]
            .into(),
            members: [("ed".to_owned(), role(ProjectRole::Editor)), ("vi".to_owned(), role(ProjectRole::Viewer))]
                .into(),
        };
        Ok(Reach::new(Arc::new(known), caller))
    }
}

/// Labels by id, each somewhere.
struct Labels(BTreeMap<&'static str, Place>);

#[async_trait]
impl Resources for Labels {
    async fn place(&self, _: &AccountId, id: &str) -> Result<Option<Place>> {
        Ok(self.0.get(id).cloned())
    }
}

fn caller(credential: Credential, user: &str) -> Caller {
    let origin = Origin {
        user: (!user.is_empty()).then(|| platform_core::OriginUser { id: user.to_owned(), is_admin: false }),
        ..Origin::default()
    };
    Caller { account: AccountId::generate(), credential, user_uid: user.to_owned(), projects: None, origin }
}

#[tokio::test]
async fn a_caller_reaches_what_its_project_its_role_and_its_tenant_open() {
    let owner = |tenant: &str| Some(Owner { tenant_id: Some(tenant.to_owned()), subtenant_id: None });
    let place = |project: &str| Place { project: Some(project.to_owned()), ..Place::default() };
    let labels = Arc::new(Labels(
        [
            ("open", place("open")),
            ("closed", place("closed")),
            ("started", Place { started_by: Some("vi".to_owned()), ..place("closed") }),
            ("acme", Place { owner: owner("acme"), ..Place::default() }),
        ]
        .into(),
    ));
    let resources = || [(LABEL, labels.clone() as Arc<dyn Resources>)];
    let access = Access::new(Arc::new(TwoProjects), resources(), &[LABEL, BOX]);
    assert_eq!(access.err().map(Vec::from_iter), Some(vec![BOX]), "nobody can say where boxes are");
    let access = Access::new(Arc::new(TwoProjects), resources(), &[LABEL]).expect("every kind has its resources");
    let token = |user: &str| caller(Credential::Token { user: user.to_owned(), client: "app".to_owned() }, user);
    let session = |tenant: &str| {
        let session =
            Session { id: "s".to_owned(), tenant_id: tenant.to_owned(), subtenant_id: None, assistants: None };
        caller(Credential::Session(session), "")
    };
    let full = caller(Credential::FullKey("k".to_owned()), "");
    let judge = async |caller: &Caller, id: &str, right, reads| {
        let named = [(LABEL, id.to_owned())];
        let demand = Demand { named: &named, right, reads, ..Demand::default() };
        access.check(caller, demand).await.map_err(|error| error.code())
    };
    let (ok, forbidden) = (Ok(()), Err(Code::FORBIDDEN));
    let no_member = Err(code::PROJECT_FORBIDDEN);
    for (who, id, right, reads, expected) in [
        (&full, "closed", Right::Change, false, ok),
        (&token("ed"), "closed", Right::Change, false, ok),
        (&token("ed"), "open", Right::Use, true, ok),
        (&token("ed"), "open", Right::Change, false, forbidden),
        (&token("vi"), "closed", Right::Use, true, ok),
        (&token("vi"), "closed", Right::Change, false, forbidden),
        (&token("vi"), "started", Right::Use, false, ok),
        (&token("ed"), "started", Right::Use, false, ok),
        (&token("else"), "closed", Right::Use, true, no_member),
        (&token("else"), "gone", Right::Change, false, ok),
        (&session("acme"), "acme", Right::Use, false, ok),
        (&session("other"), "acme", Right::Use, true, Err(code::NOT_OWNER)),
    ] {
        assert_eq!(judge(who, id, right, reads).await, expected, "{} {id} {right:?}", who.user_uid);
    }
    // What is referred to must be in sight, and what something joins must be open to change.
    let refers = |id: &str| Demand { references: [(LABEL, id.to_owned())].into(), ..Demand::default() };
    assert!(access.check(&token("vi"), refers("closed")).await.is_ok());
    let refused = access.check(&token("else"), refers("closed")).await.expect_err("hidden");
    assert_eq!(refused.code(), code::PROJECT_FORBIDDEN);
    let joins = |project: &str| Demand { joins: Some(project.to_owned()), ..Demand::default() };
    assert!(access.check(&token("ed"), joins("closed")).await.is_ok());
    assert_eq!(access.check(&token("vi"), joins("closed")).await.expect_err("a viewer").code(), Code::FORBIDDEN);
    assert_eq!(access.check(&full, joins("nowhere")).await.expect_err("none").code(), code::PROJECT_NOT_FOUND);
}
