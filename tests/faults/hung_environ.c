/*
 * A process whose environment cannot be read, because the lock of its memory is never released: one thread unmaps a
 * changed page of a file system that answers no write, and another one waits to change the memory map. It requests
 * the gateway's status, says `connected`, and prints the response.
 *
 * Usage: hung_environ DIRECTORY SOCKET, as root. The file system is mounted at DIRECTORY in a mount namespace of this
 * process. Exit code 77: not possible here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096ul

static char *mapped;
static volatile int unmapping;
static volatile pid_t waiting;

static int impossible(const char *what) {
    perror(what);
    return 77;
}

static void reply(int fuse, uint64_t unique, int error, const void *body, size_t length) {
    static char message[2 * PAGE];
    struct fuse_out_header head = {.len = sizeof head + length, .error = error, .unique = unique};
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, body, length);
    if (write(fuse, message, head.len) < 0)
        _exit(1);
}

/* The root is node 1, every file is node 2. */
static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .size = PAGE, .mode = S_IFREG | 0644};
    if (node == 1)
        attr.mode = S_IFDIR | 0755;
    return attr;
}

/* Serves the file system; the first write is reported and not answered. */
static void serve(int fuse, int report) {
    static char request[256 * 1024], zeros[PAGE];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(fuse, request, sizeof request) > 0) {
        const struct fuse_in_header *in = (const void *)request;
        struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE};
        struct fuse_entry_out entry = {.nodeid = 2, .attr = attributes(2)};
        struct fuse_attr_out attr = {.attr = attributes(in->nodeid)};
        struct fuse_open_out open = {0};
        switch (in->opcode) {
        case FUSE_INIT: reply(fuse, in->unique, 0, &init, sizeof init); break;
        case FUSE_LOOKUP: reply(fuse, in->unique, 0, &entry, sizeof entry); break;
        case FUSE_GETATTR: reply(fuse, in->unique, 0, &attr, sizeof attr); break;
        case FUSE_OPEN: reply(fuse, in->unique, 0, &open, sizeof open); break;
        case FUSE_READ: reply(fuse, in->unique, 0, zeros, PAGE); break;
        case FUSE_WRITE: if (write(report, "w", 1) != 1) _exit(1); break;
        case FUSE_FORGET: break;
        default: reply(fuse, in->unique, -ENOSYS, "", 0);
        }
    }
}

static void *unmap(void *none) {
    munmap(mapped, PAGE);
    return none;
}

static void *map(void *none) {
    while (!unmapping)
        usleep(1000);
    waiting = syscall(SYS_gettid);
    mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return none;
}

/* True once a thread is in an uninterruptible wait. */
static int hangs(pid_t thread) {
    static char path[100], stat[400];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY);
    ssize_t length = read(file, stat, sizeof stat - 1);
    close(file);
    return length > 0 && strstr(stat, ") D ") != NULL;
}

int main(int count, char **args) {
    if (count != 3)
        return 2;
    int report[2], fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    static char options[100], path[4096];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (fuse < 0 || pipe(report) || unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", args[1], "fuse", 0, options))
        return impossible("mount a file system");
    if (fork() == 0) {
        serve(fuse, report[1]);
        _exit(0);
    }
    close(fuse);
    snprintf(path, sizeof path, "%s/file", args[1]);
    int file = open(path, O_RDWR);
    mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        return impossible("map a file");
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, args[2], sizeof at.sun_path - 1);
    int gateway = socket(AF_UNIX, SOCK_STREAM, 0);
    pthread_t threads[2];
    mapped[0] = 1;
    /* Started first: a new thread needs memory. */
    if (pthread_create(&threads[0], NULL, map, NULL) || pthread_create(&threads[1], NULL, unmap, NULL) ||
        read(report[0], path, 1) != 1)
        return impossible("write a page");
    unmapping = 1;
    while (!waiting || !hangs(waiting))
        usleep(1000);
    static const char get[] = "GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    if (connect(gateway, (struct sockaddr *)&at, sizeof at) || write(gateway, get, sizeof get - 1) < 0)
        return 1;
    if (write(1, "connected\n", 10) != 10)
        return 1;
    for (ssize_t length; (length = read(gateway, path, sizeof path)) > 0;)
        if (write(1, path, length) != length)
            return 1;
    return 0;
}
