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

static int interrupts_file, sent_file = -1, received_file = -1;
/* Its interrupts' names in /proc/interrupts begin so; "" when there is no device. */
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
    if (!strncmp(name, "nvme", 4)) {
        /* nvme0n1 has the interrupts nvme0q0, nvme0q1, ... */
        snprintf(prefix, sizeof prefix, "nvme%lu", strtoul(name + 4, NULL, 10));
        return;
    }
    if (strlen(name) >= sizeof interface)
        fail("'%s' is no name of a network interface", name);
    strcpy(interface, name);
    snprintf(prefix, sizeof prefix, "%s", name);
    sent_file = statistic("tx_bytes");
    received_file = statistic("rx_bytes");
}

/* Whether a line's last words name an interrupt of the device ("eth0", "eth0-rx-0", "nvme0q1"). */
static int is_devices(const char *text)
{
    size_t length = strlen(prefix);
    for (const char *at = text; length && (at = strstr(at, prefix)); at++) {
        char after = at[length];
        if ((at == text || at[-1] == ' ') && !(after >= '0' && after <= '9'))
            return 1;
    }
    return 0;
}

static void interrupts_read(struct device *into, char *kind, size_t room)
{
    char *line, *rest = slurp(interrupts_file, "/proc/interrupts");
    into->interrupts = into->ticks = 0;
    while ((line = strsep(&rest, "\n"))) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        uint64_t *counter = strstr(line, "LOC:") ? &into->ticks : is_devices(colon) ? &into->interrupts : NULL;
        if (!counter)
            continue;
        char *at = colon + 1, *end;
        for (unsigned cpu = 0; cpu < cpus_online(); cpu++, at = end)
            *counter += strtoull(at, &end, 10);
        if (kind && counter == &into->interrupts) {
            snprintf(kind, room, "%s", at + strspn(at, " "));
            kind[strcspn(kind, " ")] = 0;
        }
    }
}

/* Slow: drivers ask their device. */
static void bytes_read(struct device *into)
{
    if (sent_file < 0)
        return;
    into->sent = strtoull(slurp(sent_file, "the interface's counters"), NULL, 10);
    into->received = strtoull(slurp(received_file, "the interface's counters"), NULL, 10);
}

void device_open(struct device *into)
{
    bytes_read(into);
    interrupts_read(into, NULL, 0);
}

void device_close(struct device *into)
{
    interrupts_read(into, NULL, 0);
    bytes_read(into);
}

void device_interrupt_kind(char *into, size_t room)
{
    struct device unused;
    interrupts_read(&unused, into, room);
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
