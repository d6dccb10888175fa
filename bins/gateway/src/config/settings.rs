//! The settings that there are: one table, for the readers of the environment, `--help` and the documentation.

/// Name, default, meaning. An empty default means absent.
type Setting = (&'static str, &'static str, &'static str);

/// By subject.
const SETTINGS: &[(&str, &[Setting])] = &[
    (
        "The server",
        &[
            ("PLATFORM_ADDR", "127.0.0.1:8080", "listen address"),
            ("PLATFORM_PUBLIC_URL", "", "base of emitted links (http://<addr>)"),
            ("PLATFORM_ROLE", "all", "all, api (HTTP only) or worker (runs only)"),
            ("PLATFORM_DATA_DIR", "./.platform", "embedded database, first key, master key, files"),
            (
                "PLATFORM_SECRET_KEY",
                "",
                "master key of secrets at rest, 32 bytes in base64; made in the data dir, required with DATABASE_URL",
            ),
            ("PLATFORM_SECRET_KEY_PREVIOUS", "", "older master keys, comma list: only to read what they sealed"),
            ("PLATFORM_TRUSTED_PROXIES", "", "addresses or networks whose X-Forwarded-For counts, separated by commas"),
            ("PLATFORM_CORS_ORIGINS", "*", "origins that browsers may call from, separated by commas"),
            ("PLATFORM_DOCS_DIR", "", "a directory of more documentation pages"),
            ("PLATFORM_SHUTDOWN_GRACE", "25s", "time to drain after SIGTERM"),
        ],
    ),
    (
        "Model providers",
        &[
            ("OPENAI_API_KEY", "", "key of OpenAI; OPENAI_BASE_URL alone is enough for a server without keys"),
            ("OPENAI_BASE_URL", "", "its address (https://api.openai.com/v1)"),
            ("ANTHROPIC_API_KEY", "", "key of Anthropic"),
            ("ANTHROPIC_BASE_URL", "", "its address (https://api.anthropic.com)"),
            ("GEMINI_API_KEY", "", "key of Gemini"),
            ("GEMINI_BASE_URL", "", "its address (https://generativelanguage.googleapis.com)"),
            ("OLLAMA_HOST", "", "an Ollama server; probed at start and every 60 s"),
            ("PLATFORM_PROVIDERS_FILE", "", "more OpenAI-compatible servers, models and prices (YAML or JSON)"),
            ("PLATFORM_DEFAULT_PROVIDER", "", "provider of whoever names none (the first that is configured)"),
            ("PLATFORM_DEFAULT_MODEL", "", "model of whoever names none (that provider's first)"),
            ("PLATFORM_SECONDARY_MODEL", "", "provider:model of titles, summaries, compaction (the turn's own)"),
            ("PLATFORM_EVALUATOR_MODEL", "", "provider:model of judges (the turn's own)"),
            (
                "PLATFORM_EMBEDDING_MODEL",
                "",
                "provider:model or local:folder that makes vectors (none: words alone are searched)",
            ),
            ("PLATFORM_DEMO_PRICE", "0:0", "price of demo-1, input:output in USD per million tokens"),
            ("PLATFORM_MODEL_ATTEMPTS", "3", "tries before a fall-back is asked"),
            ("PLATFORM_MODEL_FIRST_BYTE", "120s", "longest wait for a model's first byte"),
            ("PLATFORM_MODEL_IDLE", "60s", "longest silence of a model after that"),
            ("PLATFORM_MODEL_TIMEOUT", "10m", "longest attempt"),
            ("PLATFORM_MODEL_CONCURRENCY", "64", "calls at once per provider; 0 = no bound"),
        ],
    ),
    (
        "Speech",
        &[
            (
                "PLATFORM_SPEECH_URL",
                "",
                "transcription server, as https://api.openai.com/v1/audio/transcriptions (the demo engine)",
            ),
            ("PLATFORM_SPEECH_API_KEY", "", "its credential"),
            ("PLATFORM_SPEECH_MODEL", "whisper-1", "its model"),
            ("PLATFORM_SPEECH_TIMEOUT", "2m", "longest time from a recording to its text"),
            (
                "PLATFORM_SPEECH_MODEL_PATH",
                "",
                "refused: an engine in this process is in no build yet; run a server beside it",
            ),
        ],
    ),
    (
        "Database and many processes",
        &[
            ("DATABASE_URL", "", "PostgreSQL 15 or newer; absent: one of our own under the data directory"),
            (
                "PLATFORM_DATABASE_POOL",
                "32",
                "connections per process; work that may take long has half of them, one account an eighth",
            ),
            (
                "PLATFORM_NATS_URL",
                "",
                "NATS servers, separated by commas: what one process writes streams on all; else on its own",
            ),
            ("PLATFORM_WORKER_CONCURRENCY", "256", "runs at once in this process"),
            ("PLATFORM_RUN_LEASE", "30s", "a silent worker's runs are taken over after this"),
            ("PLATFORM_RUN_HEARTBEAT", "10s", "how often leases are renewed"),
            ("PLATFORM_RUN_MAX_ATTEMPTS", "3", "a run lost so often ends in error"),
        ],
    ),
    (
        "Files",
        &[
            (
                "PLATFORM_OBJECT_STORE_URL",
                "",
                "bytes of files: file:///directory or s3://bucket/prefix (<data dir>/objects)",
            ),
            ("AWS_ACCESS_KEY_ID", "", "key of an s3:// store; absent: the role of the machine"),
            ("AWS_SECRET_ACCESS_KEY", "", "its secret"),
            ("AWS_SESSION_TOKEN", "", "its session, if it has one"),
            ("AWS_REGION", "", "region of the bucket (us-east-1)"),
            ("AWS_ENDPOINT_URL", "", "an S3 server that is not Amazon's; http is allowed"),
            ("PLATFORM_SWEEP_INTERVAL", "1h", "how often expired files, and bytes that nobody knows, are removed"),
        ],
    ),
    (
        "Keys and log-in",
        &[
            ("PLATFORM_KEY_PREFIX", "ak", "prefix of API keys"),
            ("PLATFORM_BOOTSTRAP_KEY", "", "value of a full key that is made at start"),
            ("PLATFORM_OAUTH_ALGORITHM", "eddsa", "how access tokens are signed: eddsa or rs256"),
            ("PLATFORM_OAUTH_ACCESS_TTL", "30m", "how long access tokens last"),
            ("PLATFORM_OAUTH_REFRESH_TTL", "30d", "how long a refresh token lasts that nobody uses"),
            ("PLATFORM_OAUTH_REGISTRATION", "on", "off: no application registers itself at /oauth/register"),
            ("PLATFORM_OAUTH_TRUSTED_ISSUER", "", "https address of another issuer whose access tokens are taken"),
            ("PLATFORM_OAUTH_TRUSTED_AUDIENCE", "", "what their aud must contain; required with the issuer"),
            ("PLATFORM_OAUTH_TRUSTED_ACCOUNT", "default", "clientUID or name of their account, or claim:<name>"),
            ("PLATFORM_OAUTH_TRUSTED_SCOPE_CLAIM", "scope", "their claim that holds scopes"),
            ("PLATFORM_OAUTH_TRUSTED_ADMIN_CLAIM", "", "name=value of the claim that makes an administrator"),
        ],
    ),
    (
        "Rates, and how many at once; 0 = no bound",
        &[
            ("PLATFORM_RATE_FULL", "6000:1000", "requests of a full key, per minute:burst"),
            ("PLATFORM_RATE_RESTRICTED", "600:100", "requests of a restricted key"),
            ("PLATFORM_RATE_OAUTH", "600:100", "requests of an application for one user"),
            ("PLATFORM_RATE_SESSION", "300:60", "requests of the sessions of one end user"),
            ("PLATFORM_RATE_CREATE_FULL", "0", "messages and threads of a full key"),
            (
                "PLATFORM_RATE_CREATE_KEY",
                "120:30",
                "messages and threads of a restricted key, or of an application for one user",
            ),
            ("PLATFORM_RATE_CREATE_SESSION", "30:8", "messages and threads of the sessions of one end user"),
            ("PLATFORM_RATE_BAD_CREDENTIAL", "60:20", "credentials that are no good, per client address"),
            (
                "PLATFORM_CONNECTIONS_PER_ADDRESS",
                "256",
                "connections without a good credential of a client address (IPv6: of a /64); trusted proxies may have more",
            ),
            (
                "PLATFORM_BODIES_PER_ADDRESS",
                "32",
                "unfinished bodies of a client address, or of an account that is known",
            ),
            ("PLATFORM_STREAMS_PER_KEY", "100", "open streams of a key in this process"),
            ("PLATFORM_STREAMS_PER_SESSION", "4", "open streams of a session in this process"),
        ],
    ),
    (
        "Sizes, in bytes where nothing else is said",
        &[
            ("PLATFORM_MAX_JSON_BYTES", "2097152", "largest JSON body"),
            ("PLATFORM_MAX_DOCUMENT_BYTES", "5242880", "text of a document; of a file never more than that"),
            (
                "PLATFORM_MAX_UPLOAD_BYTES",
                "26214400",
                "largest file that is uploaded, or fetched for a message; 0 = no bound",
            ),
            (
                "PLATFORM_LIMIT_END_USER_FILE_BYTES",
                "1073741824",
                "files together that an end user uploaded with a session; 0 = no bound",
            ),
            ("PLATFORM_LIMIT_MESSAGE_BYTES", "262144", "text of a message"),
            ("PLATFORM_LIMIT_PRESETS_BYTES", "262144", "system prompt"),
            ("PLATFORM_LIMIT_METADATA_BYTES", "65536", "metadata as JSON"),
            ("PLATFORM_LIMIT_METADATA_DEPTH", "10", "levels of metadata"),
            ("PLATFORM_LIMIT_TAGS", "50", "tags of a record"),
            ("PLATFORM_LIMIT_FILES_PER_MESSAGE", "20", "files of a message"),
            ("PLATFORM_LIMIT_EGRESS_BYTES", "10485760", "response of an address that a client named"),
            ("PLATFORM_LIMIT_STREAM_FRAME_BYTES", "8388608", "frame of a stream; above it only the newest messages"),
            ("PLATFORM_LIMIT_TOOLS_PER_SERVER", "200", "tools of a tool server"),
            ("PLATFORM_LIMIT_WEBHOOKS", "50", "webhooks of an account; 0 = no bound"),
            ("PLATFORM_LIMIT_ENV_VARS", "100", "variables of an environment; 0 = no bound"),
            ("PLATFORM_LIMIT_DOCUMENT_VERSIONS", "100", "versions of a document that are kept; 0 = no bound"),
            (
                "PLATFORM_LIMIT_CORE_MEMORY_CHARS",
                "8000",
                "characters of what an assistant remembers of one; 0 = no bound",
            ),
            ("PLATFORM_LIMIT_CORE_MEMORY_ENTRIES", "100", "entries of it; 0 = no bound"),
            ("PLATFORM_LIMIT_CORE_MEMORY_ENTRY_CHARS", "1000", "characters of one entry; 0 = no bound"),
            ("PLATFORM_LIMIT_TOOL_RESPONSE_BYTES", "1048576", "a longer tool result is cut"),
        ],
    ),
    (
        "How long is waited and streamed, and how deep work is handed on",
        &[
            ("PLATFORM_STREAM_LIFETIME", "60s", "a stream of a chat or thread is closed after this"),
            ("PLATFORM_STREAM_KEEPALIVE", "15s", "a comment after so much silence"),
            ("PLATFORM_STREAM_COALESCE", "25ms", "growing text is sent at most so often"),
            ("PLATFORM_SYNC_TIMEOUT", "10m", "longest wait of a synchronous message"),
            ("PLATFORM_CLIENT_TOOL_TIMEOUT", "15m", "a chat waits so long for its client's tools and approvals"),
            ("PLATFORM_ASYNC_TOOL_TIMEOUT", "15d", "a thread waits so long for the result of an asynchronous tool"),
            ("PLATFORM_APPROVAL_TIMEOUT", "15d", "a thread waits so long for an approval"),
            ("PLATFORM_MAX_SUBAGENT_DEPTH", "5", "how deep agents may hand work on"),
        ],
    ),
    (
        "Requests to addresses that clients name",
        &[
            ("PLATFORM_ALLOW_PRIVATE_EGRESS", "false", "true: addresses that clients name may be inner ones"),
            ("PLATFORM_EGRESS_ALLOW", "", "inner hosts and networks that may be called, separated by commas"),
            ("PLATFORM_EGRESS_CONCURRENCY", "64", "requests at once to addresses that clients name; 0 = no bound"),
            (
                "PLATFORM_EGRESS_PER_ACCOUNT",
                "8",
                "the same for one account; a tool server has three quarters of it, an end user half, one at the least",
            ),
        ],
    ),
    (
        "Events that go out and come in",
        &[
            (
                "PLATFORM_WEBHOOK_RETRIES",
                "0s,5s,5m,30m,2h,5h,10h,10h",
                "waits before each attempt of a delivery, the first among them",
            ),
            (
                "PLATFORM_WEBHOOK_DISABLE_AFTER",
                "5d",
                "a webhook that gives nothing but failures for so long is disabled",
            ),
            ("PLATFORM_TRIGGER_RETRIES", "0s,10s,60s", "waits before each try to start what an event starts"),
            ("PLATFORM_TRIGGER_DUPLICATE_WINDOW", "7d", "an event's id is unique for so long"),
            ("PLATFORM_TRIGGER_POLL_INTERVAL", "60s", "how often apps are polled whose connector says nothing else"),
            (
                "PLATFORM_TRIGGER_BYTES_AN_HOUR",
                "536870912",
                "bytes of events that an account may be sent within an hour, in each process; 0 = no bound",
            ),
        ],
    ),
    (
        "Apps and mail",
        &[
            (
                "PLATFORM_CONNECTORS_DIR",
                "",
                "connectors of yours, one YAML file an app; `connectors check FILE` says what is wrong",
            ),
            ("PLATFORM_APP_<SLUG>_CLIENT_ID", "", "your OAuth client at an app, such as PLATFORM_APP_GITHUB_CLIENT_ID"),
            ("PLATFORM_APP_<SLUG>_CLIENT_SECRET", "", "its secret"),
            ("PLATFORM_APP_<SLUG>_SIGNING_SECRET", "", "with what the app signs its events, where it has one for all"),
            ("PLATFORM_CONNECT_TTL", "10m", "a user has so long to decide on a connection"),
            ("PLATFORM_CONNECTION_REFRESH_BEFORE", "5m", "tokens are asked for so long before they end"),
            (
                "PLATFORM_SMTP_URL",
                "",
                "smtp://user:password@host:587?tls=required or smtps://host; absent: no mail is sent",
            ),
            ("PLATFORM_MAIL_FROM", "", "sender of mail, required with PLATFORM_SMTP_URL"),
        ],
    ),
    (
        "Sandboxes",
        &[
            (
                "PLATFORM_SANDBOX_BACKEND",
                "auto",
                "who makes sandboxes: process (namespaces of this host), container (an engine such as Docker or Podman), none, or auto: the first of these that this host has",
            ),
            ("PLATFORM_SANDBOX_SOCKET", "/var/run/docker.sock", "where the container engine listens"),
            (
                "PLATFORM_SANDBOX_IMAGES",
                "default=node:24-bookworm,node24=node:24-bookworm,node22=node:22-bookworm,python3.13=python:3.13-bookworm",
                "images of containers by runtime, name=image; each has bash; the first is the default one unless one is called so",
            ),
            (
                "PLATFORM_SANDBOX_MAX",
                "16",
                "sandboxes at once in this process, of which an account has three quarters; 0 = no bound",
            ),
            (
                "PLATFORM_LIMIT_SANDBOX_OUTPUT_BYTES",
                "1048576",
                "of a command's output the end is kept, a stream; 0 = all",
            ),
            (
                "PLATFORM_SANDBOX_PUBLIC_DOMAIN",
                "",
                "domain below which everybody reaches what sandboxes serve, such as sandboxes.example: all of its hosts lead here, with the scheme and port of PLATFORM_PUBLIC_URL; choose one that shares no cookies with anything else of yours. Empty = sandboxes are not reached from outside",
            ),
        ],
    ),
    (
        "Logs, metrics and what is kept",
        &[
            (
                "PLATFORM_LOG",
                "info",
                "log filter; to stderr, as JSON lines or, on a terminal, as short lines for people",
            ),
            ("PLATFORM_METRICS", "off", "on: GET /metrics (OpenMetrics) on PLATFORM_METRICS_ADDR"),
            ("PLATFORM_METRICS_ADDR", "127.0.0.1:9090", "listen address of the metrics"),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "",
                "collector that gets traces by OTLP over HTTP, as http://localhost:4318; the other OTEL_ variables hold, too",
            ),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "the same, with the whole path"),
            (
                "PLATFORM_DELIVERY_DAYS",
                "30",
                "days for which deliveries of webhooks and events of triggers are kept; 0 = for ever",
            ),
            ("PLATFORM_EVENT_DAYS", "30", "days for which events are kept; 0 = for ever"),
            ("PLATFORM_MCP_AUDIT_DAYS", "90", "days for which calls of the MCP endpoint are kept; 0 = for ever"),
        ],
    ),
];

pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().flat_map(|(_, settings)| *settings)
}

/// The default of a setting, empty when it has none.
pub(super) fn default_of(name: &str) -> &'static str {
    all().find(|(known, ..)| *known == name).expect("a known setting").1
}

/// All settings, for `--help`.
pub fn help() -> String {
    let width = all().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut text = "Settings (environment variables; [default], or in round brackets what holds when it is not set; durations as 250ms, 30s, 10m, 15d):\n".to_owned();
    for (subject, settings) in SETTINGS {
        text = format!("{text}\n  {subject}\n");
        for (name, default, meaning) in *settings {
            let default = if default.is_empty() { String::new() } else { format!(" [{default}]") };
            text = format!("{text}    {name:width$}  {meaning}{default}\n");
        }
    }
    text.push_str(
        "\nExamples:\n  platform-gateway                                  start; the log says where the first key is\n  \
         OPENAI_API_KEY=… platform-gateway                 answer with OpenAI's models\n  \
         DATABASE_URL=postgres://… platform-gateway serve  use a PostgreSQL of yours\n  \
         platform-gateway keys create --name ci            make another key",
    );
    text
}

/// The same as a page of the documentation.
pub fn page() -> String {
    let mut page = "# Settings\n\nEnvironment variables, as `platform-gateway settings` prints them. A wrong value stops the start and names \
                    the variable. In round brackets: what \
                    holds when it is not set. Durations are such as `250ms`, `30s`, `10m`, `15d`.\n"
        .to_owned();
    for (subject, settings) in SETTINGS {
        page = format!("{page}\n## {subject}\n\n| variable | default | meaning |\n| --- | --- | --- |\n");
        for (name, default, meaning) in *settings {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            page = format!("{page}| `{name}` | {default} | {} |\n", meaning.replace('<', "&lt;"));
        }
    }
    page
}
