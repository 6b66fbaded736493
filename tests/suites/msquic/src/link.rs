//! A QUIC connection of MsQuic with one bidirectional stream. MsQuic's callbacks, which come on its own threads, become
//! events of a channel.

use std::{
    ffi::c_void,
    net::SocketAddr,
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};

use msquic::{
    Addr, Api, BufferRef, Configuration, Connection, ConnectionEvent, ConnectionShutdownFlags,
    CredentialConfig, Registration, RegistrationConfig, SendFlags, Settings, Status, Stream,
    StreamEvent, StreamOpenFlags, StreamStartFlags, ffi,
};

use crate::PATIENCE;

/// Events of a link, in their order.
pub enum Event {
    /// The handshake is complete; `true` if it resumed an earlier session.
    Connected(bool),
    /// Bytes of the stream, and the time at which MsQuic delivered them.
    Bytes(Vec<u8>, Instant),
    /// A session ticket, for [`Endpoint::dial`].
    Ticket(Vec<u8>),
    /// The stream's sending side has ended. The number is that of its bytes that were acknowledged in 0-RTT packets.
    SendingEnded(u64),
    /// The connection has ended, for the reason given.
    Closed(String),
}

/// A client's settings, for any number of links. Links end before it.
pub struct Endpoint {
    configuration: Configuration,
    registration: Registration,
}

impl Endpoint {
    /// Makes an endpoint that trusts the certificates in the file `ca` and speaks ALPN `mqtt`.
    pub fn new(ca: &str) -> Result<Self, Status> {
        let registration = Registration::new(&RegistrationConfig::new())?;
        let patience = PATIENCE.as_secs() * 1000;
        let settings = Settings::new()
            .set_HandshakeIdleTimeoutMs(patience)
            .set_IdleTimeoutMs(patience);
        let alpn = [BufferRef::from("mqtt")];
        let configuration = Configuration::open(&registration, &alpn, Some(&settings))?;
        configuration
            .load_credential(&CredentialConfig::new_client().set_ca_certificate_file(ca.into()))?;
        Ok(Self {
            configuration,
            registration,
        })
    }

    /// Connects to `broker` and writes `first`, with `flags`. The ticket is one of an earlier link.
    pub fn dial(
        &self,
        broker: SocketAddr,
        ticket: Option<&[u8]>,
        first: Vec<u8>,
        flags: SendFlags,
    ) -> Result<Link, Status> {
        let (sender, events) = channel();
        let of_stream = sender.clone();
        let connection = Connection::open(&self.registration, move |_, event| {
            on_connection(&sender, event);
            Ok(())
        })?;
        let at = Addr::from(broker);
        set(
            &connection,
            ffi::QUIC_PARAM_CONN_REMOTE_ADDRESS,
            (&raw const at).cast(),
            size_of::<Addr>(),
        )?;
        if let Some(ticket) = ticket {
            set(
                &connection,
                ffi::QUIC_PARAM_CONN_RESUMPTION_TICKET,
                ticket.as_ptr().cast(),
                ticket.len(),
            )?;
        }
        let stream = Stream::open(&connection, StreamOpenFlags::NONE, move |stream, event| {
            on_stream(&of_stream, &stream, event);
            Ok(())
        })?;
        stream.start(StreamStartFlags::NONE)?;
        let link = Link {
            stream,
            connection,
            events,
        };
        // MsQuic sends nothing before it is told to connect.
        link.send(first, flags)?;
        link.connection
            .start(&self.configuration, "localhost", broker.port())?;
        Ok(link)
    }
}

/// A connection and its stream, both closed on drop.
pub struct Link {
    // Closed before its connection, in the order of the fields.
    stream: Stream,
    connection: Connection,
    /// Events that nobody has taken yet.
    pub events: Receiver<Event>,
}

impl Link {
    /// Writes `bytes` to the stream.
    pub fn send(&self, bytes: Vec<u8>, flags: SendFlags) -> Result<(), Status> {
        let buffers = [BufferRef::from(&bytes[..])];
        let sent = Box::new((bytes, buffers));
        // SAFETY: what MsQuic reads stays where it is until `on_stream` frees it, or until it has refused it.
        unsafe { self.stream.send(&sent.1, flags, (&raw const *sent).cast()) }?;
        let _ = Box::into_raw(sent);
        Ok(())
    }

    /// Returns the number of the stream's bytes that were sent, those sent again counted again.
    pub fn sent_bytes(&self) -> Result<u64, Status> {
        Ok(self.connection.get_stats_v2()?.SendTotalStreamBytes)
    }

    /// Closes the connection; [`Event::Closed`] follows.
    pub fn close(&self) {
        self.connection.shutdown(ConnectionShutdownFlags::NONE, 0);
    }
}

/// Bytes on their way, and MsQuic's description of them.
type Sent = (Vec<u8>, [BufferRef; 1]);

fn set(
    connection: &Connection,
    parameter: u32,
    value: *const c_void,
    bytes: usize,
) -> Result<(), Status> {
    let bytes = u32::try_from(bytes).expect("addresses and tickets are small");
    // SAFETY: the callers' values are that long, and MsQuic copies them.
    unsafe { Api::set_param(connection.as_raw(), parameter, bytes, value) }
}

// Nobody may listen any more: then the event is of no interest, here and below.
fn on_connection(events: &Sender<Event>, event: ConnectionEvent<'_>) {
    let event = match event {
        ConnectionEvent::Connected {
            session_resumed, ..
        } => Event::Connected(session_resumed),
        ConnectionEvent::ResumptionTicketReceived { resumption_ticket } => {
            Event::Ticket(resumption_ticket.to_vec())
        }
        ConnectionEvent::ShutdownInitiatedByTransport { status, error_code } => {
            Event::Closed(format!("{status}, error code {error_code}"))
        }
        ConnectionEvent::ShutdownInitiatedByPeer { error_code } => {
            Event::Closed(format!("by the broker, error code {error_code}"))
        }
        ConnectionEvent::ShutdownComplete { .. } => Event::Closed("by this client".into()),
        _ => return,
    };
    let _ = events.send(event);
}

fn on_stream(events: &Sender<Event>, stream: &Stream, event: StreamEvent<'_>) {
    let event = match event {
        StreamEvent::Receive { buffers, .. } => {
            let bytes = buffers.iter().flat_map(BufferRef::as_bytes).copied();
            Event::Bytes(bytes.collect(), Instant::now())
        }
        StreamEvent::SendComplete { client_context, .. } => {
            // SAFETY: `Link::send` made the pointer of such a box, and MsQuic returns it once.
            drop(unsafe { Box::from_raw(client_context.cast_mut().cast::<Sent>()) });
            return;
        }
        StreamEvent::SendShutdownComplete { .. } => {
            // SAFETY: the parameter is a 64-bit number.
            let early =
                unsafe { Api::get_param_auto(stream.as_raw(), ffi::QUIC_PARAM_STREAM_0RTT_LENGTH) };
            // There is none of a stream that a failed session has dropped.
            let Ok(early) = early else { return };
            Event::SendingEnded(early)
        }
        _ => return,
    };
    let _ = events.send(event);
}
