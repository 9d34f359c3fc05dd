/* Stands in for the runtime's copies: the kind decides which driver call. */
#include "runtime.h"

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

static cudaError copy(void *to, const void *from, size_t size, int kind)
{
    switch (kind) {
    case HOST_TO_DEVICE:
        return driver.cuMemcpyHtoD((CUdeviceptr)to, from, size);
    case DEVICE_TO_HOST:
        return driver.cuMemcpyDtoH(to, (CUdeviceptr)from, size);
    case DEVICE_TO_DEVICE:
        return driver.cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, size);
    case HOST_TO_HOST:
    case BY_ADDRESS:
        return driver.cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, size);
    default:
        return INVALID_MEMCPY_DIRECTION;
    }
}

RUNTIME(cudaMemcpy)(void *to, const void *from, size_t size, int kind)
{
    if (!size)
        return SUCCESS;
    WITH_DEVICE(copy(to, from, size, kind));
}

static cudaError copy_async(void *to, const void *from, size_t size, int kind, handle stream)
{
    switch (kind) {
    case HOST_TO_DEVICE:
        return driver.cuMemcpyHtoDAsync((CUdeviceptr)to, from, size, stream);
    case DEVICE_TO_HOST:
        return driver.cuMemcpyDtoHAsync(to, (CUdeviceptr)from, size, stream);
    case DEVICE_TO_DEVICE:
        return driver.cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, size, stream);
    case HOST_TO_HOST:
    case BY_ADDRESS:
        return driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size, stream);
    default:
        return INVALID_MEMCPY_DIRECTION;
    }
}

RUNTIME(cudaMemcpyAsync)(void *to, const void *from, size_t size, int kind, handle stream)
{
    if (!size)
        return SUCCESS;
    WITH_DEVICE(copy_async(to, from, size, kind, stream));
}

RUNTIME(cudaMemcpyPeer)(void *to, int to_device, const void *from, int from_device, size_t size)
{
    if (to_device || from_device)
        return note(INVALID_DEVICE);
    WITH_DEVICE(driver.cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, size));
}

RUNTIME(cudaMemcpyPeerAsync)(void *to, int to_device, const void *from, int from_device, size_t size, handle stream)
{
    if (to_device || from_device)
        return note(INVALID_DEVICE);
    WITH_DEVICE(driver.cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, size, stream));
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

static cudaError rows(struct copy_2d *c, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                      size_t width, size_t height, int kind)
{
    enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
    static const unsigned from_types[] = {HOST, HOST, DEVICE, DEVICE, UNIFIED};
    static const unsigned to_types[] = {HOST, DEVICE, HOST, DEVICE, UNIFIED};
    if (kind < 0 || kind > BY_ADDRESS)
        return INVALID_MEMCPY_DIRECTION;
    *c = (struct copy_2d){.from_type = from_types[kind], .from_host = from, .from_device = (CUdeviceptr)from,
                          .from_pitch = from_pitch, .to_type = to_types[kind], .to_host = to,
                          .to_device = (CUdeviceptr)to, .to_pitch = to_pitch, .width = width, .height = height};
    return need_device();
}

RUNTIME(cudaMemcpy2D)(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind)
{
    struct copy_2d c;
    cudaError result = rows(&c, to, to_pitch, from, from_pitch, width, height, kind);
    return note(result ? result : driver.cuMemcpy2D(&c));
}

RUNTIME(cudaMemcpy2DAsync)(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                           size_t height, int kind, handle stream)
{
    struct copy_2d c;
    cudaError result = rows(&c, to, to_pitch, from, from_pitch, width, height, kind);
    return note(result ? result : driver.cuMemcpy2DAsync(&c, stream));
}

RUNTIME(cudaMemset)(CUdeviceptr to, int value, size_t size)
{
    WITH_DEVICE(driver.cuMemsetD8(to, (unsigned char)value, size));
}

RUNTIME(cudaMemsetAsync)(CUdeviceptr to, int value, size_t size, handle stream)
{
    WITH_DEVICE(driver.cuMemsetD8Async(to, (unsigned char)value, size, stream));
}

RUNTIME(cudaMemset2D)(CUdeviceptr to, size_t pitch, int value, size_t width, size_t height)
{
    WITH_DEVICE(driver.cuMemsetD2D8(to, pitch, (unsigned char)value, width, height));
}

RUNTIME(cudaMemset2DAsync)(CUdeviceptr to, size_t pitch, int value, size_t width, size_t height, handle stream)
{
    WITH_DEVICE(driver.cuMemsetD2D8Async(to, pitch, (unsigned char)value, width, height, stream));
}
