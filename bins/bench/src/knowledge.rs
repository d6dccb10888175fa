//! What search, indexing and memory cost.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use diesel::{QueryableByName, sql_types::BigInt};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use platform_core::sha256_hex;
use tokio::task::JoinSet;

use crate::{
    http::{Connection, request},
    platform::{KEY, Platform},
    rows::{Bench, Row, count, median, millis, percentile},
};

const DIMENSIONS: usize = 256;
const WORDS: usize = 5000;
const DOCUMENTS: usize = 10_000;
const CLIENTS: usize = 64;

impl Bench {
    /// Searches over 100,000 pieces, each with a vector of 256 numbers, that are compared one by one.
    pub async fn search(&self) -> Vec<Row> {
        let model = format!("local:{}", table().display());
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_EMBEDDING_MODEL", &model)]);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let account = self.account(&mut connection).await;
        let digest = std::fs::read(table().join("model.safetensors")).map(sha256_hex).expect("a table");
        self.pieces_with_vectors(&account, &format!("{model}#{}", &digest[..8])).await;
        let mut rows = Vec::new();
        for mode in ["keyword", "semantic", "hybrid"] {
            let mut times = Vec::new();
            for n in 0..40 {
                let words = (0..4).fold(String::new(), |text, at| format!("{text} w{}", (n * 131 + at * 997) % WORDS));
                let body = format!("{{\"query\":\"{words}\",\"mode\":\"{mode}\"}}");
                let ask = request("POST", "/v1/documents/search", KEY, &body);
                let began = Instant::now();
                let (status, answer) = connection.exchange(&ask).await.expect("an answer");
                times.push(millis(began.elapsed()));
                assert!(status == 200 && answer.contains("chunkId"), "{status}: {answer}");
            }
            let first = times.remove(0);
            let goal = if mode == "hybrid" { "<= 30 ms" } else { "" };
            rows.extend(Row::new(
                &format!("search over 100,000 pieces, {mode}"),
                format!("{:.1} ms p50", percentile(&mut times, 0.5)),
                format!("{first:.0} ms the first"),
                goal,
            ));
        }
        let memory = count(platform.memory_kib()) / 1024.0;
        rows.extend(Row::new("  memory of the process after it", format!("{memory:.0} MiB"), String::new(), ""));
        rows.extend(self.search_by_words(&platform, &account).await);
        rows
    }

    /// Searches for four rare words, against `ts_rank` over all pieces that have one.
    async fn search_by_words(&self, platform: &Platform, account: &str) -> Vec<Row> {
        let documents = self.pieces / 100;
        let fill = format!(
            "TRUNCATE chunk_vectors, chunks, documents CASCADE; DROP INDEX chunks_words; {}; \
            CREATE INDEX chunks_words ON chunks USING gin (words); VACUUM ANALYZE chunks; VACUUM ANALYZE documents",
            fill(account, documents, "NULL", "exp(random() * ln(50000))")
        );
        let mut conn = self.db.conn().await.expect("a connection");
        for statement in fill.split_inclusive(';') {
            conn.batch_execute(statement).await.expect("filled");
        }
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let (mut ratios, mut times, mut references) = (vec![], vec![], vec![]);
        for round in 0..self.rounds {
            let reference = 1000.0 / self.pgbench("search.sql", 1).await;
            let mut round_times = Vec::new();
            for n in 0..40 {
                let words: Vec<_> =
                    (0..4).map(|at| format!("w{}", 1000 + (round * 211 + n * 131 + at * 97) % 500)).collect();
                let body = format!("{{\"query\":\"{}\",\"mode\":\"keyword\"}}", words.join(" "));
                let began = Instant::now();
                let ask = request("POST", "/v1/documents/search", KEY, &body);
                let (status, answer) = connection.exchange(&ask).await.expect("an answer");
                round_times.push(millis(began.elapsed()));
                assert!(status == 200 && answer.contains("chunkId"), "{status}: {answer}");
            }
            let time = median(round_times);
            ratios.push(time / reference);
            times.push(time);
            references.push(reference);
        }
        Row::new(
            &format!("search by four rare words over {} pieces ({:.0} ms)", self.pieces, median(times)),
            format!("{:.2} x", median(ratios)),
            format!("ts_rank {:.0} ms", median(references)),
            "<= 1.3 x",
        )
    }

    /// Documents that wait while nobody works, and then are indexed; and turns of who has none, before and after.
    pub async fn indexing(&self) -> Vec<Row> {
        let before = self.cpu_of_turns(&self.platform()).await;
        let api = Platform::start(&self.database, &self.providers, &[("PLATFORM_ROLE", "api")]);
        let mut making = JoinSet::new();
        for client in 0..8 {
            let address = api.address.clone();
            making.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                for n in (client..DOCUMENTS).step_by(8) {
                    let body = format!("{{\"name\":\"D{n}\",\"markdownContent\":\"{}\"}}", markdown(n));
                    let ask = request("POST", "/v1/documents", KEY, &body);
                    let (status, answer) = connection.exchange(&ask).await.expect("an answer");
                    assert!(status == 201, "{status}: {answer}");
                }
            });
        }
        making.join_all().await;
        drop(api);
        let began = Instant::now();
        let platform = self.platform();
        let mut silent = Duration::ZERO;
        let (mut last, mut changed) = (DOCUMENTS as u64, Instant::now());
        while last > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let left = self.number("SELECT count(*) AS n FROM documents WHERE due_ms IS NOT NULL").await;
            if left != last {
                silent = silent.max(changed.elapsed());
                (last, changed) = (left, Instant::now());
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let pieces = self.number("SELECT count(*) AS n FROM chunks").await;
        let mut rows = Row::new(
            &format!("indexing {DOCUMENTS} documents of one account"),
            format!("{:.0} pieces/s", count(pieces) / seconds),
            format!("{pieces} pieces in {seconds:.1} s"),
            ">= 1,000 pieces/s",
        );
        rows.extend(Row::new(
            "  longest without progress",
            format!("{:.0} ms", millis(silent)),
            String::new(),
            "<= 5 s",
        ));
        while self.number("SELECT count(*) AS n FROM runs").await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let after = self.cpu_of_turns(&platform).await;
        rows.extend(Row::new(
            "  CPU of a turn of an assistant without knowledge, beside them",
            format!("{after:.3} ms"),
            format!("{before:.3} ms before"),
            "as before",
        ));
        rows
    }

    /// CPU of the platform a turn of the assistant that is always there, in milliseconds.
    async fn cpu_of_turns(&self, platform: &Platform) -> f64 {
        let body = "{\"message\":\"Hello\",\"model\":\"t1-d0\",\"skipSummarization\":true}";
        let ask = request("POST", "/v1/assistants/default/messages", KEY, body);
        let mut cpus = vec![];
        for _ in 0..self.rounds {
            let (before, began) = (platform.cpu_ms(), Instant::now());
            let (rate, _) = self.load(&platform.address, CLIENTS, ask.clone(), "content").await;
            cpus.push((platform.cpu_ms() - before) / (rate * began.elapsed().as_secs_f64()));
        }
        median(cpus)
    }

    /// Turns of an assistant that remembers twenty facts of its tenant, beside those of one that remembers nothing.
    pub async fn memory(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut admin = Connection::open(&platform.address).await.expect("connected");
        for (name, remembers) in [("plain", false), ("keen", true)] {
            let body =
                format!("{{\"name\":\"{name}\",\"identifier\":\"{name}\",\"coreMemory\":{{\"enabled\":{remembers}}}}}");
            let made = admin.exchange(&request("POST", "/v1/assistants", KEY, &body)).await.expect("an answer");
            assert_eq!(made.0, 201, "{}", made.1);
        }
        for n in 0..20 {
            let body = format!("{{\"content\":\"Fact number {n} of somebody, some thirty letters long\"}}");
            let path = "/v1/memory/assistants/keen/core?tenantId=t0";
            let made = admin.exchange(&request("POST", path, KEY, &body)).await.expect("an answer");
            assert_eq!(made.0, 201, "{}", made.1);
        }
        let body = "{\"message\":\"Hello\",\"model\":\"t1-d0\",\"skipSummarization\":true,\"tenantId\":\"t0\"}";
        let ask = |name: &str| request("POST", &format!("/v1/assistants/{name}/messages"), KEY, body);
        let (mut cpus, mut commits) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..self.rounds {
            for (at, name) in ["plain", "keen"].into_iter().enumerate() {
                let (before, began) = (platform.cpu_ms(), Instant::now());
                let (rate, _) = self.load(&platform.address, CLIENTS, ask(name), "content").await;
                cpus[at].push((platform.cpu_ms() - before) / (rate * began.elapsed().as_secs_f64()));
                let before = self.next_transaction().await;
                for _ in 0..40 {
                    admin.exchange(&ask(name)).await.expect("an answer");
                }
                commits[at].push((self.next_transaction().await - before) / 40.0);
            }
        }
        let ([plain, keen], [without, with]) = (cpus.map(median), commits.map(median));
        let mut rows = Row::new(
            "CPU that core memory of 20 facts adds to a turn",
            format!("{:+.3} ms", keen - plain),
            format!("{plain:.3} ms without"),
            "<= +0.05 ms",
        );
        rows.extend(Row::new(
            "  writing transactions of a turn",
            format!("{with:.2}"),
            format!("{without:.2} without"),
            "as without",
        ));
        rows.extend(self.recall(&platform).await);
        rows
    }

    /// First messages of chats whose assistant looks into a hundred earlier ones of eight messages, beside those of one
    /// that does not; against the statement that reads what was said there. Chats that the process has read in the last
    /// day are known to it; those of a tenant that begins its first chat since are not.
    async fn recall(&self, platform: &Platform) -> Vec<Row> {
        let mut admin = Connection::open(&platform.address).await.expect("connected");
        let body =
            "{\"name\":\"recalls\",\"identifier\":\"recalls\",\"coreMemory\":{\"enabled\":true,\"recall\":true}}";
        let made = admin.exchange(&request("POST", "/v1/assistants", KEY, body)).await.expect("an answer");
        assert_eq!(made.0, 201, "{}", made.1);
        let message = |n: usize| {
            (0..50).fold("What was it".to_owned(), |text, word| format!("{text} word{}", (n * 31 + word * 7) % 3000))
        };
        let ask = |name: &str, tenant: &str, chat: &str, n: usize| {
            let body = format!(
                "{{\"message\":\"{}\",\"model\":\"t64-d0\",\"skipSummarization\":true,\"tenantId\":\"{tenant}\",\
                 \"chatUid\":\"{chat}\"}}",
                message(n)
            );
            request("POST", &format!("/v1/assistants/{name}/messages"), KEY, &body)
        };
        let (mut without, mut known, mut unknown) = (vec![], vec![], vec![]);
        let (mut references, mut references_unknown) = (vec![], vec![]);
        for round in 0..self.rounds {
            for n in 0..400 {
                let chat = format!("recalled-{round}-{}", n / 4);
                let told = admin.exchange(&ask("recalls", "t1", &chat, n)).await.expect("an answer");
                assert_eq!(told.0, 200, "{}", told.1);
            }
            let copies = format!(
                "INSERT INTO chats SELECT (jsonb_populate_record(c, jsonb_build_object( \
                    'uid', uid || '-' || n, 'tenant_id', 'c{round}-' || n))).* \
                FROM chats c, generate_series(0, 39) n WHERE uid LIKE 'recalled-{round}-%'; \
                INSERT INTO messages SELECT (jsonb_populate_record(m, jsonb_build_object( \
                    'conversation', conversation || '-' || n))).* \
                FROM messages m, generate_series(0, 39) n WHERE conversation LIKE 'recalled-{round}-%'"
            );
            let mut conn = self.db.conn().await.expect("a connection");
            conn.batch_execute(&copies).await.expect("copied");
            conn.batch_execute("VACUUM ANALYZE chats, messages").await.expect("vacuumed");
            drop(conn);
            references.push(1000.0 / self.pgbench("recall.sql", 1).await);
            for n in 0..40 {
                let copy = format!("c{round}-{n}");
                if n % 2 == 1 {
                    let sql = include_str!("recall.sql").replace("'t1'", &format!("'{copy}'"));
                    let (mut conn, began) = (self.db.conn().await.expect("a connection"), Instant::now());
                    conn.batch_execute(&sql).await.expect("read");
                    references_unknown.push(millis(began.elapsed()));
                    continue;
                }
                let greeting = ask("plain", &copy, &format!("greets-{copy}"), n);
                assert_eq!(admin.exchange(&greeting).await.expect("an answer").0, 200, "the tenant is known");
                let kinds =
                    [("plain", "t1", &mut without), ("recalls", "t1", &mut known), ("recalls", &copy, &mut unknown)];
                for (name, tenant, times) in kinds {
                    let chat = format!("{name}-{round}-{n}-{tenant}");
                    let told = ask(name, tenant, &chat, n);
                    let began = Instant::now();
                    let told = admin.exchange(&told).await.expect("an answer");
                    times.push(millis(began.elapsed()));
                    assert_eq!(told.0, 200, "{}", told.1);
                    // What is looked into stays what it was.
                    let path = format!("/v1/assistants/{name}/chats/{chat}");
                    let gone = admin.exchange(&request("DELETE", &path, KEY, "")).await.expect("an answer");
                    assert_eq!(gone.0, 200, "{}", gone.1);
                }
            }
        }
        let without = median(without);
        let row = |what: &str, times: Vec<f64>, references: Vec<f64>| {
            let (added, reference) = (median(times) - without, median(references));
            let what = format!("first message of a chat, more with recall of {what} ({added:.1} ms)");
            Row::new(&what, format!("{:.2} x", added / reference), format!("its SQL {reference:.1} ms"), "<= 1.3 x")
        };
        let mut rows = row("chats read lately", known, references);
        rows.extend(row("others", unknown, references_unknown));
        rows
    }

    async fn account(&self, connection: &mut Connection) -> String {
        let list = request("POST", "/v1/assistants/chats?limit=1", KEY, "{}");
        let turn =
            request("POST", "/v1/assistants/default/messages", KEY, "{\"message\":\"Hello\",\"model\":\"t1-d0\"}");
        connection.exchange(&turn).await.expect("an answer");
        let (_, body) = connection.exchange(&list).await.expect("a list");
        let at = body.find("\"clientUID\":\"").expect("an account") + 13;
        body[at..].split('"').next().expect("an account").to_owned()
    }

    /// Puts 1,000 documents of 100 pieces into the index, each with words and a vector of chance.
    async fn pieces_with_vectors(&self, account: &str, model: &str) {
        let fill = format!(
            "{}; \
            INSERT INTO chunk_vectors (account_id, document_id, model, text_hash, embedding) \
            SELECT '{account}', 'd' || n, '{model}', 'h' || p, v.embedding \
            FROM generate_series(1, 1000) n, generate_series(0, 99) p, LATERAL (\
                SELECT array_agg(((random() - 0.5) / 4.6)::real) AS embedding FROM generate_series(1, {DIMENSIONS}) \
                WHERE n + p >= 0) v; \
            ANALYZE",
            fill(account, 1000, &format!("'{model}'"), &format!("random() * {WORDS}"))
        );
        self.db.conn().await.expect("a connection").batch_execute(&fill).await.expect("filled");
    }

    /// The number that a query finds as `n`.
    pub async fn number(&self, sql: &str) -> u64 {
        #[derive(QueryableByName)]
        struct Number {
            #[diesel(sql_type = BigInt)]
            n: i64,
        }
        let mut conn = self.db.conn().await.expect("a connection");
        let number: Number = diesel::sql_query(sql).get_result(&mut conn).await.expect("a number");
        number.n.unsigned_abs()
    }
}

/// Ten sections of some two hundred words, as a JSON string.
fn markdown(document: usize) -> String {
    let mut text = String::new();
    for section in 0..10 {
        let _ = write!(text, "# Section {section} of {document}\\n\\n");
        for word in 0..200 {
            let _ = write!(text, "word{} ", (document * 31 + section * 7 + word * 13) % WORDS);
        }
        text.push_str("\\n\\n");
    }
    text
}

/// Statements that put documents of 100 pieces of 40 words into the index; `word` draws the number of one.
fn fill(account: &str, documents: usize, model: &str, word: &str) -> String {
    format!(
        "INSERT INTO documents (account_id, id, name, file_name, file_type, status, size, token_count, summary, is_skill, \
            tags, current_version, content_hash, indexing, language, created_by, version, created_ms, edited_ms, \
            embedded_by, index_id, piece_count, summary_of) \
        SELECT '{account}', 'd' || n, 'D' || n, 'D.md', 'md', 'ready', 1, 1, '', false, '[]', 1, '', \
            '{{\"state\":\"done\"}}', 'english', 'x', 1, n, n, {model}, 'i' || n, 100, 'client' \
        FROM generate_series(1, {documents}) n; \
        INSERT INTO chunks (account_id, document_id, position, id, document_version, heading_path, text, token_count, \
            words, text_hash) \
        SELECT '{account}', 'd' || n, p, 'c' || n || '-' || p, 1, '[]', t.text, 40, \
            replace(' ' || to_tsvector('english', t.text)::text, ' ''', ' ''' || left(md5('{account}'), 8))::tsvector, \
            'h' || p \
        FROM generate_series(1, {documents}) n, generate_series(0, 99) p, LATERAL (\
            SELECT string_agg('w' || floor({word})::int, ' ') AS text \
            FROM generate_series(1, 40) WHERE n + p >= 0) t"
    )
}

/// A table of vectors of chance, in the layout of model2vec.
fn table() -> PathBuf {
    let folder = std::path::absolute(Path::new("target/bench-table")).expect("a path");
    if folder.join("model.safetensors").exists() {
        return folder;
    }
    std::fs::create_dir_all(&folder).expect("a folder");
    let vocabulary = (0..WORDS).fold(String::from("\"[UNK]\":0"), |all, n| format!("{all},\"w{n}\":{}", n + 1));
    let tokenizer = format!(
        "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],\"normalizer\":null,\
         \"pre_tokenizer\":{{\"type\":\"Whitespace\"}},\"post_processor\":null,\"decoder\":null,\
         \"model\":{{\"type\":\"WordLevel\",\"unk_token\":\"[UNK]\",\"vocab\":{{{vocabulary}}}}}}}"
    );
    std::fs::write(folder.join("tokenizer.json"), tokenizer).expect("written");
    let numbers = (WORDS + 1) * DIMENSIONS;
    let header = format!(
        "{{\"embeddings\":{{\"dtype\":\"F32\",\"shape\":[{},{DIMENSIONS}],\"data_offsets\":[0,{}]}}}}",
        WORDS + 1,
        numbers * 4
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..numbers {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value: f32 = if state & 1 == 0 { 1.0 } else { -1.0 };
        file.extend(value.to_le_bytes());
    }
    std::fs::write(folder.join("model.safetensors"), file).expect("written");
    folder
}
