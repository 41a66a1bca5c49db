/* Operations that a shell script cannot do. The first argument selects one. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Forks a child of this thread that ignores SIGTERM in its own session, then stays. */
static void *forking_thread(void *unused)
{
    (void)unused;
    if (fork() == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        for (;;)
            pause();
    }
    for (;;)
        pause();
    return NULL;
}

/* threads N: starts N threads with a child each, then waits for the end of stdin. */
static int threads(int count)
{
    pthread_t thread;
    char byte;
    while (count-- > 0)
        if (pthread_create(&thread, NULL, forking_thread, NULL) != 0)
            return 1;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}

/* trace PID: becomes the tracer of PID, reports it, and handles none of its events. */
static int trace(int pid)
{
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == -1) {
        printf("failed: %s\n", strerror(errno));
        fflush(stdout);
        return 1;
    }
    printf("traced\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* without-landlock PROGRAM: runs PROGRAM with Landlock's system call refused. */
static int without_landlock(char **argv)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof code / sizeof *code, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 1;
    execv(argv[0], argv);
    return 1;
}

/* eat: prints `ready`, waits for a line, then allocates memory until it is killed. */
static int eat(void)
{
    const size_t piece = 1 << 20;
    char byte;
    printf("ready\n");
    fflush(stdout);
    if (read(0, &byte, 1) <= 0)
        return 0;
    for (;;) {
        char *memory = malloc(piece);
        if (memory == NULL)
            return 3;
        memset(memory, 1, piece);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "threads"))
        return threads(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "trace"))
        return trace(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "without-landlock"))
        return without_landlock(argv + 2);
    if (argc == 2 && !strcmp(argv[1], "eat"))
        return eat();
    return 64;
}
