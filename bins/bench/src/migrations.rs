//! What changing the schema takes where there is much: each migration taken back and done again, the newest first.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use diesel_async::SimpleAsyncConnection;

use crate::rows::{Bench, millis};

const FOLDER: &str = "migrations";
/// What takes less is summed up, in milliseconds.
const SHORT: f64 = 500.0;

impl Bench {
    /// Prints how long each migration takes down and up, over chats of two messages and a tenth as many tenants.
    pub async fn migrate_again(&self) {
        // Which makes the account.
        drop(self.platform());
        self.fill(self.chats).await;
        let chats = self.chats;
        self.run(&format!(
            "INSERT INTO messages (account_id, conversation, position, uid, role, body, created_ms)
             SELECT account_id, uid, n, uid || n, CASE n WHEN 0 THEN 'user' ELSE 'assistant' END,
                '{{\"content\": {{\"message\": \"What was said\"}}}}', created_ms
             FROM chats, generate_series(0, 1) n;
             INSERT INTO tenants (account_id, tenant_id, id, source, first_seen_ms, last_seen_ms)
             SELECT id, 't' || n, 't' || n, 'auto', 0, 0 FROM accounts, generate_series(1, {chats} / 10) n;
             VACUUM ANALYZE"
        ))
        .await;
        let entries = fs::read_dir(FOLDER).expect("the migrations; run it from the top of the repository");
        let mut folders: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        let (mut down, mut up) = (0.0, 0.0);
        println!("| migration | down | up |");
        println!("| --- | --- | --- |");
        for folder in folders.iter().rev() {
            let back = self.step(&folder.join("down.sql")).await;
            let forth = self.step(&folder.join("up.sql")).await;
            self.step(&folder.join("down.sql")).await;
            if back.max(forth) < SHORT {
                (down, up) = (down + back, up + forth);
                continue;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            println!("| `{name}` | {:.1} s | {:.1} s |", back / 1000.0, forth / 1000.0);
        }
        println!("| all others together | {:.1} s | {:.1} s |", down / 1000.0, up / 1000.0);
    }

    async fn step(&self, file: &Path) -> f64 {
        let sql = fs::read_to_string(file).expect("a migration");
        let (mut conn, began) = (self.db.conn().await.expect("a connection"), Instant::now());
        conn.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        millis(began.elapsed())
    }
}
