/* Stands in for pinned host memory: allocated by the driver or registered. */
#define _GNU_SOURCE
#include "door.h"

#include <sys/mman.h>

static CUresult host_allocate(void **out, size_t size, unsigned flags)
{
    struct context *current;
    TRY(need_context(&current));
    if (!out || !size || flags > 15)
        return INVALID_VALUE;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return OUT_OF_MEMORY;
    gate_lock();
    CUresult result = range_add((struct range){.start = (uint64_t)memory, .size = size,
                                               .space = HOST_ALLOCATED, .flags = flags, .context = current});
    gate_unlock();
    if (result)
        munmap(memory, size);
    else
        *out = memory;
    return result;
}

DRIVER(cuMemAllocHost_v2)(void **out, size_t size)
{
    return host_allocate(out, size, 3);
}

DRIVER(cuMemHostAlloc)(void **out, size_t size, unsigned flags)
{
    return host_allocate(out, size, flags);
}

DRIVER(cuMemFreeHost)(void *pointer)
{
    struct context *current;
    TRY(need_context(&current));
    wait_idle(current);
    gate_lock();
    struct range *range = range_at((uint64_t)pointer);
    size_t size = 0;
    if (range && range->start == (uint64_t)pointer && range->space == HOST_ALLOCATED) {
        size = range->size;
        range_remove(range);
    }
    gate_unlock();
    if (!size)
        return INVALID_VALUE;
    munmap(pointer, size);
    return SUCCESS;
}

DRIVER(cuMemHostRegister_v2)(void *pointer, size_t size, unsigned flags)
{
    struct context *current;
    TRY(need_context(&current));
    if (!pointer || !size)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = range_add((struct range){.start = (uint64_t)pointer, .size = size,
                                               .space = HOST_REGISTERED, .flags = flags, .context = current});
    if (!result && (result = door_register((uint64_t)pointer, size)))
        range_remove(range_at((uint64_t)pointer));
    gate_unlock();
    return result;
}

DRIVER(cuMemHostUnregister)(void *pointer)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    struct range *range = range_at((uint64_t)pointer);
    bool ours = range && range->start == (uint64_t)pointer && range->space == HOST_REGISTERED;
    if (ours) {
        range_remove(range);
        door_unregister((uint64_t)pointer);
    }
    gate_unlock();
    return ours ? SUCCESS : HOST_MEMORY_NOT_REGISTERED;
}

static CUresult host_range(void *pointer, unsigned *flags)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    struct range *range = range_at((uint64_t)pointer);
    bool host = range && (range->space == HOST_ALLOCATED || range->space == HOST_REGISTERED);
    if (host)
        *flags = range->flags;
    gate_unlock();
    return host ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuMemHostGetFlags)(unsigned *flags, void *pointer)
{
    return flags ? host_range(pointer, flags) : INVALID_VALUE;
}

DRIVER(cuMemHostGetDevicePointer_v2)(CUdeviceptr *out, void *pointer, unsigned flags)
{
    unsigned ignored;
    if (!out || flags)
        return INVALID_VALUE;
    TRY(host_range(pointer, &ignored));
    *out = (CUdeviceptr)pointer;
    return SUCCESS;
}
