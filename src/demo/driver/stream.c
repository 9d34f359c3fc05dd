/* Stands in for streams: each has a timeline, and what is submitted to it starts
 * when what went before it, and on the null stream, is done. */
#include "driver.h"

static unsigned long long next_id = 1;

struct stream *stream_new(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = object_new(STREAM, sizeof *stream);
    if (stream) {
        stream->context = context;
        stream->flags = flags;
        stream->priority = priority;
        stream->id = next_id++;
    }
    return stream;
}

/* 0, 1 and 2 are the null stream: plain, legacy and per-thread. Here all three
 * are the legacy one. */
CUresult stream_find(handle h, struct stream **stream)
{
    struct context *current;
    if ((uintptr_t)h <= 2) {
        TRY(need_context(&current));
        *stream = current->null_stream;
        return SUCCESS;
    }
    if (!object_is(h, STREAM))
        return INVALID_HANDLE;
    *stream = h;
    return SUCCESS;
}

struct latest {
    struct context *context;
    bool blocking_only;
    int64_t at;
};

static bool later(void *object, void *data)
{
    struct stream *stream = object;
    struct latest *latest = data;
    if (stream->context == latest->context && !(latest->blocking_only && stream->flags & 1) &&
        stream->ready_at > latest->at)
        latest->at = stream->ready_at;
    return true;
}

int64_t context_ready_at(struct context *context)
{
    struct latest latest = {.context = context, .at = context->orphans_ready_at};
    object_each(STREAM, later, &latest);
    return latest.at;
}

int64_t stream_submit(struct stream *stream, int64_t ns)
{
    struct latest start = {.context = stream->context, .blocking_only = true, .at = clock_now()};
    struct stream *null_stream = stream->context->null_stream;
    if (stream == null_stream)
        object_each(STREAM, later, &start);
    else if (!(stream->flags & 1) && null_stream->ready_at > start.at)
        start.at = null_stream->ready_at;
    if (stream->ready_at > start.at)
        start.at = stream->ready_at;
    stream->ready_at = start.at + ns;
    return stream->ready_at;
}

CUresult wait_idle(struct context *context)
{
    gate_lock();
    int64_t until = context_ready_at(context);
    uint64_t last = callback_last();
    gate_unlock();
    clock_wait(until);
    gate_lock();
    callback_wait(NULL, last);
    gate_unlock();
    return SUCCESS;
}

DRIVER(cuStreamCreateWithPriority)(handle *out, unsigned flags, int priority)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out || flags > 1)
        return INVALID_VALUE;
    int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    gate_lock();
    *out = stream_new(current, flags, clamped);
    gate_unlock();
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuStreamCreate)(handle *out, unsigned flags)
{
    return impl_cuStreamCreateWithPriority(out, flags, 0);
}

/* Finds the stream and, if it captures, refuses. Leaves with the gate held on success. */
static CUresult enter(handle h, struct stream **stream)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    CUresult result = stream_find(h, stream);
    if (!result && (*stream)->capture)
        result = STREAM_CAPTURE_UNSUPPORTED;
    if (result)
        gate_unlock();
    return result;
}

DRIVER(cuStreamDestroy_v2)(handle h)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    bool known = (uintptr_t)h > 2 && object_is(h, STREAM);
    if (known) {
        struct stream *stream = h;
        if (stream->ready_at > stream->context->orphans_ready_at)
            stream->context->orphans_ready_at = stream->ready_at;
        object_forget(h);
    }
    gate_unlock();
    return known ? SUCCESS : INVALID_HANDLE;
}
DRIVER_ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

DRIVER(cuStreamSynchronize)(handle h)
{
    struct stream *stream;
    TRY(enter(h, &stream));
    int64_t until = stream->ready_at;
    uint64_t last = callback_last();
    /* The null stream is done when those that it waits for are. */
    if (stream == stream->context->null_stream) {
        struct latest all = {.context = stream->context, .blocking_only = true, .at = until};
        object_each(STREAM, later, &all);
        until = all.at;
    }
    gate_unlock();
    clock_wait(until);
    gate_lock();
    callback_wait(stream, last);
    gate_unlock();
    return SUCCESS;
}

DRIVER(cuStreamQuery)(handle h)
{
    struct stream *stream;
    TRY(enter(h, &stream));
    bool busy = stream->ready_at > clock_now() || callback_pending(stream, callback_last());
    gate_unlock();
    return busy ? NOT_READY : SUCCESS;
}

static CUresult look(handle h, struct stream **stream, const void *out)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(h, stream);
    gate_unlock();
    return result;
}

DRIVER(cuStreamGetFlags)(handle h, unsigned *flags)
{
    struct stream *stream;
    TRY(look(h, &stream, flags));
    *flags = stream->flags;
    return SUCCESS;
}

DRIVER(cuStreamGetPriority)(handle h, int *priority)
{
    struct stream *stream;
    TRY(look(h, &stream, priority));
    *priority = stream->priority;
    return SUCCESS;
}

DRIVER(cuStreamGetId)(handle h, unsigned long long *id)
{
    struct stream *stream;
    TRY(look(h, &stream, id));
    *id = stream->id;
    return SUCCESS;
}

DRIVER(cuStreamGetCtx)(handle h, struct context **out)
{
    struct stream *stream;
    TRY(look(h, &stream, out));
    *out = stream->context;
    return SUCCESS;
}

DRIVER(cuStreamGetDevice)(handle h, CUdevice *device)
{
    struct stream *stream;
    TRY(look(h, &stream, device));
    *device = stream->context->device;
    return SUCCESS;
}
