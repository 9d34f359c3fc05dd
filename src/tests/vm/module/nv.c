// SPDX-License-Identifier: GPL-2.0
/* Stands in for nvidia.ko: the module itself. What it makes, it takes away again. */
#include "standin.h"

#include <linux/module.h>

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in for a GPU driver, for tests");

unsigned int standin_layout = 580;
module_param_named(layout, standin_layout, uint, 0444);
EXPORT_SYMBOL(standin_layout);
MODULE_PARM_DESC(layout, "whose payload layouts: 535, 580 or 590");

const char *standin_version;

static int __init standin_init(void)
{
    int result;
    switch (standin_layout) {
    case 535: standin_version = "535.261.03"; break;
    case 580: standin_version = "580.159.04"; break;
    case 590: standin_version = "590.48.01"; break;
    default: return -EINVAL;
    }
    init_waitqueue_head(&nv_gpu.waiting);
    init_waitqueue_head(&nv_ctl.waiting);
    /* Any will do: it only lends its name to an Xid. */
    nv_gpu.pci = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, NULL);
    result = nv_interrupt_init();
    if (result)
        goto no_interrupt;
    result = nv_proc_init();
    if (result)
        goto no_proc;
    result = nv_files_init();
    if (result)
        goto no_files;
    return 0;
no_files:
    nv_proc_exit();
no_proc:
    nv_interrupt_exit();
no_interrupt:
    pci_dev_put(nv_gpu.pci);
    return result;
}

static void __exit standin_exit(void)
{
    nv_files_exit();
    nv_interrupt_exit();
    nv_proc_exit();
    pci_dev_put(nv_gpu.pci);
}

module_init(standin_init);
module_exit(standin_exit);
