//! The keys of clients' first packets (RFC 9001 §5.2).
//!
//! Quinn asks for them twice: to read a client's first packet, and again for the connection that it begins. They
//! follow from an identifier that the client chooses and everybody can see.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
};

use bytes::BytesMut;
use quinn::{
    ConnectionId,
    crypto::{CryptoError, HeaderKey, KeyPair, Keys, PacketKey},
};

use crate::sync::lock;

/// Bound on kept keys. Beyond it the oldest are dropped, and derived again once their connection needs them.
const MAX_WAITING: usize = 32;

/// The keys of clients that a listener has not answered yet.
#[derive(Default)]
pub(super) struct InitialKeys(Mutex<VecDeque<Made>>);

struct Made {
    version: u32,
    client_chose: ConnectionId,
    keys: Arc<Keys>,
}

impl InitialKeys {
    /// Keeps the keys for the connection, and returns them for its first packet.
    pub(super) fn keep(&self, version: u32, client_chose: ConnectionId, keys: Keys) -> Keys {
        let keys = Arc::new(keys);
        let for_packet = shared(&keys);
        let mut waiting = lock(&self.0);
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(Made {
            version,
            client_chose,
            keys,
        });
        for_packet
    }

    /// Takes out the keys for the connection, if they are still there.
    pub(super) fn take(&self, version: u32, client_chose: &ConnectionId) -> Option<Keys> {
        let mut waiting = lock(&self.0);
        let is_it = |made: &Made| made.version == version && made.client_chose == *client_chose;
        let at = waiting.iter().rposition(is_it)?;
        let made = waiting.remove(at)?;
        drop(waiting);
        Some(shared(&made.keys))
    }
}

impl fmt::Debug for InitialKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitialKeys").finish_non_exhaustive()
    }
}

fn shared(keys: &Arc<Keys>) -> Keys {
    Keys {
        header: KeyPair {
            local: Box::new(Local(keys.clone())),
            remote: Box::new(Remote(keys.clone())),
        },
        packet: KeyPair {
            local: Box::new(Local(keys.clone())),
            remote: Box::new(Remote(keys.clone())),
        },
    }
}

/// Keys of this side, which seal sent packets.
struct Local(Arc<Keys>);

/// Keys of the peer, which open received packets.
struct Remote(Arc<Keys>);

macro_rules! one_way {
    ($way:ident, $field:ident) => {
        impl HeaderKey for $way {
            fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
                self.0.header.$field.decrypt(pn_offset, packet);
            }

            fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
                self.0.header.$field.encrypt(pn_offset, packet);
            }

            fn sample_size(&self) -> usize {
                self.0.header.$field.sample_size()
            }
        }

        impl PacketKey for $way {
            fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
                self.0.packet.$field.encrypt(packet, buf, header_len);
            }

            fn decrypt(
                &self,
                packet: u64,
                header: &[u8],
                payload: &mut BytesMut,
            ) -> Result<(), CryptoError> {
                self.0.packet.$field.decrypt(packet, header, payload)
            }

            fn tag_len(&self) -> usize {
                self.0.packet.$field.tag_len()
            }

            fn confidentiality_limit(&self) -> u64 {
                self.0.packet.$field.confidentiality_limit()
            }

            fn integrity_limit(&self) -> u64 {
                self.0.packet.$field.integrity_limit()
            }
        }
    };
}
one_way!(Local, local);
one_way!(Remote, remote);

#[cfg(test)]
mod tests {
    use quinn::crypto::ServerConfig as _;

    use super::*;
    use crate::quic::test_crypto::server_crypto;

    fn chosen(number: u8) -> ConnectionId {
        ConnectionId::new(&[number; 8])
    }

    fn made() -> impl Fn(u8) -> Keys {
        let crypto = server_crypto();
        move |number| crypto.initial_keys(1, &chosen(number)).ok().unwrap()
    }

    /// Returns a packet sealed with these keys.
    fn sealed(keys: &Keys) -> Vec<u8> {
        let mut packet = vec![7; 80];
        keys.packet.local.encrypt(3, &mut packet, 20);
        keys.header.local.encrypt(18, &mut packet);
        packet
    }

    #[test]
    fn the_connection_gets_the_keys_of_its_first_packet_once() {
        let (waiting, made) = (InitialKeys::default(), made());
        let for_packet = [1, 2].map(|number| waiting.keep(1, chosen(number), made(number)));
        assert!(waiting.take(1, &chosen(3)).is_none());
        assert!(waiting.take(2, &chosen(1)).is_none(), "another version's");
        for (number, for_packet) in [1, 2].into_iter().zip(&for_packet) {
            let taken = waiting.take(1, &chosen(number)).unwrap();
            assert_eq!(sealed(&taken), sealed(&made(number)));
            assert_eq!(sealed(for_packet), sealed(&made(number)));
            assert!(waiting.take(1, &chosen(number)).is_none());
        }
    }

    #[test]
    fn clients_that_never_get_a_connection_fill_no_memory() {
        let (waiting, made) = (InitialKeys::default(), made());
        for number in 0..u8::MAX {
            waiting.keep(1, chosen(number), made(number));
        }
        assert_eq!(waiting.0.lock().unwrap().len(), MAX_WAITING);
        assert!(waiting.take(1, &chosen(0)).is_none());
        assert!(waiting.take(1, &chosen(u8::MAX - 1)).is_some());
    }
}
