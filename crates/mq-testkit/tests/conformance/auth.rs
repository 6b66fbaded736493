//! AUTH (§3.15) and enhanced authentication (§4.12), of which the broker has no method yet.

use crate::{
    case::cases,
    lab::Lab,
    packet::{auth, packet, property, reason_packet},
};

cases! {
    an_authentication_method_that_is_unknown_is_refused: ONLY_5, [],
        ["4.12.0-1", "3.1.4-2", "4.13.2-1"];
    auth_without_a_method_in_connect_is_refused: ONLY_5, [], ["4.12.0-7"];
    the_server_sends_no_auth_that_was_not_asked_for: ONLY_5, [], ["4.12.0-6"];
    auth_with_reserved_flags_is_refused: ONLY_5, [], ["3.15.1-1"];
    malformed_auth_is_refused: ONLY_5, [], ["4.13.1-1"];
}

fn method() -> Vec<u8> {
    property::string(property::AUTHENTICATION_METHOD, "no such method")
}

async fn an_authentication_method_that_is_unknown_is_refused(lab: Lab) {
    let data = property::string(property::AUTHENTICATION_DATA, "data");
    for properties in [method(), [method(), data].concat()] {
        let hello = lab.hello("bad").property(properties);
        lab.not_let_in(hello.bytes(), &[0x8C, 0x87]).await;
    }
}

async fn auth_without_a_method_in_connect_is_refused(lab: Lab) {
    for bytes in [
        packet(0xF0, []),
        packet(0xF0, [0]),
        auth(0x00, &method()),
        auth(0x18, &method()),
        auth(0x19, &method()),
    ] {
        lab.refuses(bytes, &[0x82]).await;
    }
}

async fn the_server_sends_no_auth_that_was_not_asked_for(lab: Lab) {
    let (mut wire, ack) = lab.connected(&lab.hello("c")).await;
    for id in [
        property::AUTHENTICATION_METHOD,
        property::AUTHENTICATION_DATA,
    ] {
        assert_eq!(ack.properties.get(id), None);
    }
    // Anything else than PINGRESP would be noticed.
    wire.alive().await;
}

async fn auth_with_reserved_flags_is_refused(lab: Lab) {
    for flags in 1..16 {
        lab.refuses(reason_packet(0xF0 | flags, 0x18, &method()), &[0x81])
            .await;
    }
}

async fn malformed_auth_is_refused(lab: Lab) {
    for bytes in [
        // A reason code that it does not have; no method; properties cut short, twice, misplaced.
        auth(0x01, &method()),
        auth(0x80, &method()),
        auth(0x18, &[]),
        packet(0xF0, [0x18]),
        packet(0xF0, [0x18, 5, 0x15]),
        auth(0x18, &method().repeat(2)),
        auth(
            0x18,
            &[method(), property::four(property::SESSION_EXPIRY, 1)].concat(),
        ),
        packet(0xF0, [0, 0, 0]),
    ] {
        lab.refuses(bytes, &[0x81, 0x82]).await;
    }
}
