/*
 * The hypervisor's ledger: one page for each vCPU, live, found through CPUID and
 * mapped for this program to read. Reading it is plain loads, so no exit; finding
 * it isn't, and is done once.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile const struct page *ledger[MAX_CPUS];
static unsigned pages, cpus;
static cpu_set_t all;

/* The page of the vCPU that this runs on, through CPUID 0x40000001; null without our hypervisor. */
static volatile const struct page *page_here(void)
{
    uint32_t a, b, c, d;
    __cpuid(0x40000000, a, b, c, d);
    if (b != 0x74697845 || c != 0x7373656c || d != 0x56707948) /* "Exit" "less" "HypV" */
        return NULL;
    __cpuid(0x40000001, a, b, c, d);
    if (c != PAGE_VERSION)
        fail("the hypervisor's ledger has version %u, this program knows version %u", c, PAGE_VERSION);
    uint64_t address = (uint64_t)b << 32 | a;
    int memory = open("/dev/mem", O_RDONLY | O_SYNC);
    if (memory < 0)
        fail("/dev/mem: %s; the ledger page is read through it", strerror(errno));
    const void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, (off_t)address);
    close(memory);
    if (page == MAP_FAILED)
        fail("mapping the ledger page at 0x%llx: %s", (unsigned long long)address, strerror(errno));
    if (((const struct page *)page)->magic != PAGE_MAGIC)
        fail("no ledger page at 0x%llx: it doesn't begin with EXITLEDG", (unsigned long long)address);
    return page;
}

static void stay_on(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        fail("running on CPU %d: %s", cpu, strerror(errno));
}

void ledger_find(void)
{
    int first = -1;
    if (sched_getaffinity(0, sizeof all, &all))
        fail("asking for the CPUs: %s", strerror(errno));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        if (cpus == MAX_CPUS)
            fail("more than %d CPUs", MAX_CPUS);
        stay_on(cpu);
        if (first < 0)
            first = cpu;
        if ((ledger[cpus++] = page_here()))
            pages++;
    }
    if (pages && pages != cpus)
        fail("%u of %u CPUs have a ledger page", pages, cpus);
    stay_on(first);
}

unsigned ledger_pages(void)
{
    return pages;
}

void cpus_all(void)
{
    sched_setaffinity(0, sizeof all, &all);
}

unsigned cpus_online(void)
{
    return cpus;
}

void ledger_read(struct page into[MAX_CPUS])
{
    for (unsigned cpu = 0; cpu < pages; cpu++) {
        into[cpu].entries = ledger[cpu]->entries;
        into[cpu].host_cycles = ledger[cpu]->host_cycles;
        into[cpu].injected = ledger[cpu]->injected;
        into[cpu].device_injected = ledger[cpu]->device_injected;
        into[cpu].timer_injected = ledger[cpu]->timer_injected;
        into[cpu].slices = ledger[cpu]->slices;
        into[cpu].device_merged = ledger[cpu]->device_merged;
        for (int i = 0; i < WAITS; i++)
            into[cpu].waits[i] = ledger[cpu]->waits[i];
        into[cpu].reasons = ledger[cpu]->reasons <= REASONS ? ledger[cpu]->reasons : REASONS;
        for (uint32_t i = 0; i < into[cpu].reasons; i++)
            into[cpu].exits[i] = ledger[cpu]->exits[i];
    }
}

uint64_t ledger_exits(const struct page a[MAX_CPUS], const struct page b[MAX_CPUS])
{
    uint64_t sum = 0;
    for (unsigned cpu = 0; cpu < pages; cpu++)
        for (uint32_t i = 0; i < b[cpu].reasons; i++)
            sum += b[cpu].exits[i] - a[cpu].exits[i];
    return sum;
}

static void print_sum(const char *key, size_t field, const struct page *a, const struct page *b)
{
    uint64_t sum = 0;
    for (unsigned cpu = 0; cpu < pages; cpu++)
        sum += *(const uint64_t *)((const char *)&b[cpu] + field) - *(const uint64_t *)((const char *)&a[cpu] + field);
    printf(" %s=%llu", key, (unsigned long long)sum);
}

/* The exits by reason of the vCPUs from `first` to before `end`. */
static void print_exits(unsigned first, unsigned end, const struct page *a, const struct page *b)
{
    for (uint32_t i = 0; i < b[first].reasons; i++) {
        uint64_t sum = 0;
        for (unsigned cpu = first; cpu < end; cpu++)
            sum += b[cpu].exits[i] - a[cpu].exits[i];
        printf("%s%llu", i ? "," : "", (unsigned long long)sum);
    }
}

void ledger_print(const struct page a[MAX_CPUS], const struct page b[MAX_CPUS])
{
    if (!pages)
        return;
    print_sum("entries", offsetof(struct page, entries), a, b);
    print_sum("host_cycles", offsetof(struct page, host_cycles), a, b);
    print_sum("injected", offsetof(struct page, injected), a, b);
    print_sum("device_injected", offsetof(struct page, device_injected), a, b);
    print_sum("timer_injected", offsetof(struct page, timer_injected), a, b);
    print_sum("slices", offsetof(struct page, slices), a, b);
    print_sum("device_merged", offsetof(struct page, device_merged), a, b);
    printf(" waits=");
    for (int i = 0; i < WAITS; i++) {
        uint64_t sum = 0;
        for (unsigned cpu = 0; cpu < pages; cpu++)
            sum += b[cpu].waits[i] - a[cpu].waits[i];
        printf("%s%llu", i ? "," : "", (unsigned long long)sum);
    }
    printf(" exits=");
    print_exits(0, pages, a, b);
    for (unsigned cpu = 0; cpu < pages; cpu++) {
        printf(" exits%u=", cpu);
        print_exits(cpu, cpu + 1, a, b);
    }
}
