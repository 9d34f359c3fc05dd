/* Inside the stand-in libcuda: state, work on the simulated GPU, and what the
 * files ask of each other. An exported function `name` is written as
 * DRIVER(name)(arguments); build.rs finds these lines and lets the exported
 * symbol, which counts, jump there. */
#ifndef DRIVER_H
#define DRIVER_H

#include "../common/standin.h"

#include <pthread.h>
#include <stdbool.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *handle;

#define DRIVER(name) CUresult impl_##name
/* `name` does what `same` does: the two have one prototype. */
#define DRIVER_ALIAS(name, same) \
    extern __typeof__(impl_##same) impl_##name __attribute__((alias("impl_" #same)))

#define TRY(call)              \
    do {                       \
        CUresult try_ = (call); \
        if (try_)              \
            return try_;       \
    } while (0)

/* One lock for all state. Copies, kernels and waiting happen outside it. */
void gate_lock(void);
void gate_unlock(void);
extern pthread_mutex_t gate;

/* objects.c: handles are addresses of objects; those not listed are refused. */
enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, LIBRARY, FUNCTION, KERNEL, GRAPH, GRAPH_EXEC, POOL, PHYSICAL };
void *object_new(enum kind kind, size_t size); /* zeroed and listed; NULL: no memory */
bool object_is(handle h, enum kind kind);
void object_forget(handle h); /* unlisted; the memory stays with the caller */
/* Calls visit for each object of the kind, until it returns false. */
void object_each(enum kind kind, bool (*visit)(void *object, void *data), void *data);

/* device.c */
#define DEVICE_BYTES (8ULL << 30)
#define RESERVED_BYTES (256ULL << 20) /* what a context of the real driver takes */
struct stream;
struct context {
    CUdevice device;
    unsigned flags, id;
    struct stream *null_stream;
    handle device_pool;
    int64_t orphans_ready_at; /* work of streams destroyed since */
};
CUresult need_driver(void);                      /* cuInit done, not in a callback, not forked */
CUresult need_context(struct context **current); /* and a context is current */
extern __thread bool in_callback;
/* Numbers as build.rs writes them into the entry code. */
#define STANDIN_UP 0x1badb002u
#define STANDIN_DOWN 0x321cba00u
extern uint32_t standin_up, standin_down;

/* clock.c: CLOCK_MONOTONIC nanoseconds. */
int64_t clock_now(void);
void clock_wait(int64_t until);
int64_t copy_ns(uint64_t bytes);           /* how long the simulated GPU copies */
int64_t kernel_ns(unsigned microseconds);  /* honours STANDIN_KERNEL_US */

/* stream.c: all under the gate unless noted. */
struct graph;
struct stream {
    struct context *context;
    int64_t ready_at; /* when all that was submitted is done */
    unsigned flags;   /* 1: does not wait for the null stream, nor it for this */
    int priority;
    unsigned long long id;
    struct graph *capture;
    bool origin; /* the capture began here */
};
struct event {
    int64_t at;
    bool recorded;
    unsigned flags; /* 2: no timing */
    struct stream *stream;
    uint64_t callbacks; /* those of the stream up to this one precede the event */
    struct graph *capture;
};
struct stream *stream_new(struct context *context, unsigned flags, int priority);
CUresult stream_find(handle h, struct stream **stream);
int64_t stream_submit(struct stream *stream, int64_t ns);
int64_t context_ready_at(struct context *context);
CUresult wait_idle(struct context *context); /* outside the gate */

/* callback.c: host functions run in order on a thread of the driver. */
CUresult callback_submit(struct stream *stream, int64_t due, void (*plain)(void *),
                         void (*with_status)(handle, CUresult, void *), void *data);
uint64_t callback_last(void);
/* Waits, with the gate held, until those of `stream` (NULL: all) up to `last` are over. */
void callback_wait(const struct stream *stream, uint64_t last);
bool callback_pending(const struct stream *stream, uint64_t last);

/* module.c */
struct function {
    const char *name;
    void *owner; /* module or library */
    const struct standin_kernel *code; /* NULL if loaded from a foreign image */
    int attributes[16];
};
CUresult function_find(handle h, struct function **function); /* a kernel too */

/* work.c: what can be put on a stream or into a graph. */
struct work {
    enum { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_HOST, WORK_EMPTY } kind;
    int64_t ns;
    struct function *function;
    void **params;
    unsigned char *param_bytes; /* a graph's own copy */
    char *to;
    const char *from;
    uint64_t width, height, depth, to_pitch, from_pitch, to_slice, from_slice;
    unsigned value, element;
    void (*callback)(void *);
    void *data;
};
/* To the stream, or to the graph it captures into; `wait`: until it is done. */
CUresult work_submit(handle stream, const struct work *work, bool wait);
void work_perform(const struct work *work);
CUresult graph_add(struct graph *graph, const struct work *work);

/* memory.c: one arena of addresses for device and managed memory. */
enum space { FREE_RANGE, DEVICE, MANAGED, HOST_ALLOCATED, HOST_REGISTERED, VIRTUAL };
struct range {
    uint64_t start, size;
    enum space space;
    unsigned flags;
    struct context *context;
    uint64_t id;
};
CUresult arena_alloc(struct context *context, enum space space, uint64_t size, CUdeviceptr *out);
CUresult arena_free(CUdeviceptr pointer);
void arena_forget(const struct context *context); /* what was allocated in it */
bool budget_take(uint64_t bytes); /* of device memory */
void budget_give(uint64_t bytes);
CUresult range_add(struct range range);
struct range *range_at(uint64_t address); /* the one that holds it, or NULL */
void range_remove(struct range *range);
/* `bytes` from `address` on may be read and written by the device. */
bool range_covers(uint64_t address, uint64_t bytes);

#endif
