/* Stands in for the GPU's engines. Data moves and kernels compute when they are
 * submitted, on the calling thread; only time passes later, on the stream's
 * timeline. A correct program cannot tell, since it waits before it looks. */
#include "driver.h"

#include <string.h>

static void perform_copy(const struct work *w)
{
    for (uint64_t z = 0; z < w->depth; z++)
        for (uint64_t y = 0; y < w->height; y++)
            memmove(w->to + z * w->to_slice + y * w->to_pitch,
                    w->from + z * w->from_slice + y * w->from_pitch, w->width);
}

static void set_row(char *row, unsigned value, unsigned element, uint64_t count)
{
    if (element == 1)
        memset(row, (int)value, count);
    else if (element == 2)
        for (uint64_t x = 0; x < count; x++)
            ((uint16_t *)(void *)row)[x] = (uint16_t)value;
    else
        for (uint64_t x = 0; x < count; x++)
            ((uint32_t *)(void *)row)[x] = value;
}

void work_perform(const struct work *w)
{
    if (w->kind == WORK_COPY)
        perform_copy(w);
    else if (w->kind == WORK_SET)
        for (uint64_t y = 0; y < w->height; y++)
            set_row(w->to + y * w->to_pitch, w->value, w->element, w->width);
    else if (w->kind == WORK_KERNEL && w->function->code && w->function->code->body)
        w->function->code->body(w->params);
}

CUresult work_submit(handle stream_handle, const struct work *work, bool wait)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    gate_lock();
    CUresult result = stream_find(stream_handle, &stream);
    if (result || stream->capture) {
        if (!result)
            result = wait ? STREAM_CAPTURE_UNSUPPORTED : graph_add(stream->capture, work);
        gate_unlock();
        return result;
    }
    int64_t end = stream_submit(stream, work->ns);
    if (work->kind == WORK_HOST)
        result = callback_submit(stream, end, work->callback, NULL, work->data);
    gate_unlock();
    work_perform(work);
    if (wait)
        clock_wait(end);
    return result;
}
