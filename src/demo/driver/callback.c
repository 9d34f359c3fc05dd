/* Stands in for the driver's thread that runs host functions: in the order of
 * their streams, when the timeline has come to them, outside the gate. */
#include "driver.h"

#include <signal.h>
#include <stdlib.h>

struct job {
    struct job *next;
    uint64_t number;
    int64_t due;
    const struct stream *stream;
    void (*plain)(void *);
    void (*with_status)(handle, CUresult, void *);
    void *data;
};

static struct job *first; /* by due time; the first may be running */
static uint64_t last_number;
static bool started;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void run(const struct job *job)
{
    clock_wait(job->due);
    in_callback = true;
    if (job->plain)
        job->plain(job->data);
    else
        job->with_status((handle)job->stream, SUCCESS, job->data);
    in_callback = false;
}

static void *worker(void *unused)
{
    (void)unused;
    gate_lock();
    for (;;) {
        while (!first)
            pthread_cond_wait(&changed, &gate);
        struct job *job = first;
        gate_unlock();
        run(job);
        gate_lock();
        struct job **link = &first;
        while (*link != job)
            link = &(*link)->next;
        *link = job->next;
        free(job);
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

/* Signals are for the program's own threads. */
static CUresult start_worker(void)
{
    sigset_t all, before;
    pthread_t thread;
    if (started)
        return SUCCESS;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    started = !pthread_create(&thread, NULL, worker, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started)
        return OPERATING_SYSTEM;
    pthread_detach(thread);
    return SUCCESS;
}

CUresult callback_submit(struct stream *stream, int64_t due, void (*plain)(void *),
                         void (*with_status)(handle, CUresult, void *), void *data)
{
    TRY(start_worker());
    struct job *job = malloc(sizeof *job);
    if (!job)
        return OUT_OF_MEMORY;
    *job = (struct job){.number = ++last_number, .due = due, .stream = stream, .plain = plain,
                        .with_status = with_status, .data = data};
    struct job **link = &first;
    while (*link && (*link)->due <= due)
        link = &(*link)->next;
    job->next = *link;
    *link = job;
    pthread_cond_broadcast(&changed);
    return SUCCESS;
}

uint64_t callback_last(void)
{
    return last_number;
}

bool callback_pending(const struct stream *stream, uint64_t last)
{
    for (const struct job *job = first; job; job = job->next)
        if ((!stream || job->stream == stream) && job->number <= last)
            return true;
    return false;
}

void callback_wait(const struct stream *stream, uint64_t last)
{
    while (callback_pending(stream, last))
        pthread_cond_wait(&changed, &gate);
}

DRIVER(cuLaunchHostFunc)(handle stream, void (*function)(void *), void *data)
{
    if (!function)
        return INVALID_VALUE;
    struct work work = {.kind = WORK_HOST, .callback = function, .data = data};
    return work_submit(stream, &work, false);
}

DRIVER(cuStreamAddCallback)(handle h, void (*function)(handle, CUresult, void *), void *data, unsigned flags)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (!function || flags)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(h, &stream);
    if (!result)
        result = stream->capture ? STREAM_CAPTURE_UNSUPPORTED
                                 : callback_submit(stream, stream_submit(stream, 0), NULL, function, data);
    gate_unlock();
    return result;
}
