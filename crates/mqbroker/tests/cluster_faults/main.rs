//! A cluster of programs under faults: brokers and NATS servers are killed and stopped, one at a time or all at once; links
//! between them are cut in one direction or both, lose packets or become long; the storage of a server is damaged, all
//! servers have no more room, or one is slow; the brokers' clocks jump, clients go from node to node, and what was
//! acknowledged is checked against what came. `docs/results/cluster-faults.md` has the rules and the results.
//!
//! With `MQ_FAULTS_CLOCKS=1` it is the clocks of the NATS servers that jump, by up to 8 h to and fro. `nats-server` asks the
//! kernel for the time, so each of the three has a kernel of its own: User-Mode Linux, from Debian's package unpacked into
//! `target/uml`, or as `MQ_UML` names it. Brokers are killed and stopped, and clients move as ever; links stay well.
//!
//! 20 s by default, 120 s with `MQ_NIGHTLY`, 120 s with guests; `MQ_FAULTS_S=7200` for two hours, `MQ_SEED` for another run. With
//! `MQ_FAULTS_SERVERS=0` no NATS server is killed, stopped or cut off. The folder with the logs of all processes, the
//! trace of the faults and the history of all clients stays if a fault of the cluster is found, or with `MQ_FAULTS_KEEP=1`.
//!
//! The tests are a program of its own: the network is made before there are threads, and the usual harness has threads.
//! If the system does not permit namespaces, the program says so and passes.

#![expect(clippy::print_stdout, reason = "it stands in for the test harness")]
#![cfg_attr(
    target_os = "linux",
    expect(clippy::unwrap_used, reason = "a test fails by panicking")
)]

#[cfg(target_os = "linux")]
mod campaign;
#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod clients;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod expiry;
#[cfg(target_os = "linux")]
mod false_histories;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
mod guests;
#[cfg(target_os = "linux")]
mod harm;
#[cfg(target_os = "linux")]
mod history;
#[cfg(target_os = "linux")]
mod in_step;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
mod net;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod plan_limits;
#[cfg(target_os = "linux")]
mod publisher;
#[cfg(target_os = "linux")]
mod pulses;
#[cfg(target_os = "linux")]
mod reader;
#[cfg(target_os = "linux")]
mod rivals;
#[cfg(target_os = "linux")]
mod servers;
#[cfg(target_os = "linux")]
mod storage;
#[cfg(target_os = "linux")]
mod witness;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED: emulated links need Linux");
}

/// Tests that need no network: their names and functions.
#[cfg(target_os = "linux")]
macro_rules! tests {
    ($($test:path),* $(,)?) => {
        &[$((stringify!($test), $test as fn())),*]
    };
}

#[cfg(target_os = "linux")]
const TESTS: &[(&str, fn())] = tests![
    plan_limits::a_plan_harms_one_nats_server_and_two_nodes_or_all_at_once_and_ends_with_all_well,
    plan_limits::a_plan_that_ends_early_heals_what_it_has_harmed_and_harms_nothing_more,
    storage::damage_is_within_the_last_tenth_of_a_stream,
    history::an_operation_is_one_line_of_json,
    false_histories::the_check_finds_what_is_lost_twice_out_of_order_or_made_up,
    false_histories::the_check_finds_a_retained_message_that_is_older_than_what_was_acknowledged,
    false_histories::the_check_finds_what_an_earlier_owner_acknowledges_late,
    false_histories::the_check_finds_a_will_of_qos_2_that_comes_twice,
    false_histories::the_check_finds_a_session_that_was_not_there,
    false_histories::the_check_finds_a_shared_message_that_no_member_gets_or_two_do,
    false_histories::the_check_finds_a_message_that_comes_expired_or_not_in_time,
    false_histories::the_check_takes_a_refused_message_for_no_acknowledged_one,
    false_histories::the_check_takes_messages_behind_a_refused_one_for_refused_ones_alone,
    false_histories::the_check_takes_a_message_of_full_servers_for_one_whose_refusal_is_lost,
    in_step::servers_store_the_same_once_each_has_what_any_had_before,
    in_step::a_server_lacks_messages_if_both_others_have_more_at_every_look,
    in_step::a_replaced_server_may_lack_a_few_values_that_have_expired_and_nothing_else,
    witness::a_message_is_found_in_its_entry,
];

#[cfg(target_os = "linux")]
const CAMPAIGN: &str = "what_is_acknowledged_outlives_faults_of_processes_and_links";

#[cfg(target_os = "linux")]
fn main() {
    if let Ok(number) = std::env::var(guest::GUEST) {
        return guest::main(&number);
    }
    let arguments = std::env::args().skip(1);
    let chosen: Vec<_> = arguments
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part));
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        test();
        println!("test {name} ... ok");
    }
    if wanted(CAMPAIGN) && campaign() {
        println!("test {CAMPAIGN} ... ok");
    }
    println!("\ntest result: ok");
}

/// Runs the campaign; false where the system has no networks for it.
#[cfg(target_os = "linux")]
fn campaign() -> bool {
    use std::time::Duration;

    use mq_netem::Error;

    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("MQ_SEED").unwrap_or(1);
    let part = match std::env::var_os("MQ_FAULTS_CLOCKS") {
        Some(_) => plan::Part::Clocks,
        None => plan::Part::Links,
    };
    let usual = match part {
        plan::Part::Links => mq_testkit::nightly(20, 120),
        plan::Part::Clocks => 120,
    };
    let length = Duration::from_secs(number("MQ_FAULTS_S").unwrap_or(usual));
    let settings = campaign::Settings {
        seed,
        length,
        part,
        harms_servers: std::env::var("MQ_FAULTS_SERVERS").as_deref() != Ok("0"),
    };
    println!("MQ_SEED={seed} MQ_FAULTS_S={}", length.as_secs());
    let net = match part {
        plan::Part::Links => net::Net::of_links(seed),
        plan::Part::Clocks => match mq_testkit::Uml::find() {
            Some(uml) => net::Net::of_guests(uml),
            None => return false,
        },
    };
    let net = match net {
        Ok(net) => net,
        Err(error @ Error::Namespaces { .. }) => {
            println!("SKIPPED: {error}");
            return false;
        }
        Err(error) => panic!("{error}"),
    };
    // Its threads are where the clients are.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let campaign = campaign::what_is_acknowledged_outlives_faults_of_processes_and_links;
    runtime.block_on(campaign(settings, net));
    true
}
