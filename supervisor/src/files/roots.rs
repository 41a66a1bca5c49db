//! File operations beneath the roots of a session.
//!
//! A path is resolved and opened by one system call (`openat2` beneath a directory that is held open), so no
//! link can be swapped between check and use. The kernel refuses a path that leaves the root by a link or by
//! `..`. A write creates a new file in the same directory, syncs it and renames it over the old one, so it is
//! atomic. These functions block; they run in the helper process.

use acp_shared::files::{ENTRIES_MAX, FilesEntry, FilesError, Inspection, READ_BYTES_MAX, WRITE_BYTES_MAX};
use rustix::fs::{self, Access, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Maximum number of entries that a listing of a directory reads.
const LISTED_NAMES_MAX: usize = 20_000;
/// Maximum number of attempts for a lookup that fails because a directory was moved meanwhile.
const LOOKUP_TRIES: usize = 128;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// [`FilesError`] with conversions from system errors.
#[derive(Debug)]
pub(super) struct RootsError(pub(super) FilesError);

type RootsResult<T> = Result<T, RootsError>;

impl From<FilesError> for RootsError {
    fn from(error: FilesError) -> Self {
        Self(error)
    }
}

impl From<Errno> for RootsError {
    fn from(errno: Errno) -> Self {
        Self(match errno {
            Errno::NOENT | Errno::NOTDIR => FilesError::NotFound,
            Errno::XDEV | Errno::LOOP => FilesError::Outside,
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY => FilesError::Denied,
            Errno::NOSYS => FilesError::Unsupported,
            Errno::ISDIR | Errno::NXIO => FilesError::NotRegular,
            Errno::NAMETOOLONG | Errno::INVAL => FilesError::BadPath,
            other => FilesError::Io { message: other.to_string() },
        })
    }
}

impl From<std::io::Error> for RootsError {
    fn from(error: std::io::Error) -> Self {
        let other = || Self(FilesError::Io { message: error.to_string() });
        Errno::from_io_error(&error).map_or_else(other, Self::from)
    }
}

/// Open directories of a session; later renames do not affect them.
#[derive(Debug)]
pub(crate) struct Roots {
    list: Vec<Root>,
}

#[derive(Debug)]
struct Root {
    /// Path as the gateway sent it: without links.
    named: PathBuf,
    /// Same path without `.` and `..`.
    real: PathBuf,
    dir: OwnedFd,
}

impl Roots {
    /// Opens the roots. The first one, the working directory, must exist; others that cannot be opened are
    /// left out.
    ///
    /// # Errors
    /// The first root is not a directory or its path has a link, or the system cannot confine paths.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, FilesError> {
        let open = |named: &PathBuf| {
            if !named.is_absolute() {
                return Err(FilesError::BadPath.into());
            }
            // The gateway resolved the links: a link found now was created later, perhaps to redirect access.
            let dir = fs::openat2(fs::CWD, named, DIR, Mode::empty(), NO_LINKS)?;
            let real = real_path(&dir)?;
            Ok(Root { named: named.clone(), real, dir })
        };
        let mut opened = paths.iter().map(open);
        let first: Option<Root> = opened.next().transpose().map_err(|error: RootsError| error.0)?;
        Ok(Self { list: first.into_iter().chain(opened.filter_map(Result::ok)).collect() })
    }

    /// Returns at most `limit` lines of a text file, from `line` on. Lines count from 1.
    ///
    /// # Errors
    /// [`FilesError`].
    pub(crate) fn read(
        &self,
        path: &str,
        line: Option<u64>,
        limit: Option<u64>,
        bytes_max: u64,
    ) -> Result<String, FilesError> {
        let text = self.read_text(path, bytes_max.min(READ_BYTES_MAX)).map_err(|error| error.0)?;
        Ok(slice(&text, line, limit).to_owned())
    }

    /// Replaces the content of a file. Missing directories are created.
    ///
    /// # Errors
    /// [`FilesError`]; the old content is untouched unless [`FilesError::is_uncertain`].
    pub(crate) fn write(&self, path: &str, content: &[u8]) -> Result<(), FilesError> {
        self.write_bytes(path, content).map_err(|error| error.0)
    }

    /// Returns the state of a file. After a crash, its hash shows if a started write was completed; a write
    /// is never repeated (H3).
    ///
    /// # Errors
    /// [`FilesError`]; a missing file is not an error.
    pub(crate) fn inspect(&self, path: &str, text_bytes_max: u64) -> Result<Inspection, FilesError> {
        self.inspect_file(path, text_bytes_max).map_err(|error| error.0)
    }

    /// Returns the canonical path of a directory beneath the roots.
    ///
    /// # Errors
    /// [`FilesError`].
    pub(crate) fn directory(&self, path: &str) -> Result<String, FilesError> {
        let find = || {
            let (root, below) = self.locate(path)?;
            text(real_path(&lookup(&root.dir, below, DIR)?)?)
        };
        find().map_err(|error: RootsError| error.0)
    }

    /// Returns the first entries of a directory by name, and whether there are more.
    ///
    /// # Errors
    /// [`FilesError`].
    pub(crate) fn list(&self, path: &str, entries_max: u64) -> Result<(Vec<FilesEntry>, bool), FilesError> {
        let max = usize::try_from(entries_max.min(ENTRIES_MAX)).unwrap_or(0);
        self.list_directory(path, max).map_err(|error| error.0)
    }

    /// Returns the canonical paths of the roots that could be opened.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub(crate) fn paths(&self) -> Result<Vec<String>, FilesError> {
        let all: RootsResult<_> = self.list.iter().map(|root| text(root.real.clone())).collect();
        all.map_err(|error| error.0)
    }

    /// Returns the root that contains a path, and the rest of the path.
    fn locate<'a>(&self, path: &'a str) -> RootsResult<(&Root, &'a Path)> {
        let path = Path::new(path);
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FilesError::BadPath.into());
        }
        let below = |root| below(root, path).map(|rest| (root, rest));
        // The innermost root has the shortest rest.
        let found = self.list.iter().filter_map(below).min_by_key(|(_, rest)| rest.components().count());
        let (root, rest) = found.ok_or(FilesError::Outside)?;
        Ok((root, if rest.as_os_str().is_empty() { Path::new(".") } else { rest }))
    }

    fn list_directory(&self, path: &str, entries_max: usize) -> RootsResult<(Vec<FilesEntry>, bool)> {
        let (root, below) = self.locate(path)?;
        let dir = lookup(&root.dir, below, DIR)?;
        let mut all = fs::Dir::read_from(&dir)?;
        let mut names = Vec::new();
        for entry in all.by_ref().take(LISTED_NAMES_MAX) {
            if let Ok(name) = entry?.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        let mut more = all.next().is_some();
        names.sort_unstable();
        more |= names.len() > entries_max;
        names.truncate(entries_max);
        let described = names.into_iter().filter_map(|name| {
            // An entry that was removed meanwhile is left out.
            let stat = fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_directory = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => true,
                FileType::Symlink => lookup(&root.dir, &below.join(&name), DIR).is_ok(),
                _ => false,
            };
            Some(FilesEntry { name, is_directory, size: u64::try_from(stat.st_size).unwrap_or(0) })
        });
        Ok((described.collect(), more))
    }

    fn open_file(&self, path: &str) -> RootsResult<(File, u64)> {
        let (root, below) = self.locate(path)?;
        let file = lookup(&root.dir, below, READ)?;
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FilesError::NotRegular.into());
        }
        Ok((File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn read_text(&self, path: &str, bytes_max: u64) -> RootsResult<String> {
        let (file, size) = self.open_file(path)?;
        if size > bytes_max {
            return Err(FilesError::TooLarge { bytes_max }.into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        // The file may grow while it is read.
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(FilesError::TooLarge { bytes_max }.into());
        }
        Ok(String::from_utf8(bytes).map_err(|_| FilesError::NotUtf8)?)
    }

    fn inspect_file(&self, path: &str, text_bytes_max: u64) -> RootsResult<Inspection> {
        let (root, below) = self.locate(path)?;
        let found = match lookup(&root.dir, below, PATH) {
            Err(RootsError(FilesError::NotFound)) => return root.inspect_missing(below),
            found => found?,
        };
        let stat = fs::fstat(&found)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let mut seen = Inspection {
            canonical: Some(text(real_path(&found)?)?),
            exists: true,
            is_regular,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            ..Inspection::default()
        };
        if is_regular && seen.size <= WRITE_BYTES_MAX {
            match self.open_file(path) {
                // Path and content are taken from one open file, even if it was renamed in between.
                Ok((file, size)) => {
                    seen.canonical = Some(text(real_path(&file)?)?);
                    (seen.size, seen.sha256, seen.text) = content(file, size, text_bytes_max)?;
                }
                Err(RootsError(FilesError::Denied)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    }

    fn write_bytes(&self, path: &str, content: &[u8]) -> RootsResult<()> {
        if content.len() as u64 > WRITE_BYTES_MAX {
            return Err(FilesError::TooLarge { bytes_max: WRITE_BYTES_MAX }.into());
        }
        if path.ends_with('/') {
            return Err(FilesError::NotRegular.into());
        }
        let (root, below) = self.locate(path)?;
        let (dir, name) = root.parent_and_name(below)?;
        let mode = target_mode(&dir, name)?;
        if mode != WriteTarget::Link {
            return replace(&dir, name, mode, content);
        }
        // The last component is a link: write its target, if that lies below the root.
        let target = lookup(&root.dir, below, OFlags::PATH | OFlags::CLOEXEC)?;
        let real = real_path(&target)?;
        let below = real.strip_prefix(&root.real).map_err(|_| FilesError::Outside)?;
        let (dir, name) = root.parent_and_name(below)?;
        match target_mode(&dir, name)? {
            // The link was swapped again during the operation: refuse.
            WriteTarget::Link => Err(FilesError::Outside.into()),
            mode => replace(&dir, name, mode, content),
        }
    }
}

impl Root {
    fn inspect_missing(&self, below: &Path) -> RootsResult<Inspection> {
        let canonical = Some(text(self.canonical(below)?)?);
        Ok(Inspection { canonical, ..Inspection::default() })
    }

    /// Returns the canonical path of a missing file: that of the nearest existing directory above it, with
    /// the missing names.
    fn canonical(&self, below: &Path) -> RootsResult<PathBuf> {
        let mut names = Vec::new();
        let mut dir = below;
        loop {
            let Some(Component::Normal(name)) = dir.components().next_back() else {
                return Err(FilesError::BadPath.into());
            };
            names.push(name);
            let parent = dir.parent().unwrap_or(Path::new(""));
            dir = parent;
            let found = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            match lookup(&self.dir, found, DIR) {
                Err(RootsError(FilesError::NotFound)) => {}
                found => {
                    let mut path = real_path(&found?)?;
                    path.extend(names.iter().rev());
                    return Ok(path);
                }
            }
        }
    }

    /// Returns the parent directory of a path below the root, created if missing, and the file name.
    fn parent_and_name<'a>(&self, below: &'a Path) -> RootsResult<(OwnedFd, &'a OsStr)> {
        let Some(Component::Normal(name)) = below.components().next_back() else {
            return Err(FilesError::NotRegular.into());
        };
        let parent = below.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match lookup(&self.dir, parent, DIR) {
            Err(RootsError(FilesError::NotFound)) => Ok((self.create_dirs(parent)?, name)),
            found => Ok((found?, name)),
        }
    }

    /// Creates a directory and its parents. Each one is created in a directory that was resolved beneath the
    /// root.
    fn create_dirs(&self, path: &Path) -> RootsResult<OwnedFd> {
        let mut dir = lookup(&self.dir, Path::new("."), DIR)?;
        let mut so_far = PathBuf::new();
        for part in path.components() {
            so_far.push(part);
            dir = match lookup(&self.dir, &so_far, DIR) {
                Err(RootsError(FilesError::NotFound)) => {
                    match fs::mkdirat(&dir, part.as_os_str(), Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    lookup(&self.dir, &so_far, DIR)?
                }
                found => found?,
            };
        }
        Ok(dir)
    }
}

/// Existing entry at the target of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteTarget {
    Nothing,
    /// A regular file with this mode.
    File(Mode),
    Link,
}

fn target_mode(dir: &OwnedFd, name: &OsStr) -> RootsResult<WriteTarget> {
    let stat = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(WriteTarget::Nothing),
        stat => stat?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            // A rename would replace a read-only file too; its missing write permission must be respected.
            fs::accessat(dir, name, Access::WRITE_OK, AtFlags::EACCESS)?;
            Ok(WriteTarget::File(Mode::from_raw_mode(stat.st_mode & 0o777)))
        }
        FileType::Symlink => Ok(WriteTarget::Link),
        _ => Err(FilesError::NotRegular.into()),
    }
}

fn replace(dir: &OwnedFd, name: &OsStr, target: WriteTarget, content: &[u8]) -> RootsResult<()> {
    let temporary = format!(".acp-host-{}.tmp", uuid::Uuid::new_v4().simple());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if target == WriteTarget::Nothing { 0o666 } else { 0o600 };
    let fd = fs::openat(dir, &temporary, flags, Mode::from_raw_mode(mode))?;
    let written = write_content(File::from(fd), target, content)
        .and_then(|()| fs::renameat(dir, &temporary, dir, name).map_err(RootsError::from));
    if written.is_err() {
        // A failed removal is ignored: the first error is more important.
        let _ = fs::unlinkat(dir, &temporary, AtFlags::empty());
        return written;
    }
    check_sync(fs::fsync(dir))
}

/// Outcome of a rename after the sync of its directory. The new content is in place, so a failed sync is an
/// uncertain result.
fn check_sync(synced: Result<(), Errno>) -> RootsResult<()> {
    match synced {
        // The file system cannot sync directories.
        Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        Err(_) => Err(FilesError::Interrupted.into()),
    }
}

fn write_content(mut file: File, target: WriteTarget, content: &[u8]) -> RootsResult<()> {
    if let WriteTarget::File(mode) = target {
        fs::fchmod(&file, mode)?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    Ok(())
}

/// Resolves and opens a path beneath `root` in one call.
fn lookup(root: &OwnedFd, path: &Path, flags: OFlags) -> RootsResult<OwnedFd> {
    for _ in 0..LOOKUP_TRIES {
        match fs::openat2(root, path, flags, Mode::empty(), BENEATH) {
            // A concurrent rename: the kernel could not decide if the path stays beneath the root.
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => return Ok(found?),
        }
    }
    Err(FilesError::Io { message: Errno::AGAIN.to_string() }.into())
}

fn below<'a>(root: &Root, path: &'a Path) -> Option<&'a Path> {
    let named = path.strip_prefix(&root.named).ok();
    let real = path.strip_prefix(&root.real).ok();
    [named, real].into_iter().flatten().min_by_key(|rest| rest.components().count())
}

/// Returns the current path of an open file, without links.
fn real_path(fd: &impl AsRawFd) -> RootsResult<PathBuf> {
    Ok(std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?)
}

/// Returns `limit` lines starting at line `line` (from 1), with their line ends.
fn slice(text: &str, line: Option<u64>, limit: Option<u64>) -> &str {
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let skip = count(line.unwrap_or(1).saturating_sub(1));
    let start = text.split_inclusive('\n').take(skip).map(str::len).sum::<usize>();
    let rest = text.get(start..).unwrap_or_default();
    let Some(limit) = limit else { return rest };
    let len = rest.split_inclusive('\n').take(count(limit)).map(str::len).sum::<usize>();
    rest.get(..len).unwrap_or_default()
}

/// Returns size, hash and, up to a limit, text of a file.
fn content(file: File, size: u64, text_bytes_max: u64) -> RootsResult<(u64, Option<String>, Option<String>)> {
    let keep = size <= text_bytes_max.min(READ_BYTES_MAX);
    let (mut file, mut hash, mut block) = (file.take(WRITE_BYTES_MAX + 1), Sha256::new(), vec![0; 65_536]);
    let (mut bytes, mut read) = (Vec::new(), 0);
    loop {
        let count = file.read(&mut block)?;
        let part = block.get(..count).unwrap_or_default();
        if count == 0 {
            break;
        }
        hash.update(part);
        read += count as u64;
        if keep && read <= text_bytes_max {
            bytes.extend_from_slice(part);
        }
    }
    let whole = read <= WRITE_BYTES_MAX;
    let text = (keep && bytes.len() as u64 == read).then(|| String::from_utf8(bytes).ok()).flatten();
    Ok((read, whole.then(|| format!("{:x}", hash.finalize())), text))
}

fn text(path: PathBuf) -> RootsResult<String> {
    Ok(path.into_os_string().into_string().map_err(|_| FilesError::BadPath)?)
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
