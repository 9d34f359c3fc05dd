/* Stands in for how the real runtime gets to the driver: on first use it loads
 * libcuda.so.1, asks cuGetProcAddress for each function it needs, and makes the
 * primary context current in each thread that calls. Keeps the last error. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>

struct driver driver;
static int (*get_proc_address)(const char *, void **, int, unsigned long long, int *);
static cudaError connected;
#define MOST_DEVICES 8
static handle primary[MOST_DEVICES];
static unsigned generation = 1; /* of the primary contexts; a reset begins the next */
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
__thread int device;
static __thread unsigned bound;
static __thread int bound_device;
static __thread cudaError last_error;

/* Whatever is missing stays NULL only if the driver is no stand-in and too old. */
static bool find_functions(void)
{
    bool all = true;
#define FIND(name, version, prototype) \
    all &= get_proc_address(#name, (void **)&driver.name, version, 0, NULL) == SUCCESS && driver.name;
    DRIVER_CALLS(FIND)
#undef FIND
    return all;
}

static void connect(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&get_proc_address = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!get_proc_address || !find_functions())
        connected = INSUFFICIENT_DRIVER;
    else
        connected = driver.cuInit(0);
}

cudaError need_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, connect);
    return connected;
}

cudaError need_device(void)
{
    if (bound == __atomic_load_n(&generation, __ATOMIC_ACQUIRE) && bound_device == device)
        return SUCCESS;
    cudaError result = need_driver();
    if (result)
        return result;
    pthread_mutex_lock(&primary_lock);
    if (!primary[device])
        result = driver.cuDevicePrimaryCtxRetain(&primary[device], device);
    if (!result)
        result = driver.cuCtxSetCurrent(primary[device]);
    if (!result) {
        bound = generation;
        bound_device = device;
    }
    pthread_mutex_unlock(&primary_lock);
    return result;
}

void forget_device(void)
{
    pthread_mutex_lock(&primary_lock);
    primary[device] = NULL;
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&primary_lock);
}

int cuda_lookup(const char *base, void **out, int version, unsigned long long flags, int *status)
{
    cudaError result = need_driver();
    return result ? result : get_proc_address(base, out, version, flags, status);
}

cudaError note(cudaError result)
{
    if (result)
        last_error = result;
    return result;
}

RUNTIME(cudaGetLastError)(void)
{
    cudaError result = last_error;
    last_error = SUCCESS;
    return result;
}

RUNTIME(cudaPeekAtLastError)(void)
{
    return last_error;
}

RUNTIME_AS(const char *, cudaGetErrorName)(cudaError error)
{
    const struct error_text *row = error_text(error);
    return row && row->runtime ? row->runtime : "unrecognized error code";
}

RUNTIME_AS(const char *, cudaGetErrorString)(cudaError error)
{
    const struct error_text *row = error_text(error);
    return row && row->runtime ? row->text : "unrecognized error code";
}

RUNTIME(cudaGetDriverEntryPointByVersion)(const char *symbol, void **out, unsigned version,
                                          unsigned long long flags, int *status)
{
    if (!symbol || !out)
        return note(INVALID_VALUE);
    int found = 0, result = cuda_lookup(symbol, out, (int)version, flags, &found);
    if (status)
        *status = found;
    /* That there is no such symbol is said in the status. */
    return note(result == NOT_FOUND ? SUCCESS : result);
}

RUNTIME(cudaGetDriverEntryPoint)(const char *symbol, void **out, unsigned long long flags, int *status)
{
    return impl_cudaGetDriverEntryPointByVersion(symbol, out, 13000, flags, status);
}

RUNTIME(cudaGetExportTable)(const void **table, const void *id)
{
    if (table)
        *table = NULL;
    return id && table ? NOT_FOUND : INVALID_VALUE;
}
