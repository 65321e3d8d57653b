/*
 * The busy loop beside a latency-sensitive program (the paper's Table 2), one for
 * each CPU. It has the policy SCHED_IDLE: the paper's kernel let a woken program in
 * at once, today's lets the running one of equal standing finish its slice first,
 * and it is the interrupt's latency that is wanted, not the scheduler's.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none)) {
        perror("busy: the policy SCHED_IDLE");
        return 1;
    }
    for (long cpu = sysconf(_SC_NPROCESSORS_ONLN); cpu > 1; cpu--)
        if (fork() == 0)
            break;
    for (;;)
        __asm__ volatile("");
}
