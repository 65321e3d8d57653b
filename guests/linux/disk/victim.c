/*
 * The guest that must come to no harm beside an attacker: writes to a disk, reads back, compares
 * every byte, and keeps a heartbeat, until somebody types a line on its console.
 *
 *   victim DISK
 *
 * Round r writes the r-th part of the region (PARTS of them, in turn), each block its own
 * pattern of round and place, and reads it back; before that it compares what was
 * written there PARTS rounds ago. All direct: what is compared came from the disk. At the end
 * the whole region is compared once more, so that whoever has the disk can do the same from
 * outside, knowing only the number of rounds.
 *
 * Meanwhile a part of its memory holds a pattern, compared at the end.
 *
 * The heartbeat is that of a thread of the highest priority that wants to run a hundred times a
 * second; the largest time between two beats is what another VM could have done to this one.
 *
 * From "@exitless victim" to the last line the hypervisor's ledger is watched, by plain loads.
 */
#define _GNU_SOURCE
#include "../measure/measure.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096u
#define PART 64u   /* blocks that a round writes */
#define PARTS 16u
#define BEAT 10000000ull
#define WATCHED (64u << 20) /* bytes of memory that nobody may change */

static int disk;
static uint64_t *block;
static volatile uint64_t beats;
/* The longest time between two beats, and the TSC at both. */
static volatile struct {
    uint64_t nanoseconds, from, to;
} gap;

/* The pattern, as the harness knows it too: xorshift64 from round and place. */
static void pattern(uint64_t round, uint64_t place, uint64_t *into)
{
    uint64_t x = round << 32 | (place + 1);
    for (unsigned i = 0; i < BLOCK / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        into[i] = x;
    }
}

static void compare(uint64_t round, uint64_t place, const char *when)
{
    static uint64_t want[BLOCK / 8];
    pattern(round, place, want);
    memset(block, 0, BLOCK);
    if (pread(disk, block, BLOCK, (off_t)(place * BLOCK)) != BLOCK)
        fail("reading block %llu %s: %s", (unsigned long long)place, when, strerror(errno));
    if (memcmp(block, want, BLOCK))
        fail("block %llu isn't what round %llu wrote, %s", (unsigned long long)place, (unsigned long long)round, when);
}

static void round_of(uint64_t round)
{
    uint64_t first = round % PARTS * PART;
    for (uint64_t place = first; place < first + PART; place++) {
        if (round > PARTS)
            compare(round - PARTS, place, "before it is overwritten");
        pattern(round, place, block);
        if (pwrite(disk, block, BLOCK, (off_t)(place * BLOCK)) != BLOCK)
            fail("writing block %llu: %s", (unsigned long long)place, strerror(errno));
    }
    for (uint64_t place = first; place < first + PART; place++)
        compare(round, place, "right after it was written");
}

static void *heartbeat(void *unused)
{
    (void)unused;
    uint64_t last = now(), next = last, last_tsc = __builtin_ia32_rdtsc();
    for (;;) {
        next += BEAT;
        struct timespec until = {.tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        uint64_t here = now(), here_tsc = __builtin_ia32_rdtsc();
        if (here - last > gap.nanoseconds) {
            gap.nanoseconds = here - last;
            gap.from = last_tsc;
            gap.to = here_tsc;
        }
        last = here;
        last_tsc = here_tsc;
        beats++;
        if (next < here) /* beats that were missed aren't made up for */
            next = here;
    }
}

static uint64_t *watched;

static void watch(void)
{
    watched = malloc(WATCHED);
    if (!watched)
        fail("memory: %s", strerror(errno));
    for (uint64_t i = 0; i < WATCHED / BLOCK; i++)
        pattern(0, i, watched + i * (BLOCK / 8));
}

static void watch_end(void)
{
    static uint64_t want[BLOCK / 8];
    for (uint64_t i = 0; i < WATCHED / BLOCK; i++) {
        pattern(0, i, want);
        if (memcmp(watched + i * (BLOCK / 8), want, BLOCK))
            fail("page %llu of its memory has changed", (unsigned long long)i);
    }
}

static int typed(void)
{
    struct pollfd console = {.fd = 0, .events = POLLIN};
    return poll(&console, 1, 0) > 0;
}

int main(int count, char **arguments)
{
    static struct page before[MAX_CPUS], after[MAX_CPUS];
    struct interrupts start, end;
    char path[64];
    pthread_t thread;
    pthread_attr_t attributes;
    struct sched_param highest = {.sched_priority = sched_get_priority_max(SCHED_FIFO)};

    setlinebuf(stdout);
    if (count != 2)
        fail("usage: victim DISK");
    snprintf(path, sizeof path, "/dev/%s", arguments[1]);
    disk = open(path, O_RDWR | O_DIRECT);
    if (disk < 0)
        fail("%s: %s", path, strerror(errno));
    if (posix_memalign((void **)&block, BLOCK, BLOCK) || mlockall(MCL_CURRENT | MCL_FUTURE))
        fail("memory: %s", strerror(errno));
    watch();
    ledger_find();
    cpus_all();
    device_choose(arguments[1]);
    pthread_attr_init(&attributes);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
    pthread_attr_setschedparam(&attributes, &highest);
    if ((errno = pthread_create(&thread, &attributes, heartbeat, NULL)))
        fail("the heartbeat: %s", strerror(errno));

    printf("@exitless victim\n");
    interrupts_read(&start);
    ledger_read(before);
    beats = gap.nanoseconds = 0;
    uint64_t rounds = 0, begin = now();
    while (!typed()) {
        round_of(++rounds);
        printf("@exitless round %llu\n", (unsigned long long)rounds);
    }
    uint64_t oldest = rounds > PARTS ? rounds - PARTS + 1 : 1;
    for (uint64_t round = oldest; round <= rounds; round++)
        for (uint64_t place = 0; place < PART; place++)
            compare(round, round % PARTS * PART + place, "at the end");
    watch_end();
    ledger_read(after);
    interrupts_read(&end);
    printf("@exitless verified rounds=%llu beats=%llu gap_us=%llu gap_from=%llu gap_to=%llu device=%llu ticks=%llu nanoseconds=%llu", (unsigned long long)rounds,
           (unsigned long long)beats, (unsigned long long)gap.nanoseconds / 1000, (unsigned long long)gap.from, (unsigned long long)gap.to, (unsigned long long)(end.device - start.device),
           (unsigned long long)(end.ticks - start.ticks), (unsigned long long)(now() - begin));
    ledger_print(before, after);
    printf("\n");
    return 0;
}
