/* Stands in for stream-ordered allocation and memory pools. Memory is taken and
 * given back when the call is made: data moves then too (see work.c). */
#include "driver.h"

struct pool {
    struct context *context;
    uint64_t settings[9];
};

static struct pool *pool_new(struct context *context)
{
    struct pool *pool = object_new(POOL, sizeof *pool);
    if (pool) {
        pool->context = context;
        pool->settings[1] = pool->settings[2] = pool->settings[3] = 1; /* reuse is on */
    }
    return pool;
}

/* The current context's own pool; made when first asked for. */
static struct pool *default_pool(struct context *context)
{
    if (!context->device_pool)
        context->device_pool = pool_new(context);
    return context->device_pool;
}

DRIVER(cuDeviceGetDefaultMemPool)(handle *out, CUdevice device)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out || device)
        return out ? INVALID_DEVICE : INVALID_VALUE;
    gate_lock();
    *out = default_pool(current);
    gate_unlock();
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
DRIVER_ALIAS(cuDeviceGetMemPool, cuDeviceGetDefaultMemPool);

DRIVER(cuMemPoolCreate)(handle *out, const void *properties)
{
    TRY(need_driver());
    if (!out || !properties)
        return INVALID_VALUE;
    gate_lock();
    *out = pool_new(NULL);
    gate_unlock();
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuMemPoolDestroy)(handle pool)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(pool, POOL);
    if (known)
        object_forget(pool);
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuMemPoolTrimTo)(handle pool, size_t keep)
{
    (void)keep; /* nothing is kept */
    TRY(need_driver());
    gate_lock();
    bool known = object_is(pool, POOL);
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

/* 1 to 3 are switches (int), 4 to 8 are byte counts. */
static CUresult pool_attribute(struct pool *pool, int attribute, void *value, bool write)
{
    TRY(need_driver());
    if (!value || attribute < 1 || attribute > 8)
        return INVALID_VALUE;
    gate_lock();
    bool known = object_is(pool, POOL);
    if (known && write)
        pool->settings[attribute] = attribute <= 3 ? *(unsigned *)value : *(uint64_t *)value;
    else if (known && attribute <= 3)
        *(unsigned *)value = (unsigned)pool->settings[attribute];
    else if (known)
        *(uint64_t *)value = pool->settings[attribute];
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuMemPoolSetAttribute)(struct pool *pool, int attribute, void *value)
{
    return pool_attribute(pool, attribute, value, true);
}

DRIVER(cuMemPoolGetAttribute)(struct pool *pool, int attribute, void *value)
{
    return pool_attribute(pool, attribute, value, false);
}

static CUresult pool_alloc(CUdeviceptr *out, size_t size, struct pool *pool, handle stream_handle)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    gate_lock();
    CUresult result = stream_find(stream_handle, &stream);
    if (!result && pool && !object_is(pool, POOL))
        result = INVALID_VALUE;
    if (!result && stream->capture)
        result = STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        result = arena_alloc(current, DEVICE, size, out);
    gate_unlock();
    return result;
}

DRIVER(cuMemAllocAsync)(CUdeviceptr *out, size_t size, handle stream)
{
    return pool_alloc(out, size, NULL, stream);
}

DRIVER(cuMemAllocFromPoolAsync)(CUdeviceptr *out, size_t size, struct pool *pool, handle stream)
{
    return pool ? pool_alloc(out, size, pool, stream) : INVALID_VALUE;
}

DRIVER(cuMemFreeAsync)(CUdeviceptr pointer, handle stream_handle)
{
    struct context *current;
    struct stream *stream;
    TRY(need_context(&current));
    gate_lock();
    CUresult result = stream_find(stream_handle, &stream);
    if (!result && stream->capture)
        result = STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        result = arena_free(pointer);
    gate_unlock();
    return result;
}
