// SPDX-License-Identifier: GPL-2.0
/* Stands in for the RM core's controls: a command to what does it, some of them sent to the GPU's own processor
 * (GSP), where they take their time. */
#include "rm.h"

#include <linux/delay.h>
#include <linux/string.h>


/* --- GSP --- */

RM_FN(NV_STATUS, _kgspRpcSendMessage, "000901", void *gpu, void *rpc, u32 *sequence)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, _kgspRpcRecvPoll, "000902", void *gpu, void *rpc, u32 function, u32 sequence)
{
    HERE;
    udelay(20);
    return NV_OK;
}

RM_FN(NV_STATUS, _issueRpcAndWait, "000903", void *gpu, void *rpc, u32 function)
{
    u32 sequence = 0;
    HERE;
    _kgspRpcSendMessage(gpu, rpc, &sequence);
    return _kgspRpcRecvPoll(gpu, rpc, function, sequence);
}

FN NV_STATUS rpcRmApiControl_GSP(void *api, NvHandle client, NvHandle object, u32 cmd, void *params,
          u32 size)
{
    HERE;
    return _issueRpcAndWait(NULL, NULL, 76);
}

FN NV_STATUS rpcRmApiAlloc_GSP(void *api, NvHandle client, NvHandle parent, NvHandle object,
          u32 class, void *params, u32 size)
{
    HERE;
    return _issueRpcAndWait(NULL, NULL, 103);
}

FN NV_STATUS rpcRmApiFree_GSP(void *api, NvHandle client, NvHandle object)
{
    HERE;
    return _issueRpcAndWait(NULL, NULL, 10);
}

/* --- scheduling --- */

FN NV_STATUS kchannelBindToRunlist_IMPL(struct rm_object *channel, u32 engine, u64 descriptor)
{
    HERE;
    return NV_OK;
}

FN NV_STATUS kchangrpSetInterleaveLevel_IMPL(void *gpu, struct rm_object *group, u32 value)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, kchangrpapiCtrlCmdGpFifoSchedule_IMPL, "000909", struct rm_object *group, void *params)
{
    HERE;
    return rpcRmApiControl_GSP(NULL, group->client, group->handle, 0xa06c0101, params, 3);
}

RM_FN(NV_STATUS, kchannelCtrlCmdGpFifoSchedule_IMPL, "000910", struct rm_object *channel, void *params)
{
    HERE;
    return rpcRmApiControl_GSP(NULL, channel->client, channel->handle, 0xa06f0103, params, 3);
}

RM_FN(NV_STATUS, kchannelCtrlCmdBind_IMPL, "000911", struct rm_object *channel, void *params)
{
    HERE;
    return kchannelBindToRunlist_IMPL(channel, get32(params, 0), 0);
}

RM_FN(NV_STATUS, kchangrpapiCtrlCmdSetTimeslice_IMPL, "000912", struct rm_object *group, void *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, kchannelCtrlCmdGpfifoGetWorkSubmitToken_IMPL, "000913", struct rm_object *channel, void *params)
{
    HERE;
    put32(params, 0, channel->handle & 0xffff);
    return NV_OK;
}

RM_FN(NV_STATUS, kchannelCtrlCmdStopChannel_IMPL, "000914", struct rm_object *channel, void *params)
{
    HERE;
    return NV_OK;
}

RM_FN(NV_STATUS, kchannelCtrlCmdResetChannel_IMPL, "000915", struct rm_object *channel, void *params)
{
    HERE;
    standin_xid(43, "Ch 00000001, channel reset");
    return NV_OK;
}

RM_FN(NV_STATUS, subdeviceCtrlCmdFifoDisableChannels_IMPL, "000916", struct rm_object *device, void *params)
{
    HERE;
    return NV_OK;
}

/* --- all others: a number, its parameters' size (0: any), and whether GSP does it --- */
struct command {
    u32 cmd, size;
    bool gsp;
};
static const struct command commands[] = {
    {0x00000101, 40, false},   {0x00000102, 108, false},  {0x00000201, 128, false},  {0x00000214, 384, false},
    {0x00000215, 132, false},  {0x00000205, 32, false},   {0x0000021b, 12, false},   {0x0000012b, 0, false},
    {0x0000013a, 1352, false}, {0x00000136, 4, false},    {0x00000d01, 12, false},   {0x00003d05, 24, false},
    {0x00800292, 804, false},  {0x00800280, 4, false},    {0x0080170d, 24, false},   {0x00801806, 192, false},
    {0x00801909, 1, false},    {0x20800102, 564, false},  {0x20800110, 132, false},  {0x2080014a, 268, false},
    {0x20800170, 340, false},  {0x2080012f, 0, true},     {0x20800131, 4, false},    {0x2080018e, 0, false},
    {0x20800195, 260, false},  {0x20800301, 20, false},   {0x20801303, 1028, false}, {0x20801352, 32, false},
    {0x2080130e, 0, false},    {0x20801218, 16, false},   {0x20801210, 32, true},    {0x2080121b, 0, false},
    {0x20801801, 16, false},   {0x20801823, 420, false},  {0x20802a0a, 136, false},  {0x20801701, 16, false},
    {0x20801702, 4, false},    {0x20802209, 4, false},    {0x20800406, 264, false},  {0x20800403, 8, false},
    {0x20803002, 0, false},    {0x2080200a, 8, false},    {0x20802068, 4, true},     {0x20803601, 72, true},
    {0x20803801, 1928, true},  {0xa06c0105, 8, true},     {0xc36f010a, 4, false},    {0xcb330101, 6, false},
    {0x00410110, 16, false},
};

static const struct command *command_of(u32 cmd)
{
    size_t i;
    for (i = 0; i < ARRAY_SIZE(commands); i++)
        if (commands[i].cmd == cmd)
            return &commands[i];
    return NULL;
}

static NV_STATUS plain(RS_RES_CONTROL_PARAMS *params)
{
    const struct command *command = command_of(params->cmd);
    if (!command && !(params->cmd & 0x8000))
        return NV_ERR_NOT_SUPPORTED;
    if (command && command->size && params->paramsSize != command->size)
        return NV_ERR_INVALID_PARAM_STRUCT;
    if (params->cmd == 0x20800110 && params->pParams)
        strscpy((char *)params->pParams + 4, "Stand-in GPU", 64);
    if (params->cmd == 0x20801702)
        nv_interrupt_raise();
    /* The opaque channel to GSP, and what the table says. */
    if (!command || command->gsp)
        return rpcRmApiControl_GSP(NULL, params->hClient, params->hObject, params->cmd, params->pParams,
                                   params->paramsSize);
    return NV_OK;
}

typedef NV_STATUS (*control_fn)(struct rm_object *object, void *params);
static const struct {
    u32 cmd, size;
    control_fn run;
} scheduling[] = {
    {0xa06c0101, 3, kchangrpapiCtrlCmdGpFifoSchedule_IMPL},
    {0xa06c0103, 8, kchangrpapiCtrlCmdSetTimeslice_IMPL},
    {0xa06f0103, 3, kchannelCtrlCmdGpFifoSchedule_IMPL},
    {0xa06f0104, 4, kchannelCtrlCmdBind_IMPL},
    {0xa06f0112, 1, kchannelCtrlCmdStopChannel_IMPL},
    {0xc36f0108, 4, kchannelCtrlCmdGpfifoGetWorkSubmitToken_IMPL},
    {0x906f0102, 16, kchannelCtrlCmdResetChannel_IMPL},
    {0x2080110b, 536, subdeviceCtrlCmdFifoDisableChannels_IMPL},
};

FN NV_STATUS serverControl(void *server, RS_RES_CONTROL_PARAMS *params)
{
    struct rm_object *object = rm_find(params->hClient, params->hObject);
    size_t i;
    HERE;
    if (!object)
        return rm_find(params->hClient, params->hClient) ? NV_ERR_INVALID_OBJECT_HANDLE : NV_ERR_INVALID_CLIENT;
    for (i = 0; i < ARRAY_SIZE(scheduling); i++)
        if (scheduling[i].cmd == params->cmd)
            return params->pParams && params->paramsSize == scheduling[i].size
                       ? scheduling[i].run(object, params->pParams) : NV_ERR_INVALID_PARAM_STRUCT;
    return plain(params);
}
