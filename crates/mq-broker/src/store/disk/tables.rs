//! The tables of the file, and their updates by changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::RangeInclusive,
};

use mq_codec::{ByteStr, PacketId, TopicName};
use mq_proto::FlowId;
use redb::{
    Database, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    ReadableTableMetadata as _, Table, TableDefinition, TableError, Value, WriteTransaction,
};

use super::{
    super::{
        BrokerId, Change, FlowRecord, Life, SessionChange, SessionRecord, Snapshot, Spilled,
        StoredMessage, User,
    },
    encoding,
    file_error::FileError,
};

/// The version of the tables below. A file of an earlier version is migrated when it is opened, in
/// one transaction. A file of a later version is refused.
///
/// | format | addition |
/// |---|---|
/// | 1 | |
/// | 2 | [`USERS`], which is empty at first: sessions from before have no user |
/// | 3 | [`FLOWS`], [`FLOW_FILTERS`] and [`FLOW_RECEIVED`], empty at first, and slots in messages: those from before have none |
const FORMAT: u64 = 3;

/// The table of `format`; `broker_id`, once a bridge has needed one; and in a backup `backup_end`.
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const BROKER_ID: &str = "broker_id";
/// The end mark of a backup, which is the last row of its only transaction: the number of the other rows.
const BACKUP_END: &str = "backup_end";
/// Client identifier -> life.
const SESSIONS: TableDefinition<'_, &str, (u8, u64)> = TableDefinition::new("sessions");
/// Client identifier -> the session's user; no row where that is unknown.
const USERS: TableDefinition<'_, &str, (u8, &str)> = TableDefinition::new("users");
/// Client identifier and filter -> options and subscription identifier.
const SUBSCRIPTIONS: TableDefinition<'_, (&str, &str), (u8, u32)> =
    TableDefinition::new("subscriptions");
/// Queued messages: client identifier and number -> message.
const QUEUED: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("queued");
/// Messages in flight: client identifier and packet identifier -> place in the order of first sending, and message;
/// after PUBREC only the message's head.
const IN_FLIGHT: TableDefinition<'_, (&str, u16), (u64, &[u8])> = TableDefinition::new("in_flight");
/// Client identifier and packet identifier of QoS 2 messages that were received.
const RECEIVED: TableDefinition<'_, (&str, u16), ()> = TableDefinition::new("received");
/// Flows of sessions: client identifier and flow -> slot, expiry interval in seconds, and end.
const FLOWS: TableDefinition<'_, (&str, u64), (u16, u64, u64)> = TableDefinition::new("flows");
/// Subscriptions of flows: client identifier and filter -> slot of the flow.
const FLOW_FILTERS: TableDefinition<'_, (&str, &str), u16> = TableDefinition::new("flow_filters");
/// Client identifier, flow and packet identifier of QoS 2 messages that were received on the flow.
const FLOW_RECEIVED: TableDefinition<'_, (&str, u64, u16), ()> =
    TableDefinition::new("flow_received");
/// Retained messages: topic -> message.
const RETAINED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("retained");

/// The writing thread's knowledge of the file.
#[derive(Debug)]
pub(super) struct Tables {
    /// Sessions in the file; changes of other sessions are ignored, as those have ended.
    sessions: HashSet<ByteStr>,
    /// The next place in the order of first sending.
    next_sent: u64,
}

impl Tables {
    /// Makes the tables that are missing in a new file, and reads the data that the writer needs.
    pub(super) fn open(database: &Database) -> Result<Self, FileError> {
        let transaction = database.begin_write()?;
        {
            let mut about = transaction.open_table(ABOUT)?;
            let format = about.get("format")?.map(|format| format.value());
            match format {
                Some(FORMAT) => {}
                Some(later) if later > FORMAT => return Err(FileError::Format(later, FORMAT)),
                // The file is new, or of an earlier version: all of that version's tables exist
                // here and mean the same.
                Some(_) | None => {
                    about.insert("format", FORMAT)?;
                }
            }
        }
        let rows = Rows::open(&transaction)?;
        let mut sessions = HashSet::new();
        for row in rows.sessions.iter()? {
            sessions.insert(text(row?.0.value())?);
        }
        let mut next_sent = 0;
        for row in rows.in_flight.iter()? {
            next_sent = next_sent.max(row?.1.value().0 + 1);
        }
        drop(rows);
        transaction.commit()?;
        Ok(Self {
            sessions,
            next_sent,
        })
    }

    /// Applies the changes of all calls, or none. With `sync` these and all earlier changes are on
    /// the disk when it returns.
    pub(super) fn commit(
        &mut self,
        database: &Database,
        calls: Vec<Vec<Change>>,
        sync: bool,
    ) -> Result<(), FileError> {
        let mut transaction = database.begin_write()?;
        if sync {
            // Two-phase commits make damage to settled changes an error, and never silently an
            // earlier state.
            transaction.set_two_phase_commit(true);
        } else {
            transaction.set_durability(redb::Durability::None)?;
        }
        let mut rows = Rows::open(&transaction)?;
        for change in calls.into_iter().flatten() {
            self.apply(&mut rows, change)?;
        }
        drop(rows);
        transaction.commit()?;
        Ok(())
    }

    fn apply(&mut self, rows: &mut Rows<'_>, change: Change) -> Result<(), FileError> {
        match change {
            Change::Session(client_id, change) => self.apply_to(rows, &client_id, change),
            Change::Retained(message) => {
                let value = encoding::message(&message)?;
                let topic = message.message.topic.as_str();
                rows.retained.insert(topic, &value[..])?;
                Ok(())
            }
            Change::Unretained(topic) => {
                rows.retained.remove(topic.as_str())?;
                Ok(())
            }
            Change::BrokerId(id) => {
                rows.about.insert(BROKER_ID, id.bits())?;
                Ok(())
            }
        }
    }

    fn apply_to(
        &mut self,
        rows: &mut Rows<'_>,
        client_id: &ByteStr,
        change: SessionChange,
    ) -> Result<(), FileError> {
        let client = client_id.as_str();
        match change {
            SessionChange::Attached { expiry, user } => {
                if !self.sessions.contains(client_id) {
                    self.sessions.insert(client_id.detached());
                }
                rows.set_life(client, Life::Connected(expiry))?;
                rows.set_user(client, &user)?;
            }
            // The session has ended meanwhile.
            _ if !self.sessions.contains(client_id) => {}
            SessionChange::Detached { expires_at } => {
                rows.set_life(client, Life::Away(expires_at))?;
            }
            SessionChange::Ended => {
                self.sessions.remove(client_id);
                rows.end(client)?;
            }
            SessionChange::Subscribed {
                filter,
                options,
                subscription_id,
                slot,
            } => {
                let key = (client, filter.as_str());
                let value = encoding::subscription(options, subscription_id);
                rows.subscriptions.insert(key, value)?;
                match slot {
                    0 => rows.flow_filters.remove(key)?,
                    slot => rows.flow_filters.insert(key, slot)?,
                };
            }
            SessionChange::Unsubscribed { filter } => {
                let key = (client, filter.as_str());
                rows.subscriptions.remove(key)?;
                rows.flow_filters.remove(key)?;
            }
            SessionChange::Queued { number, message } => {
                let value = encoding::message(&message)?;
                rows.queued.insert((client, number), &value[..])?;
            }
            SessionChange::Unqueued { number } => {
                rows.queued.remove((client, number))?;
            }
            SessionChange::Sent { number, packet_id } => {
                if let Some(message) = rows.queued.remove((client, number))? {
                    let value = (self.next_sent, message.value());
                    rows.in_flight.insert((client, packet_id.get()), value)?;
                    self.next_sent += 1;
                }
            }
            SessionChange::Released { packet_id } => {
                let key = (client, packet_id.get());
                let sent = rows.in_flight.get(key)?.map(|sent| {
                    let (place, message) = sent.value();
                    (place, message.first_chunk::<{ encoding::HEAD }>().copied())
                });
                if let Some((place, head)) = sent {
                    let head = head.as_ref().map_or(&[][..], |head| head);
                    rows.in_flight.insert(key, (place, head))?;
                }
            }
            SessionChange::Completed { packet_id } => {
                rows.in_flight.remove((client, packet_id.get()))?;
            }
            SessionChange::Received { packet_id, flow } => match flow {
                None => {
                    rows.received.insert((client, packet_id.get()), ())?;
                }
                Some(flow) if rows.flows.get((client, flow.0))?.is_some() => {
                    let key = (client, flow.0, packet_id.get());
                    rows.flow_received.insert(key, ())?;
                }
                // The flow has ended meanwhile.
                Some(_) => {}
            },
            SessionChange::ReceivedReleased { packet_id, flow } => match flow {
                None => {
                    rows.received.remove((client, packet_id.get()))?;
                }
                Some(flow) => {
                    let key = (client, flow.0, packet_id.get());
                    rows.flow_received.remove(key)?;
                }
            },
            SessionChange::FlowKept { flow, kept } => {
                let value = encoding::flow(kept);
                rows.flows.insert((client, flow.0), value)?;
            }
            SessionChange::FlowEnded { flow } => {
                rows.flows.remove((client, flow.0))?;
                let of_flow = (client, flow.0, 0)..=(client, flow.0, u16::MAX);
                rows.flow_received.retain_in(of_flow, |_, ()| false)?;
            }
        }
        Ok(())
    }
}

/// The tables within one transaction.
struct Rows<'t> {
    about: Table<'t, &'static str, u64>,
    sessions: Table<'t, &'static str, (u8, u64)>,
    users: Table<'t, &'static str, (u8, &'static str)>,
    subscriptions: Table<'t, (&'static str, &'static str), (u8, u32)>,
    queued: Table<'t, (&'static str, u64), &'static [u8]>,
    in_flight: Table<'t, (&'static str, u16), (u64, &'static [u8])>,
    received: Table<'t, (&'static str, u16), ()>,
    flows: Table<'t, (&'static str, u64), (u16, u64, u64)>,
    flow_filters: Table<'t, (&'static str, &'static str), u16>,
    flow_received: Table<'t, (&'static str, u64, u16), ()>,
    retained: Table<'t, &'static str, &'static [u8]>,
}

impl<'t> Rows<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, TableError> {
        Ok(Self {
            about: transaction.open_table(ABOUT)?,
            sessions: transaction.open_table(SESSIONS)?,
            users: transaction.open_table(USERS)?,
            subscriptions: transaction.open_table(SUBSCRIPTIONS)?,
            queued: transaction.open_table(QUEUED)?,
            in_flight: transaction.open_table(IN_FLIGHT)?,
            received: transaction.open_table(RECEIVED)?,
            flows: transaction.open_table(FLOWS)?,
            flow_filters: transaction.open_table(FLOW_FILTERS)?,
            flow_received: transaction.open_table(FLOW_RECEIVED)?,
            retained: transaction.open_table(RETAINED)?,
        })
    }

    fn set_life(&mut self, client: &str, life: Life) -> Result<(), FileError> {
        self.sessions.insert(client, encoding::life(life))?;
        Ok(())
    }

    /// Writes the session's user if the file has another one, which is rare.
    fn set_user(&mut self, client: &str, user: &User) -> Result<(), FileError> {
        let row = encoding::user(user);
        let is_there = self.users.get(client)?.is_some_and(|is| is.value() == row);
        if !is_there {
            self.users.insert(client, row)?;
        }
        Ok(())
    }

    /// Removes everything of a session.
    fn end(&mut self, client: &str) -> Result<(), FileError> {
        self.sessions.remove(client)?;
        self.users.remove(client)?;
        // The least identifier that is greater than this one.
        let next = format!("{client}\0");
        let (from, to) = ((client, ""), (&next[..], ""));
        self.subscriptions.retain_in(from..to, |_, _| false)?;
        self.flow_filters.retain_in(from..to, |_, _| false)?;
        let (from, to) = ((client, 0), (&next[..], 0));
        self.queued.retain_in(from..to, |_, _| false)?;
        let (from, to) = ((client, 0), (&next[..], 0));
        self.in_flight.retain_in(from..to, |_, _| false)?;
        self.received.retain_in(from..to, |_, ()| false)?;
        let (from, to) = ((client, 0), (&next[..], 0));
        self.flows.retain_in(from..to, |_, _| false)?;
        let (from, to) = ((client, 0, 0), (&next[..], 0, 0));
        self.flow_received.retain_in(from..to, |_, ()| false)?;
        Ok(())
    }
}

/// Reads everything in the file.
pub(super) fn load(database: &Database) -> Result<Snapshot, FileError> {
    let transaction = database.begin_read()?;
    let mut snapshot = Snapshot::default();
    for row in transaction.open_table(SESSIONS)?.iter()? {
        let (client, life) = row?;
        let record = SessionRecord {
            life: encoding::read_life(life.value())?,
            ..SessionRecord::default()
        };
        snapshot.sessions.insert(text(client.value())?, record);
    }
    let sessions = &mut snapshot.sessions;
    for row in transaction.open_table(USERS)?.iter()? {
        let (client, user) = row?;
        let user = encoding::read_user(user.value())?;
        session(sessions, client.value())?.user = Some(user);
    }
    for row in transaction.open_table(SUBSCRIPTIONS)?.iter()? {
        let (key, value) = row?;
        let (client, filter) = key.value();
        let filter = encoding::read_filter(filter)?;
        let value = encoding::read_subscription(value.value())?;
        session(sessions, client)?
            .subscriptions
            .insert(filter, value);
    }
    let mut heads = Heads::default();
    for row in transaction.open_table(QUEUED)?.iter()? {
        let (key, value) = row?;
        let (client, number) = key.value();
        let session = session(sessions, client)?;
        let size = value.value().len();
        if session.spilled.is_none() && heads.has_room(&session.queued, size) {
            let message = encoding::read_message(value.value())?;
            session.queued.insert(number, message);
        } else {
            let spilled = session.spilled.get_or_insert(Spilled {
                numbers: number..=number,
                messages: 0,
                bytes: 0,
            });
            spilled.numbers = *spilled.numbers.start()..=number;
            spilled.messages += 1;
            spilled.bytes += size + ROW;
        }
    }
    let mut in_flight = Vec::new();
    for row in transaction.open_table(IN_FLIGHT)?.iter()? {
        let (key, value) = row?;
        let ((client, id), (place, message)) = (key.value(), value.value());
        if let Some(slot) = encoding::read_released(message) {
            session(sessions, client)?.note_slot(packet_id(id)?, slot);
            in_flight.push((place, text(client)?, packet_id(id)?, None));
            continue;
        }
        let message = Some(encoding::read_message(message)?);
        in_flight.push((place, text(client)?, packet_id(id)?, message));
    }
    in_flight.sort_by_key(|(place, ..)| *place);
    for (_, client, id, message) in in_flight {
        session(sessions, client.as_str())?
            .in_flight
            .push((id, message));
    }
    for row in transaction.open_table(RECEIVED)?.iter()? {
        let (key, _) = row?;
        let (client, id) = key.value();
        session(sessions, client)?.received.insert(packet_id(id)?);
    }
    for row in transaction.open_table(FLOWS)?.iter()? {
        let (key, kept) = row?;
        let (client, flow) = key.value();
        let kept = FlowRecord::new(encoding::read_flow(kept.value()));
        session(sessions, client)?.flows.insert(FlowId(flow), kept);
    }
    for row in transaction.open_table(FLOW_FILTERS)?.iter()? {
        let (key, slot) = row?;
        let (client, filter) = key.value();
        let filter = encoding::read_filter(filter)?;
        session(sessions, client)?
            .slots
            .insert(filter, slot.value());
    }
    for row in transaction.open_table(FLOW_RECEIVED)?.iter()? {
        let (key, _) = row?;
        let (client, flow, id) = key.value();
        let flow = session(sessions, client)?.flows.get_mut(&FlowId(flow));
        let received = &mut flow.ok_or(FileError::Damaged)?.received;
        received.insert(packet_id(id)?);
    }
    for row in transaction.open_table(RETAINED)?.iter()? {
        let (topic, message) = row?;
        let topic = TopicName::new(topic.value()).map_err(|_| FileError::Damaged)?;
        let message = encoding::read_message(message.value())?;
        snapshot.retained.insert(topic, message);
    }
    let broker_id = transaction.open_table(ABOUT)?.get(BROKER_ID)?;
    snapshot.broker_id = broker_id.map(|bits| BrokerId::from_bits(bits.value()));
    Ok(snapshot)
}

/// The bound of queued messages that are read at the start. The rest stays in the file until its
/// reader takes it, as a session's queue in the file may exceed memory.
#[derive(Default)]
struct Heads {
    bytes: usize,
}

impl Heads {
    /// The most messages of one session.
    const MESSAGES: usize = 256;
    /// The most bytes of all sessions.
    const BYTES: usize = 16 << 20;

    fn has_room(&mut self, queued: &BTreeMap<u64, StoredMessage>, size: usize) -> bool {
        let has_room = queued.len() < Self::MESSAGES && self.bytes + size <= Self::BYTES;
        self.bytes += if has_room { size } else { 0 };
        has_room
    }
}

/// Approximate bytes of a row besides its value, as mailboxes count it.
const ROW: usize = 64;

/// Reads messages of one session's queue.
pub(super) fn queued(
    database: &Database,
    client: &str,
    numbers: RangeInclusive<u64>,
    most: usize,
) -> Result<Vec<(u64, StoredMessage)>, FileError> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(QUEUED)?;
    let mut bytes = 0;
    let mut messages = Vec::new();
    let range = (client, *numbers.start())..=(client, *numbers.end());
    for row in table.range(range)? {
        let (key, value) = row?;
        messages.push((key.value().1, encoding::read_message(value.value())?));
        bytes += value.value().len();
        if bytes >= most {
            break;
        }
    }
    Ok(messages)
}

/// Returns the session of a row; a row without a session is damage.
fn session<'a>(
    sessions: &'a mut HashMap<ByteStr, SessionRecord>,
    client: &str,
) -> Result<&'a mut SessionRecord, FileError> {
    sessions.get_mut(&text(client)?).ok_or(FileError::Damaged)
}

/// Copies everything from one database to another, as of one moment, in one transaction with
/// [`BACKUP_END`] as its last row.
pub(super) fn copy(from: &Database, to: &Database) -> Result<(), FileError> {
    /// Returns the number of rows.
    fn table<K: Key, V: Value>(
        from: &ReadTransaction,
        to: &WriteTransaction,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<u64, FileError> {
        let mut copy = to.open_table(definition)?;
        let mut rows = 0;
        for row in from.open_table(definition)?.iter()? {
            let (key, value) = row?;
            copy.insert(key.value(), value.value())?;
            rows += 1;
        }
        Ok(rows)
    }
    let (from, to) = (from.begin_read()?, to.begin_write()?);
    table(&from, &to, ABOUT)?;
    let rows = table(&from, &to, SESSIONS)?
        + table(&from, &to, USERS)?
        + table(&from, &to, SUBSCRIPTIONS)?
        + table(&from, &to, QUEUED)?
        + table(&from, &to, IN_FLIGHT)?
        + table(&from, &to, RECEIVED)?
        + table(&from, &to, FLOWS)?
        + table(&from, &to, FLOW_FILTERS)?
        + table(&from, &to, FLOW_RECEIVED)?
        + table(&from, &to, RETAINED)?;
    to.open_table(ABOUT)?.insert(BACKUP_END, rows)?;
    to.commit()?;
    Ok(())
}

/// Returns `true` if the file is a complete backup: if it has [`BACKUP_END`]. A backup of an
/// earlier version has no such row; its only transaction wrote sessions or retained messages, or
/// nothing.
pub(super) fn is_whole_backup(database: &Database) -> Result<bool, FileError> {
    /// Returns the table, which may be missing.
    fn rows<K: Key + 'static, V: Value + 'static>(
        transaction: &ReadTransaction,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>, FileError> {
        match transaction.open_table(definition) {
            Ok(table) => Ok(Some(table)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
    let transaction = database.begin_read()?;
    if let Some(about) = rows(&transaction, ABOUT)?
        && about.get(BACKUP_END)?.is_some()
    {
        return Ok(true);
    }
    let sessions = rows(&transaction, SESSIONS)?;
    let retained = rows(&transaction, RETAINED)?;
    let has_sessions = sessions.is_some_and(|table| !table.is_empty().unwrap_or(true));
    let has_retained = retained.is_some_and(|table| !table.is_empty().unwrap_or(true));
    Ok(has_sessions || has_retained)
}

fn text(text: &str) -> Result<ByteStr, FileError> {
    ByteStr::new(text).map_err(|_| FileError::Damaged)
}

fn packet_id(id: u16) -> Result<PacketId, FileError> {
    PacketId::new(id).ok_or(FileError::Damaged)
}

/// Sets the format, as if another version had written the file.
#[cfg(test)]
pub(super) fn set_format(database: &Database, format: u64) {
    let transaction = database.begin_write().unwrap();
    let mut about = transaction.open_table(ABOUT).unwrap();
    about.insert("format", format).unwrap();
    drop(about);
    transaction.commit().unwrap();
}
