#!/usr/bin/env python3
"""Makes hooks.txt: the driver functions that gpurec knows by name.

usage: generate_hooks.py kernel_hooks.csv

Run it by hand when the facts change; the build never runs it. The CSV contains
name, group, default, module, layer, and the purpose of a function. The tables
below add what the CSV has in prose or not at all: what to capture, the return
type, where a function runs, which drivers have it. The script writes into its
own folder:

  NAME GROUP on|off MODULE[,MODULE] kbuild|core RETURNS [FLAG...]
    args SINCE [NAME=PLACE:KIND...]
    out SINCE [NAME=PLACE:KIND...]
    means TEXT
  folklore NAME TEXT

kbuild: compiled with Linux's own rules, so it has an ftrace entry. core: part
of nv-kernel.o, which has none. RETURNS: status (NV_STATUS), errno (negative
int), bool, pointer, void, number.

FLAG: open (not in the proprietary driver), irq (may run in an interrupt, in an
arbitrary thread), scheduler (the type of its lines), from=TAG and before=TAG
(drivers that have it), role=ioctl|file|xid, cmd=N user=N file=N inode=N
(registers), line=NAME (its name in the trace), at=CATEGORY:EVENT (the
tracepoint that can replace it).

args and out apply from driver SINCE on, until the next SINCE; 0 means every
driver. PLACE: N is a register; N@A is the memory that register N points to, at
offset A; N@A@B is the memory that the pointer there points to, at offset B.
N|M: register M on AArch64.
KIND: u8 u16 u32 u64 i32 bool, h32 h64 (shown in hex), uuid, text, status,
command (an RM control), class (an RM class), engine. Everything under out is read
when the function returns, through the registers saved at its entry.
"""

import csv
import os
import sys

GROUPS = {"gsp-rpc": "gsp"}

# Functions that return something other than an NV_STATUS.
RETURNS = {
    "errno": """nvidia_unlocked_ioctl nvidia_frontend_unlocked_ioctl nvidia_ioctl uvm_unlocked_ioctl_entry
        uvm_ioctl uvm_tools_unlocked_ioctl_entry nvkms_unlocked_ioctl nvidia_open nvidia_close uvm_open_entry
        nvidia_mmap uvm_mmap_entry nvidia_p2p_get_pages nv_open_device""",
    "bool": "rm_isr rm_init_adapter nv_kthread_q_schedule_q_item",
    "void": """Nv04ControlWithSecInfo Nv04AllocWithAccessSecInfo Nv04AllocWithSecInfo Nv01FreeWithSecInfo
        Nv04DupObjectWithSecInfo Nv04MapMemoryWithSecInfo Nv04UnmapMemoryWithSecInfo
        Nv04MapMemoryDmaWithSecInfo Nv04VidHeapControlWithSecInfo kgspRpcRecvEvents_IMPL os_free_mem
        vidmemDestruct_IMPL pmaFreePages gvaspaceInvalidateTlb_IMPL nvUvmInterfacePmaFreePages
        nvUvmInterfaceMemoryFree rmclientDestruct_IMPL vaspaceapiDestruct_IMPL kchangrpapiDestruct_IMPL
        kchannelDestruct_IMPL nvUvmInterfaceReleaseChannel nvUvmInterfaceStopChannel uvm_push_end
        uvm_channel_end_push nvidia_isr_bh_unlocked rm_isr_bh rm_isr_bh_unlocked RmIsrBottomHalf
        intrServiceStall_IMPL nv_post_event os_execute_work_item nvidia_rc_timer_callback nv_report_error
        replayable_faults_isr_bottom_half non_replayable_faults_isr_bottom_half
        access_counters_isr_bottom_half uvm_parent_gpu_service_replayable_faults
        uvm_gpu_service_replayable_faults uvm_pmm_gpu_free uvm_perf_event_notify uvm_tools_record_migration
        uvm_va_space_destroy""",
    # irqreturn_t, vm_fault_t, a poll mask, a count, or a structure.
    "number": """nvidia_poll nvidia_isr nvidia_isr_msix nvidia_isr_kthread_bh nvidia_isr_msix_kthread_bh
        intrServiceInterruptRecords_IMPL kgspService_TU102 kgmmuServiceInterrupt_IMPL
        uvm_channel_update_progress uvm_vm_fault_entry uvm_va_space_cpu_fault uvm_perf_thrashing_get_hint""",
}

# Functions that the top half may call, so they may run in an arbitrary thread.
IRQ = """nvidia_isr nvidia_isr_msix rm_isr rm_gpu_handle_mmu_faults nv_uvm_event_interrupt
    uvm_isr_top_half_entry intrServiceNonStall_TU102 engineNonStallIntrNotify engineNonStallIntrNotifyEvent
    nv_post_event osNotifyEvent nv_kthread_q_schedule_q_item nvidia_rc_timer_callback""".split()

# Interrupt handlers of the uvm group; the scheduler and interrupt groups are added below.
SCHEDULER = """uvm_isr_top_half_entry replayable_faults_isr_bottom_half non_replayable_faults_isr_bottom_half
    access_counters_isr_bottom_half""".split()

IOCTL = "role=ioctl file=0 cmd=1 user=2 at=syscalls:ioctl"
FLAGS = {
    "nvidia_unlocked_ioctl": f"from=545.23.06 {IOCTL} line=nvidia_ioctl",
    "nvidia_frontend_unlocked_ioctl": f"before=545.0 {IOCTL} line=nvidia_ioctl",
    "nvidia_ioctl": "role=ioctl file=1 cmd=2 user=3 line=nvidia_ioctl",
    "uvm_unlocked_ioctl_entry": f"{IOCTL} line=nvidia_uvm_ioctl",
    "uvm_tools_unlocked_ioctl_entry": f"{IOCTL} line=nvidia_uvm_ioctl",
    "nvkms_unlocked_ioctl": f"from=550.40.07 {IOCTL} line=nvidia_modeset_ioctl",
    "nvidia_open": "role=file inode=0 at=syscalls:openat",
    "nvidia_close": "role=file inode=0 at=syscalls:close",
    "uvm_open_entry": "role=file inode=0 at=syscalls:openat line=nvidia_open",
    "nvidia_mmap": "role=file file=0 at=syscalls:mmap",
    "uvm_mmap_entry": "role=file file=0 at=syscalls:mmap line=nvidia_mmap",
    "nvidia_poll": "role=file file=0 at=syscalls:poll",
    "nvidia_isr": "at=irq:irq_handler_entry",
    "nv_report_error": "role=xid at=nvidia:nvidia_dev_xid",
    "ceutilsMemcopy_IMPL": "from=535.43.02",
    "ceutilsMemset_IMPL": "from=535.43.02",
    "eventConstruct_IMPL": "before=595.0",
    "kfifoGenerateWorkSubmitToken_IMPL": "from=565.57.01",
    "kfifoRingChannelDoorBell_GH100": "from=575.51.02",
    "nvUvmInterfaceTsgAllocate": "from=535.43.02",
    "rm_gpu_handle_mmu_faults": "from=525.47.04",
    "service_fault_batch_block_locked": "from=530.30.02",
    "uvm_api_discard": "from=580.65.06",
    "uvm_gpu_service_replayable_faults": "before=560.0",
    "uvm_parent_gpu_service_replayable_faults": "from=560.28.03",
    "uvm_va_space_cpu_fault": "from=525.47.04",
}

# RS_RES_ALLOC_PARAMS_INTERNAL, the target of the third argument of every Construct.
CONSTRUCT = "client=2@0:h32 parent=2@4:h32 object=2@8:h32 class=2@12:class"
OLD = "515.43.04"  # the oldest driver whose layouts were analysed

# Register numbers, offsets, and the drivers in which they changed. A string means args since OLD.
CAPTURE = {
    "nvidia_unlocked_ioctl": ["args 0 cmd=1:h32 user=2:h64"],
    "nvidia_frontend_unlocked_ioctl": ["args 0 cmd=1:h32 user=2:h64"],
    "nvidia_ioctl": ["args 0 cmd=2:h32 user=3:h64"],
    "uvm_unlocked_ioctl_entry": ["args 0 cmd=1:h32 user=2:h64"],
    "uvm_ioctl": ["args 0 cmd=1:h32 user=2:h64"],
    "uvm_tools_unlocked_ioctl_entry": ["args 0 cmd=1:h32 user=2:h64"],
    "nvkms_unlocked_ioctl": ["args 0 cmd=1:h32 user=2:h64"],
    "nvidia_mmap": ["args 0 start=1@0:h64 end=1@8:h64"],
    "uvm_mmap_entry": ["args 0 start=1@0:h64 end=1@8:h64"],
    "rm_ioctl": "request=3:u32 data=4:h64 size=5:u32",
    "RmIoctl": "request=2:u32 data=3:h64 size=4:u32",
    "Nv04ControlWithSecInfo": [
        f"args {OLD} client=0@0:h32 object=0@4:h32 command=0@8:command flags=0@12:h32 params_size=0@24:u32",
        f"out {OLD} status=0@28:status",
    ],
    "_rmapiRmControl": "client=0:h32 object=1:h32 command=2:command params_size=4:u32 flags=5:h32",
    "serverControl": "client=1@0:h32 object=1@4:h32 command=1@8:command flags=1@12:h32 params_size=1@24:u32",
    "Nv04AllocWithAccessSecInfo": [
        f"args {OLD} client=0@0:h32 parent=0@4:h32 object=0@8:h32 class=0@12:class",
        f"out {OLD} object=0@8:h32 status=0@32:status",
        "out 525.47.04 object=0@8:h32 status=0@36:status",
        "out 535.43.02 object=0@8:h32 status=0@40:status",
    ],
    "Nv04AllocWithSecInfo": [
        f"args {OLD} client=0@0:h32 parent=0@4:h32 object=0@8:h32 class=0@12:class",
        f"out {OLD} object=0@8:h32 status=0@24:status",
        "out 535.43.02 object=0@8:h32 status=0@28:status",
    ],
    "serverAllocResource": [
        f"args {OLD} client=1@0:h32 parent=1@4:h32 object=1@8:h32 class=1@12:class",
        f"out {OLD} object=1@8:h32",
    ],
    "Nv01FreeWithSecInfo": [
        f"args {OLD} client=0@0:h32 parent=0@4:h32 object=0@8:h32",
        f"out {OLD} status=0@12:status",
    ],
    "serverFreeResourceTree": "client=1@0:h32 object=1@4:h32",
    "Nv04DupObjectWithSecInfo": [
        f"args {OLD} client=0@0:h32 parent=0@4:h32 object=0@8:h32 src_client=0@12:h32 src_object=0@16:h32",
        f"out {OLD} object=0@8:h32 status=0@24:status",
    ],
    "Nv04MapMemoryWithSecInfo": [
        f"args {OLD} client=0@0:h32 device=0@4:h32 memory=0@8:h32 offset=0@16:h64 length=0@24:u64",
        f"out {OLD} address=0@32:h64 status=0@40:status",
    ],
    "Nv04UnmapMemoryWithSecInfo": [
        f"args {OLD} client=0@0:h32 device=0@4:h32 memory=0@8:h32 address=0@16:h64",
        f"out {OLD} status=0@24:status",
    ],
    "Nv04MapMemoryDmaWithSecInfo": [
        f"args {OLD} client=0@0:h32 device=0@4:h32 dma=0@8:h32 memory=0@12:h32 offset=0@16:h64 length=0@24:u64",
        f"out {OLD} dma_offset=0@40:h64 status=0@48:status",
        "out 580.65.06 dma_offset=0@48:h64 status=0@56:status",
    ],
    "Nv04VidHeapControlWithSecInfo": [
        f"args {OLD} client=0@0:h32 parent=0@4:h32 function=0@8:u32",
        f"out {OLD} status=0@20:status",
    ],
    "rpcRmApiControl_GSP": "client=1:h32 object=2:h32 command=3:command params_size=5:u32",
    "rpcRmApiAlloc_GSP": "client=1:h32 parent=2:h32 object=3:h32 class=4:class",
    "rpcRmApiFree_GSP": "client=1:h32 object=2:h32",
    "_kgspRpcRecvPoll": [
        f"args {OLD} function=2:u32",
        "args 570.190 function=2:u32 sequence=3:u32",
        "args 575.51.02 function=2:u32",
        "args 580.82.07 function=2:u32 sequence=3:u32",
    ],
    "nv_alloc_pages": [
        f"args {OLD} page_count=1:u32 contiguous=2:bool cache_type=3:u32",
        "args 545.23.06 page_count=1:u32 page_size=2:u64 contiguous=3:bool cache_type=4:u32",
    ],
    "nv_free_pages": "page_count=1:u32 contiguous=2:bool",
    "nv_alloc_system_pages": "at=1:h64",
    "nv_alloc_contig_pages": "at=1:h64",
    "os_alloc_mem": "size=1:u64",
    "os_free_mem": "address=0:h64",
    "os_lock_user_pages": "address=0:h64 page_count=1:u64 flags=3:h32",
    "os_unlock_user_pages": "page_count=0:u64",
    "nv_register_user_pages": "page_count=1:u64",
    "nv_dma_map_alloc": "page_count=1:u64 contiguous=3:bool",
    "nv_dma_unmap_alloc": "page_count=1:u64",
    "nv_dma_map_peer": "bar=2:u8 page_count=3:u64",
    "nv_add_mapping_context_to_file": "prot=2:h32 page_index=4:u64 fd=5:u32",
    "vidmemConstruct_IMPL": f"{CONSTRUCT} size=2@64@64:u64",
    "sysmemConstruct_IMPL": f"{CONSTRUCT} size=2@64@64:u64",
    "virtmemConstruct_IMPL": f"{CONSTRUCT} size=2@64@64:u64",
    "osdescConstruct_IMPL": CONSTRUCT,
    "vidmemAllocResources": "request=2:h64",
    "memmgrAllocResources_IMPL": "request=2:h64",
    "pmaAllocatePages": [
        f"args {OLD} count=1:u64 page_size=2:u32",
        "args 535.43.02 count=1:u64 page_size=2:u64",
    ],
    "pmaFreePages": "page_count=2:u64 size=3:u64",
    "memdescAlloc": "memory=0:h64",
    "dmaAllocMapping_GM107": [f"out {OLD} address=4@0:h64"],
    "gvaspaceAlloc_IMPL": "size=1:u64 align=2:u64",
    "gvaspaceMap_IMPL": "start=2:h64 end=3:h64",
    "nvUvmInterfacePmaAllocPages": [
        f"args {OLD} page_count=1:u64 page_size=2:u32",
        "args 535.43.02 page_count=1:u64 page_size=2:u64",
    ],
    "nvUvmInterfacePmaFreePages": [
        f"args {OLD} page_count=2:u64 page_size=3:u32",
        "args 535.43.02 page_count=2:u64 page_size=3:u64",
    ],
    "nvUvmInterfaceMemoryAllocFB": [f"args {OLD} length=1:u64", f"out {OLD} address=2@0:h64"],
    "nvUvmInterfaceMemoryAllocSys": [f"args {OLD} length=1:u64", f"out {OLD} address=2@0:h64"],
    "nvUvmInterfaceMemoryFree": "address=1:h64",
    "nvUvmInterfaceDupMemory": [
        f"args {OLD} client=1:h32 memory=2:h32",
        f"out {OLD} object=3@0:h32",
    ],
    "nvidia_p2p_get_pages": "address=2:h64 length=3:u64",
    "nv_dma_buf_export": "objects=1@8:u32 size=1@24:u64",
    "deviceConstruct_IMPL": CONSTRUCT,
    "subdeviceConstruct_IMPL": CONSTRUCT,
    "vaspaceapiConstruct_IMPL": CONSTRUCT,
    "kchangrpapiConstruct_IMPL": CONSTRUCT,
    "kchannelConstruct_IMPL": f"{CONSTRUCT} entries=2@64@16:u32",
    "kctxshareapiConstruct_IMPL": CONSTRUCT,
    "kgrobjConstruct_IMPL": CONSTRUCT,
    "kgrctxConstruct_IMPL": CONSTRUCT,
    "usrmodeConstruct_IMPL": CONSTRUCT,
    "eventConstruct_IMPL": CONSTRUCT,
    "nvUvmInterfaceRetainChannel": "client=1:h32 channel=2:h32",
    "nvUvmInterfaceReleaseChannel": "retained=0:h64",
    "nvUvmInterfaceDupAddressSpace": "client=1:h32 va_space=2:h32",
    "nvUvmInterfaceSetPageDirectory": "address=1:h64 entries=2:u32",
    "nvUvmInterfaceStopChannel": "retained=0:h64 immediate=1:bool",
    "kchangrpapiCtrlCmdGpFifoSchedule_IMPL": "enable=1@0:bool",
    "kchannelCtrlCmdGpFifoSchedule_IMPL": "enable=1@0:bool",
    "kchannelBindToRunlist_IMPL": "engine=1:u32",
    "kchannelCtrlCmdBind_IMPL": "engine=1@0:engine",
    "kchangrpapiCtrlCmdBind_IMPL": "engine=1@0:engine",
    "kfifoRunlistSetId_GM107": "runlist=3:u32",
    "kchangrpapiCtrlCmdSetTimeslice_IMPL": "timeslice_us=1@0:u64",
    "kfifoChannelGroupSetTimeslice_IMPL": "timeslice_us=3:u64",
    "kchangrpSetInterleaveLevel_IMPL": "level=2:u32",
    "kchannelCtrlCmdGpfifoGetWorkSubmitToken_IMPL": [f"out {OLD} token=1@0:h32"],
    "kfifoGenerateWorkSubmitToken_IMPL": ["out 565.57.01 token=3@0:h32"],
    "subdeviceCtrlCmdFifoDisableChannels_IMPL": "disable=1@0:bool channels=1@4:u32",
    "RmIdleChannels": "client=0:h32 device=1:h32 channel=2:h32 channels=3:u32",
    "kfifoUpdateUsermodeDoorbell_TU102": [
        f"args {OLD} token=2:h32 runlist=3:u32",
        "args 575.51.02 token=2:h32",
    ],
    "kfifoUpdateUsermodeDoorbell_GA100": [
        f"args {OLD} token=2:h32 runlist=3:u32",
        "args 575.51.02 token=2:h32",
    ],
    "uvm_push_end": "push=0:h64",
    "uvm_channel_end_push": "push=0:h64",
    "uvm_channel_update_progress": "channel=0:h64",
    "nvidia_isr": ["args 0 irq=0:i32"],
    "nvidia_isr_msix": ["args 0 irq=0:i32"],
    "nvidia_isr_kthread_bh": ["args 0 irq=0:i32"],
    "nvidia_isr_msix_kthread_bh": ["args 0 irq=0:i32"],
    "rm_isr": [f"out {OLD} need_bottom_half=2@0:u32"],
    "rm_gpu_handle_mmu_faults": ["out 525.47.04 faults=2@0:u32"],
    "intrServiceInterruptRecords_IMPL": "engine=2:u16",
    "engineNonStallIntrNotify": "engine=1:u32",
    "engineNonStallIntrNotifyEvent": "engine=1:u32 event=2:h32",
    "nv_post_event": "handle=1:h32 index=2:u32 info32=3:h32",
    "nv_uvm_event_interrupt": "gpu=0@0:uuid",
    "nv_report_error": "xid=1:u32 format=2@0:text",
    "krcErrorSetNotifier_IMPL": "exception=3:u32",
    "uvm_isr_top_half_entry": "gpu=0@0:uuid",
    "uvm_parent_gpu_service_replayable_faults": ["args 560.28.03 parent_gpu=0:h64"],
    "uvm_gpu_service_replayable_faults": "gpu=0:h64",
    "service_fault_batch": [
        f"args {OLD} gpu=0:h64 mode=1:u32",
        "args 560.28.03 parent_gpu=0:h64 mode=1:u32",
    ],
    "service_fault_batch_block_locked": ["args 530.30.02 va_block=1:h64 first_fault=4:u32"],
    "push_replay_on_gpu": "type=1:u32",
    "uvm_va_block_service_locked": "processor=0:u32 va_block=1:h64",
    "uvm_va_block_make_resident": "va_block=0:h64 dest=3:u32",
    "block_copy_resident_pages": "va_block=0:h64 dest=2:u32",
    "uvm_va_block_migrate_locked": "va_block=0:h64 dest=4:u32",
    "uvm_migrate": "base=2:h64 length=3:u64 dest=4:u32",
    "uvm_api_migrate": "base=0@0:h64 length=0@8:u64 destination=0@16:uuid",
    "uvm_api_create_external_range": "base=0@0:h64 length=0@8:u64",
    "uvm_api_map_external_allocation": "base=0@0:h64 length=0@8:u64 offset=0@16:h64",
    "uvm_api_unmap_external": "base=0@0:h64 length=0@8:u64 gpu=0@16:uuid",
    "uvm_api_free": [f"args {OLD} base=0@0:h64 length=0@8:u64", "args 590.44.01 base=0@0:h64"],
    "uvm_api_register_gpu_va_space": "gpu=0@0:uuid client=0@20:h32 va_space=0@24:h32",
    "uvm_api_register_channel": "gpu=0@0:uuid client=0@20:h32 channel=0@24:h32 base=0@32:h64 length=0@40:u64",
    "uvm_api_unregister_channel": [
        f"args {OLD} gpu=0@0:uuid client=0@16:h32 channel=0@20:h32",
        "args 590.44.01 client=0@0:h32 channel=0@4:h32",
    ],
    "uvm_api_register_gpu": "gpu=0@0:uuid",
    "uvm_api_set_preferred_location": "base=0@0:h64 length=0@8:u64 location=0@16:uuid",
    "uvm_api_discard": ["args 580.65.06 base=0@0:h64 length=0@8:u64 flags=0@16:h64"],
    "uvm_vm_fault_entry": [f"args {OLD} vma=0:h64 vmf=1:h64", "args 580.65.06 vmf=0:h64"],
    "uvm_va_block_cpu_fault": "va_block=0:h64 address=1:h64 is_write=2:bool",
    "uvm_va_space_cpu_fault": [
        "args 525.47.04 vmf=2:h64 is_hmm=3:bool",
        "args 580.65.06 vmf=1:h64 is_hmm=2:bool",
    ],
    "uvm_va_block_evict_chunks": "va_block=0:h64",
    "uvm_pmm_gpu_alloc_user": "num_chunks=1:u64 chunk_size=2:u32",
    "uvm_pmm_gpu_alloc_kernel": "num_chunks=1:u64 chunk_size=2:u32",
    "uvm_pmm_gpu_free": "chunk=1:h64",
    "uvm_pmm_gpu_pma_evict_pages": [
        f"args {OLD} page_size=1:u32 pages=3:u32",
        "args 555.42.02 page_size=1:u64 pages=3:u32",
    ],
    # Returns a structure in memory: on x86-64 its address is an additional first argument.
    "uvm_perf_thrashing_get_hint": [
        f"args {OLD} va_block=1|0:h64 address=2|1:h64",
        "args 550.40.53 va_block=1|0:h64 address=3|2:h64",
    ],
    "uvm_perf_event_notify": "event=1:u32",
    "uvm_tools_record_migration": [
        f"args {OLD} event=0:u32 event_data=1:h64",
        "args 580.65.06 event=1:u32 event_data=2:h64",
    ],
    "uvm_va_space_create": [f"args {OLD}", "args 530.30.02 flags=2:h64"],
}

# Purposes that the CSV lacks, or that only the whole row of the CSV explains.
MEANS = {
    "os_free_mem": "free of the RM's own host memory",
    "os_unlock_user_pages": "unpin of user pages",
    "nv_register_user_pages": "pinned user pages made known to the RM",
    "nv_free_pages": "free of system memory",
    "nv_dma_unmap_alloc": "DMA unmapping of system pages",
    "nv_alloc_system_pages": "system memory that need not be contiguous",
    "nv_alloc_contig_pages": "contiguous system memory",
    "vidmemDestruct_IMPL": "free of GPU memory",
    "vidmemAllocResources": "the resources behind a GPU memory object",
    "memmgrAllocResources_IMPL": "the resources behind a memory object",
    "pmaFreePages": "physical GPU memory pages given back",
    "memdescAlloc": "memory behind a memory descriptor",
    "gvaspaceMap_IMPL": "GPU page tables written for a range",
    "nvUvmInterfacePmaFreePages": "UVM gives GPU memory pages back",
    "nvUvmInterfacePmaAllocPages": "UVM takes GPU memory pages (managed memory)",
    "nvUvmInterfaceMemoryAllocFB": "GPU memory for UVM itself",
    "nvUvmInterfaceMemoryAllocSys": "system memory for UVM itself",
    "nvUvmInterfaceMemoryFree": "its free",
    "rmclientDestruct_IMPL": "an RM client goes, with all its objects",
    "vaspaceapiDestruct_IMPL": "an address space goes",
    "kchangrpapiDestruct_IMPL": "a channel group goes",
    "kchannelDestruct_IMPL": "a channel goes",
    "nvUvmInterfaceReleaseChannel": "UVM releases a channel",
    "nvUvmInterfaceSetPageDirectory": "UVM gives the GPU its page directory",
    "nvUvmInterfaceStopChannel": "UVM stops a channel",
    "nvUvmInterfaceRetainChannel": "UVM takes hold of a channel (UVM_REGISTER_CHANNEL); shows channel creation without kprobes",
    "nvUvmInterfaceDupAddressSpace": "UVM takes hold of an address space (UVM_REGISTER_GPU_VASPACE); shows context creation without kprobes",
    "vaspaceapiConstruct_IMPL": "FERMI_VASPACE_A: a GPU address space, the core of a CUDA context",
    "kchangrpapiConstruct_IMPL": "KEPLER_CHANNEL_GROUP_A: a channel group, which is scheduled as one (TSG)",
    "kchannelCtrlCmdBind_IMPL": "channel bound to an engine",
    "kchangrpapiCtrlCmdBind_IMPL": "channel group bound to an engine",
    "kfifoRunlistSetId_GM107": "channel given to a runlist",
    "kfifoChannelGroupSetTimeslice_IMPL": "time slice of a channel group",
    "kchangrpapiCtrlCmdSetTimeslice_IMPL": "time slice of a channel group, by control",
    "kchannelCtrlCmdStopChannel_IMPL": "channel stopped",
    "kchannelCtrlCmdResetChannel_IMPL": "channel reset after an error",
    "kfifoGenerateWorkSubmitToken_IMPL": "work submit token made",
    "kfifoUpdateUsermodeDoorbell_GA100": "doorbell backend by the kernel (its own channels, not user work); Ampere and newer",
    "kfifoUpdateUsermodeDoorbell_TU102": "doorbell backend by the kernel (its own channels, not user work); Turing",
    "kfifoRingChannelDoorBell_GH100": "doorbell backend by the kernel (its own channels, not user work); Hopper",
    "uvm_channel_end_push": "a push is handed to its channel",
    "RmIsrBottomHalf": "the RM's part of the bottom half",
    "engineNonStallIntrNotifyEvent": "one event of such an interrupt",
    "osNotifyEvent": "an event is delivered",
    "kchannelNotifyRc_IMPL": "a channel's error notifier is written",
    "non_replayable_faults_isr_bottom_half": "GPU faults that cannot be replayed",
    "access_counters_isr_bottom_half": "access counter notifications",
    "replayable_faults_isr_bottom_half": "GPU page faults (kernel thread `UVM GPUn BH`)",
    "uvm_parent_gpu_service_replayable_faults": "the fault service loop",
    "uvm_gpu_service_replayable_faults": "the fault service loop",
    "fetch_fault_buffer_entries": "faults read from the GPU's buffer",
    "preprocess_fault_batch": "faults of a batch sorted",
    "service_fault_batch_block_locked": "faults of one block",
    "uvm_va_block_migrate_locked": "migration of one block",
    "block_copy_resident_pages": "the copies of a migration",
    "uvm_api_unmap_external": "UVM_UNMAP_EXTERNAL: cuMemUnmap",
    "uvm_api_free": "UVM_FREE: cuMemFree",
    "uvm_api_create_external_range": "UVM_CREATE_EXTERNAL_RANGE: the address range of a cuMemAlloc",
    "uvm_api_map_external_allocation": "UVM_MAP_EXTERNAL_ALLOCATION: the mapping of a cuMemAlloc or cuMemMap",
    "uvm_api_unregister_channel": "UVM_UNREGISTER_CHANNEL: channel destruction seen by UVM",
    "uvm_api_register_gpu": "UVM_REGISTER_GPU",
    "uvm_api_set_preferred_location": "UVM_SET_PREFERRED_LOCATION: cuMemAdvise",
    "uvm_api_discard": "UVM_DISCARD",
    "uvm_va_block_cpu_fault": "CPU fault on one block of managed memory",
    "uvm_va_space_cpu_fault": "CPU fault on managed memory, inner part",
    "uvm_pmm_gpu_alloc_kernel": "GPU memory chunk for UVM itself",
    "uvm_pmm_gpu_free": "GPU memory chunk given back",
    "uvm_perf_thrashing_get_hint": "is this page thrashing, and what to do",
    "Nv04AllocWithAccessSecInfo": "NV_ESC_RM_ALLOC (48 bytes)",
    "Nv04AllocWithSecInfo": "NV_ESC_RM_ALLOC (32 bytes)",
    "_kgspRpcSendMessage": "a message put into the GSP's command queue",
    "_issueRpcAndWait": "a GSP RPC from request to reply: the firmware's latency, often most of an ioctl",
    "nvidia_ioctl": "same role inside the driver, where the compiler left it a function (535 and older)",
    "nvidia_frontend_unlocked_ioctl": "same role in 535 and older",
    "vidmemConstruct_IMPL": "NV01_MEMORY_LOCAL_USER: GPU memory (the slab of a cuMemAlloc, a cuMemCreate)",
    "sysmemConstruct_IMPL": "NV01_MEMORY_SYSTEM: system memory",
    "nv_post_event": "event posted: wakes poll() on an nvidia file (blocking synchronisation)",
    "nvidia_poll": "poll on an nvidia file: a thread waits for an event",
    "nvkms_unlocked_ioctl": "unlocked_ioctl of /dev/nvidia-modeset",
    "uvm_tools_unlocked_ioctl_entry": "unlocked_ioctl of /dev/nvidia-uvm-tools",
    "uvm_unlocked_ioctl_entry": "unlocked_ioctl of /dev/nvidia-uvm",
    "uvm_ioctl": "its switch over the requests",
    "nvidia_mmap": "CPU mapping of GPU or system memory, or of a doorbell page",
    "nvidia_close": "close of /dev/nvidiactl or /dev/nvidiaN",
    "_rmapiRmControl": "every RM control, also those issued inside the kernel (UVM, modeset)",
    "rm_ioctl": "entry of the RM core: the payload is in kernel memory and XFER is unwrapped",
    "usrmodeConstruct_IMPL": "the doorbell page: from here on submission bypasses the kernel",
    "os_alloc_mem": "the RM's own host memory, not GPU memory; very frequent",
    "rm_init_adapter": "GPU initialisation (seconds, without persistence mode)",
}


def modules(row):
    module = row["module_580"]
    if module.startswith("("):
        path = row["source_file"]
        for folder, name in [("nvidia-uvm", "nvidia_uvm"), ("nvidia-modeset", "nvidia_modeset")]:
            if folder in path:
                return name
        return "nvidia"
    return module


def returns(name):
    for kind, names in RETURNS.items():
        if name in names.split():
            return kind
    return "status"


def flags(row, group):
    name, found = row["symbol"], []
    if row["proprietary_470"].startswith("no "):
        found.append("open")
    if name in IRQ:
        found.append("irq")
    if group in ("scheduler", "interrupt") or name in SCHEDULER:
        found.append("scheduler")
    return found + FLAGS.get(name, "").split()


def hook(row):
    name, group = row["symbol"], GROUPS.get(row["group"], row["group"])
    on = "on" if row["default_on"] == "1" else "off"
    layer = "core" if row["layer"].startswith("RM core") else "kbuild"
    words = [name, group, on, modules(row), layer, returns(name), *flags(row, group)]
    capture = CAPTURE.get(name, [])
    if isinstance(capture, str):
        capture = [f"args {OLD} {capture}"]
    means = MEANS.get(name) or row["meaning"]
    return [" ".join(words), *(f"  {line}" for line in capture), f"  means {means}"]


def main():
    with open(sys.argv[1], newline="") as file:
        rows = list(csv.DictReader(file))
    known = {row["symbol"] for row in rows}
    named = {*CAPTURE, *FLAGS, *IRQ, *SCHEDULER, *(n for s in RETURNS.values() for n in s.split())}
    if named - known:
        sys.exit(f"not in the CSV: {sorted(named - known)}")
    lines = []
    for row in rows:
        if row["group"] == "folklore":
            lines.append(f"folklore {row['symbol']} {row['meaning']}")
        else:
            lines += hook(row)
    with open(os.path.join(os.path.dirname(__file__), "hooks.txt"), "w") as out:
        out.write("".join(line.rstrip() + "\n" for line in lines))


if __name__ == "__main__":
    main()
