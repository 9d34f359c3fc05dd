// SPDX-License-Identifier: GPL-2.0
/* Stands in for the RM core's side of an interrupt: all of them say that work is done, so who waits is woken. */
#include "rm.h"


static void post(nv_file_private_t *nvfp)
{
    nv_event_t event = {.nvfp = nvfp};
    nv_post_event(&event, 0xcaf00100u, 0, 0, 0, 0);
}

RM_FN(NV_STATUS, osNotifyEvent, "001001", void *gpu, void *notify, u32 method, u32 data, NV_STATUS status)
{
    HERE;
    nv_each_waiting(post);
    return NV_OK;
}

RM_FN(NV_STATUS, engineNonStallIntrNotify, "001002", void *gpu, u32 engine)
{
    HERE;
    return osNotifyEvent(gpu, NULL, 0, 0, NV_OK);
}

RM_FN(NV_STATUS, intrServiceNonStall_TU102, "001003", void *gpu, void *intr, void *engines, void *state)
{
    HERE;
    return engineNonStallIntrNotify(gpu, 1);
}

RM_FN(NV_STATUS, kgspService_TU102, "001004", void *gpu, void *gsp)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, intrServiceInterruptRecords_IMPL, "001005", void *gpu, void *intr, u16 engine, NvBool *serviced)
{
    HERE;
    *serviced = 1;
    return kgspService_TU102(gpu, NULL);
}

RM_FN(NV_STATUS, RmIsrBottomHalf, "001006", nv_state_t *nv)
{
    NvBool serviced;
    HERE;
    intrServiceInterruptRecords_IMPL(NULL, NULL, 15, &serviced);
    return intrServiceNonStall_TU102(NULL, NULL, NULL, NULL);
}

/* In the hard interrupt. */
FN NvBool rm_isr(nvidia_stack_t *sp, nv_state_t *nv, u32 *need_bottom_half)
{
    HERE;
    *need_bottom_half = 1;
    return 1;
}

FN void rm_isr_bh(nvidia_stack_t *sp, nv_state_t *nv)
{
    HERE;
    RmIsrBottomHalf(nv);
}
