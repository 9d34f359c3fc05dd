/* SPDX-License-Identifier: GPL-2.0 */
/* Stands in for the types that NVIDIA's kernel modules share. Names, numbers and offsets are the real ones; no text
 * is. Every function that a tracer may want to hook begins with HERE, which counts it: /proc/driver/nvidia/
 * standin_counts is the truth that tests compare a trace with. */
#ifndef STANDIN_H
#define STANDIN_H

#include <linux/fs.h>
#include <linux/llist.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/types.h>
#include <linux/version.h>

typedef u32 NvHandle;
typedef u32 NV_STATUS;
typedef u8 NvBool;

enum {
    NV_OK = 0,
    NV_ERR_ILLEGAL_ACTION = 0x16,
    NV_ERR_INSERT_DUPLICATE_NAME = 0x19,
    NV_ERR_INVALID_ADDRESS = 0x1e,
    NV_ERR_INVALID_ARGUMENT = 0x1f,
    NV_ERR_INVALID_CLASS = 0x22,
    NV_ERR_INVALID_CLIENT = 0x23,
    NV_ERR_INVALID_COMMAND = 0x24,
    NV_ERR_INVALID_DEVICE = 0x26,
    NV_ERR_INVALID_OBJECT_HANDLE = 0x33,
    NV_ERR_INVALID_OBJECT_PARENT = 0x36,
    NV_ERR_INVALID_PARAM_STRUCT = 0x3a,
    NV_ERR_NO_MEMORY = 0x51,
    NV_ERR_NOT_SUPPORTED = 0x56,
    NV_ERR_OBJECT_NOT_FOUND = 0x57,
    NV_ERR_LIB_RM_VERSION_MISMATCH = 0x6a,
};

/* The compiler may neither inline it, nor clone it, nor guess at its callers. */
#define FN noinline __attribute__((__noipa__))

#define NV_MAJOR 195
#define NV_MINOR_MODESET 254
#define NV_MINOR_CTL 255
enum { NV_ESC_RM_ALLOC_MEMORY = 0x27, NV_ESC_RM_FREE = 0x29, NV_ESC_RM_CONTROL = 0x2a, NV_ESC_RM_ALLOC = 0x2b,
       NV_ESC_RM_DUP_OBJECT = 0x34, NV_ESC_RM_VID_HEAP_CONTROL = 0x4a, NV_ESC_RM_MAP_MEMORY = 0x4e,
       NV_ESC_RM_UNMAP_MEMORY = 0x4f, NV_ESC_RM_MAP_MEMORY_DMA = 0x57, NV_ESC_RM_UNMAP_MEMORY_DMA = 0x58,
       NV_ESC_CARD_INFO = 0xc8, NV_ESC_REGISTER_FD = 0xc9, NV_ESC_ALLOC_OS_EVENT = 0xce, NV_ESC_FREE_OS_EVENT = 0xcf,
       NV_ESC_STATUS_CODE = 0xd1, NV_ESC_CHECK_VERSION_STR = 0xd2, NV_ESC_IOCTL_XFER_CMD = 0xd3,
       NV_ESC_ATTACH_GPUS_TO_FD = 0xd4, NV_ESC_QUERY_DEVICE_INTR = 0xd5, NV_ESC_SYS_PARAMS = 0xd6,
       NV_ESC_WAIT_OPEN_COMPLETE = 0xda };

/* Which driver's layouts: 535, 580 or 590. */
extern unsigned int standin_layout;
extern const char *standin_version;

static inline u32 get32(const void *at, unsigned int offset) { return *(const u32 *)((const char *)at + offset); }
static inline u64 get64(const void *at, unsigned int offset) { return *(const u64 *)((const char *)at + offset); }
static inline void put32(void *at, unsigned int offset, u32 value) { *(u32 *)((char *)at + offset) = value; }
static inline void put64(void *at, unsigned int offset, u64 value) { *(u64 *)((char *)at + offset) = value; }

/* --- the truth --- */
struct standin_function {
    struct llist_node node;
    const char *name;
    atomic_t listed, count;
};
/* A module's functions that were called at least once. */
struct standin_functions {
    struct llist_head list;
    const char *module;
    struct list_head others;
};
extern struct standin_functions standin_here;
void standin_called(struct standin_functions *mine, struct standin_function *function, const char *name);
void standin_functions_add(struct standin_functions *more);
void standin_functions_remove(struct standin_functions *more);
#define HERE_AS(name_)                                              \
    do {                                                            \
        static struct standin_function here_function;               \
        standin_called(&standin_here, &here_function, name_);       \
    } while (0)
#define HERE HERE_AS(__func__)

struct standin_ioctl {
    const char *device;
    unsigned int minor; /* shown behind the name if it is not NO_NUMBER */
    u32 nr, detail;     /* detail: RM command or class */
    bool has_detail, has_status, wrapped;
    u32 status;
    long returned;
};
#define NO_NUMBER ~0u
void standin_count_ioctl(const struct standin_ioctl *ioctl);
void standin_count_file(const char *device, unsigned int minor, const char *what);
enum standin_event { STANDIN_INTERRUPTS, STANDIN_POSTED, STANDIN_XIDS, STANDIN_CPU_FAULTS, STANDIN_GPU_FAULTS,
                     STANDIN_EVENTS };
void standin_count_event(enum standin_event event);

/* --- nvidia.ko's device files (nv-files.c) --- */
typedef struct nv_state {
    unsigned int minor;
    struct pci_dev *pci;
    wait_queue_head_t waiting;
    int irq;
} nv_state_t;
typedef struct nv_file_private {
    nv_state_t *nv;
    unsigned int minor;
    bool has_event;
    atomic_t posted;
    wait_queue_head_t waiting;
    struct list_head files;
    void *mapping; /* what the next mmap gives */
    u64 mapping_bytes;
} nv_file_private_t;
typedef struct nvidia_stack nvidia_stack_t;
typedef struct nv_event {
    nv_file_private_t *nvfp;
} nv_event_t;
extern nv_state_t nv_gpu, nv_ctl;
int nv_files_init(void);
void nv_files_exit(void);
nv_file_private_t *nv_file_of(int fd, struct file **file);
void nv_each_waiting(void (*visit)(nv_file_private_t *));

/* --- nv-interrupt.c --- */
int nv_interrupt_init(void);
void nv_interrupt_exit(void);
void nv_interrupt_raise(void);
void nv_interrupt_soon(void);
void nv_post_event(nv_event_t *event, NvHandle handle, u32 index, u32 info32, u16 info16, NvBool data_valid);
void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap);
void standin_xid(u32 number, const char *text);

/* --- nv-memory.c --- */
NV_STATUS nv_alloc_pages(nv_state_t *nv, u32 page_count, u64 page_size, NvBool contiguous, u32 cache_type,
                         NvBool zeroed, NvBool unencrypted, s32 node_id, u64 *pte_array, void **priv_data);
NV_STATUS nv_free_pages(nv_state_t *nv, u32 page_count, NvBool contiguous, u32 cache_type, void *priv_data);
NV_STATUS os_lock_user_pages(void *address, u64 page_count, void **page_array, u32 flags);
NV_STATUS os_unlock_user_pages(u64 page_count, void *page_array, u32 flags);
NV_STATUS nv_dma_map_alloc(void *dma_dev, u64 page_count, u64 *va_array, NvBool contig, void **priv);
NV_STATUS nv_dma_unmap_alloc(void *dma_dev, u64 page_count, u64 *va_array, void **priv);
NV_STATUS nv_add_mapping_context_to_file(nv_state_t *nv, void *nvuap, u32 prot, void *alloc, u64 index, u32 fd);
NV_STATUS os_alloc_mem(void **address, u64 size);
void os_free_mem(void *address);

/* --- nv-proc.c --- */
int nv_proc_init(void);
void nv_proc_exit(void);

/* --- nv-interface.c: what nvidia-uvm.ko calls --- */
struct standin_uvm_ops {
    NV_STATUS (*isr_top_half)(const void *uuid);
    void (*gpu_fault)(void);
};
NV_STATUS nvUvmInterfaceRegisterUvmOps(struct standin_uvm_ops *ops);
void nvUvmInterfaceDeRegisterUvmOps(void);
NV_STATUS nvUvmInterfaceDupAddressSpace(void *device, NvHandle client, NvHandle space, void **dup, void *info);
NV_STATUS nvUvmInterfaceDupMemory(void *device, NvHandle client, NvHandle memory, NvHandle *dup, void *info);
NV_STATUS nvUvmInterfaceRetainChannel(void *space, NvHandle client, NvHandle channel, void **retained, void *info);
void nvUvmInterfaceReleaseChannel(void *retained);
NV_STATUS nvUvmInterfaceStopChannel(void *retained, NvBool immediate);
NV_STATUS nvUvmInterfacePmaAllocPages(void *pma, u64 page_count, u64 page_size, void *options, u64 *pages);
void nvUvmInterfacePmaFreePages(void *pma, u64 *pages, u64 page_count, u64 page_size, u32 flags);
NV_STATUS nv_uvm_event_interrupt(const u8 *uuid);
void nv_uvm_gpu_fault(void);

/* --- RM core --- */
NV_STATUS rm_ioctl(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp, u32 command, void *data, u32 size);
void rm_cleanup_file_private(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp);
NvBool rm_isr(nvidia_stack_t *sp, nv_state_t *nv, u32 *need_bottom_half);
void rm_isr_bh(nvidia_stack_t *sp, nv_state_t *nv);
int rm_init_adapter(nvidia_stack_t *sp, nv_state_t *nv);
NV_STATUS rm_gpu_ops_dup_address_space(nvidia_stack_t *sp, NvHandle client, NvHandle space);
NV_STATUS rm_gpu_ops_dup_memory(nvidia_stack_t *sp, NvHandle client, NvHandle memory);
NV_STATUS rm_gpu_ops_retain_channel(nvidia_stack_t *sp, NvHandle client, NvHandle channel);
NV_STATUS rm_gpu_ops_pma_alloc_pages(nvidia_stack_t *sp, void *pma, u64 count, u64 size, void *options, u64 *pages);
void rm_gpu_ops_pma_free_pages(nvidia_stack_t *sp, void *pma, u64 *pages, u64 count, u64 size, u32 flags);

#endif
