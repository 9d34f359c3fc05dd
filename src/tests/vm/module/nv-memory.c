// SPDX-License-Identifier: GPL-2.0
/* Stands in for the kernel's side of memory: pages of the system for the GPU, pinned pages of programs, their mapping
 * for DMA (there is no device, so nothing is mapped). */
#include "standin.h"

#include <linux/slab.h>
#include <linux/vmalloc.h>

NV_STATUS FN os_alloc_mem(void **address, u64 size)
{
    HERE;
    *address = vzalloc(size);
    return *address ? NV_OK : NV_ERR_NO_MEMORY;
}

void FN os_free_mem(void *address)
{
    HERE;
    vfree(address);
}

static FN NV_STATUS nv_alloc_system_pages(nv_state_t *nv, void **memory, u64 bytes)
{
    HERE;
    return os_alloc_mem(memory, bytes);
}

NV_STATUS FN nv_alloc_pages(nv_state_t *nv, u32 page_count, u64 page_size, NvBool contiguous, u32 cache_type,
                            NvBool zeroed, NvBool unencrypted, s32 node_id, u64 *pte_array, void **priv_data)
{
    HERE;
    return nv_alloc_system_pages(nv, priv_data, page_count * page_size);
}

NV_STATUS FN nv_free_pages(nv_state_t *nv, u32 page_count, NvBool contiguous, u32 cache_type, void *priv_data)
{
    HERE;
    os_free_mem(priv_data);
    return NV_OK;
}

NV_STATUS FN os_lock_user_pages(void *address, u64 page_count, void **page_array, u32 flags)
{
    struct page **pages;
    int pinned;
    HERE;
    pages = vzalloc(page_count * sizeof(*pages));
    if (!pages)
        return NV_ERR_NO_MEMORY;
    pinned = pin_user_pages_fast((unsigned long)address, page_count, FOLL_WRITE | FOLL_LONGTERM, pages);
    if (pinned == page_count) {
        *page_array = pages;
        return NV_OK;
    }
    if (pinned > 0)
        unpin_user_pages(pages, pinned);
    vfree(pages);
    return NV_ERR_INVALID_ADDRESS;
}

NV_STATUS FN os_unlock_user_pages(u64 page_count, void *page_array, u32 flags)
{
    HERE;
    unpin_user_pages(page_array, page_count);
    vfree(page_array);
    return NV_OK;
}

NV_STATUS FN nv_dma_map_alloc(void *dma_dev, u64 page_count, u64 *va_array, NvBool contig, void **priv)
{
    HERE;
    return NV_OK;
}

NV_STATUS FN nv_dma_unmap_alloc(void *dma_dev, u64 page_count, u64 *va_array, void **priv)
{
    HERE;
    return NV_OK;
}
