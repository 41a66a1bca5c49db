//! Slots of connections to the API. Streams have a separate maximum. A new connection is never
//! refused: it closes a connection of the address that holds the most of them, the one that has been inactive for
//! longest, so that held connections lock no client out. A new stream closes in the same way, but only a connection of
//! an address that has more streams than its own.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Share of the connections that streams may use, in quarters.
const STREAM_QUARTERS: usize = 3;

#[derive(Debug)]
struct SlotEntry {
    id: u64,
    /// Address of the peer; `None` on a Unix socket.
    address: Option<IpAddr>,
    /// Number of requests being handled, without streams.
    requests: usize,
    /// Number of open streams.
    streams: usize,
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct SlotTable {
    last_id: u64,
    /// All connections, the least recently active first.
    entries: Vec<SlotEntry>,
}

/// Slots of all connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSlots {
    table: Arc<Mutex<SlotTable>>,
    max: usize,
    /// Ends the connections that take a slot from here.
    end: CancellationToken,
}

/// Slot of one connection, released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: ConnectionSlots,
    id: u64,
    end: CancellationToken,
    has_served: AtomicBool,
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize) -> Self {
        Self { table: Arc::default(), max: max.max(4), end: CancellationToken::new() }
    }

    /// The same slots, for connections that `end` ends.
    pub(crate) fn under(&self, end: &CancellationToken) -> Self {
        Self { end: end.clone(), ..self.clone() }
    }

    /// Maximum number of streams.
    pub(crate) const fn streams_max(&self) -> usize {
        self.max * STREAM_QUARTERS / 4
    }

    /// Takes a slot for a new connection from this address. Returns true if another connection was closed for it: one
    /// without a request, otherwise one without a stream.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> (Arc<ConnectionSlot>, bool) {
        let address = address.map(network_of);
        let mut table = self.table.lock();
        let is_full = table.entries.len() >= self.max;
        // Streams never use all slots, so a candidate exists.
        if is_full && let Some(at) = table.victim(|entry| entry.streams == 0) {
            table.entries.remove(at).end.cancel();
        }
        table.last_id += 1;
        let (id, end) = (table.last_id, self.end.child_token());
        table.entries.push(SlotEntry { id, address, requests: 0, streams: 0, end: end.clone() });
        drop(table);
        (
            Arc::new(ConnectionSlot { slots: self.clone(), id, end, has_served: AtomicBool::new(false) }),
            is_full,
        )
    }
}

impl ConnectionSlot {
    /// Cancelled when the connection must be closed to free its slot, and when it has ended.
    pub(crate) const fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Notes that the head of a request has arrived.
    pub(crate) fn note_request(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// True once the head of a request has arrived.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Marks the beginning of a request; dropping the result marks its end.
    pub(crate) fn request(self: &Arc<Self>) -> ActiveRequest {
        self.slots.table.lock().change(self.id, |entry| entry.requests += 1);
        ActiveRequest { slot: Arc::clone(self), is_stream: false, is_kept: false }
    }
}

/// Returns the network that one client has: an IPv4 address, or the first half of an IPv6 address.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

impl SlotTable {
    /// Returns the connection to close among these: of the address with the most connections, the least recently
    /// active one, preferably without a request.
    fn victim(&self, is_candidate: impl Fn(&SlotEntry) -> bool) -> Option<usize> {
        let mut held: HashMap<Option<IpAddr>, usize> = HashMap::new();
        self.entries.iter().for_each(|entry| *held.entry(entry.address).or_default() += 1);
        let candidates = self.entries.iter().enumerate().filter(|(_, entry)| is_candidate(entry));
        let order = |(at, entry): &(usize, &SlotEntry)| {
            (Reverse(held.get(&entry.address).copied()), entry.requests > 0, *at)
        };
        candidates.min_by_key(order).map(|(at, _)| at)
    }

    /// Closes a connection with streams of the address that has the most of them, the least recently active one, if that
    /// address has more than the one of this connection would have. Returns true if one was closed.
    fn close_streams_for(&mut self, id: u64) -> bool {
        let mut streams: HashMap<Option<IpAddr>, usize> = HashMap::new();
        self.entries.iter().for_each(|entry| *streams.entry(entry.address).or_default() += entry.streams);
        let Some(own) = self.entries.iter().find(|entry| entry.id == id).map(|entry| entry.address) else {
            return false;
        };
        let own_streams = streams.get(&own).copied().unwrap_or_default();
        let Some((address, _)) = streams
            .into_iter()
            .max_by_key(|(_, streams)| *streams)
            .filter(|(_, most)| *most > own_streams + 1)
        else {
            return false;
        };
        let of_address = |entry: &SlotEntry| entry.address == address && entry.streams > 0;
        let Some(at) = self.entries.iter().position(of_address) else { return false };
        self.entries.remove(at).end.cancel();
        true
    }

    /// Changes the counts of a connection, which becomes the most recently active one.
    fn change(&mut self, id: u64, with: impl FnOnce(&mut SlotEntry)) {
        // A connection that was closed for another one has no entry.
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return };
        let mut entry = self.entries.remove(at);
        with(&mut entry);
        self.entries.push(entry);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table.lock().entries.retain(|entry| entry.id != self.id);
        self.end.cancel();
    }
}

/// A request whose response is not written yet.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    slot: Arc<ConnectionSlot>,
    is_stream: bool,
    is_kept: bool,
}

impl ActiveRequest {
    /// Counts the request as a stream. Returns false if the maximum of streams is reached, and no other address has more
    /// streams than this one would have.
    pub(crate) fn become_stream(&mut self) -> bool {
        let slots = &self.slot.slots;
        let mut table = slots.table.lock();
        let is_full = table.entries.iter().map(|entry| entry.streams).sum::<usize>() >= slots.streams_max();
        let has_place = !is_full || table.close_streams_for(self.slot.id);
        if has_place && !self.is_stream {
            self.is_stream = true;
            table.change(self.slot.id, |entry| {
                entry.requests -= 1;
                entry.streams += 1;
            });
        }
        self.is_stream
    }

    /// Counts the request until the connection ends.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let is_stream = self.is_stream;
        self.slot.slots.table.lock().change(self.slot.id, |entry| match is_stream {
            true => entry.streams -= 1,
            false => entry.requests -= 1,
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn is_ended(slot: &ConnectionSlot) -> bool {
        slot.end().is_cancelled()
    }

    fn stream(slot: &Arc<ConnectionSlot>) -> Option<ActiveRequest> {
        let mut request = slot.request();
        request.become_stream().then_some(request)
    }

    #[test]
    fn new_connection_ends_least_recently_active_idle_one() {
        let slots = ConnectionSlots::new(4);
        let held: Vec<_> = (0..4).map(|_| slots.take(None).0).collect();
        let _first = held[0].request();
        drop(held[1].request());
        let (fifth, displaced) = slots.take(None);
        assert!(displaced && is_ended(&held[2]));
        let (sixth, _) = slots.take(None);
        assert!(is_ended(&held[3]) && !is_ended(&held[1]) && !is_ended(&held[0]));
        let _others: Vec<_> = [&fifth, &sixth, &held[1]].into_iter().map(ConnectionSlot::request).collect();
        // All of them handle requests.
        let (_seventh, displaced) = slots.take(None);
        assert!(displaced && is_ended(&held[0]));
    }

    #[test]
    fn address_with_the_most_connections_gives_one_up() {
        let slots = ConnectionSlots::new(4);
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "192.0.2.1"].map(|text| Some(text.parse::<IpAddr>().unwrap()));
        let held: Vec<_> = [other, one, same, one].into_iter().map(|it| slots.take(it).0).collect();
        let _active = held[1].request();
        let (_fifth, displaced) = slots.take(other);
        assert!(displaced && is_ended(&held[2]), "of the network with three, not the oldest of all");
        assert!(!is_ended(&held[0]) && !is_ended(&held[1]) && !is_ended(&held[3]));
    }

    #[test]
    fn active_connections_of_one_address_close_no_idle_one_of_another() {
        let slots = ConnectionSlots::new(4);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| Some(text.parse::<IpAddr>().unwrap()));
        let held: Vec<_> = [one, one, one, other].into_iter().map(|it| slots.take(it).0).collect();
        let _active: Vec<_> = held[..3].iter().map(ConnectionSlot::request).collect();
        let (_fifth, displaced) = slots.take(one);
        assert!(displaced && is_ended(&held[0]) && !is_ended(&held[3]));
    }

    #[test]
    fn address_with_the_most_streams_gives_one_up() {
        let slots = ConnectionSlots::new(8);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| Some(text.parse::<IpAddr>().unwrap()));
        let held: Vec<_> = (0..6).map(|_| slots.take(one).0).collect();
        let open: Vec<_> = held.iter().filter_map(stream).collect();
        assert!(open.len() == 6 && stream(&slots.take(one).0).is_none(), "no more for the same address");
        let late: Vec<_> = (0..2).map(|_| slots.take(other).0).collect();
        let late_open: Vec<_> = late.iter().filter_map(stream).collect();
        assert_eq!(late_open.len(), 2);
        assert_eq!(
            held.iter().map(|slot| is_ended(slot)).collect::<Vec<_>>(),
            [true, true, false, false, false, false]
        );
    }

    #[test]
    fn listener_ends_its_connections() {
        let (slots, end) = (ConnectionSlots::new(4), CancellationToken::new());
        let (own, other) = (slots.under(&end).take(None).0, slots.take(None).0);
        end.cancel();
        assert!(is_ended(&own) && !is_ended(&other));
    }

    #[test]
    fn streams_leave_a_quarter_of_the_slots() {
        let slots = ConnectionSlots::new(8);
        let held: Vec<_> = (0..6).map(|_| slots.take(None).0).collect();
        let mut open: Vec<_> = held.iter().filter_map(stream).collect();
        assert_eq!(open.len(), 6);
        let more: Vec<_> = (0..2).map(|_| slots.take(None)).collect();
        assert!(more.iter().all(|(slot, displaced)| !displaced && stream(slot).is_none()));
        let (_last, displaced) = slots.take(None);
        assert!(displaced && held.iter().all(|slot| !is_ended(slot)));
        // A stream that ends leaves its place to another one.
        drop(open.pop());
        assert!(stream(&more[1].0).is_some());
        drop(open);
        drop(held);
        assert!(slots.table.lock().entries.iter().all(|entry| entry.streams == 0));
    }

    #[test]
    fn several_streams_of_one_connection_count_each() {
        let slots = ConnectionSlots::new(8);
        let (one, _) = slots.take(None);
        let mut open: Vec<_> = (0..6).filter_map(|_| stream(&one)).collect();
        assert_eq!(open.len(), 6);
        let (other, _) = slots.take(None);
        assert!(stream(&other).is_none() && stream(&one).is_none());
        // Another request on the connection, and the end of one stream, leave the others counted.
        drop(one.request());
        drop(open.pop());
        let held: Vec<_> = (0..7).map(|_| slots.take(None).0).collect();
        assert!(
            is_ended(&other) && !is_ended(&one),
            "a connection with streams is not closed for another one"
        );
        drop(held);
        // A request that is kept counts until the connection ends.
        let (kept, _) = slots.take(None);
        stream(&kept).into_iter().for_each(ActiveRequest::keep);
        assert!(stream(&one).is_none());
        drop(kept);
        assert!(stream(&one).is_some());
    }

    #[test]
    fn dropped_slot_is_freed() {
        let slots = ConnectionSlots::new(4);
        for _ in 0..100 {
            let (slot, displaced) = slots.take(None);
            assert!(!displaced);
            let request = slot.request();
            drop(slot);
            drop(request);
        }
        assert!(slots.table.lock().entries.is_empty());
    }
}
