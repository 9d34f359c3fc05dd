/* Stands in for the runtime's memory functions: one call of the driver each. */
#include "runtime.h"

RUNTIME(cudaMalloc)(CUdeviceptr *out, size_t size)
{
    if (out && !size) {
        *out = 0;
        return SUCCESS;
    }
    WITH_DEVICE(driver.cuMemAlloc(out, size));
}

RUNTIME(cudaMallocPitch)(CUdeviceptr *out, size_t *pitch, size_t width, size_t height)
{
    WITH_DEVICE(driver.cuMemAllocPitch(out, pitch, width, height, 4));
}

RUNTIME(cudaMallocManaged)(CUdeviceptr *out, size_t size, unsigned flags)
{
    WITH_DEVICE(driver.cuMemAllocManaged(out, size, flags));
}

RUNTIME(cudaFree)(CUdeviceptr pointer)
{
    WITH_DEVICE(driver.cuMemFree(pointer));
}

RUNTIME(cudaMallocHost)(void **out, size_t size)
{
    WITH_DEVICE(driver.cuMemAllocHost(out, size));
}

RUNTIME(cudaHostAlloc)(void **out, size_t size, unsigned flags)
{
    WITH_DEVICE(driver.cuMemHostAlloc(out, size, flags));
}

RUNTIME(cudaFreeHost)(void *pointer)
{
    if (!pointer)
        return SUCCESS;
    WITH_DEVICE(driver.cuMemFreeHost(pointer));
}

RUNTIME(cudaHostRegister)(void *pointer, size_t size, unsigned flags)
{
    WITH_DEVICE(driver.cuMemHostRegister(pointer, size, flags));
}

RUNTIME(cudaHostUnregister)(void *pointer)
{
    WITH_DEVICE(driver.cuMemHostUnregister(pointer));
}

RUNTIME(cudaHostGetDevicePointer)(CUdeviceptr *out, void *pointer, unsigned flags)
{
    WITH_DEVICE(driver.cuMemHostGetDevicePointer(out, pointer, flags));
}

RUNTIME(cudaHostGetFlags)(unsigned *flags, void *pointer)
{
    WITH_DEVICE(driver.cuMemHostGetFlags(flags, pointer));
}

RUNTIME(cudaMemGetInfo)(size_t *available, size_t *total)
{
    WITH_DEVICE(driver.cuMemGetInfo(available, total));
}

RUNTIME(cudaMallocAsync)(CUdeviceptr *out, size_t size, handle stream)
{
    WITH_DEVICE(driver.cuMemAllocAsync(out, size, stream));
}

RUNTIME(cudaMallocFromPoolAsync)(CUdeviceptr *out, size_t size, handle pool, handle stream)
{
    WITH_DEVICE(driver.cuMemAllocFromPoolAsync(out, size, pool, stream));
}

RUNTIME(cudaFreeAsync)(CUdeviceptr pointer, handle stream)
{
    WITH_DEVICE(driver.cuMemFreeAsync(pointer, stream));
}

RUNTIME(cudaDeviceGetDefaultMemPool)(handle *out, int device)
{
    WITH_DEVICE(driver.cuDeviceGetDefaultMemPool(out, device));
}

RUNTIME(cudaDeviceGetMemPool)(handle *out, int device)
{
    WITH_DEVICE(driver.cuDeviceGetMemPool(out, device));
}

RUNTIME(cudaMemPoolCreate)(handle *out, const void *properties)
{
    WITH_DEVICE(driver.cuMemPoolCreate(out, properties));
}

RUNTIME(cudaMemPoolDestroy)(handle pool)
{
    WITH_DEVICE(driver.cuMemPoolDestroy(pool));
}

RUNTIME(cudaMemPoolTrimTo)(handle pool, size_t keep)
{
    WITH_DEVICE(driver.cuMemPoolTrimTo(pool, keep));
}

RUNTIME(cudaMemPoolSetAttribute)(handle pool, int attribute, void *value)
{
    WITH_DEVICE(driver.cuMemPoolSetAttribute(pool, attribute, value));
}

RUNTIME(cudaMemPoolGetAttribute)(handle pool, int attribute, void *value)
{
    WITH_DEVICE(driver.cuMemPoolGetAttribute(pool, attribute, value));
}

struct pointer_attributes { /* the first part of the real cudaPointerAttributes */
    int type, device;       /* type: 0 unknown to CUDA, 1 host, 2 device, 3 managed */
    CUdeviceptr on_device, on_host;
};

RUNTIME(cudaPointerGetAttributes)(struct pointer_attributes *out, CUdeviceptr pointer)
{
    unsigned type = 0, managed = 0;
    int device = -2;
    cudaError result = out ? need_device() : INVALID_VALUE;
    if (!result)
        result = driver.cuPointerGetAttributes(
            5, (int[]){2, 8, 9, 3, 4}, (void *[]){&type, &managed, &device, &out->on_device, &out->on_host},
            pointer);
    if (!result) {
        out->type = managed ? 3 : (int)type;
        out->device = type ? device : -2;
        if (!type)
            out->on_host = pointer;
    }
    return note(result);
}

RUNTIME(cudaMemPrefetchAsync)(CUdeviceptr pointer, size_t size, struct location to, unsigned flags, handle stream)
{
    WITH_DEVICE(driver.cuMemPrefetchAsync(pointer, size, to, flags, stream));
}

RUNTIME(cudaMemAdvise)(CUdeviceptr pointer, size_t size, int advice, struct location where)
{
    WITH_DEVICE(driver.cuMemAdvise(pointer, size, advice, where));
}
