/*
 * Counters of what the load has done, each read from where it is kept anyway, so
 * that the load doesn't run differently for being counted:
 *
 *   disk:NAME,...      reads that the disks completed, and their bytes
 *   mixed:NAME,...     reads, writes and flushes that they completed, and the bytes
 *   stream:BYTES       writes of BYTES each to the load's busiest TCP socket, and the
 *                      bytes written (TCP_INFO of the load's own socket)
 *   snmp:GROUP:FIELD   a field of /proc/net/snmp, such as Udp:InDatagrams
 *   memcached:PORT     gets and sets that memcached served, and its bytes ("stats")
 *   wakeups            times a thread of the load other than its first went to sleep
 */
#define _GNU_SOURCE
#include "measure.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 32
#define MAX_DISKS 4

static enum { DISK, MIXED, STREAM, SNMP, MEMCACHED, WAKEUPS } kind;
static int file = -1;              /* SNMP; the socket of STREAM and MEMCACHED */
static int disk[MAX_DISKS];        /* DISK and MIXED */
static unsigned disks;
static uint64_t write_size;        /* STREAM */
static char *group, *field;        /* SNMP */
static int port;                   /* MEMCACHED */
static int status[MAX_THREADS];    /* WAKEUPS */
static unsigned threads;

static int open_or_fail(const char *path)
{
    int opened = open(path, O_RDONLY);
    if (opened < 0)
        fail("%s: %s", path, strerror(errno));
    return opened;
}

void operations_choose(char *spec)
{
    char path[128], *what = strsep(&spec, ":");
    if ((!strcmp(what, "disk") || !strcmp(what, "mixed")) && spec) {
        kind = what[0] == 'd' ? DISK : MIXED;
        for (char *name; (name = strsep(&spec, ","));) {
            if (disks == MAX_DISKS)
                fail("more than %d disks", MAX_DISKS);
            snprintf(path, sizeof path, "/sys/block/%s/stat", name);
            disk[disks++] = open_or_fail(path);
        }
    } else if (!strcmp(what, "stream") && spec && (write_size = strtoull(spec, NULL, 10))) {
        kind = STREAM;
    } else if (!strcmp(what, "snmp") && spec && (group = strsep(&spec, ":"), field = spec)) {
        kind = SNMP;
        file = open_or_fail("/proc/net/snmp");
    } else if (!strcmp(what, "memcached") && spec && (port = atoi(spec))) {
        kind = MEMCACHED;
    } else if (!strcmp(what, "wakeups") && !spec) {
        kind = WAKEUPS;
    } else {
        fail("'%s' is no counter of operations: it can be disk:NAME, mixed:NAME, stream:BYTES, snmp:GROUP:FIELD, memcached:PORT or wakeups", what);
    }
}

/* Everything written so far to a TCP socket; false when it is none. */
static int written(int sock, uint64_t *bytes)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &length))
        return 0;
    *bytes = info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
    return 1;
}

/* A duplicate of the load's TCP socket that has sent most; netperf has a control connection too. */
static int find_stream(pid_t load)
{
    char path[64];
    uint64_t most = 65536, bytes; /* the control connection never gets so far */
    snprintf(path, sizeof path, "/proc/%d/fd", load);
    DIR *directory = opendir(path);
    int process = (int)syscall(SYS_pidfd_open, load, 0);
    if (!directory || process < 0)
        fail("looking at the load's sockets: %s", strerror(errno));
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        int sock = (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
        if (sock >= 0 && written(sock, &bytes) && bytes > most) {
            if (file >= 0)
                close(file);
            most = bytes;
            file = sock;
        } else if (sock >= 0) {
            close(sock);
        }
    }
    closedir(directory);
    close(process);
    return file >= 0;
}

static int connect_memcached(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        fail("socket: %s", strerror(errno));
    if (connect(sock, (struct sockaddr *)&to, sizeof to)) {
        close(sock);
        return 0;
    }
    file = sock;
    return 1;
}

/* All threads of the load but its first. */
static int find_threads(pid_t load)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", load);
    DIR *directory = opendir(path);
    if (!directory)
        return 0;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == load)
            continue;
        if (threads == MAX_THREADS)
            fail("the load has more than %d threads", MAX_THREADS);
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", load, entry->d_name);
        status[threads++] = open_or_fail(path);
    }
    closedir(directory);
    return threads > 0;
}

int operations_ready(pid_t load)
{
    switch (kind) {
    case STREAM:
        return file >= 0 || find_stream(load);
    case MEMCACHED:
        return file >= 0 || connect_memcached();
    case WAKEUPS:
        return threads || find_threads(load);
    default:
        return 1;
    }
}

/* The number after `name` and what separates them. */
static uint64_t number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    if (!at)
        fail("no '%s' in the counters of the load", name);
    return strtoull(at + strlen(name), NULL, 10);
}

static void snmp_read(struct done *into)
{
    /* Two lines for a group: "Udp: InDatagrams NoPorts ...", "Udp: 12 0 ...". */
    char *rest = slurp(file, "/proc/net/snmp"), *names, *values;
    while ((names = strsep(&rest, "\n")) && (values = strsep(&rest, "\n"))) {
        if (strncmp(names, group, strlen(group)) || names[strlen(group)] != ':')
            continue;
        char *name, *value;
        while ((name = strsep(&names, " ")) && (value = strsep(&values, " ")))
            if (!strcmp(name, field)) {
                into->operations = strtoull(value, NULL, 10);
                return;
            }
    }
    fail("/proc/net/snmp has no %s %s", group, field);
}

static void memcached_read(struct done *into)
{
    static char text[16384];
    size_t length = 0;
    if (send(file, "stats\r\n", 7, MSG_NOSIGNAL) != 7)
        fail("asking memcached for its counters: %s", strerror(errno));
    do {
        ssize_t got = recv(file, text + length, sizeof text - 1 - length, 0);
        if (got <= 0)
            fail("reading memcached's counters: %s", got ? strerror(errno) : "it closed the connection");
        length += (size_t)got;
        text[length] = 0;
    } while (length < 5 || strcmp(text + length - 5, "END\r\n"));
    into->operations = number_after(text, "STAT cmd_get ") + number_after(text, "STAT cmd_set ");
    into->bytes = number_after(text, "STAT bytes_read ") + number_after(text, "STAT bytes_written ");
}

void operations_read(struct done *into)
{
    into->operations = into->bytes = 0;
    switch (kind) {
    case DISK:
        for (unsigned i = 0; i < disks; i++) {
            char *at = slurp(disk[i], "the disk's counters");
            into->operations += strtoull(at, &at, 10);
            strtoull(at, &at, 10); /* merged */
            into->bytes += 512 * strtoull(at, &at, 10);
        }
        break;
    case MIXED:
        for (unsigned i = 0; i < disks; i++) {
            /* Documentation/block/stat.rst: reads are fields 1 to 4, writes 5 to 8, flushes 16. */
            char *at = slurp(disk[i], "the disk's counters");
            for (unsigned field = 1; field <= 16; field++) {
                uint64_t count = strtoull(at, &at, 10);
                if (field == 1 || field == 5 || field == 16)
                    into->operations += count;
                if (field == 3 || field == 7)
                    into->bytes += 512 * count;
            }
        }
        break;
    case STREAM:
        if (!written(file, &into->bytes))
            fail("the load's socket: %s", strerror(errno));
        into->operations = into->bytes / write_size;
        break;
    case SNMP:
        snmp_read(into);
        break;
    case MEMCACHED:
        memcached_read(into);
        break;
    case WAKEUPS:
        for (unsigned i = 0; i < threads; i++)
            into->operations += number_after(slurp(status[i], "a thread's counters"), "\nvoluntary_ctxt_switches:\t");
        break;
    }
}
