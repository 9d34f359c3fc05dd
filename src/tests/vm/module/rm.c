// SPDX-License-Identifier: GPL-2.0
/* Stands in for the RM core's dispatcher: a request's payload, already in kernel memory, to what does it. The result
 * is the status word inside the payload; the returned status says only whether there was such a request. */
#include "rm.h"

#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>


/* The largest parameter block that is copied in. */
#define PARAMS_LIMIT (1u << 20)

static void *copy_in(u64 user, u32 size, NV_STATUS *status)
{
    void *copy;
    *status = NV_OK;
    if (!user || !size)
        return NULL;
    *status = NV_ERR_INVALID_ARGUMENT;
    if (size > PARAMS_LIMIT)
        return NULL;
    *status = NV_ERR_NO_MEMORY;
    copy = kvmalloc(size, GFP_KERNEL);
    if (!copy)
        return NULL;
    *status = NV_OK;
    if (copy_from_user(copy, u64_to_user_ptr(user), size)) {
        kvfree(copy);
        copy = NULL;
        *status = NV_ERR_INVALID_ADDRESS;
    }
    return copy;
}

static NV_STATUS copy_out(u64 user, void *copy, u32 size, NV_STATUS status)
{
    if (copy && copy_to_user(u64_to_user_ptr(user), copy, size) && status == NV_OK)
        status = NV_ERR_INVALID_ADDRESS;
    kvfree(copy);
    return status;
}

/* Both layouts of NV_ESC_RM_ALLOC begin alike. */
static NV_STATUS allocate(void *args, nv_file_private_t *nvfp, u32 given)
{
    RS_RES_ALLOC_PARAMS params = {.hClient = get32(args, 0), .hParent = get32(args, 4), .hResource = get32(args, 8),
                                  .externalClassId = get32(args, 12)};
    u64 user = get64(args, 16);
    int size = rm_class_size(params.externalClassId);
    NV_STATUS status;
    if (size < 0)
        return NV_ERR_INVALID_CLASS;
    if (given && user && given != (u32)size)
        return NV_ERR_INVALID_PARAM_STRUCT;
    params.pAllocParams = copy_in(user, size, &status);
    if (status == NV_OK) {
        mutex_lock(&rm_lock);
        status = serverAllocResource(NULL, &params, nvfp);
        mutex_unlock(&rm_lock);
    }
    if (status == NV_OK)
        put32(args, 8, params.hResource);
    return copy_out(user, params.pAllocParams, size, status);
}

/* The function gets a structure by value as its second argument, as the real one does: that goes by the stack. */
RM_FN(void, Nv04AllocWithSecInfo, "000701", void *args, API_SECURITY_INFO info, nv_file_private_t *nvfp)
{
    HERE;
    put32(args, 28, allocate(args, nvfp, get32(args, 24)));
}

RM_FN(void, Nv04AllocWithAccessSecInfo, "000702", void *args, API_SECURITY_INFO info, nv_file_private_t *nvfp)
{
    HERE;
    put32(args, 40, allocate(args, nvfp, get32(args, 32)));
}

RM_FN(void, Nv01FreeWithSecInfo, "000703", void *args, API_SECURITY_INFO info)
{
    RS_RES_FREE_PARAMS params = {.hClient = get32(args, 0), .hResource = get32(args, 8)};
    HERE;
    mutex_lock(&rm_lock);
    put32(args, 12, serverFreeResourceTree(NULL, &params));
    mutex_unlock(&rm_lock);
}

RM_FN(NV_STATUS, _rmapiRmControl, "000704", NvHandle client, NvHandle object, u32 cmd, u64 user, u32 size, u32 flags,
                                    void *api, API_SECURITY_INFO *info)
{
    RS_RES_CONTROL_PARAMS params = {.hClient = client, .hObject = object, .cmd = cmd, .flags = flags,
                                    .paramsSize = size};
    NV_STATUS status;
    HERE;
    if (!user != !size)
        return NV_ERR_INVALID_ARGUMENT;
    params.pParams = copy_in(user, size, &status);
    if (status == NV_OK) {
        mutex_lock(&rm_lock);
        status = serverControl(NULL, &params);
        mutex_unlock(&rm_lock);
    }
    return copy_out(user, params.pParams, size, status);
}

/* The compiler made a clone of the real one: the symbol has a suffix. */
static FN void _nv04ControlWithSecInfo(void *args, API_SECURITY_INFO info)
    RM_NAME("_nv04ControlWithSecInfo.constprop.0", "000705");
static FN void _nv04ControlWithSecInfo(void *args, API_SECURITY_INFO info)
{
    HERE_AS("_nv04ControlWithSecInfo.constprop.0");
    put32(args, 28, _rmapiRmControl(get32(args, 0), get32(args, 4), get32(args, 8), get64(args, 16),
                                    get32(args, 24), get32(args, 12), NULL, &info));
}

RM_FN(void, Nv04ControlWithSecInfo, "000706", void *args, API_SECURITY_INFO info)
{
    HERE;
    _nv04ControlWithSecInfo(args, info);
}

RM_FN(void, Nv04DupObjectWithSecInfo, "000707", void *args, API_SECURITY_INFO info, nv_file_private_t *nvfp)
{
    RS_RES_ALLOC_PARAMS params = {.hClient = get32(args, 0), .hParent = get32(args, 4), .hResource = get32(args, 8)};
    struct rm_object *source;
    NV_STATUS status = NV_ERR_INVALID_OBJECT_HANDLE;
    HERE;
    mutex_lock(&rm_lock);
    source = rm_find(get32(args, 12), get32(args, 16));
    if (source) {
        params.externalClassId = source->class;
        params.copied = true;
        status = serverAllocResource(NULL, &params, nvfp);
    }
    mutex_unlock(&rm_lock);
    put32(args, 8, params.hResource);
    put32(args, 24, status);
}

/* What mmap on the file at 48 will give. */
RM_FN(void, Nv04MapMemoryWithSecInfo, "000708", void *args, API_SECURITY_INFO info)
{
    u64 bytes = get64(args, 24);
    NV_STATUS status = NV_ERR_INVALID_OBJECT_HANDLE;
    HERE;
    mutex_lock(&rm_lock);
    if (rm_find(get32(args, 0), get32(args, 8)))
        status = !bytes || bytes > SZ_2M ? NV_ERR_INVALID_ARGUMENT : NV_OK;
    mutex_unlock(&rm_lock);
    if (status == NV_OK)
        status = nv_add_mapping_context_to_file(&nv_gpu, &bytes, 3, NULL, 0, get32(args, 48));
    if (status == NV_OK)
        put64(args, 32, 0xf7000000ull + get32(args, 8) * 0x10000ull);
    put32(args, 40, status);
}

RM_FN(void, Nv04UnmapMemoryWithSecInfo, "000709", void *args, API_SECURITY_INFO info)
{
    HERE;
    mutex_lock(&rm_lock);
    put32(args, 24, rm_find(get32(args, 0), get32(args, 8)) ? NV_OK : NV_ERR_INVALID_OBJECT_HANDLE);
    mutex_unlock(&rm_lock);
}

RM_FN(void, Nv04MapMemoryDmaWithSecInfo, "000710", void *args, API_SECURITY_INFO info)
{
    bool long_form = standin_layout >= 580;
    NV_STATUS status;
    HERE;
    mutex_lock(&rm_lock);
    status = rm_find(get32(args, 0), get32(args, 8)) && rm_find(get32(args, 0), get32(args, 12))
                 ? NV_OK : NV_ERR_INVALID_OBJECT_HANDLE;
    mutex_unlock(&rm_lock);
    if (status == NV_OK)
        put64(args, long_form ? 48 : 40, 0x7f0000000000ull + get32(args, 12) * 0x200000ull);
    put32(args, long_form ? 56 : 48, status);
}

RM_FN(void, Nv04UnmapMemoryDmaWithSecInfo, "000711", void *args, API_SECURITY_INFO info)
{
    NV_STATUS status;
    HERE;
    mutex_lock(&rm_lock);
    status = rm_find(get32(args, 0), get32(args, 8)) ? NV_OK : NV_ERR_INVALID_OBJECT_HANDLE;
    mutex_unlock(&rm_lock);
    put32(args, standin_layout >= 550 ? 40 : 32, status);
}

RM_FN(void, Nv04VidHeapControlWithSecInfo, "000712", void *args, API_SECURITY_INFO info)
{
    HERE;
    put32(args, 20, NV_ERR_NOT_SUPPORTED);
}

/* Host memory that is registered: class 0x71, address at 24, last byte's offset at 32. */
RM_FN(void, Nv01AllocMemoryWithSecInfo, "000713", void *args, API_SECURITY_INFO info, nv_file_private_t *nvfp)
{
    u64 where[2] = {get64(args, 24), get64(args, 32)};
    RS_RES_ALLOC_PARAMS params = {.hClient = get32(args, 0), .hParent = get32(args, 4), .hResource = get32(args, 8),
                                  .externalClassId = get32(args, 12), .pAllocParams = where};
    NV_STATUS status = NV_ERR_INVALID_CLASS;
    HERE;
    if (params.externalClassId == 0x71) {
        mutex_lock(&rm_lock);
        status = serverAllocResource(NULL, &params, nvfp);
        mutex_unlock(&rm_lock);
    }
    put32(args, 8, params.hResource);
    put32(args, 40, status);
}

/* The event of the file at 8: poll on it waits from now on. */
static NV_STATUS os_event(void *args, bool on)
{
    struct file *file;
    nv_file_private_t *nvfp = nv_file_of((int)get32(args, 8), &file);
    if (!nvfp)
        return NV_ERR_INVALID_ARGUMENT;
    nvfp->has_event = on;
    fput(file);
    return NV_OK;
}

/* Sizes of what has one layout; the others are looked at where they are done. */
static bool size_fits(u32 cmd, u32 size)
{
    switch (cmd) {
    case NV_ESC_RM_FREE: return size == 16;
    case NV_ESC_RM_CONTROL: return size == 32;
    case NV_ESC_RM_ALLOC: return size == 32 || size == 48;
    case NV_ESC_RM_DUP_OBJECT: return size == 28;
    case NV_ESC_RM_ALLOC_MEMORY: return size == 56;
    case NV_ESC_RM_VID_HEAP_CONTROL: return size == 184;
    case NV_ESC_RM_MAP_MEMORY: return size == 56;
    case NV_ESC_RM_UNMAP_MEMORY: return size == 32;
    case NV_ESC_RM_MAP_MEMORY_DMA: return size == (standin_layout >= 580 ? 64 : 56);
    case NV_ESC_RM_UNMAP_MEMORY_DMA: return size == (standin_layout >= 550 ? 48 : 40);
    case NV_ESC_ALLOC_OS_EVENT:
    case NV_ESC_FREE_OS_EVENT: return size == 16;
    case NV_ESC_REGISTER_FD: return size == 4;
    case NV_ESC_STATUS_CODE: return size == 12;
    default: return true;
    }
}

/* Some requests are for nvidiactl alone, some for a GPU's file alone. */
static bool file_fits(u32 cmd, const nv_file_private_t *nvfp)
{
    bool control = nvfp->minor == NV_MINOR_CTL;
    switch (cmd) {
    case NV_ESC_RM_ALLOC_MEMORY:
    case NV_ESC_RM_MAP_MEMORY:
    case NV_ESC_REGISTER_FD: return cmd == NV_ESC_RM_MAP_MEMORY || !control;
    case NV_ESC_ALLOC_OS_EVENT:
    case NV_ESC_FREE_OS_EVENT: return true;
    default: return control;
    }
}

RM_FN(NV_STATUS, RmIoctl, "000714", nv_state_t *nv, nv_file_private_t *nvfp, u32 cmd, void *data, u32 size)
{
    API_SECURITY_INFO info = {{1}};
    HERE;
    if (!size_fits(cmd, size) || !file_fits(cmd, nvfp))
        return NV_ERR_INVALID_ARGUMENT;
    switch (cmd) {
    case NV_ESC_RM_ALLOC:
        if (size == 32)
            Nv04AllocWithSecInfo(data, info, nvfp);
        else
            Nv04AllocWithAccessSecInfo(data, info, nvfp);
        return NV_OK;
    case NV_ESC_RM_FREE: Nv01FreeWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_CONTROL: Nv04ControlWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_DUP_OBJECT: Nv04DupObjectWithSecInfo(data, info, nvfp); return NV_OK;
    case NV_ESC_RM_ALLOC_MEMORY: Nv01AllocMemoryWithSecInfo(data, info, nvfp); return NV_OK;
    case NV_ESC_RM_VID_HEAP_CONTROL: Nv04VidHeapControlWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_MAP_MEMORY: Nv04MapMemoryWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_UNMAP_MEMORY: Nv04UnmapMemoryWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_MAP_MEMORY_DMA: Nv04MapMemoryDmaWithSecInfo(data, info); return NV_OK;
    case NV_ESC_RM_UNMAP_MEMORY_DMA: Nv04UnmapMemoryDmaWithSecInfo(data, info); return NV_OK;
    case NV_ESC_ALLOC_OS_EVENT: put32(data, 12, os_event(data, true)); return NV_OK;
    case NV_ESC_FREE_OS_EVENT: put32(data, 12, os_event(data, false)); return NV_OK;
    case NV_ESC_STATUS_CODE: put32(data, 8, NV_OK); return NV_OK;
    case NV_ESC_REGISTER_FD: {
        struct file *file;
        nv_file_private_t *control = nv_file_of((int)get32(data, 0), &file);
        bool right = control && control->minor == NV_MINOR_CTL;
        if (control)
            fput(file);
        return right ? NV_OK : NV_ERR_INVALID_ARGUMENT;
    }
    default: return NV_ERR_INVALID_COMMAND;
    }
}

FN NV_STATUS rm_ioctl(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp, u32 command, void *data, u32 size)
{
    HERE;
    return RmIoctl(nv, nvfp, command, data, size);
}

FN void rm_cleanup_file_private(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp)
{
    HERE;
    mutex_lock(&rm_lock);
    rm_free_owned(nvfp);
    mutex_unlock(&rm_lock);
}

FN int rm_init_adapter(nvidia_stack_t *sp, nv_state_t *nv)
{
    HERE;
    return 1;
}
