//! The behaviour of links, media and captures, measured by probes.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use mq_netem::{Addresses, Host, Lab, Lateness, Link, Medium};

use super::{
    Test,
    probe::{HEADERS, Pair},
};

pub(crate) const TESTS: &[Test] = &[
    ("packets_take_the_delay", packets_take_the_delay),
    ("loss_is_as_often_as_it_says", loss_is_as_often_as_it_says),
    ("a_burst_loses_what_overflows", a_burst_loses_what_overflows),
    (
        "shipped_queues_hold_what_they_say",
        shipped_queues_hold_what_they_say,
    ),
    ("a_link_changes_by_its_course", a_link_changes_by_its_course),
    (
        "a_link_is_cut_in_one_direction_and_mended",
        a_link_is_cut_in_one_direction_and_mended,
    ),
    (
        "a_host_is_handed_over_to_another_link",
        a_host_is_handed_over_to_another_link,
    ),
    (
        "hosts_in_a_row_pass_packets_on",
        hosts_in_a_row_pass_packets_on,
    ),
    ("corruption_is_noticed", corruption_is_noticed),
    ("a_capture_has_every_packet", a_capture_has_every_packet),
    ("stations_share_a_channel", stations_share_a_channel),
    ("many_links_keep_their_time", many_links_keep_their_time),
];

/// Makes two hosts with a link of `directions`, as a profile has them.
fn pair(lab: &mut Lab, directions: &str) -> Pair {
    let link = format!("description = \"a test's\"\n{directions}");
    Pair::new(lab, &link.parse::<Link>().unwrap(), 1)
}

fn packets_take_the_delay(lab: &mut Lab) {
    let pair = pair(lab, "[up]\ndelay = \"20ms\"\nrate = \"8mbit\"");
    let took = pair.probe(200, 1000 - HEADERS, Duration::from_millis(5));
    assert_eq!(took.len(), 200);
    assert!(took.is_sorted_by_key(|(number, _)| *number), "reordered");
    let mut times: Vec<_> = took.iter().map(|(_, took)| *took).collect();
    times.sort();
    // The delay, and one millisecond for 1000 bytes.
    assert!(times[0] >= Duration::from_millis(21), "{:?}", times[0]);
    println!(
        "  a delay of 21 ms: {:?} at the median, {:?} at p99",
        times[100], times[198]
    );
    // The limit is wide, because the machine may be busy; the figures above are the finding.
    assert!(times[100] < Duration::from_millis(24), "{:?}", times[100]);
}

fn loss_is_as_often_as_it_says(lab: &mut Lab) {
    const PACKETS: u32 = 5_000;
    let before = lab.reports().len();
    let pair = pair(lab, "[up]\ndelay = \"5ms\"\nloss = \"5%\"");
    let arrived = pair.probe(PACKETS, 100, Duration::from_micros(200));
    let lost = PACKETS - u32::try_from(arrived.len()).unwrap();
    println!("  a loss of 5 %: {lost} of {PACKETS}");
    // Three and a half standard deviations, and the seed is the same each time.
    assert!((196..=304).contains(&lost), "{lost}");
    let report = lab.reports()[before];
    assert_eq!(report.up.counts.arrived, u64::from(PACKETS));
    assert_eq!(report.up.counts.lost, u64::from(lost));
}

fn a_burst_loses_what_overflows(lab: &mut Lab) {
    let link = "[up]\ndelay = \"50ms\"\nrate = \"8mbit\"\nqueue = \"10p\"";
    let pair = pair(lab, link);
    // All packets have entered the link long before the first has taken the delay.
    let arrived = pair.probe(30, 1000 - HEADERS, Duration::ZERO);
    let numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers[..10], (0..10).collect::<Vec<_>>());
    // No further packet arrives: there is no room until the first has left.
    assert_eq!(numbers.len(), 10, "{numbers:?}");
}

fn a_link_changes_by_its_course(lab: &mut Lab) {
    let pair = pair(
        lab,
        "repeat_after = \"600ms\"\n[up]\ndelay = \"5ms\"\n\
         [[change]]\nafter = \"200ms\"\nup.loss = \"100%\"\n\
         [[change]]\nafter = \"300ms\"\nup.delay = \"30ms\"",
    );
    let took = pair.probe(150, 100, Duration::from_millis(5));
    let slow = took
        .iter()
        .filter(|(_, took)| *took >= Duration::from_millis(30));
    let (slow, lost) = (slow.count(), 150 - took.len());
    println!(
        "  of 150 packets over 750 ms, {lost} fell into an outage and {slow} took the long way"
    );
    // One outage of 100 ms and one long way of 300 ms in each 600 ms, wherever the first packet came.
    assert!((15..=45).contains(&lost), "{lost}");
    assert!((50..=100).contains(&slow), "{slow}");
}

fn a_link_is_cut_in_one_direction_and_mended(lab: &mut Lab) {
    let link = |directions: &str| {
        let text = format!("description = \"\"\n{directions}");
        text.parse::<Link>().unwrap()
    };
    let pair = Pair::new(lab, &link(""), 1);
    let back = |count| {
        for _ in 0..count {
            pair.far.send(b"!").unwrap();
        }
        let mut came = 0;
        while pair.near.recv(&mut [0; 8]).is_ok() {
            came += 1;
        }
        came
    };
    let patience = Some(Duration::from_millis(300));
    pair.near.set_read_timeout(patience).unwrap();
    let there = || pair.probe(10, 100, Duration::from_millis(1)).len();
    assert_eq!((there(), back(10)), (10, 10));
    let cut = link("[up]\nloss = \"100%\"");
    lab.change(pair.addresses, &cut).unwrap();
    assert_eq!((there(), back(10)), (0, 10));
    lab.change(pair.addresses, &link("[up]\ndelay = \"20ms\""))
        .unwrap();
    let took = pair.probe(10, 100, Duration::from_millis(1));
    assert_eq!(took.len(), 10);
    assert!(took[0].1 >= Duration::from_millis(20), "{:?}", took[0].1);
    let near = pair.addresses.far;
    let none = Addresses {
        near,
        ..pair.addresses
    };
    assert!(lab.change(none, &cut).is_err());
}

fn a_host_is_handed_over_to_another_link(lab: &mut Lab) {
    let link = |ms: u32| {
        let text = format!("description = \"\"\n[up]\ndelay = \"{ms}ms\"");
        text.parse::<Link>().unwrap()
    };
    let (phone, server) = (Host::new().unwrap(), Host::new().unwrap());
    let wifi = lab.connect(&phone, &server, &link(5), 1).unwrap();
    let cellular = lab.connect(&phone, &server, &link(20), 2).unwrap();
    let bind = |host: &Host| host.run(|| UdpSocket::bind("0.0.0.0:5000")).unwrap();
    let (near, far) = (bind(&phone), bind(&server));
    for socket in [&near, &far] {
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
    }
    let ask = || {
        let began = Instant::now();
        near.send_to(b"?", (wifi.far, 5000)).unwrap();
        let (_, from) = far.recv_from(&mut [0; 8]).unwrap();
        far.send_to(b"!", from).unwrap();
        near.recv_from(&mut [0; 8]).unwrap();
        (from.ip(), began.elapsed())
    };
    assert_eq!(ask().0, wifi.near);
    Lab::hand_over(&phone, wifi, cellular).unwrap();
    let (from, took) = ask();
    assert_eq!(from, cellular.near);
    assert!(took >= Duration::from_millis(20), "{took:?}");
    // There is no way back: the address is gone.
    let error = Lab::hand_over(&phone, wifi, cellular).unwrap_err();
    assert!(error.to_string().contains("no address"), "{error}");
}

fn hosts_in_a_row_pass_packets_on(lab: &mut Lab) {
    const SIZE: usize = 100;
    let link = |ms: u32| {
        let text = format!("description = \"\"\n[up]\ndelay = \"{ms}ms\"\n[down]\ndelay = \"1ms\"");
        text.parse::<Link>().unwrap()
    };
    let hosts = [(); 4].map(|()| Host::new().unwrap());
    let before = lab.reports().len();
    let legs: Vec<_> = (hosts.windows(2).zip([5, 10, 20]))
        .map(|(ends, ms)| lab.connect(&ends[0], &ends[1], &link(ms), 1).unwrap())
        .collect();
    let row: Vec<_> = hosts.iter().collect();
    Lab::pass_on(&row, &legs).unwrap();
    let (first, last) = (legs[0].near, legs[2].far);
    let bind = |host: &Host| {
        let socket = host.run(|| UdpSocket::bind("0.0.0.0:5000")).unwrap();
        let patience = Some(Duration::from_secs(5));
        socket.set_read_timeout(patience).unwrap();
        socket
    };
    let (near, far) = (bind(&hosts[0]), bind(&hosts[3]));
    let began = Instant::now();
    near.send_to(&[1; SIZE], (last, 5000)).unwrap();
    let (bytes, from) = far.recv_from(&mut [0; 2 * SIZE]).unwrap();
    assert_eq!((bytes, from.ip()), (SIZE, first.into()));
    far.send_to(&[2; 2 * SIZE], from).unwrap();
    let (bytes, from) = near.recv_from(&mut [0; 2 * SIZE]).unwrap();
    assert_eq!((bytes, from.ip()), (2 * SIZE, last.into()));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(5 + 10 + 20 + 3), "{took:?}");
    // The emulator publishes its counts a moment after the packet has left.
    let deadline = Instant::now() + Duration::from_secs(5);
    let counted = || {
        let reports = lab.reports();
        let legs = reports[before..].iter();
        legs.map(|leg| (leg.up.counts.bytes, leg.down.counts.bytes))
            .collect::<Vec<_>>()
    };
    let there = (HEADERS + SIZE) as u64;
    let expected = [(there, there + SIZE as u64); 3];
    while counted() != expected {
        assert!(Instant::now() < deadline, "{:?}", counted());
        std::thread::yield_now();
    }
}

fn a_capture_has_every_packet(lab: &mut Lab) {
    let folder = tempfile::tempdir().unwrap();
    let pair = pair(lab, "[up]\ndelay = \"5ms\"\nloss = \"50%\"");
    let files = ["near", "far"].map(|end| folder.path().join(format!("{end}.pcap")));
    let captures = [0, 1].map(|end| pair.hosts[end].capture(&files[end]).unwrap());
    let arrived = pair.probe(100, 200, Duration::from_millis(1)).len();
    let reports = captures.map(|capture| capture.finish().unwrap());
    let packets = |end: usize| usize::try_from(reports[end].packets).unwrap();
    assert_eq!((packets(0), packets(1)), (100, arrived));
    assert!(reports.iter().all(|report| report.dropped == 0));
    let [near, far] = files.map(|file| std::fs::read(file).unwrap());
    let sent = packets_of(&near);
    for (number, (_, packet)) in (0_u32..).zip(&sent) {
        assert_eq!(packet.len(), HEADERS + 200);
        assert_eq!(packet[HEADERS..][..4], number.to_be_bytes());
        // The sum over pseudo header (addresses, protocol, length) and datagram.
        let mut covered = packet[26..].to_vec();
        covered.extend([0, 17, 0, 208]);
        assert_eq!(internet_sum(&covered), 0xFFFF, "packet {number}");
    }
    // Each packet that arrived is unchanged, and at least the delay later.
    for (at, packet) in packets_of(&far) {
        let (sent_at, _) = sent.iter().find(|(_, sent)| *sent == packet).unwrap();
        let took = at - *sent_at;
        assert!((0.005..0.1).contains(&took), "{took}");
    }
}

/// Reads the times in seconds, and the frames, of a pcap file.
fn packets_of(file: &[u8]) -> Vec<(f64, &[u8])> {
    let field = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((field(0), field(20)), (0xA1B2_3C4D, 1));
    let mut packets = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let time = f64::from(field(at)) + f64::from(field(at + 4)) / 1e9;
        let length = usize::try_from(field(at + 8)).unwrap();
        packets.push((time, &file[at + 16..][..length]));
        at += 16 + length;
    }
    packets
}

/// Computes the sum of RFC 1071, which a right checksum makes all ones.
fn internet_sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let sum: u32 = words.sum();
    (sum & 0xFFFF) + (sum >> 16)
}

/// Prints the lateness of 64 links at once, each with 50 packets a second.
fn many_links_keep_their_time(lab: &mut Lab) {
    const LINKS: u32 = 64;
    const PACKETS: u32 = 100 * LINKS;
    let interval = Duration::from_millis(20) / LINKS;
    let before = lab.reports().len();
    let pairs: Vec<_> = (0..LINKS)
        .map(|_| pair(lab, "[up]\ndelay = \"25ms\"\nrate = \"20mbit\""))
        .collect();
    let cpu = lab.cpu_time().as_secs_f64();
    let began = Instant::now();
    for number in 0..PACKETS {
        let due = interval * number;
        if let Some(early) = due.checked_sub(began.elapsed()) {
            std::thread::sleep(early);
        }
        let pair = &pairs[usize::try_from(number % LINKS).unwrap()];
        pair.near.send(&[0; 100]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    let cpu = (lab.cpu_time().as_secs_f64() - cpu) / began.elapsed().as_secs_f64();
    let reports = &lab.reports()[before..];
    let packets: u64 = reports.iter().map(|link| link.up.counts.arrived).sum();
    assert_eq!(packets, u64::from(PACKETS));
    let worst = |quantile: fn(Lateness) -> Duration| {
        let all = reports.iter().filter_map(|link| link.up.timing.lateness);
        let mut all: Vec<_> = all.map(quantile).collect();
        all.sort();
        (all[all.len() / 2], all[all.len() - 1])
    };
    println!(
        "  64 links: p50 {:?} (median link, worst link), p99 {:?}, {:.0} % of a core",
        worst(|late| late.p50),
        worst(|late| late.p99),
        cpu * 100.0
    );
}

/// Checks a channel with three stations, an access point, and one in five frames damaged.
fn stations_share_a_channel(lab: &mut Lab) {
    const PACKETS: u32 = 2000;
    let medium = Medium::load("s21/medium@frame_error_rate=20%,retries=1").unwrap();
    let hosts: [Host; 4] = std::array::from_fn(|_| Host::new().unwrap());
    let [a, b, c, access_point] = &hosts;
    let addresses = lab.share(&[a, b, c], access_point, &medium, 5).unwrap();
    // Before the emulator has reported anything.
    assert_eq!(lab.medium_reports().pop().unwrap().stations.len(), 4);
    let bind = |host: &Host, address| host.run(|| UdpSocket::bind((address, 5000))).unwrap();
    let stations = [a, b, c].into_iter().zip(&addresses);
    let stations: Vec<_> = stations.map(|(host, ends)| bind(host, ends.near)).collect();
    let sink = bind(access_point, addresses[0].far);
    sink.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let receiving = std::thread::spawn(move || {
        let mut counts = [0_u32; 3];
        let mut packet = [0; 100];
        while sink.recv(&mut packet).is_ok() {
            counts[usize::from(packet[0])] += 1;
        }
        counts
    });
    for _ in 0..PACKETS {
        for (number, station) in (0..).zip(&stations) {
            station
                .send_to(&[number; 100], (addresses[0].far, 5000))
                .unwrap();
        }
        std::thread::sleep(Duration::from_micros(900));
    }
    let arrived = receiving.join().unwrap();
    let report = lab.medium_reports().pop().unwrap();
    println!(
        "  a shared channel: {arrived:?} of {PACKETS} each; {:?}",
        report.timing.lateness
    );
    for (station, arrived) in report.stations.iter().zip(arrived) {
        assert_eq!(station.arrived, u64::from(PACKETS));
        assert_eq!(station.delivered, u64::from(arrived));
        assert_eq!(station.delivered + station.lost, u64::from(PACKETS));
        // Both attempts of one frame in twenty-five fail, and those of some that collide.
        assert!((50..150).contains(&station.lost), "{station:?}");
        assert!(station.collisions > 0, "{station:?}");
    }
}

fn shipped_queues_hold_what_they_say(lab: &mut Lab) {
    // A packet of 1000 bytes takes 5.3 ms on this link: the whole burst has entered it before the first is sent.
    for (name, fits) in [
        // One packet is sent, and 112 wait: they fill the queue of 112,500 bytes.
        ("w20/satellite", 113),
        ("s22/satellite", 1000),
    ] {
        let burst = fits + 20;
        let expected: Vec<_> = (0..fits).collect();
        for attempt in 1..=5 {
            let before = lab.reports().len();
            let pair = Pair::new(lab, &Link::load(name).unwrap(), 1);
            let arrived = pair.probe(burst, 1000 - HEADERS, Duration::ZERO);
            let numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
            let missed = lab.reports()[before].up.timing.missed;
            if missed > 0 {
                // An ordinary user's emulator has a small receive buffer.
                println!("  SKIPPED: the emulator missed {missed} of {burst} packets to {name}");
                break;
            }
            // If the machine stops for longer than a packet takes, a later packet finds room.
            let is_held_up = numbers.len() > expected.len() && attempt < 5;
            if is_held_up && numbers.starts_with(&expected) {
                println!("  {name}: the burst was held up; again");
                continue;
            }
            assert_eq!(numbers, expected, "{name}");
            break;
        }
    }
}

fn corruption_is_noticed(lab: &mut Lab) {
    let before = lab.reports().len();
    let pair = pair(lab, "[up]\ncorrupt = \"50%\"");
    let arrived = pair.probe(400, 1000, Duration::from_micros(500));
    let corrupted = lab.reports()[before].up.counts.corrupted;
    println!("  corrupted {corrupted} of 400, {} arrived", arrived.len());
    assert!(corrupted > 100);
    // No checksum covers a few of the bytes; a wrong bit there may pass.
    let whole = 400 - usize::try_from(corrupted).unwrap();
    assert!(arrived.len() < whole + 20, "{}", arrived.len());
}
