/* Stands in for the runtime's device functions. */
#include "runtime.h"

#include <string.h>

RUNTIME(cudaDriverGetVersion)(int *version)
{
    if (!version)
        return note(INVALID_VALUE);
    *version = 0;
    return note(need_driver() ? SUCCESS : driver.cuDriverGetVersion(version));
}

RUNTIME(cudaRuntimeGetVersion)(int *version)
{
    if (!version)
        return note(INVALID_VALUE);
    *version = 13000;
    return SUCCESS;
}

RUNTIME(cudaGetDeviceCount)(int *count)
{
    cudaError result = need_driver();
    return note(result ? result : driver.cuDeviceGetCount(count));
}

/* Without a context the runtime knows the answer itself, with one it asks the driver. */
RUNTIME(cudaGetDevice)(int *out)
{
    cudaError result = out ? need_driver() : INVALID_VALUE;
    if (result)
        return note(result);
    handle unused = NULL;
    if (driver.cuCtxGetDevice(out, unused))
        *out = device;
    return SUCCESS;
}

static cudaError check_device(int wanted)
{
    int count = 0;
    cudaError result = need_driver();
    if (!result)
        result = driver.cuDeviceGetCount(&count);
    return result ? result : wanted >= 0 && wanted < count ? SUCCESS : INVALID_DEVICE;
}

RUNTIME(cudaSetDevice)(int wanted)
{
    cudaError result = check_device(wanted);
    if (!result)
        device = wanted;
    return note(result ? result : need_device());
}

RUNTIME(cudaInitDevice)(int wanted, unsigned device_flags, unsigned flags)
{
    (void)device_flags, (void)flags;
    cudaError result = check_device(wanted);
    return note(result ? result : need_device());
}

RUNTIME(cudaSetDeviceFlags)(unsigned flags)
{
    cudaError result = need_driver();
    return note(result ? result : driver.cuDevicePrimaryCtxSetFlags(device, flags));
}

RUNTIME(cudaGetDeviceFlags)(unsigned *flags)
{
    int active;
    cudaError result = need_driver();
    return note(result ? result : driver.cuDevicePrimaryCtxGetState(device, flags, &active));
}

RUNTIME(cudaDeviceGetAttribute)(int *value, int attribute, int which)
{
    cudaError result = need_driver();
    return note(result ? result : driver.cuDeviceGetAttribute(value, attribute, which));
}

RUNTIME(cudaDeviceGetPCIBusId)(char *id, int room, int which)
{
    cudaError result = need_driver();
    return note(result ? result : driver.cuDeviceGetPCIBusId(id, room, which));
}

RUNTIME(cudaDeviceCanAccessPeer)(int *can, int which, int peer)
{
    cudaError result = need_driver();
    return note(result ? result : driver.cuDeviceCanAccessPeer(can, which, peer));
}

/* The first part of the real cudaDeviceProp of CUDA 13; what follows is left alone. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total, shared;
    int registers, warp;
    size_t pitch;
    int threads, block[3], grid[3];
    size_t constant;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int multiprocessors;
};
_Static_assert(offsetof(struct properties, total) == 288, "layout of cudaDeviceProp");
_Static_assert(offsetof(struct properties, major) == 360, "layout of cudaDeviceProp");

RUNTIME(cudaGetDeviceProperties)(struct properties *p, int which)
{
    cudaError result = p ? check_device(which) : INVALID_VALUE;
    if (result)
        return note(result);
    memset(p, 0, sizeof *p);
    driver.cuDeviceGetName(p->name, sizeof p->name, which);
    driver.cuDeviceGetUuid(p->uuid, which);
    driver.cuDeviceTotalMem(&p->total, which);
    const struct {
        int attribute, *value;
    } wanted[] = {{1, &p->threads}, {2, &p->block[0]}, {3, &p->block[1]}, {4, &p->block[2]},
                  {5, &p->grid[0]}, {6, &p->grid[1]}, {7, &p->grid[2]}, {10, &p->warp},
                  {12, &p->registers}, {16, &p->multiprocessors}, {75, &p->major}, {76, &p->minor}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        driver.cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, which);
    p->shared = 49152;
    p->constant = 65536;
    p->pitch = 2147483647;
    p->texture_alignment = 512;
    p->texture_pitch = 32;
    return SUCCESS;
}

RUNTIME(cudaDeviceSynchronize)(void)
{
    WITH_DEVICE(driver.cuCtxSynchronize());
}

RUNTIME(cudaDeviceReset)(void)
{
    cudaError result = need_driver();
    if (!result)
        result = driver.cuDevicePrimaryCtxReset(device);
    forget_device();
    return note(result);
}

RUNTIME(cudaDeviceGetStreamPriorityRange)(int *least, int *greatest)
{
    WITH_DEVICE(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

struct channel {
    int x, y, z, w, kind;
};

RUNTIME_AS(struct channel, cudaCreateChannelDesc)(int x, int y, int z, int w, int kind)
{
    return (struct channel){x, y, z, w, kind};
}
