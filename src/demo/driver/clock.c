/* Stands in for the GPU's speed: how long a copy or a kernel takes, and waiting. */
#include "door.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

int64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void clock_wait(int64_t until)
{
    if (until <= clock_now())
        return;
    door_wait(until);
    struct timespec at = {.tv_sec = until / 1000000000LL, .tv_nsec = until % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

/* 4 us to begin and 16 bytes a nanosecond, about PCIe 4.0 x16. */
int64_t copy_ns(uint64_t bytes)
{
    return 4000 + (int64_t)(bytes / 16);
}

static long override_us = -1;

__attribute__((constructor)) static void read_override(void)
{
    const char *text = getenv("STANDIN_KERNEL_US");
    if (text && *text)
        override_us = strtol(text, NULL, 10);
}

int64_t kernel_ns(unsigned microseconds)
{
    long us = override_us >= 0 ? override_us : (long)microseconds;
    return us * 1000LL;
}
