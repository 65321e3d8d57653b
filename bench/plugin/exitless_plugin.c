/*
 * Counts, from outside the emulated machine, what its CPUs execute: instructions
 * in guest mode and in host mode, guest entries (VMRUN), and the same at the
 * edges of measuring windows that the measured program marks.
 *
 *   qemu-system-x86_64 ... -plugin exitless_plugin.so,out=FILE[,slow=ROUNDS:ROUNDS:...][,sidecore=ROUNDS]
 *
 * With slow= the CPU that opens windows is slowed: before each translated block it turns
 * so many rounds of a loop that isn't counted. There is a number for each pair of windows
 * of guest 0, in their order; each counts from the end of the pair before it (the first one
 * from the first window on). After the last pair nothing is slowed.
 * With sidecore= a CPU that runs a sidecore's loop is slowed likewise, from its first pass on: as
 * busy a one as there would be with more guests than an emulator can run.
 *
 * Guarantees: an instruction is counted when it starts, once, on the CPU that
 * runs it: also one that faults, is intercepted, or is a repetition of REP (as
 * the emulator restarts it). A VMRUN counts as the last instruction of whoever
 * executes it, the host or a guest whose VMRUN exits, the marker after it as the
 * host's first. Doesn't guarantee: a split of guest and host for a hypervisor that
 * doesn't run the marker; the CPU's own state is not looked at. Costs about as much
 * time again as the emulation itself.
 *
 * FILE gets lines of key=value, flushed one by one so that a killed emulator
 * loses nothing:
 *   edge of=N kind=open|close vcpu=N instructions=N guest=N host=N vmruns=N host_entries=N others=N
 *        passes=N empty=N served=N polled=N l0=N l1=N l2=N inner_vmruns=N
 *   start vcpu=N all=N            the first marker of ours that says "started", in the loader
 *                                 or the hypervisor: what all CPUs have executed before it
 *   entry vcpu=N own=N all=N      the first VMRUN of a vCPU: instructions of this
 *                                 CPU and of all CPUs since power-on, firmware included
 *   total vcpu=N instructions=N guest=N host=N vmruns=N host_entries=N
 * `of` tells the windows of two guests apart that share a CPU: each has markers of its own.
 * `others` is what all other CPUs have executed so far. They run meanwhile: it is as exact as
 * a look at a running counter can be.
 * A sidecore says at the end of each pass of its loop whether the pass found work. `passes` is
 * how many of all sidecores did, `served` the instructions of these passes from end to end;
 * `empty` and `polled` are those of the others: idle polling.
 * On a CPU that never ran VMRUN every instruction is the guest's: the bare machine.
 * `l0`, `l1` and `l2` are the instructions of whoever is below all others, of its guests, and of
 * those guests' guests, whoever they are and without markers: a VMRUN that is executed at the lowest
 * level is the host's, any other a guest's, which `inner_vmruns` counts; when the instruction behind
 * a VMRUN is executed, what was entered by it has exited. A VMRUN is known by where it is in the
 * emulator's memory, so that the same kernel may be on several levels. An inner guest that is left
 * for the host alone goes on as such. Guests of guests' guests count as guests' guests.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The emulator's plugin interface, version 4 (QEMU 9.2 to 10.2) or 7 (11), as its
 * public documentation gives it ("QEMU TCG Plugins", API): distributions package no
 * header for it. Of what is used here, two callbacks have another form in 7.
 */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
typedef struct {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
    struct { int smp_vcpus, max_vcpus; } system;
} qemu_info_t;
typedef struct {
    struct qemu_plugin_scoreboard *score;
    size_t offset;
} qemu_plugin_u64;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cond {
    QEMU_PLUGIN_COND_NEVER,
    QEMU_PLUGIN_COND_ALWAYS,
    QEMU_PLUGIN_COND_EQ,
    QEMU_PLUGIN_COND_NE,
};
typedef void (*exec_callback)(unsigned vcpu, void *user);
#if PLUGIN_INTERFACE == 7
typedef void (*tb_callback)(struct qemu_plugin_tb *, void *user);
typedef void (*exit_callback)(void *user);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_callback, void *user);
#elif PLUGIN_INTERFACE == 4
typedef void (*tb_callback)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*exit_callback)(qemu_plugin_id_t, void *user);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_callback);
#else
#error "PLUGIN_INTERFACE must be 4 or 7"
#endif
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, exit_callback, void *user);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *into, size_t length);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, exec_callback, enum qemu_plugin_cb_flags, void *user);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *, enum qemu_plugin_op, qemu_plugin_u64,
                                                         uint64_t immediate);
void qemu_plugin_register_vcpu_tb_exec_cond_cb(struct qemu_plugin_tb *, exec_callback, enum qemu_plugin_cb_flags,
                                               enum qemu_plugin_cond, qemu_plugin_u64 entry, uint64_t immediate, void *user);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element_size);
void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *, unsigned vcpu);
int qemu_plugin_num_vcpus(void);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = PLUGIN_INTERFACE;

/* Of one CPU; written only by it. */
struct counters {
    uint64_t instructions; /* all so far; the translated code adds to it */
    uint64_t guest;        /* of these in guest mode, up to `since` */
    uint64_t since;        /* `instructions` at the last VMRUN */
    uint64_t vmruns, host_entries;
    uint64_t since_pass;   /* `instructions` at the end of the last pass of a sidecore's loop */
    uint64_t passes[2], spent[2]; /* without work, with work: how many, and instructions */
    uint64_t rounds;       /* of the loop before each translated block; 0: not slowed */
    bool in_guest;
    uint64_t levels[3];    /* instructions of each level, up to `since_level` */
    uint64_t since_level;  /* `instructions` when the level changed last */
    uint64_t inner_vmruns; /* VMRUNs above the lowest level */
    unsigned level;        /* whose instructions are executed */
    bool inner;            /* the guest has entered its own, and wasn't told of an exit since */
};

/* A VMRUN in the emulated machine's memory, and whose it is. */
struct site {
    const uint8_t *at;
    enum { NOBODYS, HOSTS, GUESTS } owner;
};
#define MAX_SITES 256
#define VMRUN_LENGTH 3
static struct site sites[MAX_SITES];
static unsigned known; /* of them; more than that are left out */
static pthread_mutex_t of_sites = PTHREAD_MUTEX_INITIALIZER;

#define MAX_PAIRS 64
static uint64_t slow[MAX_PAIRS]; /* rounds for each pair of windows */
static unsigned pairs;           /* how many numbers there are */
static unsigned edges;           /* of guest 0, so far; only its CPU touches it */
static uint64_t sidecore;        /* rounds for sidecores */
static bool started;             /* the marker was seen */

static struct qemu_plugin_scoreboard *board;
static FILE *out;

static struct counters *of(unsigned vcpu)
{
    return qemu_plugin_scoreboard_find(board, vcpu);
}

static uint64_t of_level(const struct counters *c, unsigned level)
{
    return c->levels[level] + (c->level == level ? c->instructions - c->since_level : 0);
}

static void put(const char *what, unsigned vcpu)
{
    struct counters *c = of(vcpu);
    uint64_t guest = c->guest + (c->in_guest ? c->instructions - c->since : 0);
    if (!c->vmruns)
        guest = c->instructions;
    uint64_t others = 0, passes[2] = {0, 0}, spent[2] = {0, 0};
    for (int i = 0; i < qemu_plugin_num_vcpus(); i++) {
        const struct counters *one = of((unsigned)i);
        if ((unsigned)i != vcpu)
            others += one->instructions;
        for (int found = 0; found < 2; found++) {
            passes[found] += one->passes[found];
            spent[found] += one->spent[found];
        }
    }
    fprintf(out,
            "%s vcpu=%u instructions=%" PRIu64 " guest=%" PRIu64 " host=%" PRIu64 " vmruns=%" PRIu64 " host_entries=%" PRIu64
            " others=%" PRIu64 " passes=%" PRIu64 " empty=%" PRIu64 " served=%" PRIu64 " polled=%" PRIu64
            " l0=%" PRIu64 " l1=%" PRIu64 " l2=%" PRIu64 " inner_vmruns=%" PRIu64 "\n",
            what, vcpu, c->instructions, guest, c->instructions - guest, c->vmruns, c->host_entries, others, passes[1],
            passes[0], spent[1], spent[0], of_level(c, 0), of_level(c, 1), of_level(c, 2), c->inner_vmruns);
    fflush(out);
}

static uint64_t of_all(void)
{
    uint64_t all = 0;
    for (int i = 0; i < qemu_plugin_num_vcpus(); i++)
        all += of((unsigned)i)->instructions;
    return all;
}

/* The CPU that boots is alone then. */
static void on_started(unsigned vcpu, void *user)
{
    (void)user;
    if (!started) {
        started = true;
        fprintf(out, "start vcpu=%u all=%" PRIu64 "\n", vcpu, of_all());
        fflush(out);
    }
}

static void go_to(struct counters *c, unsigned level)
{
    c->levels[c->level] += c->instructions - c->since_level;
    c->since_level = c->instructions;
    c->level = level;
}

static void on_behind(unsigned vcpu, void *user)
{
    struct counters *c = of(vcpu);
    const struct site *site = user;
    if (site->owner == HOSTS) {
        go_to(c, 0);
    } else if (c->inner) {
        c->inner = false;
        go_to(c, 1);
    }
}

static void on_vmrun(unsigned vcpu, void *user)
{
    struct counters *c = of(vcpu);
    struct site *site = user;
    if (site && site->owner == NOBODYS)
        site->owner = c->level == 0 ? HOSTS : GUESTS;
    if (site && site->owner == GUESTS) {
        c->inner_vmruns++;
        c->inner = true;
    } else if (site) {
        go_to(c, c->inner ? 2 : 1);
    }
    if (!c->vmruns++) {
        fprintf(out, "entry vcpu=%u own=%" PRIu64 " all=%" PRIu64 "\n", vcpu, c->instructions, of_all());
        fflush(out);
    }
    /* A guest that is a hypervisor: its own VMRUN is its last instruction before the host's. */
    if (c->in_guest)
        c->guest += c->instructions - c->since;
    c->since = c->instructions;
    c->in_guest = true;
}

static void on_host_entered(unsigned vcpu, void *user)
{
    struct counters *c = of(vcpu);
    (void)user;
    c->host_entries++;
    if (c->in_guest)
        c->guest += c->instructions - c->since;
    c->in_guest = false;
}

static void end_pass(unsigned vcpu, bool found)
{
    struct counters *c = of(vcpu);
    c->passes[found]++;
    c->spent[found] += c->instructions - c->since_pass;
    c->since_pass = c->instructions;
    c->rounds = sidecore;
}

static void on_pass(unsigned vcpu, void *user)
{
    (void)user;
    end_pass(vcpu, true);
}

static void on_empty_pass(unsigned vcpu, void *user)
{
    (void)user;
    end_pass(vcpu, false);
}

static void on_edge(unsigned vcpu, void *user)
{
    put(user, vcpu);
}

/* An edge of guest 0. A pair of windows has four; the pace is that of the pair that comes next,
   once the one before is over. */
static void on_first_edge(unsigned vcpu, void *user)
{
    on_edge(vcpu, user);
    unsigned pair = ++edges / 4;
    of(vcpu)->rounds = pair < pairs ? slow[pair] : 0;
}

/* Executed before a block by a CPU that is to be slow. */
static void on_slow_block(unsigned vcpu, void *user)
{
    (void)user;
    for (uint64_t left = of(vcpu)->rounds; left; left--)
        __asm__ volatile("" ::: "memory");
}

static void tell_totals(void)
{
    for (int i = 0; i < qemu_plugin_num_vcpus(); i++)
        put("total", (unsigned)i);
    fclose(out);
}

/* What an instruction is to us. The markers are nopl imm32(%rax,%rax,1). */
enum special { PLAIN, VMRUN, WINDOW_OPEN, WINDOW_CLOSE, OTHER_OPEN, OTHER_CLOSE, HOST_ENTERED, STARTED, PASS, EMPTY_PASS };

static enum special classify(const struct qemu_plugin_insn *instruction)
{
    static const uint8_t vmrun[3] = {0x0f, 0x01, 0xd8}, marker[4] = {0x0f, 0x1f, 0x84, 0x00};
    uint8_t byte[8];
    size_t size = qemu_plugin_insn_size(instruction);
    if ((size != 3 && size != 8) || qemu_plugin_insn_data(instruction, byte, size) != size)
        return PLAIN;
    if (size == 3)
        return memcmp(byte, vmrun, 3) ? PLAIN : VMRUN;
    if (memcmp(byte, marker, 4))
        return PLAIN;
    switch (byte[4] | byte[5] << 8 | byte[6] << 16 | (uint32_t)byte[7] << 24) {
    case 0x45580001: return WINDOW_OPEN;
    case 0x45580002: return WINDOW_CLOSE;
    case 0x45580003: return OTHER_OPEN;
    case 0x45580004: return OTHER_CLOSE;
    case 0x45580010: return HOST_ENTERED;
    case 0x45580011: return STARTED;
    case 0x45580020: return PASS;
    case 0x45580021: return EMPTY_PASS;
    default: return PLAIN;
    }
}

/* The VMRUN at this place, known from now on; NULL if there are too many. */
static struct site *site_at(const uint8_t *at)
{
    pthread_mutex_lock(&of_sites);
    unsigned i = 0;
    while (i < known && sites[i].at != at)
        i++;
    if (i == known && known < MAX_SITES)
        sites[known++].at = at;
    struct site *site = i < known ? &sites[i] : NULL;
    pthread_mutex_unlock(&of_sites);
    return site;
}

/* The VMRUN that this place is behind, if it is. */
static struct site *site_before(const uint8_t *behind)
{
    struct site *site = NULL;
    pthread_mutex_lock(&of_sites);
    for (unsigned i = 0; behind && i < known && !site; i++)
        if (sites[i].at + VMRUN_LENGTH == behind)
            site = &sites[i];
    pthread_mutex_unlock(&of_sites);
    return site;
}

/* The order of registration is the order of execution: a marker acts before it is
   counted, a VMRUN after. A VMRUN ends its block, so what is behind it begins one. */
static void count_in(struct qemu_plugin_tb *block)
{
    qemu_plugin_u64 instructions = {board, offsetof(struct counters, instructions)};
    qemu_plugin_u64 rounds = {board, offsetof(struct counters, rounds)};
    size_t length = qemu_plugin_tb_n_insns(block);
    /* On every machine, slowed or not: what it costs to ask is the same in all columns. */
    qemu_plugin_register_vcpu_tb_exec_cond_cb(block, on_slow_block, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_COND_NE, rounds, 0, NULL);
    for (size_t i = 0; i < length; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        exec_callback action = NULL;
        void *user = NULL;
        enum special special = classify(instruction);
        switch (special) {
        case PLAIN: break;
        case VMRUN: action = on_vmrun, user = site_at(qemu_plugin_insn_haddr(instruction)); break;
        case HOST_ENTERED: action = on_host_entered; break;
        case STARTED: action = on_started; break;
        case PASS: action = on_pass; break;
        case EMPTY_PASS: action = on_empty_pass; break;
        case WINDOW_OPEN: action = on_first_edge, user = "edge of=0 kind=open"; break;
        case WINDOW_CLOSE: action = on_first_edge, user = "edge of=0 kind=close"; break;
        case OTHER_OPEN: action = on_edge, user = "edge of=1 kind=open"; break;
        case OTHER_CLOSE: action = on_edge, user = "edge of=1 kind=close"; break;
        }
        struct site *before = i ? NULL : site_before(qemu_plugin_insn_haddr(instruction));
        if (before)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_behind, QEMU_PLUGIN_CB_NO_REGS, before);
        if (action && special != VMRUN)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, action, QEMU_PLUGIN_CB_NO_REGS, user);
        qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(instruction, QEMU_PLUGIN_INLINE_ADD_U64, instructions, 1);
        if (special == VMRUN)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, action, QEMU_PLUGIN_CB_NO_REGS, user);
    }
}

/* "0:50:100" */
static bool take_slow(const char *text)
{
    char *end;
    for (pairs = 0; pairs < MAX_PAIRS; text = end + 1) {
        slow[pairs++] = strtoull(text, &end, 10);
        if (end == text || (*end && *end != ':'))
            return false;
        if (!*end)
            return true;
    }
    return false;
}

#if PLUGIN_INTERFACE == 7
static void on_translation(struct qemu_plugin_tb *block, void *user)
{
    (void)user;
    count_in(block);
}

static void on_exit_of_emulator(void *user)
{
    (void)user;
    tell_totals();
}

static void register_translation(qemu_plugin_id_t id)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation, NULL);
}
#else
static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    count_in(block);
}

static void on_exit_of_emulator(qemu_plugin_id_t id, void *user)
{
    (void)id;
    (void)user;
    tell_totals();
}

static void register_translation(qemu_plugin_id_t id)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
}
#endif

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int count, char **argument)
{
    if (strcmp(info->target_name, "x86_64") || !info->system_emulation) {
        fprintf(stderr, "exitless_plugin: the emulated machine is %s, x86_64 system emulation is needed\n", info->target_name);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (!strncmp(argument[i], "out=", 4))
            out = fopen(argument[i] + 4, "w");
        if (!strncmp(argument[i], "sidecore=", 9))
            sidecore = strtoull(argument[i] + 9, NULL, 10);
        if (!strncmp(argument[i], "slow=", 5) && !take_slow(argument[i] + 5)) {
            fprintf(stderr, "exitless_plugin: %s: numbers with colons between them are needed, %d at most\n", argument[i], MAX_PAIRS);
            return -1;
        }
    }
    if (!out) {
        fprintf(stderr, "exitless_plugin: no file to write to, or it can't be made: give out=FILE\n");
        return -1;
    }
    board = qemu_plugin_scoreboard_new(sizeof(struct counters));
    register_translation(id);
    qemu_plugin_register_atexit_cb(id, on_exit_of_emulator, NULL);
    return 0;
}
