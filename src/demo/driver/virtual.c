/* Stands in for virtual memory management: addresses are reserved, physical
 * memory is created (a memfd here), and the one is mapped to the other. */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2ULL << 20)

struct physical {
    uint64_t size;
    int file;
    unsigned users; /* the handle and each mapping */
};

/* Reservations live apart from the ranges, which are what is mapped in them. */
struct reservation {
    uint64_t start, size;
};
#define RESERVATIONS 256
static struct reservation reservations[RESERVATIONS];
static struct {
    uint64_t start;
    struct physical *physical;
} mappings[4096];

static struct reservation *reservation_at(uint64_t address, uint64_t size)
{
    for (int i = 0; i < RESERVATIONS; i++) {
        struct reservation *r = &reservations[i];
        if (r->size && address >= r->start && address - r->start < r->size &&
            size <= r->size - (address - r->start))
            return r;
    }
    return NULL;
}

DRIVER(cuMemGetAllocationGranularity)(size_t *granularity, const void *properties, int option)
{
    TRY(need_driver());
    if (!granularity || !properties || option < 0 || option > 1)
        return INVALID_VALUE;
    *granularity = GRANULARITY;
    return SUCCESS;
}

DRIVER(cuMemAddressReserve)(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, uint64_t flags)
{
    TRY(need_driver());
    if (!out || !size || size % GRANULARITY || flags || (alignment & (alignment - 1)))
        return INVALID_VALUE;
    uint64_t align = alignment > GRANULARITY ? alignment : GRANULARITY;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *base = mmap((void *)wish, size + align, PROT_NONE, kind, -1, 0);
    if (base == MAP_FAILED)
        return OUT_OF_MEMORY;
    uint64_t start = ((uint64_t)base + align - 1) / align * align;
    uint64_t before = start - (uint64_t)base;
    if (before)
        munmap(base, before);
    munmap((void *)(start + size), align - before);
    gate_lock();
    struct reservation *free_one = NULL;
    for (int i = 0; i < RESERVATIONS && !free_one; i++)
        if (!reservations[i].size)
            free_one = &reservations[i];
    if (free_one)
        *free_one = (struct reservation){start, size};
    gate_unlock();
    if (!free_one)
        munmap((void *)start, size);
    else
        *out = start;
    return free_one ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuMemAddressFree)(CUdeviceptr start, size_t size)
{
    TRY(need_driver());
    gate_lock();
    struct reservation *r = reservation_at(start, size);
    bool whole = r && r->start == start && r->size == size && size;
    for (uint64_t at = start; whole && at < start + size; at += GRANULARITY)
        whole = !range_at(at); /* nothing may be mapped any more */
    if (whole) {
        r->size = 0;
        munmap((void *)start, size);
    }
    gate_unlock();
    return whole ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuMemCreate)(handle *out, size_t size, const void *properties, unsigned long long flags)
{
    TRY(need_driver());
    if (!out || !properties || !size || size % GRANULARITY || flags)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = budget_take(size) ? SUCCESS : OUT_OF_MEMORY;
    struct physical *physical = result ? NULL : object_new(PHYSICAL, sizeof *physical);
    if (physical) {
        *physical = (struct physical){.size = size, .users = 1};
        physical->file = memfd_create("standin-physical", MFD_CLOEXEC);
        if (physical->file < 0 || ftruncate(physical->file, (off_t)size)) {
            if (physical->file >= 0)
                close(physical->file);
            object_forget(physical);
            budget_give(size);
            result = OPERATING_SYSTEM;
        } else {
            *out = physical;
        }
    } else if (!result) {
        budget_give(size);
        result = OUT_OF_MEMORY;
    }
    gate_unlock();
    return result;
}

/* The memory goes when the handle is released and the last mapping is gone. */
static void physical_drop(struct physical *physical)
{
    if (--physical->users)
        return;
    close(physical->file);
    budget_give(physical->size);
}

DRIVER(cuMemRelease)(struct physical *physical)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(physical, PHYSICAL);
    if (known) {
        object_forget(physical);
        physical_drop(physical);
    }
    gate_unlock();
    return known ? SUCCESS : INVALID_VALUE;
}

static CUresult map(uint64_t start, uint64_t size, uint64_t offset, struct physical *physical)
{
    if (!object_is(physical, PHYSICAL) || !size || start % GRANULARITY || size % GRANULARITY || offset ||
        size > physical->size || !reservation_at(start, size))
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof mappings / sizeof mappings[0]; i++) {
        if (mappings[i].physical)
            continue;
        if (range_add((struct range){.start = start, .size = size, .space = VIRTUAL}))
            return ALREADY_MAPPED;
        void *place = (void *)start;
        if (mmap(place, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, 0) == MAP_FAILED) {
            range_remove(range_at(start));
            return OPERATING_SYSTEM;
        }
        mappings[i].start = start;
        mappings[i].physical = physical;
        physical->users++;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

DRIVER(cuMemMap)(CUdeviceptr start, size_t size, size_t offset, struct physical *physical, uint64_t flags)
{
    TRY(need_driver());
    if (flags)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = map(start, size, offset, physical);
    gate_unlock();
    return result;
}

static bool unmap_one(uint64_t start)
{
    for (size_t i = 0; i < sizeof mappings / sizeof mappings[0]; i++)
        if (mappings[i].physical && mappings[i].start == start) {
            struct range *range = range_at(start);
            mmap((void *)start, range->size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            range_remove(range);
            physical_drop(mappings[i].physical);
            mappings[i].physical = NULL;
            return true;
        }
    return false;
}

/* Several whole mappings may go in one call. */
DRIVER(cuMemUnmap)(CUdeviceptr start, size_t size)
{
    TRY(need_driver());
    gate_lock();
    bool good = size != 0;
    for (uint64_t at = start; good && at < start + size;) {
        struct range *range = range_at(at);
        good = range && range->space == VIRTUAL && range->start == at && range->size <= start + size - at;
        uint64_t next = good ? at + range->size : at;
        good = good && unmap_one(at);
        at = next;
    }
    gate_unlock();
    return good ? SUCCESS : INVALID_VALUE;
}

/* What the real header calls CUmemAccessDesc: a location (type, id) and flags. */
struct access {
    int type, id;
    unsigned long long flags; /* 1 read, 3 read and write */
};

DRIVER(cuMemSetAccess)(CUdeviceptr start, size_t size, const struct access *access, size_t count)
{
    TRY(need_driver());
    if (!access || count != 1 || access->id != 0)
        return INVALID_VALUE;
    gate_lock();
    bool good = size && reservation_at(start, size) && range_covers(start, size);
    gate_unlock();
    if (!good)
        return INVALID_VALUE;
    int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)start, size, protection) ? OPERATING_SYSTEM : SUCCESS;
}
