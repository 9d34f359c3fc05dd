/* Stands in for modules and libraries: what a fat binary holds, by name, and the
 * handles of its kernels. Of a foreign image (PTX, cubin, a real fat binary) the
 * names are not known here, so each name asked for is taken to be in it. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct container { /* a module or a library */
    const struct standin_image *image; /* NULL: foreign */
    struct container *module;          /* of a library, once asked for */
};

/* A kernel of a library, and its function once asked for. */
struct kernel {
    struct function as_function; /* first: a kernel can be launched as it is */
    struct function *function;
};

static CUresult image_of(const void *code, const struct standin_image **image)
{
    if (!code)
        return INVALID_VALUE;
    if (*(const unsigned *)code == FATBIN_WRAPPER)
        code = ((const struct fatbin_wrapper *)code)->data;
    const struct standin_image *ours = code;
    if (ours->magic == STANDIN_IMAGE) {
        *image = ours;
        return SUCCESS;
    }
    *image = NULL;
    unsigned magic = *(const unsigned *)code;
    char begin = *(const char *)code;
    bool text = begin == '/' || begin == '.' || begin == '\n';
    return text || magic == 0x464c457f || magic == 0xba55ed50 ? SUCCESS : INVALID_IMAGE;
}

static CUresult load(handle *out, const void *code, enum kind kind)
{
    struct context *current;
    const struct standin_image *image;
    if (kind == LIBRARY)
        TRY(need_driver());
    else
        TRY(need_context(&current));
    if (!out)
        return INVALID_VALUE;
    TRY(image_of(code, &image));
    gate_lock();
    struct container *container = object_new(kind, sizeof *container);
    if (container)
        container->image = image;
    gate_unlock();
    *out = container;
    return container ? SUCCESS : OUT_OF_MEMORY;
}

DRIVER(cuModuleLoadData)(handle *out, const void *code)
{
    return load(out, code, MODULE);
}
DRIVER_ALIAS(cuModuleLoadFatBinary, cuModuleLoadData);

DRIVER(cuModuleLoadDataEx)(handle *out, const void *code, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    return load(out, code, MODULE);
}

DRIVER(cuLibraryLoadData)(handle *out, const void *code, int *jit, void **jit_values, unsigned jit_count,
                          int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(out, code, LIBRARY);
}

static CUresult load_file(handle *out, const char *path, enum kind kind)
{
    struct standin_image head = {0};
    TRY(need_driver());
    if (!path)
        return INVALID_VALUE;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return FILE_NOT_FOUND;
    size_t got = fread(&head, 1, sizeof head, file);
    fclose(file);
    /* An image of ours lives in a program, never in a file. */
    return got >= 4 && head.magic != STANDIN_IMAGE ? load(out, &head, kind) : INVALID_IMAGE;
}

DRIVER(cuModuleLoad)(handle *out, const char *path)
{
    return load_file(out, path, MODULE);
}

DRIVER(cuLibraryLoadFromFile)(handle *out, const char *path, int *jit, void **jit_values, unsigned jit_count,
                              int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load_file(out, path, LIBRARY);
}

static CUresult unload(handle h, enum kind kind)
{
    TRY(need_driver());
    gate_lock();
    bool known = object_is(h, kind);
    if (known)
        object_forget(h);
    gate_unlock();
    return known ? SUCCESS : INVALID_HANDLE;
}

DRIVER(cuModuleUnload)(handle module)
{
    return unload(module, MODULE);
}

DRIVER(cuLibraryUnload)(handle library)
{
    return unload(library, LIBRARY);
}

static bool contains(const struct container *container, const char *name, const struct standin_kernel **code)
{
    *code = NULL;
    if (!container->image)
        return *name != 0;
    for (unsigned i = 0; i < container->image->count && !*code; i++)
        if (!strcmp(container->image->kernels[i].name, name))
            *code = &container->image->kernels[i];
    return *code != NULL;
}

struct search {
    const void *owner;
    const char *name;
    void *found;
};

static bool same_function(void *object, void *data)
{
    const struct function *function = object;
    struct search *search = data;
    if (function->owner == search->owner && !strcmp(function->name, search->name))
        search->found = object;
    return !search->found;
}

/* The same name in the same module gives the same handle. */
static CUresult get(handle *out, struct container *owner, const char *name, enum kind of, enum kind kind)
{
    const struct standin_kernel *code;
    TRY(need_driver());
    if (!out || !name)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = object_is(owner, of) ? SUCCESS : INVALID_HANDLE;
    if (!result && !contains(owner, name, &code))
        result = NOT_FOUND;
    struct search search = {.owner = owner, .name = name};
    if (!result) {
        object_each(kind, same_function, &search);
        if (!search.found) {
            struct function *made = object_new(kind, kind == KERNEL ? sizeof(struct kernel) : sizeof *made);
            char *copy = made ? strdup(name) : NULL;
            if (copy)
                *made = (struct function){.name = copy, .owner = owner, .code = code};
            else
                result = OUT_OF_MEMORY;
            search.found = made;
        }
    }
    gate_unlock();
    if (!result)
        *out = search.found;
    return result;
}

DRIVER(cuModuleGetFunction)(handle *out, handle module, const char *name)
{
    return get(out, module, name, MODULE, FUNCTION);
}

DRIVER(cuLibraryGetKernel)(handle *out, handle library, const char *name)
{
    return get(out, library, name, LIBRARY, KERNEL);
}

DRIVER(cuLibraryGetModule)(handle *out, struct container *library)
{
    TRY(need_driver());
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = object_is(library, LIBRARY) ? SUCCESS : INVALID_HANDLE;
    if (!result && !library->module) {
        library->module = object_new(MODULE, sizeof *library);
        if (library->module)
            library->module->image = library->image;
    }
    if (!result)
        *out = library->module;
    gate_unlock();
    return !result && !*out ? OUT_OF_MEMORY : result;
}

static CUresult count_of(unsigned *count, const struct container *container, enum kind kind)
{
    TRY(need_driver());
    if (!count)
        return INVALID_VALUE;
    gate_lock();
    bool known = object_is((handle)container, kind);
    if (known)
        *count = container->image ? container->image->count : 0;
    gate_unlock();
    return known ? SUCCESS : INVALID_HANDLE;
}

DRIVER(cuModuleGetFunctionCount)(unsigned *count, handle module)
{
    return count_of(count, module, MODULE);
}

DRIVER(cuLibraryGetKernelCount)(unsigned *count, handle library)
{
    return count_of(count, library, LIBRARY);
}

DRIVER(cuModuleGetLoadingMode)(int *mode)
{
    TRY(need_driver());
    if (!mode)
        return INVALID_VALUE;
    *mode = 2; /* lazy */
    return SUCCESS;
}

/* No image here has variables. */
DRIVER(cuModuleGetGlobal_v2)(CUdeviceptr *out, size_t *bytes, handle module, const char *name)
{
    (void)out, (void)bytes;
    TRY(need_driver());
    gate_lock();
    bool known = object_is(module, MODULE);
    gate_unlock();
    return !name ? INVALID_VALUE : known ? NOT_FOUND : INVALID_HANDLE;
}

DRIVER(cuLibraryGetGlobal)(CUdeviceptr *out, size_t *bytes, handle library, const char *name)
{
    (void)out, (void)bytes;
    TRY(need_driver());
    gate_lock();
    bool known = object_is(library, LIBRARY);
    gate_unlock();
    return !name ? INVALID_VALUE : known ? NOT_FOUND : INVALID_HANDLE;
}

DRIVER(cuKernelGetFunction)(handle *out, struct kernel *kernel)
{
    TRY(need_driver());
    if (!out)
        return INVALID_VALUE;
    gate_lock();
    CUresult result = object_is(kernel, KERNEL) ? SUCCESS : INVALID_HANDLE;
    if (!result && !kernel->function) {
        kernel->function = object_new(FUNCTION, sizeof *kernel->function);
        if (kernel->function)
            *kernel->function = kernel->as_function;
    }
    if (!result)
        *out = kernel->function;
    gate_unlock();
    return !result && !*out ? OUT_OF_MEMORY : result;
}

/* Under the gate. */
CUresult function_find(handle h, struct function **function)
{
    if (!object_is(h, FUNCTION) && !object_is(h, KERNEL))
        return INVALID_HANDLE;
    *function = h;
    return SUCCESS;
}

static CUresult name_of(const char **name, handle h, enum kind kind)
{
    TRY(need_driver());
    if (!name)
        return INVALID_VALUE;
    gate_lock();
    bool known = object_is(h, kind);
    gate_unlock();
    if (!known)
        return INVALID_HANDLE;
    *name = ((struct function *)h)->name;
    return SUCCESS;
}

DRIVER(cuFuncGetName)(const char **name, handle function)
{
    return name_of(name, function, FUNCTION);
}

DRIVER(cuKernelGetName)(const char **name, handle kernel)
{
    return name_of(name, kernel, KERNEL);
}

static CUresult owner_of(handle *out, handle h, enum kind kind)
{
    const char *name;
    if (!out)
        return INVALID_VALUE;
    TRY(name_of(&name, h, kind));
    *out = ((struct function *)h)->owner;
    return SUCCESS;
}

DRIVER(cuFuncGetModule)(handle *out, handle function)
{
    TRY(owner_of(out, function, FUNCTION));
    gate_lock();
    bool library = object_is(*out, LIBRARY);
    gate_unlock();
    return library ? impl_cuLibraryGetModule(out, *out) : SUCCESS;
}

DRIVER(cuKernelGetLibrary)(handle *out, handle kernel)
{
    return owner_of(out, kernel, KERNEL);
}

/* 0 max threads per block, 4 registers, 5 PTX version, 6 binary version, 8 max
 * dynamic shared memory, 9 carveout; only 8 and on can be set. */
static CUresult attribute(handle h, int which, int *value, bool write)
{
    static const int fixed[8] = {1024, 0, 0, 0, 32, 90, 90, 0};
    struct function *function;
    TRY(need_driver());
    if (!value || which < 0 || which > 15 || (write && which < 8))
        return INVALID_VALUE;
    gate_lock();
    CUresult result = function_find(h, &function);
    if (!result && write)
        function->attributes[which] = *value;
    else if (!result)
        *value = which < 8 ? fixed[which] : function->attributes[which];
    gate_unlock();
    return result;
}

DRIVER(cuFuncGetAttribute)(int *value, int which, handle function)
{
    return attribute(function, which, value, false);
}

DRIVER(cuFuncSetAttribute)(handle function, int which, int value)
{
    return attribute(function, which, &value, true);
}

DRIVER(cuKernelGetAttribute)(int *value, int which, handle kernel, CUdevice device)
{
    return device ? INVALID_DEVICE : attribute(kernel, which, value, false);
}

DRIVER(cuKernelSetAttribute)(int which, int value, handle kernel, CUdevice device)
{
    return device ? INVALID_DEVICE : attribute(kernel, which, &value, true);
}
