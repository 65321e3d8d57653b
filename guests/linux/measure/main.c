/*
 * Opens and closes measuring windows around a running load, from inside the
 * guest, without disturbing what they count.
 *
 *   measure -c COUNTER -d DEVICE -w WARMUP -s SHORT -l LONG -n PAIRS [-r PORT] [-b BYTES] [-x
 *   EXITS] [-t TEXT] [-o FILE] [-g GUEST] [-a] PROGRAM [ARGUMENT...]
 *
 * waits until the machine is idle, starts PROGRAM, lets about WARMUP operations pass by COUNTER
 * (operations.c), then takes PAIRS times a window of about SHORT and one of about LONG operations,
 * stops PROGRAM, and prints one line per window. Every figure that differs between a short and a
 * long window belongs to the load; what is the same in both (the edges, this program) drops out of
 * the slope. With -r it first waits until PROGRAM listens on PORT and says "@exitless ready TEXT
 * port=PORT"; -t also goes to the guest's line. With -b an operation that sends less than BYTES is
 * none: the load answers with errors. With -x a window with more than EXITS exits fails the run, as
 * far as a ledger says. With -g this is guest 0 or 1 of two that share a core. Its markers are its
 * own; it says "@exitless loaded" when it is warm, waits for a byte on its console before its
 * windows, says "@exitless load-over" after them and keeps the load on until it gets another byte:
 * each has the other's load beside it in all its windows. The second has no spin window; the first
 * waits for a third byte before its own, which comes when the second is gone. With -o what PROGRAM
 * says goes to FILE, and from there out when all is over. With -a it doesn't wait until the machine
 * is idle: others may ask it already, and the wait was before.
 *
 * Then, with the load gone and the network interface down, it spins through a loop
 * of a known number of instructions: whatever is counted beyond them belongs to the
 * timer ticks of that time, which gives the price of a tick (kind=spin).
 *
 * An ARGUMENT that begins with "rest:" is left out under load. For the spin window PROGRAM is
 * started again with what follows the colon, which is to make it wait: what it does by the clock,
 * and the kernel for it, comes with the ticks and is part of their price.
 *
 * Inside a load's window this program sleeps, and looks a few times whether the
 * window's operations are done: some timers and reads of one counter, no output. At
 * an edge it runs a marker (a NOP that the counting plugin of the emulator knows),
 * reads the hypervisor's ledger pages with plain loads when there are any, and
 * reads the counters of the load, the device and the interrupts. Nothing of that
 * is an exit. A window gets at least the operations it is to have, unless that takes
 * longer than LONGEST_WINDOW, and counts exactly how many. It stays on one CPU, so
 * that both edges are there; the load runs on all of them.
 *
 * A window's line:
 *   number kind spun operations interrupts ticks nanoseconds  as ever; interrupts of
 *       the device, over all its vectors and CPUs, ticks of all CPUs
 *   bytes              the load's, or what passed through the interface both ways
 *   sent received      bytes by the interface's counters; packets both ways
 *   idle               nanoseconds that all CPUs together had nothing to do
 *   entries ... exits  the ledger, all vCPUs together; exits0, exits1, ... each vCPU
 */
#define _GNU_SOURCE
#include "measure.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* nopl imm32(%rax,%rax,1): eight bytes, no effect. */
#define MARK(imm) __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00; .long " #imm ::: "memory")
#define WINDOW_OPEN() MARK(0x45580001)
#define WINDOW_CLOSE() MARK(0x45580002)
#define OTHER_OPEN() MARK(0x45580003)
#define OTHER_CLOSE() MARK(0x45580004)

#define MAX_PAIRS 64
#define MAX_ARGUMENTS 100
/* However slow the machine, a window ends. */
#define LONGEST_WINDOW 20000000000ull
#define SHORTEST_SLEEP 5e6
#define LONGEST_SLEEP 1e9
/* A load that does nothing for so long within a window has died or hangs. */
#define STANDSTILL 10000000000ull
/* The machine counts as idle when a stretch of this length was less than three quarters busy on one
   CPU: a program that waits may look for something a hundred times a second, on a slow machine. */
#define STRETCH 300000000ull
#define SPIN_NANOSECONDS 1000000000ull

/* All counters at one edge of a window. */
struct sample {
    struct bytes bytes;
    struct done done;
    struct interrupts interrupts;
    uint64_t nanoseconds, idle;
    struct page ledger[MAX_CPUS];
};

/* Readings of an edge at the most. */
#define EDGE_TRIES 100

static int uptime_file;
static long guest = -1; /* which of two that share a core */

void sleep_until(uint64_t when)
{
    struct timespec t = {.tv_sec = (time_t)(when / 1000000000), .tv_nsec = (long)(when % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* Twice `rounds` instructions, exactly. */
static void spin(uint64_t rounds)
{
    __asm__ volatile("1: dec %0; jnz 1b" : "+r"(rounds)::"cc");
}

uint64_t operations(void)
{
    struct done done;
    operations_read(&done);
    return done.operations;
}

/* Nanoseconds that the CPUs were idle, all together, to the hundredth of a second. */
static uint64_t idle(void)
{
    char *text = slurp(uptime_file, "/proc/uptime");
    return (uint64_t)(strtod(text + strcspn(text, " "), NULL) * 1e9);
}

/* Waits until the machine does nothing by itself any more. What a kernel goes on with after its
   boot would share the CPUs with the load, and count as the load's. */
static void settle(void)
{
    uint64_t start = now();
    int64_t busy;
    do {
        if (now() - start > PATIENCE)
            fail("a minute has passed and the machine still isn't idle, though no load runs yet: it would be measured with something else");
        uint64_t before = now(), rest = idle();
        sleep_until(before + STRETCH);
        busy = (int64_t)((now() - before) * cpus_online() - (idle() - rest));
    } while (busy > (int64_t)STRETCH * 3 / 4);
}

/* Lets `count` operations pass since `first`, sleeping half as long as the rest of them
   should take at the given pace, again and again; gives the pace in the end. The first
   sleep is shorter: the pace it goes by is an earlier window's. */
static double let_pass(uint64_t count, uint64_t first, double pace)
{
    uint64_t start = now(), passed = 0, done = 0, progress = 0;
    while (done < count && passed < LONGEST_WINDOW) {
        double rest = pace * (double)(count - done) / (passed ? 2 : 8);
        if (rest < SHORTEST_SLEEP)
            rest = SHORTEST_SLEEP;
        if (rest > LONGEST_SLEEP)
            rest = LONGEST_SLEEP;
        sleep_until(now() + (uint64_t)rest);
        passed = now() - start;
        uint64_t seen = operations() - first;
        if (seen != done)
            progress = passed;
        else if (passed - progress > STANDSTILL)
            fail("no operation completed in %llu s of a window: the load, or what asks it, stands still",
                 (unsigned long long)((passed - progress) / 1000000000));
        done = seen;
        if (done)
            pace = (double)passed / (double)done;
    }
    return pace;
}

/* The interrupts, and the ledger, which are compared with each other: no interrupt of the
   device came between the two readings, unless one always does. (The load may have the
   CPU in between, for many of them.) */
static void edge_read(struct sample *sample)
{
    struct interrupts after;
    for (unsigned tries = 0; tries < EDGE_TRIES; tries++) {
        interrupts_read(&sample->interrupts);
        sample->nanoseconds = now();
        ledger_read(sample->ledger);
        interrupts_read(&after);
        if (after.device == sample->interrupts.device)
            return;
    }
}

/* Lets operations pass, or spins for some rounds. The two edges mirror each other, so
   that what lies between a marker and a counter's reading is the same on both sides. */
static double window(uint64_t count, double pace, uint64_t rounds, struct sample *open, struct sample *close)
{
    bytes_read(&open->bytes);
    open->idle = idle();
    if (count)
        operations_read(&open->done);
    edge_read(open);
    if (guest == 1)
        OTHER_OPEN();
    else
        WINDOW_OPEN();
    if (rounds)
        spin(rounds);
    else
        pace = let_pass(count, open->done.operations, pace);
    if (guest == 1)
        OTHER_CLOSE();
    else
        WINDOW_CLOSE();
    edge_read(close);
    if (count)
        operations_read(&close->done);
    close->idle = idle();
    bytes_read(&close->bytes);
    return pace;
}

static void print_window(unsigned number, const char *kind, uint64_t spun, const struct sample *a, const struct sample *b)
{
    uint64_t sent = b->bytes.sent - a->bytes.sent, received = b->bytes.received - a->bytes.received;
    uint64_t bytes = b->done.bytes ? b->done.bytes - a->done.bytes : sent + received;
    printf("@exitless window number=%u kind=%s spun=%llu operations=%llu interrupts=%llu ticks=%llu nanoseconds=%llu"
           " bytes=%llu sent=%llu received=%llu packets=%llu idle=%llu",
           number, kind, (unsigned long long)spun,
           (unsigned long long)(b->done.operations - a->done.operations),
           (unsigned long long)(b->interrupts.device - a->interrupts.device),
           (unsigned long long)(b->interrupts.ticks - a->interrupts.ticks), (unsigned long long)(b->nanoseconds - a->nanoseconds),
           (unsigned long long)bytes, (unsigned long long)sent, (unsigned long long)received,
           (unsigned long long)(b->bytes.packets - a->bytes.packets), (unsigned long long)(b->idle - a->idle));
    ledger_print(a->ledger, b->ledger);
    printf("\n");
}

/* Sent over the interface for one operation of a window. */
static uint64_t bytes_each(const struct sample *a, const struct sample *b)
{
    return (b->bytes.sent - a->bytes.sent) / (b->done.operations - a->done.operations);
}

static void describe(const char *text, const char *device)
{
    char clock[64] = "unknown", kind[64] = "none";
    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (f && fgets(clock, sizeof clock, f))
        clock[strcspn(clock, "\n")] = 0;
    if (f)
        fclose(f);
    device_interrupt_kind(kind, sizeof kind);
    printf("@exitless guest clocksource=%s interrupt=%s ledger=%s %s device=%s vcpus=%u\n", clock, kind,
           ledger_pages() ? "yes" : "no", text, device, cpus_online());
}

/* Lets some operations of the load pass at start-up and gives nanoseconds per operation. */
static double warm_up(uint64_t count)
{
    uint64_t start = now(), first = 0, done = 0;
    int ready = 0;
    while (done < count && now() - start < PATIENCE) {
        if (!ready && (ready = load_counted())) {
            first = operations();
            start = now();
        }
        sleep_until(now() + 50000000);
        load_still_there("during its warm-up");
        if (ready)
            done = operations() - first;
    }
    if (!done)
        fail("no operation of the load completed in a minute: it doesn't run, its device's interrupts don't arrive, or nothing asks it");
    return (double)(now() - start) / (double)done;
}

/* PROGRAM with its arguments under load, or at rest; null if it's the same. */
static char **program_with(char **all, int rest)
{
    static const char only[] = "rest:";
    static char *chosen[2][MAX_ARGUMENTS + 1];
    size_t n = 0, prefix = sizeof only - 1;
    int differs = 0;
    for (; *all; all++) {
        int at_rest = !strncmp(*all, only, prefix);
        differs |= at_rest;
        if (n == MAX_ARGUMENTS)
            fail("the load has more than %d arguments", MAX_ARGUMENTS);
        if (!at_rest || rest)
            chosen[rest][n++] = *all + (at_rest ? prefix : 0);
    }
    return rest && !differs ? NULL : chosen[rest];
}

/* Says how far this guest is and waits until it may go on. */
static void wait_for_the_other(const char *what)
{
    char byte;
    printf("@exitless %s\n", what);
    fflush(stdout);
    tcdrain(1);
    if (read(0, &byte, 1) != 1)
        fail("the console ended while the other guest was waited for");
}

int main(int count, char **argument)
{
    char *counter = NULL, *device = "-", *text = "", *output = NULL;
    uint64_t warmup = 0, length[2] = {0, 0};
    unsigned long pairs = 0, port = 0, bytes = 0;
    uint64_t exits = UINT64_MAX;
    int at_once = 0;
    for (int option; (option = getopt(count, argument, "+ac:d:w:s:l:n:r:b:x:t:o:g:")) != -1;) {
        switch (option) {
        case 'c': counter = optarg; break;
        case 'd': device = optarg; break;
        case 'w': warmup = strtoull(optarg, NULL, 10); break;
        case 's': length[0] = strtoull(optarg, NULL, 10); break;
        case 'l': length[1] = strtoull(optarg, NULL, 10); break;
        case 'n': pairs = strtoul(optarg, NULL, 10); break;
        case 'r': port = strtoul(optarg, NULL, 10); break;
        case 'b': bytes = strtoul(optarg, NULL, 10); break;
        case 'x': exits = strtoull(optarg, NULL, 10); break;
        case 't': text = optarg; break;
        case 'o': output = optarg; break;
        case 'g': guest = strtol(optarg, NULL, 10); break;
        case 'a': at_once = 1; break;
        default: fail("measure doesn't know an option it was given");
        }
    }
    if (!counter || optind == count)
        fail("usage: measure -c COUNTER -d DEVICE -w WARMUP -s SHORT -l LONG -n PAIRS [-r PORT] [-b BYTES] [-x EXITS] [-t TEXT] [-o FILE] [-g GUEST] [-a] PROGRAM [ARGUMENT...]");
    if (!warmup || !length[0] || length[1] <= length[0] || !pairs || pairs > MAX_PAIRS || port > 65535)
        fail("warmup and short must be positive, long greater than short, pairs 1 to %d", MAX_PAIRS);

    ledger_find();
    device_choose(device);
    operations_choose(counter);
    if ((uptime_file = open("/proc/uptime", O_RDONLY)) < 0)
        fail("/proc/uptime: %s", strerror(errno));
    mlockall(MCL_CURRENT | MCL_FUTURE);

    if (!at_once)
        settle();
    load_start(program_with(argument + optind, 0), output);
    if (port)
        load_announce((unsigned)port, text);
    warm_up(warmup / 2 + 1); /* the program's own start-up */
    double pace = warm_up(warmup / 2 + 1);

    if (guest >= 0)
        wait_for_the_other("loaded");
    printf("@exitless measuring\n");
    fflush(stdout);
    tcdrain(1);
    static struct sample edge[2 * MAX_PAIRS + 1][2];
    unsigned windows = 2 * (unsigned)pairs, i;
    memset(edge, 0, sizeof edge); /* touched before the first window */
    for (i = 0; i < windows; i++) {
        pace = window(length[i % 2], pace, 0, &edge[i][0], &edge[i][1]);
        load_still_there("in a window");
        if (bytes && i % 2 && bytes_each(&edge[i][0], &edge[i][1]) < bytes)
            fail("%llu bytes were sent for an operation in window %u, less than %lu: the load answers with errors",
                 (unsigned long long)bytes_each(&edge[i][0], &edge[i][1]), i, bytes);
    }
    if (guest >= 0) {
        wait_for_the_other("load-over");
    } else {
        printf("@exitless load-over\n");
        fflush(stdout);
        tcdrain(1);
    }
    if (port)
        load_fall_silent();
    load_stop();
    for (i = 0; i < windows; i++)
        if (ledger_exits(edge[i][0].ledger, edge[i][1].ledger) > exits)
            fail("%llu exits in window %u, more than %llu",
                 (unsigned long long)ledger_exits(edge[i][0].ledger, edge[i][1].ledger), i, (unsigned long long)exits);

    /* Described while the interrupts have their names. */
    describe(text, device);
    device_down();
    uint64_t rounds = 1000000, start;
    char **rest = program_with(argument + optind, 1);
    if (guest == 0)
        wait_for_the_other("idle");
    if (guest < 1) {
        if (rest) {
            load_start(rest, NULL);
            warm_up(1);
            settle();
        }
        start = now();
        spin(rounds);
        rounds = (uint64_t)((double)rounds * SPIN_NANOSECONDS / (double)(now() - start));
        window(0, 0, rounds, &edge[windows][0], &edge[windows][1]);
        if (rest)
            load_stop();
    }

    for (i = 0; i < windows; i++)
        print_window(i, i % 2 ? "long" : "short", 0, &edge[i][0], &edge[i][1]);
    if (guest < 1)
        print_window(i, "spin", 2 * rounds, &edge[i][0], &edge[i][1]);
    if (output)
        load_repeat();
    printf("@exitless done\n");
    return 0;
}
