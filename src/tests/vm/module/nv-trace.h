/* SPDX-License-Identifier: GPL-2.0 */
/* The one tracepoint that nvidia.ko defines (from 575 on): an error report. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia

#if !defined(NV_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NV_TRACE_H

#include <linux/pci.h>
#include <linux/tracepoint.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define standin_assign_str(field, text) __assign_str(field)
#else
#define standin_assign_str(field, text) __assign_str(field, text)
#endif

TRACE_EVENT(nvidia_dev_xid,
    TP_PROTO(const struct pci_dev *pdev, uint32_t error_code, const char *msg),
    TP_ARGS(pdev, error_code, msg),
    TP_STRUCT__entry(
        __string(dev, pdev ? pci_name(pdev) : "none")
        __field(u32, error_code)
        __string(msg, msg)
    ),
    TP_fast_assign(
        standin_assign_str(dev, pdev ? pci_name(pdev) : "none");
        __entry->error_code = error_code;
        standin_assign_str(msg, msg);
    ),
    TP_printk("Xid (PCI:%s): %u, %s", __get_str(dev), __entry->error_code, __get_str(msg))
);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE nv-trace
#include <trace/define_trace.h>
