//! Splits an agent's output into lines with their stream offsets. Sans-I/O: takes bytes with offsets, returns
//! whole lines. An unfinished line can be committed in pieces and restored after a restart (H2).
#![deny(clippy::indexing_slicing)]

/// Maximum length of an agent's line, in bytes. Commit and parsing hold several copies in memory.
pub const LINE_BYTES_MAX: usize = 12 * 1024 * 1024;

/// Error that makes the stream unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Line beyond the limit.
    #[error("the line at offset {start} is longer than {bytes_max} bytes")]
    TooLong {
        /// Offset of the line's first byte.
        start: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// Bytes are missing before the pushed piece.
    #[error("output is missing: expected offset {expected}, got {got}")]
    Gap {
        /// Expected offset.
        expected: u64,
        /// Offset of the pushed piece.
        got: u64,
    },
}

/// Line splitter of one stream.
#[derive(Debug, Clone)]
pub struct LineSplitter {
    /// Offset of the next expected byte.
    next: u64,
    /// Unfinished line, without a newline; ends at `next`.
    tail: Vec<u8>,
    bytes_max: usize,
}

impl LineSplitter {
    /// Creates a splitter. The stream is at the start of a line, at this offset.
    pub const fn new(offset: u64, bytes_max: usize) -> Self {
        Self { next: offset, tail: Vec::new(), bytes_max }
    }

    /// Takes the next piece of the stream and calls `each` for every completed line, with the offset of the
    /// first byte and the line without newline. Bytes pushed before are skipped.
    ///
    /// # Errors
    /// [`LineError`]. Earlier lines were passed to `each`; the splitter is unusable afterwards.
    pub fn push(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<(), LineError> {
        if offset > self.next {
            return Err(LineError::Gap { expected: self.next, got: offset });
        }
        let seen = usize::try_from(self.next - offset).unwrap_or(usize::MAX);
        let mut rest = bytes.get(seen..).unwrap_or_default();
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            self.check(line.len())?;
            let start = self.line_start();
            self.next += end as u64 + 1;
            if self.tail.is_empty() {
                each(start, line);
            } else {
                self.tail.extend_from_slice(line);
                each(start, &std::mem::take(&mut self.tail));
            }
            rest = after.get(1..).unwrap_or_default();
        }
        self.check(rest.len())?;
        self.tail.extend_from_slice(rest);
        self.next += rest.len() as u64;
        Ok(())
    }

    /// Restores a committed piece of an unfinished line. The pieces come in order, the first at the
    /// splitter's offset.
    ///
    /// # Errors
    /// [`LineError`] as for [`LineSplitter::push`].
    pub fn preload(&mut self, offset: u64, piece: &[u8]) -> Result<(), LineError> {
        self.push(offset, piece, |_, _| {})
    }

    fn check(&self, more: usize) -> Result<(), LineError> {
        if self.tail.len() + more > self.bytes_max {
            return Err(LineError::TooLong { start: self.line_start(), bytes_max: self.bytes_max });
        }
        Ok(())
    }

    /// Returns the offset of the next expected byte.
    pub const fn next_offset(&self) -> u64 {
        self.next
    }

    /// Returns the offset of the unfinished line. All earlier bytes belong to completed lines.
    pub fn line_start(&self) -> u64 {
        self.next - self.tail.len() as u64
    }

    /// Returns the part of the unfinished line from this offset on: the uncommitted piece.
    pub fn tail_from(&self, offset: u64) -> &[u8] {
        let skip = usize::try_from(offset.saturating_sub(self.line_start())).unwrap_or(usize::MAX);
        self.tail.get(skip..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(stream: &[u8], cuts: &[usize], base: u64) -> (Vec<(u64, Vec<u8>)>, LineSplitter) {
        let mut lines = LineSplitter::new(base, 1 << 20);
        let mut out = Vec::new();
        let mut from = 0;
        for cut in cuts.iter().copied().chain([stream.len()]) {
            let cut = cut.clamp(from, stream.len());
            let piece = stream.get(from..cut).unwrap();
            lines.push(base + from as u64, piece, |at, line| out.push((at, line.to_vec()))).unwrap();
            from = cut;
        }
        (out, lines)
    }

    #[test]
    fn lines_have_start_offsets() {
        let (out, lines) = split(b"ab\n\ncd\nrest", &[], 10);
        assert_eq!(out, [(10, b"ab".to_vec()), (13, vec![]), (14, b"cd".to_vec())]);
        assert_eq!((&lines.tail[..], lines.line_start(), lines.next_offset()), (&b"rest"[..], 17, 21));
        let want = (&b"rest"[..], &b"st"[..], &b""[..]);
        assert_eq!((lines.tail_from(0), lines.tail_from(19), lines.tail_from(99)), want);
    }

    #[test]
    fn too_long_line_is_an_error_after_earlier_lines() {
        let mut lines = LineSplitter::new(0, 4);
        let mut out = Vec::new();
        let error = lines.push(0, b"abcd\nabcde", |at, line| out.push((at, line.to_vec()))).unwrap_err();
        assert_eq!(out, [(0, b"abcd".to_vec())]);
        assert_eq!(error, LineError::TooLong { start: 5, bytes_max: 4 });
        let mut lines = LineSplitter::new(0, 4);
        lines.push(0, b"abc", |_, _| {}).unwrap();
        assert_eq!(lines.push(3, b"de\n", |_, _| {}), Err(LineError::TooLong { start: 0, bytes_max: 4 }));
    }

    #[test]
    fn gap_is_an_error_and_repetition_is_ignored() {
        let mut lines = LineSplitter::new(5, 100);
        assert_eq!(lines.push(6, b"x", |_, _| {}), Err(LineError::Gap { expected: 5, got: 6 }));
        let mut out = Vec::new();
        lines.push(5, b"ab", |at, line| out.push((at, line.to_vec()))).unwrap();
        lines.push(5, b"abc\n", |at, line| out.push((at, line.to_vec()))).unwrap();
        lines.push(0, b"zz", |at, line| out.push((at, line.to_vec()))).unwrap();
        assert_eq!((out, lines.next_offset()), (vec![(5, b"abc".to_vec())], 9));
    }

    #[test]
    fn long_line_in_pieces_is_scanned_once() {
        // 8 MiB in pieces of 16 bytes: a rescan of the tail at each piece would read 2 TiB.
        let mut lines = LineSplitter::new(0, LINE_BYTES_MAX);
        let mut found = 0;
        for i in 0..1_u64 << 19 {
            lines.push(i * 16, &[b'x'; 16], |_, _| {}).unwrap();
        }
        lines.push(1 << 23, b"\n", |_, line| found = line.len()).unwrap();
        assert_eq!(found, 1 << 23);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_lines(
            stream in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'\n')], 0..300),
            mut cuts in prop::collection::vec(0_usize..300, 0..20),
            base in 0_u64..1 << 40,
        ) {
            cuts.sort_unstable();
            let (want, whole) = split(&stream, &[], base);
            let (got, pieces) = split(&stream, &cuts, base);
            prop_assert_eq!(&got, &want);
            prop_assert_eq!(&pieces.tail, &whole.tail);
            for (at, line) in &got {
                let from = usize::try_from(at - base).unwrap();
                prop_assert_eq!(stream.get(from..from + line.len()).unwrap(), &line[..]);
                prop_assert_eq!(stream.get(from + line.len()), Some(&b'\n'));
            }
            // A restart within the unfinished line: the restored pieces give the same lines.
            let start = whole.line_start();
            let mut restored = LineSplitter::new(start, 1 << 20);
            let half = whole.tail.len() / 2;
            restored.preload(start, whole.tail.get(..half).unwrap()).unwrap();
            restored.preload(start + half as u64, whole.tail.get(half..).unwrap()).unwrap();
            let mut end = Vec::new();
            restored.push(whole.next_offset(), b"end\n", |at, line| end.push((at, line.to_vec()))).unwrap();
            prop_assert_eq!(end, vec![(start, [&whole.tail[..], b"end"].concat())]);
        }
    }
}
