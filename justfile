# Recipes for people; CI runs .ci/run.

# The main job: TCP, TLS and QUIC side by side
compare *args:
    cargo run --release -p mqbench -- compare {{args}}

# All tests
test:
    cargo test --workspace --locked

# The tests of the whole broker with another number of threads than the two of CI; 0 is the test's own runtime
test-workers count='5':
    MQ_WORKERS={{count}} cargo test -p mq-tests --locked

# What CI checks before the tests
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# All that CI checks, and what takes longer
nightly:
    .ci/run nightly

# The fuzz target decode, topic, connection, lanes or recovery; needs `cargo install cargo-fuzz`. What it finds goes to fuzz/target; `fuzz/corpus/files in` keeps it
fuzz target='decode' seconds='60':
    fuzz/corpus/files out {{target}} fuzz/target/corpus/{{target}}
    RUSTC_BOOTSTRAP=1 cargo fuzz run {{target}} fuzz/target/corpus/{{target}} -- -max_total_time={{seconds}}

# Codec and router, next to a peer's codec
bench:
    cargo bench -p mq-criterion

# This broker, mosquitto, rumqttd and others side by side, in turns; docs/reference/brokers.md
compare-brokers *args:
    bench/compare-brokers {{args}}

# One broker with 19,000 clients, 100,000 over QUIC, a million subscriptions and a million retained messages; docs/results/scale.md
scale *args:
    bench/scale {{args}}

# Three brokers as one, over three NATS servers, on this machine, until Ctrl-C; docs/guide/cluster.md
cluster folder='target/cluster':
    cargo build --release --locked -p mqbroker
    PATH="$PWD/target/release:$PATH:$PWD/target/nats" deploy/cluster/try {{folder}}

# A cluster whose brokers, NATS servers, their storage and links fail for two hours, and a check of all that was acknowledged; docs/results/cluster-faults.md
cluster-faults seconds='7200' seed='1':
    PATH="$PATH:$PWD/target/nats" MQ_NO_SKIPS=1 MQ_FAULTS_S={{seconds}} MQ_SEED={{seed}} \
        cargo test --release --locked -p mqbroker --test cluster_faults -- --nocapture

# The same with NATS servers in kernels of their own, whose clocks jump; needs target/uml: .ci/run
cluster-clocks seconds='120' seed='1':
    PATH="$PATH:$PWD/target/nats" MQ_NO_SKIPS=1 MQ_FAULTS_CLOCKS=1 MQ_FAULTS_S={{seconds}} MQ_SEED={{seed}} \
        cargo test --release --locked -p mqbroker --test cluster_faults -- --nocapture

# Schedules of faults of a cluster in virtual time, each drawn from a seed, from a first seed on; docs/guide/cluster.md. MQ_SEED=n runs one and prints what happens
cluster-schedules count='100000' first='0':
    CARGO_TARGET_DIR=target/schedules RUSTFLAGS='--cfg tokio_unstable' CARGO_PROFILE_RELEASE_LTO=off \
        MQ_SCHEDULES={{count}} MQ_FIRST_SEED={{first}} \
        cargo test --release --locked -p mq-tests --test it cluster_schedules -- --nocapture

# The static binary for a Raspberry Pi
pi:
    deploy/cargo-for aarch64-unknown-linux-musl build --profile dist --locked \
        -p mqbench --no-default-features --features ring
    deploy/cargo-for aarch64-unknown-linux-musl strip target/aarch64-unknown-linux-musl/dist/mqbench

# That binary in an emulated Raspberry Pi, with every command of docs/guide/testbed.md
test-pi: pi
    cargo test -p mqbench --locked --test pi -- --ignored --nocapture

# What is handed out, in target/packages: programs, packages, images, checksums; docs/guide/packages.md
dist *targets:
    deploy/dist {{targets}}

# Installs and runs what `just dist` made; with --rootfs, as root, also in a fresh Debian
check-dist *options:
    deploy/check-dist {{options}}

# A container image of mqbroker, for amd64 and arm64
image *archs:
    deploy/image {{archs}}

# The campaigns of docs/results in full: those of the papers and the project's own, hours; `--plan` says how many
results *options:
    cargo build --release --locked -p mqbench
    bench/results "${CARGO_TARGET_DIR:-target}/release/mqbench" target/results {{options}}

# One archive of sources, results, reports and checksums; `mqbench verify` computes them again
artifact:
    cargo build --release --locked -p mqbench
    bench/artifact "${CARGO_TARGET_DIR:-target}/release/mqbench" target/artifact

# Computes the claims of the full set again, apart from mqbench, by NumPy and SciPy; needs a network for the first run.
recompute:
    cargo build --locked -p mqbench
    bench/recompute/run "${CARGO_TARGET_DIR:-target}/debug/mqbench"
