//! Files of parts: made anew from the journal when they are sent, and told without where a channel does not take them.

use super::pass::{Pass, parts_of};
use crate::channel::{Channel, OutgoingFile};
use crate::core::project::{self, File, Part, Style, Styles};
use crate::core::rows::BindingRow;
use crate::store::delivery::{self as rows, PartRow, PartState};
use crate::store::{StoreError, styles};

/// How often the files of a part may be refused for a moment: with the pauses between, that is about half a minute.
const REFUSED_MAX: u32 = 8;

/// Whether a part is told without its files after so many refusals of them, of which the last one was for a moment or
/// for good.
pub(super) const fn is_enough(times: u32, again: bool) -> bool {
    !again || times >= REFUSED_MAX
}

/// A row as it is told without its files.
struct Instead {
    /// How it was told until now.
    before: Style,
    /// All of its parts, those with files too.
    parts: Vec<Part>,
}

impl Instead {
    /// Whether what follows the part says the same: it does where the part is still one with files.
    fn takes_the_place_of(&self, part: &Part) -> bool {
        let no = part.part_no;
        self.parts.iter().any(|it| it.part_no == no && !it.files.is_empty())
            && self.parts.iter().any(|it| it.part_no > no)
    }
}

impl Pass {
    /// The files of a part, with what is in them. `None` when they are not what was planned: the journal has not all of
    /// it any more, or another version of this program makes them in another way.
    pub(super) async fn files(
        &self,
        binding: &BindingRow,
        part: &Part,
    ) -> Result<Option<Vec<OutgoingFile>>, StoreError> {
        if part.files.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let binding = binding.clone();
        let (session_seq, part_no) = (part.session_seq, part.part_no);
        let made = self.store.read("delivery_files", move |db| {
            let id = binding.binding_id;
            let styles = styles::of(db, id)?;
            let found = rows::row(db, &binding, &styles, session_seq)?;
            let row = found.rows.first().zip(styles.at(session_seq));
            Ok(row.map(|(row, style)| project::contents(id, style, row, found.digest(row), part_no)))
        });
        let made = made.await?.unwrap_or_default();
        let is_as_planned = made.iter().map(File::named).eq(part.files.iter().cloned());
        Ok(is_as_planned.then(|| made.into_iter().map(outgoing).collect()))
    }

    /// The files of a part cannot be made as they were planned. It is never sent as if they were there; and where it may
    /// have been sent with them, it is not told a second time.
    pub(super) async fn tell_without_lost_files(
        &self,
        binding: &BindingRow,
        row: PartRow,
        channel: &dyn Channel,
    ) -> Result<(), StoreError> {
        let part = row.part;
        tracing::error!(session_key = %binding.session_key, nonce = part.nonce, "the files of a part cannot be made as they were planned");
        if row.state == PartState::Sending {
            self.settle(binding, &part, PartState::Uncertain, None, channel).await?;
            return Ok(());
        }
        self.tell_without_files(binding, &part).await
    }

    /// The channel does not take a part with its files: its row is told once more, in messages alone. That is recorded
    /// with what follows from it, so that whoever works out the parts comes to the same ones. Where nothing follows, it
    /// is said that something is missing.
    pub(super) async fn tell_without_files(
        &self,
        binding: &BindingRow,
        part: &Part,
    ) -> Result<(), StoreError> {
        // Laid out before the transaction: that may take a while, and everybody's commits would wait.
        let laid_out = self.laid_out_without_files(binding, part.session_seq).await?;
        let (binding, part) = (binding.clone(), part.clone());
        let tell = move |tx: &crate::store::Tx<'_>| {
            let (id, session_seq) = (binding.binding_id, part.session_seq);
            let found = laid_out.filter(|it| it.takes_the_place_of(&part));
            if let Some(Instead { before, parts }) = found {
                if styles::of(tx, id)?.at(session_seq) != Some(&before) {
                    // It was recorded in another way meanwhile: the part is as it was, and is looked at anew.
                    return Ok(());
                }
                styles::record_row(tx, id, session_seq, Style::refused)?;
                // Planned first, so that the checkpoint does not pass them.
                rows::plan(tx, &binding, &parts)?;
            } else if let Some(notice) = project::lost(id, &part) {
                rows::plan(tx, &binding, &[notice])?;
            }
            rows::settle(tx, &binding, &part, PartState::Rejected, None)
        };
        self.store.write("delivery_without_files", tell).await
    }

    /// A row as it is told without its files; `None` when nothing is known of how it was told.
    async fn laid_out_without_files(
        &self,
        binding: &BindingRow,
        session_seq: u64,
    ) -> Result<Option<Instead>, StoreError> {
        let binding = binding.clone();
        let lay_out = move |db: &_| {
            let known = styles::of(db, binding.binding_id)?;
            let Some(before) = known.at(session_seq).cloned() else { return Ok(None) };
            let styles = Styles::new(vec![(session_seq, before.clone().refused())]);
            let found = rows::row(db, &binding, &styles, session_seq)?;
            let parts = parts_of(&binding, &styles, &found, u64::MAX);
            Ok(Some(Instead { before, parts }))
        };
        self.store.read("delivery_instead", lay_out).await
    }
}

fn outgoing(file: File) -> OutgoingFile {
    OutgoingFile {
        name: file.name.to_owned(),
        content_type: file.content_type.to_owned(),
        description: file.says.to_owned(),
        bytes: file.text.into(),
    }
}
