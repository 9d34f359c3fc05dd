/* Calls a function of libraries again and again and tells what a call took. In: one of the forms in usage(). Out, on
 * standard output: nanoseconds. Takes the time itself, after a warm-up, so that nothing but the calls is in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST_THREADS = 256, MOST_BATCHES = 1000, WARM_UP = 200, LEAST = 50 };

typedef int (*function)(void *, void *, unsigned);

static uint64_t clock_of(clockid_t id)
{
    struct timespec time;
    clock_gettime(id, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static void wait_until(uint64_t when)
{
    struct timespec time = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL))
        ;
}

static function find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    function found = handle && name ? (function)dlsym(handle, name) : NULL;
    if (!handle || (name && !found)) {
        fprintf(stderr, "hits: %s\n", dlerror());
        exit(2);
    }
    return found;
}

static void call(function it, uint64_t times)
{
    for (uint64_t i = 0; i < times; i++)
        it((void *)0x7f0000001000, (void *)0x7f0000002000, 0);
}

static void told_to_go_on(const char *word)
{
    puts(word);
    fflush(stdout);
    for (int c = getchar(); c != EOF && c != '\n'; c = getchar())
        ;
}

/* --- batches, by threads at the same time --- */

struct thread {
    pthread_t id;
    pthread_barrier_t *together;
    function it;
    uint64_t calls, batches, pause;
    double wall[MOST_BATCHES], cpu[MOST_BATCHES];
};

static void *batches(void *argument)
{
    struct thread *me = argument;
    call(me->it, WARM_UP);
    for (uint64_t i = 0; i < me->batches; i++) {
        if (me->pause)
            wait_until(now() + me->pause);
        pthread_barrier_wait(me->together);
        uint64_t wall = now(), cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
        call(me->it, me->calls);
        me->cpu[i] = (double)(clock_of(CLOCK_THREAD_CPUTIME_ID) - cpu) / (double)me->calls;
        me->wall[i] = (double)(now() - wall) / (double)me->calls;
    }
    return NULL;
}

static int in_order(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, uint64_t count)
{
    qsort(values, count, sizeof *values, in_order);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* The median over batches of the mean over threads. */
static void measure(function it, int library, unsigned threads, uint64_t batch_ns, uint64_t most, uint64_t count,
                    uint64_t pause)
{
    static struct thread all[MOST_THREADS];
    static double wall[MOST_BATCHES], cpu[MOST_BATCHES];
    pthread_barrier_t together;
    call(it, WARM_UP);
    uint64_t began = now();
    call(it, WARM_UP);
    uint64_t each = (now() - began) / WARM_UP + 1, calls = batch_ns / each;
    calls = calls > most ? most : calls < LEAST ? LEAST : calls;
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        all[i].together = &together;
        all[i].it = it;
        all[i].calls = calls;
        all[i].batches = count;
        all[i].pause = pause;
        if (pthread_create(&all[i].id, NULL, batches, &all[i])) {
            perror("hits: pthread_create");
            exit(3);
        }
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(all[i].id, NULL);
    for (uint64_t b = 0; b < count; b++) {
        wall[b] = cpu[b] = 0;
        for (unsigned i = 0; i < threads; i++) {
            wall[b] += all[i].wall[b] / threads;
            cpu[b] += all[i].cpu[b] / threads;
        }
    }
    printf("%d %u %.2f %.2f\n", library, threads, median(wall, count), median(cpu, count));
    fflush(stdout);
    pthread_barrier_destroy(&together);
}

static int all_batches(int count, char **words)
{
    unsigned milliseconds = (unsigned)atoi(words[1]), most = (unsigned)atoi(words[2]);
    unsigned number = (unsigned)atoi(words[3]), pause = (unsigned)atoi(words[4]);
    function its[64];
    if (number < 1 || number > MOST_BATCHES || count > 64)
        return 2;
    for (int i = 6; i < count; i++)
        its[i] = find(words[i], words[0]);
    for (char *threads = strtok(words[5], ","); threads; threads = strtok(NULL, ",")) {
        unsigned at_once = (unsigned)atoi(threads);
        if (at_once < 1 || at_once > MOST_THREADS)
            return 2;
        for (int i = 6; i < count; i++)
            measure(its[i], i - 6, at_once, milliseconds * 1000000ull, most, number, pause * 1000000ull);
    }
    return 0;
}

/* --- others --- */

static int burst(char **words)
{
    int cpu = atoi(words[2]);
    cpu_set_t one;
    CPU_ZERO(&one);
    if (cpu >= 0) {
        CPU_SET((unsigned)cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one)) {
            perror("hits: sched_setaffinity");
            return 3;
        }
    }
    function it = find(words[3], words[0]);
    uint64_t times = strtoul(words[1], NULL, 10);
    told_to_go_on("ready");
    uint64_t began = now();
    call(it, times);
    printf("%llu\n", (unsigned long long)(now() - began));
    told_to_go_on("done");
    return 0;
}

static int rate(char **words)
{
    uint64_t a_second = strtoul(words[1], NULL, 10);
    double seconds = atof(words[2]);
    function it = find(words[3], words[0]);
    uint64_t began = now(), each = 1000000, made = 0;
    for (uint64_t at = each; (double)at <= seconds * 1e9; at += each) {
        uint64_t due = (uint64_t)((double)a_second * (double)at / 1e9);
        call(it, due - made);
        made = due;
        wait_until(began + at);
    }
    printf("%llu %llu\n", (unsigned long long)made, (unsigned long long)(now() - began));
    return 0;
}

static int load(int count, char **words)
{
    for (int i = 0; i < count; i++)
        find(words[i], NULL);
    return 0;
}

static int usage(void)
{
    fputs("usage: hits batches FUNCTION MS MOST-CALLS BATCHES PAUSE-MS THREADS,... LIBRARY...\n"
          "           batches of MS or MOST-CALLS; for each: LIBRARY THREADS NS-A-CALL CPU-NS-A-CALL\n"
          "       hits burst FUNCTION CALLS CPU LIBRARY\n"
          "           says ready, waits for a line, calls without a pause, prints NS, says done, waits for a line\n"
          "       hits rate FUNCTION A-SECOND SECONDS LIBRARY    prints CALLS NS\n"
          "       hits load LIBRARY...                           opens them\n", stderr);
    return 2;
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "batches") && count >= 9)
        return all_batches(count - 2, words + 2);
    if (!strcmp(what, "burst") && count == 6)
        return burst(words + 2);
    if (!strcmp(what, "rate") && count == 6)
        return rate(words + 2);
    if (!strcmp(what, "load") && count > 2)
        return load(count - 2, words + 2);
    return usage();
}
