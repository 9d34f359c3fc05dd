/* Stands in for the runtime's launches, host functions and occupancy. */
#include "runtime.h"

/* What <<<>>> keeps between the caller and the host stub; calls may nest. */
static __thread struct {
    struct dim3 grid, block;
    size_t shared;
    handle stream;
} pushed[8];
static __thread unsigned depth;

RUNTIME_AS(unsigned, __cudaPushCallConfiguration)(struct dim3 grid, struct dim3 block, size_t shared, handle stream)
{
    if (depth == sizeof pushed / sizeof pushed[0])
        return 1;
    pushed[depth].grid = grid;
    pushed[depth].block = block;
    pushed[depth].shared = shared;
    pushed[depth++].stream = stream;
    return 0;
}

RUNTIME(__cudaPopCallConfiguration)(struct dim3 *grid, struct dim3 *block, size_t *shared, handle *stream)
{
    if (!depth)
        return note(52); /* cudaErrorMissingConfiguration */
    depth--;
    *grid = pushed[depth].grid;
    *block = pushed[depth].block;
    *shared = pushed[depth].shared;
    *stream = pushed[depth].stream;
    return SUCCESS;
}

RUNTIME(cudaLaunchKernel)(const void *stub, struct dim3 grid, struct dim3 block, void **params, size_t shared,
                          handle stream)
{
    handle function;
    cudaError result = function_of(stub, &function);
    if (!result)
        result = driver.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                       (unsigned)shared, stream, params, NULL);
    return note(result == INVALID_VALUE && (!grid.x || !block.x || block.x > 1024) ? 9 : result);
}

RUNTIME(cudaLaunchCooperativeKernel)(const void *stub, struct dim3 grid, struct dim3 block, void **params,
                                     size_t shared, handle stream)
{
    handle function;
    cudaError result = function_of(stub, &function);
    if (!result)
        result = driver.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                  (unsigned)shared, stream, params);
    return note(result);
}

struct config { /* the layout of the real cudaLaunchConfig_t */
    struct dim3 grid, block;
    size_t shared;
    handle stream;
    void *attributes;
    unsigned count;
};

struct driver_config { /* the layout of the real CUlaunchConfig */
    struct dim3 grid, block;
    unsigned shared;
    handle stream;
    void *attributes;
    unsigned count;
};
_Static_assert(sizeof(struct config) == 56 && sizeof(struct driver_config) == 56, "layouts");

RUNTIME(cudaLaunchKernelExC)(const struct config *c, const void *stub, void **params)
{
    handle function;
    cudaError result = c ? function_of(stub, &function) : INVALID_VALUE;
    if (!result) {
        struct driver_config config = {c->grid, c->block, (unsigned)c->shared, c->stream, c->attributes, c->count};
        result = driver.cuLaunchKernelEx(&config, function, params, NULL);
    }
    return note(result);
}

RUNTIME(cudaLaunchHostFunc)(handle stream, void *function, void *data)
{
    WITH_DEVICE(driver.cuLaunchHostFunc(stream, function, data));
}

RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *blocks, const void *stub, int block_size,
                                                                size_t shared, unsigned flags)
{
    handle function;
    cudaError result = function_of(stub, &function);
    return note(result ? result
                       : driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                                     shared, flags));
}

RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, const void *stub, int block_size, size_t shared)
{
    return impl_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, block_size, shared, 0);
}
