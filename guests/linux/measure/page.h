/* The ledger page of a vCPU. Made from crates/ledger (c_header.rs): don't edit. */
#ifndef PAGE_H
#define PAGE_H

#include <stdint.h>

#define PAGE_MAGIC 0x4744454c54495845ull
#define PAGE_VERSION 1
/* Room for reasons; the page says how many there are. */
#define REASONS 64
#define WAITS 48

struct page {
    uint64_t magic;
    uint32_t version;
    uint32_t reasons;
    uint64_t entries;
    uint64_t host_cycles;
    uint64_t injected;
    uint64_t device_injected;
    uint64_t timer_injected;
    uint64_t slices;
    uint64_t exits[REASONS];
    uint64_t waits[WAITS];
    uint64_t device_merged;
};

_Static_assert(__builtin_offsetof(struct page, magic) == 0, "magic");
_Static_assert(__builtin_offsetof(struct page, version) == 8, "version");
_Static_assert(__builtin_offsetof(struct page, reasons) == 12, "reasons");
_Static_assert(__builtin_offsetof(struct page, entries) == 16, "entries");
_Static_assert(__builtin_offsetof(struct page, host_cycles) == 24, "host_cycles");
_Static_assert(__builtin_offsetof(struct page, injected) == 32, "injected");
_Static_assert(__builtin_offsetof(struct page, device_injected) == 40, "device_injected");
_Static_assert(__builtin_offsetof(struct page, timer_injected) == 48, "timer_injected");
_Static_assert(__builtin_offsetof(struct page, slices) == 56, "slices");
_Static_assert(__builtin_offsetof(struct page, exits) == 64, "exits");
_Static_assert(__builtin_offsetof(struct page, waits) == 576, "waits");
_Static_assert(__builtin_offsetof(struct page, device_merged) == 960, "device_merged");

#endif
