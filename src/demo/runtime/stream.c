/* Stands in for the runtime's streams, events and graphs. */
#include "runtime.h"

RUNTIME(cudaStreamCreate)(handle *out)
{
    WITH_DEVICE(driver.cuStreamCreate(out, 0));
}

RUNTIME(cudaStreamCreateWithFlags)(handle *out, unsigned flags)
{
    WITH_DEVICE(driver.cuStreamCreate(out, flags));
}

RUNTIME(cudaStreamCreateWithPriority)(handle *out, unsigned flags, int priority)
{
    WITH_DEVICE(driver.cuStreamCreateWithPriority(out, flags, priority));
}

RUNTIME(cudaStreamDestroy)(handle stream)
{
    WITH_DEVICE(driver.cuStreamDestroy(stream));
}

RUNTIME(cudaStreamSynchronize)(handle stream)
{
    WITH_DEVICE(driver.cuStreamSynchronize(stream));
}

RUNTIME(cudaStreamQuery)(handle stream)
{
    WITH_DEVICE(driver.cuStreamQuery(stream));
}

RUNTIME(cudaStreamWaitEvent)(handle stream, handle event, unsigned flags)
{
    WITH_DEVICE(driver.cuStreamWaitEvent(stream, event, flags));
}

RUNTIME(cudaStreamGetFlags)(handle stream, unsigned *flags)
{
    WITH_DEVICE(driver.cuStreamGetFlags(stream, flags));
}

RUNTIME(cudaStreamGetPriority)(handle stream, int *priority)
{
    WITH_DEVICE(driver.cuStreamGetPriority(stream, priority));
}

RUNTIME(cudaStreamGetId)(handle stream, unsigned long long *id)
{
    WITH_DEVICE(driver.cuStreamGetId(stream, id));
}

RUNTIME(cudaStreamAddCallback)(handle stream, void *function, void *data, unsigned flags)
{
    WITH_DEVICE(driver.cuStreamAddCallback(stream, function, data, flags));
}

RUNTIME(cudaStreamBeginCapture)(handle stream, int mode)
{
    WITH_DEVICE(driver.cuStreamBeginCapture(stream, mode));
}

RUNTIME(cudaStreamEndCapture)(handle stream, handle *graph)
{
    WITH_DEVICE(driver.cuStreamEndCapture(stream, graph));
}

RUNTIME(cudaStreamIsCapturing)(handle stream, int *status)
{
    WITH_DEVICE(driver.cuStreamIsCapturing(stream, status));
}

RUNTIME(cudaThreadExchangeStreamCaptureMode)(int *mode)
{
    WITH_DEVICE(driver.cuThreadExchangeStreamCaptureMode(mode));
}

RUNTIME(cudaEventCreate)(handle *out)
{
    WITH_DEVICE(driver.cuEventCreate(out, 0));
}

RUNTIME(cudaEventCreateWithFlags)(handle *out, unsigned flags)
{
    WITH_DEVICE(driver.cuEventCreate(out, flags));
}

RUNTIME(cudaEventDestroy)(handle event)
{
    WITH_DEVICE(driver.cuEventDestroy(event));
}

RUNTIME(cudaEventRecord)(handle event, handle stream)
{
    WITH_DEVICE(driver.cuEventRecord(event, stream));
}

RUNTIME(cudaEventRecordWithFlags)(handle event, handle stream, unsigned flags)
{
    WITH_DEVICE(driver.cuEventRecordWithFlags(event, stream, flags));
}

RUNTIME(cudaEventSynchronize)(handle event)
{
    WITH_DEVICE(driver.cuEventSynchronize(event));
}

RUNTIME(cudaEventQuery)(handle event)
{
    WITH_DEVICE(driver.cuEventQuery(event));
}

RUNTIME(cudaEventElapsedTime)(float *milliseconds, handle start, handle end)
{
    WITH_DEVICE(driver.cuEventElapsedTime(milliseconds, start, end));
}

RUNTIME(cudaGraphCreate)(handle *out, unsigned flags)
{
    WITH_DEVICE(driver.cuGraphCreate(out, flags));
}

RUNTIME(cudaGraphDestroy)(handle graph)
{
    WITH_DEVICE(driver.cuGraphDestroy(graph));
}

RUNTIME(cudaGraphClone)(handle *out, handle graph)
{
    WITH_DEVICE(driver.cuGraphClone(out, graph));
}

RUNTIME(cudaGraphGetNodes)(handle graph, handle *nodes, size_t *count)
{
    WITH_DEVICE(driver.cuGraphGetNodes(graph, nodes, count));
}

RUNTIME(cudaGraphInstantiate)(handle *out, handle graph, unsigned long long flags)
{
    WITH_DEVICE(driver.cuGraphInstantiate(out, graph, flags));
}
RUNTIME_ALIAS(cudaGraphInstantiateWithFlags, cudaGraphInstantiate);

RUNTIME(cudaGraphInstantiateWithParams)(handle *out, handle graph, void *params)
{
    WITH_DEVICE(driver.cuGraphInstantiateWithParams(out, graph, params));
}

RUNTIME(cudaGraphLaunch)(handle exec, handle stream)
{
    WITH_DEVICE(driver.cuGraphLaunch(exec, stream));
}

RUNTIME(cudaGraphUpload)(handle exec, handle stream)
{
    WITH_DEVICE(driver.cuGraphUpload(exec, stream));
}

RUNTIME(cudaGraphExecDestroy)(handle exec)
{
    WITH_DEVICE(driver.cuGraphExecDestroy(exec));
}
