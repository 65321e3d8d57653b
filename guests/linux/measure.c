/*
 * Opens and closes measuring windows around a running load, from inside the
 * guest, without disturbing what they count.
 *
 *   measure DISK WARMUP SHORT LONG PAIRS PROGRAM [ARGUMENT...]
 *
 * starts PROGRAM, lets about WARMUP I/Os of DISK pass, then takes PAIRS times a
 * window of about SHORT and one of about LONG I/Os, kills PROGRAM, and prints one
 * line per window. Every figure that differs between a short and a long window
 * belongs to the load; what is the same in both (the edges, this program) drops
 * out of the slope.
 *
 * Then, with the load gone, it spins through a loop of a known number of
 * instructions: whatever is counted beyond them belongs to the timer ticks of that
 * time, which gives the price of a tick (kind=spin).
 *
 * Inside a load's window this program sleeps, and looks a few times whether the
 * window's I/Os are done: some timers and reads of one small file, no output. At an
 * edge it runs a marker (a NOP that the counting plugin of the emulator knows),
 * reads the hypervisor's ledger page with plain loads when there is one, and
 * reads the disk's and the interrupts' counters of the kernel. Nothing of that
 * is an exit. A window gets at least the I/Os it is to have, and counts exactly how
 * many.
 */
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* nopl imm32(%rax,%rax,1): eight bytes, no effect. */
#define MARK(imm) __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00; .long " #imm ::: "memory")
#define WINDOW_OPEN() MARK(0x45580001)
#define WINDOW_CLOSE() MARK(0x45580002)

#define REASONS 64
#define MAX_PAIRS 64
/* However slow the machine, a window ends. */
#define LONGEST_WINDOW 20000000000ull
#define SHORTEST_SLEEP 5e6
#define PATIENCE 60000000000ull
#define SPIN_NANOSECONDS 1000000000ull

/* The ledger page as the hypervisor lays it out (crates/ledger, Page). */
struct page {
    uint64_t magic;
    uint32_t version, reasons;
    uint64_t entries, host_cycles, injected, device_injected, timer_injected, spare;
    uint64_t exits[REASONS];
};

/* All counters at one edge of a window. */
struct sample {
    uint64_t operations, interrupts, ticks, nanoseconds;
    struct page ledger;
};

static volatile const struct page *ledger; /* null without our hypervisor */
static int stat_file, interrupts_file;
static pid_t load;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("@exitless failed ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    if (load > 0)
        kill(load, SIGKILL);
    exit(1);
}

static char *slurp(int file, const char *name)
{
    static char text[65536];
    ssize_t got, length = 0;
    while ((got = pread(file, text + length, sizeof text - 1 - length, length)) > 0)
        length += got;
    if (got < 0)
        fail("reading %s: %s", name, strerror(errno));
    text[length] = 0;
    return text;
}

/* Reads completed: the first number of /sys/block/DISK/stat. */
static uint64_t operations_done(void)
{
    return strtoull(slurp(stat_file, "the disk's counters"), NULL, 10);
}

/* Sums the first CPU's column of the NVMe lines (the I/O and admin queues) and takes the
   local timer's; says through `how` what kind of interrupt the NVMe lines name. */
static void interrupts_taken(uint64_t *device, uint64_t *ticks, char *how, size_t room)
{
    char *line, *rest = slurp(interrupts_file, "/proc/interrupts");
    *device = *ticks = 0;
    while ((line = strsep(&rest, "\n"))) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        if (strstr(line, "LOC:"))
            *ticks = strtoull(colon + 1, NULL, 10);
        else if (strstr(colon, "nvme")) {
            char *end;
            *device += strtoull(colon + 1, &end, 10);
            if (how) {
                snprintf(how, room, "%s", end + strspn(end, " "));
                how[strcspn(how, " ")] = 0;
            }
        }
    }
}

/* Plain loads: the page is the hypervisor's own, live, and mapped for us to read. */
static void ledger_read(struct page *into)
{
    if (!ledger)
        return;
    into->entries = ledger->entries;
    into->host_cycles = ledger->host_cycles;
    into->injected = ledger->injected;
    into->device_injected = ledger->device_injected;
    into->timer_injected = ledger->timer_injected;
    into->reasons = ledger->reasons <= REASONS ? ledger->reasons : REASONS;
    for (uint32_t i = 0; i < into->reasons; i++)
        into->exits[i] = ledger->exits[i];
}

/* The page of this vCPU, found through CPUID 0x40000001. */
static void ledger_find(void)
{
    uint32_t a, b, c, d;
    __cpuid(0x40000000, a, b, c, d);
    if (b != 0x74697845 || c != 0x7373656c || d != 0x56707948) /* "Exit" "less" "HypV" */
        return;
    __cpuid(0x40000001, a, b, c, d);
    if (c != 1)
        fail("the hypervisor's ledger has version %u, this program knows version 1", c);
    uint64_t address = (uint64_t)b << 32 | a;
    int memory = open("/dev/mem", O_RDONLY | O_SYNC);
    if (memory < 0)
        fail("/dev/mem: %s; the ledger page is read through it", strerror(errno));
    const void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, (off_t)address);
    if (page == MAP_FAILED)
        fail("mapping the ledger page at 0x%llx: %s", (unsigned long long)address, strerror(errno));
    ledger = page;
    if (memcmp((const void *)ledger, "EXITLEDG", 8))
        fail("no ledger page at 0x%llx: the first bytes aren't EXITLEDG", (unsigned long long)address);
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t when)
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

/* Lets `operations` I/Os pass since `first`, sleeping as long as the rest of them
   should take at the given pace, again and again; gives the pace in the end. */
static double let_pass(uint64_t operations, uint64_t first, double pace)
{
    uint64_t start = now(), passed = 0, done = 0;
    while (done < operations && passed < LONGEST_WINDOW) {
        double rest = pace * (double)(operations - done);
        if (rest < SHORTEST_SLEEP)
            rest = SHORTEST_SLEEP;
        uint64_t left = LONGEST_WINDOW - passed;
        sleep_until(now() + (rest < (double)left ? (uint64_t)rest : left));
        passed = now() - start;
        done = operations_done() - first;
        if (done)
            pace = (double)passed / (double)done;
    }
    return pace;
}

/* Lets I/Os pass, or spins for some rounds. The two edges mirror each other, so that
   what lies between a marker and a counter's reading is the same on both sides. */
static double window(uint64_t operations, double pace, uint64_t rounds, struct sample *open, struct sample *close)
{
    interrupts_taken(&open->interrupts, &open->ticks, NULL, 0);
    open->operations = operations_done();
    open->nanoseconds = now();
    ledger_read(&open->ledger);
    WINDOW_OPEN();
    if (rounds)
        spin(rounds);
    else
        pace = let_pass(operations, open->operations, pace);
    WINDOW_CLOSE();
    ledger_read(&close->ledger);
    close->nanoseconds = now();
    close->operations = operations_done();
    interrupts_taken(&close->interrupts, &close->ticks, NULL, 0);
    return pace;
}

static void print_window(unsigned number, const char *kind, uint64_t spun, const struct sample *a, const struct sample *b)
{
    printf("@exitless window number=%u kind=%s spun=%llu operations=%llu interrupts=%llu ticks=%llu nanoseconds=%llu", number, kind,
           (unsigned long long)spun,
           (unsigned long long)(b->operations - a->operations), (unsigned long long)(b->interrupts - a->interrupts),
           (unsigned long long)(b->ticks - a->ticks), (unsigned long long)(b->nanoseconds - a->nanoseconds));
    if (ledger) {
        printf(" entries=%llu host_cycles=%llu injected=%llu device_injected=%llu timer_injected=%llu exits=",
               (unsigned long long)(b->ledger.entries - a->ledger.entries),
               (unsigned long long)(b->ledger.host_cycles - a->ledger.host_cycles),
               (unsigned long long)(b->ledger.injected - a->ledger.injected),
               (unsigned long long)(b->ledger.device_injected - a->ledger.device_injected),
               (unsigned long long)(b->ledger.timer_injected - a->ledger.timer_injected));
        for (uint32_t i = 0; i < b->ledger.reasons; i++)
            printf("%s%llu", i ? "," : "", (unsigned long long)(b->ledger.exits[i] - a->ledger.exits[i]));
    }
    printf("\n");
}

static void describe(void)
{
    char clock[64] = "unknown", how[64] = "none";
    uint64_t device, ticks;
    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (f && fgets(clock, sizeof clock, f))
        clock[strcspn(clock, "\n")] = 0;
    if (f)
        fclose(f);
    interrupts_taken(&device, &ticks, how, sizeof how);
    printf("@exitless guest clocksource=%s interrupt=%s ledger=%s\n", clock, how, ledger ? "yes" : "no");
}

/* Lets some I/Os of the load pass at start-up and gives nanoseconds per I/O. */
static double warm_up(uint64_t operations)
{
    uint64_t start = now(), first = operations_done(), done = 0;
    while (done < operations && now() - start < PATIENCE) {
        sleep_until(now() + 50000000);
        if (waitpid(load, NULL, WNOHANG) == load)
            fail("the load ended by itself during its warm-up");
        done = operations_done() - first;
    }
    if (!done)
        fail("no I/O completed in a minute: the disk's interrupts don't arrive, or the load doesn't run");
    return (double)(now() - start) / (double)done;
}

int main(int count, char **argument)
{
    if (count < 7)
        fail("usage: measure DISK WARMUP SHORT LONG PAIRS PROGRAM [ARGUMENT...]");
    uint64_t warmup = strtoull(argument[2], NULL, 10);
    uint64_t length[2] = {strtoull(argument[3], NULL, 10), strtoull(argument[4], NULL, 10)};
    unsigned long pairs = strtoul(argument[5], NULL, 10);
    if (!warmup || !length[0] || length[1] <= length[0] || !pairs || pairs > MAX_PAIRS)
        fail("WARMUP and SHORT must be positive, LONG greater than SHORT, PAIRS 1 to %d", MAX_PAIRS);

    char name[256];
    snprintf(name, sizeof name, "/sys/block/%s/stat", argument[1]);
    stat_file = open(name, O_RDONLY);
    interrupts_file = open("/proc/interrupts", O_RDONLY);
    if (stat_file < 0 || interrupts_file < 0)
        fail("%s or /proc/interrupts: %s", name, strerror(errno));
    ledger_find();
    mlockall(MCL_CURRENT | MCL_FUTURE);

    load = fork();
    if (load < 0)
        fail("fork: %s", strerror(errno));
    if (load == 0) {
        setpgid(0, 0);
        execvp(argument[6], argument + 6);
        _exit(127);
    }
    setpgid(load, load);
    warm_up(warmup / 2 + 1); /* the program's own start-up */
    double pace = warm_up(warmup / 2 + 1);

    printf("@exitless measuring\n");
    fflush(stdout);
    tcdrain(1);
    static struct sample edge[2 * MAX_PAIRS + 1][2]; /* touched before the first window */
    memset(edge, 0, sizeof edge);
    unsigned windows = 2 * (unsigned)pairs, i;
    for (i = 0; i < windows; i++) {
        pace = window(length[i % 2], pace, 0, &edge[i][0], &edge[i][1]);
        if (edge[i][1].operations == edge[i][0].operations)
            fail("no I/O completed in window %u: the load stands still", i);
    }
    kill(-load, SIGKILL);
    waitpid(load, NULL, 0);
    load = 0;

    uint64_t rounds = 1000000, start = now();
    spin(rounds);
    rounds = (uint64_t)((double)rounds * SPIN_NANOSECONDS / (double)(now() - start));
    window(0, 0, rounds, &edge[windows][0], &edge[windows][1]);

    describe();
    for (i = 0; i < windows; i++)
        print_window(i, i % 2 ? "long" : "short", 0, &edge[i][0], &edge[i][1]);
    print_window(i, "spin", 2 * rounds, &edge[i][0], &edge[i][1]);
    printf("@exitless done\n");
    return 0;
}
