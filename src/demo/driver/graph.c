/* Stands in for graphs: a list of work, filled by stream capture or node by node,
 * and run in the order in which it was added. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct graph {
    struct work *work;
    size_t count, room;
    unsigned long long capture_id;
};

static unsigned long long next_capture = 1;

/* A launch's parameters are gone when the launch returns, so a graph copies them. */
static CUresult keep_params(struct work *work)
{
    const struct standin_kernel *code = work->function->code;
    size_t count = 0;
    while (code && count < STANDIN_PARAMS && code->sizes[count])
        count++;
    if (!count || !work->params) {
        work->params = NULL;
        return SUCCESS;
    }
    void **params = calloc(count, sizeof *params);
    unsigned char *bytes = calloc(count, 256);
    if (!params || !bytes) {
        free(params);
        free(bytes);
        return OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        params[i] = bytes + i * 256;
        memcpy(params[i], work->params[i], code->sizes[i]);
    }
    work->params = params;
    work->param_bytes = bytes;
    return SUCCESS;
}

CUresult graph_add(struct graph *graph, const struct work *work)
{
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        struct work *more = realloc(graph->work, room * sizeof *more);
        if (!more)
            return OUT_OF_MEMORY;
        graph->work = more;
        graph->room = room;
    }
    struct work copy = *work;
    if (copy.kind == WORK_KERNEL)
        TRY(keep_params(&copy));
    graph->work[graph->count++] = copy;
    return SUCCESS;
}

static struct graph *graph_copy(const struct graph *graph, enum kind kind)
{
    struct graph *copy = object_new(kind, sizeof *copy);
    for (size_t i = 0; copy && i < graph->count; i++)
        if (graph_add(copy, &graph->work[i])) {
            object_forget(copy);
            copy = NULL;
        }
    return copy;
}

DRIVER(cuGraphCreate)(handle *out, unsigned flags)
{
    TRY(need_driver());
    if (!out || flags)
        return INVALID_VALUE;
    gate_lock();
    *out = object_new(GRAPH, sizeof(struct graph));
    gate_unlock();
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

static CUresult copy_of(handle *out, handle graph, enum kind kind)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    bool known = object_is(graph, GRAPH);
    *out = known ? graph_copy(graph, kind) : NULL;
    gate_unlock();
    return !known ? INVALID_VALUE : *out ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuGraphClone)(handle *out, handle graph)
{
    return copy_of(out, graph, GRAPH);
}

DRIVER(cuGraphInstantiateWithFlags)(handle *out, handle graph, unsigned long long flags)
{
    (void)flags;
    return copy_of(out, graph, GRAPH_EXEC);
}

DRIVER(cuGraphInstantiateWithParams)(handle *out, handle graph, void *params)
{
    return params ? copy_of(out, graph, GRAPH_EXEC) : INVALID_VALUE;
}

DRIVER(cuGraphInstantiate_v2)(handle *out, handle graph, handle *error_node, char *log, size_t room)
{
    if (error_node)
        *error_node = NULL;
    if (log && room)
        *log = 0;
    return copy_of(out, graph, GRAPH_EXEC);
}
DRIVER_ALIAS(cuGraphInstantiate, cuGraphInstantiate_v2);

static CUresult destroy(struct graph *graph, enum kind kind)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(graph, kind);
    if (known) {
        object_forget(graph);
        for (size_t i = 0; i < graph->count; i++)
            if (graph->work[i].param_bytes) {
                free(graph->work[i].param_bytes);
                free(graph->work[i].params);
            }
        free(graph->work);
    }
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuGraphDestroy)(handle graph)
{
    return destroy(graph, GRAPH);
}

DRIVER(cuGraphExecDestroy)(handle exec)
{
    return destroy(exec, GRAPH_EXEC);
}

/* Nodes have no handles of their own here: they are numbered from 1. */
DRIVER(cuGraphGetNodes)(struct graph *graph, handle *nodes, size_t *count)
{
    TRY(need_driver());
    if (!count)
        return INVALID_VALUE;
    gate_lock();
    bool known = object_is(graph, GRAPH);
    for (size_t i = 0; known && nodes && i < *count; i++)
        nodes[i] = i < graph->count ? (handle)(i + 1) : NULL;
    if (known && (!nodes || *count > graph->count))
        *count = graph->count;
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

struct kernel_params { /* the layout of the real CUDA_KERNEL_NODE_PARAMS_v2, its first part */
    handle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
};

DRIVER(cuGraphAddKernelNode_v2)(handle *out, struct graph *graph, const handle *after, size_t count,
                                const struct kernel_params *params)
{
    struct work work = {.kind = WORK_KERNEL};
    (void)after, (void)count;
    TRY(need_driver());
    if (!out || !params)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = object_is(graph, GRAPH) ? function_find(params->function, &work.function) : INVALID_VALUE;
    if (!result) {
        work.params = params->params;
        work.ns = kernel_ns(work.function->code ? work.function->code->microseconds : 20);
        result = graph_add(graph, &work);
        *out = (handle)graph->count;
    }
    gate_unlock();
    return result;
}
DRIVER_ALIAS(cuGraphAddKernelNode, cuGraphAddKernelNode_v2);

DRIVER(cuGraphLaunch)(struct graph *exec, handle stream)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    bool known = object_is(exec, GRAPH_EXEC);
    gate_unlock();
    if (!known)
        return INVALID_VALUE;
    for (size_t i = 0; i < exec->count; i++)
        TRY(work_submit(stream, &exec->work[i], false));
    return SUCCESS;
}

DRIVER(cuGraphUpload)(handle exec, handle stream)
{
    (void)stream;
    TRY(need_driver());
    gate_lock();
    bool known = object_is(exec, GRAPH_EXEC);
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuStreamBeginCapture_v2)(handle h, int mode)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (mode < 0 || mode > 2)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(h, &stream);
    if (!result && stream == current->null_stream)
        result = STREAM_CAPTURE_UNSUPPORTED;
    if (!result && stream->capture)
        result = ILLEGAL_STATE;
    if (!result) {
        stream->capture = object_new(GRAPH, sizeof(struct graph));
        stream->origin = stream->capture != NULL;
        if (stream->origin)
            stream->capture->capture_id = next_capture++;
        else
            result = OUT_OF_MEMORY;
    }
    gate_unlock();
    return result;
}

static bool leave(void *object, void *graph)
{
    struct stream *stream = object;
    if (stream->capture == graph)
        stream->capture = NULL;
    return true;
}

DRIVER(cuStreamEndCapture)(handle h, struct graph **out)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(h, &stream);
    if (!result && !stream->capture)
        result = ILLEGAL_STATE;
    else if (!result && !stream->origin)
        result = STREAM_CAPTURE_UNMATCHED;
    if (!result) {
        *out = stream->capture;
        stream->origin = false;
        object_each(STREAM, leave, *out);
    }
    gate_unlock();
    return result;
}

static CUresult capture_state(handle h, int *status, unsigned long long *id, struct graph **graph)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    if (!status)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = stream_find(h, &stream);
    if (!result) {
        *status = stream->capture != NULL;
        if (id && stream->capture)
            *id = stream->capture->capture_id;
        if (graph)
            *graph = stream->capture;
    }
    gate_unlock();
    return result;
}

DRIVER(cuStreamIsCapturing)(handle h, int *status)
{
    return capture_state(h, status, NULL, NULL);
}

DRIVER(cuStreamGetCaptureInfo_v2)(handle h, int *status, unsigned long long *id, struct graph **graph,
                                  const handle **dependencies, size_t *count)
{
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return capture_state(h, status, id, graph);
}

DRIVER(cuStreamGetCaptureInfo_v3)(handle h, int *status, unsigned long long *id, struct graph **graph,
                                  const handle **dependencies, const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return impl_cuStreamGetCaptureInfo_v2(h, status, id, graph, dependencies, count);
}

DRIVER(cuThreadExchangeStreamCaptureMode)(int *mode)
{
    static __thread int current;
    TRY(need_driver());
    if (!mode || *mode < 0 || *mode > 2)
        return INVALID_VALUE;
    int before = current;
    current = *mode;
    *mode = before;
    return SUCCESS;
}
