// SPDX-License-Identifier: GPL-2.0
/* Stands in for the RM core's objects: the tree of a client, what each class does when it is made and freed, and a
 * pretend 8 GiB of video memory. Everything under rm_lock. */
#include "rm.h"

#include <linux/slab.h>
#include <linux/uaccess.h>


#define OBJECT_LIMIT 100000
DEFINE_MUTEX(rm_lock);
static LIST_HEAD(objects);
static u32 object_count, next_client = 0xc1d00001u, next_object = 0xcaf00001u;
static u64 vram_left = 8ull << 30;
static DEFINE_SPINLOCK(vram_lock);

struct rm_object *rm_find(NvHandle client, NvHandle handle)
{
    struct rm_object *object;
    list_for_each_entry(object, &objects, objects)
        if (object->client == client && object->handle == handle)
            return object;
    return NULL;
}

int rm_class_size(u32 class)
{
    switch (class) {
    case 0x0000: case 0x0001: case 0x0041: return 108;
    case 0x0080: return 56;
    case 0x2080: return 4;
    case 0x90f1: return standin_layout >= 580 ? 56 : 48;
    case 0x003e: case 0x0040: case 0x50a0: return standin_layout >= 545 ? 128 : 120;
    case 0x0071: return 40;
    case 0xa06c: return 20;
    case 0x9067: return 12;
    case 0x0005: case 0x0079: return 24;
    case 0xc461: case 0xc561: case 0xc661: case 0xc761: return 2;
    case 0xc46f: case 0xc56f: case 0xc86f: case 0xc96f: return standin_layout >= 570 ? 368 : 360;
    case 0xc6c0: case 0xc9c0: case 0xcbc0: case 0xcdc0: return 16;
    case 0xc6b5: case 0xc8b5: case 0xc9b5: return 8;
    default: return -1;
    }
}

/* --- memory --- */

FN NV_STATUS pmaAllocatePages(void *pma, u64 count, u64 page_size, void *options, u64 *pages)
{
    u64 bytes;
    bool enough;
    HERE;
    if (check_mul_overflow(count, page_size, &bytes))
        return NV_ERR_NO_MEMORY;
    spin_lock(&vram_lock);
    enough = bytes <= vram_left;
    if (enough)
        vram_left -= bytes;
    spin_unlock(&vram_lock);
    return enough ? NV_OK : NV_ERR_NO_MEMORY;
}

FN void pmaFreePages(void *pma, u64 *pages, u64 count, u64 size, u32 flag)
{
    HERE;
    spin_lock(&vram_lock);
    vram_left += count * size;
    spin_unlock(&vram_lock);
}

RM_FN(NV_STATUS, vidmemConstruct_IMPL, "000803", struct rm_object *memory, void *call, RS_RES_ALLOC_PARAMS *params)
{
    u64 bytes;
    HERE;
    if (!params->pAllocParams)
        return NV_ERR_INVALID_ARGUMENT;
    bytes = get64(params->pAllocParams, 64);
    if (!bytes)
        return NV_ERR_INVALID_ARGUMENT;
    memory->page_size = bytes >= SZ_2M ? SZ_2M : SZ_64K;
    if (bytes > ~0ull - memory->page_size)
        return NV_ERR_NO_MEMORY;
    memory->bytes = (bytes + memory->page_size - 1) / memory->page_size * memory->page_size;
    return pmaAllocatePages(NULL, memory->bytes / memory->page_size, memory->page_size, NULL, NULL);
}

RM_FN(void, vidmemDestruct_IMPL, "000804", struct rm_object *memory)
{
    HERE;
    pmaFreePages(NULL, NULL, memory->bytes / memory->page_size, memory->page_size, 0);
}

RM_FN(NV_STATUS, sysmemConstruct_IMPL, "000805", struct rm_object *memory, void *call, RS_RES_ALLOC_PARAMS *params)
{
    NV_STATUS status;
    u64 address;
    HERE;
    if (!params->pAllocParams)
        return NV_ERR_INVALID_ARGUMENT;
    memory->page_size = PAGE_SIZE;
    memory->bytes = get64(params->pAllocParams, 64);
    if (!memory->bytes || memory->bytes > SZ_64M)
        return NV_ERR_NO_MEMORY;
    memory->bytes = PAGE_ALIGN(memory->bytes);
    status = nv_alloc_pages(&nv_gpu, memory->bytes >> PAGE_SHIFT, PAGE_SIZE, 0, 0, 1, 0, -1, &address,
                            &memory->memory);
    if (status == NV_OK)
        status = nv_dma_map_alloc(NULL, memory->bytes >> PAGE_SHIFT, &address, 0, &memory->memory);
    return status;
}

static void sysmemDestruct(struct rm_object *memory)
{
    nv_dma_unmap_alloc(NULL, memory->bytes >> PAGE_SHIFT, NULL, &memory->memory);
    nv_free_pages(&nv_gpu, memory->bytes >> PAGE_SHIFT, 0, 0, memory->memory);
}

/* Parameters: address, and the offset of the last byte. */
RM_FN(NV_STATUS, osdescConstruct_IMPL, "000806", struct rm_object *memory, void *call, RS_RES_ALLOC_PARAMS *params)
{
    u64 start, last;
    HERE;
    if (!params->pAllocParams)
        return NV_ERR_INVALID_ARGUMENT;
    start = get64(params->pAllocParams, 0);
    last = get64(params->pAllocParams, 8);
    if (start & ~PAGE_MASK || last >= SZ_256M)
        return NV_ERR_INVALID_ARGUMENT;
    memory->page_size = PAGE_SIZE;
    memory->bytes = PAGE_ALIGN(last + 1);
    return os_lock_user_pages((void *)start, memory->bytes >> PAGE_SHIFT, &memory->pages, 1);
}

RM_FN(NV_STATUS, virtmemConstruct_IMPL, "000807", struct rm_object *memory, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

/* --- contexts and channels --- */

RM_FN(NV_STATUS, rmclientConstruct_IMPL, "000808", struct rm_object *client, void *pool, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, deviceConstruct_IMPL, "000809", struct rm_object *device, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return params->pAllocParams && get32(params->pAllocParams, 0) ? NV_ERR_INVALID_DEVICE : NV_OK;
}

RM_FN(NV_STATUS, subdeviceConstruct_IMPL, "000810", struct rm_object *device, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, vaspaceapiConstruct_IMPL, "000811", struct rm_object *space, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return rpcRmApiAlloc_GSP(NULL, params->hClient, params->hParent, params->hResource, params->externalClassId,
                             params->pAllocParams, 56);
}

RM_FN(void, vaspaceapiDestruct_IMPL, "000812", struct rm_object *space)
{
    HERE;
}

RM_FN(NV_STATUS, kchangrpapiConstruct_IMPL, "000813", struct rm_object *group, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    if (!params->pAllocParams)
        return NV_ERR_INVALID_ARGUMENT;
    return kchangrpSetInterleaveLevel_IMPL(NULL, group, 1);
}

RM_FN(void, kchangrpapiDestruct_IMPL, "000814", struct rm_object *group)
{
    HERE;
}

RM_FN(NV_STATUS, kchannelConstruct_IMPL, "000815", struct rm_object *channel, void *call, RS_RES_ALLOC_PARAMS *params)
{
    NV_STATUS status;
    HERE;
    if (!params->pAllocParams || !get32(params->pAllocParams, 16))
        return NV_ERR_INVALID_ARGUMENT;
    status = rpcRmApiAlloc_GSP(NULL, params->hClient, params->hParent, params->hResource, params->externalClassId,
                               params->pAllocParams, 368);
    if (status == NV_OK)
        status = kchannelBindToRunlist_IMPL(channel, get32(params->pAllocParams, 128), 0);
    return status;
}

RM_FN(void, kchannelDestruct_IMPL, "000816", struct rm_object *channel)
{
    HERE;
    rpcRmApiFree_GSP(NULL, channel->client, channel->handle);
}

RM_FN(NV_STATUS, kctxshareapiConstruct_IMPL, "000817", struct rm_object *share, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, kgrobjConstruct_IMPL, "000818", struct rm_object *object, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, usrmodeConstruct_IMPL, "000819", struct rm_object *page, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, eventConstruct_IMPL, "000820", struct rm_object *event, void *call, RS_RES_ALLOC_PARAMS *params)
{
    HERE;
    return params->pAllocParams ? NV_OK : NV_ERR_INVALID_ARGUMENT;
}

static NV_STATUS construct(struct rm_object *object, RS_RES_ALLOC_PARAMS *params)
{
    switch (object->class) {
    case 0x0000: case 0x0001: case 0x0041: return rmclientConstruct_IMPL(object, NULL, params);
    case 0x0080: return deviceConstruct_IMPL(object, NULL, params);
    case 0x2080: return subdeviceConstruct_IMPL(object, NULL, params);
    case 0x90f1: return vaspaceapiConstruct_IMPL(object, NULL, params);
    case 0x0040: return vidmemConstruct_IMPL(object, NULL, params);
    case 0x003e: return sysmemConstruct_IMPL(object, NULL, params);
    case 0x50a0: return virtmemConstruct_IMPL(object, NULL, params);
    case 0x0071: return osdescConstruct_IMPL(object, NULL, params);
    case 0xa06c: return kchangrpapiConstruct_IMPL(object, NULL, params);
    case 0x9067: return kctxshareapiConstruct_IMPL(object, NULL, params);
    case 0x0005: case 0x0079: return eventConstruct_IMPL(object, NULL, params);
    case 0xc461: case 0xc561: case 0xc661: case 0xc761: return usrmodeConstruct_IMPL(object, NULL, params);
    case 0xc46f: case 0xc56f: case 0xc86f: case 0xc96f: return kchannelConstruct_IMPL(object, NULL, params);
    default: return kgrobjConstruct_IMPL(object, NULL, params);
    }
}

static void destruct(struct rm_object *object)
{
    if (object->copied)
        return;
    switch (object->class) {
    case 0x0040: if (object->bytes) vidmemDestruct_IMPL(object); break;
    case 0x003e: if (object->memory) sysmemDestruct(object); break;
    case 0x0071: if (object->pages) os_unlock_user_pages(object->bytes >> PAGE_SHIFT, object->pages, 1); break;
    case 0x90f1: vaspaceapiDestruct_IMPL(object); break;
    case 0xa06c: kchangrpapiDestruct_IMPL(object); break;
    case 0xc46f: case 0xc56f: case 0xc86f: case 0xc96f: kchannelDestruct_IMPL(object); break;
    }
}

static bool is_root(u32 class)
{
    return class == 0x0000 || class == 0x0001 || class == 0x0041;
}

/* Handle 0 lets the driver choose one. */
static NV_STATUS name_object(RS_RES_ALLOC_PARAMS *params)
{
    if (is_root(params->externalClassId)) {
        if (!params->hResource)
            params->hResource = next_client++;
        params->hClient = params->hParent = params->hResource;
    } else {
        if (!rm_find(params->hClient, params->hClient))
            return NV_ERR_INVALID_CLIENT;
        if (!rm_find(params->hClient, params->hParent))
            return NV_ERR_INVALID_OBJECT_PARENT;
        if (!params->hResource)
            params->hResource = next_object++;
    }
    return rm_find(params->hClient, params->hResource) ? NV_ERR_INSERT_DUPLICATE_NAME : NV_OK;
}

FN NV_STATUS serverAllocResource(void *server, RS_RES_ALLOC_PARAMS *params, nv_file_private_t *nvfp)
{
    struct rm_object *object;
    NV_STATUS status;
    HERE;
    status = name_object(params);
    if (status != NV_OK)
        return status;
    object = object_count < OBJECT_LIMIT ? kzalloc(sizeof(*object), GFP_KERNEL) : NULL;
    if (!object)
        return NV_ERR_NO_MEMORY;
    object->owner = nvfp;
    object->client = params->hClient;
    object->parent = params->hParent;
    object->handle = params->hResource;
    object->class = params->externalClassId;
    object->copied = params->copied;
    status = params->copied ? NV_OK : construct(object, params);
    if (status != NV_OK) {
        kfree(object);
        return status;
    }
    list_add(&object->objects, &objects);
    object_count++;
    return NV_OK;
}

/* Children first, and those made last before those made first. */
static void free_tree(struct rm_object *object)
{
    struct rm_object *child, *next;
    bool again = true;
    while (again) {
        again = false;
        list_for_each_entry_safe(child, next, &objects, objects)
            if (child != object && child->client == object->client && child->parent == object->handle) {
                free_tree(child); /* may free `next` too, so from the start */
                again = true;
                break;
            }
    }
    list_del(&object->objects);
    object_count--;
    destruct(object);
    kfree(object);
}

FN NV_STATUS serverFreeResourceTree(void *server, RS_RES_FREE_PARAMS *params)
{
    struct rm_object *object = rm_find(params->hClient, params->hResource);
    HERE;
    if (!object)
        return rm_find(params->hClient, params->hClient) ? NV_ERR_INVALID_OBJECT_HANDLE : NV_ERR_INVALID_CLIENT;
    free_tree(object);
    return NV_OK;
}

void rm_free_owned(nv_file_private_t *owner)
{
    struct rm_object *object;
again:
    list_for_each_entry(object, &objects, objects)
        if (object->owner == owner && is_root(object->class)) {
            RS_RES_FREE_PARAMS params = {object->client, object->handle};
            serverFreeResourceTree(NULL, &params);
            goto again;
        }
}

/* --- for nvidia-uvm.ko --- */

static NV_STATUS known(NvHandle client, NvHandle handle)
{
    bool found;
    mutex_lock(&rm_lock);
    found = rm_find(client, handle);
    mutex_unlock(&rm_lock);
    return found ? NV_OK : NV_ERR_INVALID_OBJECT_HANDLE;
}

FN NV_STATUS rm_gpu_ops_dup_address_space(nvidia_stack_t *sp, NvHandle client, NvHandle space)
{
    HERE;
    return known(client, space);
}

FN NV_STATUS rm_gpu_ops_dup_memory(nvidia_stack_t *sp, NvHandle client, NvHandle memory)
{
    HERE;
    return known(client, memory);
}

FN NV_STATUS rm_gpu_ops_retain_channel(nvidia_stack_t *sp, NvHandle client, NvHandle channel)
{
    HERE;
    return known(client, channel);
}

FN NV_STATUS rm_gpu_ops_pma_alloc_pages(nvidia_stack_t *sp, void *pma, u64 count, u64 size, void *options, u64 *pages)
{
    HERE;
    return pmaAllocatePages(pma, count, size, options, pages);
}

FN void rm_gpu_ops_pma_free_pages(nvidia_stack_t *sp, void *pma, u64 *pages, u64 count, u64 size, u32 flags)
{
    HERE;
    pmaFreePages(pma, pages, count, size, flags);
}
