//! Cache of the bound conversations; no I/O. Messages in unbound conversations need no database query.

use crate::channel::BoundConversation;
use acp_discord::core::ids::Snowflake;
use std::collections::BTreeMap;

/// Snapshot of the bound conversations.
#[derive(Debug, Default)]
pub(super) struct BindingCache {
    /// Conversation ids; for threads with the parent channel.
    places: BTreeMap<Snowflake, Option<Snowflake>>,
    /// Binding counter before the snapshot; `None` before the first snapshot.
    as_of: Option<u64>,
}

impl BindingCache {
    /// Creates a snapshot. `as_of` is the binding counter before the query.
    pub(super) fn new(as_of: u64, places: &[BoundConversation]) -> Self {
        let id = |text: &String| text.parse::<Snowflake>().ok();
        let entry = |place: &BoundConversation| {
            let at = &place.conversation;
            Some((id(&at.conversation_id)?, at.parent_conversation_id.as_ref().and_then(id)))
        };
        Self { places: places.iter().filter_map(entry).collect(), as_of: Some(as_of) }
    }

    /// True after the first snapshot.
    pub(super) const fn is_known(&self) -> bool {
        self.as_of.is_some()
    }

    /// True if the snapshot is current at this binding counter.
    pub(super) fn is_fresh(&self, changes: u64) -> bool {
        self.as_of == Some(changes)
    }

    /// Returns whether a conversation is bound; `None` if a binding may have been added since the snapshot. A
    /// binding may also have ended since; the inbound port then reports this to the caller.
    pub(super) fn has(&self, at: Snowflake, changes: u64) -> Option<bool> {
        match self.places.contains_key(&at) {
            true => Some(true),
            false => self.is_fresh(changes).then_some(false),
        }
    }

    /// Returns all bound conversations, for threads with the parent channel.
    pub(super) fn all(&self) -> impl Iterator<Item = (Snowflake, Option<Snowflake>)> + '_ {
        self.places.iter().map(|(id, parent)| (*id, *parent))
    }

    /// Returns the conversations bound since an earlier snapshot; none if `before` holds no snapshot.
    pub(super) fn since(&self, before: &Self) -> Vec<Snowflake> {
        let is_new = |id: &&Snowflake| before.is_known() && !before.places.contains_key(id);
        self.places.keys().filter(is_new).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ConversationRef;

    fn bound(id: &str, parent: Option<&str>) -> BoundConversation {
        let conversation = ConversationRef {
            channel: "discord".to_owned(),
            account_id: "main".to_owned(),
            conversation_id: id.to_owned(),
            parent_conversation_id: parent.map(str::to_owned),
        };
        BoundConversation { conversation, bound_at_ms: 1, backfilled_through: None }
    }

    /// `Some(false)` is returned only as long as no binding was added since the snapshot.
    #[test]
    fn unbound_is_known_until_bindings_change() {
        let unknown = BindingCache::default();
        let known =
            BindingCache::new(3, &[bound("7", Some("1")), bound("8", None), bound("not an id", None)]);
        for (cache, at, changes, want) in [
            (&unknown, 7, 0, None),
            (&known, 7, 3, Some(true)),
            (&known, 7, 4, Some(true)),
            (&known, 9, 3, Some(false)),
            (&known, 9, 4, None),
            (&known, 9, 2, None),
        ] {
            assert_eq!(cache.has(Snowflake(at), changes), want, "{at} {changes}");
        }
        assert_eq!((unknown.is_known(), known.is_known(), known.is_fresh(3)), (false, true, true));
        let entries: Vec<_> = known.all().collect();
        assert_eq!(entries, [(Snowflake(7), Some(Snowflake(1))), (Snowflake(8), None)]);
    }

    #[test]
    fn bindings_added_since_snapshot_are_listed() {
        let first = BindingCache::new(0, &[bound("7", None)]);
        let second = BindingCache::new(1, &[bound("7", None), bound("9", None)]);
        assert_eq!(first.since(&BindingCache::default()), [], "a start backfills all conversations");
        assert_eq!(second.since(&first), [Snowflake(9)]);
        assert_eq!(first.since(&second), []);
    }
}
