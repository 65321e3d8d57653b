/*
 * The program that does the work: started in a process group of its own, on every
 * CPU, watched, and stopped with all that it started.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t load;
static const char *output; /* the file that it writes to, or null */

void load_start(char **program, const char *file)
{
    if (file)
        output = file;
    load = fork();
    if (load < 0)
        fail("fork: %s", strerror(errno));
    if (load == 0) {
        setpgid(0, 0);
        cpus_all();
        if (file && (!freopen(file, "w", stdout) || dup2(1, 2) < 0))
            _exit(126);
        execvp(program[0], program);
        _exit(127);
    }
    setpgid(load, load);
    atexit(load_kill);
}

void load_kill(void)
{
    if (load > 0)
        kill(-load, SIGKILL);
}

int load_counted(void)
{
    return operations_ready(load);
}

void load_still_there(const char *when)
{
    if (waitpid(load, NULL, WNOHANG) != load)
        return;
    char line[256], last[256] = "it said nothing";
    FILE *f = output ? fopen(output, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0])
            strcpy(last, line);
    }
    fail("the load ended by itself %s: %s", when, last);
}

/* Waits until something listens on the port and says so. */
void load_announce(unsigned port, const char *text)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t start = now();
    for (;;) {
        int sock = socket(AF_INET, SOCK_STREAM, 0);
        int refused = connect(sock, (struct sockaddr *)&to, sizeof to);
        close(sock);
        if (!refused)
            break;
        load_still_there("before it listened");
        if (now() - start > PATIENCE)
            fail("nothing listens on port %u after a minute", port);
        sleep_until(now() + 50000000);
    }
    printf("@exitless ready %s port=%u\n", text, port);
    fflush(stdout);
}

/* Gives those who ask a server the time to stop and say what they saw. */
void load_fall_silent(void)
{
    uint64_t start = now(), last = start, seen = operations();
    while (now() - last < 300000000 && now() - start < 3000000000ull) {
        sleep_until(now() + 50000000);
        uint64_t done = operations();
        if (done != seen)
            last = now();
        seen = done;
    }
}

/* Asks the load to end, so that it can say what it saw, and sees to it that it does. */
void load_stop(void)
{
    uint64_t start = now();
    kill(load, SIGINT);
    while (waitpid(load, NULL, WNOHANG) != load) {
        if (now() - start > 5000000000ull) {
            kill(load, SIGKILL);
            waitpid(load, NULL, 0);
            break;
        }
        sleep_until(now() + 10000000);
    }
    kill(-load, SIGKILL);
    load = 0;
}

/* What the load said, line by line. */
void load_repeat(void)
{
    char line[256];
    FILE *f = fopen(output, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0])
            printf("@exitless load %s\n", line);
    }
    if (f)
        fclose(f);
}
