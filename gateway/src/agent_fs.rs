//! `fs/read_text_file` and `fs/write_text_file`, confined to a session's roots.
//!
//! A path is resolved and opened by one system call (`openat2` beneath a directory that is held open), so there
//! is no moment between check and use in which a link could be swapped. What leaves the root by a link or by
//! `..` is refused by the kernel. A write is a new file in the same directory that is synced and then renamed
//! over the old one: it happens wholly or not at all. These functions block; run them where that is allowed.

use crate::core::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND};
use crate::core::link::RpcError;
use rustix::fs::{self, Access, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// The largest file that is read, in bytes.
pub(crate) const READ_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The largest content that is written, in bytes.
pub(crate) const WRITE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How often a lookup is tried again that something moved under; the kernel asks for it.
const LOOKUP_TRIES: usize = 128;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FsError {
    /// The path is not absolute, or has no file name, or holds a zero byte.
    #[error("not a usable absolute path")]
    BadPath,
    /// Not below any root, or a link or `..` leads out of it.
    #[error("outside of the session's directories")]
    Outside,
    /// There is nothing there.
    #[error("no such file")]
    NotFound,
    /// A directory, pipe, device or socket.
    #[error("not a regular file")]
    NotRegular,
    /// Beyond the limit.
    #[error("larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// Bytes that are no text.
    #[error("not UTF-8 text")]
    NotUtf8,
    /// The file's permissions forbid it.
    #[error("permission denied")]
    Denied,
    /// The kernel has no `openat2`, without which paths cannot be confined.
    #[error("this system cannot confine paths (openat2 is missing or forbidden)")]
    Unsupported,
    /// Everything else that the system can say.
    #[error("input or output failed")]
    Io(#[source] std::io::Error),
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound,
            Errno::XDEV | Errno::LOOP => Self::Outside,
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY => Self::Denied,
            Errno::NOSYS => Self::Unsupported,
            Errno::ISDIR | Errno::NXIO => Self::NotRegular,
            Errno::NAMETOOLONG | Errno::INVAL => Self::BadPath,
            other => Self::Io(other.into()),
        }
    }
}

impl From<std::io::Error> for FsError {
    fn from(error: std::io::Error) -> Self {
        Errno::from_io_error(&error).map_or_else(|| Self::Io(error), Self::from)
    }
}

impl FsError {
    pub(crate) fn rpc(self, path: &str) -> RpcError {
        let code = match self {
            Self::NotFound => NOT_FOUND,
            Self::BadPath | Self::Outside | Self::NotRegular | Self::TooLarge { .. } | Self::NotUtf8 => {
                INVALID_PARAMS
            }
            Self::Denied | Self::Unsupported | Self::Io(_) => INTERNAL_ERROR,
        };
        let cause = std::error::Error::source(&self).map(|cause| format!(": {cause}")).unwrap_or_default();
        let path: String = path.chars().take(500).collect();
        RpcError { code, message: format!("{path}: {self}{cause}") }
    }
}

/// The directories of a session, held open: whatever becomes of their names, these are the ones.
#[derive(Debug)]
pub(crate) struct Roots {
    list: Vec<Root>,
}

#[derive(Debug)]
struct Root {
    /// As configured.
    named: PathBuf,
    /// Without links: agents see their working directory like this.
    real: PathBuf,
    dir: OwnedFd,
}

impl Roots {
    /// Opens the roots.
    ///
    /// # Errors
    /// A root is no directory, or the system cannot confine paths.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, FsError> {
        let open = |named: &PathBuf| {
            if !named.is_absolute() {
                return Err(FsError::BadPath);
            }
            let dir = fs::open(named, DIR, Mode::empty())?;
            // Said now rather than at the first request.
            lookup(&dir, Path::new("."), DIR)?;
            let real = real_path(&dir)?;
            Ok(Root { named: named.clone(), real, dir })
        };
        Ok(Self { list: paths.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// `fs/read_text_file`: the result, JSON text. Lines count from 1.
    ///
    /// # Errors
    /// What the agent is told.
    pub(crate) fn read(&self, path: &str, line: Option<u64>, limit: Option<u64>) -> Result<String, RpcError> {
        let text = self.read_text(path).map_err(|error| error.rpc(path))?;
        let content = slice(&text, line, limit);
        Ok(serde_json::json!({ "content": content }).to_string())
    }

    /// `fs/write_text_file`: the result, JSON text. Directories that are missing are made.
    ///
    /// # Errors
    /// What the agent is told; the old content is untouched then.
    pub(crate) fn write(&self, path: &str, content: &str) -> Result<String, RpcError> {
        self.write_text(path, content).map_err(|error| error.rpc(path))?;
        Ok("{}".to_owned())
    }

    /// Whether the file holds exactly the content with this [`content_hash`]: a write that was begun before a
    /// crash is answered by this, and never done twice (H3).
    pub(crate) fn is_written(&self, path: &str, hash: &str) -> bool {
        self.hash(path).is_ok_and(|found| found == hash)
    }

    /// The real path of a directory below the roots, for a command to run in.
    ///
    /// # Errors
    /// What the agent is told.
    pub(crate) fn directory(&self, path: &str) -> Result<String, RpcError> {
        let find = || {
            let (root, below) = self.locate(path)?;
            let dir = lookup(&root.dir, below, DIR)?;
            real_path(&dir)?.into_os_string().into_string().map_err(|_| FsError::BadPath)
        };
        find().map_err(|error: FsError| error.rpc(path))
    }

    /// The real paths of the roots; one that is no text is left out.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.list.iter().filter_map(|root| root.real.to_str().map(str::to_owned)).collect()
    }

    /// The root that a path lies below, and the rest of the path.
    fn locate<'a>(&self, path: &'a str) -> Result<(&Root, &'a Path), FsError> {
        let path = Path::new(path);
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(FsError::BadPath);
        }
        let below = |root| below(root, path).map(|rest| (root, rest));
        // The innermost root: the shortest rest.
        let found = self.list.iter().filter_map(below).min_by_key(|(_, rest)| rest.components().count());
        let (root, rest) = found.ok_or(FsError::Outside)?;
        Ok((root, if rest.as_os_str().is_empty() { Path::new(".") } else { rest }))
    }

    fn open_file(&self, path: &str) -> Result<(File, u64), FsError> {
        let (root, below) = self.locate(path)?;
        let file = lookup(&root.dir, below, READ)?;
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FsError::NotRegular);
        }
        Ok((File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn read_text(&self, path: &str) -> Result<String, FsError> {
        let too_large = FsError::TooLarge { bytes_max: READ_BYTES_MAX };
        let (file, size) = self.open_file(path)?;
        if size > READ_BYTES_MAX {
            return Err(too_large);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        // It may grow while it is read.
        file.take(READ_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > READ_BYTES_MAX {
            return Err(too_large);
        }
        String::from_utf8(bytes).map_err(|_| FsError::NotUtf8)
    }

    fn hash(&self, path: &str) -> Result<String, FsError> {
        let (file, _) = self.open_file(path)?;
        let (mut file, mut hash, mut block) =
            (file.take(WRITE_BYTES_MAX as u64 + 1), Sha256::new(), vec![0; 65_536]);
        loop {
            let count = file.read(&mut block)?;
            if count == 0 {
                return Ok(hex(&hash.finalize()));
            }
            hash.update(block.get(..count).unwrap_or_default());
        }
    }

    fn write_text(&self, path: &str, content: &str) -> Result<(), FsError> {
        if content.len() > WRITE_BYTES_MAX {
            return Err(FsError::TooLarge { bytes_max: WRITE_BYTES_MAX as u64 });
        }
        if path.ends_with('/') {
            return Err(FsError::NotRegular);
        }
        let (root, below) = self.locate(path)?;
        let (dir, name) = root.place(below)?;
        let mode = target_mode(&dir, name)?;
        if mode != Target::Link {
            return replace(&dir, name, mode, content);
        }
        // The last name is a link: what it leads to is written, when that lies below the root.
        let target = lookup(&root.dir, below, OFlags::PATH | OFlags::CLOEXEC)?;
        let real = real_path(&target)?;
        let below = real.strip_prefix(&root.real).map_err(|_| FsError::Outside)?;
        let (dir, name) = root.place(below)?;
        match target_mode(&dir, name)? {
            // Swapped again while we looked: not a game to play.
            Target::Link => Err(FsError::Outside),
            mode => replace(&dir, name, mode, content),
        }
    }
}

impl Root {
    /// The directory of a path below the root, made where it is missing, and the file's name in it.
    fn place<'a>(&self, below: &'a Path) -> Result<(OwnedFd, &'a OsStr), FsError> {
        let Some(Component::Normal(name)) = below.components().next_back() else {
            return Err(FsError::NotRegular);
        };
        let parent = below.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match lookup(&self.dir, parent, DIR) {
            Err(FsError::NotFound) => Ok((self.make(parent)?, name)),
            found => Ok((found?, name)),
        }
    }

    /// Makes a directory and those above it. Each one is made in a directory that was found beneath the root.
    fn make(&self, path: &Path) -> Result<OwnedFd, FsError> {
        let mut dir = lookup(&self.dir, Path::new("."), DIR)?;
        let mut so_far = PathBuf::new();
        for part in path.components() {
            so_far.push(part);
            dir = match lookup(&self.dir, &so_far, DIR) {
                Err(FsError::NotFound) => {
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

/// What stands at the place of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Nothing,
    /// A regular file with this mode.
    File(Mode),
    Link,
}

fn target_mode(dir: &OwnedFd, name: &OsStr) -> Result<Target, FsError> {
    let stat = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Target::Nothing),
        stat => stat?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            // The rename would not mind that the file is read-only; the person who made it so does.
            fs::accessat(dir, name, Access::WRITE_OK, AtFlags::EACCESS)?;
            Ok(Target::File(Mode::from_raw_mode(stat.st_mode & 0o777)))
        }
        FileType::Symlink => Ok(Target::Link),
        _ => Err(FsError::NotRegular),
    }
}

fn replace(dir: &OwnedFd, name: &OsStr, target: Target, content: &str) -> Result<(), FsError> {
    let temporary = format!(".acp-host-{}.tmp", uuid::Uuid::new_v4().simple());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if target == Target::Nothing { 0o666 } else { 0o600 };
    let fd = fs::openat(dir, &temporary, flags, Mode::from_raw_mode(mode))?;
    let written = fill(File::from(fd), target, content)
        .and_then(|()| fs::renameat(dir, &temporary, dir, name).map_err(FsError::from));
    if written.is_err() {
        // Nothing else to do about it: the first error is the one to tell.
        let _ = fs::unlinkat(dir, &temporary, AtFlags::empty());
        return written;
    }
    fs::fsync(dir)?;
    Ok(())
}

fn fill(mut file: File, target: Target, content: &str) -> Result<(), FsError> {
    if let Target::File(mode) = target {
        fs::fchmod(&file, mode)?;
    }
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    Ok(())
}

/// Resolves and opens in one call, beneath `root`.
fn lookup(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, FsError> {
    for _ in 0..LOOKUP_TRIES {
        match fs::openat2(root, path, flags, Mode::empty(), BENEATH) {
            // Something was moved during the lookup, and the kernel could not tell whether it stayed beneath.
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => return Ok(found?),
        }
    }
    Err(FsError::Io(Errno::AGAIN.into()))
}

fn below<'a>(root: &Root, path: &'a Path) -> Option<&'a Path> {
    let named = path.strip_prefix(&root.named).ok();
    let real = path.strip_prefix(&root.real).ok();
    [named, real].into_iter().flatten().min_by_key(|rest| rest.components().count())
}

/// Where an open file is now, without links.
fn real_path(fd: &OwnedFd) -> Result<PathBuf, FsError> {
    Ok(std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?)
}

/// `limit` lines from line `line` on (from 1), with their line ends.
fn slice(text: &str, line: Option<u64>, limit: Option<u64>) -> &str {
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let skip = count(line.unwrap_or(1).saturating_sub(1));
    let start = text.split_inclusive('\n').take(skip).map(str::len).sum::<usize>();
    let rest = text.get(start..).unwrap_or_default();
    let Some(limit) = limit else { return rest };
    let len = rest.split_inclusive('\n').take(count(limit)).map(str::len).sum::<usize>();
    rest.get(..len).unwrap_or_default()
}

/// SHA-256 of a content, in hex.
pub(crate) fn content_hash(content: &str) -> String {
    hex(&Sha256::digest(content.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
        text
    })
}

#[cfg(test)]
#[path = "agent_fs_tests.rs"]
mod tests;
