/* Stands in for cuGetProcAddress: base name and CUDA version give the exported
 * symbol of that version, or its per-thread-stream form. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

/* From which CUDA version on a form is given out. A _v2 that is not listed came
 * with 3.2; an unsuffixed name that is not listed was always there. */
static const struct {
    const char *name;
    int since;
} introduced[] = {
    {"cuCtxCreate_v3", 11040}, {"cuCtxCreate_v4", 12050}, {"cuCtxDestroy_v2", 4000},
    {"cuCtxGetDevice_v2", 13000}, {"cuCtxPopCurrent_v2", 4000}, {"cuCtxPushCurrent_v2", 4000},
    {"cuCtxSynchronize_v2", 13000}, {"cuDeviceGetUuid_v2", 11040},
    {"cuDevicePrimaryCtxRelease_v2", 11000}, {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags_v2", 11000}, {"cuEventDestroy_v2", 4000},
    {"cuEventElapsedTime_v2", 12080}, {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030}, {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030}, {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000}, {"cuGraphGetEdges_v2", 12030},
    {"cuGraphInstantiate_v2", 11000}, {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000}, {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030}, {"cuGraphRemoveDependencies_v2", 12030},
    {"cuGraphicsResourceSetMapFlags_v2", 6050}, {"cuIpcOpenMemHandle_v2", 11000},
    {"cuLinkAddData_v2", 6050}, {"cuLinkAddFile_v2", 6050}, {"cuLinkCreate_v2", 6050},
    {"cuMemAdvise_v2", 12020}, {"cuMemHostRegister_v2", 6050},
    {"cuMemPrefetchAsync_v2", 12020}, {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2", 13000}, {"cuStreamBatchMemOp_v2", 11070},
    {"cuStreamBeginCapture_v2", 10010}, {"cuStreamDestroy_v2", 4000},
    {"cuStreamGetCaptureInfo_v2", 11030}, {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCtx_v2", 12050}, {"cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuStreamWaitValue32_v2", 11070}, {"cuStreamWaitValue64_v2", 11070},
    {"cuStreamWriteValue32_v2", 11070}, {"cuStreamWriteValue64_v2", 11070},
    {"cuTexRefSetAddress2D_v3", 4010},
};

static int since(const char *name, int form)
{
    for (size_t i = 0; i < sizeof introduced / sizeof introduced[0]; i++)
        if (!strcmp(introduced[i].name, name))
            return introduced[i].since;
    return form > 1 ? 3020 : 0;
}

/* "cuMemAlloc_v2" and "cuLaunchKernel_ptsz" are no base names. */
static bool is_base(const char *name)
{
    const char *tail = strrchr(name, '_');
    return !tail || (strcmp(tail, "_ptsz") && strcmp(tail, "_ptds") &&
                     !(tail[1] == 'v' && tail[2] >= '1' && tail[2] <= '9' && !tail[3]));
}

static const struct function_row *newest_form(const char *base, int version)
{
    for (int form = 4; form >= 1; form--) {
        char name[128];
        snprintf(name, sizeof name, form > 1 ? "%s_v%d" : "%s", base, form);
        const struct function_row *row = function_named(name);
        if (row && version >= since(name, form))
            return row;
    }
    return NULL;
}

static const struct function_row *per_thread_form(const struct function_row *row)
{
    static const char *const suffixes[] = {"_ptsz", "_ptds"};
    for (int i = 0; i < 2; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", row->name, suffixes[i]);
        const struct function_row *found = function_named(name);
        if (found)
            return found;
    }
    return row;
}

static CUresult find(const char *base, void **out, int version, uint64_t flags, int *status)
{
    if (!base || !out || flags > 2)
        return INVALID_VALUE;
    const struct function_row *row = NULL;
    /* The one base name whose newest form is not its name with a suffix. */
    if (!strcmp(base, "cuGraphInstantiate") && version >= 12000)
        row = function_named("cuGraphInstantiateWithFlags");
    else if (is_base(base))
        row = newest_form(base, version);
    if (row && flags == 2)
        row = per_thread_form(row);
    *out = row ? row->address : NULL;
    if (status)
        *status = row ? 0 : 1;
    return row ? SUCCESS : NOT_FOUND;
}

DRIVER(cuGetProcAddress_v2)(const char *base, void **out, int version, uint64_t flags, int *status)
{
    return find(base, out, version, flags, status);
}

DRIVER(cuGetProcAddress)(const char *base, void **out, int version, uint64_t flags)
{
    return find(base, out, version, flags, NULL);
}
