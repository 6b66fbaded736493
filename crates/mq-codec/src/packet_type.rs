//! The types of packets.

use core::fmt;

macro_rules! packet_types {
    ($($name:ident = $bits:literal, $text:literal;)*) => {
        /// The type of a packet: the upper four bits of its first byte (§2.1.2).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are the specification's")]
        pub enum PacketType {
            $($name = $bits,)*
        }

        impl PacketType {
            pub(crate) fn from_bits(bits: u8) -> Option<Self> {
                match bits {
                    $($bits => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        /// The specification's name, such as `PUBLISH`.
        impl fmt::Display for PacketType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

packet_types! {
    Connect = 1, "CONNECT";
    ConnAck = 2, "CONNACK";
    Publish = 3, "PUBLISH";
    PubAck = 4, "PUBACK";
    PubRec = 5, "PUBREC";
    PubRel = 6, "PUBREL";
    PubComp = 7, "PUBCOMP";
    Subscribe = 8, "SUBSCRIBE";
    SubAck = 9, "SUBACK";
    Unsubscribe = 10, "UNSUBSCRIBE";
    UnsubAck = 11, "UNSUBACK";
    PingReq = 12, "PINGREQ";
    PingResp = 13, "PINGRESP";
    Disconnect = 14, "DISCONNECT";
    Auth = 15, "AUTH";
}

impl PacketType {
    /// Returns `true` if only servers send it (§2.1.2).
    pub(crate) fn is_from_server_only(self) -> bool {
        matches!(
            self,
            Self::ConnAck | Self::SubAck | Self::UnsubAck | Self::PingResp
        )
    }

    /// Returns the first byte of a packet that is not PUBLISH.
    pub(crate) fn first_byte(self) -> u8 {
        let flags = match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        };
        (self as u8) << 4 | flags
    }
}
