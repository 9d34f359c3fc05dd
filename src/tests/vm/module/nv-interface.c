// SPDX-License-Identifier: GPL-2.0
/* Stands in for what nvidia.ko exports to nvidia-uvm.ko. */
#include "standin.h"

#include <linux/module.h>
#include <linux/rcupdate.h>

static struct standin_uvm_ops __rcu *uvm_ops;

NV_STATUS FN nvUvmInterfaceRegisterUvmOps(struct standin_uvm_ops *ops)
{
    HERE;
    rcu_assign_pointer(uvm_ops, ops);
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmOps);

void FN nvUvmInterfaceDeRegisterUvmOps(void)
{
    HERE;
    RCU_INIT_POINTER(uvm_ops, NULL);
    synchronize_rcu();
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmOps);

NV_STATUS FN nvUvmInterfaceDupAddressSpace(void *device, NvHandle client, NvHandle space, void **dup, void *info)
{
    HERE;
    return rm_gpu_ops_dup_address_space(NULL, client, space);
}
EXPORT_SYMBOL(nvUvmInterfaceDupAddressSpace);

NV_STATUS FN nvUvmInterfaceDupMemory(void *device, NvHandle client, NvHandle memory, NvHandle *dup, void *info)
{
    HERE;
    return rm_gpu_ops_dup_memory(NULL, client, memory);
}
EXPORT_SYMBOL(nvUvmInterfaceDupMemory);

NV_STATUS FN nvUvmInterfaceRetainChannel(void *space, NvHandle client, NvHandle channel, void **retained, void *info)
{
    HERE;
    return rm_gpu_ops_retain_channel(NULL, client, channel);
}
EXPORT_SYMBOL(nvUvmInterfaceRetainChannel);

void FN nvUvmInterfaceReleaseChannel(void *retained)
{
    HERE;
}
EXPORT_SYMBOL(nvUvmInterfaceReleaseChannel);

NV_STATUS FN nvUvmInterfaceStopChannel(void *retained, NvBool immediate)
{
    HERE;
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceStopChannel);

NV_STATUS FN nvUvmInterfacePmaAllocPages(void *pma, u64 page_count, u64 page_size, void *options, u64 *pages)
{
    HERE;
    return rm_gpu_ops_pma_alloc_pages(NULL, pma, page_count, page_size, options, pages);
}
EXPORT_SYMBOL(nvUvmInterfacePmaAllocPages);

void FN nvUvmInterfacePmaFreePages(void *pma, u64 *pages, u64 page_count, u64 page_size, u32 flags)
{
    HERE;
    rm_gpu_ops_pma_free_pages(NULL, pma, pages, page_count, page_size, flags);
}
EXPORT_SYMBOL(nvUvmInterfacePmaFreePages);

/* In the hard interrupt: UVM is asked first. */
NV_STATUS FN nv_uvm_event_interrupt(const u8 *uuid)
{
    struct standin_uvm_ops *ops;
    NV_STATUS status = NV_ERR_NOT_SUPPORTED;
    HERE;
    rcu_read_lock();
    ops = rcu_dereference(uvm_ops);
    if (ops)
        status = ops->isr_top_half(uuid);
    rcu_read_unlock();
    return status;
}

/* By the test's order. Under uvm's own rules this may sleep, so not under RCU: uvm is not unloaded meanwhile, since
 * only a test does either. */
void nv_uvm_gpu_fault(void)
{
    struct standin_uvm_ops *ops = rcu_access_pointer(uvm_ops);
    if (ops)
        ops->gpu_fault();
}
