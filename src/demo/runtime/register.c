/* Stands in for what nvcc's generated code calls before main: fat binaries and
 * the kernels in them, by the address of their host stub. Loaded into the driver
 * when first launched, as the real runtime does. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct image {
    const void *data;
    handle library;
};

struct stub {
    struct stub *next;
    const void *address;
    const char *name;
    struct image *image;
    handle kernel, function;
};

static struct stub *stubs[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct stub **bucket(const void *address)
{
    return &stubs[((uintptr_t)address >> 4) % 256];
}

RUNTIME_AS(void **, __cudaRegisterFatBinary)(const void *wrapper)
{
    struct image *image = calloc(1, sizeof *image);
    if (image)
        image->data = wrapper;
    return (void **)image;
}

RUNTIME_AS(void, __cudaRegisterFatBinaryEnd)(void **image)
{
    (void)image;
}

RUNTIME_AS(void, __cudaRegisterFunction)(void **image, const void *address, const char *device_function,
                                         const char *name, int thread_limit, void *tid, void *bid, void *block,
                                         void *grid, int *warp)
{
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    struct stub *stub = calloc(1, sizeof *stub);
    if (!stub)
        return;
    stub->address = address;
    stub->name = name;
    stub->image = (struct image *)image;
    pthread_mutex_lock(&lock);
    struct stub **head = bucket(address);
    stub->next = *head;
    *head = stub;
    pthread_mutex_unlock(&lock);
}

RUNTIME_AS(void, __cudaUnregisterFatBinary)(void **handle_of_image)
{
    struct image *image = (struct image *)handle_of_image;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof stubs / sizeof stubs[0]; i++)
        for (struct stub **link = &stubs[i]; *link;) {
            struct stub *stub = *link;
            if (stub->image == image) {
                *link = stub->next;
                free(stub);
            } else {
                link = &stub->next;
            }
        }
    pthread_mutex_unlock(&lock);
    if (image && image->library)
        driver.cuLibraryUnload(image->library);
    free(image);
}

/* Under the lock. */
static cudaError load(struct stub *stub)
{
    struct image *image = stub->image;
    cudaError result = SUCCESS;
    if (!image->library)
        result = driver.cuLibraryLoadData(&image->library, image->data, NULL, NULL, 0, NULL, NULL, 0);
    if (!result)
        result = driver.cuLibraryGetKernel(&stub->kernel, image->library, stub->name);
    if (!result)
        result = driver.cuKernelGetFunction(&stub->function, stub->kernel);
    /* The driver has no kernel of that name: the stub was of no device function. */
    return result == NOT_FOUND ? INVALID_DEVICE_FUNCTION : result;
}

static struct stub *stub_at(const void *address)
{
    for (struct stub *stub = *bucket(address); stub; stub = stub->next)
        if (stub->address == address)
            return stub;
    return NULL;
}

cudaError function_of(const void *address, handle *function)
{
    cudaError result = need_device();
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    struct stub *stub = stub_at(address);
    if (stub && !stub->function)
        result = load(stub);
    /* Not a stub: a cudaKernel_t or cudaFunction_t, which the driver knows or refuses. */
    *function = stub ? stub->function : (handle)address;
    pthread_mutex_unlock(&lock);
    return !stub && !address ? INVALID_DEVICE_FUNCTION : result;
}

RUNTIME(cudaGetFuncBySymbol)(handle *out, const void *address)
{
    return note(out ? function_of(address, out) : INVALID_VALUE);
}

RUNTIME(cudaGetKernel)(handle *out, const void *address)
{
    handle function;
    cudaError result = out ? function_of(address, &function) : INVALID_VALUE;
    if (!result) {
        pthread_mutex_lock(&lock);
        struct stub *stub = stub_at(address);
        *out = stub ? stub->kernel : (handle)address;
        pthread_mutex_unlock(&lock);
    }
    return note(result);
}

RUNTIME(cudaFuncGetName)(const char **name, const void *address)
{
    handle function;
    cudaError result = function_of(address, &function);
    return note(result ? result : driver.cuFuncGetName(name, function));
}

RUNTIME(cudaFuncSetAttribute)(const void *address, int attribute, int value)
{
    handle function;
    cudaError result = function_of(address, &function);
    return note(result ? result : driver.cuFuncSetAttribute(function, attribute, value));
}

struct function_attributes { /* the first part of the real cudaFuncAttributes */
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, dynamic_shared, carveout;
};

RUNTIME(cudaFuncGetAttributes)(struct function_attributes *out, const void *address)
{
    handle function;
    cudaError result = out ? function_of(address, &function) : INVALID_VALUE;
    if (result)
        return note(result);
    memset(out, 0, sizeof *out);
    int *const values[] = {&out->threads, &out->registers, &out->ptx, &out->binary, &out->dynamic_shared,
                           &out->carveout};
    static const int attributes[] = {0, 4, 5, 6, 8, 9};
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && !result; i++)
        result = driver.cuFuncGetAttribute(values[i], attributes[i], function);
    return note(result);
}

RUNTIME(cudaLibraryLoadData)(handle *out, const void *code, int *jit, void **jit_values, unsigned jit_count,
                             int *options, void **values, unsigned count)
{
    WITH_DEVICE(driver.cuLibraryLoadData(out, code, jit, jit_values, jit_count, options, values, count));
}

RUNTIME(cudaLibraryUnload)(handle library)
{
    WITH_DEVICE(driver.cuLibraryUnload(library));
}

RUNTIME(cudaLibraryGetKernel)(handle *out, handle library, const char *name)
{
    WITH_DEVICE(driver.cuLibraryGetKernel(out, library, name));
}

RUNTIME(cudaLibraryGetKernelCount)(unsigned *count, handle library)
{
    WITH_DEVICE(driver.cuLibraryGetKernelCount(count, library));
}

RUNTIME(cudaKernelSetAttributeForDevice)(handle kernel, int attribute, int value, int device)
{
    WITH_DEVICE(driver.cuKernelSetAttribute(attribute, value, kernel, device));
}
