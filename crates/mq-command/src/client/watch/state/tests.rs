use mq_client::QoS;

use super::*;

const NOW: Duration = Duration::from_secs(3);

fn state() -> State {
    State::new(100, Link::Down { why: String::new() })
}

fn with(topics: &[&str]) -> State {
    let mut state = state();
    for topic in topics {
        add(&mut state, topic, false);
    }
    state
}

fn add(state: &mut State, topic: &str, retain: bool) {
    let message = Message {
        topic,
        payload: b"x",
        qos: QoS::AtMostOnce,
        retain,
    };
    state.add(message, NOW);
}

/// Returns each row as its indented name, and the chosen one with a `>`.
fn shown(state: &mut State) -> Vec<String> {
    let rows = state.rows(NOW);
    let chosen = state.chosen(&rows);
    let line = |(index, row): (usize, &Row)| {
        let mark = if index == chosen { ">" } else { "" };
        format!("{mark}{}{}", " ".repeat(row.depth), row.name())
    };
    rows.iter().enumerate().map(line).collect()
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        assert!(state.press(Key::Char(key), NOW), "{key} ends it");
    }
}

#[test]
fn levels_in_common_are_one_row_with_the_sums() {
    let mut state = with(&["a/b", "a/c", "a", "d", "a/b", "/e"]);
    assert_eq!(shown(&mut state), [">", " e", "a", " b", " c", "d"]);
    let rows = state.rows(NOW);
    let a = &rows[2];
    assert_eq!((a.below, a.messages, a.topic.is_some()), (2, 4, true));
    assert!((a.rate - 4.0 / 3.0).abs() < 1e-9, "{}", a.rate);
    assert_eq!((rows[3].messages, rows[0].topic), (2, None));
}

#[test]
fn keys_move_and_fold() {
    let mut state = with(&["a/b/c", "a/d", "e"]);
    assert_eq!(shown(&mut state), [">a", " b", "  c", " d", "e"]);
    press(&mut state, "jj");
    assert_eq!(shown(&mut state)[2], ">  c");
    // To the level above, and fold that.
    press(&mut state, "hh");
    assert_eq!(shown(&mut state), ["a", "> b", " d", "e"]);
    let rows = state.rows(NOW);
    assert!(rows[1].folded && rows[1].below == 1);
    press(&mut state, "l");
    assert_eq!(shown(&mut state).len(), 5);
    press(&mut state, "G");
    assert_eq!(shown(&mut state)[4], ">e");
    press(&mut state, "jjj");
    assert_eq!(shown(&mut state)[4], ">e");
    press(&mut state, "g ");
    assert_eq!(shown(&mut state), [">a", "e"]);
    // A topic that comes below a folded level shows in its sums alone.
    add(&mut state, "a/new", false);
    assert_eq!(shown(&mut state), [">a", "e"]);
    assert_eq!(state.rows(NOW)[0].below, 3);
    assert!(state.press(Key::Enter, NOW));
    assert_eq!(shown(&mut state).len(), 6);
}

#[test]
fn the_chosen_topic_stays_chosen_when_others_come_before_it() {
    let mut state = with(&["m", "n"]);
    press(&mut state, "j");
    add(&mut state, "a", false);
    assert_eq!(shown(&mut state), ["a", "m", ">n"]);
}

#[test]
fn a_filter_is_typed_kept_and_taken_back() {
    let mut state = with(&["plant/1/Temp", "plant/2/hum", "q"]);
    press(&mut state, "/temq");
    assert!(state.typing);
    state.press(Key::Backspace, NOW);
    state.press(Key::Enter, NOW);
    assert_eq!(shown(&mut state), [">plant", " 1", "  Temp"]);
    press(&mut state, "/p");
    state.press(Key::Escape, NOW);
    assert!(!state.typing);
    assert_eq!(shown(&mut state).len(), 6);
}

#[test]
fn retained_only_shows_those_that_the_broker_keeps() {
    let mut state = with(&["a/live"]);
    add(&mut state, "a/kept", true);
    press(&mut state, "r");
    assert_eq!(shown(&mut state), [">a", " kept"]);
    press(&mut state, "r");
    assert_eq!(shown(&mut state).len(), 3);
}

#[test]
fn a_paused_view_stands_still_and_misses_nothing() {
    let mut state = with(&["a"]);
    press(&mut state, "p");
    add(&mut state, "a", false);
    add(&mut state, "b", false);
    assert_eq!(state.paused(), Some(2));
    assert_eq!(shown(&mut state), [">a"]);
    let later = NOW + Duration::from_mins(1);
    assert!(state.rows(later)[0].rate > 0.0, "its rates stand still too");
    press(&mut state, "p");
    assert_eq!((state.paused(), shown(&mut state).len()), (None, 2));
    assert_eq!(state.rows(NOW)[0].messages, 2);
}

#[test]
fn q_and_ctrl_c_end_it_but_q_is_a_letter_of_a_filter() {
    let mut state = with(&["a"]);
    press(&mut state, "/q");
    assert_eq!(state.filter, "q");
    assert!(!state.press(Key::Interrupt, NOW));
    state.press(Key::Escape, NOW);
    assert!(!state.press(Key::Char('q'), NOW));
    press(&mut state, "?j");
    assert!(!state.help);
}

#[test]
fn no_topics_are_no_rows_and_keys_do_nothing() {
    let mut state = state();
    for key in [
        Key::Up,
        Key::Down,
        Key::PageDown,
        Key::End,
        Key::Enter,
        Key::Left,
        Key::Right,
    ] {
        assert!(state.press(key, NOW));
    }
    assert!(state.rows(NOW).is_empty());
}

#[test]
fn a_topic_of_very_many_levels_has_few_rows() {
    let deep = "x/".repeat(30_000);
    let mut state = with(&[&deep, "x/x"]);
    let rows = state.rows(NOW);
    assert_eq!(rows.len(), DEEPEST);
    assert_eq!(rows.iter().filter(|row| row.topic.is_some()).count(), 2);
}

/// A reference that is written in the plainest way: all prefixes of all topics.
#[test]
fn rows_are_the_prefixes_of_the_topics_whatever_they_are() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..200 {
        let mut state = state();
        let mut expected = HashSet::new();
        let mut names = HashSet::new();
        for _ in 0..random.usize(..20) {
            let levels = random.usize(1..5);
            let level = |_| ["", "a", "b", "a b", "-"][random.usize(..5)];
            let levels: Vec<_> = (0..levels).map(level).collect();
            add(&mut state, &levels.join("/"), false);
            names.insert(levels.join("/"));
            for end in 1..=levels.len() {
                expected.insert((end - 1, levels[..end].join("/")));
            }
        }
        let rows = state.rows(NOW);
        let found: HashSet<_> = rows
            .iter()
            .map(|row| (row.depth, row.path.clone()))
            .collect();
        assert_eq!((rows.len(), &found), (expected.len(), &expected));
        for row in &rows {
            assert_eq!(
                row.topic.is_some(),
                names.contains(&row.path),
                "{}",
                row.path
            );
            let below = format!("{}/", row.path);
            let below = names.iter().filter(|name| name.starts_with(&below)).count();
            assert_eq!(row.below, below, "{}", row.path);
        }
    }
}
