/*
 * The kernel's counters of the workload's device: its interrupts, the local
 * timers' beside them, and of a network interface the bytes.
 */
#include "measure.h"
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int interrupts_file;
/* The interface's counters: bytes sent and received, packets sent and received. */
static int statistics[4] = {-1, -1, -1, -1};
/* Its interrupts' names in /proc/interrupts begin so; "" when there is no device, "nvme" for
   several disks. */
static char prefix[64], interface[IFNAMSIZ];

static int statistic(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s", interface, name);
    int file = open(path, O_RDONLY);
    if (file < 0)
        fail("%s: %s", path, strerror(errno));
    return file;
}

void device_choose(const char *name)
{
    interrupts_file = open("/proc/interrupts", O_RDONLY);
    if (interrupts_file < 0)
        fail("/proc/interrupts: %s", strerror(errno));
    if (!strcmp(name, "-"))
        return;
    if (!strncmp(name, "nvme", 4) && strchr(name, ',')) {
        strcpy(prefix, "nvme");
        return;
    }
    if (!strncmp(name, "nvme", 4)) {
        /* nvme0n1 has the interrupts nvme0q0, nvme0q1, ... */
        snprintf(prefix, sizeof prefix, "nvme%lu", strtoul(name + 4, NULL, 10));
        return;
    }
    if (!strncmp(name, "vd", 2)) {
        /* vda is a disk of virtio0, say, which has the interrupts virtio0-req.0, -req.1, ... */
        char path[64], target[256];
        snprintf(path, sizeof path, "/sys/block/%.32s/device", name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0)
            fail("%s: %s", path, strerror(errno));
        target[length] = 0;
        char *slash = strrchr(target, '/');
        snprintf(prefix, sizeof prefix, "%.32s-req", slash ? slash + 1 : target);
        return;
    }
    if (strlen(name) >= sizeof interface)
        fail("'%s' is no name of a network interface", name);
    strcpy(interface, name);
    snprintf(prefix, sizeof prefix, "%s", name);
    /* That of a virtio device has virtio0-input.0, virtio0-output.0, ... */
    char path[64], target[256];
    snprintf(path, sizeof path, "/sys/class/net/%.15s/device", name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    char *slash = strrchr(target, '/');
    if (slash && !strncmp(slash + 1, "virtio", 6))
        snprintf(prefix, sizeof prefix, "%.32s-", slash + 1);
    statistics[0] = statistic("tx_bytes");
    statistics[1] = statistic("rx_bytes");
    statistics[2] = statistic("tx_packets");
    statistics[3] = statistic("rx_packets");
}

/* Whether a line's last words name an interrupt of the device ("eth0", "eth0-rx-0", "nvme0q1"). */
static int is_devices(const char *text)
{
    size_t length = strlen(prefix);
    for (const char *at = text; length && (at = strstr(at, prefix)); at++) {
        char after = at[length];
        int another = after >= '0' && after <= '9' && strcmp(prefix, "nvme");
        if ((at == text || at[-1] == ' ') && !another)
            return 1;
    }
    return 0;
}

static void count(struct interrupts *into, char *kind, size_t room)
{
    char *line, *rest = slurp(interrupts_file, "/proc/interrupts");
    into->device = into->ticks = 0;
    while ((line = strsep(&rest, "\n"))) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        uint64_t *counter = strstr(line, "LOC:") ? &into->ticks : is_devices(colon) ? &into->device : NULL;
        if (!counter)
            continue;
        char *at = colon + 1, *end;
        for (unsigned cpu = 0; cpu < cpus_online(); cpu++, at = end)
            *counter += strtoull(at, &end, 10);
        if (kind && counter == &into->device) {
            snprintf(kind, room, "%s", at + strspn(at, " "));
            kind[strcspn(kind, " ")] = 0;
        }
    }
}

void interrupts_read(struct interrupts *into)
{
    count(into, NULL, 0);
}

void device_interrupt_kind(char *into, size_t room)
{
    struct interrupts unused;
    count(&unused, into, room);
}

void bytes_read(struct bytes *into)
{
    uint64_t value[4] = {0};
    for (unsigned i = 0; i < 4 && statistics[i] >= 0; i++)
        value[i] = strtoull(slurp(statistics[i], "the interface's counters"), NULL, 10);
    *into = (struct bytes){.sent = value[0], .received = value[1], .packets = value[2] + value[3]};
}

void device_down(void)
{
    if (!interface[0])
        return;
    struct ifreq request = {0};
    strcpy(request.ifr_name, interface);
    int sock = socket(AF_INET, SOCK_DGRAM, 0);
    if (sock < 0 || ioctl(sock, SIOCGIFFLAGS, &request))
        fail("asking for the state of %s: %s", interface, strerror(errno));
    request.ifr_flags &= ~IFF_UP;
    if (ioctl(sock, SIOCSIFFLAGS, &request))
        fail("taking %s down: %s", interface, strerror(errno));
    close(sock);
}
