/* What the parts of `measure` share; main.c says what the program does. */
#ifndef MEASURE_H
#define MEASURE_H

#include "page.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_CPUS 16

/* Prints "@exitless failed ..." and exits, which ends the load (load_start). */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* The whole of a small file, read again from its start; `name` is for the message. */
char *slurp(int file, const char *name);
/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now(void);
void sleep_until(uint64_t when);

/* What is waited for comes within this many nanoseconds, or never. */
#define PATIENCE 60000000000ull

/* load.c: the program that is measured. It ends with this one. */
void load_start(char **program, const char *output);
/* Waits until something listens on the port and says so. */
void load_announce(unsigned port, const char *text);
/* Whether its operations can be counted already. */
int load_counted(void);
/* Fails, with what the program said last, when it has ended. */
void load_still_there(const char *when);
void load_fall_silent(void);
void load_stop(void);
void load_kill(void);
/* Prints what it said. */
void load_repeat(void);
/* Operations done so far. */
uint64_t operations(void);

/* operations.c: what the load has done so far. */
struct done {
    uint64_t operations;
    uint64_t bytes; /* of the workload itself; 0 when the counter knows none */
};
/* Takes a counter's name apart ("disk:NAME", ...). */
void operations_choose(char *spec);
/* Called when `load` runs; says whether its counter can be read already. */
int operations_ready(pid_t load);
void operations_read(struct done *into);

/* device.c: what the workload's device and the local timers have done so far. */
struct interrupts {
    uint64_t device, ticks;
};
struct bytes {
    uint64_t sent, received, packets;
};
/* DEVICE is a disk, several NVMe disks with commas between them (all that there are), a network
   interface, or "-". */
void device_choose(const char *name);
void interrupts_read(struct interrupts *into);
/* Of a network interface; slow, since drivers ask the device. */
void bytes_read(struct bytes *into);
/* The kind of interrupt that the device has, as the kernel calls it. */
void device_interrupt_kind(char *into, size_t room);
/* Takes a network interface down, so that nothing outside reaches this machine. */
void device_down(void);

/* ledger.c: the hypervisor's ledger page of each vCPU. */
/* Maps the pages of all vCPUs that are online, and stays on the first of them. */
void ledger_find(void);
/* How many vCPUs have a page: 0 without our hypervisor. */
unsigned ledger_pages(void);
void ledger_read(struct page into[MAX_CPUS]);
/* Exits from `a` to `b`, of all vCPUs. */
uint64_t ledger_exits(const struct page a[MAX_CPUS], const struct page b[MAX_CPUS]);
/* The part of a window's line that says what happened from `a` to `b`. */
void ledger_print(const struct page a[MAX_CPUS], const struct page b[MAX_CPUS]);
/* Lets a child run on every CPU again. */
void cpus_all(void);
unsigned cpus_online(void);

#endif
