//! Properties of MQTT 5.0 (§2.2.2): one macro makes each packet's set, its reader and its writer.

use core::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;

use crate::{
    ByteStr, DecodeError, Empty, QoS, Sparse, SubscriptionId, Version,
    wire::{Reader, Sink, length_of},
};

/// Property identifiers (table 2-4).
pub(crate) mod id {
    pub(crate) const PAYLOAD_FORMAT_INDICATOR: u32 = 0x01;
    pub(crate) const MESSAGE_EXPIRY_INTERVAL: u32 = 0x02;
    pub(crate) const CONTENT_TYPE: u32 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u32 = 0x08;
    pub(crate) const CORRELATION_DATA: u32 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u32 = 0x0B;
    pub(crate) const SESSION_EXPIRY_INTERVAL: u32 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_IDENTIFIER: u32 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u32 = 0x13;
    pub(crate) const AUTHENTICATION_METHOD: u32 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u32 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u32 = 0x17;
    pub(crate) const WILL_DELAY_INTERVAL: u32 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u32 = 0x19;
    pub(crate) const RESPONSE_INFORMATION: u32 = 0x1A;
    pub(crate) const SERVER_REFERENCE: u32 = 0x1C;
    pub(crate) const REASON_STRING: u32 = 0x1F;
    pub(crate) const RECEIVE_MAXIMUM: u32 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u32 = 0x22;
    pub(crate) const TOPIC_ALIAS: u32 = 0x23;
    pub(crate) const MAXIMUM_QOS: u32 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u32 = 0x25;
    pub(crate) const USER_PROPERTY: u32 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u32 = 0x27;
    pub(crate) const WILDCARD_SUBSCRIPTION_AVAILABLE: u32 = 0x28;
    pub(crate) const SUBSCRIPTION_IDENTIFIERS_AVAILABLE: u32 = 0x29;
    pub(crate) const SHARED_SUBSCRIPTION_AVAILABLE: u32 = 0x2A;

    /// Returns `true` if table 2-4 has the identifier, for any packet.
    pub(super) fn is_known(id: u32) -> bool {
        matches!(id, 0x01..=0x03 | 0x08 | 0x09 | 0x0B | 0x11..=0x13 | 0x15..=0x1A | 0x1C | 0x1F
            | 0x21..=0x2A)
    }
}

/// A type that a property's value can have.
pub(crate) trait Value: Sized {
    fn read(reader: &mut Reader<'_>, id: u32) -> Result<Self, DecodeError>;
    fn write(&self, sink: &mut impl Sink);

    /// Returns `true` if the value can be sent. Maximum QoS 2 cannot: the property is left out instead.
    fn can_be_sent(&self) -> bool {
        true
    }
}

fn out_of_range(reader: &Reader<'_>, id: u32) -> DecodeError {
    DecodeError::PropertyValue {
        packet: reader.packet,
        id,
    }
}

impl Value for bool {
    fn read(reader: &mut Reader<'_>, id: u32) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(out_of_range(reader, id)),
        }
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.u8(u8::from(*self));
    }
}

/// Maximum QoS: 0 or 1; a server of QoS 2 leaves the property out (§3.2.2.3.4).
impl Value for QoS {
    fn read(reader: &mut Reader<'_>, id: u32) -> Result<Self, DecodeError> {
        let qos = Self::from_bits(reader.u8()?).filter(Self::can_be_sent);
        qos.ok_or_else(|| out_of_range(reader, id))
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.u8(*self as u8);
    }

    fn can_be_sent(&self) -> bool {
        *self < Self::ExactlyOnce
    }
}

impl Value for u16 {
    fn read(reader: &mut Reader<'_>, _: u32) -> Result<Self, DecodeError> {
        reader.u16()
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.u16(*self);
    }
}

impl Value for u32 {
    fn read(reader: &mut Reader<'_>, _: u32) -> Result<Self, DecodeError> {
        reader.u32()
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.u32(*self);
    }
}

/// Types that allow only some numbers of their field.
macro_rules! checked_numbers {
    ($($type:ty, $field:ident;)*) => {
        $(impl Value for $type {
            fn read(reader: &mut Reader<'_>, id: u32) -> Result<Self, DecodeError> {
                Self::new(reader.$field()?).ok_or_else(|| out_of_range(reader, id))
            }

            fn write(&self, sink: &mut impl Sink) {
                sink.$field(self.get());
            }
        })*
    };
}

checked_numbers! { NonZeroU16, u16; NonZeroU32, u32; SubscriptionId, varint; }

impl Value for ByteStr {
    fn read(reader: &mut Reader<'_>, _: u32) -> Result<Self, DecodeError> {
        reader.string()
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.string(self);
    }
}

impl Value for Bytes {
    fn read(reader: &mut Reader<'_>, _: u32) -> Result<Self, DecodeError> {
        reader.binary()
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.binary(self);
    }
}

/// User properties: a name and a value each, any number of times, in order.
impl Value for (ByteStr, ByteStr) {
    fn read(reader: &mut Reader<'_>, _: u32) -> Result<Self, DecodeError> {
        Ok((reader.string()?, reader.string()?))
    }

    fn write(&self, sink: &mut impl Sink) {
        sink.string(&self.0);
        sink.string(&self.1);
    }
}

/// A struct field that holds one property: `Option` for once, `Vec` for any number of times.
pub(crate) trait Slot {
    const EMPTY: Self;

    fn read(&mut self, reader: &mut Reader<'_>, id: u32) -> Result<(), DecodeError>;
    fn write(&self, id: u32, sink: &mut impl Sink);
}

impl<T: Value> Slot for Option<T> {
    const EMPTY: Self = None;

    fn read(&mut self, reader: &mut Reader<'_>, id: u32) -> Result<(), DecodeError> {
        if self.is_some() {
            return Err(DecodeError::DuplicateProperty {
                packet: reader.packet,
                id,
            });
        }
        *self = Some(T::read(reader, id)?);
        Ok(())
    }

    #[inline]
    fn write(&self, id: u32, sink: &mut impl Sink) {
        if let Some(value) = self.as_ref().filter(|value| value.can_be_sent()) {
            sink.varint(id);
            value.write(sink);
        }
    }
}

impl<T: Value> Slot for Vec<T> {
    const EMPTY: Self = Self::new();

    fn read(&mut self, reader: &mut Reader<'_>, id: u32) -> Result<(), DecodeError> {
        self.push(T::read(reader, id)?);
        Ok(())
    }

    #[inline]
    fn write(&self, id: u32, sink: &mut impl Sink) {
        for value in self {
            sink.varint(id);
            value.write(sink);
        }
    }
}

/// The properties of one packet.
pub(crate) trait Properties: Default {
    /// Reads the length and as many bytes of properties; before 5.0 there are none.
    fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError>;

    /// Writes the properties, without their length.
    fn write_fields(&self, sink: &mut impl Sink);

    /// Writes the length and the properties; nothing before 5.0.
    fn write(&self, version: Version, sink: &mut impl Sink) {
        if version >= Version::V5 {
            let length = length_of(|length| self.write_fields(length));
            sink.varint(clamped(length));
            self.write_fields(sink);
        }
    }

    /// Returns `true` if there is no property to send.
    fn are_none(&self) -> bool {
        length_of(|length| self.write_fields(length)) == 0
    }
}

impl<T: Properties + Empty + PartialEq> Properties for Sparse<T> {
    fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        T::read(reader, version).map(Self::from)
    }

    fn write_fields(&self, sink: &mut impl Sink) {
        (**self).write_fields(sink);
    }

    fn are_none(&self) -> bool {
        self.is_untouched() || (**self).are_none()
    }
}

/// Returns the error for a property identifier that none of the packet's fields has.
pub(crate) fn unexpected(reader: &Reader<'_>, id: u32) -> DecodeError {
    let packet = reader.packet;
    if id::is_known(id) {
        DecodeError::MisplacedProperty { packet, id }
    } else {
        DecodeError::UnknownProperty { packet, id }
    }
}

/// Defines the properties of one packet.
macro_rules! properties {
    (
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $id:ident,)*
        }
    ) => {
        $(#[$meta])*
        ///
        /// A field that is `None` or empty is not sent; its meaning is then the default that the
        /// specification gives. Versions before 5.0 have no properties: they are neither sent nor
        /// received there.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $name {
            /// Returns `true` if there is no property to send: each field is `None`, empty, or Maximum
            /// QoS 2, which is never sent.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                $crate::props::Properties::are_none(self)
            }
        }

        impl $crate::Empty for $name {
            fn empty() -> &'static Self {
                static EMPTY: $name = $name { $($field: $crate::props::Slot::EMPTY,)* };
                &EMPTY
            }
        }

        impl $crate::props::Properties for $name {
            fn read(
                reader: &mut $crate::wire::Reader<'_>,
                version: $crate::Version,
            ) -> Result<Self, $crate::DecodeError> {
                let mut properties = Self::default();
                if version < $crate::Version::V5 {
                    return Ok(properties);
                }
                let length = reader.varint()?;
                if length == 0 {
                    return Ok(properties);
                }
                let behind = reader.narrow(length as usize)?;
                while !reader.is_empty() {
                    match reader.varint()? {
                        $($crate::props::id::$id => $crate::props::Slot::read(
                            &mut properties.$field,
                            reader,
                            $crate::props::id::$id,
                        )?,)*
                        other => return Err($crate::props::unexpected(reader, other)),
                    }
                }
                reader.widen(behind);
                Ok(properties)
            }

            #[inline]
            fn write_fields(&self, sink: &mut impl $crate::wire::Sink) {
                $($crate::props::Slot::write(&self.$field, $crate::props::id::$id, sink);)*
            }
        }
    };
}
pub(crate) use properties;

/// Limits a property length to the largest that the wire can carry. A length that is too long is never written: the
/// packet around it is longer still, and is refused when its remaining length is counted.
pub(crate) fn clamped(length: usize) -> u32 {
    u32::try_from(length)
        .unwrap_or(u32::MAX)
        .min(crate::MAX_REMAINING_LENGTH)
}
