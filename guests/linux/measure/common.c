/* What measure and victim have in common: small files, and the time. */
#include "measure.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("@exitless failed ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
    exit(1);
}

char *slurp(int file, const char *name)
{
    static char text[65536];
    ssize_t got, length = 0;
    while ((got = pread(file, text + length, sizeof text - 1 - (size_t)length, length)) > 0)
        length += got;
    if (got < 0)
        fail("reading %s: %s", name, strerror(errno));
    text[length] = 0;
    return text;
}

uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
