//! Memory through its traits, on a real PostgreSQL.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::{join_all, pending};
use platform_core::{AccountId, Clock, Result, SystemClock};
use platform_db::Bus;
use platform_memory::{MemoryLimits, MemoryNeeds, MemoryService, NewEntry, PgMemory, Source};
use platform_models::{Models, ModelsConfig};
use platform_runtime::{EarlierTurn, EarlierTurns, Memory, MemoryBucket, Model, Payer, Spender};
use platform_tenants::Quotas;
use platform_testing::TestDb;
use tokio::sync::watch;

/// Chats in which looking for words never comes to an end.
struct Endless {
    /// Whose are looked through.
    searches: watch::Sender<Vec<String>>,
}

#[async_trait]
impl EarlierTurns for Endless {
    async fn newest(&self, _: &AccountId, _: &MemoryBucket, _: &str, _: usize) -> Result<Vec<Arc<EarlierTurn>>> {
        Ok(Vec::new())
    }

    async fn saying(
        &self,
        _: &AccountId,
        bucket: &MemoryBucket,
        _: &str,
        _: &[String],
    ) -> Result<Vec<Arc<EarlierTurn>>> {
        self.searches.send_modify(|searches| searches.push(bucket.tenant_id.clone()));
        pending().await
    }
}

async fn memory() -> (PgMemory, watch::Receiver<Vec<String>>) {
    let db = TestDb::new().await.connect();
    let (bus, models) = (Bus::local(), Models::start(ModelsConfig::default()).await.expect("models"));
    let (searches, seen) = watch::channel(Vec::new());
    let needs = MemoryNeeds {
        db: db.clone(),
        bus: bus.clone(),
        clock: Arc::new(SystemClock) as Arc<dyn Clock>,
        turns: Arc::new(Endless { searches }),
        catalog: Arc::clone(&models) as _,
        budget: Arc::new(Quotas::new(&db, &bus, models as Arc<dyn Model>)),
        limits: MemoryLimits::default(),
    };
    (PgMemory::new(needs), seen)
}

fn of(tenant: &str, account: &AccountId) -> (MemoryBucket, Payer) {
    let bucket = MemoryBucket {
        assistant_id: "assistant".to_owned(),
        tenant_id: tenant.to_owned(),
        subtenant_id: None,
        is_of_end_user: false,
    };
    let payer = Payer {
        account: account.clone(),
        tenant_id: Some(tenant.to_owned()),
        subtenant_id: None,
        project_id: None,
        spender: Spender::Service("test"),
    };
    (bucket, payer)
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_without_end_hold_up_neither_another_account_nor_a_chat_that_begins() {
    let (memory, mut seen) = memory().await;
    let (own, other) = (AccountId::generate(), AccountId::generate());
    let search = async |tenant: &str, account: &AccountId| {
        let (bucket, payer) = of(tenant, account);
        memory.earlier(&bucket, &payer, "chat", "the word", "search_memory").await
    };
    let searching = async {
        let of_one = join_all((0..10).map(|_| search("hog", &own)));
        let of_others = async {
            // One of a bucket at a time, two of an account, and as many of another as if there were none.
            let looked = async |most: usize, seen: &mut watch::Receiver<Vec<String>>| {
                seen.wait_for(|searches| searches.len() == most).await.expect("memory lives").clone()
            };
            let begins = async |tenant: &str, account: &AccountId| {
                let (bucket, payer) = of(tenant, account);
                memory.earlier(&bucket, &payer, "chat", "Good morning", "conversation_start").await.expect("turns")
            };
            assert_eq!(looked(2, &mut seen).await, ["hog", "second"]);
            begins("hog", &own).await;
            begins("third", &own).await;
            tokio::select! {
                _ = search("hog", &other) => unreachable!("it has no end"),
                searches = looked(3, &mut seen) => {
                    assert_eq!(searches, ["hog", "second", "hog"]);
                }
            }
        };
        tokio::select! {
            biased;
            _ = of_one => unreachable!("they have no end"),
            _ = search("second", &own) => unreachable!("it has no end"),
            _ = search("third", &own) => unreachable!("it waits for those"),
            () = of_others => {}
        }
    };
    tokio::time::timeout(platform_testing::PATIENCE, searching).await.expect("nobody is held up");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_remembered_of_one_is_in_their_prompt_alone() {
    let (memory, _) = memory().await;
    let account = AccountId::generate();
    let ((ann, _), (bob, _)) = (of("ann", &account), of("bob", &account));
    let new = NewEntry { content: "Likes tea".to_owned(), ..NewEntry::default() };
    memory.add(&account, &ann, new, Source::Api, None).await.expect("remembered");
    let block = memory.core(&account, &ann).await.expect("read");
    assert!(block.as_ref().as_ref().is_some_and(|block| block.text.contains("Likes tea")));
    assert!(memory.core(&account, &bob).await.expect("read").is_none());
    assert!(memory.core(&AccountId::generate(), &ann).await.expect("read").is_none());
}
