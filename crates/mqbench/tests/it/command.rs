//! The command as a user meets it: the main job, and the messages for mistakes.

use std::process::Command;

use mq_measure::result::RunResult;

#[cfg(target_os = "linux")]
use crate::captures;
use crate::program::{self, mqbench, usage_mistake as mistake};

#[test]
fn compare_measures_websocket_beside_tcp_and_tls() {
    use mq_measure::result::ConnectKind::{Full, Resumed, Tcp, ZeroRtt};

    let output = mqbench(&[
        "compare",
        "--transports",
        "tcp,ws,tls,wss",
        "--quick",
        "--count",
        "400",
        "--rounds",
        "2",
        "--json",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let result: RunResult = serde_json::from_str(&printed).unwrap();
    let expected = [
        ("tcp", &[Tcp][..]),
        ("ws", &[Tcp]),
        ("tls", &[Full, Resumed, ZeroRtt]),
        ("wss", &[Full, Resumed]),
    ];
    for (transport, (name, kinds)) in result.transports.iter().zip(expected) {
        assert_eq!(transport.transport, name);
        let counts = transport.counts;
        assert_eq!((counts.sent, counts.lost, counts.duplicates), (40, 0, 0));
        let measured = transport.connect.iter();
        let measured: Vec<_> = measured.map(|times| (times.kind, times.failed)).collect();
        let all: Vec<_> = kinds.iter().map(|kind| (*kind, 0)).collect();
        assert_eq!(measured, all, "{name}");
    }
}

#[test]
fn compare_measures_each_transport_and_writes_its_results() {
    for (qos, mqtt) in [("0", "3.1.1"), ("1", "5"), ("2", "5")] {
        let out = tempfile::tempdir().unwrap();
        let directory = out.path().to_str().unwrap();
        let output = mqbench(&[
            "compare", "--quick", "--count", "400", "--rounds", "2", "--qos", qos, "--mqtt", mqtt,
            "--out", directory, "--json",
        ]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        let path = out.path().join("result.json");
        let result = RunResult::load(&path).unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&printed).unwrap(), result);
        let names: Vec<_> = result.transports.iter().map(|t| &t.transport[..]).collect();
        assert_eq!(names, ["tcp", "tls", "quic", "quic-repeat"]);
        let policies = result.transports.iter().map(|t| t.repeat.as_deref());
        assert!(policies.eq([None, None, None, Some("3ms")]));
        for transport in &result.transports {
            let counts = transport.counts;
            assert_eq!((counts.sent, counts.lost, counts.duplicates), (40, 0, 0));
            assert_eq!(transport.latency.unwrap().count, 40);
            for connect in &transport.connect {
                assert_eq!(
                    connect.failed, 0,
                    "{} {:?}",
                    transport.transport, connect.kind
                );
            }
            let samples = out
                .path()
                .join(format!("samples-{}.csv", transport.transport));
            assert_eq!(mq_measure::Samples::load(&samples).unwrap().0.len(), 40);
        }
        let log = std::fs::read_to_string(out.path().join("latency.hlog")).unwrap();
        let histograms = log.lines().filter(|line| line.starts_with("Tag="));
        let encoded = histograms.map(|line| line.rsplit(',').next().unwrap());
        let counts = encoded.map(|text| mq_measure::recorder::decode(text).unwrap().len());
        assert_eq!(counts.collect::<Vec<_>>(), [40, 40, 40, 40]);
        let again = mqbench(&["report", directory]);
        let text = String::from_utf8(again.stdout).unwrap();
        let mut lines = text.lines().filter(|line| !line.starts_with('!'));
        let wide = lines.find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{text}");
        assert!(text.contains("QUIC's mean delay"), "{text}");
        assert!(
            text.contains("QUIC's initial RTT: 333 ms (RFC 9002)"),
            "{text}"
        );
        let quic = &result.parameters["stack"]["quic"];
        assert_eq!(quic["initial_rtt_ns"], 333_000_000);
        assert_eq!(quic["mtu_discovery"], false);
        // Of four transports six pairs, in two quantities.
        let sentences = text.lines().filter(|line| line.ends_with(" %)"));
        assert_eq!(sentences.count(), 12, "{text}");
        for line in [
            "quic-repeat: QUIC, small datagrams go twice, from either side (--repeat 3ms)",
            "QUIC with repeat takes ",
            "  without it ",
        ] {
            assert!(text.lines().any(|one| one.starts_with(line)), "{text}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn compare_measures_over_an_emulated_link() {
    let folder = tempfile::tempdir().unwrap();
    let result = compared(&[
        "compare",
        "--quick",
        "--count",
        "400",
        "--rounds",
        "2",
        "--connections",
        "3",
        "--link",
        "w20/wifi@loss=2%",
        "--topology",
        "both",
        "--pcap",
        folder.path().to_str().unwrap(),
        "--json",
    ]);
    let Some(result) = result else {
        return;
    };
    for transport in &result.transports {
        assert_eq!((transport.counts.sent, transport.counts.lost), (40, 0));
        // Half of the round trip to the broker, and half of that from it.
        let fastest = transport.latency.unwrap().min_ns;
        assert!(fastest > 25_000_000, "{}: {fastest}", transport.transport);
    }
    let links = result.manifest.link.measured.unwrap();
    for (link, of) in [(0, "publisher"), (1, "subscriber")] {
        assert_eq!(links[link]["of"], of);
        assert!(links[link]["up"]["packets"].as_u64().unwrap() > 40);
    }
    for transport in &result.transports {
        // Messages that wait for a lost packet or for the processor leave
        // in one packet, so there can be fewer packets than messages.
        let host = transport.publisher_host.unwrap();
        assert!(host.sent >= 10 && host.received > Some(5), "{host:?}");
    }
    for host in ["publisher", "broker", "subscriber"] {
        let file = folder.path().join(format!("{host}.pcap"));
        assert!(file.metadata().unwrap().len() > 40 * 100, "{host}");
    }
    // No packet of QUIC itself has the bytes of another; an acknowledgement takes the link's 25 ms, and a copy leaves
    // after 3 ms.
    for host in ["publisher", "broker"] {
        let file = folder.path().join(format!("{host}.pcap"));
        for (transport, expected) in [(2, false), (3, true)] {
            let (_, port) = result.transports[transport].url.rsplit_once(':').unwrap();
            let datagrams = captures::datagrams(&file, port.parse().unwrap());
            let different: std::collections::BTreeSet<_> = datagrams.iter().collect();
            let is_repeated = different.len() < datagrams.len();
            assert_eq!(is_repeated, expected, "{host}: {}", datagrams.len());
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn compare_measures_on_a_channel_that_stations_share() {
    let captures = tempfile::tempdir().unwrap();
    let medium = "s21/medium@frame_error_rate=10%,retries=3";
    let network = ["--medium", medium, "--stations", "3"];
    let work = ["--quick", "--count", "600", "--rounds", "2", "--json"];
    let others = [
        "--connections",
        "3",
        "--sub-link",
        "s21/wired-25ms",
        "--pcap",
        captures.path().to_str().unwrap(),
    ];
    let Some(result) = compared(&[&["compare"][..], &network, &work, &others].concat()) else {
        return;
    };
    assert_eq!(result.parameters["stations"], 3);
    for transport in &result.transports {
        let counts = transport.counts;
        assert_eq!((counts.sent, counts.lost, counts.unknown), (60, 0, 0));
        // The wired link takes this one way; the channel takes a tenth of a millisecond.
        let fastest = transport.latency.unwrap().min_ns;
        assert!(fastest > 12_500_000, "{}: {fastest}", transport.transport);
        // Two other stations send in the same interval; the limit has room for a busy machine.
        let neighbours = transport.neighbours_sent.unwrap();
        assert!(neighbours >= 60, "{neighbours}");
        // The channel does not count by the receiver. A busy machine puts several messages into a packet.
        let host = transport.publisher_host.unwrap();
        assert!(host.sent >= 20 && host.received.is_none(), "{host:?}");
    }
    let link = result.manifest.link;
    let (configured, measured) = (link.configured.unwrap(), link.measured.unwrap());
    assert_eq!(configured[0]["frame_error_rate"], 0.1);
    assert_eq!(
        (&measured[0]["of"], &measured[1]["of"]),
        (&"medium".into(), &"subscriber".into())
    );
    let stations = measured[0]["stations"].as_array().unwrap();
    let roles = ["publisher", "publisher-2", "publisher-3", "broker"];
    assert_eq!(stations.len(), roles.len());
    for (station, role) in stations.iter().zip(roles) {
        assert_eq!(station["of"], role);
        let count = |key: &str| station[key].as_u64().unwrap();
        assert!(count("transmissions") > 100, "{station}");
        assert!(count("retries") > 0, "{station}");
        let file = captures.path().join(format!("{role}.pcap"));
        assert!(file.metadata().unwrap().len() > 100 * 100, "{role}");
    }
}

/// Runs a comparison over an emulated network, and returns its result; `None` where namespaces cannot be made.
#[cfg(target_os = "linux")]
pub(crate) fn compared(arguments: &[&str]) -> Option<RunResult> {
    let output = mqbench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if stderr.contains("namespaces") {
        mq_testkit::skipped(&stderr);
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let result = serde_json::from_str(&printed).unwrap();
    Some(result)
}

#[test]
#[cfg(target_os = "linux")]
fn compare_says_how_several_topics_fared() {
    let network = ["--link", "lw26@delay=5ms,loss=5%", "--topology", "shared"];
    let work = ["--count", "800", "--rounds", "2", "--interval", "2ms"];
    let others = ["--topics", "4", "--transports", "tcp,quic", "--json"];
    let arguments = [
        &["compare", "--connections", "1"][..],
        &network,
        &work,
        &others,
    ];
    let Some(result) = compared(&arguments.concat()) else {
        return;
    };
    assert_eq!(result.parameters["topics"], 4);
    for transport in &result.transports {
        let counts = transport.counts;
        // The subscriber has every topic, each in order.
        assert_eq!((counts.sent, counts.received), (800, 800), "{counts:?}");
        assert_eq!((counts.unknown, counts.reordered), (0, 0), "{counts:?}");
        let figures = transport.topics.unwrap();
        assert_eq!(figures.topics.get(), 4);
        // A message passes the link twice, and one in twenty is lost on each passage.
        let (mean, worst) = (figures.above_link_mean_ns, figures.above_link_worst_ns);
        assert!(mean > Some(0.0) && worst >= mean, "{figures:?}");
        assert!(figures.inter_topic_spread_ns > Some(0.0), "{figures:?}");
        // All share one ordered stream.
        let (late, others) = (figures.late_share, figures.late_through_others);
        assert!(others > Some(0.0) && others < late, "{figures:?}");
    }
}

#[test]
fn a_publisher_gives_its_messages_to_several_topics_in_turn() {
    use std::{
        io::{BufRead, BufReader, Lines},
        process::Stdio,
    };

    fn ready(output: &mut Lines<impl BufRead>) {
        let mut lines = output.by_ref().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"));
    }

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let start = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqbench"));
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let url = format!("tcp://127.0.0.1:{port}");
    let listen = ["broker", "--announce", "--until-stdin-ends", "--listen"];
    let mut broker = start(&[&listen[..], &[&url]].concat());
    let mut announced = BufReader::new(broker.stdout.take().unwrap()).lines();
    ready(&mut announced);
    let (of_all, of_one) = (file("all.csv"), file("one.csv"));
    let all = ["--topics", "4", "--count", "20", "--log", &of_all];
    let one = [
        "--topic",
        "mqbench/log/topic-3",
        "--count",
        "5",
        "--log",
        &of_one,
    ];
    let subscribers = [&all[..], &one].map(|options| {
        let mut subscriber = start(&[&["sub", &url, "--announce"], options].concat());
        let mut output = BufReader::new(subscriber.stdout.take().unwrap()).lines();
        ready(&mut output);
        (subscriber, output)
    });
    let sent = file("send.csv");
    let work = ["--topics", "4", "--count", "20", "--interval", "1ms"];
    let output = mqbench(&[&["pub", &url, "--log", &sent][..], &work].concat());
    assert!(output.status.success(), "{output:?}");
    for (mut subscriber, output) in subscribers {
        assert!(subscriber.wait().unwrap().success());
        assert_eq!(output.map_while(Result::ok).count(), 1);
    }
    let numbers = |file: &str| -> Vec<u64> {
        let log = mq_measure::log::read_receive_log(file.as_ref()).unwrap();
        let mut numbers: Vec<_> = log.records.iter().map(|record| record.seq).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&of_all), (0..20).collect::<Vec<_>>());
    assert_eq!(numbers(&of_one), [3, 7, 11, 15, 19]);
    let outcome = file("join.json");
    let joined = mqbench(&["join", &sent, &of_all, "--topics", "4", "--json", &outcome]);
    assert!(joined.status.success(), "{joined:?}");
    let outcome = mq_measure::log::Outcome::load(outcome.as_ref()).unwrap();
    let counts = outcome.counts;
    assert_eq!((counts.received, counts.reordered), (20, 0), "{counts:?}");
    drop(broker.stdin.take());
    assert!(broker.wait().unwrap().success());
}

#[test]
fn a_broker_for_a_run_ends_with_the_program_that_started_it() {
    use std::io::{BufRead as _, BufReader};

    let mut broker = Command::new(env!("CARGO_BIN_EXE_mqbench"))
        .args(["broker", "--announce", "--until-stdin-ends"])
        .args(["--listen", "tcp://127.0.0.1:0"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let announced = BufReader::new(broker.stdout.take().unwrap()).lines();
    assert!(announced.map_while(Result::ok).any(|line| line == "ready"));
    assert_eq!(broker.try_wait().unwrap(), None);
    // The pipe closes, as when that program is killed.
    drop(broker.stdin.take());
    assert!(broker.wait().unwrap().success());
}

#[test]
fn a_wrong_url_is_answered_with_a_right_one() {
    let text = mistake(&["connect", "http://localhost"]);
    assert!(text.contains("http") && text.contains("quic"), "{text}");
}

#[test]
fn an_unreachable_broker_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("mqtt://127.0.0.1:{port}");
    let text = mistake(&["connect", &url, "--count", "1"]);
    assert!(text.contains(&port.to_string()), "{text}");
}

#[test]
fn a_port_in_use_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("tcp://127.0.0.1:{port}");
    let text = mistake(&["broker", "--listen", &url]);
    assert!(
        text.contains(&port.to_string()) && text.contains("in use"),
        "{text}"
    );
}

#[test]
fn a_missing_file_is_named() {
    for args in [
        &["broker", "--config", "/nonexistent/mq.toml"][..],
        &[
            "broker",
            "--listen",
            "tls://127.0.0.1:0",
            "--cert",
            "/nonexistent/c",
            "--key",
            "/nonexistent/k",
        ],
        &[
            "connect",
            "mqtts://127.0.0.1:1",
            "--ca",
            "/nonexistent/ca.pem",
        ],
        &["join", "/nonexistent/send.csv", "/nonexistent/receive.csv"],
    ] {
        let text = mistake(args);
        assert!(text.contains("/nonexistent"), "{text}");
    }
}

#[test]
fn an_unknown_value_is_answered_with_the_known_ones() {
    for (args, known) in [
        (&["connect", "mqtt://h", "--qos", "3"][..], "0, 1 or 2"),
        (&["connect", "mqtt://h", "--congestion", "vegas"], "cubic"),
        (&["compare", "--interval", "fast"], "ms"),
        (&["compare", "--size", "3"], "at least 8"),
        (&["compare", "--link", "s22/wlan"], "s22/wifi"),
        (
            &["compare", "--transports", "tcp,udp"],
            "tcp, tls, quic, quic-repeat, ws and wss",
        ),
        (
            &["compare", "--transports", "tcp,quic", "--repeat", "3ms"],
            "add quic-repeat to --transports",
        ),
        (&["compare", "--pcap", "captures"], "--link"),
        (
            &[
                "compare",
                "--link",
                "dl",
                "--sub-link",
                "dl",
                "--topology",
                "shared",
            ],
            "there is one link",
        ),
        (&["compare", "--link", "s22/wifi@loss=5"], "0% to 100%"),
        (&["compare", "--medium", "s21/wlan"], "s21/medium"),
        (
            &["compare", "--medium", "s21/medium", "--link", "dl"],
            "'--medium <MEDIUM>' cannot be used with '--link <LINK>'",
        ),
        (
            &["compare", "--medium", "s21/medium", "--topology", "both"],
            "a --sub-link",
        ),
        (
            &["compare", "--medium", "s21/medium", "--interval", "0"],
            "--interval",
        ),
        (
            &["compare", "--medium", "s21/medium@retries=8"],
            "write 0 to 7",
        ),
        (
            &["compare", "--medium", "s21/medium", "--stations", "65"],
            "1..=64",
        ),
        (&["compare", "--stations", "5"], "--medium"),
        (&["lab", "shell", "--stations", "5"], "--medium"),
        (
            &["load", "mqtt://h", "--client-id", "a%n"],
            "`%n` is unknown: there are %r (pub or sub), %i (number) and %%",
        ),
    ] {
        let text = mistake(args);
        assert!(text.contains(known), "{text}");
    }
}

#[test]
fn a_port_without_a_broker_is_given_up_after_three_tries() {
    // The port was free, and is bound without anybody who listens.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("quic://{}", port.local_addr().unwrap());
    let connect = |patience: &str| {
        let timeout = format!("--connect-timeout={patience}");
        program::mistake(&["connect", &url, "--insecure", &timeout])
    };
    let error = connect("50ms");
    assert!(error.contains("3 tries of 3 failed"), "{error}");
    assert!(error.contains("no answer within 50ms"), "{error}");
    assert!(mistake(&["connect", &url, "--count", "0"]).contains("--count"));
}

#[test]
fn a_key_log_that_cannot_be_written_is_a_mistake() {
    for (file, part) in [
        (None, "SSLKEYLOGFILE is not set"),
        (Some("/nonexistent/keys"), "/nonexistent/keys"),
    ] {
        for args in [
            &["connect", "quic://127.0.0.1:1", "--keylog"][..],
            &["compare", "--quick", "--keylog"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mqbench"));
            command.args(args).env_remove("SSLKEYLOGFILE");
            if let Some(file) = file {
                command.env("SSLKEYLOGFILE", file);
            }
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{text}");
            assert!(text.contains("key log") && text.contains(part), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}

#[test]
fn a_broker_that_other_machines_could_reach_needs_an_option() {
    let text = mistake(&["broker", "--listen", "tcp://192.0.2.1:1883"]);
    assert!(text.contains("--allow-anonymous"), "{text}");
}

/// The parts of `mqbench net` that need no privilege; `tests/kernel` has the others.
#[cfg(target_os = "linux")]
mod net {
    use super::{mistake, mqbench};

    #[test]
    fn print_gives_the_lines_for_tc() {
        let text = |args: &[&str]| {
            let output = mqbench(&[&["net", "apply", "--print", "eth-none"], args].concat());
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(
            text(&["w20/wifi@loss=5%", "--direction", "down"]),
            "ip link set dev eth-none gso_max_segs 1\n\
             tc qdisc add dev eth-none root handle 4d51: netem limit 14541 delay 12.5ms loss 5%\n\
             tc qdisc add dev eth-none parent 4d51:1 handle 4d52: tbf rate 20mbit burst 1514 \
             limit 62500\n"
        );
        let jitter = text(&["s22/satellite@jitter=20ms,distribution=pareto"]);
        assert!(
            jitter.contains("netem limit 1000 delay 600ms 20ms distribution pareto rate 1500kbit"),
            "{jitter}"
        );
    }

    #[test]
    fn mistakes_are_reported_before_anything_is_done() {
        for (args, says) in [
            (&["apply", "eth-none", "s22/wifi"][..], "there are lo"),
            (&["show", "eth-none"], "no interface `eth-none`"),
            (&["clear", "eth-none"], "no interface `eth-none`"),
            (&["check", "eth-none", "s22/wifi"], "there are lo"),
            (&["apply", "lo", "s22/wlan"], "s22/wifi"),
            (
                &["apply", "lo", "s22/wifi", "--direction", "down"],
                "does nothing down",
            ),
            (&["apply", "lo", "dl"], "@up.loss=5%"),
            (
                &["apply", "lo", "s22/wifi", "--keep", "--", "true"],
                "--keep",
            ),
            (&["check", "lo", "s22/wifi", "--count", "0"], "1..=60000"),
            (&["check", "lo", "s22/wifi", "--peer", "example"], "example"),
        ] {
            let text = mistake(&[&["net"], args].concat());
            assert!(text.contains(says), "{args:?}: {text}");
        }
    }

    #[test]
    fn a_trace_has_no_kernel_form() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        file("lte.trace", "1\n");
        let link = file(
            "lte.toml",
            "description = \"\"\n[up]\ntrace = \"lte.trace\"\n",
        );
        for print in [&["--print"][..], &[]] {
            let text = mistake(&[&["net", "apply", "lo", &link], print].concat());
            assert!(text.contains("needs the user-space emulator"), "{text}");
        }
    }

    #[test]
    fn an_interface_that_is_not_shaped_differs() {
        let output = mqbench(&["net", "check", "lo", "s22/wifi"]);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("lo: the root is "), "{text}");
        assert!(text.ends_with(" instead of netem\n"), "{text}");
        let output = mqbench(&["net", "show", "lo"]);
        assert!(output.status.success() && output.stdout.starts_with(b"lo: "));
    }
}
