//! Slots of connections to the local API. Streams have a separate maximum. A new connection is never
//! refused: it closes the connection that has been inactive for longest, so that held connections lock no
//! client out.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Share of the connections that streams may use, in quarters.
const STREAM_QUARTERS: usize = 3;

#[derive(Debug)]
struct SlotEntry {
    id: u64,
    /// True while a request is being handled.
    is_busy: bool,
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct SlotTable {
    last_id: u64,
    /// Connections that serve requests or wait for one, the least recently active first.
    short: Vec<SlotEntry>,
    streams: HashSet<u64>,
}

/// Slots of all connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSlots {
    table: Arc<Mutex<SlotTable>>,
    max: usize,
}

/// Slot of one connection, released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: ConnectionSlots,
    id: u64,
    end: CancellationToken,
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize) -> Self {
        Self { table: Arc::default(), max: max.max(4) }
    }

    /// Maximum number of streams.
    pub(crate) const fn streams_max(&self) -> usize {
        self.max * STREAM_QUARTERS / 4
    }

    /// Takes a slot for a new connection. Returns true if another connection was closed for it: the least
    /// recently active one without a request, otherwise the least recently active one.
    pub(crate) fn take(&self) -> (Arc<ConnectionSlot>, bool) {
        let mut table = self.table.lock();
        let is_full = table.short.len() + table.streams.len() >= self.max;
        if is_full {
            let at = table.short.iter().position(|entry| !entry.is_busy).unwrap_or(0);
            // Streams never use all slots, so a candidate exists.
            if at < table.short.len() {
                table.short.remove(at).end.cancel();
            }
        }
        table.last_id += 1;
        let (id, end) = (table.last_id, CancellationToken::new());
        table.short.push(SlotEntry { id, is_busy: false, end: end.clone() });
        drop(table);
        (Arc::new(ConnectionSlot { slots: self.clone(), id, end }), is_full)
    }
}

impl ConnectionSlot {
    /// Cancelled when the connection must be closed to free its slot.
    pub(crate) const fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Marks the beginning of a request.
    pub(crate) fn begin_request(&self) {
        self.set_busy(true);
    }

    /// Marks the end of a request whose response is not a stream.
    pub(crate) fn end_request(&self) {
        self.set_busy(false);
    }

    fn set_busy(&self, is_busy: bool) {
        let mut table = self.slots.table.lock();
        table.remove(self.id);
        table.short.push(SlotEntry { id: self.id, is_busy, end: self.end.clone() });
    }

    /// Counts the connection as a stream. Returns false if the maximum of streams is reached.
    pub(crate) fn stream(&self) -> bool {
        let mut table = self.slots.table.lock();
        if table.streams.len() >= self.slots.streams_max() {
            return false;
        }
        table.remove(self.id);
        table.streams.insert(self.id);
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table.lock().remove(self.id);
    }
}

impl SlotTable {
    fn remove(&mut self, id: u64) {
        self.short.retain(|entry| entry.id != id);
        self.streams.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ended(slot: &ConnectionSlot) -> bool {
        slot.end().is_cancelled()
    }

    #[test]
    fn new_connection_ends_least_recently_active_idle_one() {
        let slots = ConnectionSlots::new(4);
        let held: Vec<_> = (0..4).map(|_| slots.take().0).collect();
        held[0].begin_request();
        held[1].begin_request();
        held[1].end_request();
        let (fifth, displaced) = slots.take();
        assert!(displaced && is_ended(&held[2]));
        let (sixth, _) = slots.take();
        assert!(is_ended(&held[3]) && !is_ended(&held[1]) && !is_ended(&held[0]));
        for slot in [&fifth, &sixth, &held[1]] {
            slot.begin_request();
        }
        // All of them handle requests.
        let (_seventh, displaced) = slots.take();
        assert!(displaced && is_ended(&held[0]));
    }

    #[test]
    fn streams_leave_a_quarter_of_the_slots() {
        let slots = ConnectionSlots::new(8);
        let held: Vec<_> = (0..6).map(|_| slots.take().0).collect();
        assert!(held.iter().all(|slot| slot.stream()));
        let more: Vec<_> = (0..2).map(|_| slots.take()).collect();
        assert!(more.iter().all(|(slot, displaced)| !displaced && !slot.stream()));
        let (_last, displaced) = slots.take();
        assert!(displaced && held.iter().all(|slot| !is_ended(slot)));
        // A stream that ends leaves its slot to another one.
        held[0].end_request();
        assert!(more[1].0.stream());
        drop(held);
        assert_eq!(slots.table.lock().streams.len(), 1);
    }

    #[test]
    fn dropped_slot_is_freed() {
        let slots = ConnectionSlots::new(4);
        for _ in 0..100 {
            let (slot, displaced) = slots.take();
            assert!(!displaced);
            slot.begin_request();
        }
        assert!(slots.table.lock().short.is_empty());
    }
}
