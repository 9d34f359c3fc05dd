/* Stands in for nothing real: the ground truth of the test bed. How often each
 * exported function of this library was called in this process, on request
 * (standin_calls) and at exit (STANDIN_COUNTS=FILE). Compiled into both. */
#define _GNU_SOURCE
#include "standin.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct function_row *function_named(const char *name)
{
    size_t low = 0, high = standin_function_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(name, standin_functions[middle].name);
        if (order == 0)
            return &standin_functions[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

EXPORT uint64_t standin_calls(const char *name)
{
    const struct function_row *row = function_named(name);
    if (!row)
        return UINT64_MAX;
    return __atomic_load_n(&standin_counts[row - standin_functions], __ATOMIC_RELAXED);
}

/* STANDIN_COUNTS with %p replaced by the process id, and the library's suffix. */
static void counts_path(const char *pattern, char *path, size_t room)
{
    const char *place = strstr(pattern, "%p");
    if (place)
        snprintf(path, room, "%.*s%d%s%s", (int)(place - pattern), pattern, (int)getpid(),
                 place + 2, STANDIN_SUFFIX);
    else
        snprintf(path, room, "%s%s", pattern, STANDIN_SUFFIX);
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *pattern = getenv("STANDIN_COUNTS");
    if (!pattern || !*pattern)
        return;
    char path[4096];
    counts_path(pattern, path, sizeof path);
    FILE *file = fopen(path, "we");
    if (!file) {
        fprintf(stderr, "stand-in CUDA: cannot write %s (%s): set STANDIN_COUNTS to a writable path\n",
                path, strerror(errno));
        return;
    }
    for (size_t i = 0; i < standin_function_count; i++) {
        uint64_t count = __atomic_load_n(&standin_counts[i], __ATOMIC_RELAXED);
        if (count)
            fprintf(file, "%s %llu\n", standin_functions[i].name, (unsigned long long)count);
    }
    fclose(file);
}

/* A forked child starts at zero, so that its file holds its own calls. */
static void forget_counts(void)
{
    memset(standin_counts, 0, standin_function_count * sizeof standin_counts[0]);
}

__attribute__((constructor)) static void count_from_here(void)
{
    pthread_atfork(NULL, NULL, forget_counts);
}

/* What a function without behaviour of its own does. */
long standin_default(void);
long standin_default(void)
{
    return SUCCESS;
}
