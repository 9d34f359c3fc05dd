/* Stands in for initialisation, devices and their contexts: one device, or as many as STANDIN_DEVICES says. */
#define _GNU_SOURCE
#include "door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK 16
static const char device_name[] = "Stand-in GPU";
#define MOST_DEVICES 8
static bool initialised, forked;
static int devices = 1;
static struct context *primary[MOST_DEVICES];
static unsigned primary_users[MOST_DEVICES], primary_flags[MOST_DEVICES], next_context = 1;
static __thread struct context *stack[STACK];
static __thread unsigned depth;
__thread bool in_callback;

/* What the entry code that begins with a comparison compares (see build.rs). */
uint32_t standin_up = STANDIN_UP, standin_down;

__attribute__((destructor)) static void shut_down(void)
{
    standin_up = 0;
    standin_down = STANDIN_DOWN;
}

static void after_fork(void)
{
    /* As with the real driver, a forked child cannot go on with CUDA. */
    forked = initialised;
    pthread_mutex_init(&gate, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    const char *text = getenv("STANDIN_DEVICES");
    long wanted = text ? strtol(text, NULL, 10) : 0;

    if (wanted > 0 && wanted <= MOST_DEVICES)
        devices = (int)wanted;
    pthread_atfork(NULL, NULL, after_fork);
}

CUresult need_driver(void)
{
    if (standin_down)
        return DEINITIALIZED;
    if (in_callback)
        return NOT_PERMITTED;
    return initialised && !forked ? SUCCESS : NOT_INITIALIZED;
}

CUresult need_context(struct context **current)
{
    TRY(need_driver());
    *current = depth ? stack[depth - 1] : NULL;
    return *current ? SUCCESS : INVALID_CONTEXT;
}

DRIVER(cuInit)(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (standin_down)
        return DEINITIALIZED;
    if (forked)
        return NOT_INITIALIZED;
    gate_lock();
    CUresult result = door_init();
    gate_unlock();
    initialised = result == SUCCESS;
    return result;
}

DRIVER(cuDriverGetVersion)(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = 13000;
    return SUCCESS;
}

static CUresult check_device(const void *out, CUdevice device)
{
    TRY(need_driver());
    if (!out)
        return INVALID_VALUE;
    return device >= 0 && device < devices ? SUCCESS : INVALID_DEVICE;
}

DRIVER(cuDeviceGetCount)(int *count)
{
    TRY(check_device(count, 0));
    *count = devices;
    return SUCCESS;
}

DRIVER(cuDeviceGet)(CUdevice *device, int ordinal)
{
    TRY(check_device(device, ordinal));
    *device = ordinal;
    return SUCCESS;
}

DRIVER(cuDeviceGetName)(char *name, int room, CUdevice device)
{
    TRY(check_device(name, device));
    if (room <= 0)
        return INVALID_VALUE;
    snprintf(name, (size_t)room, "%s", device_name);
    return SUCCESS;
}

DRIVER(cuDeviceGetUuid_v2)(void *uuid, CUdevice device)
{
    TRY(check_device(uuid, device));
    memcpy(uuid, "stand-in device!", 16);
    return SUCCESS;
}
DRIVER_ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2);

DRIVER(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device)
{
    TRY(check_device(bytes, device));
    *bytes = DEVICE_BYTES;
    return SUCCESS;
}

DRIVER(cuDeviceComputeCapability)(int *major, int *minor, CUdevice device)
{
    TRY(check_device(major && minor ? major : NULL, device));
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

DRIVER(cuDeviceGetPCIBusId)(char *id, int room, CUdevice device)
{
    TRY(check_device(id, device));
    if (room < 13)
        return INVALID_VALUE;
    strcpy(id, "0000:00:00.0");
    return SUCCESS;
}

DRIVER(cuDeviceCanAccessPeer)(int *can, CUdevice device, CUdevice peer)
{
    TRY(check_device(can, device));
    TRY(check_device(can, peer));
    *can = 0;
    return SUCCESS;
}

/* Attribute number and value; what is not listed is 0, as for a feature that is not there. */
static const int attributes[][2] = {
    {1, 1024},  /* threads per block */
    {2, 1024}, {3, 1024}, {4, 64},             /* block dimensions */
    {5, 2147483647}, {6, 65535}, {7, 65535},   /* grid dimensions */
    {8, 49152}, {9, 65536}, {10, 32},          /* shared and constant memory, warp */
    {12, 65536}, {13, 1500000}, {16, 16},      /* registers, kHz, multiprocessors */
    {31, 1}, {36, 2000000}, {37, 256}, {38, 1 << 20}, /* concurrent kernels, memory, L2 */
    {39, 2048}, {40, 2}, {41, 1}, {75, 9}, {76, 0},   /* threads, copy engines, UVA, capability */
    {78, 1}, {81, 65536}, {83, 1}, {89, 1}, {97, 49152}, {102, 1}, {115, 1},
};

DRIVER(cuDeviceGetAttribute)(int *value, int attribute, CUdevice device)
{
    TRY(check_device(value, device));
    if (attribute <= 0 || attribute > 512)
        return INVALID_VALUE;
    *value = 0;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i][0] == attribute)
            *value = attributes[i][1];
    return SUCCESS;
}

/* Under the gate. */
static struct context *context_new(unsigned flags, CUdevice device)
{
    struct context *context = object_new(CONTEXT, sizeof *context);
    if (!context)
        return NULL;
    context->flags = flags;
    context->device = device;
    context->id = next_context++;
    context->null_stream = stream_new(context, 0, 0);
    door_context_new(context);
    return context;
}

DRIVER(cuDevicePrimaryCtxRetain)(struct context **out, CUdevice device)
{
    TRY(check_device(out, device));
    gate_lock();
    if (!primary[device])
        primary[device] = context_new(primary_flags[device], device);
    if (primary[device])
        primary_users[device]++;
    *out = primary[device];
    gate_unlock();
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

/* Under the gate. */
static void primary_end(CUdevice device)
{
    arena_forget(primary[device]);
    door_context_end(primary[device]);
    object_forget(primary[device]);
    primary[device] = NULL;
    primary_users[device] = 0;
}

DRIVER(cuDevicePrimaryCtxRelease_v2)(CUdevice device)
{
    TRY(check_device(primary, device));
    gate_lock();
    bool held = primary_users[device] > 0;
    if (held && --primary_users[device] == 0)
        primary_end(device);
    gate_unlock();
    return held ? SUCCESS : INVALID_CONTEXT;
}

DRIVER(cuDevicePrimaryCtxReset_v2)(CUdevice device)
{
    TRY(check_device(primary, device));
    gate_lock();
    if (primary[device])
        primary_end(device);
    gate_unlock();
    return SUCCESS;
}

DRIVER(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags)
{
    TRY(check_device(primary, device));
    primary_flags[device] = flags;
    return SUCCESS;
}

DRIVER(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned *flags, int *active)
{
    TRY(check_device(flags && active ? flags : NULL, device));
    gate_lock();
    *flags = primary_flags[device];
    *active = primary[device] != NULL;
    gate_unlock();
    return SUCCESS;
}

DRIVER(cuCtxPushCurrent_v2)(struct context *context)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(context, CONTEXT);
    gate_unlock();
    if (!known || depth == STACK)
        return known ? OUT_OF_MEMORY : INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}
DRIVER_ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

DRIVER(cuCtxPopCurrent_v2)(struct context **out)
{
    struct context *current;
    TRY(need_context(&current));
    depth--;
    if (out)
        *out = current;
    return SUCCESS;
}
DRIVER_ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

static CUresult create(struct context **out, unsigned flags, CUdevice device)
{
    TRY(check_device(out, device));
    gate_lock();
    *out = context_new(flags, device);
    gate_unlock();
    return *out ? impl_cuCtxPushCurrent_v2(*out) : OUT_OF_MEMORY;
}

DRIVER(cuCtxCreate_v2)(struct context **out, unsigned flags, CUdevice device)
{
    return create(out, flags, device);
}

DRIVER(cuCtxCreate_v3)(struct context **out, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count;
    return create(out, flags, device);
}

DRIVER(cuCtxCreate_v4)(struct context **out, void *params, unsigned flags, CUdevice device)
{
    (void)params;
    return create(out, flags, device);
}

DRIVER(cuCtxDestroy_v2)(struct context *context)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(context, CONTEXT) && context != primary[context->device];
    if (known) {
        arena_forget(context);
        door_context_end(context);
        object_forget(context);
    }
    gate_unlock();
    if (!known)
        return INVALID_CONTEXT;
    if (depth && stack[depth - 1] == context)
        depth--;
    return SUCCESS;
}
DRIVER_ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

DRIVER(cuCtxSetCurrent)(struct context *context)
{
    TRY(need_driver());
    if (depth)
        depth--;
    return context ? impl_cuCtxPushCurrent_v2(context) : SUCCESS;
}

DRIVER(cuCtxGetCurrent)(struct context **out)
{
    TRY(need_driver());
    if (!out)
        return INVALID_VALUE;
    *out = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

DRIVER(cuCtxGetDevice)(CUdevice *device)
{
    struct context *current;
    TRY(need_context(&current));
    if (!device)
        return INVALID_VALUE;
    *device = current->device;
    return SUCCESS;
}

/* NULL is the current context. */
static CUresult context_or_current(struct context **context)
{
    if (!*context)
        return need_context(context);
    TRY(need_driver());
    gate_lock();
    bool known = object_is(*context, CONTEXT);
    gate_unlock();
    return known ? SUCCESS : INVALID_CONTEXT;
}

DRIVER(cuCtxGetDevice_v2)(CUdevice *device, struct context *context)
{
    TRY(context_or_current(&context));
    if (!device)
        return INVALID_VALUE;
    *device = context->device;
    return SUCCESS;
}

DRIVER(cuCtxGetId)(struct context *context, unsigned long long *id)
{
    TRY(context_or_current(&context));
    if (!id)
        return INVALID_VALUE;
    *id = context->id;
    return SUCCESS;
}

DRIVER(cuCtxGetFlags)(unsigned *flags)
{
    struct context *current;
    TRY(need_context(&current));
    if (!flags)
        return INVALID_VALUE;
    *flags = current->flags;
    return SUCCESS;
}

DRIVER(cuCtxGetApiVersion)(struct context *context, unsigned *version)
{
    TRY(context_or_current(&context));
    if (!version)
        return INVALID_VALUE;
    *version = 3020;
    return SUCCESS;
}

DRIVER(cuCtxGetStreamPriorityRange)(int *least, int *greatest)
{
    struct context *current;
    TRY(need_context(&current));
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return SUCCESS;
}

DRIVER(cuCtxSynchronize)(void)
{
    struct context *current;
    TRY(need_context(&current));
    return wait_idle(current);
}

DRIVER(cuCtxSynchronize_v2)(struct context *context)
{
    TRY(context_or_current(&context));
    return wait_idle(context);
}

/* The real one hands out tables of private functions; there are none here. */
DRIVER(cuGetExportTable)(const void **table, const void *id)
{
    if (!table || !id)
        return INVALID_VALUE;
    *table = NULL;
    return NOT_FOUND;
}

static CUresult text_of(int error, const char **out, bool name)
{
    if (!out)
        return INVALID_VALUE;
    const struct error_text *row = error_text(error);
    *out = row && row->driver ? (name ? row->driver : row->text) : NULL;
    return *out ? SUCCESS : INVALID_VALUE;
}

DRIVER(cuGetErrorName)(int error, const char **out)
{
    return text_of(error, out, true);
}

DRIVER(cuGetErrorString)(int error, const char **out)
{
    return text_of(error, out, false);
}

/* Data, not functions, that the real library exports beside its functions:
 * debuggers write them. Whoever hooks exported names must leave them alone. */
extern uint32_t cudbgIpcFlag, cudbgSessionId;
EXPORT uint32_t cudbgIpcFlag;
EXPORT uint32_t cudbgSessionId;
