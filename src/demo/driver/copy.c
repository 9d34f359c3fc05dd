/* Stands in for copies, sets and prefetches. */
#include "door.h"

#include <string.h>

/* Which side must be memory that the device can reach. */
enum { TO_DEVICE = 1, FROM_DEVICE = 2, EITHER = 4 };

static CUresult check(uint64_t to, uint64_t from, uint64_t bytes, int sides)
{
    if (!bytes)
        return SUCCESS;
    gate_lock();
    bool good = (!(sides & TO_DEVICE) || range_covers(to, bytes)) &&
                (!(sides & FROM_DEVICE) || range_covers(from, bytes));
    gate_unlock();
    return good && to && from ? SUCCESS : INVALID_VALUE;
}

static CUresult copy(uint64_t to, uint64_t from, uint64_t bytes, int sides, handle stream, bool wait)
{
    struct context *current;
    TRY(need_context(&current));
    TRY(check(to, from, bytes, sides));
    struct work work = {.kind = WORK_COPY, .ns = copy_ns(bytes), .to = (char *)to, .from = (const char *)from,
                        .width = bytes, .height = 1, .depth = 1};
    return work_submit(stream, &work, wait);
}

DRIVER(cuMemcpy)(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes, EITHER, NULL, true);
}

DRIVER(cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes, handle stream)
{
    return copy(to, from, bytes, EITHER, stream, false);
}

DRIVER(cuMemcpyHtoD_v2)(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy(to, (uint64_t)from, bytes, TO_DEVICE, NULL, true);
}

DRIVER(cuMemcpyDtoH_v2)(void *to, CUdeviceptr from, size_t bytes)
{
    return copy((uint64_t)to, from, bytes, FROM_DEVICE, NULL, true);
}

/* Between two places on the device the real one does not wait for the end. */
DRIVER(cuMemcpyDtoD_v2)(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes, TO_DEVICE | FROM_DEVICE, NULL, false);
}

DRIVER(cuMemcpyHtoDAsync_v2)(CUdeviceptr to, const void *from, size_t bytes, handle stream)
{
    return copy(to, (uint64_t)from, bytes, TO_DEVICE, stream, false);
}

DRIVER(cuMemcpyDtoHAsync_v2)(void *to, CUdeviceptr from, size_t bytes, handle stream)
{
    return copy((uint64_t)to, from, bytes, FROM_DEVICE, stream, false);
}

DRIVER(cuMemcpyDtoDAsync_v2)(CUdeviceptr to, CUdeviceptr from, size_t bytes, handle stream)
{
    return copy(to, from, bytes, TO_DEVICE | FROM_DEVICE, stream, false);
}

DRIVER(cuMemcpyPeer)(CUdeviceptr to, handle to_context, CUdeviceptr from, handle from_context, size_t bytes)
{
    (void)to_context, (void)from_context;
    return copy(to, from, bytes, TO_DEVICE | FROM_DEVICE, NULL, false);
}

DRIVER(cuMemcpyPeerAsync)(CUdeviceptr to, handle to_context, CUdeviceptr from, handle from_context,
                          size_t bytes, handle stream)
{
    (void)to_context, (void)from_context;
    return copy(to, from, bytes, TO_DEVICE | FROM_DEVICE, stream, false);
}

/* Memory types: 1 host, 2 device, 3 array (not here), 4 unified. */
static CUresult place(unsigned type, const void *host, CUdeviceptr device, uint64_t *address, int *sides, int side)
{
    if (type == 0 || type == 3 || type > 4)
        return INVALID_VALUE;
    *address = type == 1 ? (uint64_t)host : device;
    if (type == 2)
        *sides |= side;
    return SUCCESS;
}

struct copy_2d { /* the layout of the real CUDA_MEMCPY2D */
    size_t from_x, from_y;
    unsigned from_type;
    const void *from_host;
    CUdeviceptr from_device;
    handle from_array;
    size_t from_pitch, to_x, to_y;
    unsigned to_type;
    void *to_host;
    CUdeviceptr to_device;
    handle to_array;
    size_t to_pitch, width, height;
};
_Static_assert(sizeof(struct copy_2d) == 128, "layout of CUDA_MEMCPY2D");

static CUresult copy_2d(const struct copy_2d *c, handle stream, bool wait)
{
    struct context *current;
    uint64_t to, from;
    int sides = 0;
    TRY(need_context(&current));
    if (!c)
        return INVALID_VALUE;
    TRY(place(c->from_type, c->from_host, c->from_device, &from, &sides, FROM_DEVICE));
    TRY(place(c->to_type, c->to_host, c->to_device, &to, &sides, TO_DEVICE));
    uint64_t from_pitch = c->from_pitch ? c->from_pitch : c->width;
    uint64_t to_pitch = c->to_pitch ? c->to_pitch : c->width;
    if (c->width > from_pitch || c->width > to_pitch)
        return INVALID_VALUE;
    from += c->from_y * from_pitch + c->from_x;
    to += c->to_y * to_pitch + c->to_x;
    uint64_t last = c->height ? c->height - 1 : 0;
    if (c->width && c->height) {
        TRY(check(to, from, to_pitch * last + c->width, sides & TO_DEVICE));
        TRY(check(to, from, from_pitch * last + c->width, sides & FROM_DEVICE));
    }
    struct work work = {.kind = WORK_COPY, .ns = copy_ns(c->width * c->height), .to = (char *)to,
                        .from = (const char *)from, .width = c->width, .height = c->height, .depth = 1,
                        .to_pitch = to_pitch, .from_pitch = from_pitch};
    return work_submit(stream, &work, wait);
}

DRIVER(cuMemcpy2D_v2)(const struct copy_2d *c)
{
    return copy_2d(c, NULL, true);
}
DRIVER_ALIAS(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2);

DRIVER(cuMemcpy2DAsync_v2)(const struct copy_2d *c, handle stream)
{
    return copy_2d(c, stream, false);
}

struct copy_3d { /* the layout of the real CUDA_MEMCPY3D */
    size_t from_x, from_y, from_z, from_lod;
    unsigned from_type;
    const void *from_host;
    CUdeviceptr from_device;
    handle from_array, from_reserved;
    size_t from_pitch, from_height, to_x, to_y, to_z, to_lod;
    unsigned to_type;
    void *to_host;
    CUdeviceptr to_device;
    handle to_array, to_reserved;
    size_t to_pitch, to_height, width, height, depth;
};
_Static_assert(sizeof(struct copy_3d) == 200, "layout of CUDA_MEMCPY3D");

static CUresult copy_3d(const struct copy_3d *c, handle stream, bool wait)
{
    struct context *current;
    uint64_t to, from;
    int sides = 0;
    TRY(need_context(&current));
    if (!c)
        return INVALID_VALUE;
    TRY(place(c->from_type, c->from_host, c->from_device, &from, &sides, FROM_DEVICE));
    TRY(place(c->to_type, c->to_host, c->to_device, &to, &sides, TO_DEVICE));
    uint64_t from_pitch = c->from_pitch ? c->from_pitch : c->width;
    uint64_t to_pitch = c->to_pitch ? c->to_pitch : c->width;
    uint64_t from_slice = from_pitch * (c->from_height ? c->from_height : c->height);
    uint64_t to_slice = to_pitch * (c->to_height ? c->to_height : c->height);
    if (c->width > from_pitch || c->width > to_pitch)
        return INVALID_VALUE;
    from += c->from_z * from_slice + c->from_y * from_pitch + c->from_x;
    to += c->to_z * to_slice + c->to_y * to_pitch + c->to_x;
    if (c->width && c->height && c->depth) {
        uint64_t y = c->height - 1, z = c->depth - 1;
        TRY(check(to, from, to_slice * z + to_pitch * y + c->width, sides & TO_DEVICE));
        TRY(check(to, from, from_slice * z + from_pitch * y + c->width, sides & FROM_DEVICE));
    }
    struct work work = {.kind = WORK_COPY, .ns = copy_ns(c->width * c->height * c->depth), .to = (char *)to,
                        .from = (const char *)from, .width = c->width, .height = c->height,
                        .depth = c->depth, .to_pitch = to_pitch, .from_pitch = from_pitch,
                        .to_slice = to_slice, .from_slice = from_slice};
    return work_submit(stream, &work, wait);
}

DRIVER(cuMemcpy3D_v2)(const struct copy_3d *c)
{
    return copy_3d(c, NULL, true);
}

DRIVER(cuMemcpy3DAsync_v2)(const struct copy_3d *c, handle stream)
{
    return copy_3d(c, stream, false);
}

static CUresult set(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width,
                    uint64_t height, handle stream)
{
    struct context *current;
    TRY(need_context(&current));
    if (to % element || (height > 1 && pitch < width * element))
        return INVALID_VALUE;
    if (width && height)
        TRY(check(to, to, pitch * (height - 1) + width * element, TO_DEVICE));
    struct work work = {.kind = WORK_SET, .ns = copy_ns(width * element * height / 8), .to = (char *)to,
                        .to_pitch = pitch, .width = width, .height = height, .value = value,
                        .element = element};
    return work_submit(stream, &work, false);
}

DRIVER(cuMemsetD8_v2)(CUdeviceptr to, unsigned char value, size_t count)
{
    return set(to, 0, value, 1, count, 1, NULL);
}

DRIVER(cuMemsetD8Async)(CUdeviceptr to, unsigned char value, size_t count, handle stream)
{
    return set(to, 0, value, 1, count, 1, stream);
}

DRIVER(cuMemsetD2D8_v2)(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return set(to, pitch, value, 1, width, height, NULL);
}

DRIVER(cuMemsetD2D8Async)(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                          handle stream)
{
    return set(to, pitch, value, 1, width, height, stream);
}

DRIVER(cuMemsetD16_v2)(CUdeviceptr to, unsigned short value, size_t count)
{
    return set(to, 0, value, 2, count, 1, NULL);
}

DRIVER(cuMemsetD16Async)(CUdeviceptr to, unsigned short value, size_t count, handle stream)
{
    return set(to, 0, value, 2, count, 1, stream);
}

DRIVER(cuMemsetD2D16_v2)(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return set(to, pitch, value, 2, width, height, NULL);
}

DRIVER(cuMemsetD2D16Async)(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                          handle stream)
{
    return set(to, pitch, value, 2, width, height, stream);
}

DRIVER(cuMemsetD32_v2)(CUdeviceptr to, unsigned value, size_t count)
{
    return set(to, 0, value, 4, count, 1, NULL);
}

DRIVER(cuMemsetD32Async)(CUdeviceptr to, unsigned value, size_t count, handle stream)
{
    return set(to, 0, value, 4, count, 1, stream);
}

DRIVER(cuMemsetD2D32_v2)(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height)
{
    return set(to, pitch, value, 4, width, height, NULL);
}

DRIVER(cuMemsetD2D32Async)(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                          handle stream)
{
    return set(to, pitch, value, 4, width, height, stream);
}

/* Pages are where they are; moving them takes time, no more. */
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, handle stream)
{
    struct context *current;
    TRY(need_context(&current));
    if (!bytes)
        return INVALID_VALUE;
    TRY(check(pointer, pointer, bytes, TO_DEVICE));
    gate_lock();
    door_migrate(pointer, bytes);
    gate_unlock();
    struct work work = {.kind = WORK_EMPTY, .ns = copy_ns(bytes)};
    return work_submit(stream, &work, false);
}

DRIVER(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t bytes, CUdevice to, handle stream)
{
    return to == 0 || to == -1 ? prefetch(pointer, bytes, stream) : INVALID_DEVICE;
}

struct location {
    int type, id;
};

DRIVER(cuMemPrefetchAsync_v2)(CUdeviceptr pointer, size_t bytes, struct location to, unsigned flags, handle stream)
{
    return to.type && !flags ? prefetch(pointer, bytes, stream) : INVALID_VALUE;
}

DRIVER(cuMemAdvise)(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)
{
    (void)device;
    TRY(need_driver());
    return advice >= 1 && advice <= 6 && bytes ? check(pointer, pointer, bytes, TO_DEVICE) : INVALID_VALUE;
}

DRIVER(cuMemAdvise_v2)(CUdeviceptr pointer, size_t bytes, int advice, struct location where)
{
    (void)where;
    return impl_cuMemAdvise(pointer, bytes, advice, 0);
}
