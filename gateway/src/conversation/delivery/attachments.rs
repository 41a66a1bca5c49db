//! Files of parts: rendered again from the journal when sent, and replaced by text where the channel rejects
//! them.

use crate::channel::{ChannelAdapter, OutgoingFile};
use crate::conversation::delivery::worker::{DeliveryWorker, parts_of};
use acp_core::render;
use acp_core::render::{MessageFile, MessagePart, Style, StyleHistory};
use acp_core::rows::BindingRow;
use acp_store::StoreError;
use acp_store::delivery::{self as rows, PartRow, PartState};
use acp_store::render_settings;

/// Maximum number of temporary refusals of a part's files; with the delays between them, about half a minute.
const REFUSED_MAX: u32 = 8;

/// True if a part is sent without its files after this many refusals; `again` is true if the last one was
/// temporary.
pub(super) const fn should_drop_files(times: u32, again: bool) -> bool {
    !again || times >= REFUSED_MAX
}

/// Rendering of a row without its files.
struct TextFallback {
    /// Style of the row so far.
    before: Style,
    /// All parts of the new rendering, including those with files.
    parts: Vec<MessagePart>,
}

impl TextFallback {
    /// True if the parts after this one replace it: only if it still is a part with files.
    fn replaces(&self, part: &MessagePart) -> bool {
        let no = part.part_no;
        self.parts.iter().any(|it| it.part_no == no && !it.files.is_empty())
            && self.parts.iter().any(|it| it.part_no > no)
    }
}

impl DeliveryWorker {
    /// Renders the files of a part. `None` if they differ from what was planned: journal rows are missing, or
    /// another version of this program renders them differently.
    pub(super) async fn files(
        &self,
        binding: &BindingRow,
        part: &MessagePart,
    ) -> Result<Option<Vec<OutgoingFile>>, StoreError> {
        if part.files.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let binding = binding.clone();
        let (session_seq, part_no) = (part.session_seq, part.part_no);
        let made = self.store.read("delivery_files", move |db| {
            let id = binding.binding_id;
            let styles = render_settings::of(db, id)?;
            let found = rows::row(db, &binding, &styles, session_seq)?;
            let row = found.rows.first().zip(styles.at(session_seq));
            Ok(row.map(|(row, style)| render::part_files(id, style, row, found.digest(row), part_no)))
        });
        let made = made.await?.unwrap_or_default();
        let is_as_planned = made.iter().map(MessageFile::named).eq(part.files.iter().cloned());
        Ok(is_as_planned.then(|| made.into_iter().map(outgoing).collect()))
    }

    /// Settles a part whose files cannot be rendered as planned: never sent without the files, and never sent
    /// twice if an earlier attempt may have succeeded.
    pub(super) async fn fall_back_after_lost_files(
        &self,
        binding: &BindingRow,
        row: PartRow,
        channel: &dyn ChannelAdapter,
    ) -> Result<(), StoreError> {
        let part = row.part;
        tracing::error!(
            session_key = %binding.session_key,
            nonce = part.nonce,
            "attachments of part cannot be rendered as planned"
        );
        if row.state == PartState::Sending {
            self.settle(binding, &part, PartState::Uncertain, None, channel).await?;
            return Ok(());
        }
        self.fall_back_to_text(binding, &part).await
    }

    /// Replaces a part that the channel rejects because of its files: its row is rendered again as text only.
    /// The new style is recorded in the same transaction as its effects, so that every later rendering yields
    /// the same parts. If the new rendering adds no parts, a notice says that content is missing.
    pub(super) async fn fall_back_to_text(
        &self,
        binding: &BindingRow,
        part: &MessagePart,
    ) -> Result<(), StoreError> {
        // Rendered before the transaction: it may be slow, and other commits would wait.
        let laid_out = self.render_without_files(binding, part.session_seq).await?;
        let (binding, part) = (binding.clone(), part.clone());
        let tell = move |tx: &acp_store::Tx<'_>| {
            let (id, session_seq) = (binding.binding_id, part.session_seq);
            let found = laid_out.filter(|it| it.replaces(&part));
            if let Some(TextFallback { before, parts }) = found {
                if render_settings::of(tx, id)?.at(session_seq) != Some(&before) {
                    // Recorded differently meanwhile: the part is unchanged and will be checked again.
                    return Ok(());
                }
                render_settings::record_row(tx, id, session_seq, Style::with_files_refused)?;
                // Planned first, so that the checkpoint does not pass them.
                rows::plan(tx, &binding, &parts)?;
            } else if let Some(notice) = render::lost_files_notice(id, &part) {
                rows::plan(tx, &binding, &[notice])?;
            }
            rows::settle(tx, &binding, &part, PartState::Rejected, None)
        };
        self.store.write("delivery_without_files", tell).await
    }

    /// Renders a row without its files; `None` if the row's style is unknown.
    async fn render_without_files(
        &self,
        binding: &BindingRow,
        session_seq: u64,
    ) -> Result<Option<TextFallback>, StoreError> {
        let binding = binding.clone();
        let lay_out = move |db: &_| {
            let known = render_settings::of(db, binding.binding_id)?;
            let Some(before) = known.at(session_seq).cloned() else { return Ok(None) };
            let styles = StyleHistory::new(vec![(session_seq, before.clone().with_files_refused())]);
            let found = rows::row(db, &binding, &styles, session_seq)?;
            let parts = parts_of(&binding, &styles, &found, u64::MAX);
            Ok(Some(TextFallback { before, parts }))
        };
        self.store.read("delivery_instead", lay_out).await
    }
}

fn outgoing(file: MessageFile) -> OutgoingFile {
    OutgoingFile {
        name: file.name.to_owned(),
        content_type: file.content_type.to_owned(),
        description: file.description.to_owned(),
        bytes: file.text.into(),
    }
}
