//! Handover format: a sealed memfd with a header of fixed size, one record for the supervisor's state, and one record
//! per lease. A record is a JSON value, followed by the byte strings that the value counts.
//! Integers are big-endian.
//!
//! ```text
//! file   = magic[8] version:u32 leases:u32 body_bytes:u64 sha256_of_body[32] record*
//! record = length:u64 json { length:u64 bytes }*
//! ```

use super::{EntryState, Handover, SupervisorState};
use crate::relay::RelayState;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

/// Handover version. Incremented with every change that an older reader would misread instead of rejecting.
pub(crate) const HANDOVER_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"ACPHAND\n";
const HEADER_BYTES: usize = 56;
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Error: the handover cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// The file cannot be read.
    #[error("the handover cannot be read")]
    Io(#[from] io::Error),
    /// The file is not a handover.
    #[error("this is not a handover: {0}")]
    Foreign(&'static str),
    /// The handover has another version.
    #[error("the handover has version {found}, this program reads {HANDOVER_VERSION}")]
    Version {
        /// Version in the header.
        found: u32,
    },
    /// A record does not match the types of this program.
    #[error("cannot decode the handover state")]
    Record(#[from] serde_json::Error),
}

/// Summary for the comparison of a handover as written and as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Number of leases.
    pub(crate) leases: u32,
    /// SHA-256 of the body, in hex.
    pub(crate) checksum: String,
}

/// Writer that counts and hashes the bytes passed to the file.
struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
    count: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn put(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u64).to_be_bytes())?;
    to.write_all(bytes)
}

fn put_record(to: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    put(to, &serde_json::to_vec(record)?)
}

fn header(leases: u32, body_bytes: u64, hash: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 5] =
        [&MAGIC, &HANDOVER_VERSION.to_be_bytes(), &leases.to_be_bytes(), &body_bytes.to_be_bytes(), hash];
    parts.concat()
}

/// Writes a handover. Each buffer is copied into the file directly.
///
/// # Errors
/// The system is out of memory or descriptors.
pub(crate) fn write(handover: &mut Handover) -> io::Result<(File, Summary)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
    let made = rustix::fs::memfd_create("acp-handover", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("acp-handover", flags))?;
    let file = File::from(made);
    (&file).write_all(&[0; HEADER_BYTES])?;
    let mut out = HashingWriter { inner: BufWriter::new(&file), hash: Sha256::new(), count: 0 };
    put_record(&mut out, &handover.head)?;
    for entry in &mut handover.entries {
        put_record(&mut out, &*entry)?;
        for bulk in entry.relay.iter_mut().flat_map(RelayState::raw_buffers) {
            put(&mut out, bulk)?;
        }
    }
    out.flush()?;
    let (hash, count) = (out.hash.clone().finalize(), out.count);
    drop(out);
    let leases = u32::try_from(handover.entries.len()).map_err(io::Error::other)?;
    file.write_all_at(&header(leases, count, &hash), 0)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok((file, Summary { leases, checksum: format!("{hash:x}") }))
}

/// Creates a sealed image with any body and a matching header and checksum.
///
/// # Errors
/// The system is out of memory or descriptors.
#[cfg(any(test, fuzzing))]
pub(crate) fn seal(leases: u32, body: &[u8]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create(
        "acp-handover",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?);
    (&file).write_all(&header(leases, body.len() as u64, &Sha256::digest(body)))?;
    (&file).write_all(body)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Reader with its own offset: duplicated descriptors share the offset of the file.
struct OffsetReader<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for OffsetReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn get(from: &mut impl Read, body_bytes: u64) -> Result<Vec<u8>, ImageError> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_be_bytes(length);
    if length > body_bytes {
        return Err(ImageError::Foreign("a length exceeds the size of the handover"));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn get_record<T: DeserializeOwned>(from: &mut impl Read, body_bytes: u64) -> Result<T, ImageError> {
    Ok(serde_json::from_slice(&get(from, body_bytes)?)?)
}

fn check_header(file: &File) -> Result<(u64, Summary), ImageError> {
    let mut head = [0; HEADER_BYTES];
    file.read_exact_at(&mut head, 0)?;
    let (magic, rest) = head.split_at(8);
    if magic != MAGIC {
        return Err(ImageError::Foreign("its header does not match"));
    }
    let word = |at: usize| rest.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    if word(0) != HANDOVER_VERSION {
        return Err(ImageError::Version { found: word(0) });
    }
    let body_bytes = (u64::from(word(8)) << 32) | u64::from(word(12));
    if file.metadata()?.len() != HEADER_BYTES as u64 + body_bytes {
        return Err(ImageError::Foreign("it is truncated"));
    }
    let mut hash = Sha256::new();
    io::copy(&mut BufReader::new(OffsetReader { file, offset: HEADER_BYTES as u64 }), &mut hash)?;
    let hash = hash.finalize();
    if rest.get(16..) != Some(hash.as_slice()) {
        return Err(ImageError::Foreign("its checksum does not match"));
    }
    Ok((body_bytes, Summary { leases: word(4), checksum: format!("{hash:x}") }))
}

/// Reads a handover. Its descriptors are mere numbers until they are taken over.
///
/// # Errors
/// [`ImageError`] if the file is not a valid handover of this version.
pub(crate) fn read(fd: BorrowedFd<'_>) -> Result<(Handover, Summary), ImageError> {
    let sealed =
        rustix::fs::fcntl_get_seals(fd).map_err(|_| ImageError::Foreign("it is not a memory file"))?;
    if !sealed.contains(SEALS) {
        return Err(ImageError::Foreign("it is not sealed"));
    }
    let file = File::from(fd.try_clone_to_owned()?);
    let (body_bytes, summary) = check_header(&file)?;
    let mut from = BufReader::new(OffsetReader { file: &file, offset: HEADER_BYTES as u64 });
    let head: SupervisorState = get_record(&mut from, body_bytes)?;
    let mut entries = Vec::new();
    for _ in 0..summary.leases {
        let mut entry: EntryState = get_record(&mut from, body_bytes)?;
        // Each message has a length of eight bytes at least.
        if entry.relay.as_ref().map_or(0, RelayState::queued_count) as u64 > body_bytes / 8 {
            return Err(ImageError::Foreign("it has more pending messages than a queue can hold"));
        }
        for bulk in entry.relay.iter_mut().flat_map(RelayState::raw_buffers) {
            *bulk = get(&mut from, body_bytes)?;
        }
        entries.push(entry);
    }
    if from.read(&mut [0])? != 0 {
        return Err(ImageError::Foreign("it has trailing bytes"));
    }
    Ok((Handover { head, entries }, summary))
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
