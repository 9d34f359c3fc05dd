/* Stands in for device memory: one reserved arena of addresses that looks like
 * the device's, backed by ordinary pages, with a budget of a pretend 8 GiB. */
#define _GNU_SOURCE
#include "door.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BASE 0x302000000ULL
#define ARENA_BYTES (32ULL << 30) /* room for fragments and managed memory */
#define GRAIN 512ULL
#define LARGE (1ULL << 20)

static struct range *ranges; /* sorted by start, not overlapping */
static size_t range_count, range_room;
static uint64_t arena, used, next_id = 1;

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* The index of the first range that ends after `address`. */
static size_t range_index(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start + ranges[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *range_at(uint64_t address)
{
    size_t i = range_index(address);
    return i < range_count && ranges[i].start <= address ? &ranges[i] : NULL;
}

CUresult range_add(struct range range)
{
    size_t i = range_index(range.start);
    if (i < range_count && ranges[i].start < range.start + range.size)
        return HOST_MEMORY_ALREADY_REGISTERED;
    if (range_count == range_room) {
        size_t room = range_room ? range_room * 2 : 256;
        struct range *more = realloc(ranges, room * sizeof *more);
        if (!more)
            return OUT_OF_MEMORY;
        ranges = more;
        range_room = room;
    }
    memmove(&ranges[i + 1], &ranges[i], (range_count - i) * sizeof *ranges);
    range.id = next_id++;
    ranges[i] = range;
    range_count++;
    return SUCCESS;
}

void range_remove(struct range *range)
{
    size_t i = (size_t)(range - ranges);
    memmove(range, range + 1, (--range_count - i) * sizeof *ranges);
}

bool range_covers(uint64_t address, uint64_t bytes)
{
    while (bytes) {
        struct range *range = range_at(address);
        if (!range)
            return false;
        uint64_t here = range->start + range->size - address;
        if (here >= bytes)
            return true;
        /* Mapped pieces of one reservation may be used as one. */
        if (range->space != VIRTUAL)
            return false;
        address += here;
        bytes -= here;
    }
    return true;
}

bool budget_take(uint64_t bytes)
{
    if (bytes > DEVICE_BYTES - RESERVED_BYTES - used)
        return false;
    used += bytes;
    return true;
}

void budget_give(uint64_t bytes)
{
    used -= bytes;
}

static CUresult arena_reserve(void)
{
    if (arena)
        return SUCCESS;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *base = mmap((void *)ARENA_BASE, ARENA_BYTES, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (base == MAP_FAILED)
        base = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED)
        return OPERATING_SYSTEM;
    arena = (uint64_t)base;
    return SUCCESS;
}

/* First fit; 0 if there is no gap. */
static uint64_t arena_gap(uint64_t size, uint64_t grain)
{
    uint64_t align = size >= LARGE ? 2 * LARGE : grain;
    uint64_t at = round_up(arena, align);
    for (size_t i = range_index(arena); i < range_count; i++) {
        if (ranges[i].start >= at + size)
            break;
        at = round_up(ranges[i].start + ranges[i].size, align);
    }
    return at + size <= arena + ARENA_BYTES ? at : 0;
}

static void commit(uint64_t at, uint64_t size, bool on)
{
    uint64_t page = (uint64_t)getpagesize(), start = on ? at / page * page : round_up(at, page);
    uint64_t end = on ? round_up(at + size, page) : (at + size) / page * page;
    if (start >= end)
        return;
    if (on)
        mprotect((void *)start, end - start, PROT_READ | PROT_WRITE);
    else
        madvise((void *)start, end - start, MADV_DONTNEED);
}

CUresult arena_alloc(struct context *context, enum space space, uint64_t size, CUdeviceptr *out)
{
    if (!out || !size)
        return INVALID_VALUE;
    if (size > ARENA_BYTES) {
        door_memory_refused(size);
        return OUT_OF_MEMORY;
    }
    TRY(arena_reserve());
    /* The driver maps managed memory in pages. */
    uint64_t grain = space == MANAGED && door_on() ? (uint64_t)getpagesize() : GRAIN;
    uint64_t whole = round_up(size, grain);
    bool counted = space == DEVICE;
    if (counted && !budget_take(whole)) {
        door_memory_refused(whole);
        return OUT_OF_MEMORY;
    }
    uint64_t at = arena_gap(whole, grain);
    struct range range = {.start = at, .size = whole, .space = space, .context = context};
    CUresult result = at ? range_add(range) : OUT_OF_MEMORY;
    if (result) {
        if (counted)
            budget_give(whole);
        return result;
    }
    commit(at, whole, true);
    *out = at;
    result = counted ? door_memory_new(at, whole, arena) : door_managed_new(at, whole);
    if (result)
        arena_free(at);
    return result;
}

CUresult arena_free(CUdeviceptr pointer)
{
    struct range *range = range_at(pointer);
    if (!range || range->start != pointer || (range->space != DEVICE && range->space != MANAGED))
        return INVALID_VALUE;
    if (range->space == DEVICE) {
        budget_give(range->size);
        door_memory_end(range->start, range->size);
    } else {
        door_managed_end(range->start, range->size);
    }
    commit(range->start, range->size, false);
    range_remove(range);
    return SUCCESS;
}

void arena_forget(const struct context *context)
{
    for (size_t i = range_count; i-- > 0;)
        if (ranges[i].context == context && (ranges[i].space == DEVICE || ranges[i].space == MANAGED))
            arena_free(ranges[i].start);
}

static CUresult allocate(enum space space, CUdeviceptr *out, uint64_t size)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    CUresult result = arena_alloc(current, space, size, out);
    gate_unlock();
    return result;
}

DRIVER(cuMemAlloc_v2)(CUdeviceptr *out, size_t size)
{
    return allocate(DEVICE, out, size);
}

DRIVER(cuMemAllocManaged)(CUdeviceptr *out, size_t size, unsigned flags)
{
    return flags == 1 || flags == 2 ? allocate(MANAGED, out, size) : INVALID_VALUE;
}

DRIVER(cuMemAllocPitch_v2)(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return INVALID_VALUE;
    uint64_t row = round_up(width, GRAIN);
    if (height && row > UINT64_MAX / height)
        return OUT_OF_MEMORY;
    TRY(allocate(DEVICE, out, row * height));
    *pitch = row;
    return SUCCESS;
}

DRIVER(cuMemFree_v2)(CUdeviceptr pointer)
{
    struct context *current;
    TRY(need_context(&current));
    if (!pointer)
        return SUCCESS;
    /* As the real one, only when the device is done with it. */
    wait_idle(current);
    gate_lock();
    CUresult result = arena_free(pointer);
    gate_unlock();
    return result;
}

DRIVER(cuMemGetInfo_v2)(size_t *available, size_t *total)
{
    struct context *current;
    TRY(need_context(&current));
    if (!available || !total)
        return INVALID_VALUE;
    gate_lock();
    *available = DEVICE_BYTES - RESERVED_BYTES - used;
    gate_unlock();
    *total = DEVICE_BYTES;
    return SUCCESS;
}

DRIVER(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    struct context *current;
    TRY(need_context(&current));
    gate_lock();
    struct range *range = range_at(pointer);
    if (range) {
        if (base)
            *base = range->start;
        if (size)
            *size = range->size;
    }
    gate_unlock();
    return range ? SUCCESS : NOT_FOUND;
}

/* 1 context, 2 memory type, 3 device pointer, 4 host pointer, 7 buffer id,
 * 8 managed, 9 device, 11 range start, 12 range size, 13 mapped. */
static CUresult pointer_attribute(void *out, int attribute, CUdeviceptr pointer)
{
    struct range *range = range_at(pointer);
    bool host = range && (range->space == HOST_ALLOCATED || range->space == HOST_REGISTERED);
    if (!range)
        return INVALID_VALUE;
    switch (attribute) {
    case 1:
        *(handle *)out = range->context;
        return SUCCESS;
    case 2:
        *(unsigned *)out = host ? 1 : 2;
        return SUCCESS;
    case 3:
        *(CUdeviceptr *)out = pointer;
        return SUCCESS;
    case 4:
        if (!host && range->space != MANAGED)
            return INVALID_VALUE;
        *(CUdeviceptr *)out = pointer;
        return SUCCESS;
    case 7:
        *(uint64_t *)out = range->id;
        return SUCCESS;
    case 8:
        *(unsigned *)out = range->space == MANAGED;
        return SUCCESS;
    case 9:
        *(int *)out = 0;
        return SUCCESS;
    case 11:
        *(CUdeviceptr *)out = range->start;
        return SUCCESS;
    case 12:
        *(size_t *)out = range->size;
        return SUCCESS;
    case 13:
        *(unsigned *)out = 1;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

DRIVER(cuPointerGetAttribute)(void *out, int attribute, CUdeviceptr pointer)
{
    TRY(need_driver());
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = pointer_attribute(out, attribute, pointer);
    gate_unlock();
    return result;
}

/* Of a pointer unknown to CUDA all are 0, and that is a success. */
DRIVER(cuPointerGetAttributes)(unsigned count, int *attributes, void **out, CUdeviceptr pointer)
{
    TRY(need_driver());
    if (!count || !attributes || !out)
        return INVALID_VALUE;
    gate_lock();
    for (unsigned i = 0; i < count; i++)
        if (pointer_attribute(out[i], attributes[i], pointer)) {
            bool word = attributes[i] == 2 || attributes[i] == 8 || attributes[i] == 9 || attributes[i] == 13;
            memset(out[i], 0, word ? 4 : 8);
            if (attributes[i] == 9)
                *(int *)out[i] = -2;
        }
    gate_unlock();
    return SUCCESS;
}
