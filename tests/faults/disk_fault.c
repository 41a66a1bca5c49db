/*
 * Faults below SQLite, for a program under test: preload this library and name a control file in DISK_FAULT.
 * The file's first word is the fault, read anew at each call on a file whose path holds ".db":
 *
 *   sync   fsync and fdatasync fail with EIO
 *   write  write and pwrite fail with EIO
 *   torn   the next write to a "-wal" file stops in its middle, and the process is killed there
 *
 * Anything else, or no file, is no fault.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fault_is(const char *name)
{
    const char *control = getenv("DISK_FAULT");
    char word[16] = "";
    if (!control) return 0;
    int saved = errno;
    long fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        long count = syscall(SYS_read, fd, word, sizeof word - 1);
        word[count > 0 ? count : 0] = 0;
        syscall(SYS_close, fd);
    }
    errno = saved;
    word[strcspn(word, " \n")] = 0;
    return strcmp(word, name) == 0;
}

static int path_holds(int fd, const char *part)
{
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

static int sync_fails(int fd)
{
    return fault_is("sync") && path_holds(fd, ".db");
}

static int write_fails(int fd)
{
    return fault_is("write") && path_holds(fd, ".db");
}

static int write_tears(int fd)
{
    return fault_is("torn") && path_holds(fd, ".db-wal");
}

int fsync(int fd)
{
    if (sync_fails(fd)) { errno = EIO; return -1; }
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    if (sync_fails(fd)) { errno = EIO; return -1; }
    return (int)syscall(SYS_fdatasync, fd);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (write_fails(fd)) { errno = EIO; return -1; }
    if (write_tears(fd)) {
        syscall(SYS_write, fd, bytes, count / 2);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_write, fd, bytes, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset)
{
    if (write_fails(fd)) { errno = EIO; return -1; }
    if (write_tears(fd)) {
        syscall(SYS_pwrite64, fd, bytes, count / 2, offset);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_pwrite64, fd, bytes, count, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    return pwrite64(fd, bytes, count, offset);
}
