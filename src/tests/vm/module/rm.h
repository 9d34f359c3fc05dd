/* SPDX-License-Identifier: GPL-2.0 */
/* Inside the stand-in for the RM core: objects and the kernel's own parameter blocks, with the real offsets. */
#ifndef RM_H
#define RM_H

#include "standin.h"

#include <linux/list.h>
#include <linux/mutex.h>

#ifdef STANDIN_proprietary
/* The shipped binary's names are numbers that change with every release. */
#define RM_NAME(name, number) asm("_nv" number "rm")
#else
#define RM_NAME(name, number) asm(name)
#endif
/* Opens a function of one file. */
#define RM_FN(result, name, number, ...)                       \
    static FN result name(__VA_ARGS__) RM_NAME(#name, number); \
    static FN result name(__VA_ARGS__)

typedef struct { u64 words[4]; } API_SECURITY_INFO; /* 32 bytes, by value */

typedef struct {
    NvHandle hClient, hParent, hResource;
    u32 externalClassId;
    u8 unused[48];
    void *pAllocParams; /* @64, kernel memory */
    bool copied;        /* of the stand-in: the object shares what another one made */
} RS_RES_ALLOC_PARAMS;
static_assert(offsetof(RS_RES_ALLOC_PARAMS, pAllocParams) == 64);

typedef struct {
    NvHandle hClient, hObject;
    u32 cmd, flags;
    void *pParams; /* @16, kernel memory */
    u32 paramsSize;
} RS_RES_CONTROL_PARAMS;
static_assert(offsetof(RS_RES_CONTROL_PARAMS, paramsSize) == 24);

typedef struct {
    NvHandle hClient, hResource;
} RS_RES_FREE_PARAMS;

struct rm_object {
    struct list_head objects;
    nv_file_private_t *owner;
    NvHandle client, parent, handle;
    u32 class;
    u64 bytes, page_size;
    void *memory, *pages;
    bool copied;
};
extern struct mutex rm_lock;

struct rm_object *rm_find(NvHandle client, NvHandle handle);
NV_STATUS serverAllocResource(void *server, RS_RES_ALLOC_PARAMS *params, nv_file_private_t *nvfp)
    RM_NAME("serverAllocResource", "000821");
NV_STATUS serverFreeResourceTree(void *server, RS_RES_FREE_PARAMS *params)
    RM_NAME("serverFreeResourceTree", "000822");
NV_STATUS serverControl(void *server, RS_RES_CONTROL_PARAMS *params)
    RM_NAME("serverControl", "000917");
void rm_free_owned(nv_file_private_t *owner);
/* Bytes of a class's parameters with the layout in force; 0: it takes none; -1: no such class. */
int rm_class_size(u32 class);

NV_STATUS pmaAllocatePages(void *pma, u64 count, u64 page_size, void *options, u64 *pages)
    RM_NAME("pmaAllocatePages", "000801");
void pmaFreePages(void *pma, u64 *pages, u64 count, u64 size, u32 flag)
    RM_NAME("pmaFreePages", "000802");
NV_STATUS rpcRmApiControl_GSP(void *api, NvHandle client, NvHandle object, u32 cmd, void *params, u32 size)
    RM_NAME("rpcRmApiControl_GSP", "000904");
NV_STATUS rpcRmApiAlloc_GSP(void *api, NvHandle client, NvHandle parent, NvHandle object, u32 class, void *params,
                            u32 size)
    RM_NAME("rpcRmApiAlloc_GSP", "000905");
NV_STATUS rpcRmApiFree_GSP(void *api, NvHandle client, NvHandle object)
    RM_NAME("rpcRmApiFree_GSP", "000906");
NV_STATUS kchannelBindToRunlist_IMPL(struct rm_object *channel, u32 engine, u64 descriptor)
    RM_NAME("kchannelBindToRunlist_IMPL", "000907");
NV_STATUS kchangrpSetInterleaveLevel_IMPL(void *gpu, struct rm_object *group, u32 value)
    RM_NAME("kchangrpSetInterleaveLevel_IMPL", "000908");

#endif
