// SPDX-License-Identifier: GPL-2.0
/* Stands in for the interrupt of a GPU: an interrupt number of our own, raised in hard interrupt context by irq_work,
 * with a top half and a thread; for events posted to who waits in poll(); and for Xids. */
#include "standin.h"

#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/irq_work.h>
#include <linux/irqdesc.h>
#include <linux/workqueue.h>

/* New in 575. */
#ifdef STANDIN_535
#define trace_nvidia_dev_xid(dev, number, text) ((void)(dev), (void)(text))
#else
#define CREATE_TRACE_POINTS
#include "nv-trace.h"
#endif

static struct irq_work raise_work;
static struct delayed_work soon_work;

static void raise(struct irq_work *work)
{
    generic_handle_irq(nv_gpu.irq);
}

/* Where we are: the hard interrupt comes at once, on this CPU. */
void nv_interrupt_raise(void)
{
    irq_work_queue(&raise_work);
}

static void raise_later(struct work_struct *work)
{
    nv_interrupt_raise();
}

void nv_interrupt_soon(void)
{
    schedule_delayed_work(&soon_work, usecs_to_jiffies(2000));
}

FN irqreturn_t nvidia_isr(int irq, void *arg);
FN irqreturn_t nvidia_isr(int irq, void *arg)
{
    nv_state_t *nv = arg;
    u32 need_bottom_half = 0;
    HERE;
    standin_count_event(STANDIN_INTERRUPTS);
    nv_uvm_event_interrupt("stand-in device!");
    if (!rm_isr(NULL, nv, &need_bottom_half))
        return IRQ_NONE;
    return need_bottom_half ? IRQ_WAKE_THREAD : IRQ_HANDLED;
}

FN irqreturn_t nvidia_isr_kthread_bh(int irq, void *data);
FN irqreturn_t nvidia_isr_kthread_bh(int irq, void *data)
{
    HERE;
    rm_isr_bh(NULL, data);
    return IRQ_HANDLED;
}

FN void nv_post_event(nv_event_t *event, NvHandle handle, u32 index, u32 info32, u16 info16, NvBool data_valid)
{
    HERE;
    standin_count_event(STANDIN_POSTED);
    atomic_inc(&event->nvfp->posted);
    wake_up(&event->nvfp->waiting);
}

/* --- Xid --- */

FN void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap)
{
    char text[128];
    HERE;
    standin_count_event(STANDIN_XIDS);
    vsnprintf(text, sizeof(text), format, ap);
    pr_err("NVRM: Xid (PCI:%s): %u, %s\n", dev ? pci_name(dev) : "none", error_number, text);
    if (standin_layout >= 575)
        trace_nvidia_dev_xid(dev, error_number, text);
}

static void report(u32 number, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    nv_report_error(nv_gpu.pci, number, format, ap);
    va_end(ap);
}

void standin_xid(u32 number, const char *text)
{
    report(number, "%s", text);
}

int nv_interrupt_init(void)
{
    /* With us as its owner the module would hold itself. */
    int irq = __irq_alloc_descs(-1, 0, 1, NUMA_NO_NODE, NULL, NULL), result;
    if (irq < 0)
        return irq;
    irq_set_chip_and_handler(irq, &dummy_irq_chip, handle_simple_irq);
    irq_modify_status(irq, IRQ_NOREQUEST | IRQ_NOAUTOEN, IRQ_NOPROBE);
    init_irq_work(&raise_work, raise);
    INIT_DELAYED_WORK(&soon_work, raise_later);
    nv_gpu.irq = irq;
    result = request_threaded_irq(irq, nvidia_isr, nvidia_isr_kthread_bh, 0, "nvidia", &nv_gpu);
    if (result)
        irq_free_descs(irq, 1);
    return result;
}

void nv_interrupt_exit(void)
{
    cancel_delayed_work_sync(&soon_work);
    irq_work_sync(&raise_work);
    free_irq(nv_gpu.irq, &nv_gpu);
    irq_free_descs(nv_gpu.irq, 1);
}
