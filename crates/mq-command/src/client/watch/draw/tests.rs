use mq_client::QoS;
use ratatui::{Terminal, backend::TestBackend};

use super::{
    super::{state::Key, topics::Message},
    *,
};

const NOW: Duration = Duration::from_secs(10);

/// The sizes: a usual terminal, a small one, a large one, and none to speak of.
const SIZES: [(u16, u16); 5] = [(80, 24), (40, 10), (200, 60), (9, 3), (1, 1)];

fn state() -> State {
    let how = "quic://127.0.0.1:14567, resumed with 0-RTT".to_owned();
    let rtt = Some(Duration::from_micros(12_140));
    State::new(1_000, Link::Up { how, rtt })
}

fn add(state: &mut State, topic: &str, payload: &[u8], qos: QoS, retain: bool) {
    let message = Message {
        topic,
        payload,
        qos,
        retain,
    };
    state.add(message, NOW);
}

fn plant() -> State {
    let mut state = state();
    let reading = br#"{"celsius":21.5,"unit":"C"}"#;
    for _ in 0..30 {
        add(
            &mut state,
            "plant/7/temperature",
            reading,
            QoS::AtLeastOnce,
            false,
        );
    }
    add(
        &mut state,
        "plant/7/status",
        b"online",
        QoS::AtMostOnce,
        true,
    );
    add(
        &mut state,
        "raw",
        b"\xff\x00\x1b[2J",
        QoS::ExactlyOnce,
        false,
    );
    state
}

/// Draws the state, and returns the lines of the screen, without the spaces behind them.
fn screen(state: &mut State, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, NOW)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn a_usual_terminal_shows_tree_value_and_keys() {
    let mut state = plant();
    let tree = [
        "connected  quic://127.0.0.1:14567, resumed with 0-RTT, RTT 12.1 ms",
        "3 topics  32 messages  3.6/s",
        "▾ plant                                 3.4/s      31",
        "  ▾ 7                                   3.4/s      31",
        "      status                            0.1/s       1 0 R online",
        "      temperature                       3.3/s      30 1   {\"celsius\":21.5,\"unit\"",
        "  raw                                   0.1/s       1 2   hex ff 00 1b 5b 32 4a",
    ];
    let shown = screen(&mut state, (80, 24));
    assert_eq!(shown[..7], tree, "{shown:#?}");
    assert_eq!(shown[16].trim_end_matches('─'), "─ plant  2 topics ");
    assert!(shown[23].starts_with("q quit  ? keys"), "{shown:#?}");
    state.press(Key::End, NOW);
    state.press(Key::Up, NOW);
    let shown = screen(&mut state, (80, 24));
    let value = [
        "─ plant/7/temperature 27 bytes, JSON, QoS 1, 0 s ago ",
        "{",
        "  \"celsius\": 21.5,",
        "  \"unit\": \"C\"",
        "}",
    ];
    let lower: Vec<_> = shown[16..21]
        .iter()
        .map(|line| line.trim_end_matches('─'))
        .collect();
    assert_eq!(lower, value);
    state.press(Key::Char('J'), NOW);
    let shown = screen(&mut state, (80, 24));
    assert_eq!(shown[17], r#"{"celsius":21.5,"unit":"C"}"#);
    state.press(Key::End, NOW);
    let shown = screen(&mut state, (80, 24));
    assert!(
        shown[16].contains("6 bytes, not UTF-8, QoS 2"),
        "{shown:#?}"
    );
    assert!(
        shown[17].starts_with("0000 ff 00 1b 5b 32 4a"),
        "{shown:#?}"
    );
}

#[test]
fn a_small_terminal_shows_names_and_rates() {
    let mut state = plant();
    state.press(Key::Char('G'), NOW);
    let shown = screen(&mut state, (40, 10));
    let upper = [
        "connected  quic://127.0.0.1:14567, resum",
        "3 topics  32 messages  3.6/s",
        "▾ plant                        3.4/s",
        "  ▾ 7                          3.4/s",
        "      status                   0.1/s 0 R",
        "      temperature              3.3/s 1",
        "  raw                          0.1/s 2",
    ];
    assert_eq!(shown[..7], upper, "{shown:#?}");
    assert!(shown[7].starts_with("─ raw"), "{shown:#?}");
    assert!(shown[8].starts_with("0000 ff 00"), "{shown:#?}");
}

#[test]
fn a_wide_terminal_has_the_value_beside_the_tree() {
    let mut state = plant();
    for _ in 0..3 {
        state.press(Key::Down, NOW);
    }
    let shown = screen(&mut state, (200, 60));
    assert!(shown[2].starts_with("▾ plant") && shown[2].contains("─ plant/7/temperature 27 bytes"));
    let value: Vec<_> = shown[3..7]
        .iter()
        .map(|line| {
            let beside: String = line.chars().skip(121).collect();
            beside
        })
        .collect();
    assert_eq!(
        value,
        ["{", "  \"celsius\": 21.5,", "  \"unit\": \"C\"", "}"]
    );
}

#[test]
fn states_are_named() {
    let mut state = plant();
    let why = "the broker said \u{1b}[31m no; again in 2 s".to_owned();
    state.link = Link::Down { why };
    state.press(Key::Char('p'), NOW);
    add(&mut state, "later", b"", QoS::AtMostOnce, false);
    state.press(Key::Char('r'), NOW);
    let shown = screen(&mut state, (80, 24));
    assert_eq!(
        shown[0],
        "not connected  the broker said ␛[31m no; again in 2 s"
    );
    assert_eq!(
        shown[1],
        "PAUSED, 1 since  retained only  3 topics  32 messages  3.6/s"
    );
    for key in ['/', 'x'] {
        state.press(Key::Char(key), NOW);
    }
    assert_eq!(screen(&mut state, (80, 24))[23], "/x▏");
    state.press(Key::Enter, NOW);
    assert!(screen(&mut state, (80, 24))[1].contains("/x"));
    state.press(Key::Char('?'), NOW);
    for size in SIZES {
        screen(&mut state, size);
    }
    assert!(screen(&mut state, (80, 24))[2].starts_with("arrows, h j k l"));
}

#[test]
fn left_out_messages_are_said() {
    let mut state = State::new(1, Link::Down { why: String::new() });
    for topic in ["a", "b", "c"] {
        add(&mut state, topic, b"", QoS::AtMostOnce, false);
    }
    let shown = screen(&mut state, (80, 24));
    let expected = "1 topic (full: 2 messages of others left out)  3 messages  0.3/s";
    assert_eq!(shown[1], expected);
}

#[test]
fn the_chosen_row_is_on_the_screen() {
    let mut state = state();
    for number in 0..500 {
        add(
            &mut state,
            &format!("t/{number:03}"),
            b"",
            QoS::AtMostOnce,
            false,
        );
    }
    for size in [(80, 24), (40, 10), (200, 60)] {
        for (key, there) in [
            (Key::End, "499"),
            (Key::PageUp, "4"),
            (Key::Home, "▾ t"),
            (Key::PageDown, "0"),
        ] {
            screen(&mut state, size);
            state.press(key, NOW);
            let rows = state.rows(NOW);
            let chosen = rows[state.chosen(&rows)].name().to_owned();
            let shown = screen(&mut state, size);
            assert!(
                shown.iter().any(|line| line.contains(there)),
                "{key:?}: {shown:#?}"
            );
            let tree = &shown[2..];
            assert!(
                tree.iter().any(|line| line.contains(&chosen)),
                "{key:?}: {shown:#?}"
            );
        }
    }
}

/// Whatever comes, at whatever size: only characters that a terminal draws, each in its cell.
#[test]
fn nothing_hostile_reaches_a_cell() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let evil = [
        "\u{1b}[2J",
        "\u{9b}1;1H",
        "\r",
        "\n",
        "\t",
        "\u{7}",
        "\u{202e}",
        "温度",
        "e\u{301}",
        "👨\u{200d}👩",
        "\u{1b}]0;x\u{7}",
        "{\"a\":\"\\u001b[2J\"}",
        "a",
        "/",
        "\u{85}",
        "\u{2028}",
    ];
    let mut some = |most: usize| -> String {
        (0..random.usize(1..most))
            .map(|_| evil[random.usize(..evil.len())])
            .collect()
    };
    let mut state = state();
    for _ in 0..200 {
        let (topic, payload) = (some(12), some(40));
        add(
            &mut state,
            &topic,
            payload.as_bytes(),
            QoS::AtMostOnce,
            true,
        );
    }
    state.link = Link::Down { why: some(9) };
    for size in SIZES {
        let rows = state.rows(NOW).len();
        for _ in 0..rows {
            let shown = screen(&mut state, size);
            for line in shown {
                let is_bad =
                    |one: char| one.is_control() || ('\u{200b}'..='\u{202e}').contains(&one);
                assert!(!line.contains(is_bad), "{line:?}");
            }
            state.press(Key::Down, NOW);
        }
        state.press(Key::Home, NOW);
    }
}
