/* What a shell cannot do, for the tests of the real wrapper. One word says what. */
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

/* Forks a process that ignores SIGTERM in a session of its own, then stays: it is the child of this very thread. */
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

/* threads N: N threads with a child each, then waits for the end of stdin. */
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

/* trace PID: becomes the tracer of PID, says so, and never does anything for it again. */
static int trace(int pid)
{
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == -1) {
        printf("no %s\n", strerror(errno));
        fflush(stdout);
        return 1;
    }
    printf("traced\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* without-landlock PROGRAM: runs it as if the kernel had no Landlock. */
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

/* eat: says that it is there, waits for a line, then takes memory until somebody ends it. */
static int eat(void)
{
    const size_t piece = 1 << 20;
    char byte;
    printf("hungry\n");
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
