//! The least that serves a durable turn, as a reference: a key is checked, one statement stores the message, the model
//! streams its reply, one statement stores that.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    error::Error,
};

use actix_web::{
    App, HttpRequest, HttpResponse, HttpServer, Result,
    error::{ErrorBadGateway, ErrorInternalServerError, ErrorUnauthorized},
    web::{self, Data},
};
use platform_core::{Id, sha256_hex};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls, Statement};

use crate::{
    http::{Connection, request},
    platform::KEY,
};

/// Connections to the database of each worker.
const CONNECTIONS: usize = 32;
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS probe_chats (uid text PRIMARY KEY, status text NOT NULL, tokens bigint) WITH (fillfactor = 80);
    CREATE TABLE IF NOT EXISTS probe_messages (chat text, position int, body json NOT NULL, PRIMARY KEY (chat, position))";
const ACCEPT: &str = "WITH chat AS (INSERT INTO probe_chats (uid, status) VALUES ($1, 'processing'))
    INSERT INTO probe_messages VALUES ($1, 0, $2::text::json)";
const FINISH: &str = "WITH chat AS (UPDATE probe_chats SET status = 'completed', tokens = $3 WHERE uid = $1)
    INSERT INTO probe_messages VALUES ($1, 1, $2::text::json)";

#[derive(Deserialize)]
struct Asked {
    message: String,
    model: String,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Delta<'a>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    content: Option<&'a str>,
}

struct Settings {
    database: String,
    model: String,
    keys: HashSet<String>,
}

/// What a worker keeps open.
#[derive(Default)]
struct Worker {
    database: OnceCell<Vec<(Client, Statement, Statement)>>,
    next: Cell<usize>,
    model: RefCell<Vec<Connection>>,
}

impl Worker {
    /// A connection to the database, with what is prepared on it.
    async fn database(&self, url: &str) -> Result<&(Client, Statement, Statement), tokio_postgres::Error> {
        let open = async || {
            let mut connections = Vec::with_capacity(CONNECTIONS);
            for _ in 0..CONNECTIONS {
                let (client, driver) = tokio_postgres::connect(url, NoTls).await?;
                actix_web::rt::spawn(driver);
                let (accept, finish) = (client.prepare(ACCEPT).await?, client.prepare(FINISH).await?);
                connections.push((client, accept, finish));
            }
            Ok(connections)
        };
        let connections = self.database.get_or_try_init(open).await?;
        self.next.set((self.next.get() + 1) % CONNECTIONS);
        Ok(&connections[self.next.get()])
    }

    /// The reply of the model, and of how many pieces it was.
    async fn ask(&self, address: &str, asked: &Asked) -> std::io::Result<(String, i64)> {
        let idle = self.model.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(address).await?,
        };
        let messages = [Message { role: "user", content: &asked.message }];
        let body = serde_json::json!({"model": asked.model, "stream": true, "messages": messages}).to_string();
        connection.begin(&request("POST", "/v1/chat/completions", KEY, &body)).await?;
        let (mut reply, mut tokens) = (String::new(), 0);
        while let Some(piece) = connection.piece().await? {
            let data = piece.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
            for data in data {
                let event: Event<'_> = serde_json::from_str(data)?;
                let text = event.choices.first().and_then(|choice| choice.delta.content).unwrap_or_default();
                tokens += i64::from(!text.is_empty());
                reply.push_str(text);
            }
        }
        self.model.borrow_mut().push(connection);
        Ok((reply, tokens))
    }
}

enum ChatKind {}

async fn turn(
    head: HttpRequest,
    body: web::Json<Asked>,
    settings: Data<Settings>,
    worker: web::ThinData<std::rc::Rc<Worker>>,
) -> Result<HttpResponse> {
    let bearer = head.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = bearer.trim_start_matches("Bearer ");
    if !settings.keys.contains(&sha256_hex(key)) {
        return Err(ErrorUnauthorized("no such key"));
    }
    let uid = String::from(Id::<ChatKind>::generate());
    let said = serde_json::to_string(&Message { role: "user", content: &body.message })?;
    let (database, accept, finish) = worker.database(&settings.database).await.map_err(ErrorInternalServerError)?;
    database.execute(accept, &[&uid, &said]).await.map_err(ErrorInternalServerError)?;
    let (reply, tokens) = worker.ask(&settings.model, &body).await.map_err(ErrorBadGateway)?;
    let said = Message { role: "assistant", content: &reply };
    let text = serde_json::to_string(&said)?;
    database.execute(finish, &[&uid, &text, &tokens]).await.map_err(ErrorInternalServerError)?;
    Ok(HttpResponse::Ok().json(serde_json::json!({"chatUID": uid, "messages": [said]})))
}

/// Serves turns over a database and a model server until the process ends; prints where.
pub fn run(database: String, model: String) {
    actix_web::rt::System::new().block_on(serve(database, model)).expect("it serves");
}

async fn serve(database: String, model: String) -> Result<(), Box<dyn Error>> {
    let (client, driver) = tokio_postgres::connect(&database, NoTls).await?;
    actix_web::rt::spawn(driver);
    client.batch_execute(TABLES).await?;
    let settings = Data::new(Settings { database, model, keys: [sha256_hex(KEY)].into() });
    let app = move || {
        let worker = web::ThinData(std::rc::Rc::<Worker>::default());
        App::new().app_data(settings.clone()).app_data(worker).default_service(web::to(turn))
    };
    let server = HttpServer::new(app).tcp_nodelay(true).workers(2).bind(("127.0.0.1", 0))?;
    println!("Listening on http://{}", server.addrs()[0]);
    Ok(server.run().await?)
}
