/* SPDX-License-Identifier: GPL-2.0 */
/* Inside the stand-in for nvidia-uvm.ko. */
#ifndef UVM_H
#define UVM_H

#include "standin.h"

#include <linux/xarray.h>

typedef struct uvm_va_space {
    bool initialized;
    struct mutex lock;
    struct xarray pages; /* managed memory, by page number */
    struct address_space *mapping;
    u64 taken;           /* 2 MiB chunks of video memory */
} uvm_va_space_t;

int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma);
NV_STATUS uvm_migrate(uvm_va_space_t *space, struct mm_struct *mm, u64 base, u64 length, u32 dest_id, int dest_nid,
                      u32 flags, void *first, void *out_tracker, void *gpus);
void uvm_push_end(void *push);
void uvm_va_space_destroy(uvm_va_space_t *space);
void uvm_gpu_fault(void);
NV_STATUS uvm_isr_top_half_entry(const void *uuid);

#endif
