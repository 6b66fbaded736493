//! Tests of campaign files: what they give, and the mistakes in them.

use mq_client::Spread;

use super::*;
use crate::campaign::cell::{Cell, Tickets};

#[test]
fn a_variant_sets_several_keys() {
    let file = r#"
title = "t"
source = "s"
[work]
pattern = "periodic"
link = "s22/wifi"
[variants."TLS tuned"]
transport = "tls"
tcp_rto_min = "25ms"
[variants.repeated]
transport = "quic"
repeat = "3ms"
[factors]
loss = ["5%"]
variant = ["TLS tuned", "repeated"]
[plot]
kind = "lines"
metric = "latency_mean"
x = "loss"
series = "variant"
"#;
    let campaign = Campaign::parse("c", file, Extent::Full).unwrap();
    let [tuned, repeated] = &campaign.cells[..] else {
        panic!("{:?}", campaign.cells);
    };
    assert_eq!(tuned.levels["variant"], "TLS tuned");
    assert_eq!(tuned.cell.tcp_rto_min_ns, Some(25_000_000));
    assert_eq!(repeated.cell.repeat.to_string(), "3ms");
    let wrong = file.replace("\"TLS tuned\", ", "\"tuned\", ");
    let wrong = Campaign::parse("c", &wrong, Extent::Full).unwrap_err();
    assert_eq!(
        wrong.problem,
        "unknown variant `tuned`: expected one of TLS tuned, repeated"
    );
}

#[test]
fn changes_concern_the_cells_of_their_transport_alone() {
    let file = r#"
title = "t"
source = "s"
work.link = "s22/wifi"
factors.loss = ["5%"]
factors.transport = ["tls", "quic"]
plot = { kind = "lines", metric = "latency_mean", x = "loss", series = "transport" }
"#;
    let parse = |name: &str| Campaign::parse(name, file, Extent::Full);
    let (plain, changed) = (
        parse("c").unwrap(),
        parse("c@repeat=probe,tcp_thin=true,size=200").unwrap(),
    );
    assert_eq!(changed.title, "t (repeat=probe,tcp_thin=true,size=200)");
    let [tls, quic] = [0, 1].map(|at: usize| &changed.cells[at].cell);
    assert_eq!(
        (tls.repeat.to_string(), tls.tcp_thin, tls.size),
        ("off".to_owned(), true, 200)
    );
    assert_eq!(
        (quic.repeat.to_string(), quic.tcp_thin, quic.size),
        ("probe".to_owned(), false, 200)
    );
    let probed = parse("c@repeat=probe").unwrap();
    assert_eq!(probed.cells[0], plain.cells[0]);
    for (name, says) in [
        ("c@repeat", "a change is KEY=VALUE"),
        ("c@repeat=now", "@repeat: repeat cannot be `now`"),
        ("c@loss=1%", "@loss: it is a factor of this file"),
        ("c@link=s22/cellular", "a change is KEY=VALUE"),
        ("c@reapet=off", "@reapet: unknown key"),
    ] {
        let problem = parse(name).unwrap_err().problem;
        assert!(problem.contains(says), "{name}: {problem}");
    }
}

const STORM: &str = r#"
title = "t"
source = "s"
[work]
messages = 10000
resumption = "resumed"
[factors]
pattern = ["storm"]
transport = ["tls", "quic"]
tickets = ["kept", "lost"]
[plot]
kind = "bars"
metric = "back_99"
x = "tickets"
series = "transport"
"#;

#[test]
fn a_storm_keeps_or_loses_tickets_and_takes_no_link() {
    let campaign = Campaign::parse("storm", STORM, Extent::Full).unwrap();
    let levels: Vec<_> = campaign.cells.iter().map(|one| one.cell.tickets).collect();
    assert_eq!(
        levels,
        [Tickets::Kept, Tickets::Kept, Tickets::Lost, Tickets::Lost]
    );
    let written = |cell: &Cell| serde_json::to_value(cell).unwrap();
    let has_tickets = |one: &Combination| written(&one.cell).get("tickets").is_some();
    // As records without the key were written.
    let has: Vec<_> = campaign.cells.iter().map(has_tickets).collect();
    assert_eq!(has, [false, false, true, true]);
    for one in &campaign.cells {
        let read: Cell = serde_json::from_value(written(&one.cell)).unwrap();
        assert_eq!(read, one.cell);
    }
    for (from, to, at, says) in [
        (
            "messages",
            "link = \"w20/wifi\"\nmessages",
            5,
            "link: a storm has no link",
        ),
        (
            "messages",
            "medium = \"s21/medium\"\nmessages",
            5,
            "medium: a storm has no link",
        ),
        (
            "messages",
            "loss = \"1%\"\nmessages",
            5,
            "loss: a storm has no link",
        ),
        (
            "messages",
            "topology = \"both\"\nmessages",
            5,
            "topology: a storm has no link",
        ),
        (
            "10000",
            "20001",
            5,
            "messages: a storm has 20000 devices at most",
        ),
        (
            "\"resumed\"",
            "\"full\"",
            10,
            "tickets: a full handshake uses no tickets",
        ),
        (
            "\"storm\"",
            "\"reconnect\"",
            10,
            "tickets: this pattern restarts no broker",
        ),
        ("\"lost\"", "\"sold\"", 10, "unknown variant `sold`"),
        ("\"quic\"", "\"tcp\"", 6, "plain TCP has no sessions"),
    ] {
        let text = STORM.replacen(from, to, 1);
        assert_ne!(text, STORM, "{from}");
        let wrong = Campaign::parse("storm", &text, Extent::Full).unwrap_err();
        assert!(wrong.problem.contains(says), "{to}: {}", wrong.problem);
        let found = wrong.at.map(|at| line_number(&text, at));
        assert_eq!(found, Some(at), "{to}: {}", wrong.problem);
    }
}

const FILE: &str = r#"
title = "Mean delay over loss"
source = "S22 Fig. 4"
claims = ["s22"]
repetitions = 3
[work]
pattern = "periodic"
link = "s22/wifi"
[factors]
loss = ["0%", "5%"]
transport = ["tls", "quic"]
[quick]
repetitions = 1
work.messages = 50
work.interval = "100ms"
[plot]
kind = "bars"
metric = "latency_mean"
x = "loss"
series = "transport"
"#;

#[test]
fn every_combination_of_levels_is_a_cell() {
    let campaign = Campaign::parse("s22-fig4", FILE, Extent::Full).unwrap();
    let levels: Vec<_> = campaign
        .cells
        .iter()
        .map(|combination| {
            (
                &combination.levels["loss"][..],
                &combination.levels["transport"][..],
            )
        })
        .collect();
    assert_eq!(
        levels,
        [("0%", "tls"), ("0%", "quic"), ("5%", "tls"), ("5%", "quic")]
    );
    assert_eq!(campaign.repetitions, 3);
    let cell = &campaign.cells[3].cell;
    assert_eq!((cell.messages, cell.interval_ns), (1000, 1_000_000_000));
    assert_eq!(cell.links()[0].as_deref(), Some("s22/wifi@loss=5%"));
}

#[test]
fn a_quick_run_changes_only_what_quick_names() {
    let campaign = Campaign::parse("s22-fig4", FILE, Extent::Quick).unwrap();
    assert_eq!((campaign.repetitions, campaign.cells.len()), (1, 4));
    let cell = &campaign.cells[0].cell;
    assert_eq!((cell.messages, cell.interval_ns), (50, 100_000_000));
}

#[test]
fn excluded_combinations_are_left_out() {
    let with = |exclude: &str, extent| {
        let text = FILE.replace("[plot]", &format!("{exclude}\n[plot]"));
        Campaign::parse("x", &text, extent)
    };
    let levels = |campaign: Campaign| -> Vec<String> {
        let cells = campaign.cells.iter();
        cells
            .map(|one| format!("{} {}", one.levels["loss"], one.levels["transport"]))
            .collect()
    };
    let one = "[[exclude]]\nloss = \"5%\"\ntransport = \"tls\"";
    for extent in [Extent::Full, Extent::Quick] {
        let left = levels(with(one, extent).unwrap());
        assert_eq!(left, ["0% tls", "0% quic", "5% quic"]);
    }
    let two = "[[exclude]]\ntransport = \"tls\"\n[[exclude]]\nloss = [\"5%\"]";
    assert_eq!(levels(with(two, Extent::Full).unwrap()), ["0% quic"]);
    // A contradiction is allowed if it is excluded.
    let resumed = FILE
        .replace("pattern = \"periodic\"", "pattern = \"connect\"")
        .replace(
            "[\"tls\", \"quic\"]",
            "[\"tcp\", \"quic\"]\nresumption = [\"full\", \"0-rtt\"]",
        );
    assert!(Campaign::parse("x", &resumed, Extent::Full).is_err());
    let left_out = "[[exclude]]\ntransport = \"tcp\"\nresumption = \"0-rtt\"\n[plot]";
    let resumed = resumed.replace("[plot]", left_out);
    let campaign = Campaign::parse("x", &resumed, Extent::Full).unwrap();
    assert_eq!(campaign.cells.len(), 2 * 3);

    let all = "[[exclude]]\nloss = [\"0%\", \"5%\"]";
    for (exclude, says) in [
        (
            "[[exclude]]\nlos = \"5%\"",
            "unknown factor `los`: did you mean `loss`?",
        ),
        (
            "[[exclude]]\nlink = \"s22/wifi\"",
            "unknown factor `link`: expected one of ",
        ),
        ("[[exclude]]\nloss = \"6%\"", "no level `6%`: it has 0%, 5%"),
        ("[[exclude]]", "at least one factor"),
        (all, "nothing is left"),
    ] {
        let wrong = with(exclude, Extent::Full).unwrap_err();
        assert!(wrong.problem.contains(says), "{exclude}: {}", wrong.problem);
        assert!(wrong.at.is_some(), "{exclude}");
    }
}

#[test]
fn streams_are_for_quic_and_those_of_the_broker_for_mqtt_5() {
    let with = |work: &str, transports: &str| {
        let text = FILE
            .replace("[factors]", &format!("{work}\n[factors]"))
            .replace("[\"tls\", \"quic\"]", transports);
        Campaign::parse("x", &text, Extent::Full)
    };
    let campaign = with("deliveries = \"per-topic:63\"\nmqtt = \"5\"", "[\"quic\"]").unwrap();
    let cell = &campaign.cells[0].cell;
    assert_eq!(cell.streams, Spread::Control);
    assert_eq!(cell.deliveries.to_string(), "per-topic");
    let written = |campaign: Campaign| serde_json::to_value(&campaign.cells[0].cell).unwrap();
    assert!(written(campaign).get("deliveries").is_some());
    // As records without the key were written.
    let without = with("streams = \"auto\"", "[\"quic\"]").unwrap();
    assert!(written(without).get("deliveries").is_none());
    for (work, transports, says) in [
        (
            "deliveries = \"auto\"",
            "[\"tls\"]",
            "deliveries: only QUIC has them",
        ),
        (
            "deliveries = \"auto\"",
            "[\"quic\"]",
            "deliveries: they are for MQTT 5",
        ),
        (
            "deliveries = \"by-priority\"",
            "[\"quic\"]",
            "it cannot be `by-priority`: use one of control",
        ),
    ] {
        let wrong = with(work, transports).unwrap_err();
        assert!(wrong.problem.contains(says), "{work}: {}", wrong.problem);
    }
}

#[test]
fn a_quantity_that_nobody_measures_and_claims_of_nobody_are_refused() {
    for (from, to, says) in [
        (
            "\"latency_mean\"",
            "\"latency_maen\"",
            "did you mean `latency_mean`?",
        ),
        (
            "\"latency_mean\"",
            "\"xi_w20:dleta\"",
            "unknown metric `dleta`: did you mean `delta`?",
        ),
        (
            "\"latency_mean\"",
            "\"xi_w21:delta\"",
            "unknown prefix of a metric `xi_w21`: did you mean `xi_s21`?",
        ),
        (
            "[\"s22\"]",
            "[\"s23\"]",
            "unknown file of claims `s23`: did you mean `s22`?",
        ),
    ] {
        let wrong = Campaign::parse("x", &FILE.replace(from, to), Extent::Full).unwrap_err();
        assert!(wrong.problem.contains(says), "{}", wrong.problem);
    }
    let ratio = FILE.replace("\"latency_mean\"", "\"xi_s21:latency_mean\"");
    assert!(Campaign::parse("x", &ratio, Extent::Full).is_ok());
}

#[test]
fn mistakes_name_the_line_the_key_and_what_is_right() {
    for (from, to, at, says) in [
        (
            "link = ",
            "lnik = ",
            8,
            "unknown key `lnik`: did you mean `link`?",
        ),
        ("s22/wifi", "s22/wlan", 8, "s22/wifi"),
        (
            "\"tls\", ",
            "\"udp\", ",
            11,
            "transport: unknown variant `udp`",
        ),
        ("\"5%\"]", "\"5\"]", 10, "loss: `5` is no probability"),
        ("loss = [\"0%\", \"5%\"]", "loss = []", 10, "no levels"),
        ("link = \"s22/wifi\"", "stations = 3", 8, "only a medium"),
        (
            "link = \"s22/wifi\"",
            "link = \"s22/wifi\"\ntopics = 257",
            9,
            "topics: 257 is not within 1 and 256",
        ),
        (
            "link = \"s22/wifi\"",
            "interval = \"fast\"",
            8,
            "interval: a time is",
        ),
        (
            "link = \"s22/wifi\"",
            "link = \"s22/wifi\"\ninterval = \"50us\"",
            9,
            "the link carries",
        ),
        (
            "link = \"s22/wifi\"",
            "link = \"s22/wifi\"\nresumption = \"0-rtt\"",
            9,
            "connects once",
        ),
        (
            "link = \"s22/wifi\"",
            "link = \"s22/wifi\"\non_handover = \"reconnect\"",
            9,
            "on_handover: `reconnect` needs a `handover`",
        ),
        (
            "link = \"s22/wifi\"",
            "link = \"s22/wifi\"\nhandover = \"dl\"\ntopology = \"both\"",
            9,
            "the topology is `publisher`",
        ),
        (
            "link = \"s22/wifi\"",
            "keep_alive = \"1500ms\"",
            8,
            "whole seconds",
        ),
        ("title", "titel", 2, "titel"),
    ] {
        let text = FILE.replacen(from, to, 1);
        assert_ne!(text, FILE, "{from}");
        let wrong = Campaign::parse("x", &text, Extent::Full).unwrap_err();
        assert_eq!(
            wrong.at.map(|at| line_number(&text, at)),
            Some(at),
            "{to}: {}",
            wrong.problem
        );
        assert!(wrong.problem.contains(says), "{to}: {}", wrong.problem);
        assert_eq!(wrong.problem.lines().count(), 1, "{}", wrong.problem);
    }
    let text = FILE.replace("x = \"loss\"", "x = \"rate\"");
    let wrong = Campaign::parse("x", &text, Extent::Full).unwrap_err();
    assert!(
        wrong
            .problem
            .contains("unknown factor `rate`: expected one of loss, transport"),
        "{}",
        wrong.problem
    );
}
