/* Stands in for events: the time on a stream's timeline at which they happen. */
#include "driver.h"

DRIVER(cuEventCreate)(handle *out, unsigned flags)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out || flags > 7)
        return INVALID_VALUE;
    gate_lock();
    struct event *event = object_new(EVENT, sizeof *event);
    if (event)
        event->flags = flags;
    gate_unlock();
    *out = event;
    return event ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuEventDestroy_v2)(handle h)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    bool known = object_is(h, EVENT);
    if (known)
        object_forget(h);
    gate_unlock();
    return known ? SUCCESS : INVALID_HANDLE;
}
DRIVER_ALIAS(cuEventDestroy, cuEventDestroy_v2);

DRIVER(cuEventRecordWithFlags)(handle h, handle stream_handle, unsigned flags)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (flags > 1)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(stream_handle, &stream);
    if (!result && !object_is(h, EVENT))
        result = INVALID_HANDLE;
    if (!result) {
        struct event *event = h;
        event->recorded = !stream->capture;
        event->capture = stream->capture;
        event->stream = stream;
        event->callbacks = callback_last();
        if (!stream->capture)
            event->at = stream_submit(stream, 0);
    }
    gate_unlock();
    return result;
}

DRIVER(cuEventRecord)(handle h, handle stream)
{
    return impl_cuEventRecordWithFlags(h, stream, 0);
}

DRIVER(cuStreamWaitEvent)(handle stream_handle, handle h, unsigned flags)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (flags > 1)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(stream_handle, &stream);
    if (!result && !object_is(h, EVENT))
        result = INVALID_HANDLE;
    if (!result) {
        struct event *event = h;
        if (event->capture && stream->capture && stream->capture != event->capture)
            result = STREAM_CAPTURE_MERGE;
        else if (event->capture) /* the stream joins the capture */
            stream->capture = event->capture;
        else if (event->recorded && event->at > stream->ready_at)
            stream->ready_at = event->at;
    }
    gate_unlock();
    return result;
}

/* With the gate held on success. */
static CUresult enter(struct event *event)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    if (object_is(event, EVENT) && !event->capture)
        return SUCCESS;
    CUresult result = object_is(event, EVENT) ? STREAM_CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    gate_unlock();
    return result;
}

static bool done(const struct event *event)
{
    return !event->recorded || (event->at <= clock_now() && !callback_pending(event->stream, event->callbacks));
}

DRIVER(cuEventQuery)(struct event *event)
{
    TRY(enter(event));
    bool over = done(event);
    gate_unlock();
    return over ? SUCCESS : NOT_READY;
}

DRIVER(cuEventSynchronize)(struct event *event)
{
    TRY(enter(event));
    bool recorded = event->recorded;
    int64_t until = event->at;
    const struct stream *stream = event->stream;
    uint64_t last = event->callbacks;
    gate_unlock();
    if (!recorded)
        return SUCCESS;
    clock_wait(until);
    gate_lock();
    callback_wait(stream, last);
    gate_unlock();
    return SUCCESS;
}

DRIVER(cuEventElapsedTime_v2)(float *milliseconds, struct event *start, struct event *end)
{
    if (!milliseconds)
        return INVALID_VALUE;
    TRY(enter(start));
    gate_unlock();
    TRY(enter(end));
    CUresult result = SUCCESS;
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & 2)
        result = INVALID_HANDLE;
    else if (!done(start) || !done(end))
        result = NOT_READY;
    else
        *milliseconds = (float)((double)(end->at - start->at) / 1e6);
    gate_unlock();
    return result;
}
DRIVER_ALIAS(cuEventElapsedTime, cuEventElapsedTime_v2);
