/* Stands in for kernel launches and occupancy. */
#include "driver.h"

struct attribute { /* the layout of the real CUlaunchAttribute */
    int id, pad;
    char value[64];
};

struct config { /* the layout of the real CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    handle stream;
    struct attribute *attributes;
    unsigned count;
};
_Static_assert(sizeof(struct config) == 56, "layout of CUlaunchConfig");

static bool fits(const unsigned *grid, const unsigned *block, unsigned shared)
{
    static const unsigned most_grid[3] = {2147483647, 65535, 65535}, most_block[3] = {1024, 1024, 64};
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i] || grid[i] > most_grid[i] || block[i] > most_block[i])
            return false;
    return (uint64_t)block[0] * block[1] * block[2] <= 1024 && shared <= 227 * 1024;
}

static CUresult launch(handle h, const unsigned *grid, const unsigned *block, unsigned shared, handle stream,
                       void **params, void **extra)
{
    struct context *current;
    struct work work = {.kind = WORK_KERNEL, .params = params};
    TRY(need_context(&current));
    gate_lock();
    CUresult result = function_find(h, &work.function);
    gate_unlock();
    if (result)
        return result;
    const struct standin_kernel *code = work.function->code;
    if (!fits(grid, block, shared) || (params && extra))
        return INVALID_VALUE;
    /* A packed buffer (extra) is for foreign images, which do nothing. */
    if (code && code->body && code->sizes[0] && !params)
        return INVALID_VALUE;
    work.ns = kernel_ns(code ? code->microseconds : 20);
    return work_submit(stream, &work, false);
}

DRIVER(cuLaunchKernel)(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, handle stream, void **params, void **extra)
{
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra);
}

DRIVER(cuLaunchCooperativeKernel)(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                  unsigned by, unsigned bz, unsigned shared, handle stream, void **params)
{
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, NULL);
}

DRIVER(cuLaunchKernelEx)(const struct config *config, handle function, void **params, void **extra)
{
    if (!config || (config->count && !config->attributes))
        return INVALID_VALUE;
    return launch(function, config->grid, config->block, config->shared, config->stream, params, extra);
}

static CUresult occupancy(int *blocks, handle h, int block_size, size_t shared)
{
    struct function *function;
    TRY(need_driver());
    if (!blocks || block_size <= 0)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = function_find(h, &function);
    gate_unlock();
    if (result)
        return result;
    *blocks = block_size > 1024 || shared > 227 * 1024 ? 0 : 2048 / ((block_size + 31) / 32 * 32);
    return SUCCESS;
}

DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, handle function, int block_size, size_t shared)
{
    return occupancy(blocks, function, block_size, shared);
}

DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *blocks, handle function, int block_size,
                                                             size_t shared, unsigned flags)
{
    return flags > 1 ? INVALID_VALUE : occupancy(blocks, function, block_size, shared);
}

DRIVER(cuOccupancyMaxPotentialBlockSize)(int *grid, int *block, handle function, size_t (*shared_of)(int),
                                         size_t shared, int limit)
{
    int blocks;
    if (!grid || !block)
        return INVALID_VALUE;
    int size = limit > 0 && limit < 1024 ? limit : 1024;
    TRY(occupancy(&blocks, function, size, shared_of ? shared_of(size) : shared));
    *block = size;
    *grid = blocks * 16;
    return SUCCESS;
}
