/*
 * Between a guest's console and this one's: `window FROM TO COMMAND...` runs COMMAND, repeats what
 * comes from FROM, and answers in TO when the guest says that a window begins or ends. It tells what
 * was counted from one to the other: in the hypervisor's ledger below, and by KVM here.
 *
 *   @window begin                  of the guest's
 *   @window end NAME=N ...         of the guest's: what it did
 *   @exitless window NAME=N ... kvm_exits=N kvm_halt_exits=N ... [the ledger]
 */
#include "../measure/measure.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* KVM's own numbers, of all its guests. */
static const char *const KVM[] = {"exits", "halt_exits", "io_exits", "irq_exits", "irq_injections", "irq_window_exits", "mmio_exits"};
#define KINDS (sizeof KVM / sizeof *KVM)

void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("@exitless failed ");
    vprintf(format, list);
    printf("\n");
    exit(1);
}

static void kvm_read(unsigned long long into[KINDS])
{
    for (size_t kind = 0; kind < KINDS; kind++) {
        char path[64];
        snprintf(path, sizeof path, "/sys/kernel/debug/kvm/%s", KVM[kind]);
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%llu", &into[kind]) != 1)
            fail("%s: %s", path, strerror(errno));
        fclose(file);
    }
}

int main(int count, char **arguments)
{
    static struct page before[MAX_CPUS], after[MAX_CPUS];
    unsigned long long kvm_before[KINDS], kvm_after[KINDS];
    char line[512];
    int status;

    setlinebuf(stdout);
    if (count < 4)
        fail("usage: window FROM TO COMMAND...");
    ledger_find();
    cpus_all();
    pid_t guest = fork();
    if (!guest) {
        execvp(arguments[3], arguments + 3);
        fail("%s: %s", arguments[3], strerror(errno));
    }
    /* In the order in which QEMU opens them, in which each waits for the other end. */
    FILE *to = fopen(arguments[2], "r+"), *from = fopen(arguments[1], "r");
    if (!from || !to)
        fail("%s, %s: %s", arguments[1], arguments[2], strerror(errno));
    setlinebuf(to);
    while (fgets(line, sizeof line, from)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!strcmp(line, "@window begin")) {
            kvm_read(kvm_before);
            ledger_read(before);
            fputs("go\n", to);
        } else if (!strncmp(line, "@window end ", 12)) {
            ledger_read(after);
            kvm_read(kvm_after);
            printf("@exitless window %s", line + 12);
            for (size_t kind = 0; kind < KINDS; kind++)
                printf(" kvm_%s=%llu", KVM[kind], kvm_after[kind] - kvm_before[kind]);
            ledger_print(before, after);
            printf("\n");
            fputs("go\n", to);
        } else {
            printf("%s\n", line);
        }
    }
    if (waitpid(guest, &status, 0) != guest || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}
