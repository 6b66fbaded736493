//! The first bytes of a client that speaks something else than MQTT, named for the log.

/// Beginnings of other protocols, and the reasons that are logged and counted.
const OTHERS: &[(&[u8], &str)] = &[
    (b"\x16\x03", "TLS at a port without TLS"),
    (
        b"PROXY ",
        "a PROXY header at a listener without proxy_protocol",
    ),
    (
        b"\r\n\r\n\0\r\nQUIT\n",
        "a PROXY header at a listener without proxy_protocol",
    ),
    (b"GET ", "HTTP at a port of MQTT"),
    (b"HEAD ", "HTTP at a port of MQTT"),
    (b"POST ", "HTTP at a port of MQTT"),
    (b"PUT ", "HTTP at a port of MQTT"),
    (b"OPTIONS ", "HTTP at a port of MQTT"),
    (b"CONNECT ", "HTTP at a port of MQTT"),
    (b"PRI * HTTP/2", "HTTP at a port of MQTT"),
    (b"SSH-", "SSH at a port of MQTT"),
];

/// Returns the protocol that a client speaks whose first bytes these are, in words for the log; `None` if none is known.
pub(super) fn other_protocol(first: &[u8]) -> Option<&'static str> {
    let mut others = OTHERS.iter();
    let other = others.find(|(begin, _)| first.starts_with(begin));
    other.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_known_by_their_first_bytes_and_connect_is_none() {
        let hello = [0x16, 0x03, 0x01, 0x02, 0x00];
        assert_eq!(other_protocol(&hello), Some("TLS at a port without TLS"));
        let request = b"GET / HTTP/1.1\r\n";
        assert_eq!(other_protocol(request), Some("HTTP at a port of MQTT"));
        assert_eq!(other_protocol(b"\x10\x0e\0\x04MQTT"), None);
        assert_eq!(other_protocol(b""), None);
    }
}
