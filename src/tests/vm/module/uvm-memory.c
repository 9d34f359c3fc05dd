// SPDX-License-Identifier: GPL-2.0
/* Stands in for managed memory: pages come by faults of the CPU, and go away from it by migration; faults of the GPU
 * come by the test's order. The bytes stay where they are. */
#include "uvm.h"

#include <linux/module.h>
#include <linux/slab.h>

/* As in the real module, another function of this name is in another file. */
static FN void uvm_page_mask_set(unsigned long *mask, unsigned int bit)
{
    HERE;
    __set_bit(bit, mask);
}

FN void uvm_push_end(void *push)
{
    HERE;
}

/* In the hard interrupt. */
FN NV_STATUS uvm_isr_top_half_entry(const void *uuid)
{
    HERE;
    return NV_ERR_NOT_SUPPORTED;
}

static FN NV_STATUS uvm_pmm_gpu_alloc_user(void *pmm, size_t num_chunks, u64 chunk_size, u32 flags, void **chunks,
                                           void *tracker)
{
    HERE;
    return nvUvmInterfacePmaAllocPages(pmm, num_chunks, chunk_size, NULL, NULL);
}

static FN NV_STATUS block_copy_resident_pages(void *block, void *context, u32 destination, u64 region,
                                              const void *pages, const void *prefetch, u32 mode)
{
    HERE;
    uvm_push_end(block);
    return NV_OK;
}

static FN NV_STATUS uvm_va_block_make_resident(void *block, void *retry, void *context, u32 destination, u64 region,
                                               const void *pages, const void *prefetch, u32 cause)
{
    HERE;
    return block_copy_resident_pages(block, context, destination, region, pages, prefetch, 0);
}

static FN NV_STATUS uvm_va_block_service_locked(u32 processor, void *block, void *retry, void *context)
{
    unsigned long mask = 0;
    HERE;
    uvm_page_mask_set(&mask, 1);
    return uvm_va_block_make_resident(block, retry, context, processor, 0, &mask, NULL, 0);
}

static FN NV_STATUS uvm_va_block_cpu_fault(uvm_va_space_t *block, u64 address, bool is_write, void *context)
{
    HERE;
    return uvm_va_block_service_locked(0, block, NULL, context);
}

static FN NV_STATUS uvm_va_space_cpu_fault(uvm_va_space_t *space, struct vm_fault *vmf, bool is_hmm)
{
    HERE;
    return uvm_va_block_cpu_fault(space, vmf->address, vmf->flags & FAULT_FLAG_WRITE, NULL);
}

FN vm_fault_t uvm_vm_fault_entry(struct vm_fault *vmf);
FN vm_fault_t uvm_vm_fault_entry(struct vm_fault *vmf)
{
    uvm_va_space_t *space = vmf->vma->vm_file->private_data;
    unsigned long number = vmf->address >> PAGE_SHIFT;
    struct page *page;
    HERE;
    standin_count_event(STANDIN_CPU_FAULTS);
    uvm_va_space_cpu_fault(space, vmf, false);
    mutex_lock(&space->lock);
    page = xa_load(&space->pages, number);
    if (!page) {
        page = alloc_page(GFP_HIGHUSER | __GFP_ZERO);
        if (page && xa_is_err(xa_store(&space->pages, number, page, GFP_KERNEL))) {
            put_page(page);
            page = NULL;
        }
    }
    if (page)
        get_page(page);
    mutex_unlock(&space->lock);
    vmf->page = page;
    return page ? 0 : VM_FAULT_OOM;
}

static const struct vm_operations_struct managed = {.fault = uvm_vm_fault_entry};

static FN int uvm_mmap(struct file *file, struct vm_area_struct *vma) asm("uvm_mmap.part.0");
static FN int uvm_mmap(struct file *file, struct vm_area_struct *vma)
{
    uvm_va_space_t *space = file->private_data;
    u64 chunks = DIV_ROUND_UP(vma->vm_end - vma->vm_start, SZ_2M);
    HERE_AS("uvm_mmap.part.0");
    if (!space->initialized)
        return -EBADFD;
    /* The offset says the address again. */
    if (vma->vm_start != vma->vm_pgoff << PAGE_SHIFT)
        return -EINVAL;
    if (uvm_pmm_gpu_alloc_user(NULL, chunks, SZ_2M, 0, NULL, NULL) != NV_OK)
        return -ENOMEM;
    space->taken += chunks;
    vma->vm_ops = &managed;
    return 0;
}

FN int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma)
{
    HERE;
    standin_count_file("nvidia-uvm", NO_NUMBER, "mmap");
    return uvm_mmap(file, vma);
}

/* Away from the CPU: its next access faults again. */
FN NV_STATUS uvm_migrate(uvm_va_space_t *space, struct mm_struct *mm, u64 base, u64 length, u32 dest_id, int dest_nid,
                         u32 flags, void *first, void *out_tracker, void *gpus)
{
    HERE;
    if (!length || (base | length) & ~PAGE_MASK)
        return NV_ERR_INVALID_ADDRESS;
    uvm_va_block_make_resident(space, NULL, NULL, dest_id, 0, NULL, NULL, 3);
    unmap_mapping_range(space->mapping, base, length, 1);
    return NV_OK;
}

FN void uvm_va_space_destroy(uvm_va_space_t *space)
{
    unsigned long number;
    struct page *page;
    HERE;
    xa_for_each(&space->pages, number, page)
        put_page(page);
    xa_destroy(&space->pages);
    if (space->taken)
        nvUvmInterfacePmaFreePages(NULL, NULL, space->taken, SZ_2M, 0);
    kfree(space);
}

/* --- faults of the GPU --- */

static FN NV_STATUS service_fault_batch(void *gpu, u32 mode, void *batch)
{
    HERE;
    return uvm_va_block_service_locked(1, NULL, NULL, NULL);
}

static FN void replayable_faults_isr_bottom_half(void *args)
{
    HERE;
    service_fault_batch(args, 0, NULL);
}

void uvm_gpu_fault(void)
{
    standin_count_event(STANDIN_GPU_FAULTS);
    replayable_faults_isr_bottom_half(NULL);
}
