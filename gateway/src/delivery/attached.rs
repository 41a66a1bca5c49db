//! Files of parts: made anew from the journal when they are sent, and told without where a channel does not take them.

use super::pass::{Pass, parts_of};
use crate::channel::OutgoingFile;
use crate::core::project::{self, File, Part};
use crate::core::rows::BindingRow;
use crate::store::delivery::{self as rows, PartState};
use crate::store::{StoreError, styles};

impl Pass {
    /// The files of a part, with what is in them.
    pub(super) async fn files(
        &self,
        binding: &BindingRow,
        part: &Part,
    ) -> Result<Vec<OutgoingFile>, StoreError> {
        if part.files.is_empty() {
            return Ok(Vec::new());
        }
        let (id, key) = (binding.binding_id, binding.session_key.clone());
        let (session_seq, part_no) = (part.session_seq, part.part_no);
        let made = self.store.read("delivery_files", move |db| {
            let styles = styles::of(db, id)?;
            let found = rows::row(db, &key, &styles, session_seq)?;
            let row = found.rows.first().zip(styles.at(session_seq));
            Ok(row.map(|(row, style)| project::contents(id, style, row, found.digest(row), part_no)))
        });
        Ok(made.await?.unwrap_or_default().into_iter().map(outgoing).collect())
    }

    /// The channel does not take a part with its files: its row is told once more, in messages alone. That is recorded
    /// with what follows from it, so that whoever works out the parts comes to the same ones.
    pub(super) async fn tell_without_files(
        &self,
        binding: &BindingRow,
        part: &Part,
    ) -> Result<(), StoreError> {
        let (binding, part) = (binding.clone(), part.clone());
        let tell = move |tx: &crate::store::Tx<'_>| {
            let (id, session_seq) = (binding.binding_id, part.session_seq);
            let styles = styles::record_row(tx, id, session_seq, project::Style::refused)?;
            let found = rows::row(tx, &binding.session_key, &styles, session_seq)?;
            // Planned first, so that the checkpoint does not pass them.
            rows::plan(tx, &binding, &parts_of(&binding, &styles, &found, u64::MAX))?;
            rows::settle(tx, &binding, &part, PartState::Rejected, None)
        };
        self.store.write("delivery_without_files", tell).await
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
