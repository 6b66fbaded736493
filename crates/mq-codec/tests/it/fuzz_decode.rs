//! Runs the body of the fuzz target `decode` over packets that are nearly valid and over its corpus.

use bytes::{BufMut, BytesMut};
use mq_codec::{Packet, Version};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{corpus, decode, runner::check, strategies};

/// Each packet is mutated in so many ways; packets are dearer to make than mutations.
const MUTANTS: usize = 10;
const PACKETS: u32 = 15_000;

/// Change of one bit or byte, or a cut. Its index is scaled to the length of the bytes that it changes.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u32),
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Flags, reason codes, QoS and lengths are small.
    let byte = || prop_oneof![0..4_u8, any::<u8>()];
    prop_oneof![
        (any::<Index>(), 0..8_u32).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        any::<Index>().prop_map(Mutation::Truncate),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        match self {
            Self::Insert(at, byte) => bytes.insert(at.index(length + 1), *byte),
            _ if length == 0 => {}
            Self::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Self::Set(at, byte) => bytes[at.index(length)] = *byte,
            Self::Remove(at) => drop(bytes.remove(at.index(length))),
            Self::Truncate(at) => bytes.truncate(at.index(length)),
        }
    }
}

/// Changes of the body, behind a fixed header that announces what is left of it: otherwise most
/// mutants would end there. Now and then the whole packet is changed as well.
#[derive(Clone, Debug)]
struct Mutant {
    body: Vec<Mutation>,
    packet: Option<Mutation>,
    chunk: usize,
    known_version: bool,
}

fn mutant() -> impl Strategy<Value = Mutant> {
    let packet = prop::option::weighted(0.3, mutation());
    (vec(mutation(), 0..4), packet, 1..9_usize, any::<bool>()).prop_map(
        |(body, packet, chunk, known_version)| Mutant {
            body,
            packet,
            chunk,
            known_version,
        },
    )
}

impl Mutant {
    fn of(&self, packet: &[u8]) -> Vec<u8> {
        let more = packet[1..].iter().take_while(|byte| **byte > 0x7F).count();
        let mut body = packet[2 + more..].to_vec();
        for mutation in &self.body {
            mutation.apply(&mut body);
        }
        let mut wire = vec![packet[0]];
        let mut remaining = body.len();
        while remaining > 0x7F {
            wire.put_u8(0x80 | remaining.to_le_bytes()[0]);
            remaining >>= 7;
        }
        wire.put_u8(remaining.to_le_bytes()[0]);
        wire.extend(body);
        if let Some(mutation) = &self.packet {
            mutation.apply(&mut wire);
        }
        wire
    }
}

fn check_mutants(version: Version, packet: &Packet, mutants: &[Mutant]) {
    let mut wire = BytesMut::new();
    packet.encode(version, &mut wire).expect("a valid packet");
    for mutant in mutants {
        let known = mutant.known_version.then_some(version);
        decode::in_chunks(known, 1 << 16, &mutant.of(&wire), mutant.chunk);
    }
}

#[test]
fn mutations_of_valid_packets_never_panic_and_what_is_decoded_survives_the_wire() {
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let strategy = (strategies::packet(version), vec(mutant(), MUTANTS));
        check(PACKETS / 3, &strategy, |(packet, mutants)| {
            check_mutants(version, &packet, &mutants);
        });
    }
}

#[test]
fn the_corpus_passes() {
    for (number, input) in (1..).zip(corpus::inputs("decode")) {
        println!("line {number}");
        decode::run(&input);
    }
}
